"""Shadow controller: feeds watch events to the followers after the initial list, and schedules their checks.

A watch that restarts with a list has a gap: the changes meanwhile and their order are unknown. A kind that is listed
before other kinds are complete has one too. After a gap, the followers restart with the current objects.
"""

from collections.abc import Callable, Sequence
from functools import partial

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.client.informer import Informer
from batchyard.client.rest import RestClient, StalenessCheck
from batchyard.client.transport import Transport
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import Kernel, Ticket
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.follower import CohortTrees, TreeFollower, group_by_tree, may_split, nodes_of
from batchyard.shadow.observed import Signature, changes_of
from batchyard.shadow.state import ShadowSettings
from batchyard.shadow.steps import LifecycleCheck

# --- followers ---
#
# One follower for each cohort tree: trees do not affect each other, so each has its own replay order.
#
# Kueue takes a head of every ClusterQueue into one cycle, across all trees. But a decision depends on its own tree
# alone (`nominate` and `processEntry` in pkg/scheduler/scheduler.go). If two trees join, for example because a Cohort
# gets a parent, the follower of the larger tree takes over. It processes the objects of the other follower, then its
# pending changes. If a tree splits, its follower keeps all parts until both schedulers agree. Then each part starts
# with a new follower and the current objects.


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
        self._requeue_batch_period = terms.requeue_batch_period
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
        follower.requeue_batch_period = self._requeue_batch_period
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
        self._requeue_batch_period = follower.requeue_batch_period
        return follower


def _workloads(events: Sequence[WatchEvent]) -> list[WatchEvent]:
    return [event for event in events if event.key.kind == scheme.WORKLOAD]


class ShadowController:
    """The followers and their clients. Informers must call `heard`; the controller does the rest."""

    def __init__(
        self,
        client: RestClient,
        transport: Transport,
        timers: Kernel,
        how: tuple[SchedulingPolicy, ShadowSettings],
        *,
        report: Callable[[Divergence], None],
    ) -> None:
        self._client = client
        self._timers = timers
        self._caught_up = StalenessCheck(client, transport, timers, self._look)
        self.followers = Followers(*how, report, self._knows)
        self.has_begun = False
        #: Whether it is stopped.
        self.is_over = False
        #: The highest revision of the initial lists.
        self._begun_at = 0
        #: The number of lists by kind.
        self._listings: dict[str, int] = {}
        self._wakes_at: Instant | None = None
        self._ticket: Ticket | None = None
        client.subscribe(self._observe)

    def heard(self, informer: Informer) -> None:
        """Process a report of an informer: a list or a watch event has arrived."""
        if self.is_over:
            return
        if not self.has_begun and self._client.is_synced:
            self.has_begun = True
            self._begin()
        self._listings[informer.info.constant] = informer.listings
        self._caught_up.heard(informer)

    def _begin(self) -> None:
        """Load the current objects as the initial state."""
        self._begun_at = max(informer.revision or 0 for informer in self._client.informers.values())
        self.followers.recall(self._client.everything(), self._timers.now())
        self._look()

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        if not self.has_begun or self.is_over:
            return
        if self._has_gap(events):
            self.followers.unseen(sum(each.decision is not None for event in events for each in changes_of(event)))
            self._begin()
        else:
            self.followers.observe(events, self._timers.now())
            self._wake_later()

    def _has_gap(self, events: Sequence[WatchEvent]) -> bool:
        """Report whether changes before these are missing; all of them are of one kind."""
        kind = events[0].key.kind
        is_listed = self._client.informers[kind].listings != self._listings.get(kind)
        return is_listed or any(event.revision <= self._begun_at for event in events)

    def _knows(self, instant: Instant) -> bool:
        if self._caught_up.known_to >= instant:
            return True
        self._caught_up.ask()
        return False

    def _look(self) -> None:
        if self.is_over:
            return
        self._ticket = None
        self.followers.observe((), self._timers.now())
        self._wake_later()

    def _wake_later(self) -> None:
        when = self.followers.next_look()
        if self._ticket is not None and self._wakes_at == when:
            return
        if self._ticket is not None:
            self._timers.cancel(self._ticket)
            self._ticket = None
        if when is not None:
            self._wakes_at = when
            self._ticket = self._timers.call_at(when, self._look)
