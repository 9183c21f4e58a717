"""The view of a Pod, changes of its conditions, and its checkpoints.

Pods with equal content share the constraints (`pod_shape.py`), as the pods of one Job do. Sources: kube-scheduler's
framework/types.go (PodInfo); Kubernetes' pkg/registry/core/pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import times, well_known
from batchyard.api.meta import (
    Obj,
    annotation,
    duration,
    find_condition,
    is_true,
    label,
    with_metadata,
    with_status,
)
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import node
from batchyard.api.views.node import Requests, Toleration, taint, toleration
from batchyard.api.views.pod_shape import NodeTerm, PodShape, read_shape
from batchyard.base.instant import SECOND, Duration, Instant, duration_text, parse_duration

"""The resource of which each pod uses one."""

_NOTHING: Final[Mapping[str, Any]] = {}
_LABELS_NONE: Final[Mapping[str, str]] = {}
_TERMINAL: Final = ("Succeeded", "Failed")
_MEMO_MAX: Final = 16384
_VIEWS_MAX: Final = 262144
_encode = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True, init=False, eq=False)
class PodView:
    """A parsed Pod."""

    key: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    shape: PodShape
    #: The requests of the shape.
    requests: Requests
    #: The node that it is bound to, or ''.
    node_name: str
    #: The indices of its GPUs on the node, if it requested thousandths.
    gpus: tuple[int, ...]
    #: The nominated node, where victims still have to leave, or ''.
    nominated: str
    phase: str
    priority: int
    may_preempt: bool
    #: It has scheduling gates, so it must not be scheduled yet.
    gated: bool
    #: The pods of a gang are placed together; '' if it is in none.
    gang: str
    deleting: bool
    #: It is terminating to make room for a pod of higher priority.
    preempted: bool
    created: Instant
    #: When the kubelet first saw it; None if it has not.
    started: Instant | None
    #: The reason of its condition PodScheduled=False, or ''.
    unscheduled: str
    #: The message of the last failed scheduling attempt, or ''.
    unplaced: str
    scheduler: str

    def __init__(self, obj: Obj, before: "PodView | None" = None) -> None:
        """Parse an object. `before` is the view of another revision of the same pod with equal labels and spec."""
        metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or _NOTHING
        self.labels = metadata.get("labels") or _LABELS_NONE
        if before is None:
            self._read_spec(metadata, spec)
        else:
            self._copy_spec(before)
        self.requests = self.shape.requests
        self.node_name = spec.get("nodeName") or ""
        self.gpus = _gpus(metadata) if self.shape.gpu_milli else ()
        self.gated = bool(spec.get("schedulingGates"))
        self.gang = _gang(metadata, self.namespace, self.labels)
        self.deleting = "deletionTimestamp" in metadata
        self.nominated = status.get("nominatedNodeName") or ""
        self.phase = status.get("phase") or "Pending"
        started = status.get("startTime")
        self.started = times.parse_time(started) if started else None
        self.preempted = self.deleting and _is_preempted(status)
        self.unscheduled, self.unplaced = _unscheduled(status)

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended, and uses no resources of its node."""
        return self.phase in _TERMINAL

    @property
    def awaits_node(self) -> bool:
        """Whether it waits for a scheduler, unless it is gated."""
        return not self.node_name and not self.deleting and self.phase not in _TERMINAL

    @property
    def node_selector(self) -> tuple[tuple[str, str], ...]:
        """The labels that its node must have."""
        return self.shape.rules.node_selector

    @property
    def affinity(self) -> tuple[NodeTerm, ...] | None:
        """Its required node affinity: terms are ORed; None: no restriction."""
        return self.shape.rules.affinity

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Its tolerations."""
        return self.shape.rules.tolerations

    def _read_spec(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.namespace, self.name = metadata.get("namespace", ""), metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid = metadata.get("uid", "")
        self.created = times.parse_time(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0
        self.priority = spec.get("priority") or 0
        self.may_preempt = spec.get("preemptionPolicy") != "Never"
        self.scheduler = spec.get("schedulerName") or "default-scheduler"
        self.shape = _shape_of(spec, self.namespace, self.labels)

    def _copy_spec(self, before: "PodView") -> None:
        self.namespace, self.name, self.key, self.uid = before.namespace, before.name, before.key, before.uid
        self.created, self.priority, self.may_preempt = before.created, before.priority, before.may_preempt
        self.scheduler, self.shape = before.scheduler, before.shape


_shapes: dict[bytes, PodShape] = {}
_views: dict[str, tuple[Obj, PodView]] = {}


def pod_view(obj: Obj) -> PodView:
    """Return the view of a Pod, parsed once per object; the last revision of each is cached."""
    uid = obj["metadata"].get("uid", "")
    known = _views.get(uid)
    if known is not None and known[0] is obj:
        return known[1]
    before = known[1] if known is not None and uid and _asks_the_same(obj, known[0]) else None
    if known is None and len(_views) >= _VIEWS_MAX:
        _views.clear()
    view = PodView(obj, before)
    _views[uid] = obj, view
    return view


def forget_pod_view(uid: str) -> None:
    """Drop the view of a deleted Pod."""
    _views.pop(uid, None)


def _asks_the_same(new: Obj, old: Obj) -> bool:
    """Report whether two revisions share the objects that determine the shape."""
    if new["spec"] is not old["spec"]:
        return False
    labels: object = new["metadata"].get("labels")
    return labels is old["metadata"].get("labels")


def _gang(metadata: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> str:
    """Return the gang of a pod: the pods of its Workload, identified by the uid of their JobSet or Job."""
    workload = (metadata.get("annotations") or _LABELS_NONE).get(well_known.WORKLOAD)
    if not workload:
        return ""
    return labels.get(well_known.JOB_SET_UID) or labels.get(well_known.CONTROLLER_UID) or f"{namespace}/{workload}"


def _gpus(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse the GPU index annotation; empty if it is malformed."""
    parts = (metadata.get("annotations") or _LABELS_NONE).get(well_known.GPU_INDEX, "").split(",")
    return tuple(map(int, parts)) if all(part.isdecimal() and part.isascii() for part in parts) else ()


