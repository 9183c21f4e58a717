"""Kueue's observed decisions: extracts them from watch events, and matches them with those of batchyard's scheduler.

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
from batchyard.scheduling.messages import parse_preemptor_uid
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.pending_reason import SCHEDULER_REASONS

#: Parts of Kueue's message for a head that waits for its victims or for the victims of other Workloads.
_WAITING_FOR_VICTIMS_TEXTS: Final = ("Pending the preemption of", "will fit after these preemptions complete")
#: The beginnings of Kueue's messages for a head without flavors.
_NO_FLAVOR_TEXTS: Final = ("couldn't assign flavors", "failed to assign flavors")

#: All fields of a Workload that affect decisions.
_DECISION_FIELDS: Final = attrgetter(
    *("generation", "shape", "queue", "queued", "active", "evicted", "finished", "admissible", "has_failed_check"),
    *("requeue_blocked", "requeue_at", "quota_reserved", "admitted", "cluster_queue", "reserved_at"),
    "admitted_pod_sets",
)

#: For each pod set its name, its pod count, and the flavor of each resource.
PodSets: TypeAlias = tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...]


class ObservedAdmission(NamedTuple):
    """A quota reservation that Kueue made for a Workload."""

    workload: str
    queue: str
    pod_sets: PodSets


class ObservedPreemption(NamedTuple):
    """An eviction that Kueue made of one Workload for another one, the preemptor, which is identified by its uid."""

    workload: str
    reason: str
    preemptor_uid: str


KueueDecision: TypeAlias = ObservedAdmission | ObservedPreemption


class ObservedChange(NamedTuple):
    """A watch event, with the admission or preemption by Kueue that it shows, if any."""

    event: WatchEvent
    decision: KueueDecision | None = None
    #: Whether quota was released and reserved again between two watch events: the decision is unknown.
    is_unseen: bool = False
    #: Whether the change affects no decision, such as pod readiness: its order does not matter.
    is_idle: bool = False


def split_event(event: WatchEvent) -> Iterator[ObservedChange]:
    """Split a watch event into changes of which each shows at most one admission or preemption by Kueue."""
    if event.key.kind != scheme.WORKLOAD or event.type is EventType.DELETED:
        yield ObservedChange(event)
        return
    view = workload_view(event.obj)
    old_view = None if event.old is None else workload_view(event.old)
    if old_view is None and view.quota_reserved:
        pending_obj = {field: value for field, value in event.obj.items() if field != "status"}
        yield ObservedChange(event._replace(obj=pending_obj))
        event, old_view = event._replace(type=EventType.MODIFIED, old=pending_obj), workload_view(pending_obj)
    if old_view is None:
        yield ObservedChange(event)
    elif view.quota_reserved and not old_view.quota_reserved:
        yield ObservedChange(event, observed_admission(view))
    elif view.finished or old_view.finished:
        # An eviction that is written too late releases nothing, though it may reset Finished at first.
        yield ObservedChange(event)
    elif view.evicted and not old_view.evicted and (preemption := observed_preemption(event.obj, view)) is not None:
        yield ObservedChange(event, preemption)
    else:
        yield ObservedChange(event, None, _was_readmitted(view, old_view), _affects_no_decision(event, view, old_view))


def observed_admission(view: WorkloadView) -> ObservedAdmission:
    """Return the quota reservation in a Workload's status as Kueue's decision."""
    pod_sets = ((each.name, each.pods, tuple(sorted(each.flavors.items()))) for each in view.admitted_pod_sets)
    return ObservedAdmission(view.key, view.cluster_queue, tuple(sorted(pod_sets)))


def predicted_admission(decision: Admit) -> ObservedAdmission:
    """Return the quota reservation that Kueue would write for an admission by batchyard's scheduler."""
    pod_sets = (
        (each.name, each.count, tuple(sorted((resource, choice.flavor) for resource, choice in each.choices.items())))
        for each in decision.assignment.pod_sets
    )
    return ObservedAdmission(decision.head.workload.key, decision.queue.name, tuple(sorted(pod_sets)))


def observed_preemption(obj: Obj, view: WorkloadView) -> ObservedPreemption | None:
    """Return the preemption in a Workload's conditions; None unless the Workload was evicted by preemption."""
    eviction, preemption = find_condition(obj, lifecycle.EVICTED), find_condition(obj, lifecycle.PREEMPTED)
    if eviction is None or eviction["reason"] != evictions.EVICTED_BY_PREEMPTION or preemption is None:
        return None
    preemptor_uid = parse_preemptor_uid(str(preemption.get("message") or eviction.get("message") or ""))
    return ObservedPreemption(view.key, str(preemption["reason"]), preemptor_uid)


