"""Scheduling cycles with Workloads that need topology domains."""

from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.node import Taint
from batchyard.api.views.workload import workload_view
from batchyard.api.well_known import ELASTIC_JOB, REPLACEMENT_FOR
from batchyard.scheduling.cycle import holder_from_admission
from batchyard.scheduling.decisions import Preempt, StayPending
from batchyard.scheduling.resource_charging import ResourceCharging, parse_resource_rules
from racks import bench_of, hold, hosts_of, node, pods, tas_queue
from yard import SchedulerBench, group, head_of, preemption, queue, workload

ONE_RACK: dict[str, Any] = {"required": "rack"}


def test_admission_contains_topology_domains() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2, "b1r2h1": 3})
    assert hosts_of(bench.admission(workload(pod_sets=[pods(3, **ONE_RACK)]))) == "b1r2h1:3"


def test_pods_of_topology_only_queue_are_placed_without_request() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2})
    assert hosts_of(bench.admission(workload(pod_sets=[pods(2)]))) == "b1r1h1:2"


def test_pods_that_fit_nowhere_wait_although_quota_suffices() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2, "b1r2h1": 2})
    assert bench.decide(workload(pod_sets=[pods(3, **ONE_RACK)])) == [
        (
            "wl waits (TopologyPlacementFailed): couldn't assign flavors to pod set main: "
            'topology "racks" allows to fit only 2 out of 3 pod(s)'
        )
    ]


def test_workloads_of_one_cycle_get_different_domains() -> None:
    bench = bench_of(tas_queue("a"), tas_queue("b"), hosts={"b1r1h1": 2, "b1r2h1": 2})
    heads = [workload(name, queue=name, pod_sets=[pods(2, **ONE_RACK)]) for name in "ab"]
    assert [hosts_of(each) for each in bench.cycle(*heads)] == ["b1r1h1:2", "b1r2h1:2"]
    assert [hosts_of(each) for each in bench.cycle(heads[1])] == ["b1r1h1:2"]


def test_workload_without_its_domains_waits_if_it_cannot_search_again_in_the_cycle() -> None:
    bench = bench_of(tas_queue("a"), tas_queue("b"), hosts={"b1r1h1": 2, "b1r2h1": 2})
    bench.snapshot.topology.enable({"TASRecomputeAssignmentWithinSchedulingCycle": False})
    heads = [workload(name, queue=name, pod_sets=[pods(2, **ONE_RACK)]) for name in "ab"]
    first, second = bench.cycle(*heads)
    assert hosts_of(first) == "b1r1h1:2"
    assert isinstance(second, StayPending)
    assert second.why.message == "Workload no longer fits after processing another workload"


def test_workload_of_lower_priority_is_preempted_for_its_domain() -> None:
    bench = bench_of(tas_queue(preemption=preemption("LowerPriority")), hosts={"b1r1h1": 2, "b1r2h1": 2})
    hold(bench, "low", "b1r1h1", 1)
    hold(bench, "lower", "b1r2h1", 1, priority=-1)
    head = workload(priority=1, pod_sets=[pods(2, **ONE_RACK)])
    assert bench.decide(head) == ["wl preempts lower (InClusterQueue)"]


def test_workload_without_victims_reserves_its_domains() -> None:
    bench = bench_of(tas_queue("a"), tas_queue("b"), hosts={"b1r1h1": 3})
    hold(bench, "low", "b1r1h1", 1, queue="a")
    first = workload("first", queue="a", priority=1, pod_sets=[pods(3, **ONE_RACK)])
    second = workload("second", queue="b", pod_sets=[pods(2, **ONE_RACK)])
    lines = bench.decide(first, second)
    assert [text.partition(":")[0] for text in lines] == [
        "first waits (WaitingForQuota)",
        "second waits (WaitingForQuota)",
    ]
    assert hosts_of(bench.admission(second)) == "b1r1h1:2"


