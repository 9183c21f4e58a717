"""Partial preemption in random cohorts: a slow reference finds the same targets, and the documented rules hold.

The reference computes with plain numbers. It starts from the evictions that the scheduler selects without the feature
gate, which recorded decisions of Kueue test.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

import make
from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.workload import AdmittedPodSet
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import DEFAULT_RULES, Decision, Preempt
from batchyard.scheduling.preemption.shrinking import pod_counts_after
from batchyard.sim.random_worlds import RandomChoices, SeededDraws
from yard import SchedulerBench, preemption, queue, workload

SEEDS = range(400)
WITHIN = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
RECLAIM = ("Never", "LowerPriority", "Any")


@dataclass(frozen=True)
class Holder:
    """A Workload with quota for pods of one CPU each; without `least`, it cannot be shrunk."""

    name: str
    queue: str
    pods: int
    priority: int
    created: int
    since: int
    least: int | None

    @property
    def releasable(self) -> int:
        """How many pods a partial preemption takes."""
        return 0 if self.least is None else max(0, self.pods - self.least)


@dataclass(frozen=True)
class Cohort:
    """A flat cohort with one flavor, its Workloads with quota, and the Workload that needs quota in queue `q0`."""

    nominal: dict[str, int]
    within: str
    reclaim: str
    holders: tuple[Holder, ...]
    request: int
    priority: int
    created: int

    def usage(self, freed: dict[str, int], name: str = "") -> int:
        """The used quota of a queue, or of all, after Workloads released some of their pods."""
        return sum(h.pods - freed.get(h.name, 0) for h in self.holders if name in ("", h.queue))

    def fits(self, freed: dict[str, int], *, may_borrow: bool) -> bool:
        """Whether the request fits after Workloads released some of their pods."""
        if not may_borrow and self.usage(freed, "q0") + self.request > self.nominal["q0"]:
            return False
        return self.usage(freed) + self.request <= sum(self.nominal.values())


def random_cohort(seed: int) -> Cohort:
    rng = RandomChoices(SeededDraws(seed))
    nominal = {f"q{i}": rng.draw_integer(2, 8) for i in range(rng.draw_integer(1, 3))}
    holders: list[Holder] = []
    free = sum(nominal.values())
    for number in range(rng.draw_integer(1, 7)):
        pods = min(free, rng.draw_integer(1, 6))
        if pods:
            least = rng.draw_integer(0, pods) if rng.draw_bool(65) else None
            fields = (rng.draw_integer(0, 3), rng.draw_integer(0, 20), rng.draw_integer(1, 50))
            holders.append(Holder(f"w{number}", rng.choose(list(nominal)), pods, *fields, least))
            free -= pods
    request, priority = rng.draw_integer(1, nominal["q0"]), rng.draw_integer(0, 4)
    return Cohort(
        nominal, rng.choose(WITHIN), rng.choose(RECLAIM), tuple(holders), request, priority, rng.draw_integer(0, 20)
    )


def workload_of(holder: Holder) -> Obj:
    least = {} if holder.least is None else {"minCount": holder.least}
    pod_set = make.pod_set("main", holder.pods, requests={"cpu": "1"}, **least)
    annotations = {well_known.ELASTIC_JOB: "true", well_known.PARTIAL_PREEMPTION: "true"}
    obj = workload(
        holder.name, pod_sets=[pod_set], queue=holder.queue, priority=holder.priority, created=holder.created
    )
    return obj if holder.least is None else with_metadata(obj, annotations=annotations)


def decide(cohort: Cohort, *, gate: bool, fair_sharing: bool = False) -> Decision:
    """The decision about the Workload that needs quota."""
    policy = preemption(cohort.within, cohort.reclaim)
    queues = [queue(name, cpu, cohort="all", preemption=policy) for name, cpu in cohort.nominal.items()]
    bench = SchedulerBench(*queues, fair_sharing=fair_sharing)
    bench.policy = SchedulingPolicy(fair_sharing, rules=replace(DEFAULT_RULES, partial_preemption=gate))
    for each in cohort.holders:
        held = bench.hold(
            each.name, each.pods, each.queue, priority=each.priority, created=each.created, since=each.since
        )
        held.obj = workload_of(each)
        held.pod_sets = (AdmittedPodSet("main", each.pods, {"cpu": "spot"}, (("cpu", each.pods * 1000),)),)
    head = workload("new", cohort.request, queue="q0", priority=cohort.priority, created=cohort.created)
    (decision,) = bench.cycle(head)
    return decision


def targets_of(decision: Decision) -> list[tuple[str, str]]:
    """The targets in order: how each is preempted (`evict` or `shrink`), and its name."""
    targets = decision.targets if isinstance(decision, Preempt) else ()
    workloads = [target.workload for target in targets]
    return [("evict" if each.whole is None else "shrink", each.key.removeprefix("team/")) for each in workloads]


# The reference.


def eligible(cohort: Cohort, holder: Holder) -> bool:
    """Whether the policies allow to preempt a Workload."""
    is_lower = holder.priority < cohort.priority
    if holder.queue != "q0":
        return cohort.reclaim == "Any" or (cohort.reclaim == "LowerPriority" and is_lower)
    is_newer_equal = holder.priority == cohort.priority and cohort.created < holder.created
    return cohort.within != "Never" and (is_lower or (is_newer_equal and cohort.within == "LowerOrNewerEqualPriority"))


def order(holder: Holder) -> tuple[bool, int, int, str]:
    """Other queues first, then low priority, then the latest quota reservation, then the uid."""
    return holder.queue == "q0", holder.priority, -holder.since, f"uid-{holder.name}"


def offered(cohort: Cohort, *, may_borrow: bool) -> list[Holder]:
    """The Workloads that may be shrunk, in order; each only while its queue borrows from the preemptor's."""
    reclaims = cohort.usage({}, "q0") + cohort.request <= cohort.nominal["q0"]
    may_reclaim = reclaims or cohort.usage({}, "q0") < cohort.nominal["q0"]
    freed: dict[str, int] = {}
    found = []
    for holder in sorted(cohort.holders, key=order):
        if not holder.releasable or not eligible(cohort, holder):
            continue
        if holder.queue != "q0":
            borrows = cohort.usage(freed, holder.queue) > cohort.nominal[holder.queue]
            if not borrows or not may_reclaim or (may_borrow and not reclaims):
                continue
        freed[holder.name] = holder.releasable
        found.append(holder)
    return found


