"""A slice of an elastic job replaces the job's earlier slice in the scheduling cycle."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.validation.workload import workload_update_errors
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy, holder_from_admission
from batchyard.scheduling.decisions import DEFAULT_RULES, Admit, DecisionRules, StayPending
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.slices import replacement_message, search_ordered_counts
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.sim.random_worlds import RandomChoices, SeededDraws
from stage import Stage, condition_state
from yard import SchedulerBench, group, line, preemption, queue, quota, workload


def slice_of(name: str, *counts: int, replaces: str = "", cpu: int = 1, **fields: Any) -> Obj:
    """A slice of an elastic job, with a pod set for each count; `replaces` is the name of the replaced slice."""
    annotations = {well_known.ELASTIC_JOB: "true"}
    if replaces:
        annotations[well_known.REPLACEMENT_FOR] = replaces if "/" in replaces else f"team/{replaces}"
    pod_sets = [make.pod_set(f"ps{i}", count, requests={"cpu": str(cpu)}) for i, count in enumerate(counts)]
    return with_metadata(workload(name, pod_sets=pod_sets, **fields), annotations=annotations)


def bench_with(*objects: Obj, first: Sequence[int] = (2,), **fields: Any) -> SchedulerBench:
    """A bench in which the slice `old` holds quota."""
    bench = SchedulerBench(*objects)
    hold(bench, slice_of("old", *first, **fields))
    return bench


def hold(bench: SchedulerBench, obj: Obj) -> None:
    bench.snapshot.add_holder(holder_from_admission(bench.admission(obj), make.at(1), admitted=True))


def test_replacement_requests_only_the_difference() -> None:
    bench = bench_with(queue("cq", 5), first=(4,))
    decision = bench.admission(slice_of("new", 5, replaces="old"))
    assert (line(decision), [amount for _, amount in decision.assignment.usage]) == ("new: ps0 5 cpu=spot", [1000])
    assert decision.replaced is not None
    assert decision.replaced.key == "team/old"


def test_admitted_replacement_holds_its_full_count() -> None:
    bench = bench_with(queue("cq", 5), first=(4,))
    hold(bench, slice_of("new", 5, replaces="old"))
    assert bench.used("cq") == 9000  # until the replaced slice finishes
    bench.snapshot.remove_holder("team/old")
    assert bench.used("cq") == 5000


def test_waiting_replacement_leaves_the_old_slice_running() -> None:
    bench = bench_with(queue("cq", 5), first=(4,))
    decision = bench.wait(slice_of("new", 7, replaces="old"))
    assert decision.why.message.endswith("insufficient unused quota for cpu in flavor spot, 2 more needed")
    assert bench.snapshot.holder("team/old") is not None


def test_replacement_keeps_the_flavor_of_the_old_slice() -> None:
    bench = bench_with(queue("cq", groups=[group(spot={"cpu": 2}, reserved={"cpu": 9})]))
    decision = bench.wait(slice_of("new", 4, replaces="old"))
    assert decision.why.message == (
        "couldn't assign flavors to pod set ps0: "
        "could not assign reserved flavor since the original workload is assigned: spot, "
        "insufficient unused quota for cpu in flavor spot, 2 more needed"
    )


def test_mismatched_flavor_without_quota_has_both_reasons() -> None:
    bench = bench_with(queue("cq", groups=[group(spot={"cpu": 2}, reserved={"cpu": 1})]))
    message = bench.wait(slice_of("new", 6, replaces="old")).why.message
    assert "could not assign reserved flavor since the original workload is assigned: spot" in message
    assert "insufficient quota for cpu in flavor reserved" in message


@pytest.mark.parametrize("replaces", ["gone", "other/old"])
def test_replacement_of_absent_or_foreign_slice_requests_everything(replaces: str) -> None:
    bench = bench_with(queue("cq", 5), first=(4,))
    assert isinstance(bench.cycle(slice_of("new", 5, replaces=replaces))[0], StayPending)


def test_gate_off_makes_the_replacement_an_ordinary_workload() -> None:
    bench = bench_with(queue("cq", 5), first=(4,))
    bench.policy = SchedulingPolicy(rules=replace(DEFAULT_RULES, elastic_jobs=False))
    assert isinstance(bench.cycle(slice_of("new", 5, replaces="old"))[0], StayPending)


def test_preemption_for_the_difference_spares_the_old_slice() -> None:
    bench = bench_with(queue("cq", 6, preemption=preemption("LowerPriority")), first=(4,))
    bench.hold("low", 2, priority=-1)
    decision = bench.preemption(slice_of("new", 6, replaces="old"))
    assert [target.workload.key for target in decision.targets] == ["team/low"]
    assert decision.why.message.endswith("Pending the preemption of 1 workload(s)")


def test_old_slice_of_lower_priority_may_be_preempted() -> None:
    bench = bench_with(queue("cq", 4, preemption=preemption("LowerPriority")), first=(4,), priority=0)
    (decision,) = bench.cycle(slice_of("new", 5, replaces="old", priority=1))
    assert not isinstance(decision, Admit)


def test_growing_and_shrinking_pod_sets_are_balanced() -> None:
    bench = bench_with(queue("cq", 5), first=(4, 1))
    decision = bench.admission(slice_of("new", 1, 4, replaces="old"))
    assert [amount for _, amount in decision.assignment.usage] == [0]


def test_released_usage_counts_in_the_queue_but_not_in_its_cohort() -> None:
    groups = [group(spot={"cpu": quota(4)}, other={"cpu": quota(4)})]
    bench = SchedulerBench(queue("cq", groups=groups, cohort="all"), queue("b", 0, cohort="all"))
    spot = bench.snapshot.flavor_resource_id("spot", "cpu")
    with bench.snapshot.what_if():
        bench.snapshot.add_usage(bench.snapshot.queues["cq"], ((spot, 3000),))
        bench.snapshot.add_difference(bench.snapshot.queues["cq"], ((spot, -2000),))
        assert (bench.used("cq"), bench.used("all")) == (1000, 3000)
    assert (bench.used("cq"), bench.used("all")) == (0, 0)


def test_fit_check_after_another_admission_excludes_the_old_slice() -> None:
    """Kueue adds the difference and removes the old slice's usage, so the check is looser than the sum."""
    bench = SchedulerBench(queue("cq", 4, cohort="all"), queue("b", 1, cohort="all"))
    hold(bench, slice_of("old", 4))
    assert bench.decide(slice_of("new", 5, replaces="old"), workload("b1", 1, queue="b")) == [
        "b1: main 1 cpu=spot",
        "new: ps0 5 cpu=spot",
    ]


