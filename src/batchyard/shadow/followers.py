"""One follower for each cohort tree: trees do not affect each other, so each has its own replay order.

Kueue takes a head of every ClusterQueue into one cycle, across all trees. But a decision depends on its own tree alone
(`nominate` and `processEntry` in pkg/scheduler/scheduler.go). If two trees join, for example because a Cohort gets a
parent, the follower of the larger tree takes over. It processes the objects of the other follower, then its pending
changes. If a tree splits, its follower keeps all parts until both schedulers agree. Then each part starts with a new
follower and the current objects.
"""

from collections.abc import Callable, Sequence
from functools import partial

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.follower import CohortTrees, TreeFollower, group_by_tree, may_split, nodes_of
from batchyard.shadow.observed import Signature
from batchyard.shadow.state import ShadowSettings
from batchyard.shadow.steps import LifecycleCheck


class Followers:
    """The followers by cohort tree, the objects that affect all trees, and the lifecycle check."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        terms: ShadowSettings,
        report: Callable[[Divergence], None],
        knows: Callable[[Instant], bool],
    ) -> None:
        """`knows` reports whether all changes before an instant have arrived; if not, it is asked again later."""
        self._new = partial(TreeFollower, policy, terms, report, knows)
        self._steps = LifecycleCheck(terms, knows)
        self._held_back = terms.held_back
        self._patience = terms.patience
        self._report = report
        self._trees = CohortTrees()
        self._followers: dict[int, TreeFollower] = {}
        #: Objects that affect all trees.
        self._shared: dict[Key, WatchEvent] = {}
        #: Trees that may have split, each with the time since when.
        self._may_part: dict[int, Instant] = {}
        #: The batching time found by earlier followers; new followers start with it.
        self._gathers = terms.gathers
        #: The counts of removed followers.
        self._past = ComparisonCounts()
        self._past_reordered = 0

    @property
    def counts(self) -> ComparisonCounts:
        """The counts of the comparison so far."""
        counts = self._past.plus(self._steps.counts)
        for follower in self._followers.values():
            counts = counts.plus(follower.counts)
        return counts

    @property
    def waiting(self) -> int:
        """The number of changes that are not yet compared."""
        return sum(follower.waiting for follower in self._followers.values())

    @property
    def reordered(self) -> int:
        """How often another order made both agree."""
        return self._past_reordered + sum(follower.reordered for follower in self._followers.values())

    @property
    def trees(self) -> int:
        """The number of trees."""
        return len(self._followers)

    def recall(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Restart with these objects, at the start or after a gap in a watch; they contain no decision to compare."""
        if self._held_back is not None:
            self._held_back.recall(_workloads(events), now)
        missed: dict[str, Signature] = {}
        for tree in list(self._followers):
            follower = self._remove(tree)
            missed |= follower.missed
            self._past.unseen += follower.undecided
        self._trees = CohortTrees()
        self._steps.recall(events, now)
        self._shared = {event.key: event for event in events if not nodes_of(event.key, event.obj)}
        self._begin(events, missed, now)

    def unseen(self, count: int) -> None:
        """Count decisions that are not compared."""
        self._past.unseen += count

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Process changes of one kind in order of arrival; none if only time has passed or a watch has caught up."""
        if self._held_back is not None:
            self._held_back.observe(_workloads(events), now)
        given = self._given(events, now)
        for tree, follower in list(self._followers.items()):
            if tree in given or follower.is_due(now):
                follower.observe(given.get(tree, ()), now)
                self._split_if_parted(tree, now)
        for finding in self._steps.observe(events, now):
            self._report(finding)

    def next_look(self) -> Instant | None:
        """Return the time of the next check if no change comes before."""
        times = (self._steps.next_look(), *(follower.look_at for follower in self._followers.values()))
        return min((time for time in times if time is not None), default=None)

    def _given(self, events: Sequence[WatchEvent], now: Instant) -> dict[int, Sequence[WatchEvent]]:
        """Group changes by tree, joining trees and adding followers as needed."""
        if events and not nodes_of(events[0].key, events[0].obj):
            self._note(events)
            return dict.fromkeys(self._followers, events)
        given: dict[int, list[WatchEvent]] = {}
        for event in events:
            tree, others = self._trees.join(nodes_of(event.key, event.obj))
            for other in others:
                given.setdefault(tree, []).extend(given.pop(other, ()))
                self._join(other, tree, now)
            if tree not in self._followers:
                self._followers[tree] = self._begun((), {}, now)
            if may_split(event):
                self._may_part[tree] = now
            given.setdefault(tree, []).append(event)
        return {**given}

    def _note(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            self._shared.pop(event.key, None)
            if event.type is not EventType.DELETED:
                self._shared[event.key] = event._replace(type=EventType.ADDED, old=None)

    def _begin(self, events: Sequence[WatchEvent], missed: dict[str, Signature], now: Instant) -> None:
        """Add a follower for each tree of these objects."""
        for tree, own in group_by_tree(events, self._trees).items():
            self._followers[tree] = self._begun(own, missed, now)

    def _begun(self, own: Sequence[WatchEvent], missed: dict[str, Signature], now: Instant) -> TreeFollower:
        follower = self._new()
        follower.gathers = self._gathers
        follower.recall([*self._shared.values(), *own], missed, now)
        return follower

    def _join(self, part: int, tree: int, now: Instant) -> None:
        """Merge the follower of one tree into that of another."""
        if part in self._may_part:
            self._may_part[tree] = now
        self._followers[tree].take_over(self._remove(part), now)

    def _split_if_parted(self, tree: int, now: Instant) -> None:
        """Replace a follower by one for each part of its tree, if the tree has split and no change is pending."""
        since, follower = self._may_part.get(tree), self._followers[tree]
        if since is None or now - since < self._patience or not follower.is_level:
            return
        del self._may_part[tree]
        own = follower.shown()
        if len(group_by_tree(own, CohortTrees())) != 1:
            self._remove(tree)
            self._trees.forget(tree)
            self._begin(own, follower.missed, now)

    def _remove(self, tree: int) -> TreeFollower:
        """Remove and return the follower of a tree; keep its counts."""
        follower = self._followers.pop(tree)
        self._may_part.pop(tree, None)
        self._past = self._past.plus(follower.counts)
        self._past_reordered += follower.reordered
        self._gathers = follower.gathers
        return follower


def _workloads(events: Sequence[WatchEvent]) -> list[WatchEvent]:
    return [event for event in events if event.key.kind == scheme.WORKLOAD]
