"""Filling the nodes of a trace with its pods."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from batchyard.placement.gpu_policies import GpuPolicyName
from batchyard.sim.simulate import SimulationOptions
from batchyard.sim.trace_fill import FillReport, FillRun, TraceFill, fill_trace, gpu_placement_for
from batchyard.sim.traces import Trace, read_trace
from unit.sim.trace_make import write_trace

NODES = tuple(f"n{number},8000,16384,2,T4" for number in range(4))
PODS = (
    *(f"half-{number},1000,1024,1,500,,LS,Running,0,10,0" for number in range(4)),
    *(f"pair-{number},1000,1024,2,1000,,LS,Running,0,10,0" for number in range(2)),
    "none-0,1000,1024,0,0,,BE,Failed,0,10,0",
)


def filled(trace: Trace, percent: int, policy: GpuPolicyName | None = None, seed: int = 0) -> FillReport:
    """The report on a fill."""
    fill = fill_trace(trace, Fraction(percent, 100), seed)
    placement = None if policy is None else gpu_placement_for(trace, policy)
    fill = replace(fill, scenario=replace(fill.scenario, gpu_placement=placement))
    run = FillRun(fill, SimulationOptions(seed=seed))
    run.simulation.advance()
    return run.report()


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Four nodes with two GPUs each, and pods that request six GPUs in all."""
    return read_trace(write_trace(tmp_path, PODS, NODES))


def test_pods_arrive_until_they_request_the_fraction_of_gpus(trace: Trace) -> None:
    fill = fill_trace(trace, Fraction(3, 2), seed=1)
    requested = sum(pod.shape.gpu_milli for pod in fill.arriving_pods)
    assert fill.gpu_milli == 8000
    assert 12000 - 2000 < requested <= 12000
    assert {pod.name for pod in fill.arriving_pods} == {pod.name for pod in trace.pods}
    assert [step.at // 10**6 for step in fill.scenario.steps] == list(range(len(fill.arriving_pods) + 1))
    names = [obj["metadata"]["name"] for step in fill.scenario.steps for obj in step.apply]
    assert len(dict.fromkeys(names)) == len(names)


def test_seed_determines_order_of_pods_and_nodes(trace: Trace) -> None:
    orders = [orders_of(fill_trace(trace, Fraction(2), seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[2][0]
    assert orders[0][1] != orders[2][1]


def orders_of(fill: TraceFill) -> tuple[list[str], list[str]]:
    """The names of the pods in order of arrival, and those of the nodes."""
    nodes = [obj["metadata"]["name"] for obj in fill.scenario.steps[0].apply if obj["kind"] == "Node"]
    return [pod.name for pod in fill.arriving_pods], nodes


@pytest.mark.parametrize("policy", [None, *GpuPolicyName])
def test_report_counts_gpus_and_unplaced_pods(trace: Trace, policy: GpuPolicyName | None) -> None:
    report = filled(trace, 200, policy)
    first, last = report.points[0], report.points[-1]
    assert (report.policy, report.nodes, report.gpus) == (policy or "", 4, 8)
    assert (first.requested, first.allocated, first.unplaced_pods) == (0, 0, 0)
    assert last.allocated >= 0.75
    assert last.unplaced_pods > 0
    assert [point.requested for point in report.points] == sorted(point.requested for point in report.points)
    assert all(0 <= point.fragmented <= 1 - point.allocated for point in report.points)


def test_pods_never_end(trace: Trace) -> None:
    allocated = [point.allocated for point in filled(trace, 300, GpuPolicyName.BEST_FIT).points]
    assert allocated == sorted(allocated)


def test_fgd_leaves_room_for_pairs_of_gpus_where_random_placement_does_not(trace: Trace) -> None:
    allocated = {
        policy: sum(filled(trace, 100, policy, seed).points[-1].allocated for seed in range(5))
        for policy in (GpuPolicyName.FGD, GpuPolicyName.RANDOM)
    }
    assert allocated[GpuPolicyName.FGD] > allocated[GpuPolicyName.RANDOM]


def test_trace_without_gpus_is_rejected(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path, PODS[-1:], NODES))
    with pytest.raises(ValueError, match="no pods that request GPUs"):
        fill_trace(trace, Fraction(1), seed=0)
