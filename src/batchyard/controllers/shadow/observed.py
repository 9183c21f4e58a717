"""What another scheduler decided, told from the changes of Workloads.

A reservation of quota and an eviction for a preemptor are decisions; whatever else changes is what decisions are made
upon. A Workload that is there with quota when it is seen first was made without: that is told as two changes.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.core.decisions import Admit
from batchyard.core.lifecycle import reasons as r
from batchyard.core.lifecycle.waiting import VERDICTS
from batchyard.core.reasons import preemptor_uid_of
from batchyard.ports.client import EventType, WatchEvent

#: What it says of one who waits for victims to go, and of one who will fit once those of others are gone.
_FOR_VICTIMS: Final = ("Pending the preemption of", "will fit after these preemptions complete")

#: All of a Workload that decisions go by.
_ALL_THAT_MATTERS: Final = attrgetter(
    *("generation", "shape", "queue", "queued", "active", "evicted", "finished", "admissible", "has_failed_check"),
    *("requeue_blocked", "requeue_at", "quota_reserved", "admitted", "cluster_queue", "reserved_at", "holdings"),
)

#: Of each pod set its name, how many pods, and the flavor of each resource.
PodSets: TypeAlias = tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...]


class Admitted(NamedTuple):
    """Quota is reserved for a Workload."""

    workload: str
    queue: str
    pod_sets: PodSets


class Preempted(NamedTuple):
    """A Workload is evicted for another, which is known by its uid."""

    workload: str
    reason: str
    by: str


Observed: TypeAlias = Admitted | Preempted


class Change(NamedTuple):
    """One change, and what was decided by it; None where that is nothing."""

    event: WatchEvent
    decision: Observed | None = None
    #: Whether quota was given and taken and given again unseen: it is not known what was decided.
    is_unseen: bool = False
    #: Whether it bears on no decision, as that pods are ready does: it may be seen before or after any.
    is_idle: bool = False


def changes_of(event: WatchEvent) -> Iterator[Change]:
    """What a watch event says."""
    if event.key.kind != scheme.WORKLOAD or event.type is EventType.DELETED:
        yield Change(event)
        return
    view = workload_view(event.obj)
    before = None if event.old is None else workload_view(event.old)
    if before is None and view.quota_reserved:
        bare = {field: value for field, value in event.obj.items() if field != "status"}
        yield Change(event._replace(obj=bare))
        event, before = event._replace(type=EventType.MODIFIED, old=bare), workload_view(bare)
    if before is None:
        yield Change(event)
    elif view.quota_reserved and not before.quota_reserved:
        yield Change(event, admitted_of(view))
    elif view.finished or before.finished:
        yield Change(event)  # an eviction that was written too late takes nothing, though it may undo the end at first
    elif view.evicted and not before.evicted and (preempted := preempted_of(event.obj, view)) is not None:
        yield Change(event, preempted)
    else:
        yield Change(event, None, _was_given_anew(view, before), _is_idle(event, view, before))


def admitted_of(view: WorkloadView) -> Admitted:
    """What quota a Workload has been given."""
    pod_sets = ((each.name, each.pods, tuple(sorted(each.flavors.items()))) for each in view.holdings)
    return Admitted(view.key, view.cluster_queue, tuple(sorted(pod_sets)))


def predicted_of(decision: Admit) -> Admitted:
    """The same of a decision of ours."""
    pod_sets = (
        (each.name, each.count, tuple(sorted((resource, choice.flavor) for resource, choice in each.choices.items())))
        for each in decision.assignment.pod_sets
    )
    return Admitted(decision.head.workload.key, decision.queue.name, tuple(sorted(pod_sets)))


def preempted_of(obj: Obj, view: WorkloadView) -> Preempted | None:
    """Why a Workload was preempted; None where it was evicted for something else."""
    evicted, preempted = find_condition(obj, r.EVICTED), find_condition(obj, r.PREEMPTED)
    if evicted is None or evicted["reason"] != r.EVICTED_BY_PREEMPTION or preempted is None:
        return None
    by = preemptor_uid_of(str(preempted.get("message") or evicted.get("message") or ""))
    return Preempted(view.key, str(preempted["reason"]), by)


def _is_idle(event: WatchEvent, view: WorkloadView, before: WorkloadView) -> bool:
    is_said_anew = waits_for_victims(event.obj) and not waits_for_victims(event.old or {})
    return not is_said_anew and _ALL_THAT_MATTERS(view) == _ALL_THAT_MATTERS(before)


def waits_for_victims(obj: Obj) -> bool | None:
    """Whether a Workload is said to wait for victims to go; None where it is not said why it waits."""
    condition = find_condition(obj, r.QUOTA_RESERVED)
    if condition is None or condition["status"] == "True":
        return None
    message = condition.get("message") or ""
    if any(words in message for words in _FOR_VICTIMS):
        return True
    is_verdict = condition["reason"] in VERDICTS or message.startswith("couldn't assign flavors")
    return False if is_verdict else None


def _was_given_anew(view: WorkloadView, before: WorkloadView) -> bool:
    both = view.quota_reserved and before.quota_reserved
    return both and (view.reserved_at != before.reserved_at or view.cluster_queue != before.cluster_queue)
