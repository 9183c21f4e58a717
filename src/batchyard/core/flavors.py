"""Which flavor for each resource: the search through a resource group's flavors.

For each resource group the flavors are tried in order; each is as good as the worst of the group's resources in it.
The search stops at a flavor good enough for the queue's fungibility rules, else the best one counts. A later search
goes on from where this one stopped. Source: Kueue's pkg/scheduler/flavorassigner/flavorassigner.go.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from batchyard.api.views.pod import Requests, ordered
from batchyard.api.views.queues import Fungibility
from batchyard.api.views.workload import PodSet, WorkloadView
from batchyard.core.assignment import (
    MODES,
    SCAN_DONE,
    Assignment,
    Attempt,
    Choice,
    LastAssignment,
    Mode,
    PodSetAssignment,
    Possibility,
)
from batchyard.core.queue import ClusterQueue, GroupPlan, PodSetPlan
from batchyard.core.quota import available, lowest_fitting_height
from batchyard.core.reasons import EXCEEDS_MAX_QUOTA, NO_MATCHING_FLAVOR, WAITING_FOR_QUOTA, Fact, Short, TooLarge
from batchyard.core.reasons import most_severe as worse
from batchyard.core.snapshot import Snapshot

#: How well a flavor would do, and the height it would borrow from.
Quality: TypeAlias = tuple[Possibility, int]
#: Asks how preemption could free an amount of a flavor-resource that now lies at some height.
Oracle: TypeAlias = Callable[[int, int, int], Quality]
#: The flavors of an earlier nomination, which a second look may not leave: by pod set, by resource.
Nominated: TypeAlias = Sequence[Mapping[str, str]]

_WORST_BORROW: Final = 1 << 60

# Members looked up once: an attribute of an enum costs more than what is done with it here.
_P_NO_FIT: Final = Possibility.NO_FIT
_P_NO_CANDIDATES: Final = Possibility.NO_CANDIDATES
_P_FIT: Final = Possibility.FIT
_M_NO_FIT: Final = Mode.NO_FIT
_M_FIT: Final = Mode.FIT

_WORST: Final[Quality] = (_P_NO_FIT, _WORST_BORROW)
_BEST: Final[Quality] = (_P_FIT, 0)
_NO_FIT: Final[Quality] = (_P_NO_FIT, 0)


#: What a search came to: the choices, and what was held against the flavors tried.
Found: TypeAlias = tuple[Mapping[str, Choice], Sequence[Fact], Sequence[Attempt]]


@dataclass(slots=True)
class FlavorSearch:
    """One Workload's search. `assign()` may be called with other pod counts."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    #: None: the queue preempts nobody.
    oracle: Oracle | None
    last: LastAssignment | None
    fair_sharing: bool = False
    nominated: Nominated = ()

    def assign(self, counts: Sequence[int]) -> Assignment:
        """Flavors for all pod sets, or how far it came: after a pod set without flavor no more are tried."""
        pod_sets: list[PodSetAssignment] = []
        usage: dict[int, int] = {}
        borrow, mode = 0, _M_FIT
        for members in self.workload.pod_set_groups:
            if len(members) == 1:
                found = [self._find(members[0], counts, usage)]
            else:
                found = self._find_together(members, counts, usage)
            for pod_set in found:
                pod_sets.append(pod_set)
                height = _add_usage(usage, pod_set)
                if height > borrow:
                    borrow = height
                if pod_set.mode < mode:
                    mode = pod_set.mode
            if mode is _M_NO_FIT and any(p.requests and not p.choices and p.facts for p in found):
                break
        return Assignment(pod_sets, mode if pod_sets else _M_NO_FIT, borrow, tuple(usage.items()))

    def _find(self, index: int, counts: Sequence[int], usage: Mapping[int, int]) -> PodSetAssignment:
        """The assignment of a pod set on its own."""
        pod_set, count = self.workload.pod_sets[index], counts[index]
        plan = self.queue.plan(pod_set.template, count, self.snapshot.obstacles)
        return _assigned(pod_set, count, plan.requests, self._search(plan, (index,), usage))

    def _find_together(
        self, members: Sequence[int], counts: Sequence[int], usage: Mapping[int, int]
    ) -> list[PodSetAssignment]:
        """The assignments of pod sets that must get the same flavors."""
        pod_sets, obstacles = [self.workload.pod_sets[i] for i in members], self.snapshot.obstacles
        plans = [self.queue.plan(p.template, counts[i], obstacles) for i, p in zip(members, pod_sets, strict=True)]
        total, templates = _sum([plan.requests for plan in plans]), [p.template for p in pod_sets]
        common = self.queue.plan_requests(total, templates, obstacles)
        chosen, facts, attempts = self._search(common, members, usage)
        assignments = []
        for index, pod_set, plan in zip(members, pod_sets, plans, strict=True):
            own = {r: chosen[r] for r, _ in plan.requests if r in chosen}
            assignments.append(_assigned(pod_set, counts[index], plan.requests, (own, facts, attempts)))
        return assignments

    def _search(self, plan: PodSetPlan, members: Sequence[int], usage: Mapping[int, int]) -> Found:
        """Choices for every resource; no choices at all, and the reason alone, when one resource has none."""
        if len(plan.groups) == 1 and not plan.unavailable:
            return self._search_group(plan.groups[0], members, usage)
        choices: dict[str, Choice] = {}
        facts: list[Fact] = []
        attempts: list[Attempt] = []
        for group in plan.groups:
            chosen, more_facts, more_attempts = self._search_group(group, members, usage)
            attempts += more_attempts
            if not chosen:
                return {}, more_facts, attempts
            choices.update(chosen)
            facts += more_facts
        if plan.unavailable:
            return {}, [f"resource {plan.unavailable} unavailable in ClusterQueue"], attempts
        return choices, facts, attempts

    def _search_group(self, plan: GroupPlan, members: Sequence[int], usage: Mapping[int, int]) -> Found:
        """The best flavor of a resource group, and what was held against those tried; nothing once one fits."""
        fungibility = self.queue.view.fungibility
        flavors = plan.group.flavors
        facts: list[Fact] = []
        attempts: list[Attempt] = []
        best: Sequence[Quality] = ()
        best_quality, best_index, index = _WORST, -1, -1
        start = 0 if self.last is None else _start(self.last, plan, members)
        for index in range(start, len(flavors)):
            obstacle = plan.obstacles[index] if not self.nominated else self._obstacle(plan, members, index)
            if obstacle:
                facts.append(obstacle)
                attempts.append(_ruled_out(plan, index, obstacle))
                continue
            if self._fits_in_own_quota(plan, index, usage):
                return _choices(plan, index, [_BEST] * len(plan.asks), index), (), attempts
            found, quality, attempt = self._weigh(plan, index, usage)
            if attempt.facts or attempt.borrow:
                facts += attempt.facts
                attempts.append(attempt)
            goes_on = _should_go_on(quality, fungibility)
            if not goes_on or _is_preferred(quality, best_quality, fungibility):
                best, best_quality, best_index = found, quality, index
            if not goes_on:
                break
        choices = _choices(plan, best_index, best, index) if best else {}
        return choices, () if best_quality[0] is _P_FIT else facts, attempts

    def _obstacle(self, plan: GroupPlan, members: Sequence[int], index: int) -> str:
        """What rules a flavor out, whatever its quota, when only nominated ones may be had; '' if nothing does."""
        nominated, flavor, resource = self.nominated, plan.group.flavors[index], plan.resource
        if not any(i < len(nominated) and nominated[i].get(resource) == flavor for i in members):
            return f"skipping flavor {flavor} as it is not found in the nomination mapping for resource {resource}"
        return plan.obstacles[index]

    def _fits_in_own_quota(self, plan: GroupPlan, index: int, usage: Mapping[int, int]) -> bool:
        """Whether a flavor has room for all without borrowing: then no more need be known of it."""
        node = self.queue.node
        used, quota = node.usage, node.subtree
        for _, amount, ids in plan.asks:
            fr = ids[index]
            total = amount + usage.get(fr, 0) if usage else amount
            if used[fr] + total > quota[fr] or total > available(node, fr):
                return False
        return True

    def _weigh(
        self, plan: GroupPlan, index: int, usage: Mapping[int, int]
    ) -> tuple[Sequence[Quality], Quality, Attempt]:
        """How each resource could be had in a flavor, and the worst of them: so good is the flavor."""
        node, group, fungibility = self.queue.node, plan.group, self.queue.view.fungibility
        flavor, potential, quota, oracle = group.flavors[index], node.potential, node.subtree, self.oracle
        facts: list[Fact] = []
        found: list[Quality] = []
        worst, highest, no_fit_reason = _BEST, 0, ""
        for resource, amount, ids in plan.asks:
            fr = ids[index]
            assumed = usage.get(fr, 0)
            total = assumed + amount
            if total > potential[fr]:
                facts.append(TooLarge(resource, flavor, assumed, amount, potential[fr]))
                no_fit_reason = worse(no_fit_reason, EXCEEDS_MAX_QUOTA)
                quality = _NO_FIT
            else:
                borrow, may_reclaim = lowest_fitting_height(node, fr, total)
                free = available(node, fr)
                if total <= free or total == 0:
                    quality = (_P_FIT, borrow)
                else:
                    facts.append(Short(resource, flavor, total - free if free > 0 else total))
                    if quota[fr] >= total or may_reclaim or self._may_preempt_while_borrowing():
                        quality = oracle(fr, total, borrow) if oracle is not None else (_P_NO_CANDIDATES, borrow)
                    else:
                        no_fit_reason = worse(no_fit_reason, WAITING_FOR_QUOTA)
                        quality = (_P_NO_FIT, borrow)
            if quality[1] > highest:
                highest = quality[1]
            if quality != worst and (worst is _BEST or _is_preferred(worst, quality, fungibility)):
                worst = quality
            found.append(quality)
        return found, worst, Attempt(flavor, group.number, worst[0], highest, tuple(facts), no_fit_reason)

    def _may_preempt_while_borrowing(self) -> bool:
        preemption = self.queue.view.preemption
        return preemption.borrow_within_cohort or (self.fair_sharing and preemption.reclaim_within_cohort != "Never")


