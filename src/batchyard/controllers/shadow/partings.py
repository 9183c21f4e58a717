"""What is told of a parting: what the other did, what ours would have done, why, and where to look."""

from collections.abc import Mapping
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import SECOND, Instant
from batchyard.controllers.shadow.findings import (
    Finding,
    Parting,
    flavors_in_words,
    ours_in_words,
    told_of,
    told_of_ours,
)
from batchyard.controllers.shadow.model import Model
from batchyard.controllers.shadow.observed import Admitted, Observed, Preempted, predicted_of
from batchyard.controllers.shadow.where_to_look import other_sharing, where_to_look
from batchyard.core.decisions import Admit, Decision, Preempt
from batchyard.core.lifecycle import reasons as r
from batchyard.core.preemption.request import Target


class Seen(NamedTuple):
    """A decision that was seen."""

    decision: Observed
    #: When it came.
    at: Instant


def not_foreseen(seen: Seen, model: Model, names: Mapping[str, str], now: Instant) -> Finding:
    """The other has done what ours would not, as the model stands now; `names` are of Workloads by uid."""
    observed = seen.decision
    if isinstance(observed, Admitted):
        return _admitted(observed, seen.at, model, names, now)
    by = names.get(observed.by, "")
    ours = model.opinion(by) if by else None
    told = told_of(observed, names), told_of_ours(ours)
    words = f"preempted for {by or 'a Workload that is not known'} ({observed.reason})"
    held = model.index.snapshot.holder(observed.workload)
    queue = "" if held is None else held.queue.name
    if isinstance(ours, Preempt):
        parting, rest = Parting.VICTIMS, _other_victims(observed, ours, model)
        foreseen = [target.reason for target in ours.targets]
    else:
        parting, rest, foreseen = Parting.PREEMPTED, _no_preemption(ours, by, model), []
    sharing = other_sharing(observed.reason, foreseen, is_fair=model.shares_fairly)
    look = where_to_look(parting, observed.workload, queue, seen.at, sharing)
    return Finding(parting, now, observed.workload, f"{words}; {rest}", *told, since=seen.at, look=look)


def _admitted(observed: Admitted, at: Instant, model: Model, names: Mapping[str, str], now: Instant) -> Finding:
    ours = model.opinion(observed.workload)
    words = f"admitted in {observed.queue} with {flavors_in_words(observed.pod_sets)}"
    parting, rest, predicted = Parting.ADMITTED, ours_in_words(ours), told_of_ours(ours)
    if isinstance(ours, Admit) and predicted_of(ours) != observed:
        parting = Parting.FLAVORS
        if ours.queue.name != observed.queue:
            rest = f"it waits in {ours.queue.name}, and {rest} there"
    elif isinstance(ours, Admit):
        before = _before(observed, model)
        rest = f"it is not its turn: {before}"
        predicted = {"decision": "wait", "reason": "NotItsTurn", "message": before}
    elif ours is None:
        rest = _why_not(observed.workload, model)
    look = where_to_look(parting, observed.workload, observed.queue, at)
    told = told_of(observed, names), predicted
    return Finding(parting, now, observed.workload, f"{words}; {rest}", *told, since=at, look=look)


def _before(observed: Admitted, model: Model) -> str:
    """Who is before one in line that fits, and is not first."""
    place = model.index.place_of(observed.queue, observed.workload)
    first, view = model.index.first_pending(observed.queue, 1), model.index.book.view(observed.workload)
    if not place or not first or view is None:
        return "others of its cohort go before it"
    return f"{place} before it in {observed.queue}, {first[0].key} first ({_place(first[0])}; it: {_place(view)})"


def _place(view: WorkloadView) -> str:
    return f"priority {view.priority}, queued {format_time(view.queued)}"


def _why_not(workload: str, model: Model) -> str:
    """Why ours decides nothing about a Workload."""
    held, view = model.index.snapshot.holder(workload), model.index.book.view(workload)
    if held is not None:
        return f"{workload} holds quota in {held.queue.name} already, and waits for nothing"
    if view is None:
        return f"{workload} is over, or gone"
    if not view.active:
        return f"{workload} is not active"
    queue = model.queue_of(view)
    return f"{workload} waits in no queue that there is" if queue is None else f"{workload} waits in {queue}"


def _no_preemption(ours: Decision | None, by: str, model: Model) -> str:
    """Why ours preempts nobody for a Workload."""
    if not by:
        return "so we know of no reason for it"
    return _why_not(by, model) if ours is None else ours_in_words(ours)


def _other_victims(observed: Preempted, ours: Preempt, model: Model) -> str:
    targets = {each.workload.key: each for each in ours.targets}
    own = targets.pop(observed.workload, None)
    others = ", ".join(_victim(targets[key]) for key in sorted(targets))
    if own is not None and own.reason != observed.reason:
        return f"we preempt it as {own.reason}" + (f", and with it {others}" if others else "")
    if own is not None:
        return f"we preempt with it {others}"
    held = model.index.snapshot.holder(observed.workload)
    instead = "one who holds no quota" if held is None else _victim(Target(held, observed.reason))
    return f"we preempt {others}, not {instead}"


def _victim(target: Target) -> str:
    """Who goes, with what decides between candidates."""
    held = target.workload
    since = format_time(held.reserved_at)
    return f"{held.key} ({held.queue.name}, priority {held.priority}, quota since {since}: {target.reason})"


def not_done(decision: Decision, model: Model, since: Instant, now: Instant) -> Finding:
    """Ours would do what the other has not done since then."""
    view = decision.head.workload
    obj = model.get(Key(scheme.WORKLOAD, view.namespace, view.name))
    waits = None if obj is None else find_condition(obj, r.QUOTA_RESERVED)
    theirs = str((waits or {}).get("message") or "")
    parting = Parting.NOT_ADMITTED if isinstance(decision, Admit) else Parting.NOT_PREEMPTED
    queue = decision.head.queue
    message = f"left waiting in {queue} for {round((now - since) / SECOND, 1):g} s; {ours_in_words(decision)}"
    if theirs:
        message += f"; it is told: {theirs}"
    told = {"decision": "wait", "reason": (waits or {}).get("reason", ""), "message": theirs}
    look = where_to_look(parting, view.key, queue, since)
    return Finding(parting, now, view.key, message, told, told_of_ours(decision), since=since, look=look)
