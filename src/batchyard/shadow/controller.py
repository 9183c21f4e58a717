"""Shadow controller: feeds watch events to the followers after the initial list, and schedules their checks.

A watch that restarts with a list has a gap: the changes meanwhile and their order are unknown. A kind that is listed
before other kinds are complete has one too. After a gap, the followers restart with the current objects.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, is_true
from batchyard.base.instant import Instant
from batchyard.client.informer import Informer
from batchyard.client.rest import RestClient, StalenessCheck
from batchyard.client.transport import Transport
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import Kernel, ReconcileResult, Ticket
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType, where_to_look
from batchyard.shadow.follower import CohortTrees, TreeFollower, group_by_tree, may_split, nodes_of
from batchyard.shadow.observed import Signature, changes_of
from batchyard.shadow.state import ShadowSettings

# --- contradictions ---
#
# Compare the messages that Kueue writes for a decision with the decision itself. No check depends on the order of
# changes.
#
# Sources: Kueue's pkg/scheduler/preemption (HumanReadablePreemptionReasons), pkg/workload (SetQuotaReservation,
# UpdateRequeueState).


_RESERVED: Final = "Quota reserved in ClusterQueue "
# --- steps ---
#
# Lifecycle check: evictions and requeues that follow from specs, queues and checks, without any scheduling.
#
# Our Workload controller computes what it would do for a Workload, given the current objects. If Kueue has not done it
# within `patience`, a finding reports that. If Kueue evicts for a reason that the objects show, our controller must
# evict too, given the state after `settle`. The same holds for a requeue within `patience`. Actions that depend on
# Kueue's own settings, such as the PodsReady timeout, are not checked. The messages of Kueue's decisions are compared
# with what it did (`contradictions`).


_DUE_TO: Final = " due to "


class Contradiction(NamedTuple):
    """The text that Kueue wrote, and the correct one."""

    parting: DivergenceType
    written: str
    true: str


def contradictions(event: WatchEvent) -> Iterator[Contradiction]:
    """Yield the statements in a change of a Workload that contradict its fields."""
    if event.old is None or event.type is EventType.DELETED:
        return
    for kind, check in ((lifecycle.PREEMPTED, _preempted), (lifecycle.QUOTA_RESERVED, _reserved)):
        condition = find_condition(event.obj, kind)
        if condition is not None and condition["status"] == "True" and not is_true(event.old, kind):
            yield from check(event.obj, condition)
    yield from _counted(event.obj, event.old)


def _preempted(_obj: Obj, condition: Obj) -> Iterator[Contradiction]:
    words = PreemptionReason.WORDS.get(condition["reason"], "")
    written = str(condition.get("message") or "").partition(_DUE_TO)[2].partition(";")[0].strip()
    if words and written and written != words:
        yield Contradiction(
            DivergenceType.MESSAGE, f"preempted due to {written}", f"for {condition['reason']}, that is {words}"
        )


def _reserved(obj: Obj, condition: Obj) -> Iterator[Contradiction]:
    queue = ((obj.get("status") or {}).get("admission") or {}).get("clusterQueue")
    message = str(condition.get("message") or "")
    if queue and message.startswith(_RESERVED) and message.removeprefix(_RESERVED).split(",")[0] != queue:
        yield Contradiction(DivergenceType.MESSAGE, message, f"its admission is in {queue}")


def _counted(obj: Obj, old: Obj) -> Iterator[Contradiction]:
    before, now = _count(old), _count(obj)
    if now and now not in (before, before + 1):
        written = f"requeueState.count goes from {before} to {now}"
        yield Contradiction(DivergenceType.REQUEUED, written, "it grows by one with each counted eviction, or is reset")


def _count(obj: Obj) -> int:
    return int(((obj.get("status") or {}).get("requeueState") or {}).get("count") or 0)


#: Eviction reasons that follow from objects alone.
_OBJECT_EVICTIONS: Final = (
    lifecycle.EVICTED_BY_CLUSTER_QUEUE_STOPPED,
    lifecycle.EVICTED_BY_LOCAL_QUEUE_STOPPED,
    lifecycle.DEACTIVATED,
)
#: Conditions that our controller would also set to True: the verb for a message, and the divergence type.
_CLAIMS: Final = {
    lifecycle.EVICTED: ("evicted", DivergenceType.EVICTED),
    evictions.REQUEUED: ("queued again", DivergenceType.REQUEUED),
}
#: Conditions that become True, and the action that each stands for.
_DONE: Final = {
    lifecycle.EVICTED: "evict it",
    evictions.REQUEUED: "queue it again",
    lifecycle.ADMITTED: "admit it, for its checks are passed",
}


class _Transition(NamedTuple):
    """A condition that became True: the Workload before, the reason, the arrival time, our controller's deadline."""

    before: Obj
    reason: str
    came: Instant
    due: Instant


