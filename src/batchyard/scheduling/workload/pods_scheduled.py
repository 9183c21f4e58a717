"""PodsScheduled of Workloads: whether all pods of an admission were scheduled, for `unscheduledTimeout`.

While pods of an admitted Workload have no node, the condition is False, and the Workload may wait for them only until
`unscheduledTimeout`. Once all pods were scheduled, the condition stays True for the rest of the admission. A condition
counts only if its transition is later than the admission. Times are in whole seconds, so the first observation is a
second after the admission. Sources: the controller UnscheduledPodsTracker of Kueue 0.20, and KEP-13502.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, StatusDraft
from batchyard.api.views import pods
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.workload import lifecycle, pods_ready

ALL_SCHEDULED: Final = "AllRequiredPodsScheduled"
_UNSCHEDULED_MESSAGE: Final = "At least one required pod is not scheduled"
_SCHEDULED_MESSAGE: Final = "All required pods were scheduled or succeeded"
#: The first observation of an admission is at least this long after it.
_OBSERVATION_DELAY: Final = SECOND


class _PodCounts(NamedTuple):
    """The numbers of a Workload's pods: live ones, and by pod set those that are scheduled and have succeeded."""

    live: int
    scheduled: Mapping[str, int]
    succeeded: Mapping[str, int]


def observe_scheduling(workload: Obj, workload_pods: Sequence[Obj], now: Instant) -> Obj:
    """Return an admitted Workload with its condition PodsScheduled; the same object if there is nothing to record.

    Pods that failed or are being deleted do not count. Without a live pod, nothing is recorded, unless the succeeded
    pods are all that the admission requires.
    """
    current = pods_ready.current_observation(workload)
    counts = _count_pods(workload_pods)
    reclaimable = {p["name"]: p["count"] for p in workload["status"].get("reclaimablePods") or ()}
    required = scheduled = succeeded_count = 0
    for name, count in _admitted_counts(workload).items():
        succeeded = counts.succeeded.get(name, 0)
        required += count
        scheduled += min(count, counts.scheduled.get(name, 0) + max(succeeded, reclaimable.get(name, 0)))
        succeeded_count += min(count, succeeded)
    if current is None and counts.live == 0 and not 0 < required == succeeded_count:
        return workload
    if current is not None and scheduled < required:
        return workload
    draft = StatusDraft(workload, now)
    draft.drop_condition(pods_ready.PODS_SCHEDULED)  # so that the transition is later than this admission
    if scheduled >= required:
        draft.set_condition(pods_ready.PODS_SCHEDULED, True, ALL_SCHEDULED, _SCHEDULED_MESSAGE)
    else:
        reason = pods_ready.WAIT_FOR_SCHEDULING
        draft.set_condition(pods_ready.PODS_SCHEDULED, False, reason, _UNSCHEDULED_MESSAGE)
    return draft.result()


def _count_pods(workload_pods: Sequence[Obj]) -> _PodCounts:
    live = 0
    scheduled: dict[str, int] = {}
    succeeded: dict[str, int] = {}
    for pod in workload_pods:
        phase, pod_set = pods.phase(pod), meta.label(pod, well_known.POD_SET) or ""
        if phase == pods.SUCCEEDED:
            succeeded[pod_set] = succeeded.get(pod_set, 0) + 1
        elif phase != pods.FAILED and not pods.is_terminating(pod):
            live += 1
            if _is_scheduled(pod):
                scheduled[pod_set] = scheduled.get(pod_set, 0) + 1
    return _PodCounts(live, scheduled, succeeded)


def _is_scheduled(pod: Obj) -> bool:
    """Return whether a pod is bound and PodScheduled, or runs: pods of a simulation without nodes are not bound."""
    return pods.phase(pod) == pods.RUNNING or bool(pods.bound_node(pod) and meta.is_true(pod, pods.SCHEDULED))


def _admitted_counts(workload: Obj) -> Mapping[str, int]:
    counts: dict[str, int] = {pod_set["name"]: pod_set["count"] for pod_set in workload["spec"]["podSets"]}
    assignments: Sequence[Mapping[str, Any]] = workload["status"]["admission"].get("podSetAssignments") or ()
    return {each["name"]: each.get("count", counts.get(each["name"], 0)) for each in assignments}


class UnscheduledPodsTracker:
    """Controller that sets PodsScheduled on admitted Workloads; it runs only with an `unscheduledTimeout`."""

    name = "unscheduled-pods-tracker"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.POD)

    def __init__(self) -> None:
        self._pods_by_workload: dict[Key, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the index from an event of a pod; return the Workloads whose pods may have been scheduled."""
        if event.key.kind == scheme.WORKLOAD:
            return () if event.type is EventType.DELETED or not _is_observed(event.obj) else (event.key,)
        old_key = None if event.old is None else _workload_of(event.old)
        new_key = None if event.type is EventType.DELETED else _workload_of(event.obj)
        if old_key is not None and old_key != new_key:
            self._remove_pod(old_key, event.key)
        if new_key is not None:
            self._pods_by_workload.setdefault(new_key, {})[event.key] = None
        return [key for key in dict.fromkeys((old_key, new_key)) if key is not None]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the write of an admitted Workload's PodsScheduled, or of its reset after the admission has ended."""
        workload = reader.get(key)
        if workload is None or lifecycle.is_finished(workload):
            return ReconcileResult()
        if not lifecycle.is_admitted(workload):
            return _write_change(workload, _reset_after_admission(workload, now))
        if "admission" not in workload["status"] or lifecycle.is_evicted(workload):
            return ReconcileResult()
        observable_at = pods_ready.admission_time(workload) + _OBSERVATION_DELAY
        if now < observable_at:
            return ReconcileResult(requeue_at=observable_at)
        observation = pods_ready.current_observation(workload)
        if observation is not None and observation["status"] == "True":
            return ReconcileResult()
        pod_keys = self._pods_by_workload.get(key, ())
        workload_pods = [pod for pod_key in pod_keys if (pod := reader.get(pod_key)) is not None]
        return _write_change(workload, observe_scheduling(workload, workload_pods, now))

    def _remove_pod(self, workload: Key, pod: Key) -> None:
        pod_keys = self._pods_by_workload.get(workload, {})
        pod_keys.pop(pod, None)
        if not pod_keys:
            self._pods_by_workload.pop(workload, None)


def _is_observed(workload: Obj) -> bool:
    return lifecycle.is_admitted(workload) or meta.find_condition(workload, pods_ready.PODS_SCHEDULED) is not None


def _workload_of(pod: Obj) -> Key | None:
    name = meta.annotation(pod, well_known.WORKLOAD)
    return Key(scheme.WORKLOAD, pod["metadata"].get("namespace", ""), name) if name else None


def _reset_after_admission(workload: Obj, now: Instant) -> Obj:
    if not meta.is_true(workload, pods_ready.PODS_SCHEDULED):
        return workload
    draft = StatusDraft(workload, now)
    draft.set_condition(pods_ready.PODS_SCHEDULED, False, lifecycle.WAIT_FOR_START, pods_ready.NOT_READY_MESSAGE)
    return draft.result()


def _write_change(workload: Obj, new: Obj) -> ReconcileResult:
    return ReconcileResult() if new is workload else ReconcileResult([UpdateStatus(new)])