def _affects_no_decision(event: WatchEvent, view: WorkloadView, old_view: WorkloadView) -> bool:
    is_new_message = waits_for_victims(event.obj) and not waits_for_victims(event.old or {})
    return not is_new_message and _DECISION_FIELDS(view) == _DECISION_FIELDS(old_view)


def waits_for_victims(obj: Obj) -> bool | None:
    """Return whether a Workload waits for preemption victims, by Kueue's message.

    None if the Workload has quota, or if its status has no message from the scheduler.
    """
    quota_condition = find_condition(obj, lifecycle.QUOTA_RESERVED)
    if quota_condition is None or quota_condition["status"] == "True":
        return None
    message = quota_condition.get("message") or ""
    if any(text in message for text in _WAITING_FOR_VICTIMS_TEXTS):
        return True
    is_pending_reason = quota_condition["reason"] in SCHEDULER_REASONS or message.startswith(_NO_FLAVOR_TEXTS)
    return False if is_pending_reason else None


def _was_readmitted(view: WorkloadView, old_view: WorkloadView) -> bool:
    has_quota = view.quota_reserved and old_view.quota_reserved
    return has_quota and (view.reserved_at != old_view.reserved_at or view.cluster_queue != old_view.cluster_queue)


# Changes that the model has not processed yet, in the order of arrival. The changes of one object stay in order.


@dataclass(slots=True, eq=False)
class PendingChange:
    """A change of an API object that batchyard's scheduler has not processed yet."""

    change: ObservedChange
    arrived_at: Instant

    @property
    def key(self) -> Key:
        """The kind, namespace and name of the changed object."""
        return self.change.event.key


class ChangeBacklog:
    """The changes that batchyard's scheduler has not processed yet, numbered in the order of arrival."""

    def __init__(self) -> None:
        self.items: dict[int, PendingChange] = {}
        #: Numbers of the changes with a decision.
        self.decision_numbers: dict[int, None] = {}
        self._last_number = 0
        self._numbers_by_key: dict[Key, deque[int]] = {}

    def add(self, change: ObservedChange, now: Instant) -> None:
        """Append a change that arrived at `now` to the backlog."""
        self._last_number += 1
        self.items[self._last_number] = PendingChange(change, now)
        self._numbers_by_key.setdefault(change.event.key, deque()).append(self._last_number)
        if change.decision is not None:
            self.decision_numbers[self._last_number] = None

    @property
    def uncompared_decision_count(self) -> int:
        """The number of Kueue's decisions in the backlog, including those whose details are unknown."""
        return sum(pending.change.decision is not None or pending.change.is_unseen for pending in self.items.values())

    def take(self, change_number: int) -> PendingChange:
        """Remove the change with this number from the backlog and return it."""
        pending_change = self.items.pop(change_number)
        self.decision_numbers.pop(change_number, None)
        change_numbers = self._numbers_by_key[pending_change.key]
        change_numbers.remove(change_number)
        if not change_numbers:
            del self._numbers_by_key[pending_change.key]
        return pending_change

    def first_decision_of(self, workload: str) -> int | None:
        """Return the backlog number of a Workload's first change if it is a decision of Kueue; otherwise None.

        Idle changes, which affect no decision, are skipped.
        """
        change_number = self._first_relevant_change(Key(scheme.WORKLOAD, *workload.split("/", 1)))
        return change_number if change_number in self.decision_numbers else None

    def is_first_of_object(self, change_number: int) -> bool:
        """Return whether a change is its object's first in the backlog that is not idle (may affect decisions)."""
        return self._first_relevant_change(self.items[change_number].key) == change_number

    def earlier_changes(self, change_number: int) -> list[int]:
        """Return the numbers of the earlier changes of the same object in the backlog, in order."""
        return [each for each in self._numbers_by_key[self.items[change_number].key] if each < change_number]

    def _first_relevant_change(self, key: Key) -> int | None:
        change_numbers = self._numbers_by_key.get(key, ())
        return next((number for number in change_numbers if not self.items[number].change.is_idle), None)

    def first_decisions(self) -> Iterator[int]:
        """Yield the backlog numbers of those decisions of Kueue that are the first backlog change of their Workload.

        Idle changes, which do not affect the scheduler, do not count.
        """
        return (number for number in list(self.decision_numbers) if self.is_first_of_object(number))

    def evictions_for(self, uid: str) -> dict[int, ObservedPreemption]:
        """Return, by backlog number, the evictions among `first_decisions()` for the preemptor with this uid."""
        evictions: dict[int, ObservedPreemption] = {}
        for number in self.first_decisions():
            decision = self.items[number].change.decision
            if isinstance(decision, ObservedPreemption) and decision.preemptor_uid == uid:
                evictions[number] = decision
        return evictions