def reference_targets(cohort: Cohort, evictions: Sequence[str]) -> list[tuple[str, str]]:
    """The targets with partial preemption, given the evictions without it."""
    by_name = {each.name: each for each in cohort.holders}
    all_evicted = {name: by_name[name].pods for name in evictions}
    may_borrow = not cohort.fits(all_evicted, may_borrow=False)
    parts = [each for each in offered(cohort, may_borrow=may_borrow) if each.name not in evictions]
    if not parts and not any(by_name[name].releasable for name in evictions):
        return [("evict", name) for name in evictions]
    freed = {**all_evicted, **{each.name: each.releasable for each in parts}}
    kept = list(evictions)
    for name in reversed(evictions):  # shrink instead of evict, if that frees enough
        trial = {**freed, name: by_name[name].releasable}
        if by_name[name].releasable and cohort.fits(trial, may_borrow=may_borrow):
            freed = trial
            kept.remove(name)
            parts.append(by_name[name])
    parts.sort(key=order)
    result = [("evict", name) for name in kept] + [("shrink", each.name) for each in parts]
    for how in ("evict", "shrink"):  # drop what is not needed, evictions first
        for target in [each for each in reversed(result) if each[0] == how]:
            trial = {name: amount for name, amount in freed.items() if name != target[1]}
            if cohort.fits(trial, may_borrow=may_borrow):
                freed = trial
                result.remove(target)
    return result


@pytest.mark.parametrize("first_seed", range(0, SEEDS.stop, 50))
def test_scheduler_finds_the_targets_of_the_slow_reference(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        cohort = random_cohort(seed)
        evictions = [name for _, name in targets_of(decide(cohort, gate=False))]
        found = targets_of(decide(cohort, gate=True))
        assert found == (reference_targets(cohort, evictions) if evictions else []), seed


# The documented rules, for both algorithms.


def faults_of(cohort: Cohort, evictions: Sequence[str], targets: Sequence[tuple[str, str]]) -> list[str]:
    """What contradicts the rules: too little or too much is freed, or a Workload is evicted that could be shrunk."""
    by_name = {each.name: each for each in cohort.holders}
    freed = {name: by_name[name].pods if how == "evict" else by_name[name].releasable for how, name in targets}
    may_borrow = not cohort.fits({name: by_name[name].pods for name in evictions}, may_borrow=False)
    faults = [] if cohort.fits(freed, may_borrow=may_borrow) else ["too little is freed"]
    for how, name in targets:
        without = {other: amount for other, amount in freed.items() if other != name}
        if cohort.fits(without, may_borrow=may_borrow):
            faults.append(f"{how} {name} is superfluous")
        shrunk = {**freed, name: by_name[name].releasable}
        if how == "evict" and by_name[name].releasable and cohort.fits(shrunk, may_borrow=may_borrow):
            faults.append(f"{name} is evicted, but could be shrunk")
        if how == "evict" and name not in evictions:
            faults.append(f"{name} is evicted only with the feature gate")
        if how == "shrink" and not by_name[name].releasable:
            faults.append(f"{name} is shrunk below its minimum")
    return faults


@pytest.mark.parametrize("fair_sharing", [False, True])
@pytest.mark.parametrize("first_seed", range(0, SEEDS.stop, 100))
def test_targets_obey_the_documented_rules(first_seed: int, fair_sharing: bool) -> None:
    for seed in range(first_seed, first_seed + 100):
        cohort = random_cohort(seed)
        evictions = [name for _, name in targets_of(decide(cohort, gate=False, fair_sharing=fair_sharing))]
        targets = targets_of(decide(cohort, gate=True, fair_sharing=fair_sharing))
        assert bool(targets) is bool(evictions), seed
        assert not evictions or faults_of(cohort, evictions, targets) == [], seed


def test_shrunk_workloads_keep_their_minimum() -> None:
    for seed in SEEDS:
        decision = decide(random_cohort(seed), gate=True)
        for target in decision.targets if isinstance(decision, Preempt) else ():
            if target.workload.whole is not None:
                kept, before = pod_counts_after(target.workload)
                least = {each.name: each.least for each in random_cohort(seed).holders}
                minimum = least[target.workload.key.removeprefix("team/")]
                assert minimum is not None
                assert kept == minimum < before, seed


def test_random_cohorts_shrink_and_evict() -> None:
    """Otherwise the rules would hold trivially."""
    kinds = [how for seed in SEEDS for how, _ in targets_of(decide(random_cohort(seed), gate=True))]
    assert min(kinds.count("evict"), kinds.count("shrink")) > 20
