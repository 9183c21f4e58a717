"""Divergence reports: what Kueue did, what the model would have done, why, and where to look."""

from collections.abc import Mapping
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.decisions import Admit, Decision, Preempt
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.workload import lifecycle
from batchyard.shadow.findings import (
    Divergence,
    DivergenceType,
    flavors_in_words,
    observed_document,
    other_sharing,
    ours_in_words,
    predicted_document,
    where_to_look,
)
from batchyard.shadow.observed import (
    Observed,
    ObservedAdmission,
    ObservedPreemption,
    Signature,
    predicted_of,
    signature_of,
)
from batchyard.shadow.replay import (
    DecisionReplay,
)
from batchyard.shadow.state import SchedulerModel


class ObservedDecision(NamedTuple):
    """An observed decision."""

    decision: Observed
    #: The time of arrival.
    at: Instant


def unpredicted_decision(
    seen: ObservedDecision, model: SchedulerModel, names: Mapping[str, str], now: Instant
) -> Divergence:
    """Report a decision of Kueue that the model would not make in the current state; `names` maps uids to Workloads."""
    observed = seen.decision
    if isinstance(observed, ObservedAdmission):
        return _admitted(observed, seen.at, model, names, now)
    by = names.get(observed.by, "")
    ours = model.opinion(by) if by else None
    documents = observed_document(observed, names), predicted_document(ours)
    words = f"preempted for {by or 'a Workload that is not known'} ({observed.reason})"
    held = model.index.snapshot.holder(observed.workload)
    queue = "" if held is None else held.queue.name
    if isinstance(ours, Preempt):
        parting, rest = DivergenceType.VICTIMS, _other_victims(observed, ours, model)
        foreseen = [target.reason for target in ours.targets]
    else:
        parting, rest, foreseen = DivergenceType.PREEMPTED, _no_preemption(ours, by, model), []
    sharing = other_sharing(observed.reason, foreseen, is_fair=model.shares_fairly)
    look = where_to_look(parting, observed.workload, queue, seen.at, sharing)
    return Divergence(parting, now, observed.workload, f"{words}; {rest}", *documents, since=seen.at, look=look)


def _admitted(
    observed: ObservedAdmission, at: Instant, model: SchedulerModel, names: Mapping[str, str], now: Instant
) -> Divergence:
    ours = model.opinion(observed.workload)
    words = f"admitted in {observed.queue} with {flavors_in_words(observed.pod_sets)}"
    parting, rest, predicted = DivergenceType.ADMITTED, ours_in_words(ours), predicted_document(ours)
    if isinstance(ours, Admit) and predicted_of(ours) != observed:
        parting = DivergenceType.FLAVORS
        if ours.queue.name != observed.queue:
            rest = f"it waits in {ours.queue.name}, and {rest} there"
    elif isinstance(ours, Admit):
        before = _before(observed, model)
        rest = f"it is not its turn: {before}"
        predicted = {"decision": "wait", "reason": "NotItsTurn", "message": before}
    elif ours is None:
        rest = _why_not(observed.workload, model)
    look = where_to_look(parting, observed.workload, observed.queue, at)
    documents = observed_document(observed, names), predicted
    return Divergence(parting, now, observed.workload, f"{words}; {rest}", *documents, since=at, look=look)


def _before(observed: ObservedAdmission, model: SchedulerModel) -> str:
    """Describe the Workloads before a head that fits but is not first."""
    place = model.index.place_of(observed.queue, observed.workload)
    first, view = model.index.first_pending(observed.queue, 1), model.index.book.view(observed.workload)
    if not place or not first or view is None:
        return "others of its cohort go before it"
    return f"{place} before it in {observed.queue}, {first[0].key} first ({_place(first[0])}; it: {_place(view)})"


def _place(view: WorkloadView) -> str:
    return f"priority {view.priority}, queued {format_time(view.queued)}"


def _why_not(workload: str, model: SchedulerModel) -> str:
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


def _no_preemption(ours: Decision | None, by: str, model: SchedulerModel) -> str:
    """Explain why the model preempts no victims for a Workload."""
    if not by:
        return "so we know of no reason for it"
    return _why_not(by, model) if ours is None else ours_in_words(ours)


def _other_victims(observed: ObservedPreemption, ours: Preempt, model: SchedulerModel) -> str:
    targets = {each.workload.key: each for each in ours.targets}
    own = targets.pop(observed.workload, None)
    others = ", ".join(_victim(targets[key]) for key in sorted(targets))
    if own is not None and own.reason != observed.reason:
        return f"we preempt it as {own.reason}" + (f", and with it {others}" if others else "")
    if own is not None:
        return f"we preempt with it {others}"
    held = model.index.snapshot.holder(observed.workload)
    instead = "a Workload without quota" if held is None else _victim(PreemptionTarget(held, observed.reason))
    return f"we preempt {others}, not {instead}"


def _victim(target: PreemptionTarget) -> str:
    """Describe a victim with the fields that order candidates."""
    held = target.workload
    since = format_time(held.reserved_at)
    return f"{held.key} ({held.queue.name}, priority {held.priority}, quota since {since}: {target.reason})"


def missing_decision(decision: Decision, model: SchedulerModel, since: Instant, now: Instant) -> Divergence:
    """Report a decision of the model that Kueue has not done since then."""
    view = decision.head.workload
    obj = model.get(Key(scheme.WORKLOAD, view.namespace, view.name))
    waits = None if obj is None else find_condition(obj, lifecycle.QUOTA_RESERVED)
    theirs = str((waits or {}).get("message") or "")
    parting = DivergenceType.NOT_ADMITTED if isinstance(decision, Admit) else DivergenceType.NOT_PREEMPTED
    queue = decision.head.queue
    message = f"left waiting in {queue} for {round((now - since) / SECOND, 1):g} s; {ours_in_words(decision)}"
    if theirs:
        message += f"; Kueue reports: {theirs}"
    theirs_document = {"decision": "wait", "reason": (waits or {}).get("reason", ""), "message": theirs}
    look = where_to_look(parting, view.key, queue, since)
    return Divergence(
        parting, now, view.key, message, theirs_document, predicted_document(decision), since=since, look=look
    )


class DivergenceDetector(DecisionReplay):
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
        finding = unpredicted_decision(ObservedDecision(observed, item.came), self.model, self._names, self._now)
        numbers = [number]
        if isinstance(observed, ObservedPreemption):  # one divergence, for all victims
            numbers = [each for each in self.backlog.decided if self._is_of_same(each, observed)]
        for each in numbers:
            self._show(each)
        self._found(finding)
        self._stuck.pop(tree, None)

    def _is_of_same(self, number: int, observed: ObservedPreemption) -> bool:
        other = self.backlog.items[number].change.decision
        return isinstance(other, ObservedPreemption) and other.by == observed.by and self.backlog.is_front(number)

    def _part_by_ours(self, tree: str, decision: Decision) -> None:
        """Report a decision of the model that Kueue has not done."""
        key = decision.head.workload.key
        self.missed[key] = signature_of(decision)
        since = self._stuck.pop(tree).first.get(self.missed[key], self._now)
        self._found(missing_decision(decision, self.model, since, self._now))

    def _found(self, finding: Divergence) -> None:
        self.counts.parted[finding.parting.value] = self.counts.parted.get(finding.parting.value, 0) + 1
        self.findings.append(finding)
