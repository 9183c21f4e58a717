"""One head's search for victims. The same question comes often: answers are kept while the snapshot stands still."""

from collections.abc import Sequence

from batchyard.api.views.workload import WorkloadView
from batchyard.core.assignment import Assignment
from batchyard.core.plan import PODS
from batchyard.core.preemption import classical, fair
from batchyard.core.preemption.request import Request, Target
from batchyard.core.quality import HOPELESS, PREEMPT, RECLAIM, Quality
from batchyard.core.queue import ClusterQueue
from batchyard.core.quota import Usage, lowest_fitting_height
from batchyard.core.snapshot import Snapshot


class VictimSearch:
    """Finds victims for one Workload. Valid only while the snapshot does not change."""

    __slots__ = ("_found", "_queue", "_snapshot", "_strategies", "_workload")

    def __init__(
        self, workload: WorkloadView, queue: ClusterQueue, snapshot: Snapshot, strategies: Sequence[fair.Strategy]
    ) -> None:
        """`strategies` are those of fair sharing; none where queues do not share so."""
        self._workload = workload
        self._queue = queue
        self._snapshot = snapshot
        self._strategies = strategies
        self._found: dict[tuple[Usage, tuple[int, ...]], list[Target]] = {}

    def targets_for(self, assignment: Assignment) -> list[Target]:
        """Whom to preempt for an assignment; none if that would not make room.

        The count of pods, where a queue has quota for it, is no part of the question: it is none upstream.
        """
        names = self._snapshot.names
        usage = [(fr, amount) for fr, amount in assignment.usage if amount != 0 and names[fr][1] != PODS]
        return self._targets(tuple(usage), assignment.preempting)

    def oracle(self, fr: int, amount: int, height: int) -> Quality:
        """Whether preemption could free an amount of one flavor-resource, how, and from how far it would borrow.

        As things stand the amount lies at that height.
        """
        node = self._queue.node
        targets = self._targets(((fr, amount),), (fr,))
        if not targets:
            return HOPELESS - height
        with self._snapshot.what_if():
            for target in targets:
                self._snapshot.remove_usage(target.workload.queue, target.workload.usage)
            height, _ = lowest_fitting_height(node, fr, amount)
        own = any(target.workload.queue is self._queue for target in targets)
        return (PREEMPT if own else RECLAIM) - height

    def _targets(self, usage: Usage, contested: tuple[int, ...]) -> list[Target]:
        question = (usage, contested)
        known = self._found.get(question)
        if known is None:
            request = Request(self._workload, self._queue, self._snapshot, usage, contested)
            fairly = self._strategies
            known = fair.find_targets(request, fairly) if fairly else classical.find_targets(request)
            self._found[question] = known
        return known
