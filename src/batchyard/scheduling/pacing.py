"""Pacing of decisions for an API server over a network, where each write takes time.

Cycles go on while the server processes the writes of earlier cycles. A Workload has at most one write in flight. Until
the result is known, the Workload is neither a head nor preempted: the cached object is older than the write, so that a
second write would be rejected as a conflict. The other heads of its cohort tree then wait too.
"""

from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Final, NamedTuple

from batchyard.scheduling.decisions import Head, Preempt


class DecisionPacing(NamedTuple):
    """Limits of the scheduler's writes to the API server; the defaults are for an API server in the same process."""

    #: The maximum number of writes in flight with which a cycle runs.
    in_flight_max: int = 0
    #: The maximum number of pending reasons that are written at once.
    pending_reasons_max: int = maxsize


IN_PROCESS_PACING: Final = DecisionPacing()
#: For an API server over a network. Some writes of earlier cycles may be in flight, so that a distant server does not
#: limit the rate of admissions. More would make the decisions of a burst too early: later arrivals would soon preempt
#: more Workloads, and each eviction costs four writes.
NETWORK_PACING: Final = DecisionPacing(in_flight_max=4, pending_reasons_max=32)


class WritesInFlight:
    """The Workloads whose last write by the scheduler has no result yet."""

    def __init__(self) -> None:
        self._workloads: dict[str, None] = {}
        #: Workloads whose results heads or preemptors await.
        self._awaited_workloads: dict[str, None] = {}

    def __len__(self) -> int:
        """Return the number of writes in flight."""
        return len(self._workloads)

    def __contains__(self, workload: str) -> bool:
        """Return whether a write of this Workload is in flight."""
        return workload in self._workloads

    def add(self, workload: str) -> None:
        """Record that a write of a Workload was submitted."""
        self._workloads[workload] = None

    def complete(self, workload: str) -> bool:
        """Record that a Workload's write has a result; return whether a scheduling decision awaited this result."""
        self._workloads.pop(workload, None)
        is_awaited = workload in self._awaited_workloads
        self._awaited_workloads.pop(workload, None)
        return is_awaited

    def select_heads(self, heads: Sequence[Head], tree_of: Callable[[Head], str]) -> Sequence[Head]:
        """Return the queue heads of the cohort trees in which no head has a write in flight.

        Record that the writes of the other heads are awaited. Other heads of their trees wait too: a head with a lower
        priority would get the quota that is free, and would soon be preempted.
        """
        written_heads = [head for head in heads if head.workload.key in self._workloads] if self._workloads else []
        if not written_heads:
            return heads
        self._awaited_workloads.update(dict.fromkeys([head.workload.key for head in written_heads]))
        waiting_trees = {tree_of(head) for head in written_heads}
        return [head for head in heads if tree_of(head) not in waiting_trees]

    def postpones(self, preemption: Preempt) -> bool:
        """Return whether a preemption must wait, because writes of targets that are not evicted yet are in flight.

        Record that the results of these writes are awaited.
        """
        targets = [target.workload for target in preemption.targets]
        written_targets = [target.key for target in targets if target.key in self._workloads and not target.evicted]
        self._awaited_workloads.update(dict.fromkeys(written_targets))
        return bool(written_targets)
