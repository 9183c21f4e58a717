"""Which flavor for each resource: the search through a resource group's flavors.

For each resource group the flavors are tried in order; each is as good as the worst of the group's resources in it.
The search stops at a flavor good enough for the queue's fungibility rules, else the best one counts. A later search
goes on from where this one stopped. Source: Kueue's pkg/scheduler/flavorassigner/flavorassigner.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.pod import Requests, resource_order
from batchyard.api.views.queues import Fungibility
from batchyard.api.views.workload import WorkloadView
from batchyard.core.assignment import (
    SCAN_DONE,
    Assignment,
    Attempt,
    Choice,
    LastAssignment,
    Mode,
    PodSetAssignment,
    Possibility,
    worst_mode,
)
from batchyard.core.quota import available, lowest_fitting_height
from batchyard.core.reasons import EXCEEDS_MAX_QUOTA, NO_MATCHING_FLAVOR, WAITING_FOR_QUOTA, Fact, Short, TooLarge
from batchyard.core.reasons import most_severe as worse
from batchyard.core.snapshot import ClusterQueue, Group, Snapshot

#: Asks whether preemption could free an amount of a flavor-resource; returns how, and the height it would borrow from.
Oracle: TypeAlias = Callable[[int, int], tuple[Possibility, int]]
#: The flavors of an earlier nomination, which a second look may not leave: by pod set, by resource.
Nominated: TypeAlias = Sequence[Mapping[str, str]]

_PODS: Final = "pods"
_WORST_BORROW: Final = 1 << 60


class Quality(NamedTuple):
    """How well a flavor would do."""

    possibility: Possibility
    borrow: int


_WORST: Final = Quality(Possibility.NO_FIT, _WORST_BORROW)
_BEST: Final = Quality(Possibility.FIT, 0)


@dataclass(slots=True)
class FlavorSearch:
    """One Workload's search. `assign()` may be called with other pod counts."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    oracle: Oracle
    last: LastAssignment | None
    cycle: int
    fair_sharing: bool = False
    nominated: Nominated = ()

    def assign(self, counts: Sequence[int] | None = None) -> Assignment:
        """Flavors for all pod sets, or how far it came: after a pod set without flavor no more are tried."""
        assignment = Assignment()
        usage: dict[int, int] = {}
        counts = self.workload.counts if counts is None else counts
        for members in self._members():
            found = _PodSetGroup(self, members, counts).find(usage)
            for pod_set in found:
                _append(assignment, pod_set, usage)
            if any(p.requests and not p.choices for p in found):
                break
        assignment.mode = worst_mode(assignment.pod_sets)
        assignment.usage = tuple(usage.items())
        tried = tuple({r: c.tried for r, c in p.choices.items()} for p in assignment.pod_sets)
        assignment.last = LastAssignment(tried, self.queue.generation, self.cycle, self.workload.shape)
        return assignment

    def _members(self) -> Sequence[Sequence[int]]:
        """The indices of pod sets that must get the same flavors, in order of their first."""
        groups: dict[str | int, list[int]] = {}
        for index, pod_set in enumerate(self.workload.pod_sets):
            groups.setdefault(index if pod_set.group is None else pod_set.group, []).append(index)
        return list(groups.values())

    def requests_of(self, index: int, count: int) -> Requests:
        """What a pod set requests in all; `pods` too where the queue counts them."""
        requests = tuple((r, n * count) for r, n in self.workload.pod_sets[index].template.requests)
        if _PODS not in self.queue.group_of:
            return requests
        rest = [item for item in requests if item[0] != _PODS]
        return tuple(sorted([*rest, (_PODS, count)], key=lambda item: resource_order(item[0])))

    def is_nominated(self, members: Sequence[int], resource: str, flavor: str) -> bool:
        """Whether the flavor may be taken: any, or those of the earlier nomination."""
        return not self.nominated or any(
            i < len(self.nominated) and self.nominated[i].get(resource) == flavor for i in members
        )


def _append(assignment: Assignment, pod_set: PodSetAssignment, usage: dict[int, int]) -> None:
    assignment.pod_sets.append(pod_set)
    requests = dict(pod_set.requests)
    for resource, choice in pod_set.choices.items():
        assignment.borrow = max(assignment.borrow, choice.borrow)
        usage[choice.fr] = usage.get(choice.fr, 0) + requests.get(resource, 0)


