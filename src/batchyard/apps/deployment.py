"""Deployment controller: one ReplicaSet per pod template, and rollouts from the old ReplicaSets to the new one.

The module `rollout` decides the sizes of the ReplicaSets. Source: pkg/controller/deployment of Kubernetes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, NamespaceTerminating
from batchyard.api.schema import semantic_equality
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import is_terminal
from batchyard.apps import children, rollout
from batchyard.apps.children import ChildIndex
from batchyard.apps.rollout import DESIRED_REPLICAS, MAX_REPLICAS, ReplicaSets
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult

POD_TEMPLATE_HASH: Final = "pod-template-hash"
_REVISION: Final = "deployment.kubernetes.io/revision"
_REVISION_HISTORY: Final = "deployment.kubernetes.io/revision-history"
_REVISION_HISTORY_LENGTH_MAX: Final = 2000
#: The annotations of a Deployment that its ReplicaSets do not get.
_OWN_ANNOTATIONS: Final = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        *(_REVISION, _REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS),
    }
)
_NAME_LENGTH_MAX: Final = 253
_PROGRESSING: Final = "Progressing"
_AVAILABLE: Final = "Available"
_REPLICA_FAILURE: Final = "ReplicaFailure"
_NEW_SET_AVAILABLE: Final = "NewReplicaSetAvailable"
_TIMED_OUT: Final = "ProgressDeadlineExceeded"
_CREATE_ERROR: Final = "ReplicaSetCreateError"


class DeploymentController:
    """Controller that reconciles Deployments with their ReplicaSets."""

    name = "deployment-controller"
    rank = 0
    kinds = (scheme.DEPLOYMENT, scheme.REPLICA_SET, scheme.POD)

    def __init__(self) -> None:
        self._replica_sets = ChildIndex(scheme.DEPLOYMENT, scheme.REPLICA_SET)
        #: The Deployment of each ReplicaSet.
        self._deployment_by_set: dict[meta.Key, meta.Key] = {}
        #: The error of the last rejected creation of a ReplicaSet, by Deployment.
        self._errors: dict[meta.Key, str] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the Deployments of a changed object; an ended pod matters to a Deployment that recreates its pods."""
        match event.key.kind:
            case scheme.DEPLOYMENT:
                self._replica_sets.observe_parent(event)
                if event.type is EventType.DELETED:
                    self._errors.pop(event.key, None)
                return (event.key,)
            case scheme.REPLICA_SET:
                self._record_owner(event)
                return self._replica_sets.observe_child(event)
            case _:
                return self._deployments_of_ended_pod(event)

    def _record_owner(self, event: WatchEvent) -> None:
        owner = meta.controller_of(event.obj)
        if event.type is EventType.DELETED or owner is None or owner["kind"] != "Deployment":
            self._deployment_by_set.pop(event.key, None)
        else:
            self._deployment_by_set[event.key] = meta.Key(scheme.DEPLOYMENT, event.key.namespace, owner["name"])

    def _deployments_of_ended_pod(self, event: WatchEvent) -> Iterable[meta.Key]:
        owner = meta.controller_of(event.obj)
        if owner is None or owner["kind"] != "ReplicaSet":
            return ()
        if event.type is not EventType.DELETED and not is_terminal(event.obj):
            return ()
        deployment = self._deployment_by_set.get(meta.Key(scheme.REPLICA_SET, event.key.namespace, owner["name"]))
        return () if deployment is None else (deployment,)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Adopt and release ReplicaSets, then perform the next step of a rollout or of a change of the replicas."""
        deployment = reader.get(key)
        if deployment is None:
            return ReconcileResult()
        claim = self._replica_sets.claim(deployment, reader)
        if claim.writes:
            return ReconcileResult(list(claim.writes), independent=True)
        sync = DeploymentSync(deployment, claim.children, now, self._errors.get(key, ""))
        sync.reconcile(reader)
        outcome = ReconcileResult(sync.writes(), sync.events, sync.progress_check_time(), independent=True)
        if any(isinstance(write, Create) for write in outcome.writes):
            outcome.on_result = partial(self._record_result, key)
            outcome.event_if_rejected = partial(_rejection_event, key)
        return outcome

    def _record_result(self, key: meta.Key, write: Write, error: ApiError | None) -> bool:
        if not isinstance(write, Create):
            return False
        if error is None or isinstance(error, NamespaceTerminating):
            self._errors.pop(key, None)
        else:
            self._errors[key] = _creation_error(write, error)
        return False


def _creation_error(write: Create, error: ApiError) -> str:
    return f'Failed to create new replica set "{write.obj["metadata"]["name"]}": {error}'


def _rejection_event(key: meta.Key, write: Write, error: ApiError) -> EventRecord | None:
    if not isinstance(write, Create) or isinstance(error, NamespaceTerminating):
        return None
    return EventRecord(key, "Warning", _CREATE_ERROR, _creation_error(write, error))


class DeploymentSync:
    """One reconcile of a Deployment: its ReplicaSets with the changes so far, its conditions, and the Events."""

    def __init__(
        self, deployment: meta.Obj, replica_sets: Sequence[meta.Obj], now: Instant, creation_error: str = ""
    ) -> None:
        self._deployment = deployment
        self._now = now
        self._creation_error = creation_error
        new = find_new_replica_set(deployment, replica_sets)
        self._sets = ReplicaSets(deployment, new, [each for each in replica_sets if each is not new])
        self._status: Mapping[str, Any] = deployment.get("status") or {}
        self._conditions: list[meta.Condition] = list(self._status.get("conditions") or ())
        self._collision_count: int | None = self._status.get("collisionCount")
        self._revision: str | None = None
        self._created: meta.Obj | None = None
        self._deleted: list[meta.Obj] = []
        self.events: list[EventRecord] = []

    def reconcile(self, reader: Reader) -> None:
        """Compute the changes of the ReplicaSets and of the status."""
        if "deletionTimestamp" in self._deployment["metadata"]:
            self._sync_new_set()
            self._set_status()
            return
        self._sync_pause_condition()
        is_paused = bool(self._deployment["spec"].get("paused"))
        if is_paused or self._sets.has_new_size():
            self._sync_new_set()
            self._sets.scale()
            if is_paused:
                self._clean_up_history()
            self._set_status()
        elif rollout.is_rolling(self._deployment):
            self._roll(reader)
        else:
            self._recreate(reader)

    def writes(self) -> list[Write]:
        """Return the writes: the new ReplicaSet, changed and deleted ReplicaSets, and the Deployment's own changes."""
        writes: list[Write] = [] if self._created is None else [Create(self._created)]
        writes += [Update(each) for each in self._sets.changed_sets() if each is not self._created]
        writes += [Delete(meta.key_of(each), uid=each["metadata"]["uid"]) for each in self._deleted]
        for each in self._sets.size_changes():
            verb = "up" if each.new_size > each.old_size else "down"
            message = f"Scaled {verb} replica set {each.name} from {each.old_size} to {each.new_size}"
            self.events.append(EventRecord(meta.key_of(self._deployment), "Normal", "ScalingReplicaSet", message))
        deployment = self._deployment
        if self._revision is not None and meta.annotation(deployment, _REVISION) != self._revision:
            annotations = {**(deployment["metadata"].get("annotations") or {}), _REVISION: self._revision}
            deployment = meta.with_metadata(deployment, annotations=annotations)
            writes.append(Update(deployment))
        if self._status != self._deployment.get("status"):
            # The write above changes the resourceVersion.
            writes.append(
                UpdateStatus(meta.with_metadata({**deployment, "status": self._status}, resourceVersion=None))
            )
        return writes

    def progress_check_time(self) -> Instant | None:
        """Return when to check the progress deadline of an unfinished rollout; None if there is nothing to check."""
        condition, deadline = self._find_condition(_PROGRESSING), _progress_deadline(self._deployment)
        if deadline is None or condition is None or condition.get("reason") in {_TIMED_OUT, _NEW_SET_AVAILABLE}:
            return None
        if is_complete(self._deployment, self._status) or self._deployment["spec"].get("paused"):
            return None
        return max(self._now, parse_time(condition["lastUpdateTime"]) + deadline * SECOND) + SECOND

    # Strategies.

    def _roll(self, reader: Reader) -> None:
        self._sync_new_set()
        if self._sets.new is None and not self._create_new_set(reader):
            return
        has_changed = self._sets.grow_new_set() or self._sets.shrink_old_sets()
        if not has_changed and is_complete(self._deployment, self._status):
            self._clean_up_history()
        self._set_rollout_status()

    def _recreate(self, reader: Reader) -> None:
        self._sync_new_set()
        if self._sets.scale_down_old_sets() or self._has_old_pods(reader):
            self._set_rollout_status()
            return
        if self._sets.new is None and not self._create_new_set(reader):
            return
        self._sets.resize_new_set(children.replicas_of(self._deployment))
        if is_complete(self._deployment, self._status):
            self._clean_up_history()
        self._set_rollout_status()

    def _has_old_pods(self, reader: Reader) -> bool:
        if any(children.status_count(each, "replicas") for each in self._sets.old):
            return True
        return any(
            meta.group_kind(pod) == scheme.POD and not is_terminal(pod)
            for each in self._sets.old
            for pod in reader.owned_by(each["metadata"]["uid"], each["metadata"].get("namespace", ""))
        )

    # The ReplicaSet of the current template.

    def _sync_new_set(self) -> None:
        """Copy annotations and minReadySeconds to the existing new ReplicaSet, and record its revision."""
        new_set = self._sets.new
        if new_set is None:
            return
        revision = str(max((_revision_of(each) for each in self._sets.old), default=0) + 1)
        annotations = _replica_set_annotations(self._deployment, new_set, revision)
        min_ready_seconds = self._deployment["spec"].get("minReadySeconds") or 0
        if min_ready_seconds != (new_set["spec"].get("minReadySeconds") or 0):
            new_set = meta.with_path(new_set, ("spec", "minReadySeconds"), min_ready_seconds or None)
        if annotations != (new_set["metadata"].get("annotations") or {}):
            new_set = meta.with_metadata(new_set, annotations=annotations)
        self._sets.replace(new_set)
        self._revision = annotations.get(_REVISION)
        if self._find_condition(_PROGRESSING) is None:
            message = f'Found new replica set "{new_set["metadata"]["name"]}"'
            self._set_progressing("True", "FoundNewReplicaSet", message)

    def _create_new_set(self, reader: Reader) -> bool:
        """Create the ReplicaSet of the current template; return whether the rollout can continue.

        If another ReplicaSet has its name, the collision count increases, and the next reconcile uses another name.
        """
        new_set = new_replica_set(self._deployment, self._collision_count)
        if reader.get(meta.key_of(new_set)) is not None:
            self._collision_count = (self._collision_count or 0) + 1
            self._status = {**self._status, "collisionCount": self._collision_count}
            return False
        size = self._sets.size_of_created_set()
        revision = str(max((_revision_of(each) for each in self._sets.old), default=0) + 1)
        annotations = _replica_set_annotations(self._deployment, new_set, revision)
        annotations |= rollout.size_annotations(self._deployment)
        new_set = meta.with_metadata(meta.with_path(new_set, ("spec", "replicas"), size), annotations=annotations)
        self._created, self._revision = new_set, revision
        self._sets.add_new(new_set)
        name, key = new_set["metadata"]["name"], meta.key_of(self._deployment)
        if size:
            message = f"Scaled up replica set {name} from 0 to {size}"
            self.events.append(EventRecord(key, "Normal", "ScalingReplicaSet", message))
        if self._creation_error:
            self._set_progressing("False", _CREATE_ERROR, self._creation_error)
        else:
            self._set_progressing("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
        return True

    def _clean_up_history(self) -> None:
        limit = children.limit_of(self._deployment, "revisionHistoryLimit")
        if limit is None:
            return
        old_sets = [each for each in self._sets.old if "deletionTimestamp" not in each["metadata"]]
        old_sets.sort(key=lambda each: (_revision_of(each), children.oldest_first(each)))
        self._deleted = [each for each in old_sets[: max(0, len(old_sets) - limit)] if _is_unused(each)]

    # The status.

    def _sync_pause_condition(self) -> None:
        condition, is_paused = self._find_condition(_PROGRESSING), bool(self._deployment["spec"].get("paused"))
        reason = None if condition is None else condition.get("reason")
        if reason == _TIMED_OUT:
            return
        if is_paused and reason != "DeploymentPaused":
            self._set_progressing("Unknown", "DeploymentPaused", "Deployment is paused")
        elif not is_paused and reason == "DeploymentPaused":
            self._set_progressing("Unknown", "DeploymentResumed", "Deployment is resumed")

    def _set_progressing(self, status: str, reason: str, message: str) -> None:
        if _progress_deadline(self._deployment) is not None:
            condition = _condition(_PROGRESSING, status, reason, message, self._now)
            self._conditions = children.with_set_condition(self._conditions, condition)

    def _find_condition(self, condition_type: str) -> meta.Condition | None:
        return meta.find_condition({"conditions": self._conditions}, condition_type)

    def _set_status(self) -> None:
        counts = self._sets.status_counts()
        desired_count = children.replicas_of(self._deployment)
        if counts.get("availableReplicas", 0) >= desired_count - rollout.max_unavailable(self._deployment):
            available = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        else:
            available = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        condition = _condition(_AVAILABLE, *available, self._now)
        self._conditions = children.with_set_condition(self._conditions, condition)
        generation = self._deployment["metadata"].get("generation", 0)
        status: dict[str, Any] = {"observedGeneration": generation, **counts, "conditions": self._conditions}
        self._status = status if self._collision_count is None else {**status, "collisionCount": self._collision_count}

    def _set_rollout_status(self) -> None:
        self._set_status()
        condition = self._find_condition(_PROGRESSING)
        if _progress_deadline(self._deployment) is None:
            self._conditions = children.without_condition(self._conditions, _PROGRESSING)
        elif not self._is_marked_complete(condition):
            self._update_progress(condition)
        failure = self._replica_failure()
        self._conditions = (
            children.without_condition(self._conditions, _REPLICA_FAILURE)
            if failure is None
            else children.with_set_condition(self._conditions, failure)
        )
        self._status = {**self._status, "conditions": self._conditions}

    def _is_marked_complete(self, condition: meta.Condition | None) -> bool:
        if condition is None or condition.get("reason") != _NEW_SET_AVAILABLE:
            return False
        return self._status.get("replicas", 0) == self._status.get("updatedReplicas", 0)  # type: ignore[no-any-return]

    def _update_progress(self, condition: meta.Condition | None) -> None:
        subject = f'Deployment "{self._deployment["metadata"]["name"]}"'
        if self._sets.new is not None:
            subject = f'ReplicaSet "{self._sets.new["metadata"]["name"]}"'
        if is_complete(self._deployment, self._status):
            self._set_progressing("True", _NEW_SET_AVAILABLE, f"{subject} has successfully progressed.")
        elif is_progressing(self._deployment.get("status") or {}, self._status):
            # A new object, not a changed reason: each progress updates lastUpdateTime.
            new = _condition(_PROGRESSING, "True", "ReplicaSetUpdated", f"{subject} is progressing.", self._now)
            if condition is not None and condition["status"] == "True":
                new["lastTransitionTime"] = condition["lastTransitionTime"]
            self._conditions = [*children.without_condition(self._conditions, _PROGRESSING), new]
        elif self._is_timed_out(condition):
            self._set_progressing("False", _TIMED_OUT, f"{subject} has timed out progressing.")

    def _is_timed_out(self, condition: meta.Condition | None) -> bool:
        deadline = _progress_deadline(self._deployment)
        if deadline is None or condition is None or condition.get("reason") == _NEW_SET_AVAILABLE:
            return False
        if condition.get("reason") == _TIMED_OUT:
            return True
        return parse_time(condition["lastUpdateTime"]) + deadline * SECOND < self._now

    def _replica_failure(self) -> meta.Condition | None:
        for each in self._sets.new_first():
            failure = meta.find_condition(each, _REPLICA_FAILURE)
            if failure is not None:
                return {**failure, "lastUpdateTime": failure["lastTransitionTime"]}
        return None


def find_new_replica_set(deployment: meta.Obj, replica_sets: Iterable[meta.Obj]) -> meta.Obj | None:
    """Return the oldest ReplicaSet with the Deployment's pod template, apart from the label `pod-template-hash`."""
    equality = semantic_equality(scheme.REPLICA_SET)
    template = _without_hash(deployment["spec"]["template"])
    for each in sorted(replica_sets, key=children.oldest_first):
        if equality.is_same("PodTemplateSpec", _without_hash(each["spec"].get("template") or {}), template):
            return each
    return None


def new_replica_set(deployment: meta.Obj, collision_count: int | None) -> meta.Obj:
    """Return the ReplicaSet of a Deployment's current pod template, without replicas and annotations."""
    metadata, spec = deployment["metadata"], deployment["spec"]
    template, selector = spec["template"], spec["selector"]
    hash_text = children.template_hash(template, collision_count)
    labels = {**((template.get("metadata") or {}).get("labels") or {}), POD_TEMPLATE_HASH: hash_text}
    match_labels = {**(selector.get("matchLabels") or {}), POD_TEMPLATE_HASH: hash_text}
    new_spec = {
        **({"minReadySeconds": spec["minReadySeconds"]} if spec.get("minReadySeconds") else {}),
        "selector": {**selector, "matchLabels": match_labels},
        "template": meta.with_path(template, ("metadata", "labels"), labels),
    }
    new_metadata = {
        "name": f"{metadata['name'][: _NAME_LENGTH_MAX - 1 - len(hash_text)]}-{hash_text}",
        "namespace": metadata.get("namespace", ""),
        "labels": labels,
        "ownerReferences": [meta.controller_reference(deployment)],
    }
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": new_metadata, "spec": new_spec}


def _without_hash(template: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    kept_labels = {name: value for name, value in labels.items() if name != POD_TEMPLATE_HASH}
    return (
        template if len(kept_labels) == len(labels) else meta.with_path(template, ("metadata", "labels"), kept_labels)
    )


def _replica_set_annotations(deployment: meta.Obj, replica_set: meta.Obj, revision: str) -> dict[str, str]:
    """Return the annotations of the new ReplicaSet: those of the Deployment, and its revision with its former ones."""
    copied = {
        name: value
        for name, value in (deployment["metadata"].get("annotations") or {}).items()
        if name not in _OWN_ANNOTATIONS
    }
    annotations: dict[str, str] = {**(replica_set["metadata"].get("annotations") or {}), **copied}
    old_revision = annotations.get(_REVISION)
    if old_revision and meta.parse_integer(old_revision) is None:
        return annotations
    if int(old_revision or 0) >= int(revision):
        return annotations
    annotations[_REVISION] = revision
    if old_revision is not None:
        history = _with_former_revision(annotations.get(_REVISION_HISTORY) or "", old_revision)
        annotations |= {_REVISION_HISTORY: history} if history else {}
    return annotations


def _with_former_revision(history: str, revision: str) -> str:
    revisions = [*history.split(","), revision] if history else [revision]
    while len(",".join(revisions)) > _REVISION_HISTORY_LENGTH_MAX and len(revisions) > 1:
        del revisions[0]
    return ",".join(revisions)


def is_complete(deployment: meta.Obj, status: Mapping[str, Any]) -> bool:
    """Return whether, by a status, all desired replicas are updated and available, and no others exist."""
    desired_count = children.replicas_of(deployment)
    counts = [status.get(field, 0) for field in ("updatedReplicas", "replicas", "availableReplicas")]
    is_observed = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return is_observed and all(each == desired_count for each in counts)


def is_progressing(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a new status has more updated, ready or available replicas, or fewer old ones."""
    old_set_counts = [status.get("replicas", 0) - status.get("updatedReplicas", 0) for status in (old, new)]
    grown_fields = ("updatedReplicas", "readyReplicas", "availableReplicas")
    return old_set_counts[1] < old_set_counts[0] or any(new.get(f, 0) > old.get(f, 0) for f in grown_fields)


def _progress_deadline(deployment: meta.Obj) -> int | None:
    return children.limit_of(deployment, "progressDeadlineSeconds")


def _revision_of(replica_set: meta.Obj) -> int:
    return meta.parse_integer(meta.annotation(replica_set, _REVISION) or "0") or 0


def _is_unused(replica_set: meta.Obj) -> bool:
    observed_generation = children.status_count(replica_set, "observedGeneration")
    return (
        not children.status_count(replica_set, "replicas")
        and not children.replicas_of(replica_set)
        and replica_set["metadata"].get("generation", 0) <= observed_generation
    )


def _condition(condition_type: str, status: str, reason: str, message: str, now: Instant) -> dict[str, Any]:
    update_time = {"lastUpdateTime": format_time(now)}
    return {**children.status_condition(condition_type, status, reason, message, now), **update_time}
