"""Divergence reports: what Kueue did, what the model would have done, why, and where to look."""

from collections.abc import Mapping
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.decisions import Admit, Decision, Preempt
from batchyard.scheduling.preemption.context import Target
from batchyard.scheduling.workload import lifecycle as r
from batchyard.shadow.findings import (
    Finding,
    Parting,
    flavors_in_words,
    other_sharing,
    ours_in_words,
    told_of,
    told_of_ours,
    where_to_look,
)
from batchyard.shadow.model import Model
from batchyard.shadow.observed import Observed, ObservedAdmitted, Preempted, Signature, predicted_of, signature_of
from batchyard.shadow.replay import Pursuit


class Seen(NamedTuple):
    """An observed decision."""

    decision: Observed
    #: The time of arrival.
    at: Instant


def not_foreseen(seen: Seen, model: Model, names: Mapping[str, str], now: Instant) -> Finding:
    """Report a decision of Kueue that the model would not make in the current state; `names` maps uids to Workloads."""
    observed = seen.decision
    if isinstance(observed, ObservedAdmitted):
        return _admitted(observed, seen.at, model, names, now)
    by = names.get(observed.by, "")
    ours = model.opinion(by) if by else None
    documents = told_of(observed, names), told_of_ours(ours)
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
    return Finding(parting, now, observed.workload, f"{words}; {rest}", *documents, since=seen.at, look=look)


def _admitted(observed: ObservedAdmitted, at: Instant, model: Model, names: Mapping[str, str], now: Instant) -> Finding:
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
    documents = told_of(observed, names), predicted
    return Finding(parting, now, observed.workload, f"{words}; {rest}", *documents, since=at, look=look)


def _before(observed: ObservedAdmitted, model: Model) -> str:
    """Describe the Workloads before a head that fits but is not first."""
    place = model.index.place_of(observed.queue, observed.workload)
    first, view = model.index.first_pending(observed.queue, 1), model.index.book.view(observed.workload)
    if not place or not first or view is None:
        return "others of its cohort go before it"
    return f"{place} before it in {observed.queue}, {first[0].key} first ({_place(first[0])}; it: {_place(view)})"


def _place(view: WorkloadView) -> str:
    return f"priority {view.priority}, queued {format_time(view.queued)}"


def _why_not(workload: str, model: Model) -> str:
    """Explain why the model decides nothing about a Workload."""
    held, view = model.index.snapshot.holder(workload), model.index.book.view(workload)
    if held is not None:
        return f"{workload} holds quota in {held.queue.name} already, and waits for nothing"
    if view is None:
        return f"{workload} is over, or gone"
    if not view.active:
        return f"{workload} is not active"
    queue = model.queue_of(view)
    return f"{workload} waits in no existing queue" if queue is None else f"{workload} waits in {queue}"


def _no_preemption(ours: Decision | None, by: str, model: Model) -> str:
    """Explain why the model preempts no victims for a Workload."""
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
    instead = "a Workload without quota" if held is None else _victim(Target(held, observed.reason))
    return f"we preempt {others}, not {instead}"


def _victim(target: Target) -> str:
    """Describe a victim with the fields that order candidates."""
    held = target.workload
    since = format_time(held.reserved_at)
    return f"{held.key} ({held.queue.name}, priority {held.priority}, quota since {since}: {target.reason})"


def not_done(decision: Decision, model: Model, since: Instant, now: Instant) -> Finding:
    """Report a decision of the model that Kueue has not done since then."""
    view = decision.head.workload
    obj = model.get(Key(scheme.WORKLOAD, view.namespace, view.name))
    waits = None if obj is None else find_condition(obj, r.QUOTA_RESERVED)
    theirs = str((waits or {}).get("message") or "")
    parting = Parting.NOT_ADMITTED if isinstance(decision, Admit) else Parting.NOT_PREEMPTED
    queue = decision.head.queue
    message = f"left waiting in {queue} for {round((now - since) / SECOND, 1):g} s; {ours_in_words(decision)}"
    if theirs:
        message += f"; Kueue reports: {theirs}"
    theirs_document = {"decision": "wait", "reason": (waits or {}).get("reason", ""), "message": theirs}
    look = where_to_look(parting, view.key, queue, since)
    return Finding(parting, now, view.key, message, theirs_document, told_of_ours(decision), since=since, look=look)