class _PodSetGroup:
    """Pod sets that get the same flavors: usually one."""

    __slots__ = ("attempts", "counts", "members", "requests", "search", "total")

    def __init__(self, search: FlavorSearch, members: Sequence[int], counts: Sequence[int]) -> None:
        self.search = search
        self.members = members
        self.counts = counts
        self.requests = [search.requests_of(i, counts[i]) for i in members]
        self.total = self.requests[0] if len(members) == 1 else _sum(self.requests)
        self.attempts: list[Attempt] = []

    def find(self, usage: Mapping[int, int]) -> list[PodSetAssignment]:
        """The assignments of its pod sets."""
        choices, facts = self._choices(usage)
        found = []
        for index, requests in zip(self.members, self.requests, strict=True):
            own = {r: choices[r] for r, _ in requests if r in choices}
            name = self.search.workload.pod_sets[index].name
            found.append(PodSetAssignment(name, self.counts[index], requests, own, tuple(facts), tuple(self.attempts)))
        return found

    def _choices(self, usage: Mapping[int, int]) -> tuple[dict[str, Choice], list[Fact]]:
        """Choices for every resource, and what was held against flavors; no choices when one resource has none."""
        group_of = self.search.queue.group_of
        choices: dict[str, Choice] = {}
        facts: list[Fact] = []
        for resource, amount in self.total:
            if resource in choices:
                continue
            group = group_of.get(resource)
            if group is None:
                if amount == 0:
                    continue
                return {}, [f"resource {resource} unavailable in ClusterQueue"]
            found, held = self._search_group(group, resource, usage)
            if not found:
                return {}, held
            choices.update(found)
            facts += held
        return choices, facts

    def _search_group(
        self, group: Group, resource: str, usage: Mapping[int, int]
    ) -> tuple[dict[str, Choice], list[Fact]]:
        """The best flavor of a resource group, and what was held against those tried; nothing once one fits."""
        search = self.search
        fungibility = search.queue.view.fungibility
        requests = [(r, n, group.ids[r]) for r, n in self.total if r in group.ids]
        best: list[tuple[str, int, Quality]] = []
        best_quality, best_index, index = _WORST, -1, -1
        facts: list[Fact] = []
        start = search.last.next_flavor(self.members[0], resource) if search.last else 0
        for index in range(start, len(group.flavors)):
            flavor = group.flavors[index]
            obstacle = self._obstacle(group, flavor, resource)
            if obstacle:
                facts.append(obstacle)
                continue
            trial = _Trial(search, flavor, index).weigh(requests, usage)
            facts += trial.facts
            self._note(group, flavor, trial)
            if not _should_go_on(trial.quality, fungibility):
                best, best_quality, best_index = trial.found, trial.quality, index
                break
            if _is_preferred(trial.quality, best_quality, fungibility):
                best, best_quality, best_index = trial.found, trial.quality, index
        tried = SCAN_DONE if index == len(group.flavors) - 1 else index
        chosen = {r: Choice(group.flavors[best_index], fr, q.possibility.mode, q.borrow, tried) for r, fr, q in best}
        return chosen, [] if best_quality.possibility is Possibility.FIT else facts

    def _obstacle(self, group: Group, flavor: str, resource: str) -> str:
        """What rules a flavor out, whatever its quota."""
        search = self.search
        if not search.is_nominated(self.members, resource, flavor):
            return f"skipping flavor {flavor} as it is not found in the nomination mapping for resource {resource}"
        for index in self.members:
            template = search.workload.pod_sets[index].template
            obstacle = group.matches.obstacle(template, flavor, search.snapshot.flavors)
            if obstacle:
                number = search.queue.groups.index(group)
                self.attempts.append(Attempt(flavor, number, Possibility.NO_FIT, 0, (obstacle,), NO_MATCHING_FLAVOR))
                return obstacle
        return ""

    def _note(self, group: Group, flavor: str, trial: "_Trial") -> None:
        """Remember what came of a flavor, where that is worth telling."""
        if trial.facts or trial.borrow:
            number = self.search.queue.groups.index(group)
            possibility = trial.quality.possibility
            self.attempts.append(
                Attempt(flavor, number, possibility, trial.borrow, tuple(trial.facts), trial.no_fit_reason)
            )


