"""Metrics of scheduling cycles, and of the life cycle of Workloads from watch events.

All series start at zero when the process starts. The series of a deleted ClusterQueue or LocalQueue are removed.
Sources: Kueue's pkg/scheduler/scheduler.go, pkg/controller/core/workload_controller.go, pkg/workload/evict,
pkg/controller/jobframework; pkg/cache/queue/unadmitted_workloads.go.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, annotation, controller_of, find_condition, is_true
from batchyard.api.scheme import find_kind
from batchyard.api.times import parse_time
from batchyard.api.views import queued_pods
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.api.well_known import ADMISSION_GATE, ELASTIC_JOB, TOPOLOGY_GATE, WORKLOAD
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.metrics.exposition import COHORT_COUNTER, CREATION_LATENCY, CustomLabels, KeptLabels, MetricGroup
from batchyard.metrics.registry import Labels
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.scheduling.kueue_configuration import CustomMetricLabel
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.slices import SLICE_REPLACED
from batchyard.scheduling.workload import lifecycle

_DELETED: Final = EventType.DELETED
_CountedKey = TypeVar("_CountedKey")
#: The kinds whose changes can move Cohorts in the tree.
_QUEUE_TREE_KINDS: Final = frozenset({scheme.CLUSTER_QUEUE, scheme.COHORT})
_CQ_METRIC_NAMES: Final = (
    *("quota_reserved_workloads_total", "admitted_workloads_total", "finished_workloads_total"),
    *("quota_reserved_wait_time_seconds", "admission_wait_time_seconds", "admission_checks_wait_time_seconds"),
    *("execution_time_seconds", "ready_wait_time_seconds", "admitted_until_ready_wait_time_seconds"),
)
_OTHER_METRIC_NAMES: Final = (
    *("evicted_workloads_total", "evicted_workloads_once_total", "local_queue_evicted_workloads_total"),
    *("pods_ready_to_evicted_time_seconds", "workload_eviction_latency_seconds"),
    *("workload_recovery_wait_time_seconds", "local_queue_workload_recovery_wait_time_seconds"),
    *("replaced_workload_slices_total", "pod_scheduling_gate_removal_seconds"),
    *("workload_creation_latency_seconds", "cohort_subtree_admitted_workloads_total"),
)
#: The scheduling gates of which the removal is measured.
_MEASURED_GATES: Final = (ADMISSION_GATE, TOPOLOGY_GATE, ELASTIC_JOB)
_LQ_METRIC_NAMES: Final = tuple(f"local_queue_{name}" for name in _CQ_METRIC_NAMES)
_METRIC_NAMES: Final = tuple(f"kueue_{name}" for name in (*_CQ_METRIC_NAMES, *_LQ_METRIC_NAMES, *_OTHER_METRIC_NAMES))


_NO_WORKLOAD_LABELS: Final = CustomLabels()


class _LifecycleStage:
    __slots__ = ("_counts", "_times", "_workload_labels")

    def __init__(
        self,
        group: MetricGroup,
        count_metric: str,
        duration_metric: str,
        workload_labels: CustomLabels = _NO_WORKLOAD_LABELS,
    ) -> None:
        #: The custom labels of Workloads that the metrics of LocalQueues have.
        self._workload_labels = workload_labels
        metric_prefixes = ("kueue", "kueue_local_queue")
        self._counts = [group.counters(f"{prefix}_{count_metric}") for prefix in metric_prefixes if count_metric]
        self._times = [group.histograms(f"{prefix}_{duration_metric}") for prefix in metric_prefixes]

    def record(self, obj: Obj, view: WorkloadView, elapsed_microseconds: int) -> None:
        self.count(obj, view)
        self.measure(obj, view, elapsed_microseconds)

    def count(self, obj: Obj, view: WorkloadView) -> None:
        for family, labels in zip(self._counts, self._labels(obj, view), strict=False):
            family.add(labels)

    def measure(self, obj: Obj, view: WorkloadView, elapsed_microseconds: int) -> None:
        elapsed_seconds = max(0, elapsed_microseconds) / SECOND
        for family, labels in zip(self._times, self._labels(obj, view), strict=True):
            family.observe(labels, elapsed_seconds)

    def _labels(self, obj: Obj, view: WorkloadView) -> tuple[Labels, Labels]:
        """Return the labels of the metrics of the ClusterQueue and of the LocalQueue."""
        name = _priority_class(obj)
        return (view.cluster_queue, name), (*_local_queue_labels(view), name, *self._workload_labels.values_of(obj))


class AdmittedCounts:
    """The numbers of admitted Workloads by queue and by the values of their custom labels.

    As in Kueue, a number that falls to 0 remains until its queue is deleted.
    """

    def __init__(self) -> None:
        #: The ClusterQueue, the LocalQueue and the label values of each admitted Workload.
        self._admitted: dict[Key, tuple[Key, Key, Labels]] = {}
        self._counts: dict[Key, dict[Labels, int]] = {}

    def update(self, key: Key, view: WorkloadView | None, values: Labels = ()) -> None:
        """Count a Workload with these label values if it is admitted; None means that it was deleted."""
        admission = None
        if view is not None and view.admitted and view.quota_reserved and not view.finished:
            name, namespace = _local_queue_labels(view)
            cluster_queue = Key(scheme.CLUSTER_QUEUE, "", view.cluster_queue)
            admission = cluster_queue, Key(scheme.LOCAL_QUEUE, namespace, name), values
        previous_admission = self._admitted.pop(key, None)
        if admission is not None:
            self._admitted[key] = admission
        if admission != previous_admission:
            self._add(previous_admission, -1)
            self._add(admission, 1)

    def _add(self, admission: tuple[Key, Key, Labels] | None, amount: int) -> None:
        if admission is not None:
            cluster_queue, local_queue, values = admission
            for queue in (cluster_queue, local_queue):
                queue_counts = self._counts.setdefault(queue, {})
                queue_counts[values] = queue_counts.get(values, 0) + amount

    def forget_zeros(self, queue: Key) -> None:
        """Delete the numbers of a deleted queue that are 0; the others are still needed if it is created again."""
        counts = self._counts.pop(queue, {})
        if any(counts.values()):
            self._counts[queue] = {values: count for values, count in counts.items() if count}

    def samples(self, queue: Key) -> Iterator[tuple[Labels, int]]:
        """Yield the label values and the number of admitted Workloads with them in a ClusterQueue or LocalQueue."""
        return iter(self._counts.get(queue, {}).items())


class WorkloadMetrics:
    """Counters and durations of the Workload life cycle, and gauges of unadmitted and finished Workloads."""

    def __init__(
        self,
        scheduler_cache: SchedulerCache,
        objects: Reader,
        now: Callable[[], Instant],
        role: str,
        custom_labels: Sequence[CustomMetricLabel] = (),
    ) -> None:
        self._cache = scheduler_cache
        self._objects = objects
        self._now = now
        #: The custom labels of Workloads; and, if there are any, the numbers of admitted Workloads by their values.
        self.workload_labels = workload_labels = CustomLabels(custom_labels)
        self.admitted_counts = AdmittedCounts() if workload_labels.names else None
        self._cohort_labels = KeptLabels(custom_labels, "Cohort")
        self._local_queue_labels = KeptLabels(custom_labels, "LocalQueue")
        kept_labels = {COHORT_COUNTER: self._cohort_labels.names, CREATION_LATENCY: self._local_queue_labels.names}
        self._group = group = MetricGroup(
            _METRIC_NAMES, role, workload_labels=workload_labels.names, kept_labels=kept_labels
        )
        self._quota = _LifecycleStage(group, "quota_reserved_workloads_total", "quota_reserved_wait_time_seconds")
        self._admission = _LifecycleStage(
            group, "admitted_workloads_total", "admission_wait_time_seconds", workload_labels
        )
        self._checks = _LifecycleStage(group, "", "admission_checks_wait_time_seconds")
        self._end = _LifecycleStage(group, "finished_workloads_total", "execution_time_seconds")
        self._readiness = _LifecycleStage(group, "", "ready_wait_time_seconds")
        self._start = _LifecycleStage(group, "", "admitted_until_ready_wait_time_seconds")
        #: The LocalQueue, reason and cause of each unadmitted Workload, and the number of Workloads for each triple.
        self._unadmitted_labels: dict[Key, tuple[str, str, str]] = {}
        self.unadmitted_counts: dict[tuple[str, str, str], int] = {}
        self._queues_of_finished: dict[Key, str] = {}
        #: Cohorts that have counters.
        self._cohorts: set[str] = set()
        #: The number of finished Workloads by LocalQueue.
        self.finished_counts: dict[str, int] = {}

    def observe_existing(self, event: WatchEvent) -> None:
        """Add a Workload that is older than this process to the gauges, but not to the counters and durations."""
        if event.key.kind == scheme.WORKLOAD:
            self._update_gauges(event.key, event.obj, workload_view(event.obj))

    def observe(self, event: WatchEvent) -> None:
        """Update the metrics for a watch event of a Workload, Pod, ClusterQueue, LocalQueue or Cohort."""
        kind = event.key.kind
        if kind in _QUEUE_TREE_KINDS:
            self._forget_cohorts()
        if kind == scheme.WORKLOAD:
            self._observe_workload(event)
        elif kind == scheme.POD:
            if event.old is not None and event.old["spec"].get("schedulingGates"):
                self._observe_gates(event, event.old)
        elif event.type is _DELETED:
            self.forget_series(event.key)

    def forget_series(self, owner: Key) -> None:
        """Delete the series of a ClusterQueue, LocalQueue or Cohort."""
        if owner.kind == scheme.CLUSTER_QUEUE:
            self._group.forget(cluster_queue=owner.name)
        elif owner.kind == scheme.LOCAL_QUEUE:
            self._group.forget(name=owner.name, namespace=owner.namespace)
        elif owner.kind == scheme.COHORT:
            self._forget_cohort(owner.name)
        if self.admitted_counts is not None:
            self.admitted_counts.forget_zeros(owner)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all counters and histograms of Workloads."""
        self._forget_cohorts()
        return self._group.texts()

    def _forget_cohorts(self) -> None:
        for name in sorted(self._cohorts - self._cache.snapshot.cohorts.keys()):
            self._forget_cohort(name)
            self._cohorts.discard(name)

    def _forget_cohort(self, name: str) -> None:
        self._group.forget(cohort=name)
        self._cohort_labels.forget(name)

    def _observe_workload(self, event: WatchEvent) -> None:
        obj, old, view = event.obj, event.old, workload_view(event.obj)
        if event.type is _DELETED:
            self._remove_from_gauges(event.key)
            return
        self._update_gauges(event.key, obj, view)
        if old is None:
            self._observe_creation(obj, view)
            return
        old_view = workload_view(old)
        if view.quota_reserved and not old_view.quota_reserved:
            self._quota.record(obj, view, self._now() - view.waiting_since)
        if view.admitted and not old_view.admitted:
            self._observe_admission(obj, view, is_admitted_at_once=not old_view.quota_reserved)
        if view.evicted:
            self._observe_eviction(obj, old, view, old_view)
        if view.finished and not old_view.finished:
            self._observe_end(obj, view)
        if view.pods_ready and not old_view.pods_ready:
            self._observe_readiness(obj, old, view)

    def _observe_gates(self, event: WatchEvent, old: Obj) -> None:
        pod = event.obj
        new_names = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
        old_names = [gate["name"] for gate in old["spec"]["schedulingGates"]]
        names = [name for name in old_names if name in _MEASURED_GATES and name not in new_names]
        workload = None if event.type is _DELETED or not names else self._workload_of(pod, event.key.namespace)
        if workload is None or not is_true(workload, "Admitted"):
            return
        admitted_condition = find_condition(workload, "Admitted")
        assert admitted_condition is not None
        elapsed = self._now() - parse_time(admitted_condition["lastTransitionTime"])
        queue = workload_view(workload).cluster_queue
        is_group = "true" if queued_pods.group_name(pod) else "false"
        for name in [ADMISSION_GATE] if ADMISSION_GATE in names else names:  # it is removed with the topology gate
            labels = (name, queue, "false" if name == ELASTIC_JOB else is_group)
            self._group.observe("kueue_pod_scheduling_gate_removal_seconds", labels, max(0, elapsed) / SECOND)

    def _workload_of(self, pod: Obj, namespace: str) -> Obj | None:
        """Return the Workload that a pod's annotation names, or that of its group, or the one that the pod owns."""
        name = annotation(pod, WORKLOAD) or queued_pods.group_name(pod)
        if name:
            return self._objects.get(Key(scheme.WORKLOAD, namespace, name))
        owned = self._objects.owned_by(pod["metadata"].get("uid", ""), namespace)
        return next((each for each in owned if each["kind"] == "Workload"), None)

    # --- gauges ---

    def _update_gauges(self, key: Key, obj: Obj, view: WorkloadView) -> None:
        reason_labels = _unadmitted_reason(obj, view)
        previous_labels = self._unadmitted_labels.get(key)
        if reason_labels != previous_labels:
            _move_count(self.unadmitted_counts, previous_labels, reason_labels)
            if reason_labels is None:
                del self._unadmitted_labels[key]
            else:
                self._unadmitted_labels[key] = reason_labels
        if view.finished and key not in self._queues_of_finished:
            self._queues_of_finished[key] = view.queue
            _move_count(self.finished_counts, None, view.queue)
        if self.admitted_counts is not None:
            self.admitted_counts.update(key, view, self.workload_labels.values_of(obj))

    def _remove_from_gauges(self, key: Key) -> None:
        _move_count(self.unadmitted_counts, self._unadmitted_labels.pop(key, None), None)
        _move_count(self.finished_counts, self._queues_of_finished.pop(key, None), None)
        if self.admitted_counts is not None:
            self.admitted_counts.update(key, None)

    # --- transitions ---

    def _observe_creation(self, obj: Obj, view: WorkloadView) -> None:
        """Record the time from a job's creation to its Workload's creation, unless the job's spec was changed since."""
        owner = controller_of(obj)
        owner_kind = None if owner is None else find_kind(owner["apiVersion"], owner["kind"])
        if owner is None or owner_kind is None:
            return
        job = self._objects.get(Key(owner_kind.constant, view.namespace, owner["name"]))
        if job is not None and job["metadata"].get("generation", 1) == 1:
            creation_latency = view.created - parse_time(job["metadata"]["creationTimestamp"])
            name, namespace = _local_queue_labels(view)
            local_queue = Key(scheme.LOCAL_QUEUE, namespace, name)
            values = self._local_queue_labels.values_of(owner["kind"], partial(self._objects.get, local_queue))
            self._group.observe(CREATION_LATENCY, (owner["kind"], *values), creation_latency / SECOND)

    def _observe_admission(self, obj: Obj, view: WorkloadView, *, is_admitted_at_once: bool) -> None:
        self._admission.record(obj, view, self._now() - view.waiting_since)
        if not is_admitted_at_once:
            self._checks.measure(obj, view, self._now() - (view.reserved_at or self._now()))
        elif obj["status"].get("admissionChecks"):
            self._checks.measure(obj, view, 0)
        queue = self._cache.snapshot.queues.get(view.cluster_queue)
        for node in queue.node.path[:-1] if queue is not None else ():
            self._cohorts.add(node.name)
            key = Key(scheme.COHORT, "", node.name)
            values = self._cohort_labels.values_of(node.name, partial(self._objects.get, key))
            self._group.add(COHORT_COUNTER, (node.name, _priority_class(obj), *values))

    def _observe_end(self, obj: Obj, view: WorkloadView) -> None:
        self._end.count(obj, view)
        if view.elastic and _is_replaced_slice(obj):
            self._group.add("kueue_replaced_workload_slices_total", (view.cluster_queue,))
        admission, end = (find_condition(obj, lifecycle.ADMITTED), find_condition(obj, lifecycle.FINISHED))
        if view.admitted and admission is not None and end is not None:
            past_execution_time = obj["status"].get("accumulatedPastExecutionTimeSeconds", 0) * SECOND
            last_execution_time = parse_time(end["lastTransitionTime"]) - parse_time(admission["lastTransitionTime"])
            self._end.measure(obj, view, past_execution_time + last_execution_time)

    def _observe_readiness(self, obj: Obj, old: Obj, view: WorkloadView) -> None:
        """Measure how long the pods took to be ready, or to be ready again after some were lost."""
        readiness, admission = (find_condition(obj, lifecycle.PODS_READY), find_condition(obj, lifecycle.ADMITTED))
        if readiness is None or admission is None:
            return
        loss = find_condition(old, lifecycle.PODS_READY)
        if readiness["reason"] == lifecycle.RECOVERED and loss is not None:
            elapsed = parse_time(readiness["lastTransitionTime"]) - parse_time(loss["lastTransitionTime"])
            for prefix, labels in (("kueue", (view.cluster_queue,)), ("kueue_local_queue", _local_queue_labels(view))):
                name = f"{prefix}_workload_recovery_wait_time_seconds"
                self._group.observe(name, labels, max(0, elapsed) / SECOND)
        if readiness["reason"] != lifecycle.STARTED:
            return
        self._readiness.measure(obj, view, self._now() - view.waiting_since)
        wait_time = parse_time(readiness["lastTransitionTime"]) - parse_time(admission["lastTransitionTime"])
        self._start.measure(obj, view, wait_time)

    def _observe_eviction(self, obj: Obj, old: Obj, view: WorkloadView, old_view: WorkloadView) -> None:
        condition, old_condition = find_condition(obj, lifecycle.EVICTED), find_condition(old, lifecycle.EVICTED)
        if condition is None:
            return
        is_new_eviction = (
            old_condition is None or old_condition["status"] != "True" or old_condition["reason"] != condition["reason"]
        )
        if is_new_eviction and old_view.cluster_queue:
            self._count_eviction(obj, old, old_view, _find_eviction(obj, old, condition["reason"]))
        if old_view.quota_reserved and not view.quota_reserved and old_view.cluster_queue:
            release_time = max(0, self._now() - parse_time(condition["lastTransitionTime"]))
            labels = (old_view.cluster_queue, condition["reason"])
            self._group.observe("kueue_workload_eviction_latency_seconds", labels, release_time / SECOND)

    def _count_eviction(self, obj: Obj, old: Obj, old_view: WorkloadView, eviction: "_Eviction") -> None:
        reasons, queue = (eviction.reason, eviction.cause), old_view.cluster_queue
        self._group.add("kueue_evicted_workloads_total", (queue, *reasons, _priority_class(obj)))
        self._group.add(
            "kueue_local_queue_evicted_workloads_total",
            (*_local_queue_labels(old_view), *reasons, _priority_class(obj)),
        )
        if eviction.times == 1:
            self._group.add("kueue_evicted_workloads_once_total", (queue, *reasons, _priority_class(obj)))
        ready_condition = find_condition(old, lifecycle.PODS_READY)
        if old_view.pods_ready and ready_condition is not None:
            eviction_condition = find_condition(obj, lifecycle.EVICTED) or ready_condition
            ready_time = parse_time(eviction_condition["lastTransitionTime"]) - parse_time(
                ready_condition["lastTransitionTime"]
            )
            self._group.observe("kueue_pods_ready_to_evicted_time_seconds", (queue, *reasons), ready_time / SECOND)


