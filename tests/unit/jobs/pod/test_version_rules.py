"""Rules of pods and groups of pods in queues that Kueue 0.20 introduced."""

import pytest

from batchyard.base.instant import MINUTE
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, KueueVersion, decision_rules
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from stage import condition_state
from unit.jobs.pod.pods import PodStage, member

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
