"""Runs several searches for changes that would admit a Workload, in turns, so that no costly search delays the others.

A search is a generator. It yields a hypothetical change, is sent whether the change admits the Workload in a
simulation, and yields the proposals that it finds. The simulations have a common limit of scheduling decisions.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.explain.cohort_simulation import CohortSimulation, DecisionLimitReached, HypotheticalChange

Patch: TypeAlias = Mapping[str, Any]

_NOT_MINIMAL: Final = "a smaller change may suffice: the search ended at its limit"


class Proposal(NamedTuple):
    """A change that would admit a Workload, or give nodes to its pods, with its text and its patches."""

    kind: str
    text: str
    apply: Sequence[Patch]
    #: False if a smaller change may suffice, because the search ended at its limit.
    is_minimal: bool = True

    def document(self) -> dict[str, Any]:
        """Return the proposal as an entry of the field `changes` in the Explanation document."""
        fields = {"kind": self.kind, "text": self.text, "apply": list(self.apply), "proven": True}
        return fields if self.is_minimal else {**fields, "minimal": False, "given": _NOT_MINIMAL}


#: The generator of a search, and of a part of a search that returns the smallest amount found.
Search: TypeAlias = Generator[HypotheticalChange | Proposal, bool, None]
SmallestAmountSearch: TypeAlias = Generator[HypotheticalChange, bool, "SearchedAmount"]


class SearchedAmount(NamedTuple):
    """An amount that satisfies a condition, and whether the next smaller amount is known not to satisfy it."""

    amount: int
    is_minimal: bool = True


def search_smallest_between(
    change_with: Callable[[int], HypotheticalChange], low: int, high: int
) -> SmallestAmountSearch:
    """Search for the smallest amount from `low` to `high` that admits the Workload; `high` itself must admit it.

    The generator yields each change to simulate and receives whether the change admits the Workload. If it receives a
    DecisionLimitReached, it returns the smallest amount found so far, which may not be minimal.
    """
    try:
        while low < high:
            middle = (low + high) // 2
            if (yield change_with(middle)):
                high = middle
            else:
                low = middle + 1
    except DecisionLimitReached:
        return SearchedAmount(high, is_minimal=False)
    return SearchedAmount(high)


def search_smallest_amount(change_with: Callable[[int], HypotheticalChange], amount: int) -> SmallestAmountSearch:
    """Search for the smallest amount that admits the Workload; `amount` itself must admit it.

    One unit less is tried first, because the missing amount of quota is most often minimal.
    """
    if amount == 0:
        return SearchedAmount(0)
    try:
        is_reducible = yield change_with(amount - 1)
    except DecisionLimitReached:
        return SearchedAmount(amount, is_minimal=False)
    return (yield from search_smallest_between(change_with, 0, amount - 1)) if is_reducible else SearchedAmount(amount)


class SearchResult(NamedTuple):
    """The proposals of several searches, in the order of the searches; whether the decision limit stopped a search."""

    proposals: Sequence[Proposal]
    is_limit_reached: bool


@dataclass(slots=True)
class _RunningSearch:
    search: Search
    proposals: list[Proposal]
    decision_count: int = 0
    answer: bool | None = None

    def next_change(self, limit: DecisionLimitReached | None) -> HypotheticalChange | None:
        try:
            step = self._resume(limit)
            while isinstance(step, Proposal):
                self.proposals.append(step)
                step = next(self.search)
        except (StopIteration, DecisionLimitReached):
            return None
        return step

    def _resume(self, limit: DecisionLimitReached | None) -> HypotheticalChange | Proposal:
        if limit is not None:
            return self.search.throw(limit)
        return next(self.search) if self.answer is None else self.search.send(self.answer)


def run_searches(searches: Sequence[Search], simulation: CohortSimulation) -> SearchResult:
    """Run searches in turns; the search with the fewest proposals, and then the fewest decisions, is always next."""
    running_searches = [_RunningSearch(search, []) for search in searches]
    pending_trials: list[tuple[_RunningSearch, HypotheticalChange]] = []
    is_limit_reached = False

    def resume(running: _RunningSearch, limit: DecisionLimitReached | None = None) -> None:
        change = running.next_change(limit)
        if change is not None:
            pending_trials.append((running, change))

    for running in running_searches:
        resume(running)
    while pending_trials:
        entry = min(pending_trials, key=lambda each: (len(each[0].proposals), each[0].decision_count))
        pending_trials.remove(entry)
        running, change = entry
        count_before = simulation.decision_count
        try:
            running.answer = simulation.admits(change)
        except DecisionLimitReached as limit:
            is_limit_reached = True
            resume(running, limit)
        else:
            running.decision_count += simulation.decision_count - count_before
            resume(running)
    return SearchResult([proposal for each in running_searches for proposal in each.proposals], is_limit_reached)