def test_scaled_down_slice_uses_its_share_of_the_admission() -> None:
    obj = slice_of("old", 2)
    obj = {**obj, "status": {"admission": make.admission("cq", ps0=4), "conditions": [make.condition("QuotaReserved")]}}
    assert [p.pods for p in workload_view(obj).admitted_pod_sets] == [2]


def test_message_names_workload_and_job() -> None:
    assert replacement_message("u-2", "j-1") == (
        "Replaced to accommodate a workload (UID: u-2, JobUID: j-1) due to workload slice aggregation"
    )


# A pod set that had no pods.

CHANGES_UNUSED = replace(DEFAULT_RULES, changes_unused_flavors=True)


@pytest.mark.parametrize(("rules", "admitted"), [(DEFAULT_RULES, False), (CHANGES_UNUSED, True)])
def test_pod_set_without_pods_may_get_another_flavor_with_its_gate(rules: DecisionRules, admitted: bool) -> None:
    bench = bench_with(queue("cq", groups=[group(spot={"cpu": 2}, reserved={"cpu": 9})]), first=(0,))
    bench.policy = SchedulingPolicy(rules=rules)
    (decision,) = bench.cycle(slice_of("new", 4, replaces="old"))
    assert isinstance(decision, Admit) is admitted
    if admitted:
        assert line(decision) == "new: ps0 4 cpu=reserved"


def test_pod_set_with_pods_keeps_its_flavor_also_with_the_gate() -> None:
    bench = bench_with(queue("cq", groups=[group(spot={"cpu": 2}, reserved={"cpu": 9})]), first=(1,))
    bench.policy = SchedulingPolicy(rules=CHANGES_UNUSED)
    assert isinstance(bench.cycle(slice_of("new", 4, replaces="old"))[0], StayPending)


# The largest pod counts of a slice that grows in part.


def ordered_counts(
    targets: Sequence[int], baselines: Sequence[int], room: Sequence[int]
) -> tuple[Sequence[int] | None, list[Sequence[int]]]:
    """The counts that are found if each pod set has its own room, and all counts that were tried."""
    tried: list[Sequence[int]] = []

    def assign(counts: Sequence[int]) -> Sequence[int]:
        tried.append(counts)
        return counts

    def fits(counts: Sequence[int]) -> bool:
        return all(n <= free for n, free in zip(counts, room, strict=True))

    return search_ordered_counts(targets, baselines, assign, fits), tried


@pytest.mark.parametrize("free", range(5, 11))
def test_ordered_search_returns_the_largest_count_of_one_pod_set(free: int) -> None:
    assert ordered_counts([10], [5], [free])[0] == [free]


def test_ordered_search_returns_none_if_the_baselines_do_not_fit() -> None:
    found, tried = ordered_counts([10, 4], [5, 2], [4, 4])
    assert found is None
    assert [5, 2] in tried


def test_ordered_search_without_anything_to_reduce_tries_nothing() -> None:
    assert ordered_counts([3, 2], [3, 2], [9, 9]) == (None, [])


def test_ordered_search_shrinks_the_last_pod_set_first() -> None:
    """Both pod sets share the room: the first keeps all its pods, the last as many as fit."""
    tried = search_ordered_counts([4, 6], [1, 1], list, lambda counts: sum(counts) <= 7)
    assert tried == [4, 3]


