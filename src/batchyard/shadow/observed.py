"""Observed decisions: extracts Kueue's decisions from changes of Workloads, and matches them with those of the model.

A quota reservation and an eviction for a preemptor are decisions; all other changes are inputs. A Workload that already
holds quota when first seen yields two changes: its creation without quota, and the reservation.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.decisions import Admit, Decision, Preempt
from batchyard.scheduling.messages import preemptor_uid_of
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.pending_reason import VERDICTS

#: Parts of Kueue's message for a head that waits for its victims, and for one that fits once victims of others are
#: gone.
_FOR_VICTIMS: Final = ("Pending the preemption of", "will fit after these preemptions complete")

#: All fields of a Workload that affect decisions.
_ALL_THAT_MATTERS: Final = attrgetter(
    *("generation", "shape", "queue", "queued", "active", "evicted", "finished", "admissible", "has_failed_check"),
    *("requeue_blocked", "requeue_at", "quota_reserved", "admitted", "cluster_queue", "reserved_at", "holdings"),
)

#: For each pod set its name, its pod count, and the flavor of each resource.
PodSets: TypeAlias = tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...]


class ObservedAdmission(NamedTuple):
    """A quota reservation for a Workload."""

    workload: str
    queue: str
    pod_sets: PodSets


class ObservedPreemption(NamedTuple):
    """An eviction of a Workload for a preemptor, identified by its uid."""

    workload: str
    reason: str
    by: str


Observed: TypeAlias = ObservedAdmission | ObservedPreemption


class ObservedChange(NamedTuple):
    """A change and the decision that it shows; None if it shows none."""

    event: WatchEvent
    decision: Observed | None = None
    #: Whether quota was released and reserved again between two watch events: the decision is unknown.
    is_unseen: bool = False
    #: Whether the change affects no decision, such as pod readiness: its order does not matter.
    is_idle: bool = False


def changes_of(event: WatchEvent) -> Iterator[ObservedChange]:
    """Split a watch event into changes with decisions."""
    if event.key.kind != scheme.WORKLOAD or event.type is EventType.DELETED:
        yield ObservedChange(event)
        return
    view = workload_view(event.obj)
    before = None if event.old is None else workload_view(event.old)
    if before is None and view.quota_reserved:
        bare = {field: value for field, value in event.obj.items() if field != "status"}
        yield ObservedChange(event._replace(obj=bare))
        event, before = event._replace(type=EventType.MODIFIED, old=bare), workload_view(bare)
    if before is None:
        yield ObservedChange(event)
    elif view.quota_reserved and not before.quota_reserved:
        yield ObservedChange(event, admitted_of(view))
    elif view.finished or before.finished:
        yield ObservedChange(
            event
        )  # an eviction written too late releases nothing, though it may reset Finished at first
    elif view.evicted and not before.evicted and (preempted := preempted_of(event.obj, view)) is not None:
        yield ObservedChange(event, preempted)
    else:
        yield ObservedChange(event, None, _was_readmitted(view, before), _is_idle(event, view, before))


def admitted_of(view: WorkloadView) -> ObservedAdmission:
    """Return the quota reservation that a Workload shows."""
    pod_sets = ((each.name, each.pods, tuple(sorted(each.flavors.items()))) for each in view.holdings)
    return ObservedAdmission(view.key, view.cluster_queue, tuple(sorted(pod_sets)))


def predicted_of(decision: Admit) -> ObservedAdmission:
    """Return the quota reservation that a decision of the model makes."""
    pod_sets = (
        (each.name, each.count, tuple(sorted((resource, choice.flavor) for resource, choice in each.choices.items())))
        for each in decision.assignment.pod_sets
    )
    return ObservedAdmission(decision.head.workload.key, decision.queue.name, tuple(sorted(pod_sets)))


def preempted_of(obj: Obj, view: WorkloadView) -> ObservedPreemption | None:
    """Return the preemption that a Workload shows; None if it was evicted for another reason."""
    evicted, preempted = find_condition(obj, lifecycle.EVICTED), find_condition(obj, lifecycle.PREEMPTED)
    if evicted is None or evicted["reason"] != evictions.EVICTED_BY_PREEMPTION or preempted is None:
        return None
    by = preemptor_uid_of(str(preempted.get("message") or evicted.get("message") or ""))
    return ObservedPreemption(view.key, str(preempted["reason"]), by)


def _is_idle(event: WatchEvent, view: WorkloadView, before: WorkloadView) -> bool:
    is_new_message = waits_for_victims(event.obj) and not waits_for_victims(event.old or {})
    return not is_new_message and _ALL_THAT_MATTERS(view) == _ALL_THAT_MATTERS(before)


def waits_for_victims(obj: Obj) -> bool | None:
    """Report whether Kueue's message says that a Workload waits for its victims; None if it gives no reason."""
    condition = find_condition(obj, lifecycle.QUOTA_RESERVED)
    if condition is None or condition["status"] == "True":
        return None
    message = condition.get("message") or ""
    if any(words in message for words in _FOR_VICTIMS):
        return True
    is_verdict = condition["reason"] in VERDICTS or message.startswith("couldn't assign flavors")
    return False if is_verdict else None


def _was_readmitted(view: WorkloadView, before: WorkloadView) -> bool:
    both = view.quota_reserved and before.quota_reserved
    return both and (view.reserved_at != before.reserved_at or view.cluster_queue != before.cluster_queue)


# --- backlog ---
#
# Changes that the model has not processed yet, in the order of arrival. The changes of one object stay in order.


@dataclass(slots=True, eq=False)
class PendingChange:
    """A change that the model has not processed yet."""

    change: ObservedChange
    came: Instant

    @property
    def key(self) -> Key:
        """The key of the changed object."""
        return self.change.event.key


