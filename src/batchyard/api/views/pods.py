"""The parsed view of a Pod; functions that read and change its status; and simulated checkpoints of its work.

Pods with equal content, such as those of one Job, share their constraints (`pod_shape.py`). Sources: kube-scheduler's
framework/types.go (PodInfo); Kubernetes' pkg/registry/core/pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import meta, times, well_known
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import node
from batchyard.api.views.node import Requests, Toleration, parse_taint, parse_toleration
from batchyard.api.views.pod_shape import NodeTerm, PodShape, claim_names, read_shape
from batchyard.base.instant import SECOND, Duration, Instant, format_duration, parse_duration

_EMPTY_OBJECT: Final[Mapping[str, Any]] = {}
_NO_LABELS: Final[Mapping[str, str]] = {}
_TERMINAL_PHASES: Final = ("Succeeded", "Failed")
_POD_SHAPES_MAX: Final = 16384
_POD_VIEWS_MAX: Final = 262144
_encode_json = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True, init=False, eq=False)
class PodView:
    """The parsed fields of a Pod that schedulers and controllers need."""

    key: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    shape: PodShape
    #: The resource requests, as in the shape.
    requests: Requests
    #: The node to which the pod is bound, or ''.
    node_name: str
    #: The indices of the GPUs on the node that a pod with shared GPUs uses.
    gpus: tuple[int, ...]
    #: The node nominated for the pod, where preempted pods are still terminating, or ''.
    nominated_node: str
    phase: str
    priority: int
    may_preempt: bool
    #: Whether the pod has scheduling gates, which keep kube-scheduler from scheduling the pod.
    gated: bool
    #: The names of the PersistentVolumeClaims that the pod's volumes use.
    volume_claims: tuple[str, ...]
    #: The id of the pod's gang, whose pods are scheduled together; '' if the pod is in none.
    gang: str
    deleting: bool
    #: Whether the pod is terminating because kube-scheduler preempted it for a pod of higher priority.
    preempted: bool
    created: Instant
    #: When the kubelet acknowledged the pod (status.startTime); None before that.
    started: Instant | None
    #: The reason of the pod's condition PodScheduled=False, or ''.
    unscheduled_reason: str
    #: The message of the last failed scheduling attempt, or ''.
    unschedulable_message: str
    scheduler: str

    def __init__(self, obj: meta.Obj, old_view: "PodView | None" = None) -> None:
        """Parse a Pod. `old_view` is the view of an earlier revision of the pod with equal spec and labels, if any."""
        metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or _EMPTY_OBJECT
        self.labels = metadata.get("labels") or _NO_LABELS
        if old_view is None:
            self._read_spec(metadata, spec)
        else:
            self._copy_spec(old_view)
        self.requests = self.shape.requests
        self.node_name = spec.get("nodeName") or ""
        self.gpus = _gpu_indices(metadata) if self.shape.gpu_milli else ()
        self.gated = bool(spec.get("schedulingGates"))
        self.gang = _gang_key(metadata, self.namespace, self.labels)
        self.deleting = "deletionTimestamp" in metadata
        self.nominated_node = status.get("nominatedNodeName") or ""
        self.phase = status.get("phase") or "Pending"
        start_time = status.get("startTime")
        self.started = times.parse_time(start_time) if start_time else None
        self.preempted = self.deleting and _is_preempted_by_scheduler(status)
        self.unscheduled_reason, self.unschedulable_message = _scheduling_failure(status)

    @property
    def is_terminal(self) -> bool:
        """Whether the pod has succeeded or failed, and so no longer uses resources of its node."""
        return self.phase in _TERMINAL_PHASES

    @property
    def awaits_node(self) -> bool:
        """Whether the pod, gated or not, has no node yet and is neither being deleted nor terminal."""
        return not self.node_name and not self.deleting and self.phase not in _TERMINAL_PHASES

    @property
    def node_selector(self) -> tuple[tuple[str, str], ...]:
        """The labels that the pod's node must have, as pairs of key and value."""
        return self.shape.rules.node_selector

    @property
    def affinity(self) -> tuple[NodeTerm, ...] | None:
        """The required terms of the pod's node affinity, one of which a node must match; None if there are none."""
        return self.shape.rules.affinity

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """The tolerations of the pod."""
        return self.shape.rules.tolerations

    def _read_spec(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.namespace, self.name = metadata.get("namespace", ""), metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid = metadata.get("uid", "")
        self.created = times.parse_time(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0
        self.priority = spec.get("priority") or 0
        self.may_preempt = spec.get("preemptionPolicy") != "Never"
        self.scheduler = spec.get("schedulerName") or "default-scheduler"
        self.volume_claims = claim_names(spec) if spec.get("volumes") else ()
        self.shape = _pod_shape_of(spec, self.namespace, self.labels)

    def _copy_spec(self, old_view: "PodView") -> None:
        self.namespace, self.name, self.key, self.uid = old_view.namespace, old_view.name, old_view.key, old_view.uid
        self.created, self.priority, self.may_preempt = old_view.created, old_view.priority, old_view.may_preempt
        self.scheduler, self.shape, self.volume_claims = old_view.scheduler, old_view.shape, old_view.volume_claims


_shape_by_content: dict[bytes, PodShape] = {}
_views_by_uid: dict[str, tuple[meta.Obj, PodView]] = {}


def pod_view(obj: meta.Obj) -> PodView:
    """Return the parsed view of a Pod, from a cache if the object is unchanged."""
    uid = obj["metadata"].get("uid", "")
    cache_entry = _views_by_uid.get(uid)
    if cache_entry is not None and cache_entry[0] is obj:
        return cache_entry[1]
    old_view = cache_entry[1] if cache_entry is not None and uid and _has_same_shape(obj, cache_entry[0]) else None
    if cache_entry is None and len(_views_by_uid) >= _POD_VIEWS_MAX:
        _views_by_uid.clear()
    view = PodView(obj, old_view)
    _views_by_uid[uid] = obj, view
    return view


def forget_pod_view(uid: str) -> None:
    """Remove the parsed view of a deleted Pod from the cache."""
    _views_by_uid.pop(uid, None)


def _has_same_shape(new: meta.Obj, old: meta.Obj) -> bool:
    """Return whether two revisions of a Pod share their spec and labels, and so their requests and constraints."""
    if new["spec"] is not old["spec"]:
        return False
    labels: object = new["metadata"].get("labels")
    return labels is old["metadata"].get("labels")


def _gang_key(metadata: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> str:
    """Return the gang id of a pod: the uid of its JobSet or Job, else the key of its Workload; '' without Workload."""
    workload = (metadata.get("annotations") or _NO_LABELS).get(well_known.WORKLOAD)
    if not workload:
        return ""
    return labels.get(well_known.JOB_SET_UID) or labels.get(well_known.CONTROLLER_UID) or f"{namespace}/{workload}"


def _gpu_indices(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    index_texts = (metadata.get("annotations") or _NO_LABELS).get(well_known.GPU_INDEX, "").split(",")
    return tuple(map(int, index_texts)) if all(part.isdecimal() and part.isascii() for part in index_texts) else ()


def _scheduling_failure(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason and message of the condition PodScheduled=False; '' for each without the condition.

    The message is also '' if the reason is not Unschedulable.
    """
    condition = meta.find_condition(status, "PodScheduled")
    if condition is None or condition["status"] != "False":
        return "", ""
    reason = condition.get("reason") or "Unschedulable"
    return reason, (condition.get("message") or reason) if reason == "Unschedulable" else ""


def _is_preempted_by_scheduler(status: Mapping[str, Any]) -> bool:
    condition = meta.find_condition(status, "DisruptionTarget")
    return condition is not None and condition["status"] == "True" and condition["reason"] == "PreemptionByScheduler"


def _pod_shape_of(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodShape:
    """Return a pod's parsed requests and constraints, cached by content; equal pods usually share one object."""
    encoded_content = _encode_json(_shape_content(spec, namespace, labels))
    pod_shape = _shape_by_content.get(encoded_content)
    if pod_shape is None:
        if len(_shape_by_content) >= _POD_SHAPES_MAX:
            _shape_by_content.clear()
        pod_shape = _shape_by_content[encoded_content] = read_shape(spec, namespace, labels)
    return pod_shape


def _shape_content(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> list[Any]:
    """Return the fields of a pod that determine its PodShape, as a JSON value.

    Of the labels, only those values are included that the pod's affinity terms or spread constraints refer to by
    matchLabelKeys or mismatchLabelKeys. The namespace is included only if there are such terms or constraints.
    """
    affinity, spread_constraints = spec.get("affinity") or _EMPTY_OBJECT, spec.get("topologySpreadConstraints") or ()
    shape_content = [
        [spec.get(field) for field in ("nodeSelector", "tolerations", "overhead", "resources", "hostNetwork")],
        [[_container_content(c) for c in spec.get(kind) or ()] for kind in ("initContainers", "containers")],
    ]
    if affinity or spread_constraints:
        terms = [
            *_pod_affinity_terms(affinity, "podAffinity"),
            *_pod_affinity_terms(affinity, "podAntiAffinity"),
            *spread_constraints,
        ]
        label_values = [labels.get(key) for term in terms for key in _merged_label_keys(term)]
        shape_content += [[affinity, spread_constraints, namespace, label_values]]
    return shape_content


def _container_content(container: Mapping[str, Any]) -> list[Any]:
    return [container.get("resources"), container.get("ports"), container.get("restartPolicy")]


def _pod_affinity_terms(affinity: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    kind_affinity = affinity.get(kind) or _EMPTY_OBJECT
    return [
        *(kind_affinity.get(well_known.REQUIRED) or ()),
        *[p["podAffinityTerm"] for p in kind_affinity.get(well_known.PREFERRED) or ()],
    ]


def _merged_label_keys(pod_term: Mapping[str, Any]) -> Iterable[str]:
    return [*(pod_term.get("matchLabelKeys") or ()), *(pod_term.get("mismatchLabelKeys") or ())]


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

#: The time in seconds until eviction if no toleration matches the taint.
_NOT_TOLERATED_SECONDS: Final = 0


class Disruption(NamedTuple):
    """Why a pod is disrupted: the reason and message of its condition DisruptionTarget."""

    reason: str
    message: str


DISRUPTION_BY_TAINT: Final = Disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
DISRUPTION_BY_POD_GC: Final = Disruption("DeletionByPodGC", "PodGC: node no longer exists")
DISRUPTION_BY_EVICTION: Final = Disruption("EvictionByEvictionAPI", "Eviction API: evicting")
DISRUPTION_BY_KUBELET: Final = Disruption(
    "TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."
)


def phase(pod: meta.Obj) -> str:
    """Return the phase of a pod, by default Pending."""
    return (pod.get("status") or {}).get("phase") or PENDING


def is_terminal(pod: meta.Obj) -> bool:
    """Return whether the phase of a pod is Succeeded or Failed."""
    return phase(pod) in {SUCCEEDED, FAILED}


def is_terminating(pod: meta.Obj) -> bool:
    """Return whether a pod is being deleted: it has a deletionTimestamp."""
    return "deletionTimestamp" in pod["metadata"]


def awaits_deletion(pod: meta.Obj) -> bool:
    """Return whether a terminating pod with a grace period has succeeded or failed: its kubelet must now delete it."""
    return is_terminating(pod) and is_terminal(pod) and bool(pod["metadata"].get("deletionGracePeriodSeconds"))


def has_only_finalizers_left(pod: meta.Obj) -> bool:
    """Return whether only finalizers keep a terminal pod from removal: it is terminating and its grace period is 0."""
    return is_terminal(pod) and is_terminating(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")


def is_ready(pod: meta.Obj) -> bool:
    """Return whether the condition Ready of a pod is True."""
    return meta.is_true(pod, READY)


def bound_node(pod: meta.Obj) -> str:
    """Return the name of the node to which a pod is bound, or ''."""
    return pod["spec"].get("nodeName") or ""


def priority(pod: meta.Obj) -> int:
    """Return the priority of a pod, by default 0."""
    return pod["spec"].get("priority") or 0


def grace_period(pod: meta.Obj) -> int:
    """Return the termination grace period of a pod, in seconds."""
    return node.grace_period(pod["spec"])


def deleted_at(pod: meta.Obj) -> Instant | None:
    """Return when the deletion of a pod was requested (deletionTimestamp minus grace period); None if it was not."""
    metadata = pod["metadata"]
    deletion_time = metadata.get("deletionTimestamp")
    if deletion_time is None:
        return None
    grace_seconds: int = metadata.get("deletionGracePeriodSeconds") or 0
    return parse_time(deletion_time) - grace_seconds * SECOND


def scheduled_at(pod: meta.Obj) -> Instant:
    """Return when a pod was bound to its node; if unknown, its start time or else its creation time."""
    scheduled_condition = meta.find_condition(pod, SCHEDULED)
    if scheduled_condition is not None and scheduled_condition["status"] == "True":
        return parse_time(scheduled_condition["lastTransitionTime"])
    return parse_time((pod.get("status") or {}).get("startTime") or pod["metadata"]["creationTimestamp"])


def taint_eviction_time(pod: meta.Obj, taints: Sequence[Mapping[str, Any]]) -> Instant | None:
    """Return when `taints`, the NoExecute taints of a node, evict a pod; None if the pod tolerates them all forever.

    A pod tolerates a taint for the tolerationSeconds of its first matching toleration, or not at all if none matches.
    The shortest of these durations counts. It starts when the first taint was added or, if later, when the pod was
    bound. A time in the past means now. Source: pkg/controller/tainteviction.
    """
    tolerated_seconds: list[int] = []
    tolerations = [(parse_toleration(t), t.get("tolerationSeconds")) for t in pod["spec"].get("tolerations") or ()]
    for taint_obj in taints:
        taint = parse_taint(taint_obj)
        limit_seconds = next((limit for each, limit in tolerations if each.tolerates(taint)), _NOT_TOLERATED_SECONDS)
        if limit_seconds is not None:
            tolerated_seconds.append(max(0, limit_seconds))
    if not tolerated_seconds:
        return None
    taint_added_times = [parse_time(taint_obj["timeAdded"]) for taint_obj in taints if "timeAdded" in taint_obj]
    return max(min(taint_added_times, default=0), scheduled_at(pod)) + min(tolerated_seconds) * SECOND


def with_condition(
    pod: meta.Obj, condition_type: str, holds: bool, reason_and_message: tuple[str, str], now: Instant
) -> meta.Obj:
    """Return the pod with a status condition set; the same object if the condition is unchanged."""
    status = pod.get("status") or {}
    conditions: list[Mapping[str, Any]] = status.get("conditions") or []
    old = next((c for c in conditions if c["type"] == condition_type), None)
    new = pod_condition(condition_type, holds, reason_and_message, old, now)
    if new == old:
        return pod
    new_conditions = [*conditions, new] if old is None else [new if c is old else c for c in conditions]
    return meta.with_status(pod, {**status, "conditions": new_conditions})


def pod_condition(
    condition_type: str, holds: bool, reason_and_message: tuple[str, str], old: meta.Obj | None, now: Instant
) -> dict[str, Any]:
    """Build a status condition of a pod; an empty reason or message is left out.

    If `old`, the previous condition, has the same status, its lastTransitionTime is kept.
    """
    status = "True" if holds else "False"
    transition_time = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    new: dict[str, Any] = {"type": condition_type, "status": status, "lastTransitionTime": transition_time}
    reason, message = reason_and_message
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    return new


def with_disruption(pod: meta.Obj, disruption: Disruption, now: Instant) -> meta.Obj:
    """Return the pod with the condition DisruptionTarget, so that a Job's podFailurePolicy can ignore the failure."""
    return with_condition(pod, DISRUPTION_TARGET, True, disruption, now)


def with_ready_false(pod: meta.Obj, now: Instant) -> meta.Obj:
    """Return the pod with its condition Ready set to False, as on an unreachable node; reason and message are kept.

    A pod without this condition is returned unchanged.
    """
    condition = meta.find_condition(pod, READY)
    if condition is None:
        return pod
    return with_condition(pod, READY, False, (condition.get("reason", ""), condition.get("message", "")), now)


def with_failed_phase(pod: meta.Obj, disruption: Disruption | None, now: Instant) -> meta.Obj:
    """Return the pod with the phase Failed and the condition of the disruption, if any; a terminal pod is unchanged."""
    if is_terminal(pod):
        return pod
    disrupted_pod = pod if disruption is None else with_disruption(pod, disruption, now)
    return meta.with_status(disrupted_pod, {**(disrupted_pod.get("status") or {}), "phase": FAILED})


# Simulated checkpoints: the work that a stopped pod loses, and the work with which its successor resumes.
#
# A job saves its work periodically if its annotation `batchyard.dev/checkpoint-every` is set. An annotation of the Job,
# or of its JobSet, stores the saved work by pod key. A pod key identifies a pod and its successors: it is the
# completion index or the name of the first pod. A pod that resumes saved work has the condition Resumed.


#: The condition of a pod that resumes saved work: of an earlier pod, or its own after its containers failed.
RESUMED: Final = "batchyard.dev/Resumed"
_RESUMED_REASON: Final = "FromCheckpoint"
_RESUMED_SEPARATOR: Final = " of work were done at "
_NO_SAVED_WORK: Final[Mapping[str, str]] = {}


class ResumedWork(NamedTuple):
    """The checkpointed work with which a pod resumes, and the key under which its Job stores that work."""

    pod_key: str
    work: Duration


def checkpoint_interval(objects: Iterable[meta.Obj | None]) -> Duration | None:
    """Return the checkpoint interval of the first object (pod, Job, JobSet) whose annotation sets one, or None."""
    intervals = (meta.annotated_duration(obj, well_known.CHECKPOINT_EVERY) for obj in objects if obj is not None)
    return next((interval for interval in intervals if interval), None)


def running_since(pod: meta.Obj) -> Instant | None:
    """Return when the first running container in a pod's status started.

    Returns None if the phase of the pod is not Running, or if no container is running.
    """
    if phase(pod) != RUNNING:
        return None
    for container in pod["status"].get("containerStatuses") or ():
        start_time = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if start_time is not None:
            return parse_time(start_time)
    return None


def lost_work(start_time: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the run time that a pod loses if it stops now: since its last checkpoint or, if it has none, its start.

    The pod makes a checkpoint every `interval`; None: no checkpoints. The result is 0 if `start_time` is None.
    """
    run_time = 0 if start_time is None else max(0, now - start_time)
    return run_time % interval if interval else run_time


def kept_work(start_time: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the run time that a pod keeps if it stops now: the time from its start to its last checkpoint.

    The pod makes a checkpoint every `interval`. The result is 0 if `interval` is None (no checkpoints).
    """
    run_time = 0 if start_time is None else max(0, now - start_time)
    return run_time - lost_work(start_time, interval, now)


def is_interchangeable(pod: meta.Obj) -> bool:
    """Return whether another pod of the Job can continue a pod's work, because the pod has no completion index."""
    return meta.annotation(pod, well_known.COMPLETION_INDEX) is None


def saved_work_key(pod: meta.Obj) -> str:
    """Return the key under which a pod's checkpointed work is stored in its Job: completion index, or else pod name.

    A pod that resumed work uses the key of its predecessor. In a JobSet, whose Jobs are recreated, the key includes the
    replicated Job and the index of the Job.
    """
    resumed_from = resumption(pod)
    if resumed_from is not None:
        return resumed_from.pod_key
    pod_key = meta.annotation(pod, well_known.COMPLETION_INDEX) or pod["metadata"]["name"]
    replicated_job, job = meta.label(pod, well_known.REPLICATED_JOB_NAME), meta.label(pod, well_known.JOB_INDEX)
    return pod_key if replicated_job is None or job is None else f"{replicated_job}/{job}/{pod_key}"


def resumption(pod: meta.Obj) -> ResumedWork | None:
    """Return the checkpointed work with which a pod resumes, from its condition Resumed.

    The result is None if the condition is missing, or if its message is malformed or states no work.
    """
    resumed_condition = meta.find_condition(pod, RESUMED)
    message = "" if resumed_condition is None else resumed_condition.get("message") or ""
    work_text, _, pod_key = message.partition(_RESUMED_SEPARATOR)
    work = _parse_work_duration(work_text)
    return ResumedWork(pod_key, work) if work and pod_key else None


def resumed_work(pod: meta.Obj) -> Duration:
    """Return the checkpointed work that was done before a pod's containers started; 0 if the pod resumes no work."""
    resumed_from = resumption(pod)
    return 0 if resumed_from is None else resumed_from.work


def with_resumption(pod: meta.Obj, resumed_from: ResumedWork | None, now: Instant) -> meta.Obj:
    """Return the pod with the condition Resumed set; with the condition removed if there is no work to resume.

    That is the case if `resumed_from` is None or contains no work. The same object is returned if nothing changes.
    """
    if resumed_from is not None and not resumed_from.work:
        resumed_from = None
    is_stated = resumed_from is not None or meta.find_condition(pod, RESUMED) is None
    if is_stated and resumption(pod) == resumed_from:
        return pod
    other_conditions = [c for c in pod["status"].get("conditions") or () if c["type"] != RESUMED]
    if resumed_from is not None:
        reason_and_message = (
            _RESUMED_REASON,
            f"{format_duration(resumed_from.work)}{_RESUMED_SEPARATOR}{resumed_from.pod_key}",
        )
        other_conditions.insert(0, pod_condition(RESUMED, True, reason_and_message, None, now))
    return meta.with_status(pod, {**pod["status"], "conditions": other_conditions})


def saved_work(job: meta.Obj, pod_key: str) -> Duration:
    """Return the checkpointed work that a Job or JobSet stores under a pod's key (`saved_work_key`); 0 if none."""
    return _parse_work_duration(saved_work_by_pod_key(job).get(pod_key))


def most_saved_work(job: meta.Obj, pod_keys: Iterable[str]) -> ResumedWork | None:
    """Return the most checkpointed work that a Job or JobSet stores under any of `pod_keys`; None if there is none."""
    saved_work = saved_work_by_pod_key(job)
    resumable_works = [
        ResumedWork(pod_key, work) for pod_key in pod_keys if (work := _parse_work_duration(saved_work.get(pod_key)))
    ]
    return min(resumable_works, key=lambda each: (-each.work, each.pod_key), default=None)


def saved_work_by_pod_key(job: meta.Obj) -> Mapping[str, str]:
    """Return the checkpointed work in the annotation of a Job or JobSet, by pod key (`saved_work_key`).

    The values are durations as text. The result is empty if the annotation is missing or malformed.
    """
    text = meta.annotation(job, well_known.WORK_DONE)
    return _NO_SAVED_WORK if text is None else _parse_saved_work(text)


def with_saved_work(job: meta.Obj, pod_key: str, work: Duration) -> meta.Obj:
    """Return the Job or JobSet with the checkpointed work under a pod key replaced, or removed if `work` is 0.

    Returns the same object if the work is unchanged.
    """
    saved_work = saved_work_by_pod_key(job)
    if _parse_work_duration(saved_work.get(pod_key)) == work:
        return job
    new_saved_work = dict(saved_work)
    if work:
        new_saved_work[pod_key] = format_duration(work)
    else:
        del new_saved_work[pod_key]
    annotations = dict(job["metadata"].get("annotations") or ())
    if new_saved_work:
        annotations[well_known.WORK_DONE] = msgspec.json.encode(new_saved_work).decode()
    else:
        del annotations[well_known.WORK_DONE]
    return meta.with_metadata(job, annotations=annotations)


@lru_cache(maxsize=64)
def _parse_saved_work(text: str) -> Mapping[str, str]:
    """Parse the annotation with checkpointed work by pod key; cached, because many pods of a Job read it at once."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        return _NO_SAVED_WORK  # the annotation is malformed


def _parse_work_duration(text: str | None) -> Duration:
    try:
        return 0 if text is None else parse_duration(text)
    except ValueError:
        return 0


def is_managed_pod(pod: meta.Obj) -> bool:
    """Return whether a pod has the label of pods in queues."""
    return meta.label(pod, well_known.MANAGED) == "true"


def is_in_queue(pod: meta.Obj) -> bool:
    """Return whether a queue manages a pod: it has the label of such pods, or still their finalizer."""
    return is_managed_pod(pod) or well_known.MANAGED in meta.finalizers_of(pod)
