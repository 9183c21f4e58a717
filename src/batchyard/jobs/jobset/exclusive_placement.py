"""Deletes the followers of an exclusively placed Job that are bound to another topology domain than its leader's.

That happens when a leader is lost and its successor lands elsewhere while followers of the first are still there.
Like upstream it looks when the leader changes, not when a follower does.
Source: pkg/controllers/pod_controller.go of JobSet.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true, with_condition
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, annotation, controller_of, group_kind, key_of, label, with_metadata, with_path
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import Outcome
from batchyard.jobs.jobset import spec as r

# --- exclusive ---
#
# Exclusive placement: each Job of a JobSet has a topology domain (a node pool, a rack) to itself.
#
# The leader, the pod with completion index 0, asks to be in no domain with a pod of another Job of the same priority,
# and where it is scheduled there its followers are bound to go: they get the domain as a node selector when they are
# made, and are refused before the leader is scheduled. Those made for another domain than the leader's are deleted.
#
#     mutate_pod, validate_pod    the webhooks of pods, when one is created
#     misplaced_followers         what the pod controller deletes
#
# Where the nodes were labelled by hand (the node-selector strategy) none of this is needed.
# Source: pkg/webhooks/pod_webhook.go and pkg/controllers/pod_controller.go of JobSet.


_MUTATING: Final = "mpod.kb.io"
_VALIDATING: Final = "vpod.kb.io"


class Finder(Protocol):
    """What the webhooks look up: a node by its name, and the pods of a Job by the Job's uid."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """What an owner in a namespace has by its uid."""


# --- when a pod is created ---


def with_priority(pod: Obj) -> Obj:
    """The pod with its priority as a label, which tells those apart who share domains; wherever there are nodes or not.

    The pod has its priority by then: the API server's own admission comes first.
    """
    annotations = pod["metadata"].get("annotations") or {}
    priority = pod["spec"].get("priority")
    if priority is None or not _is_looked_after(annotations):
        return pod
    labels = {**(pod["metadata"].get("labels") or {}), well_known.JOB_SET_PRIORITY: str(priority)}
    return with_metadata(pod, labels=labels)


def mutate_pod(pod: Obj, find: Finder) -> Obj:
    """The pod as JobSet's mutating webhook makes it; Forbidden if its leader's domain cannot be told."""
    annotations = pod["metadata"].get("annotations") or {}
    pod = with_priority(pod)
    if not _is_looked_after(annotations) or well_known.EXCLUSIVE_TOPOLOGY not in annotations:
        return pod
    return _alone_in_domain(pod) if is_leader(pod) else _in_leaders_domain(pod, find)


def validate_pod(pod: Obj, find: Finder) -> None:
    """Raise Forbidden, as JobSet's validating webhook, for a follower whose leader is not scheduled."""
    annotations = pod["metadata"].get("annotations") or {}
    if not _is_looked_after(annotations):
        return
    topology_key = annotations.get(well_known.EXCLUSIVE_TOPOLOGY)
    if topology_key is None or is_leader(pod):
        return
    selector = pod["spec"].get("nodeSelector")
    if not selector:
        _deny(_VALIDATING, "follower pod node selector not set")
    if topology_key not in selector:
        missing = f"missing selector: {topology_key}"
        _deny(_VALIDATING, f"follower pod node selector for topology domain not found. {missing}")
    leader = _leader_of(pod, find)
    if isinstance(leader, str):
        _deny(_VALIDATING, leader)
    if not leader["spec"].get("nodeName"):
        transient = "this is an expected, transient error"
        _deny(_VALIDATING, f"leader pod not yet scheduled, not creating follower pod. {transient}")


def is_leader(pod: Obj) -> bool:
    """Whether it is the first pod of its Job, which the others follow."""
    return annotation(pod, well_known.COMPLETION_INDEX) == "0"


def _is_looked_after(annotations: Mapping[str, str]) -> bool:
    """Whether the webhooks care for a pod: it is one of a JobSet, and its nodes were not labelled by hand."""
    return well_known.JOB_SET_NAME in annotations and well_known.NODE_SELECTOR_STRATEGY not in annotations


def _alone_in_domain(leader: Obj) -> Obj:
    """The leader bound to be with pods of its own Job and with none of another Job of its priority."""
    job = [label(leader, well_known.JOB_KEY) or ""]
    priority = [label(leader, well_known.JOB_SET_PRIORITY) or ""]
    same_job: Obj = {"key": well_known.JOB_KEY, "operator": "In", "values": job}
    other_jobs: list[Obj] = [
        {"key": well_known.JOB_KEY, "operator": "Exists"},
        {"key": well_known.JOB_KEY, "operator": "NotIn", "values": job},
        {"key": well_known.JOB_SET_PRIORITY, "operator": "In", "values": priority},
    ]
    with_own = _with_term(leader, "podAffinity", [same_job])
    return _with_term(with_own, "podAntiAffinity", other_jobs)


def _with_term(pod: Obj, field: str, expressions: Sequence[Obj]) -> Obj:
    """The pod with one more required term of (anti-)affinity, over all namespaces."""
    term = {
        "labelSelector": {"matchExpressions": list(expressions)},
        "topologyKey": annotation(pod, well_known.EXCLUSIVE_TOPOLOGY),
        "namespaceSelector": {},
    }
    terms = ((pod["spec"].get("affinity") or {}).get(field) or {}).get(well_known.REQUIRED) or ()
    return with_path(pod, ("spec", "affinity", field, well_known.REQUIRED), [*terms, term])