def test_victims_of_another_tree_make_room_in_the_domains() -> None:
    a, b = tas_queue("a", preemption=preemption("LowerPriority")), tas_queue("b")
    bench = bench_of(a, b, hosts={"b1r1h1": 4})
    hold(bench, "low", "b1r1h1", 3, queue="a")
    first = workload("first", queue="a", priority=1, pod_sets=[pods(2, **ONE_RACK)])
    second = workload("second", queue="b", pod_sets=[pods(1, **ONE_RACK)])
    preempting, admitted = bench.cycle(first, second)
    assert isinstance(preempting, Preempt)
    assert hosts_of(admitted) == "b1r1h1:1"


def test_partial_admission_finds_the_largest_count_that_fits() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 3, "b1r2h1": 2})
    pod_set = {**pods(6, **ONE_RACK), "minCount": 1}
    assert hosts_of(bench.admission(workload(pod_sets=[pod_set]))) == "b1r1h1:3"


def test_flavors_that_do_not_suit_the_request_are_skipped() -> None:
    mixed = queue("cq", groups=[group(spot={"cpu": 9}, tas={"cpu": 9})])
    bench = bench_of(mixed, hosts={"b1r1h1": 2})
    assert hosts_of(bench.admission(workload(pod_sets=[pods(2, **ONE_RACK)]))) == "b1r1h1:2"
    assert hosts_of(bench.admission(workload(pod_sets=[pods(2)]))) == ""
    assert bench.decide(workload(pod_sets=[pods(2, required="zone")])) == [
        (
            "wl waits (NoMatchingFlavor): couldn't assign flavors to pod set main: "
            'Flavor "spot" does not support TopologyAwareScheduling, Flavor "tas" does not contain the requested level'
        )
    ]


def test_resources_of_transformations_need_no_topology() -> None:
    bench = bench_of(queue("cq", groups=[group(tas={"cpu": 9}), group(money={"credits": 8})]), hosts={"b1r1h1": 2})
    rules = parse_resource_rules({"transformations": [{"input": "cpu", "outputs": {"credits": "1"}}]})
    obj = workload(pod_sets=[pods(2, **ONE_RACK)])
    head = head_of(obj)
    head.workload.pod_sets = ResourceCharging(rules).charge(obj, head.workload.pod_sets)
    assert hosts_of(bench.admission(head)) == "b1r1h1:2"


def test_next_flavor_is_tried_in_the_next_cycle() -> None:
    two = queue("cq", groups=[group(tas={"cpu": 9}, other={"cpu": 9})])
    bench = bench_of(make.flavor("other", topologyName="racks", labels={"pool": "none"}), two, hosts={"b1r1h1": 2})
    waiting = bench.wait(workload(pod_sets=[pods(3, **ONE_RACK)]))
    assert waiting.last_assignment is not None
    assert waiting.last_assignment.tried == ({"cpu": 0},)


def test_cycle_restores_the_free_capacity() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2})
    for _ in range(3):
        assert hosts_of(bench.admission(workload(pod_sets=[pods(2, **ONE_RACK)]))) == "b1r1h1:2"


def test_request_is_ignored_unless_topologies_are_enabled() -> None:
    bench = SchedulerBench(queue("cq", 8))
    assert bench.decide(workload(pod_sets=[pods(2, **ONE_RACK)])) == ["wl: main 2 cpu=spot"]


def test_workload_view_tells_explicit_requests() -> None:
    explicit, grouped = pods(1, unconstrained=False), pods(1, podSetGroupName="g")
    assert workload_view(workload("a", pod_sets=[explicit])).requests_topology
    assert not workload_view(workload("b", pod_sets=[grouped])).requests_topology


# Slices of elastic jobs.


def elastic(name: str, count: int, replaces: str = "", **fields: Any) -> Obj:
    """A slice of an elastic job; `replaces` is the name of the replaced slice."""
    annotations = {ELASTIC_JOB: "true"} | ({REPLACEMENT_FOR: f"team/{replaces}"} if replaces else {})
    return with_metadata(workload(name, pod_sets=[pods(count, **fields)]), annotations=annotations)


