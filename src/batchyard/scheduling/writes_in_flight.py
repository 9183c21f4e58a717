"""The scheduler's writes without a result, so that cycles go on while an API server processes the writes.

A Workload has at most one such write. Until the result is known, the Workload is neither a head nor preempted again:
the cached object is older than the write, so that a second write would be rejected as a conflict.
"""

from collections.abc import Iterable

from batchyard.scheduling.decisions import Head, Preempt


class WritesInFlight:
    """The Workloads with a write in flight, and the preemptors that wait for the result of such a write."""

    def __init__(self) -> None:
        self._workloads: dict[str, None] = {}
        #: By preemptor, the Workloads whose results it awaits.
        self._awaited_by_preemptor: dict[str, list[str]] = {}
        #: Heads that the last cycle did not try.
        self._skipped_heads: dict[str, None] = {}

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
        """Record that the result of a Workload's write is known; return whether a head waited for the result."""
        self._workloads.pop(workload, None)
        is_awaited = workload in self._skipped_heads
        self._skipped_heads.pop(workload, None)
        for preemptor, awaited_workloads in list(self._awaited_by_preemptor.items()):
            if workload in awaited_workloads:
                del self._awaited_by_preemptor[preemptor]
                is_awaited = True
        return is_awaited

    def select_heads(self, heads: Iterable[Head]) -> list[Head]:
        """Return the heads that do not wait for the result of a write."""
        if not self._workloads:
            return list(heads)
        selected_heads = []
        for head in heads:
            key = head.workload.key
            if key in self._workloads:
                self._skipped_heads[key] = None
            elif key not in self._awaited_by_preemptor:
                selected_heads.append(head)
        return selected_heads

    def postpone(self, preemption: Preempt) -> bool:
        """Return whether a preemption must wait for writes of its targets; if so, record that it waits.

        Targets that are already evicted do not delay it.
        """
        targets = (target.workload for target in preemption.targets)
        awaited_workloads = [target.key for target in targets if target.key in self._workloads and not target.evicted]
        if awaited_workloads:
            self._awaited_by_preemptor[preemption.head.workload.key] = awaited_workloads
        return bool(awaited_workloads)
