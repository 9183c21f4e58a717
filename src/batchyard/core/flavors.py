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
    PodSetAssignment,
    Possibility,
    worst_mode,
)
from batchyard.core.queue import ClusterQueue, GroupPlan, PodSetPlan
from batchyard.core.quota import available, lowest_fitting_height
from batchyard.core.reasons import EXCEEDS_MAX_QUOTA, NO_MATCHING_FLAVOR, WAITING_FOR_QUOTA, Fact, Short, TooLarge
from batchyard.core.reasons import most_severe as worse
from batchyard.core.snapshot import Snapshot

#: Asks whether preemption could free an amount of a flavor-resource; returns how, and the height it would borrow from.
Oracle: TypeAlias = Callable[[int, int], tuple[Possibility, int]]
#: The flavors of an earlier nomination, which a second look may not leave: by pod set, by resource.
Nominated: TypeAlias = Sequence[Mapping[str, str]]

_WORST_BORROW: Final = 1 << 60

# Members looked up once: an attribute of an enum costs more than what is done with it here.
_P_NO_FIT: Final = Possibility.NO_FIT
_P_NO_CANDIDATES: Final = Possibility.NO_CANDIDATES
_P_FIT: Final = Possibility.FIT


class Quality(NamedTuple):
    """How well a flavor would do."""

    possibility: Possibility
    borrow: int


_WORST: Final = Quality(_P_NO_FIT, _WORST_BORROW)
_BEST: Final = Quality(_P_FIT, 0)
_NO_FIT: Final = Quality(_P_NO_FIT, 0)


@dataclass(slots=True)
class Found:
    """What a search of one resource group came to: the choices, and what was held against the flavors tried."""

    choices: dict[str, Choice]
    facts: list[Fact]
    attempts: list[Attempt]


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
        pod_sets: list[PodSetAssignment] = []
        usage: dict[int, int] = {}
        borrow = 0
        counts = self.workload.counts if counts is None else counts
        for members in self.workload.pod_set_groups:
            found = self._find(members, counts, usage)
            for pod_set in found:
                pod_sets.append(pod_set)
                borrow = max(borrow, _add_usage(usage, pod_set))
            if any(p.requests and not p.choices and p.facts for p in found):
                break
        tried = tuple([{r: c.tried for r, c in p.choices.items()} for p in pod_sets])
        last = LastAssignment(tried, self.queue.generation, self.cycle, self.workload.shape)
        return Assignment(pod_sets, worst_mode(pod_sets), borrow, tuple(usage.items()), last)

    def _find(self, members: Sequence[int], counts: Sequence[int], usage: Mapping[int, int]) -> list[PodSetAssignment]:
        """The assignments of pod sets that must get the same flavors: usually it is one."""
        plans = [self.queue.plan(self.workload.pod_sets[i].template, counts[i], self.snapshot.flavors) for i in members]
        plan = plans[0] if len(plans) == 1 else self._common_plan(members, plans)
        found = self._search(plan, members, usage)
        facts, attempts = tuple(found.facts), tuple(found.attempts)
        assignments = []
        for index, own in zip(members, plans, strict=True):
            choices = found.choices
            if len(plans) > 1:
                choices = {r: choices[r] for r, _ in own.requests if r in choices}
            name = self.workload.pod_sets[index].name
            assignments.append(PodSetAssignment(name, counts[index], own.requests, choices, facts, attempts))
        return assignments

    def _common_plan(self, members: Sequence[int], plans: Sequence[PodSetPlan]) -> PodSetPlan:
        """What pod sets ask for together."""
        templates = tuple(self.workload.pod_sets[i].template for i in members)
        return self.queue.plan_requests(_sum([p.requests for p in plans]), templates, self.snapshot.flavors)

    def _search(self, plan: PodSetPlan, members: Sequence[int], usage: Mapping[int, int]) -> Found:
        """Choices for every resource; no choices at all, and the reason alone, when one resource has none."""
        if len(plan.groups) == 1 and not plan.unavailable:
            return self._search_group(plan.groups[0], members, usage)
        total = Found({}, [], [])
        for group in plan.groups:
            found = self._search_group(group, members, usage)
            total.attempts += found.attempts
            if not found.choices:
                return Found({}, found.facts, total.attempts)
            total.choices.update(found.choices)
            total.facts += found.facts
        if plan.unavailable:
            return Found({}, [f"resource {plan.unavailable} unavailable in ClusterQueue"], total.attempts)
        return total

    def _search_group(self, plan: GroupPlan, members: Sequence[int], usage: Mapping[int, int]) -> Found:
        """The best flavor of a resource group, and what was held against those tried; nothing once one fits."""
        fungibility = self.queue.view.fungibility
        flavors = plan.group.flavors
        facts: list[Fact] = []
        attempts: list[Attempt] = []
        best, best_quality, best_index, index = [], _WORST, -1, -1
        start = self.last.next_flavor(members[0], plan.resource) if self.last is not None else 0
        if start >= len(flavors):
            start = 0  # the queue has lost flavors since
        for index in range(start, len(flavors)):
            obstacle = self._obstacle(plan, members, index)
            if obstacle:
                facts.append(obstacle)
                attempts.append(_ruled_out(plan, index, obstacle))
                continue
            trial = _Trial(self, plan, index)
            found, quality = trial.weigh(usage)
            if trial.facts or trial.borrow:
                facts += trial.facts
                attempts.append(trial.attempt(quality))
            goes_on = _should_go_on(quality, fungibility)
            if not goes_on or _is_preferred(quality, best_quality, fungibility):
                best, best_quality, best_index = found, quality, index
            if not goes_on:
                break
        tried = SCAN_DONE if index == len(flavors) - 1 else index
        choices = {}
        for (resource, _), fr, quality in zip(plan.requests, plan.ids[best_index], best, strict=False):
            choices[resource] = Choice(flavors[best_index], fr, quality.possibility.mode, quality.borrow, tried)
        return Found(choices, [] if best_quality.possibility is _P_FIT else facts, attempts)

    def _obstacle(self, plan: GroupPlan, members: Sequence[int], index: int) -> str:
        """What rules a flavor out, whatever its quota; '' if nothing does."""
        nominated, flavor, resource = self.nominated, plan.group.flavors[index], plan.resource
        if nominated and not any(i < len(nominated) and nominated[i].get(resource) == flavor for i in members):
            return f"skipping flavor {flavor} as it is not found in the nomination mapping for resource {resource}"
        return plan.obstacles[index]