def _is_replaced_slice(obj: Obj) -> bool:
    condition = find_condition(obj, lifecycle.FINISHED)
    return condition is not None and condition["reason"] == SLICE_REPLACED and "admission" in obj["status"]


def _unadmitted_reason(obj: Obj, view: WorkloadView) -> tuple[str, str, str] | None:
    if view.admitted or view.finished or obj["metadata"].get("deletionTimestamp"):
        return None
    condition = find_condition(obj, lifecycle.ADMITTED)
    reason = "NoReservation" if condition is None else condition["reason"]
    return view.queue, reason, "" if view.quota_reserved else (view.pending_reason or "PendingEvaluation")


class _Eviction(NamedTuple):
    """The reason and cause of a Workload's eviction, and the number of evictions for both (0 if unknown)."""

    reason: str
    cause: str
    times: int = 0


def _find_eviction(obj: Obj, old: Obj, reason: str) -> _Eviction:
    old_counts = _eviction_counts(old)
    for reason_and_cause, count in _eviction_counts(obj).items():
        if count > old_counts.get(reason_and_cause, 0):
            return _Eviction(*reason_and_cause, count)
    name, _, cause = reason.partition("DueTo")
    return _Eviction(name, cause) if name == lifecycle.DEACTIVATED else _Eviction(reason, "")


