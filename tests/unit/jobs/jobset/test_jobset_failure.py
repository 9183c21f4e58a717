"""The failure policy of a JobSet, and its status after failed Jobs."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.jobs.jobset.policies import JobSetEvent, JobSetStatusDraft, apply_failure_policy
from stage import condition_state


def failed_job(
    name: str = "js-worker-0", of: str | None = "worker", since: int = 0, reason: str = "BackoffLimitExceeded", **c: Any
) -> Obj:
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": of} if of else None
    condition = make.condition("Failed", since=since, reason=reason, **c)
    return {**make.job(name, queue=None, labels=labels), "status": {"conditions": [condition]}}


def after_failures(policy: Obj | None, *jobs: Obj, **status: Any) -> tuple[Obj, list[JobSetEvent]]:
    """The JobSet and the events after these Jobs failed."""
    js = make.jobset()
    if policy is not None:
        js["spec"]["failurePolicy"] = policy
    if status:
        js["status"] = status
    draft = JobSetStatusDraft(js, make.at(60))
    apply_failure_policy(draft, js, jobs or (failed_job(),))
    return draft.result(), draft.events


def rule(action: str = "FailJobSet", **fields: Any) -> Obj:
    return {"name": fields.pop("name", "myRule"), "action": action, **fields}


def test_first_failure_fails_jobset_without_policy() -> None:
    js, notes = after_failures(None, failed_job("js-b-0", since=9), failed_job("js-a-0", since=10))
    message = "jobset failed due to one or more job failures (first failed job: js-b-0)"
    assert condition_state(js, "Failed") == ("True", "FailedJobs", message)
    assert (js["status"]["terminalState"], js["status"]["restarts"]) == ("Failed", 0)
    assert notes == [("Warning", "FailedJobs", message)]


def test_policy_without_rules_restarts_jobset() -> None:
    js, notes = after_failures({"maxRestarts": 2}, restarts=3, restartsCountTowardsMax=1)
    message = "applying RestartJobSet failure policy action (first failed job: js-worker-0)"
    assert condition_state(js, "RestartingJobSet") == ("True", "DefaultFailurePolicy", message)
    assert (js["status"]["restarts"], js["status"]["restartsCountTowardsMax"]) == (4, 2)
    assert "terminalState" not in js["status"]
    assert notes == [
        ("Warning", "DefaultFailurePolicy", message),
        ("Warning", "RestartJobSetFailurePolicyAction", message),
    ]


@pytest.mark.parametrize("policy", [{}, {"maxRestarts": 0}, {"maxRestarts": 1}])
def test_jobset_fails_after_max_restarts(policy: Obj) -> None:
    js, notes = after_failures(policy, restarts=5, restartsCountTowardsMax=1)
    message = "jobset failed due to reaching max number of restarts (first failed job: js-worker-0)"
    assert condition_state(js, "Failed") == ("True", "ReachedMaxRestarts", message)
    assert js["status"]["restarts"] == 5
    assert [note.reason for note in notes] == ["ReachedMaxRestarts"]


def test_fail_jobset_rule_ignores_remaining_restarts() -> None:
    js, notes = after_failures({"maxRestarts": 5, "rules": [rule()]})
    message = "applying FailJobSet failure policy action (first failed job: js-worker-0)"
    assert condition_state(js, "Failed") == ("True", "FailJobSetFailurePolicyAction", message)
    assert notes == [("Warning", "FailJobSetFailurePolicyAction", message)]


def test_restart_reason_names_rule() -> None:
    js, _ = after_failures({"maxRestarts": 1, "rules": [rule("RestartJobSet")]})
    assert condition_state(js, "RestartingJobSet")[1] == "FailurePolicy_myRule"
    js, _ = after_failures({"maxRestarts": 0, "rules": [rule("RestartJobSet")]})
    assert condition_state(js, "Failed")[1] == "ReachedMaxRestarts"


def test_ignore_max_restarts_rule_restarts_without_limit() -> None:
    policy = {"maxRestarts": 1, "rules": [rule("RestartJobSetAndIgnoreMaxRestarts")]}
    js, notes = after_failures(policy, restarts=8, restartsCountTowardsMax=1)
    message = "applying RestartJobSetAndIgnoreMaxRestarts failure policy action (first failed job: js-worker-0)"
    assert condition_state(js, "RestartingJobSet") == ("True", "FailurePolicy_myRule", message)
    assert (js["status"]["restarts"], js["status"]["restartsCountTowardsMax"]) == (9, 1)
    assert notes[1] == ("Warning", "RestartJobSetAndIgnoreMaxRestartsFailurePolicyAction", message)


@pytest.mark.parametrize("action", ["RestartJob", "RestartJobAndIgnoreMaxRestarts"])
def test_disabled_failure_policy_action_changes_nothing(action: str) -> None:
    js, notes = after_failures({"maxRestarts": 1, "rules": [rule(action)]})
    assert (js["status"], notes) == ({"restarts": 0}, [])


RULE_MATCHES: list[tuple[Obj, bool]] = [
    ({}, True),
    ({"onJobFailureReasons": ["DeadlineExceeded"]}, False),
    ({"onJobFailureReasons": ["DeadlineExceeded", "PodFailurePolicy"]}, True),
    ({"onJobFailureMessagePatterns": ["exit code 1[34]3"]}, True),
    ({"onJobFailureMessagePatterns": ["^exit"]}, False),
    ({"onJobFailureMessagePatterns": ["(", "^Container"]}, True),
    ({"onJobFailureMessagePatterns": ["("]}, False),
    ({"onJobFailureMessagePatterns": ["(?s:^.*exit)\\s[[:alpha:]]+"]}, True),
    ({"onJobFailureMessagePatterns": ["(.+)+!", "((.*)*)*!"]}, False),  # Python's re would not terminate
    ({"targetReplicatedJobs": ["driver"]}, False),
    ({"targetReplicatedJobs": ["driver", "worker"]}, True),
    ({"onJobFailureReasons": ["PodFailurePolicy"], "targetReplicatedJobs": ["driver"]}, False),
]


@pytest.mark.parametrize(("fields", "fits"), RULE_MATCHES)
def test_rule_matches_reason_message_and_replicated_job(fields: Obj, fits: bool) -> None:
    job = failed_job(reason="PodFailurePolicy", message="Container c failed with exit code 143")
    js, _ = after_failures({"maxRestarts": 1, "rules": [rule(**fields)]}, job)
    assert js["status"]["conditions"][0]["type"] == ("Failed" if fits else "RestartingJobSet")


def test_rule_does_not_match_job_without_replicated_job_label() -> None:
    js, _ = after_failures({"maxRestarts": 1, "rules": [rule()]}, failed_job(of=None))
    assert condition_state(js, "RestartingJobSet")[1] == "DefaultFailurePolicy"


def test_first_matching_rule_reports_its_first_failed_job() -> None:
    jobs = [failed_job("js-a-0", "a", 1), failed_job("js-b-1", "b", 3), failed_job("js-b-0", "b", 2)]
    rules = [rule(name="none", targetReplicatedJobs=["c"]), rule(name="b", targetReplicatedJobs=["b"]), rule(name="a")]
    js, _ = after_failures({"rules": rules}, *jobs)
    assert condition_state(js, "Failed")[2].endswith("(first failed job: js-b-0)")


def draft_of(*conditions: Obj) -> JobSetStatusDraft:
    js = {**make.jobset(), "status": {"restarts": 1, "conditions": list(conditions)}}
    return JobSetStatusDraft(js, make.at(60))


def conditions_of(draft: JobSetStatusDraft) -> Sequence[Obj]:
    return list(draft.result()["status"]["conditions"])


RESTARTING = make.condition("RestartingJobSet", reason="DefaultFailurePolicy", message="m")


def test_missing_condition_is_not_set_to_false() -> None:
    draft = draft_of()
    draft.resume()
    draft.end_restart()
    assert (draft.is_changed, draft.events) == (False, [])


def test_end_restart_sets_condition_to_false() -> None:
    draft = draft_of(RESTARTING)
    draft.end_restart()
    assert condition_state(draft.result(), "RestartingJobSet") == ("False", "JobsReady", "all jobs are ready")
    assert draft.events == [("Normal", "JobsReady", "all jobs are ready")]
    (condition,) = conditions_of(draft)
    assert condition["lastTransitionTime"] == make.stamp(60)


def test_completion_suspension_and_failure_end_restart() -> None:
    drafts = [draft_of(RESTARTING) for _ in range(3)]
    drafts[0].complete()
    drafts[1].suspend()
    apply_failure_policy(drafts[2], make.jobset(), [failed_job()])
    found = [condition_state(draft.result(), "RestartingJobSet") for draft in drafts]
    assert found[0] == ("False", "JobSetCompleted", "jobset completed successfully")
    assert found[1] == ("False", "JobSetSuspended", "jobset is suspended")
    assert found[2] == ("False", "JobSetFailed", "jobset failed")
    assert [note.reason for note in drafts[0].events] == ["AllJobsCompleted", "JobSetCompleted"]


def test_changed_reason_keeps_transition_time() -> None:
    draft = draft_of(make.condition("RestartingJobSet", False, since=5, reason="JobsReady", message="m"))
    draft.suspend()
    assert conditions_of(draft)[0]["lastTransitionTime"] == make.stamp(5)
    assert conditions_of(draft)[0]["reason"] == "JobSetSuspended"


def test_startup_policy_conditions_exclude_each_other() -> None:
    draft = draft_of(make.condition("StartupPolicyInProgress", since=5, reason="why", message="m"))
    draft.complete_startup_policy()
    in_progress, completed = conditions_of(draft)
    assert in_progress == {
        **make.condition("StartupPolicyInProgress", False, reason="why", message="m"),
        "lastTransitionTime": make.stamp(5),
    }
    assert (completed["status"], completed["reason"]) == ("True", "InOrderStartupPolicyCompleted")
    draft.begin_startup_policy()
    assert [c["status"] for c in conditions_of(draft)] == ["True", "False"]


def test_status_counts_are_sorted_by_name_in_reverse() -> None:
    draft = draft_of()
    counts = {"a": {"name": "a", "ready": 1}, "b": {"name": "b", "ready": 0}}
    draft.set_counts(counts)
    assert draft.result()["status"]["replicatedJobsStatus"] == [counts["b"], counts["a"]]
    again = JobSetStatusDraft(draft.result(), make.at(61))
    again.set_counts(counts)
    assert (draft.is_changed, again.is_changed, draft.events) == (True, False, [])