def _in_leaders_domain(follower: Obj, find: Finder) -> Obj:
    """The follower bound to the domain of its leader; as it is while there is none, since it is refused then."""
    leader = _leader_of(follower, find)
    if isinstance(leader, str) or not leader["spec"].get("nodeName"):
        return follower
    topology_key = annotation(follower, well_known.EXCLUSIVE_TOPOLOGY) or ""
    node_name = leader["spec"]["nodeName"]
    node = find.get(Key(scheme.NODE, "", node_name))
    if node is None:
        _deny(_MUTATING, f'nodes "{node_name}" not found')
    domain = label(node, topology_key)
    if domain is None:
        _deny(_MUTATING, f"node does not have topology label: {topology_key}")
    selector = {**(follower["spec"].get("nodeSelector") or {}), topology_key: domain}
    return with_path(follower, ("spec", "nodeSelector"), selector)


def _leader_of(follower: Obj, find: Finder) -> Obj | str:
    """The living leader of the same Job; or why there is none.

    Upstream looks for the leader by its name and then compares the owners. The owner's pods are fewer.
    """
    for name in (well_known.JOB_SET_NAME, well_known.REPLICATED_JOB_NAME, well_known.JOB_INDEX):
        if label(follower, name) is None:
            return f"pod missing label: {name}"
    owner = controller_of(follower)
    if owner is None:
        return "follower pod has no owner reference"
    owned = find.owned_by(owner["uid"], follower["metadata"].get("namespace", ""))
    leaders = [pod for pod in _pods(owned) if is_leader(pod) and _is_living(pod)]
    if len(leaders) == 1:
        return leaders[0]
    parts = (well_known.JOB_SET_NAME, well_known.REPLICATED_JOB_NAME, well_known.JOB_INDEX)
    name = "-".join([*(label(follower, part) or "" for part in parts), "0"])
    return f"expected 1 leader pod ({name}), but got {len(leaders)}. this is an expected, transient error"


def _is_living(pod: Obj) -> bool:
    ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return not ended and "deletionTimestamp" not in pod["metadata"]


def _pods(objects: Iterable[Obj]) -> list[Obj]:
    return [obj for obj in objects if group_kind(obj) == scheme.POD]


def _deny(webhook: str, message: str) -> NoReturn:
    """Refuse the pod in the API server's words."""
    raise Forbidden(f'admission webhook "{webhook}" denied the request: {message}')


# --- when a leader was scheduled ---


def leads(pod: Obj) -> bool:
    """Whether it is a leader that has been scheduled, so that its followers have a place."""
    metadata = pod["metadata"]
    if well_known.EXCLUSIVE_TOPOLOGY not in (metadata.get("annotations") or ()) or not is_leader(pod):
        return False
    return bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in metadata


def misplaced_followers(leader: Obj, node: Obj | None, owned: Iterable[Obj]) -> list[Obj]:
    """The followers to delete: all, if one is bound elsewhere; none, if the leader's domain is not known.

    `node` is the leader's, `owned` what the leader's Job owns. Those that are being deleted already do not count, or
    they would take those made in their stead with them.
    """
    topology_key = annotation(leader, well_known.EXCLUSIVE_TOPOLOGY) or ""
    domain = None if node is None else label(node, topology_key)
    if domain is None:
        return []
    followers = [pod for pod in _pods(owned) if not is_leader(pod) and "deletionTimestamp" not in pod["metadata"]]
    in_place = all((pod["spec"].get("nodeSelector") or {}).get(topology_key) == domain for pod in followers)
    return [] if in_place else followers


def disrupted(pod: Obj, now: Instant) -> Obj:
    """The pod marked as disrupted, so that a pod failure policy may ignore its end; as it is if it is marked."""
    if is_true(pod, "DisruptionTarget"):
        return pod
    status: dict[str, Any] = dict(pod.get("status") or ())
    reason, message = r.PLACEMENT_VIOLATION
    conditions = status.get("conditions") or []
    status["conditions"] = with_condition(
        conditions, type="DisruptionTarget", status=True, reason=reason, message=message, now=now
    )
    return {**pod, "status": status}


class ExclusivePlacement:
    """Keeps the pods of a Job in the domain of its leader."""

    name = "exclusive-placement"
    rank = 0
    kinds = (scheme.POD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """A leader that has been scheduled."""
        return (event.key,) if event.type is not EventType.DELETED and leads(event.obj) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Mark and delete the followers that are misplaced."""
        leader = reader.get(key)
        owner = None if leader is None else controller_of(leader)
        if leader is None or owner is None or not leads(leader):
            return Outcome()
        node = reader.get(Key(scheme.NODE, "", leader["spec"]["nodeName"]))
        writes: list[Write] = []
        for pod in misplaced_followers(leader, node, reader.owned_by(owner["uid"], key.namespace)):
            marked = disrupted(pod, now)
            if marked is not pod:
                writes.append(UpdateStatus(marked))
            writes.append(Delete(key_of(pod), uid=pod["metadata"]["uid"]))
        return Outcome(writes)