def bench_with_slice(*, keeps_slices: bool) -> SchedulerBench:
    """A bench in which the slice `old` has two pods on the host b1r1h1."""
    bench = bench_of(tas_queue(cpu=4), hosts={"b1r1h1": 2, "b1r2h1": 2, "b1r3h1": 4})
    rules = bench.snapshot.topology.rules
    bench.snapshot.topology.rules = replace(rules, keeps_slices=keeps_slices)
    decision = bench.admission(elastic("old", 2))
    bench.snapshot.add_holder(holder_from_admission(decision, make.at(1), admitted=True))
    return bench


@pytest.mark.parametrize(
    ("keeps_slices", "hosts"), [(True, "b1r1h1:2 b1r2h1:2"), (False, "b1r3h1:4")], ids=["gate", "no gate"]
)
def test_larger_slice_requests_the_difference_and_keeps_its_domains_with_a_gate(keeps_slices: bool, hosts: str) -> None:
    decision = bench_with_slice(keeps_slices=keeps_slices).admission(elastic("new", 4, replaces="old"))
    assert hosts_of(decision) == hosts
    assert [amount for _, amount in decision.assignment.usage] == [2000]
    assert decision.replaced is not None


@pytest.mark.parametrize("field", ["required", "preferred"])
def test_slice_cannot_constrain_its_level_if_it_keeps_its_domains(field: str) -> None:
    bench = bench_with_slice(keeps_slices=True)
    waiting = bench.wait(elastic("new", 3, replaces="old", **{field: "rack"}))
    message = f"{field} topology is not supported with ElasticJobsViaWorkloadSlices"
    assert waiting.why.message.endswith(message)


# Updates of pod sets by AdmissionChecks.


def checked(state: str = "Ready", *more: Obj, **update: Any) -> Obj:
    """A Workload of two pods that select hosts of the pool `a`, and an AdmissionCheck that updates them."""
    pod_set = pods(2, **ONE_RACK)
    pod_set["template"]["spec"]["nodeSelector"] = {"pool": "a"}
    updates = [{"name": "main", **update}, *more]
    check = {"name": "machines", "state": state, "podSetUpdates": updates}
    return with_path(workload(pod_sets=[pod_set]), ("status", "admissionChecks"), [check])


def checked_bench() -> SchedulerBench:
    """A bench with hosts of the pool `a`, each in its own rack and zone; the second one has a taint."""
    bench = bench_of(tas_queue(), hosts={})
    taint = Taint("new", "", "NoSchedule")
    hosts = [
        node("b1/b1r1/h1", pool="a", zone="x"),
        node("b1/b1r2/h2", 2, pool="a", zone="x", taints=[taint]),
        node("b1/b1r3/h3", 3, pool="a", zone="y"),
    ]
    bench.snapshot.topology.replace_nodes((), hosts)
    return bench


def test_updates_of_ready_checks_restrict_and_extend_the_domains() -> None:
    bench = checked_bench()
    tolerated = {"key": "new", "operator": "Exists"}
    assert hosts_of(bench.admission(checked())) == "h3:2"
    assert hosts_of(bench.admission(checked(nodeSelector={"zone": "x"}))) == "h1:2"
    assert hosts_of(bench.admission(checked(nodeSelector={"zone": "x"}, tolerations=[tolerated]))) == "h2:2"
    assert hosts_of(bench.admission(checked("Pending", nodeSelector={"zone": "x"}))) == "h3:2"
    other = {"name": "other", "nodeSelector": {"zone": "x"}}
    assert hosts_of(bench.admission(checked("Ready", other))) == "h3:2"


@pytest.mark.parametrize(
    ("update", "later", "text"),
    [
        ({"nodeSelector": {"pool": "b"}}, {}, "nodeSelector: conflict for key=pool, value1=a, value2=b"),
        ({"labels": {"l": "1"}}, {"labels": {"l": "2"}}, "labels: conflict for key=l, value1=1, value2=2"),
    ],
    ids=["template", "earlier update"],
)
def test_conflicting_update_prevents_the_placement(update: Any, later: Any, text: str) -> None:
    waiting = checked_bench().wait(checked("Ready", {"name": "main", **later}, **update))
    reason = f"invalid podSetUpdate for PodSet main, error: invalid admission check PodSetUpdate: conflict for {text}"
    assert waiting.why.message == f"couldn't assign flavors to pod set main: {reason}"
