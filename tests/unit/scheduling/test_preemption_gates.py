"""Workloads with gates in `spec.preemptionGates`, behind Kueue's gate MultiKueueOrchestratedPreemption."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, find_condition
from batchyard.api.views.workload import workload_view
from batchyard.explain.blockers import binding_limit_of_refusal
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, Head, KueueVersion, decision_rules
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from object_edits import with_edits
from stage import Stage, condition_state
from yard import SchedulerBench, preemption, queue, workload

GATE = "MultiKueueOrchestratedPreemption"
RULES = decision_rules(KueueVersion.V0_19, {GATE: True})
MESSAGE = "Workload requires preemption, but it's gated"


def gated(name: str = "high", cpu: int = 1, *gates: str, **fields: Any) -> Obj:
    names = gates or ("hold",)
    gate_list = [{"name": each} for each in names]
    return with_edits(workload(name, cpu, priority=9, **fields), {"spec.preemptionGates": gate_list})


def gate_stage(*workloads: Obj, cpu: int = 2, rules: DecisionRules = RULES, strategy: str = "BestEffortFIFO") -> Stage:
    """A queue in which Workload `low` of two CPUs runs, and then these Workloads."""
    index, policy = SchedulerCache(rules=rules), SchedulingPolicy(rules=rules)
    stage = Stage(
        Scheduler(index, policy), WorkloadLifecycle(None, rules), QueueStatusController(index, fair_sharing=False)
    )
    owner = queue("cq", cpu, preemption=preemption("LowerPriority"), queueingStrategy=strategy)
    stage.put(make.namespace(), make.flavor("spot"), owner, make.local_queue("cq", cluster_queue="cq"))
    stage.put(workload("low", 2))
    stage.put(*workloads)
    stage.run(3)
    return stage


def is_evicted(stage: Stage, name: str = "low") -> bool:
    return lifecycle.is_evicted(stage.workload(name))


def set_gates(stage: Stage, **positions: str) -> None:
    obj = stage.workload("high")
    states = [
        {"name": name, "position": value, "lastTransitionTime": make.stamp()} for name, value in positions.items()
    ]
    stage.put(with_edits(obj, {"status.preemptionGates": states}))
    stage.run(9)


@pytest.mark.parametrize(
    ("version", "gates", "is_obeyed"),
    [("0.19", {}, False), ("0.19", {GATE: True}, True), ("0.20", {}, True), ("0.20", {GATE: False}, False)],
)
def test_closed_preemption_gate_prevents_preemption_by_version_and_gate(
    version: str, gates: Mapping[str, bool], is_obeyed: bool
) -> None:
    stage = gate_stage(gated(), rules=decision_rules(KueueVersion(version), gates))
    assert is_evicted(stage) is not is_obeyed
    assert ("preemptionGates" in stage.workload("high")["status"]) is is_obeyed


def test_gated_workload_reports_that_it_is_blocked() -> None:
    stage = gate_stage(gated())
    obj = stage.workload("high")
    assert condition_state(obj, "BlockedOnPreemptionGates") == ("True", "PreemptionGated", MESSAGE)
    assert obj["status"]["preemptionGates"] == [
        {"name": "hold", "position": "Closed", "lastTransitionTime": make.stamp()}
    ]
    reported = [(each.type, each.reason, each.message) for each in stage.events if each.regarding.name == "high"]
    assert ("Warning", "AdmissionGated", MESSAGE) in reported


def test_open_gate_lets_the_workload_preempt() -> None:
    stage = gate_stage(gated())
    set_gates(stage, hold="Open")
    assert is_evicted(stage)


def test_every_gate_must_be_open() -> None:
    stage = gate_stage(gated("high", 1, "first", "second"))
    set_gates(stage, first="Open", second="Closed")
    assert not is_evicted(stage)
    set_gates(stage, first="Open", second="Open")
    assert is_evicted(stage)


def test_reservation_of_quota_ends_the_block() -> None:
    stage = gate_stage(gated())
    stage.delete(scheme.WORKLOAD, "low")
    stage.run(9)
    obj = stage.workload("high")
    assert lifecycle.is_admitted(obj)
    state = ("False", "QuotaReserved", f"Previously: {MESSAGE}")
    assert condition_state(obj, "BlockedOnPreemptionGates") == state


def test_gated_workload_that_fits_needs_no_open_gate() -> None:
    stage = gate_stage()
    stage.delete(scheme.WORKLOAD, "low")
    stage.put(gated())
    assert lifecycle.is_admitted(stage.workload("high"))


@pytest.mark.parametrize(("strategy", "is_admitted"), [("BestEffortFIFO", True), ("StrictFIFO", False)])
def test_gated_head_blocks_only_a_strict_queue(*, strategy: str, is_admitted: bool) -> None:
    stage = gate_stage(gated("high", 2), cpu=3, strategy=strategy)
    stage.put(workload("other", 1, priority=-1))
    stage.run(9)
    assert lifecycle.is_admitted(stage.workload("other")) is is_admitted
    assert not is_evicted(stage)


def test_states_follow_the_gates_of_the_spec() -> None:
    stage = gate_stage(gated("high", 1, "first", "second"))
    set_gates(stage, first="Open", second="Closed", gone="Open")
    states = stage.workload("high")["status"]["preemptionGates"]
    assert [(each["name"], each["position"]) for each in states] == [("first", "Open"), ("second", "Closed")]
    stage.put(with_edits(stage.workload("high"), {"spec.preemptionGates": [{"name": "first"}]}))
    assert [each["name"] for each in stage.workload("high")["status"]["preemptionGates"]] == ["first"]


def test_eviction_closes_the_gates_again() -> None:
    stage = gate_stage(gated())
    set_gates(stage, hold="Open")
    stage.delete(scheme.WORKLOAD, "low")
    stage.put(with_edits(stage.workload("high"), {"spec.active": False}))
    (state,) = stage.workload("high")["status"]["preemptionGates"]
    assert state["position"] == "Closed"


def test_why_names_the_gates() -> None:
    bench = SchedulerBench(queue("cq", 2, preemption=preemption("LowerPriority")))
    bench.hold("low", 2, "cq")
    bench.policy = SchedulingPolicy(rules=RULES)
    limit = binding_limit_of_refusal(bench.wait(Head(workload_view(gated()), "cq")), SchedulerCache())
    assert limit is not None
    assert limit[:4] == ("gated", f"{MESSAGE} by spec.preemptionGates", "Workload", "high")


def test_workload_without_gates_is_unaffected() -> None:
    stages = [gate_stage(workload("high", 1, priority=9), rules=rules) for rules in (DEFAULT_RULES, RULES)]
    assert [is_evicted(stage) for stage in stages] == [True, True]
    assert find_condition(stages[1].workload("high"), "BlockedOnPreemptionGates") is None