def test_ordered_search_shrinks_an_earlier_pod_set_if_the_last_is_at_its_baseline() -> None:
    tried = search_ordered_counts([4, 6], [1, 1], list, lambda counts: sum(counts) <= 3)
    assert tried == [2, 1]


def test_ordered_search_grows_pod_sets_that_were_shrunk_without_need() -> None:
    """Only the first pod set lacks room, so the others get all their pods back."""
    assert ordered_counts([6, 5, 3], [1, 1, 0], [2, 9, 9])[0] == [2, 5, 3]


def test_ordered_search_is_binary() -> None:
    assert len(ordered_counts([100_000], [0], [54_321])[1]) <= 18
    assert len(ordered_counts([100_000, 100_000], [0, 0], [54_321, 77])[1]) <= 3 * 18


@pytest.mark.parametrize("seed", range(20))
def test_ordered_search_agrees_with_a_linear_search(seed: int) -> None:
    """The linear search lowers the last pod set one by one, then the one before; then raises each as far as it fits."""
    rng = RandomChoices(SeededDraws(seed))
    targets = [rng.draw_integer(0, 5) for _ in range(3)]
    baselines = [rng.draw_integer(0, target) for target in targets]
    weights, free = [rng.draw_integer(1, 3) for _ in targets], rng.draw_integer(0, 25)

    def fits(counts: Sequence[int]) -> bool:
        return sum(weight * n for weight, n in zip(weights, counts, strict=True)) <= free

    found = search_ordered_counts(targets, baselines, list, fits)
    assert found == (None if targets == baselines else linear_counts(targets, baselines, fits))


def linear_counts(targets: list[int], baselines: list[int], fits: Callable[[Sequence[int]], bool]) -> list[int] | None:
    counts = list(targets)
    while not fits(counts):
        index = next((i for i in (2, 1, 0) if counts[i] > baselines[i]), None)
        if index is None:
            return None
        counts[index] -= 1
    if sum(n < target for n, target in zip(counts, targets, strict=True)) > 1:
        for i in range(3):
            while counts[i] < targets[i] and fits([n + (j == i) for j, n in enumerate(counts)]):
                counts[i] += 1
    return counts


def test_preemption_targets_of_a_slice_that_grows_in_part_are_sized_by_its_assigned_count() -> None:
    """With the 8 pods that it requests, no preemption would free enough."""
    bench = bench_with(queue("cq", 6, preemption=preemption("LowerPriority")))
    bench.policy = SchedulingPolicy(rules=replace(DEFAULT_RULES, partial_scale_up=True))
    bench.hold("low", 3, priority=-1)
    growing = slice_of("new", 8, replaces="old")
    annotations = {**growing["metadata"]["annotations"], well_known.SCALE_UP_STRATEGY: "partial"}
    growing["spec"]["podSets"][0]["minCount"] = 2
    decision = bench.preemption(with_metadata(growing, annotations=annotations))
    assert [target.workload.key for target in decision.targets] == ["team/low"]
    assert decision.why.message.endswith("3 more needed. Pending the preemption of 1 workload(s)")


# Workloads that are no slices of elastic jobs, but name one that they replace.


def replacing_stage() -> Stage:
    """A queue of 10 CPUs with a Workload of 4, and one of 8 that replaces it."""
    index = SchedulerCache()
    stage = Stage(
        Scheduler(index, SchedulingPolicy()), WorkloadLifecycle(), QueueStatusController(index, fair_sharing=False)
    )
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 10), make.local_queue("cq", cluster_queue="cq"))
    stage.put(two_pod_sets("old", 1))
    stage.put(with_metadata(two_pod_sets("new", 3), annotations={well_known.REPLACEMENT_FOR: "team/old"}))
    stage.run(2)
    return stage


def two_pod_sets(name: str, coordinators: int) -> Obj:
    pod_sets = [make.pod_set("worker", 2, requests={"cpu": "1"})]
    return workload(name, pod_sets=[*pod_sets, make.pod_set("coordinator", coordinators, requests={"cpu": "2"})])


def used_quota(stage: Stage) -> str:
    (usage,) = stage.get(scheme.CLUSTER_QUEUE, "cq", "")["status"]["flavorsUsage"]
    total: str = usage["resources"][0]["total"]
    return total


def test_workload_replaces_one_that_is_not_elastic() -> None:
    stage = replacing_stage()
    assert condition_state(stage.workload("old"), "Finished")[1] == "WorkloadSliceReplaced"
    assert lifecycle.is_admitted(stage.workload("new"))
    assert used_quota(stage) == "8"


def test_count_of_a_replacement_may_be_reduced_in_place() -> None:
    stage = replacing_stage()
    old = stage.workload("new")
    pod_sets = [old["spec"]["podSets"][0], {**old["spec"]["podSets"][1], "count": 2}]
    new = {**old, "spec": {**old["spec"], "podSets": pod_sets}}
    assert list(workload_update_errors(new, old)) == []
    stage.put(new)
    stage.run(4)
    assert used_quota(stage) == "6"
