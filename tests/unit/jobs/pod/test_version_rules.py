"""Rules of pods and groups of pods in queues that Kueue 0.20 introduced."""

import pytest

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_path
from batchyard.api.views.pods import is_terminating
from batchyard.base.instant import MINUTE
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, KueueVersion, decision_rules
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from stage import condition_state
from unit.jobs.pod.pods import PodStage, in_phase, member

RULES_0_20 = decision_rules(KueueVersion.V0_20, {})
BY_VERSION = pytest.mark.parametrize("rules", [DEFAULT_RULES, RULES_0_20], ids=["0.19", "0.20"])
IS_READY = [{"type": "Ready", "status": "True"}]


@BY_VERSION
def test_succeeded_pod_of_a_group_counts_as_ready_since_0_20(rules: DecisionRules) -> None:
    policy = PodsReadyPolicy(timeout=5 * MINUTE)
    stage = PodStage(member("a"), member("b"), rules=rules, pods_ready=policy)
    stage.admit()
    for name in ("a", "b"):
        stage.set_phase(name, "Running", conditions=IS_READY)
    assert condition_state(stage.only_workload(), "PodsReady")[0] == "True"
    stage.set_phase("a", "Succeeded")
    assert condition_state(stage.only_workload(), "PodsReady")[0] == str(rules.is_current)


@BY_VERSION
def test_roles_are_ordered_by_their_requests_since_0_20(rules: DecisionRules) -> None:
    stages = [PodStage(*members, rules=rules) for members in _groups()]
    assert _first_roles(stages) == ({"a", "b"} if rules.is_current else {"a"})
    for stage in stages:
        stage.admit()
        # The Workload matches the pods, although their specs have the flavor's labels now.
        assert stage.gated() == []
        assert not any(map(is_terminating, stage.pods().values()))


def test_order_by_requests_needs_its_gate() -> None:
    rules = decision_rules(KueueVersion.V0_20, {well_known.SHAPE_ORDERING_GATE: False})
    assert _first_roles([PodStage(*members, rules=rules) for members in _groups()]) == {"a"}


def _groups() -> list[list[Obj]]:
    """Groups with roles `a` and `b`, whose requests differ: the hashes of some change their order with a flavor."""
    return [[_of_role("a", cpu), _of_role("b", f"{cpu}1")] for cpu in "12345678"]


def _of_role(role: str, cpu: str) -> Obj:
    return member(role, cpu=cpu, annotations={well_known.ROLE_HASH: role})


def _first_roles(stages: list[PodStage]) -> set[str]:
    """The first role of each group."""
    return {stage.only_workload()["spec"]["podSets"][0]["name"] for stage in stages}


@BY_VERSION
def test_stopped_pod_of_a_serving_group_loses_its_finalizer_since_0_20(rules: DecisionRules) -> None:
    serving = {well_known.POD_GROUP_SERVING: "true"}
    stage = PodStage(member("a", annotations=serving), member("b", annotations=serving), rules=rules)
    stage.admit()
    for name in ("a", "b"):
        stage.set_phase(name, "Running")
    stage.evict("PodsReadyTimeout", "Exceeded the PodsReady timeout")
    assert stage.finalized() == []
    stage.set_phase("a", "Failed")
    assert stage.finalized() == (["a"] if rules.is_current else [])


@BY_VERSION
def test_group_whose_pods_are_all_being_deleted_gets_no_workload_since_0_20(rules: DecisionRules) -> None:
    # The controller deletes pods without gates that have no Workload.
    pods = [with_path(in_phase(member(name), "Pending"), ("spec", "schedulingGates"), None) for name in ("a", "b")]
    stage = PodStage(*pods, rules=rules)
    assert len(stage.client.list(scheme.WORKLOAD)) == (0 if rules.is_current else 1)
    assert stage.finalized() == (["a", "b"] if rules.is_current else [])
