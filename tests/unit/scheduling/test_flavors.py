"""Flavor assignment for each resource of each pod set."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from yard import SchedulerBench, cohort, flavors_of, group, queue, quota, workload

EXCEEDS = (
    "insufficient quota for {0} in flavor {1}, previously considered podsets requests ({2})"
    " + current podset request ({3}) > maximum capacity ({4})"
)


def two_flavors(**fields: Any) -> SchedulerBench:
    """Flavors `one` and `two`, 4 cpu each."""
    return SchedulerBench(queue("cq", groups=[group(one={"cpu": 4}, two={"cpu": 4})], **fields))


def pods(name: str, count: int = 1, **requests: Any) -> Obj:
    return make.pod_set(name, count, requests=requests)


def assigned_flavors(bench: SchedulerBench, obj: Obj) -> str:
    return flavors_of(bench.admission(obj))


def test_first_fitting_flavor_is_assigned() -> None:
    bench = two_flavors()
    assert assigned_flavors(bench, workload(cpu=4)) == "main 1 cpu=one"
    bench.hold("x", 1, flavor="one")
    assert assigned_flavors(bench, workload(cpu=4)) == "main 1 cpu=two"


def test_all_resources_of_group_get_same_flavor() -> None:
    bench = SchedulerBench(
        queue("cq", groups=[group(one={"cpu": 9, "memory": "1Gi"}, two={"cpu": 2, "memory": "8Gi"})])
    )
    obj = workload(pod_sets=[pods("main", cpu="2", memory="4Gi")])
    assert assigned_flavors(bench, obj) == "main 1 cpu=two memory=two"


def test_resource_groups_are_searched_independently() -> None:
    bench = SchedulerBench(
        queue("cq", groups=[group(one={"cpu": 1}, two={"cpu": 4}), group(v100={"gpu": 2}, a100={"gpu": 8})])
    )
    assert assigned_flavors(bench, workload(pod_sets=[pods("main", cpu="3", gpu=4)])) == "main 1 cpu=two gpu=a100"


def test_workload_waits_if_any_resource_group_has_no_quota() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4}), group(v100={"gpu": 2})]))
    assert bench.decide(workload(pod_sets=[pods("main", cpu="3", gpu=4)])) == [
        "wl waits (ExceedsMaxQuota): couldn't assign flavors to pod set main: " + EXCEEDS.format("gpu", "v100", 0, 4, 2)
    ]


def test_uncovered_resource_is_unavailable() -> None:
    bench = two_flavors()
    assert bench.decide(workload(pod_sets=[pods("main", cpu="1", gpu=1)])) == [
        "wl waits (NoMatchingFlavor): couldn't assign flavors to pod set main: resource gpu unavailable in ClusterQueue"
    ]


def test_zero_request_needs_no_resource_group() -> None:
    assert assigned_flavors(two_flavors(), workload(pod_sets=[pods("main", cpu="1", gpu=0)])) == "main 1 cpu=one"


def test_zero_request_gets_flavor_of_its_resource_group() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4}), group(v100={"gpu": 0})]))
    assert assigned_flavors(bench, workload(pod_sets=[pods("main", cpu="1", gpu=0)])) == "main 1 cpu=one gpu=v100"


def test_pods_with_zero_requests_are_admitted_without_quota() -> None:
    obj = workload(pod_sets=[pods("main", 3, cpu="0")])
    assert assigned_flavors(SchedulerBench(queue("cq", 0)), obj) == "main 3 cpu=spot"


def test_pods_resource_is_counted_if_it_has_quota() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 9, "pods": 2}, two={"cpu": 9, "pods": 5})]))
    decision = bench.admission(workload(pod_sets=[pods("main", 3, cpu="1")]))
    assert flavors_of(decision) == "main 3 cpu=two pods=two"
    assert dict(decision.assignment.pod_sets[0].requests) == {"cpu": 3000, "pods": 3}


def test_pod_count_replaces_request_for_pods_resource() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"pods": 2})]))
    assert assigned_flavors(bench, workload(pod_sets=[pods("main", 2, pods=7)])) == "main 2 pods=one"


def test_pod_set_requests_quota_for_all_replicas() -> None:
    bench = two_flavors()
    assert assigned_flavors(bench, workload(pod_sets=[pods("main", 2, cpu="2")])) == "main 2 cpu=one"
    assert bench.wait(workload(pod_sets=[pods("main", 3, cpu="2")])).why.reason == "ExceedsMaxQuota"


def test_pod_set_accounts_for_usage_of_earlier_pod_sets() -> None:
    obj = workload(pod_sets=[pods("driver", cpu="3"), pods("worker", cpu="3")])
    assert assigned_flavors(two_flavors(), obj) == "driver 1 cpu=one; worker 1 cpu=two"


def test_search_ends_at_pod_set_without_quota() -> None:
    sets = [pods("driver", cpu="3"), pods("worker", cpu="5"), pods("observer", cpu="9")]
    decision = two_flavors().wait(workload(pod_sets=sets))
    facts = [EXCEEDS.format("cpu", "one", 3, 5, 4), EXCEEDS.format("cpu", "two", 0, 5, 4)]
    assert decision.why.message == f"couldn't assign flavors to pod set worker: {', '.join(facts)}"


def test_messages_of_pod_sets_are_joined() -> None:
    bench = two_flavors()
    for flavor in ("one", "two"):
        bench.hold(f"x-{flavor}", 3, flavor=flavor)
    bench.put(queue("cq", groups=[group(one={"cpu": 4}, two={"cpu": 4})], preemption={"withinClusterQueue": "Never"}))
    decision = bench.wait(workload(pod_sets=[pods("driver", cpu="2"), pods("worker", cpu="2")]))
    short = "insufficient unused quota for cpu in flavor {0}, {1} more needed"
    assert decision.why.message == (
        f"couldn't assign flavors to pod set driver: {short.format('one', 1)}, {short.format('two', 1)}; "
        f"couldn't assign flavors to pod set worker: {short.format('one', 3)}, {short.format('two', 1)}"
    )


def test_messages_format_amounts_as_quantities() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": "1500m", "memory": "2Gi", "gpu": 1})]))
    decision = bench.wait(workload(pod_sets=[pods("main", cpu="1600m", memory="3Gi", gpu=1)]))
    assert decision.why.message.partition(": ")[2] == ", ".join(
        [EXCEEDS.format("cpu", "one", 0, "1600m", "1500m"), EXCEEDS.format("memory", "one", 0, "3Gi", "2Gi")]
    )


def test_pod_sets_of_one_group_get_same_flavor() -> None:
    sets = [
        {**pods(name, cpu=cpu), "topologyRequest": {"podSetGroupName": "together"}}
        for name, cpu in (("leader", "1"), ("worker", "4"))
    ]
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4}, two={"cpu": 9})]))
    assert assigned_flavors(bench, workload(pod_sets=sets)) == "leader 1 cpu=two; worker 1 cpu=two"


def test_pod_set_in_group_gets_only_its_requested_resources() -> None:
    together = {"topologyRequest": {"podSetGroupName": "together"}}
    sets = [{**pods("leader", cpu="1"), **together}, {**pods("worker", cpu="1", gpu=2), **together}]
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4, "gpu": 2})]))
    assert assigned_flavors(bench, workload(pod_sets=sets)) == "leader 1 cpu=one; worker 1 cpu=one gpu=one"


def test_reclaimable_pods_are_not_counted_in_requests() -> None:
    status = {"reclaimablePods": [{"name": "main", "count": 2}]}
    obj = workload(pod_sets=[pods("main", 4, cpu="2")], status=status)
    assert assigned_flavors(two_flavors(), obj) == "main 2 cpu=one"


@pytest.mark.parametrize(
    ("held", "own", "waits"),
    [
        pytest.param(0, 10, "ExceedsMaxQuota", id="above capacity of cohort"),
        pytest.param(4, 6, "WaitingForQuota", id="quota in use by another queue"),
    ],
)
def test_reason_depends_on_capacity_of_cohort(held: int, own: int, waits: str) -> None:
    bench = SchedulerBench(cohort("all", 1), queue("cq", 4, cohort="all"), queue("other", 4, cohort="all"))
    if held:
        bench.hold("x", held, "other")
    assert bench.wait(workload(cpu=own)).why.reason == waits


def test_capacity_includes_borrowing_limit() -> None:
    bench = SchedulerBench(queue("cq", quota(4, borrowing=2), cohort="all"), queue("other", 4, cohort="all"))
    assert bench.wait(workload(cpu=7)).why.message.endswith(EXCEEDS.format("cpu", "spot", 0, 7, 6))


def test_missing_quota_is_computed_from_free_quota() -> None:
    bench = SchedulerBench(queue("cq", 4, cohort="all"), queue("other", 4, cohort="all"))
    bench.hold("x", 6, "other")
    assert bench.wait(workload(cpu=5)).why.message.endswith(
        "insufficient unused quota for cpu in flavor spot, 3 more needed"
    )


def test_missing_quota_excludes_exceeded_quota() -> None:
    bench = SchedulerBench(queue("cq", 4))
    bench.hold("x", 4)
    bench.put(queue("cq", 2))
    assert bench.wait(workload(cpu=2)).why.message.endswith(", 2 more needed")


def test_least_severe_reason_of_flavors_is_reported() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(small={"cpu": 1}, large={"cpu": 4})]))
    bench.hold("x", 4, flavor="large")
    bench.put(
        queue("cq", groups=[group(small={"cpu": 1}, large={"cpu": 4})], cohort="all"),
        queue("lender", groups=[group(large={"cpu": 4})], cohort="all"),
    )
    bench.hold("y", 1, "lender", flavor="large")
    assert bench.wait(workload(cpu=5)).why.reason == "WaitingForQuota"


def test_most_severe_reason_of_resource_groups_is_reported() -> None:
    groups = [group(large={"cpu": 4}), group(v100={"gpu": 2})]
    bench = SchedulerBench(queue("cq", groups=groups, cohort="all"), queue("lender", groups=groups, cohort="all"))
    bench.hold("x", 0, "lender", usage={("large", "cpu"): 5000, ("v100", "gpu"): 1})
    assert bench.wait(workload(pod_sets=[pods("main", cpu="5", gpu=5)])).why.reason == "ExceedsMaxQuota"


def test_preemptible_group_does_not_soften_reason_of_other_group() -> None:
    groups = [group(large={"cpu": 4}), group(v100={"gpu": 2})]
    bench = SchedulerBench(queue("cq", groups=groups, preemption={"withinClusterQueue": "LowerPriority"}))
    bench.hold("x", 0, usage={("large", "cpu"): 4000, ("v100", "gpu"): 2}, priority=-1)
    assert bench.wait(workload(pod_sets=[pods("main", cpu="5", gpu=1)])).why.reason == "ExceedsMaxQuota"
    assert bench.wait(workload(pod_sets=[pods("main", cpu="4", gpu=5)])).why.reason == "ExceedsMaxQuota"


def test_zero_request_needs_no_victims() -> None:
    groups = [group(large={"cpu": 4}), group(v100={"gpu": 0})]
    bench = SchedulerBench(queue("cq", groups=groups, preemption={"withinClusterQueue": "LowerPriority"}))
    bench.hold("x", 4, flavor="large", priority=-1)
    assert bench.victims(workload(pod_sets=[pods("main", cpu="4", gpu=0)])) == ["x"]


def test_message_reports_missing_quota_at_time_of_search() -> None:
    bench = two_flavors(cohort="all")
    bench.put(queue("lender", groups=[group(one={"cpu": 2}, two={"cpu": 2})], cohort="all"))
    held = [bench.hold("x", 5, flavor="one"), bench.hold("y", 3, flavor="two")]
    wait, at_once = bench.wait(workload(cpu=4)), bench.wait(workload(cpu=4))
    expected = (
        "couldn't assign flavors to pod set main:"
        " insufficient unused quota for cpu in flavor one, 3 more needed,"
        " insufficient unused quota for cpu in flavor two, 1 more needed"
    )
    assert at_once.why.message == expected
    for other in held:
        bench.snapshot.remove_holder(other.key)
    bench.admission(workload(cpu=6))
    bench.put(queue("lender", groups=[group(one={"cpu": 9}, two={"cpu": 9})], cohort="all"))
    assert (wait.why.reason, wait.why.message) == ("WaitingForQuota", expected)


def test_message_reports_usage_of_earlier_pod_sets() -> None:
    bench = two_flavors()
    pod_sets = [pods("a", cpu="3"), pods("b", cpu="2"), pods("c", cpu="3")]
    wait = bench.wait(workload(pod_sets=pod_sets))
    assert wait.why.message == "couldn't assign flavors to pod set c: " + ", ".join(
        [EXCEEDS.format("cpu", "one", "3", "3", "4"), EXCEEDS.format("cpu", "two", "2", "3", "4")]
    )
