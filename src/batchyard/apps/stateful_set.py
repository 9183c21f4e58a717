"""StatefulSet controller: pods with stable names and claims, in order of their ordinals.

Source: pkg/controller/statefulset of Kubernetes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import ApiError, NamespaceTerminating
from batchyard.api.views.pods import PENDING, RUNNING, is_ready, is_terminal, is_terminating, phase
from batchyard.apps import children
from batchyard.apps.children import BURST_REPLICAS, ChildIndex, replicas_of
from batchyard.apps.revisions import REVISION_HASH, RevisionHistory, hashes_of, revision_hash_of, template_of
from batchyard.apps.stateful_claims import claim_name, claim_with_owners, new_claims
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult

POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
_POD_NAME: Final = re.compile(r"(.*)-([0-9]+)", re.DOTALL)


class StatefulSetController:
    """Controller that reconciles StatefulSets with their pods, claims and revisions."""

    name = "statefulset-controller"
    rank = 0
    kinds = (scheme.STATEFUL_SET, scheme.POD)

    def __init__(self) -> None:
        self._pods = ChildIndex(scheme.STATEFUL_SET, scheme.POD)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed StatefulSet, or of the StatefulSets that control or may adopt a changed pod."""
        if event.key.kind == scheme.POD:
            return self._pods.observe_child(event)
        self._pods.observe_parent(event)
        return () if event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Adopt and release pods, then create, delete or replace the next pods, and update the status."""
        stateful_set = reader.get(key)
        if stateful_set is None:
            return ReconcileResult()
        claim = self._pods.claim(stateful_set, reader, partial(_is_member, key.name))
        if claim.writes:
            return ReconcileResult(list(claim.writes), independent=True)
        sync = StatefulSetSync(stateful_set, claim.children, reader, now)
        sync.reconcile()
        return sync.outcome


def _is_member(set_name: str, pod: meta.Obj) -> bool:
    name_match = _POD_NAME.fullmatch(pod["metadata"]["name"])
    return name_match is not None and name_match[1] == set_name


def ordinal_of(pod: meta.Obj) -> int:
    """Return the ordinal at the end of the name of a pod; -1 if there is none."""
    name_match = _POD_NAME.fullmatch(pod["metadata"]["name"])
    ordinal = None if name_match is None else meta.parse_integer(name_match[2], bits=32)
    return -1 if ordinal is None else ordinal


class StatefulSetSync:
    """One reconcile of a StatefulSet: its pods by ordinal, its revisions, and the writes."""

    def __init__(self, stateful_set: meta.Obj, pods: Sequence[meta.Obj], reader: Reader, now: Instant) -> None:
        self._set = stateful_set
        self._key = meta.key_of(stateful_set)
        self._reader = reader
        self._now = now
        spec: Mapping[str, Any] = stateful_set["spec"]
        self._min_ready_seconds: int = spec.get("minReadySeconds") or 0
        self._is_ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        self._start: int = (spec.get("ordinals") or {}).get("start") or 0
        self._history = RevisionHistory(stateful_set, reader)
        current_name = (stateful_set.get("status") or {}).get("currentRevision") or ""
        self._current = self._history.find(current_name) or self._history.update
        self._pods = pods
        #: The ordinals of the desired pods. There can be billions, so only the first missing ones are ever visited.
        self._ordinals = range(self._start, self._start + replicas_of(stateful_set))
        self._by_ordinal = {ordinal_of(pod): pod for pod in pods}
        condemned = [pod for ordinal, pod in self._by_ordinal.items() if ordinal not in self._ordinals]
        self._condemned = sorted(condemned, key=ordinal_of, reverse=True)
        self._deleted_current_count = 0
        self.outcome = ReconcileResult(self._history.writes, independent=True)

    def reconcile(self) -> None:
        """Compute the writes, their Events, and the time of the next reconcile."""
        update_name, current_name = self._history.update["metadata"]["name"], self._current["metadata"]["name"]
        live_names = {update_name, current_name, *hashes_of(self._pods)}
        self._history.delete_old(live_names, lambda revision: revision["metadata"]["name"])
        is_deleted = "deletionTimestamp" in self._set["metadata"]
        if not is_deleted and self._process_replicas() and self._process_condemned():
            self._roll()
        status = self._new_status()
        if _is_changed(self._set, status):
            self.outcome.writes.append(UpdateStatus(meta.with_status(self._set, status)))
        self.outcome.event_if_rejected = partial(_rejection_event, self._key)
        self.outcome.requeue_at = children.next_availability(self._pods, self._min_ready_seconds, self._now)

    # The steps. Each of the first two returns whether the next one may run.

    def _process_replicas(self) -> bool:
        missing_count = 0
        for ordinal, pod in self._replicas():
            if pod is None:
                missing_count += 1
                if missing_count > BURST_REPLICAS:
                    return False  # the next reconcile, after the creation of these pods, continues
                if not self._has_stale_claim(ordinal):
                    self._create_pod(ordinal)
                is_done = False
            else:
                is_done = self._process_replica(pod)
            if self._is_ordered and not is_done:
                return False
        return True

    def _process_replica(self, pod: meta.Obj) -> bool:
        """Repair one existing pod; return whether it is available."""
        if is_terminal(pod):
            if not is_terminating(pod):
                self._delete_pod(pod)
            return False
        if phase(pod) == PENDING:
            self._create_claims(pod)
        if self._is_ordered and (is_terminating(pod) or not self._is_available(pod)):
            return False
        self._repair(pod)
        return True

    def _process_condemned(self) -> bool:
        first_unhealthy = self._first_unhealthy()
        for pod in self._condemned:
            self._update_claims(pod)
        for pod in self._condemned:
            if is_terminating(pod):
                if self._is_ordered:
                    return False
                continue
            if self._is_ordered and not self._is_available(pod) and pod is not first_unhealthy:
                return False
            self._delete_pod(pod)
            if self._is_ordered:
                return False
        return True

    def _replicas(self) -> Iterator[tuple[int, meta.Obj | None]]:
        """Yield the desired ordinals with their pods, None for a missing pod."""
        for ordinal in self._ordinals:
            yield ordinal, self._by_ordinal.get(ordinal)

    def _first_unhealthy(self) -> meta.Obj | None:
        pods = chain((pod for _, pod in self._replicas()), reversed(self._condemned))
        return next((pod for pod in pods if pod is None or self._is_unavailable(pod)), None)

    def _roll(self) -> None:
        """Delete outdated pods, the highest ordinal first, down to the partition."""
        strategy = self._set["spec"].get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") == "OnDelete":
            return
        settings = strategy.get("rollingUpdate") or {}
        partition: int = settings.get("partition") or 0
        pods = [pod for index, (_, pod) in enumerate(self._replicas()) if index >= partition]
        pods.reverse()
        if settings.get("maxUnavailable") is not None:
            self._roll_several(pods, settings["maxUnavailable"])
            return
        for pod in pods:
            if pod is None or is_terminating(pod):
                return
            if self._is_outdated(pod):
                self._delete_outdated(pod)
                return
            if not self._is_available(pod):
                return

    def _roll_several(self, pods: Sequence[meta.Obj | None], limit: int | str) -> None:
        max_unavailable = max(1, children.scaled_value(limit, replicas_of(self._set), round_up=False))
        unavailable_count = sum(pod is None or self._is_unavailable(pod) for _, pod in self._replicas())
        outdated_pods = [pod for pod in pods if pod is not None and self._is_outdated(pod) and not is_terminating(pod)]
        for pod in outdated_pods[: max(0, max_unavailable - unavailable_count)]:
            self._delete_outdated(pod)

    def _delete_outdated(self, pod: meta.Obj) -> None:
        self._delete_pod(pod)
        self._deleted_current_count += 1

    # Writes.

    def _create_pod(self, ordinal: int) -> None:
        pod = self._new_pod(ordinal)
        self._create_claims(pod)
        self.outcome.add(Create(pod), [self._event("Create", pod)])

    def _delete_pod(self, pod: meta.Obj) -> None:
        self.outcome.add(Delete(meta.key_of(pod), uid=pod["metadata"]["uid"]), [self._event("Delete", pod)])

    def _repair(self, pod: meta.Obj) -> None:
        self._update_claims(pod)
        if meta.label(pod, POD_NAME_LABEL) != pod["metadata"]["name"]:
            labels = {
                **(pod["metadata"].get("labels") or {}),
                **_identity_labels(pod["metadata"]["name"], ordinal_of(pod)),
            }
            self.outcome.add(Update(meta.with_metadata(pod, labels=labels)), [self._event("Update", pod)])

    def _create_claims(self, pod: meta.Obj) -> None:
        for claim in new_claims(self._set, ordinal_of(pod)):
            if self._reader.get(meta.key_of(claim)) is None:
                message = (
                    f"{claim['metadata']['name']} Pod {pod['metadata']['name']} in StatefulSet {self._key.name} success"
                )
                event = EventRecord(self._key, "Normal", "SuccessfulCreate", f"Create Claim {message}")
                self.outcome.add(Create(claim_with_owners(claim, self._set, None)), [event])

    def _update_claims(self, pod: meta.Obj) -> None:
        condemned_pod = None if ordinal_of(pod) in self._ordinals else pod
        for claim in self._claims(ordinal_of(pod)):
            new_claim = claim_with_owners(claim, self._set, condemned_pod)
            if new_claim is not claim:
                self.outcome.writes.append(Update(new_claim))

    def _claims(self, ordinal: int) -> Sequence[meta.Obj]:
        templates = self._set["spec"].get("volumeClaimTemplates") or ()
        names = [claim_name(self._set, template, ordinal) for template in templates]
        keys = [meta.Key(scheme.PERSISTENT_VOLUME_CLAIM, self._key.namespace, name) for name in names]
        return [claim for key in keys if (claim := self._reader.get(key)) is not None]

    def _has_stale_claim(self, ordinal: int) -> bool:
        """Return whether a claim of a missing pod is about to be deleted, because a former pod owned it."""
        policy = self._set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        if policy.get("whenScaled", "Retain") == "Retain":
            return False
        owners = [owner for claim in self._claims(ordinal) for owner in claim["metadata"].get("ownerReferences") or ()]
        return any(owner["kind"] == "Pod" and owner["name"] == f"{self._key.name}-{ordinal}" for owner in owners)

    def _new_pod(self, ordinal: int) -> meta.Obj:
        revision = self._revision_for(ordinal)
        pod = children.pod_from_template(self._set, template_of(revision))
        name = f"{self._key.name}-{ordinal}"
        labels = {**(pod["metadata"].get("labels") or {}), **_identity_labels(name, ordinal)}
        labels[REVISION_HASH] = revision["metadata"]["name"]
        spec = {**pod["spec"], "hostname": name}
        if self._set["spec"].get("serviceName"):
            spec["subdomain"] = self._set["spec"]["serviceName"]
        claim_templates = self._set["spec"].get("volumeClaimTemplates") or ()
        if claim_templates:
            spec["volumes"] = self._volumes(spec.get("volumes") or (), claim_templates, ordinal)
        return {**meta.with_metadata(pod, name=name, labels=labels), "spec": spec}

    def _volumes(
        self, volumes: Sequence[Mapping[str, Any]], claim_templates: Sequence[meta.Obj], ordinal: int
    ) -> list[Mapping[str, Any]]:
        claimed = {
            template["metadata"]["name"]: claim_name(self._set, template, ordinal) for template in claim_templates
        }
        claim_volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claimed[name]}} for name in claimed]
        return [*claim_volumes, *(volume for volume in volumes if volume["name"] not in claimed)]

    def _revision_for(self, ordinal: int) -> meta.Obj:
        """Return the revision of a missing pod: the current one below the partition, else the updated one."""
        strategy = self._set["spec"].get("updateStrategy") or {}
        if strategy.get("rollingUpdate") is not None:
            current_count = strategy["rollingUpdate"].get("partition") or 0
        elif strategy.get("type", "RollingUpdate") == "RollingUpdate":
            current_count = children.status_count(self._set, "currentReplicas")
        else:
            current_count = 0
        return self._current if ordinal < self._start + current_count else self._history.update

    # States and counts.

    def _is_available(self, pod: meta.Obj) -> bool:
        return phase(pod) == RUNNING and children.is_available(pod, self._min_ready_seconds, self._now)

    def _is_unavailable(self, pod: meta.Obj) -> bool:
        return is_terminating(pod) or not self._is_available(pod)

    def _is_outdated(self, pod: meta.Obj) -> bool:
        update_name: str = self._history.update["metadata"]["name"]
        return revision_hash_of(pod) != update_name

    def _new_status(self) -> dict[str, Any]:
        update_name, current_name = self._history.update["metadata"]["name"], self._current["metadata"]["name"]
        live_pods = [pod for pod in self._pods if not is_terminating(pod)]
        updated_count = sum(revision_hash_of(pod) == update_name for pod in live_pods)
        current_count = sum(revision_hash_of(pod) == current_name for pod in live_pods) - self._deleted_current_count
        ready_count = sum(phase(pod) == RUNNING and is_ready(pod) for pod in self._pods)
        size, is_rolling = replicas_of(self._set), self._is_rolling()
        if is_rolling and updated_count == ready_count == len(self._pods) == size:
            current_name, current_count = update_name, updated_count
        optional_counts = {
            "readyReplicas": ready_count,
            "currentReplicas": current_count,
            "updatedReplicas": updated_count,
        }
        conditions = (self._set.get("status") or {}).get("conditions")
        return {
            "observedGeneration": self._set["metadata"].get("generation", 0),
            "replicas": len(self._pods),
            **{field: count for field, count in optional_counts.items() if count},
            "availableReplicas": sum(map(self._is_available, self._pods)),
            "currentRevision": current_name,
            "updateRevision": update_name,
            "collisionCount": self._history.collision_count,
            **({"conditions": conditions} if conditions else {}),
        }

    def _is_rolling(self) -> bool:
        strategy = self._set["spec"].get("updateStrategy") or {}
        return bool(strategy.get("type", "RollingUpdate") == "RollingUpdate")

    def _event(self, verb: str, pod: meta.Obj) -> EventRecord:
        message = f"{verb} Pod {pod['metadata']['name']} in StatefulSet {self._key.name} successful"
        return EventRecord(self._key, "Normal", f"Successful{verb}", message)


def _is_changed(stateful_set: meta.Obj, status: Mapping[str, Any]) -> bool:
    return bool(status != stateful_set.get("status"))


def _identity_labels(name: str, ordinal: int) -> dict[str, str]:
    return {POD_NAME_LABEL: name, well_known.POD_INDEX: str(ordinal)}


def _rejection_event(key: meta.Key, write: Write, error: ApiError) -> EventRecord | None:
    if isinstance(error, NamespaceTerminating):
        return None
    verb = {Create: "Create", Delete: "Delete"}.get(type(write), "Update")
    name = write.key.name if isinstance(write, Delete) else write.obj["metadata"]["name"]
    kind = write.key.kind if isinstance(write, Delete) else write.obj["kind"]
    if kind not in {"Pod", "PersistentVolumeClaim"}:
        return None
    if kind == "Pod":
        message = f"{verb} Pod {name} in StatefulSet {key.name} failed error: {error}"
    else:
        message = f"{verb} Claim {name} in StatefulSet {key.name} failed error: {error}"
    return EventRecord(key, "Warning", f"Failed{verb}", message)
