"""A fork of one cohort tree, in which the scheduler's decisions are simulated until nothing changes.

The queues, the queue order and the cycle are those of the scheduler. Preempted Workloads release their quota at once. A
trial is undone after it ends, so one fork serves many trials.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batchyard.api.views.workload import ClusterQueueView, CohortView, WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.scheduling.queue_manager import PendingQueue, QueueManager
from batchyard.scheduling.quota import detach
from batchyard.scheduling.scheduler_cache import SchedulerCache, admitted_of
from batchyard.scheduling.snapshot import Snapshot

# --- copies ---
#
# A copy of one cohort tree, to try changes without affecting the scheduler's snapshot.


def tree_copy(snapshot: Snapshot, queue: ClusterQueue) -> Snapshot:
    """Return a separate snapshot of a ClusterQueue's tree with its quota holders.

    Ids of flavor-resources are the same. Evicted Workloads are left out: they will release their quota.
    """
    copy = Snapshot()
    for flavor in snapshot.flavors.values():
        copy.put_flavor(flavor)
    for pair in snapshot.names:
        copy.id_of(*pair)
    for view in snapshot.forest.views.values():
        copy.put_cohort(view)
    below = snapshot.queues_below(queue.node.path[0])
    for each in below:
        copy.put_queue(each.view).active = each.active
    copy.settle()
    for each in below:
        for held in each.workloads.values():
            if not held.evicted:
                copy.hold(_copied(held, copy.queues[each.name]))
    return copy


def dismantle(copy: Snapshot) -> None:
    """Break the reference cycles of an unused copy, because the cyclic garbage collector runs rarely."""
    for queue in copy.queues.values():
        queue.workloads.clear()
        queue.forget_ranks()
        detach(queue.node)
    for node in copy.cohorts.values():
        detach(node)


def _copied(held: AdmittedWorkload, queue: ClusterQueue) -> AdmittedWorkload:
    return AdmittedWorkload(
        held.key,
        held.uid,
        queue,
        held.usage,
        held.flavor_resources,
        held.priority,
        held.queued,
        held.reserved_at,
        held.evicted,
        held.is_admitted,
        held.local_queue,
        held.boost,
    )


#: Limits on pending Workloads in a fork: those of the same queue ahead of the Workload, and all others together.
AHEAD_MAX: Final = 64
OTHERS_MAX: Final = 32
#: Limits on head decisions over all trials of a fork, and for one purpose. Beyond them, it gives no result.
DECISIONS_MAX: Final = 1000
PURPOSE_MAX: Final = 400
#: If a Workload is preempted more often in one trial, the trial ends as a preemption loop.
_TIMES_PREEMPTED_MAX: Final = 3


class HypotheticalChange(NamedTuple):
    """A hypothetical change of objects."""

    queues: Mapping[str, ClusterQueueView] = {}
    cohorts: Mapping[str, CohortView] = {}
    #: The changed Workload.
    workload: WorkloadView | None = None
    #: Keys of Workloads that no longer hold quota.
    gone: Sequence[str] = ()
    #: Whether its ClusterQueue admits although it is inactive.
    opens: bool = False


AS_IT_IS: Final = HypotheticalChange()


@dataclass(slots=True)
class TrialOutcome:
    """The result of a trial."""

    is_admitted: bool = False
    #: Keys of the Workloads that the Workload itself preempted.
    preempted: list[str] = field(default_factory=list)


class DecisionLimitReached(Exception):  # noqa: N818 - named for the event
    """The fork has reached its limit of decisions; the result is unknown."""


class Fork:
    """A copy of one cohort tree with its pending Workloads, and the number of decisions made in it."""

    def __init__(
        self, index: SchedulerCache, policy: SchedulingPolicy, target: WorkloadView, queue: ClusterQueue
    ) -> None:
        self.snapshot = tree_copy(index.snapshot, queue)
        self.target = target
        self.queue = self.snapshot.queues[queue.name]
        self._is_active = self.queue.active
        self._policy = policy
        self._namespaces = index.namespaces
        self._now: Instant = index.queue_manager.now
        self._pending = index.queue_manager.pending
        #: Numbers of Workloads left out because of the limits: ahead of the Workload, and elsewhere in the tree.
        self.left_out = self.left_out_elsewhere = 0
        self._waiting = self._who_waits()
        #: Views of quota holders, needed if they are preempted and become pending.
        self._views = {key: view for key in self._held() if (view := index.book.view(key)) is not None}
        self._number = 0
        self._decided = 0
        self._decided_max = PURPOSE_MAX
        self._views_put: tuple[dict[str, ClusterQueueView], dict[str, CohortView]] = ({}, {})

    def begin(self) -> None:
        """Start a new purpose with its own limit of decisions."""
        self._decided_max = min(DECISIONS_MAX, self._decided + PURPOSE_MAX)

    def count(self, heads: int) -> None:
        """Count decisions about `heads` heads. Raise TooMuch over the limit."""
        self._decided += heads
        if self._decided > self._decided_max:
            raise DecisionLimitReached

    def close(self) -> None:
        """Release the copy; no trial may follow."""
        dismantle(self.snapshot)

    def restore(self) -> None:
        """Restore all queues and Cohorts, for readers of the snapshot between trials."""
        self._put(AS_IT_IS)

    def others(self) -> Iterable[WorkloadView]:
        """Return all pending Workloads in the fork except the Workload itself."""
        return [view for views in self._waiting.values() for view in views if view.key != self.target.key]

    def try_out(self, change: HypotheticalChange = AS_IT_IS) -> TrialOutcome:
        """Return the outcome of a change. Raise TooMuch if it needs too many decisions."""
        self._put(change)
        return _Trial(self, change).run()

    def admits(self, change: HypotheticalChange) -> bool:
        """Report whether the Workload is admitted after a change, possibly after preemptions."""
        return self.try_out(change).is_admitted

    def _held(self) -> list[str]:
        return [key for queue in self.snapshot.queues.values() for key in queue.workloads]

    def _who_waits(self) -> dict[str, list[WorkloadView]]:
        """Return the pending Workloads to simulate, by ClusterQueue, in queue order."""
        names = [name for name in self.snapshot.queues if name != self.queue.name and len(self._pending[name])]
        share = max(1, OTHERS_MAX // max(1, len(names)))
        waiting = {name: self._pending[name].front(share) for name in names[:OTHERS_MAX]}
        self.left_out_elsewhere = sum(len(self._pending[name]) for name in names) - sum(map(len, waiting.values()))
        own = self._pending[self.queue.name]
        ahead = own.place_of(self.target.key) if own.get(self.target.key) is not None else 0
        if ahead > AHEAD_MAX:
            self.left_out = ahead
            waiting[self.queue.name] = [self.target]
        else:
            front = [view for view in own.front(ahead + OTHERS_MAX) if view.key != self.target.key]
            waiting[self.queue.name] = [*front[:ahead], self.target, *front[ahead:]]
        return waiting

    def _put(self, change: HypotheticalChange) -> None:
        """Apply a change to queues and Cohorts, and restore all others."""
        queues, cohorts = self._views_put
        snapshot = self.snapshot
        for name in {**queues, **change.queues}:
            view = change.queues.get(name) or queues[name]
            known = snapshot.queues[name].view
            queues.setdefault(name, known)
            if view is not known:
                snapshot.put_queue(view)
        for name in {**cohorts, **change.cohorts}:
            found = change.cohorts.get(name) or cohorts[name]
            present = snapshot.forest.views[name]
            cohorts.setdefault(name, present)
            if found is not present:
                snapshot.put_cohort(found)
        self.queue.active = change.opens or self._is_active
        before, rebuilds = list(snapshot.cohorts.values()), snapshot.rebuilds
        snapshot.settle()
        if snapshot.rebuilds > rebuilds:
            for node in before:
                detach(node)


class _Trial:
    """One trial in a fork."""

    def __init__(self, fork: Fork, change: HypotheticalChange) -> None:
        self._fork = fork
        self._snapshot = fork.snapshot
        self._target = change.workload or fork.target
        self._line_up = QueueManager(fork.snapshot, fork._namespaces)
        self._line_up.now = fork._now
        self._released: dict[str, AdmittedWorkload] = {}
        self._admitted: dict[str, WorkloadView] = {}
        self._preempted: dict[str, int] = {}
        self._outcome = TrialOutcome()
        for key in change.gone:
            self._release(key)
        for name, queue in fork.snapshot.queues.items():
            waiting = self._line_up.pending[name] = PendingQueue(name)
            waiting.strict_fifo = queue.view.strict_fifo
            for view in fork._waiting.get(name, ()):
                waiting.put_in_line(self._target if view.key == self._target.key else view)
            if len(waiting):
                self._line_up.show_new(name)

    def run(self) -> TrialOutcome:
        """Run cycles until the Workload is admitted or nothing changes, then undo everything."""
        seen: dict[object, None] = {}
        try:
            while not self._outcome.is_admitted and not self._is_looping:
                heads = self._line_up.heads()
                self._fork.count(len(heads))
                decisions = self._cycle().run(heads)
                parked = [self._apply(decision) for decision in decisions]
                if any(parked) or any(not _is_stuck(decision) for decision in decisions):
                    seen.clear()
                    continue
                signature = tuple([(d.head.workload.key, repr(_tried(d))) for d in decisions])
                if signature in seen or not heads:
                    break
                seen[signature] = None
        finally:
            self._undo()
        return self._outcome

    @property
    def _is_looping(self) -> bool:
        return max(self._preempted.values(), default=0) > _TIMES_PREEMPTED_MAX

    def _cycle(self) -> Cycle:
        fork = self._fork
        fork._number += 1
        return Cycle(self._snapshot, fork._policy, fork._namespaces, fork._number)

    def _apply(self, decision: Decision) -> bool:
        """Apply a decision. Return whether its Workload was parked."""
        match decision:
            case Admit():
                self._admit(decision)
                return False
            case Preempt():
                for target in decision.targets:
                    self._preempt(decision, target.workload.key)
            case StayPending():
                pass
        return self._line_up.requeue(decision.head, decision.last, decision.requeue)

    def _admit(self, decision: Admit) -> None:
        view = decision.head.workload
        self._line_up.pending[decision.queue.name].remove(view.key)
        self._snapshot.hold(admitted_of(decision, self._fork._now, admitted=True))
        self._admitted[view.key] = view
        self._outcome.is_admitted |= view.key == self._target.key

    def _preempt(self, decision: Preempt, key: str) -> None:
        held = self._snapshot.holder(key)
        if held is None:
            return
        self._preempted[key] = self._preempted.get(key, 0) + 1
        if decision.head.workload.key == self._target.key:
            self._outcome.preempted.append(key)
        name, view = held.queue.name, self._admitted.get(key) or self._fork._views.get(key)
        self._release(key)
        self._line_up.wake(name)
        if view is not None:
            self._line_up.pending[name].put_in_line(view)
            self._line_up.show_new(name)

    def _release(self, key: str) -> None:
        held = self._snapshot.release(key)
        if key in self._admitted:
            del self._admitted[key]
        elif held is not None:
            self._released[key] = held

    def _undo(self) -> None:
        for key in self._admitted:
            self._snapshot.release(key)
        for held in self._released.values():
            self._snapshot.hold(held)
        for waiting in self._line_up.pending.values():
            waiting.clear()


def _tried(decision: Decision) -> object:
    """Return how far its flavor search got."""
    return decision.last.tried if isinstance(decision, StayPending) and decision.last is not None else ()


def _is_stuck(decision: Decision) -> bool:
    """Report whether a decision changes nothing."""
    return not isinstance(decision, Admit | Preempt)
