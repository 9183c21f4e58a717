"""Scheduling cycle metrics: counts, durations in real time, and results. Source: Kueue's pkg/scheduler."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from batchyard.metrics.exposition import MetricGroup
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.scheduling.messages import RequeueReason

_NAMES: Final = (
    *("kueue_admission_attempts_total", "kueue_admission_attempt_duration_seconds"),
    *("kueue_admission_cycle_preemption_skips", "kueue_preemption_target_recomputations_total"),
    "kueue_preempted_workloads_total",
)


class CycleMetrics:
    """Counters and durations of scheduling cycles. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], role: str) -> None:
        self._clock = clock
        self._kept = MetricGroup(_NAMES, role)
        self._own = MetricGroup(("batchyard_cycle_phase_seconds_total", "batchyard_preemption_loops_total"))
        self._own.add("batchyard_preemption_loops_total", (), 0)
        self._began = self._decided = 0.0

    def begin(self) -> None:
        """Record the start of a cycle."""
        self._began = self._clock()

    def decide(self) -> None:
        """Record that the decisions are made; writing them follows."""
        self._decided = self._clock()

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Count a cycle that ended, with its decisions."""
        ended = self._clock()
        result = "success" if any(isinstance(d, Admit) for d in decisions) else "inadmissible"
        self._kept.add("kueue_admission_attempts_total", (result,))
        self._kept.observe("kueue_admission_attempt_duration_seconds", (result,), ended - self._began)
        self._own.add("batchyard_cycle_phase_seconds_total", ("decide",), self._decided - self._began)
        self._own.add("batchyard_cycle_phase_seconds_total", ("apply",), ended - self._decided)
        for queue, count in cycle.skipped_preemptions.items():
            self._kept.set("kueue_admission_cycle_preemption_skips", (queue,), count)
        for decision in decisions:
            if isinstance(decision, Preempt):
                self._preempts(decision)
            if decision.head.workload.key in cycle.looked_again:
                labels = (decision.head.queue, _came_of_it(decision))
                self._kept.add("kueue_preemption_target_recomputations_total", labels)

    def loop(self, _loop: object) -> None:
        """Count a preemption loop."""
        self._own.add("batchyard_preemption_loops_total", ())

    def forget(self, queue: str) -> None:
        """Drop the series of a deleted ClusterQueue."""
        self._kept.forget(cluster_queue=queue)
        self._kept.forget(preempting_cluster_queue=queue)

    def texts(self) -> Iterator[str]:
        """Yield Kueue's families."""
        return self._kept.texts()

    def own_texts(self) -> Iterator[str]:
        """Yield our own families."""
        return self._own.texts()

    def _preempts(self, decision: Preempt) -> None:
        """Count the preempted Workloads, except those whose eviction was already in progress."""
        for target in decision.targets:
            if not target.workload.evicted:
                self._kept.add("kueue_preempted_workloads_total", (decision.queue.name, target.reason))


def _came_of_it(decision: Decision) -> str:
    """Return the result of a second search for preemption targets."""
    if isinstance(decision, Preempt):
        return "new_targets"
    is_deferred = isinstance(decision, StayPending) and decision.requeue is RequeueReason.PENDING_PREEMPTION
    return "deferred_fit" if is_deferred else "skipped"
