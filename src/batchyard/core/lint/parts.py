"""The pod sets of queued work, each with what the scheduler's own search finds for it alone, nothing being in use."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batchyard.api.views.workload import WorkloadView
from batchyard.core.assignment import PodSetAssignment
from batchyard.core.flavors import FlavorSearch
from batchyard.core.lint.works import Work
from batchyard.core.queue import ClusterQueue
from batchyard.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of them."""

    work: Work
    index: int
    queue: ClusterQueue
    assignment: PodSetAssignment

    @property
    def path(self) -> str:
        """Where its pod spec is written."""
        return f"{self.work.paths[self.index]}.spec"

    @property
    def who(self) -> str:
        """As messages call it."""
        sets = self.work.view.pod_sets
        return "it" if len(sets) == 1 else f"pod set {sets[self.index].name}"


def parts_of(
    works: Sequence[Work], queue_of: Callable[[Work], ClusterQueue | None], snapshot: Snapshot
) -> Iterator[Part]:
    """All whose ClusterQueue is known; as few pods are asked for as the work can do with."""
    for work in works:
        queue = queue_of(work)
        if queue is None:
            continue
        for index, pod_set in enumerate(work.workload["spec"]["podSets"]):
            alone = WorkloadView({"metadata": work.workload["metadata"], "spec": {"podSets": [pod_set]}})
            least = alone.pod_sets[0].min_count
            count = alone.pod_sets[0].count if least is None else least
            search = FlavorSearch(alone, queue, snapshot, None, None)
            yield Part(work, index, queue, search.assign([count]).pod_sets[0])