class ChangeBacklog:
    """The pending changes by number of arrival."""

    def __init__(self) -> None:
        self.items: dict[int, PendingChange] = {}
        #: Numbers of the changes with a decision.
        self.decided: dict[int, None] = {}
        self._arrived = 0
        self._by_key: dict[Key, deque[int]] = {}

    def add(self, change: ObservedChange, now: Instant) -> None:
        """Add a change that arrived now."""
        self._arrived += 1
        self.items[self._arrived] = PendingChange(change, now)
        self._by_key.setdefault(change.event.key, deque()).append(self._arrived)
        if change.decision is not None:
            self.decided[self._arrived] = None

    @property
    def undecided(self) -> int:
        """The number of decisions that are not compared yet."""
        return sum(item.change.decision is not None or item.change.is_unseen for item in self.items.values())

    def take(self, number: int) -> PendingChange:
        """Remove and return a change that the model processes now."""
        item = self.items.pop(number)
        self.decided.pop(number, None)
        numbers = self._by_key[item.key]
        numbers.remove(number)
        if not numbers:
            del self._by_key[item.key]
        return item

    def front(self, workload: str) -> int | None:
        """Return the first relevant change of a Workload if it shows a decision; else None."""
        number = self._front(Key(scheme.WORKLOAD, *workload.split("/", 1)))
        return number if number in self.decided else None

    def is_front(self, number: int) -> bool:
        """Report whether a change is the first of its object that affects decisions."""
        return self._front(self.items[number].key) == number

    def before(self, number: int) -> list[int]:
        """Return the earlier pending changes of the same object."""
        return [each for each in self._by_key[self.items[number].key] if each < number]

    def _front(self, key: Key) -> int | None:
        numbers = self._by_key.get(key, ())
        return next((number for number in numbers if not self.items[number].change.is_idle), None)

    def fronts(self) -> Iterator[int]:
        """Yield the changes with a decision that are the first of their objects."""
        return (number for number in list(self.decided) if self.is_front(number))

    def evictions_for(self, uid: str) -> dict[int, ObservedPreemption]:
        """Return the evictions for the preemptor with that uid, by number."""
        found: dict[int, ObservedPreemption] = {}
        for number in self.fronts():
            preempted = self.items[number].change.decision
            if isinstance(preempted, ObservedPreemption) and preempted.by == uid:
                found[number] = preempted
        return found


# --- likeness ---
#
# Decisions that count as equal although they differ: their victims are equal in all that either scheduler compares.
#
# Kueue's memory holds reservation times with full precision; the objects hold whole seconds, and uids break ties. So of
# two Workloads in one queue, with the same priority and usage, reserved within a second, either may be the victim.
# Source: Kueue's pkg/scheduler/preemption/common (CandidatesOrdering).


#: The maximum difference of reservation times that may be equal.
_WITHIN: Final = SECOND


def swapped(decision: Preempt, seen: Mapping[int, ObservedPreemption], snapshot: Snapshot) -> Sequence[int] | None:
    """Return the observed evictions if they match the predicted ones up to equivalent victims; else None."""
    wanted = {each.workload.key: each for each in decision.targets if not each.workload.evicted}
    if len(seen) != len(wanted):
        return None
    left = {number: each for number, each in seen.items() if not _is_wanted(each, wanted)}
    for preempted in left.values():
        held = snapshot.holder(preempted.workload)
        found = next((key for key, each in wanted.items() if held is not None and are_alike(each.workload, held)), None)
        if found is None or wanted.pop(found).reason != preempted.reason:
            return None
    return tuple(seen)


def _is_wanted(preempted: ObservedPreemption, wanted: dict[str, PreemptionTarget]) -> bool:
    target = wanted.get(preempted.workload)
    if target is None or target.reason != preempted.reason:
        return False
    del wanted[preempted.workload]
    return True


def are_alike(one: AdmittedWorkload, other: AdmittedWorkload) -> bool:
    """Report whether two admitted Workloads are interchangeable as victims."""
    return (
        one.queue is other.queue
        and one.priority == other.priority
        and one.usage == other.usage
        and one.evicted == other.evicted
        and abs(one.reserved_at - other.reserved_at) <= _WITHIN
    )


# --- matching ---
#
# Match decisions of the model with changes by Kueue.


Signature: TypeAlias = tuple[object, ...]


def done(decision: Decision, backlog: ChangeBacklog, snapshot: Snapshot) -> Sequence[int] | None:
    """Return the changes by which Kueue did what the model decided; None if it has not done all of it."""
    if isinstance(decision, Admit):
        number = backlog.front(decision.head.workload.key)
        if number is not None and backlog.items[number].change.decision == predicted_of(decision):
            return (number,)
        return None
    if not isinstance(decision, Preempt):
        return None
    found: list[int] = []
    for target in decision.targets:
        if target.workload.evicted:
            continue
        number = backlog.front(target.workload.key)
        wanted = ObservedPreemption(target.workload.key, target.reason, decision.head.workload.uid)
        if number is None or backlog.items[number].change.decision != wanted:
            return swapped(decision, backlog.evictions_for(decision.head.workload.uid), snapshot)
        found.append(number)
    return found


def signature_of(decision: Decision) -> Signature:
    """Return a value that identifies a decision."""
    if isinstance(decision, Admit):
        return ("admit", *predicted_of(decision))
    targets = [each.workload.key for each in decision.targets] if isinstance(decision, Preempt) else []
    return ("preempt", decision.head.workload.key, *targets)


def is_effective(decision: Decision) -> bool:
    """Report whether a decision has a visible effect."""
    if isinstance(decision, Preempt):
        return not all(target.workload.evicted for target in decision.targets)
    return isinstance(decision, Admit)