@dataclass(slots=True)
class CurrentObjects:
    """The current objects, as the reader for our Workload controller."""

    objects: dict[Key, Obj] = field(default_factory=dict)
    #: At most one object in its earlier state; it takes precedence over `objects`.
    instead: dict[Key, Obj] = field(default_factory=dict)

    def get(self, key: Key) -> Obj | None:
        """Return an object, or None."""
        return self.instead.get(key) or self.objects.get(key)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return nothing: the Workload controller does not call this."""
        del uid, namespace
        return ()

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return nothing: the Workload controller does not call this."""
        del kind, namespace
        return ()


class LifecycleCheck:
    """Compares Kueue's evictions and requeues with those of our Workload controller."""

    def __init__(self, terms: ShadowSettings, knows: Callable[[Instant], bool]) -> None:
        """`knows` reports whether all changes before an instant have arrived; if not, it is asked again later."""
        self.counts = ComparisonCounts()
        self._terms = terms
        self._knows = knows
        self._now: Instant = 0
        self._seen = CurrentObjects()
        self._ours = WorkloadLifecycle()
        #: Workloads to check, each with the time of the check.
        self._due: dict[Key, Instant] = {}
        #: Workloads on which our controller would act: the actions as text, and the time since when.
        self._wanted: dict[Key, tuple[str, Instant]] = {}
        #: Evictions and requeues that Kueue wrote, by Workload and condition.
        self._claimed: dict[tuple[Key, str], _Transition] = {}
        self._contradicted: list[Divergence] = []
        #: The actions reported as not done, by Workload.
        self._reported: dict[Key, str] = {}

    def recall(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Restart from the given objects; drop all earlier state."""
        for table in (self._seen.objects, self._due, self._wanted, self._claimed):
            table.clear()
        for event in events:
            self._note(event, now)

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> Iterator[Divergence]:
        """Process changes, and yield the findings that are due by now."""
        self._now = now
        for event in events:
            self._note(event, now)
        contradicted, self._contradicted = self._contradicted, []
        yield from contradicted
        yield from self._unfounded(now)
        yield from self._undone(now)

    def next_look(self) -> Instant | None:
        """Return the time of the next check if no change comes before."""
        times = [*self._due.values(), *(each.due for each in self._claimed.values())]
        return min((time for time in times if time > self._now), default=None)

    def _note(self, event: WatchEvent, now: Instant) -> None:
        if event.type is EventType.DELETED:
            for table in (self._seen.objects, self._due, self._wanted, self._reported):
                table.pop(event.key, None)
            for kind in _CLAIMS:
                self._claimed.pop((event.key, kind), None)
        else:
            self._seen.objects[event.key] = event.obj
        if event.key.kind == scheme.WORKLOAD and event.old is not None and event.type is not EventType.DELETED:
            self._note_claims(event, event.old, now)
            self._contradicted += [self._contradiction(event.key, each, now) for each in contradictions(event)]
        if event.key.kind in self._ours.kinds:
            for key in self._ours.keys_for(event, now):
                self._due[key] = now
            if event.key in self._wanted:
                self._due[event.key] = now

    def _note_claims(self, event: WatchEvent, old: Obj, now: Instant) -> None:
        evicted, requeued = (find_condition(event.obj, kind) for kind in _CLAIMS)
        is_new = evicted is not None and evicted["status"] == "True" and not is_true(old, lifecycle.EVICTED)
        if evicted is not None and is_new and evicted["reason"] in _OBJECT_EVICTIONS:
            due = now + self._terms.settle
            self._claimed[event.key, lifecycle.EVICTED] = _Transition(old, str(evicted["reason"]), now, due)
        if requeued is not None and requeued["status"] == "True" and _may_be_missed(old, evictions.REQUEUED):
            # Kueue's clock may differ from the local one.
            due = now + self._terms.patience
            self._claimed[event.key, evictions.REQUEUED] = _Transition(old, str(requeued["reason"]), now, due)

    def _unfounded(self, now: Instant) -> Iterator[Divergence]:
        """Yield evictions and requeues for which our controller finds no reason."""
        for (key, kind), seen in list(self._claimed.items()):
            wanted = self._asked(key, now, seen.before).get(kind)
            if wanted == seen.reason or (wanted is not None and kind == evictions.REQUEUED):
                del self._claimed[key, kind]
                if kind == lifecycle.EVICTED:
                    self.counts.agreed["eviction"] = self.counts.agreed.get("eviction", 0) + 1
            elif now >= seen.due and self._knows(seen.due):
                del self._claimed[key, kind]
                did, parting = _CLAIMS[kind]
                ours = "we leave it" if wanted is None else f"we evict it for {wanted}"
                ours += self._standing(key)
                theirs = {"decision": did, "reason": seen.reason}
                message = f"{did} for {seen.reason}; {ours}"
                yield self._finding(parting, seen.came, key, message, theirs, {"decision": ours})

    def _standing(self, key: Key) -> str:
        """Describe the fields that decide an eviction or a requeue."""
        workload = self._seen.objects.get(key)
        local = workload and self._seen.get(
            Key(scheme.LOCAL_QUEUE, key.namespace, str(workload["spec"].get("queueName")))
        )
        queue = local and self._seen.get(Key(scheme.CLUSTER_QUEUE, "", str(local["spec"]["clusterQueue"])))
        if not workload or not local or not queue:
            return ": its queue does not exist"
        stops = (
            f"{obj['kind']} {obj['metadata']['name']}: {obj['spec'].get('stopPolicy') or 'None'}"
            for obj in (local, queue)
        )
        until = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
        waits = f", it is to wait until {until}" if until else ""
        return (
            f": it is {'active' if workload['spec'].get('active', True) else 'not active'}, {', '.join(stops)}{waits}"
        )

    def _undone(self, now: Instant) -> Iterator[Divergence]:
        """Yield the actions that our controller would have taken long ago."""
        for key in [key for key, when in self._due.items() if when <= now]:
            del self._due[key]
            wanted = self._asked(key, now)
            actions = ", ".join(f"{_DONE[kind]} ({reason})" for kind, reason in wanted.items())
            before, since = self._wanted.pop(key, ("", now))
            if not actions or self._reported.get(key) == actions:
                continue
            since = since if before == actions else now
            due = since + self._terms.patience
            if now < due or not self._knows(due):
                self._wanted[key] = actions, since
                self._due[key] = due
                continue
            self._reported[key] = actions
            ours = {"decision": "; ".join(_DONE[kind] for kind in wanted), "reasons": list(wanted.values())}
            message = f"left as it is; we {actions}{self._standing(key)}"
            yield self._finding(DivergenceType.NOT_DONE, since, key, message, {"decision": "none"}, ours)

    def _asked(self, key: Key, now: Instant, before: Obj | None = None) -> dict[str, str]:
        """Return what our controller would do: the conditions that it would set to True, each with its reason."""
        workload = self._seen.objects.get(key) if before is None else before
        if workload is None:
            return {}
        if before is not None:
            current = self._seen.objects.get(key) or before
            self._seen.instead[key] = {**before, "spec": current["spec"]}
        outcome: ReconcileResult = self._ours.reconcile(key, self._seen, now)
        self._seen.instead.clear()
        if outcome.requeue_at is not None and before is None:
            self._due[key] = max(outcome.requeue_at, now + 1)
        written = [write.obj for write in outcome.writes if isinstance(write, UpdateStatus)]
        found: dict[str, str] = {}
        for kind in _DONE if written and before is None else _CLAIMS if written else ():
            if before is None and not _may_be_missed(workload, kind):
                continue
            condition = find_condition(written[-1], kind)
            if condition is not None and condition["status"] == "True" and not is_true(workload, kind):
                found[kind] = str(condition["reason"])
        return found

    def _contradiction(self, key: Key, found: Contradiction, now: Instant) -> Divergence:
        message = f"it says: {found.written}; {found.true}"
        return self._finding(found.parting, now, key, message, {"message": found.written}, {"message": found.true})

    def _finding(
        self, parting: DivergenceType, since: Instant, key: Key, message: str, *documents: Mapping[str, object]
    ) -> Divergence:
        self.counts.parted[parting.value] = self.counts.parted.get(parting.value, 0) + 1
        theirs, ours = documents
        look = where_to_look(parting, str(key), "", since)
        return Divergence(parting, self._now, str(key), message, theirs, ours, since=since, look=look)


def _may_be_missed(workload: Obj, kind: str) -> bool:
    """Report whether it has an effect that a condition does not become True."""
    if kind == lifecycle.EVICTED:
        return is_true(workload, lifecycle.QUOTA_RESERVED)  # else it holds no quota that could be released
    if kind != evictions.REQUEUED:
        return True
    before = find_condition(workload, kind)
    return before is not None and before["status"] == "False" and not _is_stuck(before["reason"])


def _is_stuck(reason: str) -> bool:
    """Report whether Kueue keeps Requeued=False with this reason although the Workload is active again.

    Kueue matches Deactivated alone and not reasons with a suffix. So a Workload deactivated by a rejected check is
    never requeued.
    Source: Reconcile in pkg/controller/core/workload_controller.go of Kueue.
    """
    return reason.startswith(lifecycle.DEACTIVATED) and reason != lifecycle.DEACTIVATED


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
