"""Exclusive placement of JobSets: webhooks and a controller that keep each Job in a separate topology domain.

The leader of a Job is its pod with completion index 0; its other pods, the followers, must run in the leader's domain.

The controller deletes all followers of a Job if one of them is bound to another domain than the leader. This happens
when a leader is lost and its successor is scheduled elsewhere while old followers still exist. As upstream, the
controller reacts to changes of leaders and ignores changes of followers.

Source: pkg/controllers/pod_controller.go of JobSet.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import Forbidden
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult
from batchyard.jobs.jobset import spec

# Each Job of a JobSet has exclusive use of a topology domain, such as a node pool or a rack.
#
# The leader is the pod with completion index 0. Its anti-affinity excludes domains with pods of another Job of the same
# priority. Its followers get its domain as a node selector when they are created, and are rejected until the leader is
# scheduled. Followers created for another domain are deleted.
#
#     mutate_pod, validate_pod    the webhooks of pods, when one is created
#     misplaced_followers         the pods that the controller deletes
#
# With manually labeled nodes (the node-selector strategy) none of this is needed.
# Source: pkg/webhooks/pod_webhook.go and pkg/controllers/pod_controller.go of JobSet.


_MUTATING_WEBHOOK: Final = "mpod.kb.io"
_VALIDATING_WEBHOOK: Final = "vpod.kb.io"


class PlacementReader(Protocol):
    """Read access that the exclusive placement webhooks need: nodes, and the pods of a Job."""

    def get(self, key: meta.Key) -> meta.Obj | None:
        """Return the object with this key; None if it does not exist."""

    def owned_by(self, uid: str, namespace: str) -> Sequence[meta.Obj]:
        """Return the objects in a namespace whose owner (a Job) has this uid."""


def with_priority_label(pod: meta.Obj) -> meta.Obj:
    """Return a JobSet's pod with its priority as a label, by which pod anti-affinity can select pods of that priority.

    A pod without a priority, or that the webhooks do not handle, is returned unchanged.
    """
    annotations = pod["metadata"].get("annotations") or {}
    priority = pod["spec"].get("priority")
    if priority is None or not _is_handled_by_webhooks(annotations):
        return pod
    labels = {**(pod["metadata"].get("labels") or {}), well_known.JOB_SET_PRIORITY: str(priority)}
    return meta.with_metadata(pod, labels=labels)


def mutate_pod(pod: meta.Obj, reader: PlacementReader) -> meta.Obj:
    """Return the pod as JobSet's mutating webhook changes it: with its priority as a label, and placement rules.

    Leaders get affinity terms. Followers get a node selector if their leader has a node.

    Raises Forbidden if the node of a follower's leader does not exist or lacks the topology label.
    """
    annotations = pod["metadata"].get("annotations") or {}
    pod = with_priority_label(pod)
    if not _is_handled_by_webhooks(annotations) or well_known.EXCLUSIVE_TOPOLOGY not in annotations:
        return pod
    return _exclude_other_jobs(pod) if is_leader(pod) else _bind_to_leader_domain(pod, reader)


def validate_pod(pod: meta.Obj, reader: PlacementReader) -> None:
    """Raise Forbidden, as JobSet's validating webhook does, for a follower that may not be created yet.

    Such a follower has no node selector for its topology domain, or no single active leader with a node.
    """
    annotations = pod["metadata"].get("annotations") or {}
    if not _is_handled_by_webhooks(annotations):
        return
    topology_key = annotations.get(well_known.EXCLUSIVE_TOPOLOGY)
    if topology_key is None or is_leader(pod):
        return
    node_selector = pod["spec"].get("nodeSelector")
    if not node_selector:
        _deny_pod(_VALIDATING_WEBHOOK, "follower pod node selector not set")
    if topology_key not in node_selector:
        missing_text = f"missing selector: {topology_key}"
        _deny_pod(_VALIDATING_WEBHOOK, f"follower pod node selector for topology domain not found. {missing_text}")
    leader = _leader_of(pod, reader)
    if isinstance(leader, str):
        _deny_pod(_VALIDATING_WEBHOOK, leader)
    if not leader["spec"].get("nodeName"):
        transient_text = "this is an expected, transient error"
        _deny_pod(_VALIDATING_WEBHOOK, f"leader pod not yet scheduled, not creating follower pod. {transient_text}")


def is_leader(pod: meta.Obj) -> bool:
    """Return whether a pod is the leader of its Job: its completion index is 0."""
    return meta.annotation(pod, well_known.COMPLETION_INDEX) == "0"


def _is_handled_by_webhooks(annotations: Mapping[str, str]) -> bool:
    """Return whether the webhooks handle the pod: it belongs to a JobSet that does not use manually labeled nodes."""
    return well_known.JOB_SET_NAME in annotations and well_known.NODE_SELECTOR_STRATEGY not in annotations


def _exclude_other_jobs(leader: meta.Obj) -> meta.Obj:
    job_keys = [meta.label(leader, well_known.JOB_KEY) or ""]
    jobset_priorities = [meta.label(leader, well_known.JOB_SET_PRIORITY) or ""]
    same_job_expression: meta.Obj = {"key": well_known.JOB_KEY, "operator": "In", "values": job_keys}
    other_job_expressions: list[meta.Obj] = [
        {"key": well_known.JOB_KEY, "operator": "Exists"},
        {"key": well_known.JOB_KEY, "operator": "NotIn", "values": job_keys},
        {"key": well_known.JOB_SET_PRIORITY, "operator": "In", "values": jobset_priorities},
    ]
    leader_with_affinity = _with_affinity_term(leader, "podAffinity", [same_job_expression])
    return _with_affinity_term(leader_with_affinity, "podAntiAffinity", other_job_expressions)


def _with_affinity_term(pod: meta.Obj, field: str, label_expressions: Sequence[meta.Obj]) -> meta.Obj:
    affinity_term = {
        "labelSelector": {"matchExpressions": list(label_expressions)},
        "topologyKey": meta.annotation(pod, well_known.EXCLUSIVE_TOPOLOGY),
        "namespaceSelector": {},
    }
    affinity_terms = ((pod["spec"].get("affinity") or {}).get(field) or {}).get(well_known.REQUIRED) or ()
    return meta.with_path(pod, ("spec", "affinity", field, well_known.REQUIRED), [*affinity_terms, affinity_term])


def _bind_to_leader_domain(follower: meta.Obj, reader: PlacementReader) -> meta.Obj:
    leader = _leader_of(follower, reader)
    if isinstance(leader, str) or not leader["spec"].get("nodeName"):
        return follower
    topology_key = meta.annotation(follower, well_known.EXCLUSIVE_TOPOLOGY) or ""
    node_name = leader["spec"]["nodeName"]
    node = reader.get(meta.Key(scheme.NODE, "", node_name))
    if node is None:
        _deny_pod(_MUTATING_WEBHOOK, f'nodes "{node_name}" not found')
    topology_domain = meta.label(node, topology_key)
    if topology_domain is None:
        _deny_pod(_MUTATING_WEBHOOK, f"node does not have topology label: {topology_key}")
    node_selector = {**(follower["spec"].get("nodeSelector") or {}), topology_key: topology_domain}
    return meta.with_path(follower, ("spec", "nodeSelector"), node_selector)


def _leader_of(follower: meta.Obj, reader: PlacementReader) -> meta.Obj | str:
    """Return the active leader pod of the follower's Job, or a message that explains why there is none.

    Upstream gets the leader by name and then compares the owners. Here the leader is found among the owner's pods.
    """
    for name in (well_known.JOB_SET_NAME, well_known.REPLICATED_JOB_NAME, well_known.JOB_INDEX):
        if meta.label(follower, name) is None:
            return f"pod missing label: {name}"
    owner_reference = meta.controller_of(follower)
    if owner_reference is None:
        return "follower pod has no owner reference"
    owned_objects = reader.owned_by(owner_reference["uid"], follower["metadata"].get("namespace", ""))
    leader_pods = [pod for pod in _pods(owned_objects) if is_leader(pod) and _is_active(pod)]
    if len(leader_pods) == 1:
        return leader_pods[0]
    name_labels = (well_known.JOB_SET_NAME, well_known.REPLICATED_JOB_NAME, well_known.JOB_INDEX)
    name = "-".join([*(meta.label(follower, name_label) or "" for name_label in name_labels), "0"])
    return f"expected 1 leader pod ({name}), but got {len(leader_pods)}. this is an expected, transient error"


def _is_active(pod: meta.Obj) -> bool:
    has_ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return not has_ended and "deletionTimestamp" not in pod["metadata"]


def _pods(objects: Iterable[meta.Obj]) -> list[meta.Obj]:
    return [obj for obj in objects if meta.group_kind(obj) == scheme.POD]


def _deny_pod(webhook: str, message: str) -> NoReturn:
    raise Forbidden(f'admission webhook "{webhook}" denied the request: {message}')


def is_scheduled_leader(pod: meta.Obj) -> bool:
    """Return whether a pod is the leader of an exclusively placed Job, has a node, and is not being deleted."""
    metadata = pod["metadata"]
    if well_known.EXCLUSIVE_TOPOLOGY not in (metadata.get("annotations") or ()) or not is_leader(pod):
        return False
    return bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in metadata


def misplaced_followers(leader: meta.Obj, node: meta.Obj | None, job_objects: Iterable[meta.Obj]) -> list[meta.Obj]:
    """Return all follower pods if the node selector of one does not select the leader's topology domain, else [].

    `node` is the leader's node; [] is also returned if it does not exist or lacks the topology label. `job_objects` are
    the objects that the Job owns. Followers that are being deleted are ignored; otherwise their replacements would be
    deleted too.
    """
    topology_key = meta.annotation(leader, well_known.EXCLUSIVE_TOPOLOGY) or ""
    domain = None if node is None else meta.label(node, topology_key)
    if domain is None:
        return []
    followers = [pod for pod in _pods(job_objects) if not is_leader(pod) and "deletionTimestamp" not in pod["metadata"]]
    is_consistent = all((pod["spec"].get("nodeSelector") or {}).get(topology_key) == domain for pod in followers)
    return [] if is_consistent else followers


def with_disruption_target(pod: meta.Obj, now: Instant) -> meta.Obj:
    """Return the pod with DisruptionTarget=True and the reason ExclusivePlacementViolation.

    A Job's podFailurePolicy can ignore the failure of such a pod. The same object is returned if the condition is
    already True.
    """
    if meta.is_true(pod, "DisruptionTarget"):
        return pod
    status: dict[str, Any] = dict(pod.get("status") or ())
    reason, message = spec.PLACEMENT_VIOLATION
    conditions = status.get("conditions") or []
    status["conditions"] = meta.with_condition(
        conditions, type="DisruptionTarget", status=True, reason=reason, message=message, now=now
    )
    return {**pod, "status": status}


class ExclusivePlacementController:
    """Controller that deletes a Job's follower pods if one selects another topology domain than the leader's."""

    name = "exclusive-placement"
    rank = 0
    kinds = (scheme.POD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of the event's pod if it is a leader with a node, whose followers must be checked; else ()."""
        return (event.key,) if event.type is not EventType.DELETED and is_scheduled_leader(event.obj) else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete all follower pods of a leader pod if any follower does not select the leader's topology domain.

        Before its deletion, each follower gets the condition DisruptionTarget=True.
        """
        leader = reader.get(key)
        owner_reference = None if leader is None else meta.controller_of(leader)
        if leader is None or owner_reference is None or not is_scheduled_leader(leader):
            return ReconcileResult()
        node = reader.get(meta.Key(scheme.NODE, "", leader["spec"]["nodeName"]))
        writes: list[Write] = []
        for pod in misplaced_followers(leader, node, reader.owned_by(owner_reference["uid"], key.namespace)):
            pod_with_disruption_target = with_disruption_target(pod, now)
            if pod_with_disruption_target is not pod:
                writes.append(UpdateStatus(pod_with_disruption_target))
            writes.append(Delete(meta.key_of(pod), uid=pod["metadata"]["uid"]))
        return ReconcileResult(writes)
