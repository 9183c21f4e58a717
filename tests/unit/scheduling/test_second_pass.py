"""The second pass: Workloads with quota that get delayed topology domains, or replace a failed node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard import simulate
from batchyard.api.meta import Obj
from batchyard.api.views.topology import TopologyAssignment, TopologyDomain, format_topology_assignment
from batchyard.api.views.workload import workload_view
from batchyard.api.well_known import HOSTNAME
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Admit, Decision, Head, Preempt, SecondPassOutcome
from batchyard.scheduling.second_pass import SecondPass
from batchyard.sim.event_log import Event, Preempted, QuotaReserved, Reassigned
from batchyard.topology.state import usage_of
from racks import bench_of, hold, hosts_of, pods, rack_nodes, rack_queues, rack_workload, tas_queue, template
from yard import SchedulerBench, preemption, workload

LOWER = preemption("LowerPriority")
ONE_RACK: dict[str, Any] = {"required": "rack"}
NO_ROOM = "couldn't assign flavors to pod set main: topology \"racks\" doesn't allow to fit any of 2 pod(s)"
PENDING = ". Pending the preemption of 1 workload(s)"


def reserve(bench: SchedulerBench, name: str = "wl", count: int = 2, *, host: str = "", **fields: Any) -> Head:
    """A Workload with quota for one-cpu pods that wait for their domains, or run on a failed host."""
    queue_name, min_count = fields.pop("queue", "cq"), fields.pop("min_count", None)
    held: dict[str, Any] = {"name": "main", "count": count, "flavors": {"cpu": "tas"}}
    held |= {"resourceUsage": {"cpu": str(count)}, "delayedTopologyRequest": "Pending"}
    conditions = [make.condition("QuotaReserved")]
    status: dict[str, Any] = {"conditions": conditions}
    assignment = TopologyAssignment((HOSTNAME,), (TopologyDomain((host,), count),))
    if host:
        held["topologyAssignment"] = format_topology_assignment(assignment)
        conditions.append(make.condition("Admitted"))
        status["unhealthyNodes"] = [{"name": host}]
    status["admission"] = {"clusterQueue": queue_name, "podSetAssignments": [held]}
    pod_set = {**pods(count, **ONE_RACK), **({} if min_count is None else {"minCount": min_count})}
    view = workload_view(workload(name, queue=queue_name, pod_sets=[pod_set], status=status, **fields))
    holder = bench.hold(name, count, queue=queue_name, usage={("tas", "cpu"): count * 1000}, **fields)
    if host:
        bench.snapshot.remove_holder(holder.key)
        holder.topology_usage = usage_of(["tas"], assignment, template())
        bench.snapshot.add_holder(holder)
    return Head(view, queue_name)


def outcomes_of(bench: SchedulerBench, heads: Sequence[Head], pending: Sequence[Obj] = ()) -> list[SecondPassOutcome]:
    """The decisions of one cycle about Workloads with quota."""
    return cycle_of(bench, heads, pending)[0]


def cycle_of(
    bench: SchedulerBench, heads: Sequence[Head], pending: Sequence[Obj] = ()
) -> tuple[list[SecondPassOutcome], list[Decision]]:
    """The decisions of one cycle about Workloads with quota, and about pending ones."""
    cycle = Cycle(bench.snapshot, bench.policy, bench.namespaces, 1)
    second_pass = cycle.second_pass = SecondPass(cycle, heads)
    decisions = cycle.run([Head(workload_view(obj), obj["spec"]["queueName"]) for obj in pending])
    return second_pass.outcomes, decisions


def describe(decision: Decision) -> str:
    """A decision as a short text."""
    if isinstance(decision, Admit):
        return hosts_of(decision)
    if isinstance(decision, Preempt):
        targets = " ".join(f"{t.workload.key.removeprefix('team/')} ({t.reason})" for t in decision.targets)
        return f"preempts {targets}"
    return decision.why.message.partition(". Total")[0]


def texts_of(bench: SchedulerBench, *heads: Head, pending: Sequence[Obj] = ()) -> list[str]:
    """The decisions of one cycle about Workloads with quota as short texts."""
    return [describe(outcome.decision) for outcome in outcomes_of(bench, heads, pending)]


def full_bench(cpu: int = 99, priority: int = 0, **fields: Any) -> tuple[SchedulerBench, AdmittedWorkload]:
    """A bench with one host of two cpus, which a Workload uses; by default, its queue preempts lower priorities."""
    bench = bench_of(tas_queue(cpu=cpu, **({"preemption": LOWER} | fields)), hosts={"b1r1h1": 2})
    return bench, hold(bench, "low", "b1r1h1", 2, priority=priority)


def test_delayed_domains_are_freed_by_preemption() -> None:
    bench, _ = full_bench()
    ((decision, evicts),) = outcomes_of(bench, [reserve(bench, priority=1)])
    assert describe(decision) == "preempts low (InClusterQueue)"
    assert not evicts
    assert not isinstance(decision, Admit)
    assert decision.why.message == f'{NO_ROOM}. Total nodes: 1; excluded: resource "cpu": 1{PENDING}'


@pytest.mark.parametrize(("cpu", "text"), [(3, NO_ROOM), (4, "preempts low (InClusterQueue)")])
def test_victims_must_free_the_quota_of_the_workload_once_more(cpu: int, text: str) -> None:
    bench = bench_of(tas_queue(cpu=cpu, preemption=LOWER), hosts={"b1r1h1": 2})
    hold(bench, "low", "b1r1h1", 1)
    assert texts_of(bench, reserve(bench, priority=1)) == [text.replace("doesn't allow to fit any", fitting(text))]


def fitting(text: str) -> str:
    """The words of the message if one of two pods fits; unchanged for other texts."""
    return "allows to fit only 1 out" if text == NO_ROOM else "doesn't allow to fit any"


def test_workload_without_victims_reserves_its_domains_for_the_cycle() -> None:
    bench = bench_of(tas_queue(preemption=LOWER), tas_queue("other"), hosts={"b1r1h1": 3})
    hold(bench, "equal", "b1r1h1", 2, priority=1)
    head = reserve(bench, priority=1)
    later = workload("later", queue="other", pod_sets=[pods(1, **ONE_RACK)])
    (outcome,), (decision,) = cycle_of(bench, [head], [later])
    assert describe(outcome.decision).endswith("allows to fit only 1 out of 2 pod(s)")
    assert not isinstance(decision, Admit)
    assert hosts_of(bench.admission(later)) == "b1r1h1:1"


def test_pods_without_place_preempt_nothing() -> None:
    bench, _ = full_bench()
    (outcome,) = outcomes_of(bench, [reserve(bench, count=3, priority=1)])
    assert describe(outcome.decision).endswith("doesn't allow to fit any of 3 pod(s)")
    assert hosts_of(bench.admission(workload("one", pod_sets=[pods(1, cpu=0, **ONE_RACK)]))) == "b1r1h1:1"


@pytest.mark.parametrize(("fails_fast", "text"), [(False, "preempts low (InClusterQueue)"), (True, "")])
def test_failed_node_is_replaced_by_preemption_unless_the_workload_fails_fast(fails_fast: bool, text: str) -> None:
    bench, _ = full_bench()
    bench.snapshot.topology.rules = replace(bench.snapshot.topology.rules, fails_fast=fails_fast)
    ((decision, evicts),) = outcomes_of(bench, [reserve(bench, priority=1, host="gone")])
    assert evicts is fails_fast
    assert (describe(decision) == text) is not fails_fast


def test_workload_of_higher_priority_gets_the_domain() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2})
    heads = [reserve(bench, "low"), reserve(bench, "high", priority=1)]
    texts = {outcome.decision.head.workload.name: describe(outcome.decision) for outcome in outcomes_of(bench, heads)}
    assert texts == {"high": "b1r1h1:2", "low": NO_ROOM}


def test_taken_domain_is_searched_again_in_the_cycle_unless_the_gate_is_off() -> None:
    for recomputes, text in ((True, "b1r1h2:2"), (False, "Workload no longer fits after processing another workload")):
        bench = bench_of(tas_queue(), hosts={"b1r1h1": 2, "b1r1h2": 2})
        bench.snapshot.topology.rules = replace(bench.snapshot.topology.rules, recomputes=recomputes)
        assert texts_of(bench, reserve(bench, "a"), reserve(bench, "b", created=1)) == ["b1r1h1:2", text]


def test_second_pass_comes_before_pending_workloads() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2})
    pending = workload("first", priority=9, pod_sets=[pods(2, **ONE_RACK)])
    (outcome,), (decision,) = cycle_of(bench, [reserve(bench)], [pending])
    assert describe(outcome.decision) == "b1r1h1:2"
    assert describe(decision) == NO_ROOM


def test_fair_sharing_considers_the_pending_workload_of_a_queue_instead() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2}, fair_sharing=True)
    pending = workload("first", pod_sets=[pods(2, **ONE_RACK)])
    (outcome,), (decision,) = cycle_of(bench, [reserve(bench)], [pending])
    assert describe(decision) == "b1r1h1:2"
    assert not isinstance(outcome.decision, Admit)
    assert (outcome.decision.why.message, outcome.evicts) == ("", False)


def test_workloads_with_the_same_victim_wait_for_it() -> None:
    bench = bench_of(tas_queue(preemption=LOWER), hosts={"b1r1h1": 4})
    hold(bench, "low", "b1r1h1", 3)
    first, second = texts_of(bench, reserve(bench, "a", priority=1), reserve(bench, "b", priority=1, created=1))
    assert first == "preempts low (InClusterQueue)"
    assert second.startswith("Workload has overlapping preemption targets with another workload, but will fit")


def test_victims_come_from_queues_that_borrow() -> None:
    reclaiming = tas_queue(cpu=4, cohort="all", preemption=preemption(reclaim="Any"))
    bench = bench_of(reclaiming, tas_queue("other", cpu=0, cohort="all"), hosts={"b1r1h1": 2})
    hold(bench, "low", "b1r1h1", 2, queue="other")
    assert texts_of(bench, reserve(bench)) == ["preempts low (InCohortReclamation)"]


def test_partial_admission_keeps_as_many_pods_as_fit() -> None:
    bench = bench_of(tas_queue(), hosts={"b1r1h1": 2})
    ((decision, _),) = outcomes_of(bench, [reserve(bench, count=4, min_count=1)])
    assert hosts_of(decision) == "b1r1h1:2"
    assert isinstance(decision, Admit)
    assert [(p.count, p.requests) for p in decision.assignment.pod_sets] == [(2, (("cpu", 2000),))]


def test_workload_in_a_missing_or_stopped_queue_waits() -> None:
    bench = bench_of(tas_queue(), tas_queue("stopped"), hosts={"b1r1h1": 2})
    bench.snapshot.queues["stopped"].active = False
    heads = [reserve(bench, "a")._replace(queue="gone"), reserve(bench, "b", queue="stopped")]
    assert texts_of(bench, *heads) == ["ClusterQueue gone not found", "ClusterQueue stopped is inactive"]


def test_workload_of_a_queue_without_topology_gets_no_domains() -> None:
    bench, _ = full_bench()
    head = reserve(bench, priority=1)
    bench.put(make.flavor("tas"))
    text = "failed to assign flavors to pod set main: workload requires Topology, but there is no TAS cache information"
    assert texts_of(bench, head) == [text]


# Whole runs.


_SCENARIO: Obj = {
    "apiVersion": "sim.batchyard.dev/v1alpha1",
    "kind": "Scenario",
    "metadata": {"name": "second-pass"},
    "spec": {"horizon": "1m", "featureGates": {"TASFailedNodeReplacementFailFast": False}},
}


def test_preempted_workload_makes_room_for_the_pods_of_a_failed_node() -> None:
    queues = rack_queues().replace(
        "  namespaceSelector", "  preemption: {withinClusterQueue: LowerPriority}\n  namespaceSelector"
    )
    nodes = [
        rack_nodes("b1r1h1").replace("{name: b1r1h1,", "{name: b1r1h1, annotations: {batchyard.dev/delete-at: 9s},", 1),
        rack_nodes("b1r1h2"),
        rack_nodes("b1r1h3", cpu=2).replace(
            "{name: b1r1h3,", "{name: b1r1h3, annotations: {batchyard.dev/submit-at: 5s},", 1
        ),
    ]
    high = rack_workload("high", 4, "{required: kubernetes.io/hostname}", at=1, priority=1)
    events: list[Event] = []
    simulate(_SCENARIO, "".join([queues, *nodes, high, rack_workload("low", 2, at=2)]), events=events.append)
    assert [text for event in events if (text := describe_event(event))] == [
        "1 high QuotaReserved b1r1h1:4",
        "2 low QuotaReserved b1r1h2:2",
        "10 low Preempted",
        "10 low QuotaReserved b1r1h3:2",
        "12 high Reassigned b1r1h2:4",
    ]


def describe_event(event: Event) -> str:
    """A reservation, reassignment or eviction as a short text; '' for other events."""
    match event:
        case QuotaReserved() | Reassigned():
            topology = event.pod_sets[0].topology
            assert topology is not None
            hosts = " ".join(f"{domain['values'][-1]}:{domain['count']}" for domain in topology["domains"])
            return f"{event.time:g} {event.workload.removeprefix('team/')} {type(event).__name__} {hosts}"
        case Preempted():
            return f"{event.time:g} {event.workload.removeprefix('team/')} Preempted"
        case _:
            return ""