# --- judgement ---
#
# When the two have diverged, and the report of it: the third step of a replay.


class Judgement(Pursuit):
    """A replay that also detects and reports divergences."""

    @property
    def is_overdue(self) -> bool:
        """Whether a decision of either side has been unmatched for too long."""
        return self._overdue_theirs() is not None or self._overdue_ours() is not None

    def overdue_since(self) -> Instant:
        """Return the time from which the first divergence counts, unless changes before it are still missing."""
        theirs, ours = self._overdue_theirs(), self._overdue_ours()
        if theirs is not None:
            return self._due(theirs)
        if ours is None:
            return self._now
        return self._since(self._stuck[ours[0]].first[signature_of(ours[1])]) + self._terms.patience

    def overdue(self) -> Signature | None:
        """Return the decision of the model that Kueue has not done for too long, or None."""
        found = self._overdue_ours()
        return None if found is None else signature_of(found[1])

    def awaits(self, signature: Signature) -> bool:
        """Report whether the model has made this decision and Kueue has yet to do it."""
        return any(signature in stuck.first for stuck in self._stuck.values())

    def part(self) -> None:
        """Report the first divergence, and continue from what Kueue did."""
        theirs, ours = self._overdue_theirs(), self._overdue_ours()
        cause = None if theirs is None else self._cause_of(theirs)
        if cause is not None:
            self._part_by_ours(*cause)
        elif theirs is not None:
            self._part_by_theirs(theirs)
        elif ours is not None:
            self._part_by_ours(*ours)

    def _cause_of(self, number: int) -> tuple[str, Decision] | None:
        """Return an earlier decision that Kueue left undone: the unpredicted one may result from it."""
        item = self.backlog.items[number]
        tree, observed = self._tree_of(item), item.change.decision
        stuck = self._stuck.get(tree)
        for decision in stuck.decisions if stuck is not None else ():
            first = stuck.first.get(signature_of(decision)) if stuck is not None else None
            about = decision.head.workload
            is_same = observed is not None and (observed.workload == about.key or observed[-1] == about.uid)
            since = None if first is None else self._terms.since(first, item.came)
            if since is not None and since < item.came - self._terms.settle and not is_same:
                return None if self._done(decision) is not None else (tree, decision)
        return None

    def _overdue_theirs(self) -> int | None:
        """Return the number of a decision of Kueue that the model has not made for too long."""
        for number in self.backlog.decided:
            if self.backlog.is_front(number) and self._now >= self._due(number):
                return number
        return None

    def _overdue_ours(self) -> tuple[str, Decision] | None:
        """Return a decision of the model, with its tree, that Kueue has not done for too long."""
        for tree, stuck in self._stuck.items():
            for decision in stuck.decisions:
                first = stuck.first.get(signature_of(decision))
                is_late = first is not None and self._now - self._since(first) >= self._terms.patience
                if is_late and self._done(decision) is None:
                    return tree, decision
        return None

    def _part_by_theirs(self, number: int) -> None:
        """Report a decision of Kueue that the model would not make."""
        item = self.backlog.items[number]
        observed, tree = item.change.decision, self._tree_of(item)
        assert observed is not None, "it is one of those with a decision"
        finding = not_foreseen(Seen(observed, item.came), self.model, self._names, self._now)
        numbers = [number]
        if isinstance(observed, Preempted):  # one divergence, for all victims
            numbers = [each for each in self.backlog.decided if self._is_of_same(each, observed)]
        for each in numbers:
            self._show(each)
        self._found(finding)
        self._stuck.pop(tree, None)

    def _is_of_same(self, number: int, observed: Preempted) -> bool:
        other = self.backlog.items[number].change.decision
        return isinstance(other, Preempted) and other.by == observed.by and self.backlog.is_front(number)

    def _part_by_ours(self, tree: str, decision: Decision) -> None:
        """Report a decision of the model that Kueue has not done."""
        key = decision.head.workload.key
        self.missed[key] = signature_of(decision)
        since = self._stuck.pop(tree).first.get(self.missed[key], self._now)
        self._found(not_done(decision, self.model, since, self._now))

    def _found(self, finding: Finding) -> None:
        self.counts.parted[finding.parting.value] = self.counts.parted.get(finding.parting.value, 0) + 1
        self.findings.append(finding)