class _Trial:
    """How one flavor does for all that is asked of a group."""

    __slots__ = ("borrow", "facts", "index", "no_fit_reason", "plan", "search")

    def __init__(self, search: FlavorSearch, plan: GroupPlan, index: int) -> None:
        self.search = search
        self.plan = plan
        self.index = index
        self.borrow = 0
        self.facts: list[Fact] = []
        self.no_fit_reason = ""

    def weigh(self, usage: Mapping[int, int]) -> tuple[list[Quality], Quality]:
        """How each resource could be had, and the worst of them: so good is the flavor."""
        fungibility = self.search.queue.view.fungibility
        worst = _BEST
        found = []
        for (resource, amount), fr in zip(self.plan.requests, self.plan.ids[self.index], strict=True):
            quality = self._weigh(resource, fr, amount, usage.get(fr, 0))
            self.borrow = max(self.borrow, quality.borrow)
            if quality is not _BEST and (worst is _BEST or _is_preferred(worst, quality, fungibility)):
                worst = quality
            found.append(quality)
        return found, worst

    def _weigh(self, resource: str, fr: int, amount: int, assumed: int) -> Quality:
        """How one resource could be had, on top of what earlier pod sets take."""
        search = self.search
        node = search.queue.node
        total = assumed + amount
        if total > node.potential[fr]:
            flavor = self.plan.group.flavors[self.index]
            self.facts.append(TooLarge(resource, flavor, assumed, amount, node.potential[fr]))
            self.no_fit_reason = worse(self.no_fit_reason, EXCEEDS_MAX_QUOTA)
            return _NO_FIT
        borrow, may_reclaim = lowest_fitting_height(node, fr, total)
        free = max(0, available(node, fr))
        if total <= free:
            return Quality(_P_FIT, borrow) if borrow else _BEST
        self.facts.append(Short(resource, self.plan.group.flavors[self.index], total - free))
        if node.subtree[fr] >= total or may_reclaim or self._may_preempt_while_borrowing():
            return Quality(*search.oracle(fr, total))
        self.no_fit_reason = worse(self.no_fit_reason, WAITING_FOR_QUOTA)
        return Quality(_P_NO_FIT, borrow)

    def _may_preempt_while_borrowing(self) -> bool:
        preemption = self.search.queue.view.preemption
        if preemption.borrow_within_cohort:
            return True
        return self.search.fair_sharing and preemption.reclaim_within_cohort != "Never"

    def attempt(self, quality: Quality) -> Attempt:
        """What came of it, for those who ask."""
        group = self.plan.group
        return Attempt(
            group.flavors[self.index],
            group.number,
            quality.possibility,
            self.borrow,
            tuple(self.facts),
            self.no_fit_reason,
        )


def _ruled_out(plan: GroupPlan, index: int, obstacle: str) -> Attempt:
    group = plan.group
    return Attempt(group.flavors[index], group.number, _P_NO_FIT, 0, (obstacle,), NO_MATCHING_FLAVOR)


def _add_usage(usage: dict[int, int], pod_set: PodSetAssignment) -> int:
    """Count what a pod set takes; returns from how far its quota comes."""
    borrow = 0
    choices = pod_set.choices
    for resource, amount in pod_set.requests:
        choice = choices.get(resource)
        if choice is not None:
            borrow = max(borrow, choice.borrow)
            usage[choice.fr] = usage.get(choice.fr, 0) + amount
    return borrow


def _sum(requests: Sequence[Requests]) -> Requests:
    total: dict[str, int] = {}
    for one in requests:
        for resource, amount in one:
            total[resource] = total.get(resource, 0) + amount
    return tuple(sorted(total.items(), key=lambda item: resource_order(item[0])))


def _is_preferred(a: Quality, b: Quality, fungibility: Fungibility) -> bool:
    """Whether a is better than b under the queue's preference."""
    if a.possibility is _P_NO_FIT:
        return False
    if b.possibility is _P_NO_FIT:
        return True
    a_hopeless, b_hopeless = a.possibility is _P_NO_CANDIDATES, b.possibility is _P_NO_CANDIDATES
    if a_hopeless != b_hopeless:
        return b_hopeless
    if fungibility.prefer_preemption:
        return (-a.borrow, a.possibility) > (-b.borrow, b.possibility)
    return (a.possibility, -a.borrow) > (b.possibility, -b.borrow)


def _should_go_on(quality: Quality, fungibility: Fungibility) -> bool:
    """Whether to look at the next flavor too."""
    possibility = quality.possibility
    if possibility <= _P_NO_CANDIDATES:
        return True
    if possibility < _P_FIT and fungibility.try_next_when_preempting:
        return True
    return quality.borrow != 0 and fungibility.try_next_when_borrowing


def is_outdated(last: LastAssignment, queue: ClusterQueue, cycle: int, workload: WorkloadView) -> bool:
    """Whether an earlier search no longer describes things, and the next one starts over."""
    if last.shape != workload.shape:
        return True
    return cycle - last.cycle > 1 and queue.generation > last.generation