def _eviction_counts(obj: Obj) -> dict[tuple[str, str], int]:
    stats = (obj.get("status") or {}).get("schedulingStats") or {}
    return {(entry["reason"], entry["underlyingCause"]): entry["count"] for entry in stats.get("evictions") or ()}


def _priority_class(obj: Obj) -> str:
    return (obj["spec"].get("priorityClassRef") or {}).get("name") or ""


def _local_queue_labels(view: WorkloadView) -> Labels:
    namespace, _, name = view.queue.partition("/")
    return name, namespace


def _move_count(count_by_key: dict[_CountedKey, int], old_key: _CountedKey | None, new_key: _CountedKey | None) -> None:
    if old_key is not None:
        count_by_key[old_key] -= 1
        if not count_by_key[old_key]:
            del count_by_key[old_key]
    if new_key is not None:
        count_by_key[new_key] = count_by_key.get(new_key, 0) + 1


# Counts, durations in real time, and results of scheduling cycles. Source: Kueue's pkg/scheduler.


_CYCLE_METRIC_NAMES: Final = (
    *("kueue_admission_attempts_total", "kueue_admission_attempt_duration_seconds"),
    *("kueue_admission_cycle_preemption_skips", "kueue_preemption_target_recomputations_total"),
    "kueue_preempted_workloads_total",
)


