"""What is told of a parting: what the other did, what ours would have done, and why."""

from collections.abc import Mapping

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
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
from batchyard.core.decisions import Admit, Decision, Preempt
from batchyard.core.lifecycle import reasons as r


def not_foreseen(observed: Observed, model: Model, names: Mapping[str, str], now: Instant) -> Finding:
    """The other has done what ours would not, as the model stands now."""
    if isinstance(observed, Admitted):
        return _admitted(observed, model, names, now)
    by = names.get(observed.by, "")
    ours = model.opinion(by) if by else None
    told = told_of(observed, names), told_of_ours(ours)
    words = f"preempted for {by or 'a Workload that is not known'} ({observed.reason})"
    if isinstance(ours, Preempt):
        message = _other_victims(observed, ours, words)
        return Finding(Parting.VICTIMS, now, observed.workload, message, *told)
    return Finding(Parting.PREEMPTED, now, observed.workload, f"{words}; {ours_in_words(ours)}", *told)


def _admitted(observed: Admitted, model: Model, names: Mapping[str, str], now: Instant) -> Finding:
    ours = model.opinion(observed.workload)
    told = told_of(observed, names), told_of_ours(ours)
    words = f"admitted in {observed.queue} with {flavors_in_words(observed.pod_sets)}"
    if not isinstance(ours, Admit):
        return Finding(Parting.ADMITTED, now, observed.workload, f"{words}; {ours_in_words(ours)}", *told)
    if predicted_of(ours) != observed:
        return Finding(Parting.FLAVORS, now, observed.workload, f"{words}; {ours_in_words(ours)}", *told)
    before = _before(observed, model)
    return Finding(Parting.ADMITTED, now, observed.workload, f"{words}; it is not its turn: {before}", *told)


def _before(observed: Admitted, model: Model) -> str:
    """Who is before one in line that fits, and is not first."""
    place = model.index.place_of(observed.queue, observed.workload)
    first = model.index.first_pending(observed.queue, 1)
    if not place or not first:
        return "others of its cohort go before it"
    return f"{place} before it in {observed.queue}, {first[0].key} first"


def _other_victims(observed: Preempted, ours: Preempt, words: str) -> str:
    reasons = {each.workload.key: each.reason for each in ours.targets}
    if observed.workload in reasons:
        return f"{words}; we preempt it as {reasons[observed.workload]}, with {len(reasons) - 1} more"
    return f"{words}; {ours_in_words(ours)}"


def not_done(decision: Decision, model: Model, now: Instant) -> Finding:
    """Ours would do what the other has not done."""
    view = decision.head.workload
    obj = model.get(Key(scheme.WORKLOAD, view.namespace, view.name))
    waits = None if obj is None else find_condition(obj, r.QUOTA_RESERVED)
    theirs = str((waits or {}).get("message") or "")
    parting = Parting.NOT_ADMITTED if isinstance(decision, Admit) else Parting.NOT_PREEMPTED
    message = f"left waiting in {decision.head.queue}; {ours_in_words(decision)}"
    if theirs:
        message += f"; it is told: {theirs}"
    told = {"decision": "wait", "reason": (waits or {}).get("reason", ""), "message": theirs}
    return Finding(parting, now, view.key, message, told, told_of_ours(decision))
