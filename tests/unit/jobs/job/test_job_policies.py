"""Pod failure policies and success policies."""

from typing import Any

import pytest

import make
from batchyard.jobs.job import spec as indexes
from batchyard.jobs.job.plan import matching_success_rule_index
from batchyard.jobs.job.spec import PolicyDecision, is_counted, job_spec, policy_decision
from unit.jobs.job.job_make import Obj, indexed, pod, terminated_status

ON_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def exit_code_rule(action: str, *values: int, operator: str = "In", **fields: Any) -> Obj:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values), **fields}}


def failed_pod(exit_code: int = 1, **more: Any) -> Obj:
    return pod("p", "Failed", exit_code=exit_code, **more)


def test_first_matching_failure_rule_applies() -> None:
    rules = [exit_code_rule("Ignore", 3), exit_code_rule("FailIndex", 3, 4), exit_code_rule("Count", 4)]
    assert [policy_decision(rules, failed_pod(code)).action for code in (3, 4, 5)] == ["Ignore", "FailIndex", ""]
    assert [is_counted(rules, failed_pod(code)) for code in (3, 4, 5)] == [False, True, True]


def test_failure_counts_without_rules() -> None:
    assert is_counted(None, failed_pod())
    assert policy_decision(None, failed_pod()) == PolicyDecision("")


def test_fail_job_message_names_container_and_exit_code() -> None:
    rules = [ON_DISRUPTION, exit_code_rule("FailJob", 42)]
    message = "Container c for pod team/p failed with exit code 42 matching FailJob rule at index 1"
    assert policy_decision(rules, failed_pod(42)) == PolicyDecision("FailJob", message)


def test_fail_job_message_names_condition() -> None:
    rules = [{"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]}]
    broken = failed_pod(conditions=[make.condition("ConfigIssue")])
    message = "Pod team/p has condition ConfigIssue matching FailJob rule at index 0"
    assert policy_decision(rules, broken) == PolicyDecision("FailJob", message)


def test_not_in_operator_matches_unlisted_codes_except_zero() -> None:
    rules = [exit_code_rule("Ignore", 1, 2, operator="NotIn")]
    assert [policy_decision(rules, failed_pod(code)).action for code in (1, 3, 0)] == ["", "Ignore", ""]


def test_exit_code_rule_respects_container_name() -> None:
    rules = [exit_code_rule("Ignore", 1, containerName="main")]
    assert is_counted(rules, failed_pod(1))
    of_main = failed_pod(1)
    of_main["status"]["initContainerStatuses"] = [terminated_status("main", 1)]
    assert not is_counted(rules, of_main)


def test_condition_rule_respects_status() -> None:
    disrupted = failed_pod(conditions=[make.condition("DisruptionTarget")])
    assert not is_counted([ON_DISRUPTION], disrupted)
    assert is_counted([ON_DISRUPTION], failed_pod(conditions=[make.condition("DisruptionTarget", False)]))
    assert is_counted([{"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "Unknown"}]}], failed_pod())


@pytest.mark.parametrize(
    ("rule", "succeeded", "met"),
    [
        ({"succeededIndexes": "0"}, "0", True),
        ({"succeededIndexes": "0,2-4"}, "0,2-3", False),
        ({"succeededIndexes": "0,2-4"}, "0-9", True),
        ({"succeededIndexes": "0-4", "succeededCount": 2}, "1,4", True),
        ({"succeededIndexes": "0-4", "succeededCount": 2}, "1,7", False),
        ({"succeededCount": 3}, "1,4,9", True),
        ({"succeededCount": 3}, "1,4", False),
        ({"succeededCount": 0}, "", False),
        ({"succeededIndexes": "x"}, "0-9", False),
    ],
)
def test_success_rule_checks_indexes_and_count(rule: Obj, succeeded: str, met: bool) -> None:
    spec = job_spec(indexed(completions=10, successPolicy={"rules": [{"succeededCount": 11}, rule]}))
    assert matching_success_rule_index(spec, indexes.parse_indexes(succeeded, 10)) == (1 if met else None)