def _start(last: LastAssignment, plan: GroupPlan, members: Sequence[int]) -> int:
    """The flavor to go on with; the first, if the queue has lost flavors since."""
    start = last.next_flavor(members[0], plan.resource)
    return start if start < len(plan.group.flavors) else 0


def _assigned(pod_set: PodSet, count: int, requests: Requests, found: Found) -> PodSetAssignment:
    choices, facts, attempts = found
    mode = min([choice.mode for choice in choices.values()], default=_M_NO_FIT) if facts else _M_FIT
    return PodSetAssignment(pod_set.name, count, requests, choices, mode, tuple(facts), tuple(attempts))


def _choices(plan: GroupPlan, index: int, qualities: Iterable[Quality], last: int) -> dict[str, Choice]:
    """A flavor chosen for all that is asked for; `last` is the one last looked at."""
    flavors = plan.group.flavors
    flavor, tried = flavors[index], SCAN_DONE if last == len(flavors) - 1 else last
    return {
        resource: Choice(flavor, ids[index], MODES[possibility], borrow, tried)
        for (resource, _, ids), (possibility, borrow) in zip(plan.asks, qualities, strict=True)
    }


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
            if choice.borrow > borrow:
                borrow = choice.borrow
            usage[choice.fr] = usage.get(choice.fr, 0) + amount
    return borrow