class _Trial:
    """How one flavor does for all resources of a group."""

    __slots__ = ("borrow", "facts", "flavor", "found", "index", "no_fit_reason", "quality", "search")

    def __init__(self, search: FlavorSearch, flavor: str, index: int) -> None:
        self.search = search
        self.flavor = flavor
        self.index = index
        self.quality = _BEST
        self.borrow = 0
        self.found: list[tuple[str, int, Quality]] = []
        self.facts: list[Fact] = []
        self.no_fit_reason = ""

    def weigh(self, requests: Sequence[tuple[str, int, tuple[int, ...]]], usage: Mapping[int, int]) -> "_Trial":
        """Fill in the rest: the flavor is as good as the worst of its resources."""
        fungibility = self.search.queue.view.fungibility
        for resource, amount, ids in requests:
            fr = ids[self.index]
            quality = self._weigh(resource, fr, amount, usage.get(fr, 0))
            self.borrow = max(self.borrow, quality.borrow)
            if _is_preferred(self.quality, quality, fungibility):
                self.quality = quality
            if self.quality.possibility is not Possibility.NO_FIT:
                self.found.append((resource, fr, quality))
        return self

    def _weigh(self, resource: str, fr: int, amount: int, assumed: int) -> Quality:
        """How one resource could be had, on top of what earlier pod sets take."""
        queue = self.search.queue
        node = queue.node
        total = assumed + amount
        if total > node.potential[fr]:
            self.facts.append(TooLarge(resource, self.flavor, assumed, amount, node.potential[fr]))
            self.no_fit_reason = worse(self.no_fit_reason, EXCEEDS_MAX_QUOTA)
            return Quality(Possibility.NO_FIT, 0)
        borrow, may_reclaim = lowest_fitting_height(node, fr, total)
        free = max(0, available(node, fr))
        if total <= free:
            return Quality(Possibility.FIT, borrow)
        self.facts.append(Short(resource, self.flavor, total - free))
        if node.subtree[fr] >= total or may_reclaim or self._may_preempt_while_borrowing():
            return Quality(*self.search.oracle(fr, total))
        self.no_fit_reason = worse(self.no_fit_reason, WAITING_FOR_QUOTA)
        return Quality(Possibility.NO_FIT, borrow)

    def _may_preempt_while_borrowing(self) -> bool:
        preemption = self.search.queue.view.preemption
        if preemption.borrow_within_cohort:
            return True
        return self.search.fair_sharing and preemption.reclaim_within_cohort != "Never"


def _sum(requests: Sequence[Requests]) -> Requests:
    total: dict[str, int] = {}
    for one in requests:
        for resource, amount in one:
            total[resource] = total.get(resource, 0) + amount
    return tuple(sorted(total.items(), key=lambda item: resource_order(item[0])))


def _is_preferred(a: Quality, b: Quality, fungibility: Fungibility) -> bool:
    """Whether a is better than b under the queue's preference."""
    if a.possibility is Possibility.NO_FIT:
        return False
    if b.possibility is Possibility.NO_FIT:
        return True
    a_hopeless, b_hopeless = a.possibility is Possibility.NO_CANDIDATES, b.possibility is Possibility.NO_CANDIDATES
    if a_hopeless != b_hopeless:
        return b_hopeless
    if fungibility.prefer_preemption:
        return (-a.borrow, a.possibility) > (-b.borrow, b.possibility)
    return (a.possibility, -a.borrow) > (b.possibility, -b.borrow)


def _should_go_on(quality: Quality, fungibility: Fungibility) -> bool:
    """Whether to look at the next flavor too."""
    possibility = quality.possibility
    if possibility <= Possibility.NO_CANDIDATES:
        return True
    if possibility < Possibility.FIT and fungibility.try_next_when_preempting:
        return True
    return quality.borrow != 0 and fungibility.try_next_when_borrowing


def is_outdated(last: LastAssignment, queue: ClusterQueue, cycle: int, workload: WorkloadView) -> bool:
    """Whether an earlier search no longer describes things, and the next one starts over."""
    if last.shape != workload.shape:
        return True
    return cycle - last.cycle > 1 and queue.generation > last.generation


def is_fit(assignment: Assignment) -> bool:
    """Whether it fits as things are."""
    return assignment.mode is Mode.FIT