# Two preemptions count as equal if their victims are equal in every field that both schedulers compare.
#
# Kueue's memory holds reservation times with full precision; the objects hold whole seconds, and uids break ties. So
# either of two Workloads in one queue with equal priority and usage, reserved within a second, may be the victim.
# Source: Kueue's pkg/scheduler/preemption/common (CandidatesOrdering).


#: The maximum difference between two reservation times that count as equal.
_RESERVATION_TOLERANCE: Final = SECOND


def match_equivalent_victims(
    decision: Preempt, evictions: Mapping[int, ObservedPreemption], snapshot: Snapshot
) -> Sequence[int] | None:
    """Return the backlog numbers of `evictions` if they match the predicted evictions one to one; otherwise None.

    Two evictions match if they have the same reason and the same victim, or equivalent victims.
    """
    predicted_targets = {each.workload.key: each for each in decision.targets if not each.workload.evicted}
    if len(evictions) != len(predicted_targets):
        return None
    other_evictions = {
        number: each for number, each in evictions.items() if not _remove_predicted_target(each, predicted_targets)
    }
    for eviction in other_evictions.values():
        victim = snapshot.holder(eviction.workload)
        equivalent_key = next(
            (
                key
                for key, each in predicted_targets.items()
                if victim is not None and are_equivalent_victims(each.workload, victim)
            ),
            None,
        )
        if equivalent_key is None or predicted_targets.pop(equivalent_key).reason != eviction.reason:
            return None
    return tuple(evictions)


def _remove_predicted_target(eviction: ObservedPreemption, predicted_targets: dict[str, PreemptionTarget]) -> bool:
    target = predicted_targets.get(eviction.workload)
    if target is None or target.reason != eviction.reason:
        return False
    del predicted_targets[eviction.workload]
    return True


def are_equivalent_victims(victim: AdmittedWorkload, other_victim: AdmittedWorkload) -> bool:
    """Return whether Kueue may choose either of two victims: the fields that order them are equal, or nearly so."""
    return (
        victim.queue is other_victim.queue
        and victim.priority == other_victim.priority
        and victim.usage == other_victim.usage
        and victim.evicted == other_victim.evicted
        and abs(victim.reserved_at - other_victim.reserved_at) <= _RESERVATION_TOLERANCE
    )


Signature: TypeAlias = tuple[object, ...]


def matching_changes(decision: Decision, backlog: ChangeBacklog, snapshot: Snapshot) -> Sequence[int] | None:
    """Return the backlog numbers of Kueue's changes that carry out a predicted decision.

    None if a change is missing, or if the decision is to leave the Workload pending.
    """
    if isinstance(decision, Admit):
        change_number = backlog.first_decision_of(decision.head.workload.key)
        if change_number is not None and backlog.items[change_number].change.decision == predicted_admission(decision):
            return (change_number,)
        return None
    if not isinstance(decision, Preempt):
        return None
    change_numbers: list[int] = []
    for target in decision.targets:
        if target.workload.evicted:
            continue
        change_number = backlog.first_decision_of(target.workload.key)
        expected_eviction = ObservedPreemption(target.workload.key, target.reason, decision.head.workload.uid)
        if change_number is None or backlog.items[change_number].change.decision != expected_eviction:
            return match_equivalent_victims(decision, backlog.evictions_for(decision.head.workload.uid), snapshot)
        change_numbers.append(change_number)
    return change_numbers


def signature_of(decision: Decision) -> Signature:
    """Return the identity of a scheduling decision: a hashable value that stays the same in later cycles."""
    if isinstance(decision, Admit):
        return ("admit", *predicted_admission(decision))
    target_keys = [each.workload.key for each in decision.targets] if isinstance(decision, Preempt) else []
    return ("preempt", decision.head.workload.key, *target_keys)


def is_effective(decision: Decision) -> bool:
    """Return whether a scheduling decision admits a Workload or evicts a victim that is not evicted yet."""
    if isinstance(decision, Preempt):
        return not all(target.workload.evicted for target in decision.targets)
    return isinstance(decision, Admit)