def _sum(requests: Sequence[Requests]) -> Requests:
    total: dict[str, int] = {}
    for one in requests:
        for resource, amount in one:
            total[resource] = total.get(resource, 0) + amount
    return ordered(total)


def _is_preferred(a: Quality, b: Quality, fungibility: Fungibility) -> bool:
    """Whether a is better than b under the queue's preference."""
    (a_possibility, a_borrow), (b_possibility, b_borrow) = a, b
    if a_possibility is _P_NO_FIT:
        return False
    if b_possibility is _P_NO_FIT:
        return True
    a_hopeless, b_hopeless = a_possibility is _P_NO_CANDIDATES, b_possibility is _P_NO_CANDIDATES
    if a_hopeless != b_hopeless:
        return b_hopeless
    if fungibility.prefer_preemption:
        return (-a_borrow, a_possibility) > (-b_borrow, b_possibility)
    return (a_possibility, -a_borrow) > (b_possibility, -b_borrow)


def _should_go_on(quality: Quality, fungibility: Fungibility) -> bool:
    """Whether to look at the next flavor too."""
    possibility, borrow = quality
    if possibility <= _P_NO_CANDIDATES:
        return True
    if possibility < _P_FIT and fungibility.try_next_when_preempting:
        return True
    return borrow != 0 and fungibility.try_next_when_borrowing


def is_outdated(last: LastAssignment, queue: ClusterQueue, cycle: int, workload: WorkloadView) -> bool:
    """Whether an earlier search no longer describes things, and the next one starts over."""
    if last.shape != workload.shape:
        return True
    return cycle - last.cycle > 1 and queue.generation > last.generation