class CycleMetrics:
    """Counts, durations and results of scheduling cycles; the function `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], role: str) -> None:
        self._clock = clock
        self._group = MetricGroup(_CYCLE_METRIC_NAMES, role)
        self._own_group = MetricGroup(
            (
                *("batchyard_cycle_phase_seconds_total", "batchyard_preemption_loops_total"),
                *("batchyard_protected_preemptions_total", "batchyard_partially_preempted_workloads_total"),
            )
        )
        self._own_group.add("batchyard_preemption_loops_total", (), 0)
        self._started_at = self._decided_at = 0.0

    def begin(self) -> None:
        """Record the start time of a scheduling cycle."""
        self._started_at = self._clock()

    def end_decisions(self) -> None:
        """Record the time at which the scheduling cycle has made its decisions and starts to write them."""
        self._decided_at = self._clock()

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Count a completed scheduling cycle and its decisions, and record the durations of deciding and writing."""
        ended_at = self._clock()
        outcomes = () if cycle.second_pass is None else cycle.second_pass.outcomes
        decisions = [*(outcome.decision for outcome in outcomes), *decisions]
        is_success = any(isinstance(d, Admit) for d in decisions) or any(outcome.evicts for outcome in outcomes)
        result = "success" if is_success else "inadmissible"
        self._group.add("kueue_admission_attempts_total", (result,))
        self._group.observe("kueue_admission_attempt_duration_seconds", (result,), ended_at - self._started_at)
        self._own_group.add("batchyard_cycle_phase_seconds_total", ("decide",), self._decided_at - self._started_at)
        self._own_group.add("batchyard_cycle_phase_seconds_total", ("apply",), ended_at - self._decided_at)
        for queue, count in cycle.skipped_preemptions.items():
            self._group.set("kueue_admission_cycle_preemption_skips", (queue,), count)
        for queue in cycle.snapshot.preemption.protection_ends:
            self._own_group.add("batchyard_protected_preemptions_total", (queue,))
        for decision in decisions:
            if isinstance(decision, Preempt):
                self._count_preemptions(decision)
            if decision.head.workload.key in cycle.renominated_workloads:
                labels = (decision.head.queue, _search_result(decision))
                self._group.add("kueue_preemption_target_recomputations_total", labels)

    def count_preemption_loop(self, _loop: object) -> None:
        """Count a detected preemption loop, in which Workloads preempt each other endlessly."""
        self._own_group.add("batchyard_preemption_loops_total", ())

    def forget_queue(self, queue: str) -> None:
        """Delete the series of a deleted ClusterQueue."""
        self.forget_upstream_series(queue)
        self._own_group.forget(cluster_queue=queue)

    def forget_upstream_series(self, queue: str) -> None:
        """Delete the series of a ClusterQueue in the metrics that Kueue also has."""
        self._group.forget(cluster_queue=queue)
        self._group.forget(preempting_cluster_queue=queue)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of the scheduling cycle metrics that Kueue also has."""
        return self._group.texts()

    def own_texts(self) -> Iterator[str]:
        """Yield the exposition text of the scheduling cycle metrics that only batchyard has."""
        return self._own_group.texts()

    def _count_preemptions(self, decision: Preempt) -> None:
        for target in decision.targets:
            if not target.workload.evicted and target.workload.whole is not None:
                labels = (decision.queue.name, target.reason)
                self._own_group.add("batchyard_partially_preempted_workloads_total", labels)
            elif not target.workload.evicted:
                self._group.add("kueue_preempted_workloads_total", (decision.queue.name, target.reason))


def _search_result(decision: Decision) -> str:
    if isinstance(decision, Preempt):
        return "new_targets"
    is_deferred = isinstance(decision, StayPending) and decision.requeue_reason is RequeueReason.PENDING_PREEMPTION
    return "deferred_fit" if is_deferred else "skipped"