def _unscheduled(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason of PodScheduled=False, and its message if the reason is Unschedulable."""
    condition = find_condition(status, "PodScheduled")
    if condition is None or condition["status"] != "False":
        return "", ""
    reason = condition.get("reason") or "Unschedulable"
    return reason, (condition.get("message") or reason) if reason == "Unschedulable" else ""


def _is_preempted(status: Mapping[str, Any]) -> bool:
    condition = find_condition(status, "DisruptionTarget")
    return condition is not None and condition["status"] == "True" and condition["reason"] == "PreemptionByScheduler"


def _shape_of(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodShape:
    """Return the shape of a pod, shared by all pods with equal content."""
    content = _encode(_content(spec, namespace, labels))
    known = _shapes.get(content)
    if known is None:
        if len(_shapes) >= _MEMO_MAX:
            _shapes.clear()
        known = _shapes[content] = read_shape(spec, namespace, labels)
    return known


def _content(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> list[Any]:
    """Return the fields that determine the shape; of the labels only those named by matchLabelKeys."""
    affinity, spread = spec.get("affinity") or _NOTHING, spec.get("topologySpreadConstraints") or ()
    content = [
        [spec.get(field) for field in ("nodeSelector", "tolerations", "overhead", "resources", "hostNetwork")],
        [[_container_content(c) for c in spec.get(kind) or ()] for kind in ("initContainers", "containers")],
    ]
    if affinity or spread:
        terms = [*_pod_terms(affinity, "podAffinity"), *_pod_terms(affinity, "podAntiAffinity"), *spread]
        named = [labels.get(key) for term in terms for key in _keys_merged(term)]
        content += [[affinity, spread, namespace, named]]
    return content


def _container_content(container: Mapping[str, Any]) -> list[Any]:
    return [container.get("resources"), container.get("ports"), container.get("restartPolicy")]


def _pod_terms(affinity: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """Return all terms of pod affinity or anti-affinity, required and preferred."""
    part = affinity.get(kind) or _NOTHING
    return [
        *(part.get(well_known.REQUIRED) or ()),
        *[p["podAffinityTerm"] for p in part.get(well_known.PREFERRED) or ()],
    ]


def _keys_merged(term: Mapping[str, Any]) -> Iterable[str]:
    return [*(term.get("matchLabelKeys") or ()), *(term.get("mismatchLabelKeys") or ())]


# --- pod lifecycle ---
#
# The lifecycle of a Pod: its status, and changes of the status by components other than its kubelet.
#
# Source: k8s.io/kubernetes pkg/api/v1/pod (conditions) and k8s.io/api core/v1 (phases, DisruptionTarget and its
# reasons).


PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

READY: Final = "Ready"
SCHEDULED: Final = "PodScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"

#: The minimum priority of system-critical pods.
SYSTEM_CRITICAL: Final = 2_000_000_000

#: The time in seconds until eviction if no toleration covers the taint.
_NOT_TOLERATED: Final = 0


class Disruption(NamedTuple):
    """The cause of a disruption: reason and message of the condition DisruptionTarget."""

    reason: str
    message: str


BY_TAINT: Final = Disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
BY_POD_GC: Final = Disruption("DeletionByPodGC", "PodGC: node no longer exists")
BY_EVICTION: Final = Disruption("EvictionByEvictionAPI", "Eviction API: evicting")
BY_KUBELET: Final = Disruption("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")


def phase(pod: Obj) -> str:
    """Return the phase of a pod; Pending if it has none yet."""
    return (pod.get("status") or {}).get("phase") or PENDING


def is_terminal(pod: Obj) -> bool:
    """Report whether a pod has Succeeded or Failed."""
    return phase(pod) in {SUCCEEDED, FAILED}


def is_terminating(pod: Obj) -> bool:
    """Report whether a pod was deleted and still exists."""
    return "deletionTimestamp" in pod["metadata"]


def awaits_deletion(pod: Obj) -> bool:
    """Whether a terminating pod with a grace period has ended: its kubelet then deletes it."""
    return is_terminating(pod) and is_terminal(pod) and bool(pod["metadata"].get("deletionGracePeriodSeconds"))


def is_gone_but_for_finalizers(pod: Obj) -> bool:
    """Report whether only finalizers keep a pod: it has ended, was deleted and has no grace period left."""
    return is_terminal(pod) and is_terminating(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")


def is_ready(pod: Obj) -> bool:
    """Report whether the condition Ready is true."""
    return is_true(pod, READY)


def node_of(pod: Obj) -> str:
    """Return the node that a pod is bound to, or ''."""
    return pod["spec"].get("nodeName") or ""


def priority(pod: Obj) -> int:
    """Return the priority of a pod; zero if it has none."""
    return pod["spec"].get("priority") or 0


def grace_period(pod: Obj) -> int:
    """Return the grace period of a pod in seconds."""
    return node.grace_period(pod["spec"])


def deleted_at(pod: Obj) -> Instant | None:
    """Return the time of the deletion request, one grace period before its deletionTimestamp; None if not deleted."""
    metadata = pod["metadata"]
    until = metadata.get("deletionTimestamp")
    if until is None:
        return None
    grace: int = metadata.get("deletionGracePeriodSeconds") or 0
    return parse_time(until) - grace * SECOND


def scheduled_at(pod: Obj) -> Instant:
    """Return the time when a pod was bound to its node, as far as its status shows."""
    scheduled = find_condition(pod, SCHEDULED)
    if scheduled is not None and scheduled["status"] == "True":
        return parse_time(scheduled["lastTransitionTime"])
    return parse_time((pod.get("status") or {}).get("startTime") or pod["metadata"]["creationTimestamp"])


def driven_out_at(pod: Obj, taints: Sequence[Mapping[str, Any]]) -> Instant | None:
    """Return the time when NoExecute taints of its node evict a pod; None if it tolerates all of them forever.

    The shortest toleration counts, from the first taint or from the time of binding. A time in the past means now.
    Source: pkg/controller/tainteviction.
    """
    seconds: list[int] = []
    tolerations = [(toleration(obj), obj.get("tolerationSeconds")) for obj in pod["spec"].get("tolerations") or ()]
    for obj in taints:
        view = taint(obj)
        used = next((limit for tolerates, limit in tolerations if tolerates.tolerates(view)), _NOT_TOLERATED)
        if used is not None:
            seconds.append(max(0, used))
    if not seconds:
        return None
    added = [parse_time(obj["timeAdded"]) for obj in taints if "timeAdded" in obj]
    return max(min(added, default=0), scheduled_at(pod)) + min(seconds) * SECOND


def with_condition(pod: Obj, kind: str, holds: bool, why: tuple[str, str], now: Instant) -> Obj:
    """Return the pod with this condition, reason and message; the pod itself if nothing changes."""
    status = pod.get("status") or {}
    conditions: list[Mapping[str, Any]] = status.get("conditions") or []
    old = next((c for c in conditions if c["type"] == kind), None)
    new = condition(kind, holds, why, old, now)
    if new == old:
        return pod
    changed = [*conditions, new] if old is None else [new if c is old else c for c in conditions]
    return with_status(pod, {**status, "conditions": changed})


def condition(
    kind: str, holds: bool, why: tuple[str, str], old: Mapping[str, Any] | None, now: Instant
) -> dict[str, Any]:
    """Return a condition of a pod: empty texts are omitted, and the time is that of the last change of its status."""
    status = "True" if holds else "False"
    since = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    new: dict[str, Any] = {"type": kind, "status": status, "lastTransitionTime": since}
    reason, message = why
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    return new


def disrupted(pod: Obj, by: Disruption, now: Instant) -> Obj:
    """Return the pod with the condition DisruptionTarget, which the podFailurePolicy of its Job may ignore."""
    return with_condition(pod, DISRUPTION_TARGET, True, by, now)


def not_ready(pod: Obj, now: Instant) -> Obj:
    """Return the pod with Ready set to False, as for an unreachable node; reason and message stay unchanged."""
    ready = find_condition(pod, READY)
    if ready is None:
        return pod
    return with_condition(pod, READY, False, (ready.get("reason", ""), ready.get("message", "")), now)


def failed(pod: Obj, by: Disruption | None, now: Instant) -> Obj:
    """Return the pod marked as failed by another component than its kubelet; an ended pod stays unchanged."""
    if is_terminal(pod):
        return pod
    marked = pod if by is None else disrupted(pod, by, now)
    return with_status(marked, {**(marked.get("status") or {}), "phase": FAILED})


# --- checkpoints ---
#
# Simulated checkpoints: the work that stopped pods lose, and the work that their successors resume with.
#
# A job saves its work periodically if its annotation `batchyard.dev/checkpoint-every` is set. The saved work is stored
# by place on the Job, or on its JobSet. A pod that resumes saved work has the condition Resumed.


#: The condition of a pod that resumes the work of an earlier pod, or its own after its containers failed.
RESUMED: Final = "batchyard.dev/Resumed"
_REASON: Final = "FromCheckpoint"
_BETWEEN: Final = " of work were done at "
_CHECKPOINTS_NOTHING: Final[Mapping[str, str]] = {}


class Resumption(NamedTuple):
    """The work that a pod resumes with, and its place."""

    place: str
    work: Duration


def checkpoint_interval(objects: Iterable[Obj | None]) -> Duration | None:
    """Return the checkpoint interval from the first object that has one: the pod, its Job, its JobSet."""
    intervals = (duration(obj, well_known.CHECKPOINT_EVERY) for obj in objects if obj is not None)
    return next((interval for interval in intervals if interval), None)


def running_since(pod: Obj) -> Instant | None:
    """Return the time since when the containers of a pod run; None if they do not."""
    if phase(pod) != RUNNING:
        return None
    for container in pod["status"].get("containerStatuses") or ():
        started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if started is not None:
            return parse_time(started)
    return None


def lost_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the work that a running pod would lose: the time since its last checkpoint, or since its start."""
    done = 0 if started is None else max(0, now - started)
    return done % interval if interval else done


def kept_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the work that a running pod would keep: the time up to its last checkpoint."""
    done = 0 if started is None else max(0, now - started)
    return done - lost_work(started, interval, now)


# --- places ---


def is_interchangeable(pod: Obj) -> bool:
    """Report whether any other pod of the Job could do its work: it has no completion index."""
    return annotation(pod, well_known.COMPLETION_INDEX) is None


def place_of(pod: Obj) -> str:
    """Return the place of a pod: that of a predecessor, its completion index, or its name.

    In a JobSet, whose Jobs are recreated, the place includes the replicated job and the index of the Job.
    """
    resumed = resumption(pod)
    if resumed is not None:
        return resumed.place
    own = annotation(pod, well_known.COMPLETION_INDEX) or pod["metadata"]["name"]
    replicated, job = label(pod, well_known.REPLICATED_JOB_NAME), label(pod, well_known.JOB_INDEX)
    return own if replicated is None or job is None else f"{replicated}/{job}/{own}"


def resumption(pod: Obj) -> Resumption | None:
    """Return the work that a pod resumes with; None if it starts from the beginning."""
    found = find_condition(pod, RESUMED)
    if found is None:
        return None
    work, _, place = found["message"].partition(_BETWEEN)
    return Resumption(place, parse_duration(work))


def resumed_work(pod: Obj) -> Duration:
    """Return the work that was done before the containers of a pod started."""
    resumed = resumption(pod)
    return 0 if resumed is None else resumed.work


def with_resumption(pod: Obj, resumed: Resumption | None, now: Instant) -> Obj:
    """Return the pod with this resumption, or without one; the pod itself if nothing changes."""
    if resumption(pod) == resumed:
        return pod
    conditions = [c for c in pod["status"].get("conditions") or () if c["type"] != RESUMED]
    if resumed is not None and resumed.work:
        why = (_REASON, f"{duration_text(resumed.work)}{_BETWEEN}{resumed.place}")
        conditions.insert(0, condition(RESUMED, True, why, None, now))
    return with_status(pod, {**pod["status"], "conditions": conditions})


# --- saved work ---


def saved_work(job: Obj, place: str) -> Duration:
    """Return the work that a Job or JobSet has saved for a place."""
    return _read(saved_places(job).get(place))


def most_saved(job: Obj, places: Iterable[str]) -> Resumption | None:
    """Return the most work saved for any of these places; None if there is none."""
    saved = saved_places(job)
    found = [Resumption(place, work) for place in places if (work := _read(saved.get(place)))]
    return min(found, key=lambda each: (-each.work, each.place), default=None)


def saved_places(job: Obj) -> Mapping[str, str]:
    """Return the saved work of a Job or JobSet by place, from its annotation."""
    text = annotation(job, well_known.WORK_DONE)
    return _CHECKPOINTS_NOTHING if text is None else _decoded(text)


def with_saved_work(job: Obj, place: str, work: Duration) -> Obj:
    """Return the Job or JobSet with this work saved for a place; itself if nothing changes."""
    saved = saved_places(job)
    if _read(saved.get(place)) == work:
        return job
    kept = dict(saved)
    if work:
        kept[place] = duration_text(work)
    else:
        del kept[place]
    annotations = dict(job["metadata"].get("annotations") or ())
    if kept:
        annotations[well_known.WORK_DONE] = msgspec.json.encode(kept).decode()
    else:
        del annotations[well_known.WORK_DONE]
    return with_metadata(job, annotations=annotations)


@lru_cache(maxsize=64)
def _decoded(text: str) -> Mapping[str, str]:
    """Parse the annotation; cached, because many pods of a job need it at the same time."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        return _CHECKPOINTS_NOTHING  # another client wrote it


def _read(text: str | None) -> Duration:
    try:
        return 0 if text is None else parse_duration(text)
    except ValueError:
        return 0
