"""Counts of the Workloads with quota, and the quota that they use, for each ClusterQueue or LocalQueue."""

from dataclasses import dataclass, field

from batchyard.scheduling.cluster_queue import AdmittedWorkload


@dataclass(slots=True)
class QueueCounter:
    """The number of Workloads with quota in a queue, and the quota they use, by flavor-resource id."""

    reserving: int = 0
    admitted: int = 0
    reserved_usage: dict[int, int] = field(default_factory=dict)
    admitted_usage: dict[int, int] = field(default_factory=dict)


class QueueCounters:
    """The number and quota usage of the Workloads with quota, by queue name."""

    def __init__(self) -> None:
        self._counts: dict[str, QueueCounter] = {}

    def get(self, queue: str) -> QueueCounter:
        """Return the counter of a queue; a counter of zeros if no Workload of the queue was counted."""
        return self._counts.get(queue) or QueueCounter()

    def add(self, queue: str, quota_holder: AdmittedWorkload) -> None:
        """Count a Workload that has a quota reservation in the counter of a ClusterQueue or LocalQueue."""
        counter = self._counts.get(queue)
        if counter is None:
            counter = self._counts[queue] = QueueCounter()
        self._change_counter(counter, quota_holder, 1)

    def remove(self, queue: str, quota_holder: AdmittedWorkload) -> None:
        """Subtract a Workload from the counter of its queue."""
        counter = self._counts.get(queue)
        if counter is not None:
            self._change_counter(counter, quota_holder, -1)

    def forget(self, queue: str) -> None:
        """Delete the counter of a queue."""
        self._counts.pop(queue, None)

    @staticmethod
    def _change_counter(counter: QueueCounter, quota_holder: AdmittedWorkload, sign: int) -> None:
        counter.reserving += sign
        usage_tables = [counter.reserved_usage]
        if quota_holder.is_admitted:
            counter.admitted += sign
            usage_tables.append(counter.admitted_usage)
        for fr, amount in quota_holder.usage:
            for table in usage_tables:
                table[fr] = table.get(fr, 0) + sign * amount
