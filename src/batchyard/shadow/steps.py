"""Lifecycle check: evictions and requeues that follow from specs, queues and checks, without any scheduling.

Our Workload controller computes what it would do for a Workload, given the current objects. If Kueue has not done it
within `patience`, a finding reports that. If Kueue evicts for a reason that the objects show, our controller must evict
too, given the state after `settle`. The same holds for a requeue within `patience`. Actions that depend on Kueue's own
settings, such as the PodsReady timeout, are not checked. The messages of Kueue's decisions are compared with what it
did (`contradictions`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, is_true
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType, where_to_look
from batchyard.shadow.state import ShadowSettings

# --- contradictions ---
#
# Compare the messages that Kueue writes for a decision with the decision itself. No check depends on the order of
# changes.
#
# Sources: Kueue's pkg/scheduler/preemption (HumanReadablePreemptionReasons), pkg/workload (SetQuotaReservation,
# UpdateRequeueState).


_RESERVED: Final = "Quota reserved in ClusterQueue "
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
    lifecycle.REQUEUED: ("queued again", DivergenceType.REQUEUED),
}
#: Conditions that become True, and the action that each stands for.
_DONE: Final = {
    lifecycle.EVICTED: "evict it",
    lifecycle.REQUEUED: "queue it again",
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
        if requeued is not None and requeued["status"] == "True" and _may_be_missed(old, lifecycle.REQUEUED):
            # Kueue's clock may differ from the local one.
            due = now + self._terms.patience
            self._claimed[event.key, lifecycle.REQUEUED] = _Transition(old, str(requeued["reason"]), now, due)

    def _unfounded(self, now: Instant) -> Iterator[Divergence]:
        """Yield evictions and requeues for which our controller finds no reason."""
        for (key, kind), seen in list(self._claimed.items()):
            wanted = self._asked(key, now, seen.before).get(kind)
            if wanted == seen.reason or (wanted is not None and kind == lifecycle.REQUEUED):
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
    if kind != lifecycle.REQUEUED:
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
