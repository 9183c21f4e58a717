"""The Job controller and its pods over time."""

import make
from batchyard.api import scheme
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj, annotation, key_of, with_metadata
from batchyard.api.well_known import COMPLETION_INDEX
from batchyard.interfaces.client import Create, Delete, Propagation
from batchyard.jobs.job.controller import JobPodController
from stage import condition_state
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import indexed, job, per_index, terminated_status

REACHED = ("True", "CompletionsReached", "Reached expected number of succeeded pods")


def test_job_creates_pods_and_reports_events() -> None:
    stage = JobStage(job(parallelism=2, completions=2))
    assert len(stage.pods()) == 2
    assert stage.status == {
        "startTime": make.stamp(),
        "active": 2,
        "ready": 0,
        "terminating": 0,
        "uncountedTerminatedPods": {},
    }
    reported = [(event.reason, event.message) for event in stage.events]
    assert reported == [("SuccessfulCreate", f"Created pod: {pod['metadata']['name']}") for pod in stage.pods()]
    assert stage.runner.is_idle()


def test_job_completes_after_pods_succeed() -> None:
    stage = JobStage(job(parallelism=2, completions=2))
    stage.become("Running", ready=True)
    assert stage.status["ready"] == 2
    stage.pass_time(60)
    stage.become("Succeeded", *stage.pods("Running"))
    status = stage.status
    assert (status["succeeded"], status["ready"], status["completionTime"]) == (2, 0, make.stamp(60))
    assert "active" not in status
    assert stage.conditions() == [("SuccessCriteriaMet", *REACHED), ("Complete", *REACHED)]
    assert status["conditions"][1]["lastProbeTime"] == make.stamp(60)
    assert (stage.reasons()[2:], stage.tracked()) == (["Completed"], 0)


def test_indexed_job_reports_completed_indexes() -> None:
    stage = JobStage(indexed(completions=5, parallelism=2))
    assert stage.indexes() == ["0", "1"]
    stage.become("Succeeded", stage.pods()[1])
    assert (stage.indexes(), stage.status["completedIndexes"]) == (["0", "2"], "1")
    stage.become("Succeeded")
    assert (stage.status["completedIndexes"], stage.status["succeeded"]) == ("0-2", 3)
    stage.become("Succeeded")
    assert (stage.status["completedIndexes"], condition_state(stage.job, "Complete")) == ("0-4", REACHED)


def test_job_without_completions_completes_after_success_and_end_of_all_pods() -> None:
    stage = JobStage(job(parallelism=3, completions=None))
    stage.become("Succeeded", stage.pods()[0])
    stage.pass_time(1)
    assert (len(stage.pods()), stage.status["active"], stage.conditions()) == (2, 2, [])
    stage.become("Failed")
    assert condition_state(stage.job, "Complete") == REACHED
    assert (stage.status["succeeded"], stage.status["failed"]) == (1, 2)


def test_job_with_zero_completions_completes_at_once() -> None:
    stage = JobStage(job(parallelism=1, completions=0))
    assert (condition_state(stage.job, "Complete"), stage.pods(None)) == (REACHED, [])
    assert stage.status["startTime"] == make.stamp()


def test_job_replaces_failed_pods_with_backoff_until_limit() -> None:
    stage = JobStage(job(backoffLimit=3))
    for wait in (10, 20, 40):
        stage.become("Failed")
        stage.pass_time(wait - 0.1)
        assert stage.pods() == []
        stage.pass_time(0.1)
        assert len(stage.pods()) == 1
    stage.become("Failed")
    assert stage.status["failed"] == 4
    assert condition_state(stage.job, "Failed") == (
        "True",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert (stage.events[-1].type, stage.events[-1].reason) == ("Warning", "BackoffLimitExceeded")


def test_deleted_pods_count_for_backoff() -> None:
    stage = JobStage(job())
    for wait in (10, 20):
        stage.delete(scheme.POD, stage.pods()[0]["metadata"]["name"])
        assert stage.pods(None) == []
        stage.pass_time(wait - 0.1)
        assert stage.pods() == []
        stage.pass_time(0.1)
    assert (len(stage.pods()), stage.status["failed"]) == (1, 2)


def test_failed_job_deletes_its_pods() -> None:
    stage = JobStage(job(parallelism=3, completions=3, backoffLimit=0))
    stage.bind()
    stage.become("Failed", stage.pods()[0])
    assert [kind for kind, *_ in stage.conditions()] == ["FailureTarget"]
    assert (stage.status["failed"], stage.status["terminating"], stage.tracked()) == (3, 2, 0)
    stage.pass_time(5)
    stage.stop()
    assert [kind for kind, *_ in stage.conditions()] == ["FailureTarget", "Failed"]
    assert (stage.status["failed"], stage.status["terminating"]) == (3, 0)
    assert "completionTime" not in stage.status
    assert stage.status["conditions"][1]["lastTransitionTime"] == make.stamp(5)


def test_job_fails_after_active_deadline() -> None:
    stage = JobStage(job(activeDeadlineSeconds=30))
    stage.run(29)
    assert stage.conditions() == []
    stage.run(30)
    late = ("True", "DeadlineExceeded", "Job was active longer than specified deadline")
    assert (condition_state(stage.job, "FailureTarget"), condition_state(stage.job, "Failed")) == (late, late)
    assert stage.pods(None) == []


def test_resumed_job_restarts_active_deadline() -> None:
    stage = JobStage(job(activeDeadlineSeconds=30))
    stage.pass_time(20)
    stage.change(suspend=True)
    stage.pass_time(100)
    stage.change(suspend=False)
    assert stage.status["startTime"] == make.stamp(120)
    stage.pass_time(29)
    assert stage.status["active"] == 1
    stage.pass_time(1)
    assert condition_state(stage.job, "Failed")[1] == "DeadlineExceeded"


def test_suspended_job_deletes_pods_without_counting_failures() -> None:
    stage = JobStage(job(parallelism=2, completions=2))
    stage.bind(stage.pods()[0])
    stage.change(suspend=True)
    assert condition_state(stage.job, "Suspended") == ("True", "JobSuspended", "Job suspended")
    assert {"active", "startTime", "failed"}.isdisjoint(stage.status)
    assert (stage.status["terminating"], len(stage.pods(None))) == (1, 1)
    stage.stop()
    assert (stage.status["terminating"], stage.pods(None)) == (0, [])
    stage.change(suspend=False)
    assert condition_state(stage.job, "Suspended") == ("False", "JobResumed", "Job resumed")
    assert (len(stage.pods()), stage.status["active"], stage.status["startTime"]) == (2, 2, make.stamp())
    reasons = [reason for reason in stage.reasons() if reason != "SuccessfulCreate"]
    assert reasons == ["SuccessfulDelete", "SuccessfulDelete", "Suspended", "Resumed"]


def test_job_created_suspended_has_no_pods() -> None:
    stage = JobStage(job(suspend=True))
    assert (stage.pods(None), stage.reasons()) == ([], ["Suspended"])
    assert "startTime" not in stage.status


def test_job_deletes_surplus_pods_after_parallelism_is_reduced() -> None:
    stage = JobStage(job(parallelism=3, completions=9))
    stage.bind()
    stage.change(parallelism=1)
    assert (stage.status["active"], stage.status["terminating"], stage.tracked()) == (1, 2, 1)
    stage.stop()
    assert stage.status["terminating"] == 0
    assert "failed" not in stage.status


def test_failed_index_is_retried_up_to_backoff_limit_per_index() -> None:
    stage = JobStage(per_index(1, completions=2, parallelism=2))
    stage.become("Failed", stage.pods()[0])
    assert (stage.status["failedIndexes"], stage.tracked()) == ("", 2)
    stage.pass_time(10)
    assert (stage.indexes(), stage.status["failed"]) == (["0", "1"], 1)
    stage.become("Failed", stage.pods()[0])
    assert (stage.status["failedIndexes"], stage.status["failed"]) == ("0", 2)
    stage.become("Succeeded")
    assert condition_state(stage.job, "Failed") == ("True", "FailedIndexes", "Job has failed indexes")
    assert (stage.status["completedIndexes"], stage.status["succeeded"], stage.tracked()) == ("1", 1, 0)


def test_job_fails_after_max_failed_indexes() -> None:
    stage = JobStage(per_index(0, maxFailedIndexes=1))
    stage.become("Failed", *stage.pods()[:2])
    message = "Job has exceeded the specified maximal number of failed indexes"
    assert condition_state(stage.job, "Failed") == ("True", "MaxFailedIndexesExceeded", message)
    assert (stage.status["failedIndexes"], stage.status["failed"]) == ("0,1", 3)


def test_success_policy_completes_job_and_deletes_other_pods_uncounted() -> None:
    stage = JobStage(indexed(successPolicy={"rules": [{"succeededIndexes": "0"}]}))
    stage.bind()
    stage.become("Succeeded", stage.pods()[0])
    assert (stage.status["terminating"], stage.tracked()) == (2, 0)
    stage.stop()
    assert condition_state(stage.job, "Complete") == ("True", "SuccessPolicy", "Matched rules at index 0")
    assert "failed" not in stage.status


def test_ignored_disruptions_are_replaced_without_failure() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    stage = JobStage(job(backoffLimit=0, podFailurePolicy={"rules": rules}))
    stage.bind()
    stage.delete(scheme.POD, stage.pods()[0]["metadata"]["name"])
    assert (stage.status["terminating"], len(stage.pods(None))) == (1, 1)
    stage.become("Failed", *stage.pods(), conditions=[make.condition("DisruptionTarget")])
    stage.stop()
    stage.pass_time(10)
    assert (len(stage.pods()), stage.conditions()) == (1, [])
    assert "failed" not in stage.status


def test_pod_replacement_policy_failed_delays_replacement() -> None:
    stage = JobStage(job(podReplacementPolicy="Failed"))
    stage.bind()
    stage.delete(scheme.POD, stage.pods()[0]["metadata"]["name"])
    stage.pass_time(20)
    assert (len(stage.pods(None)), stage.status["terminating"], "active" in stage.status) == (1, 1, False)
    stage.stop()
    stage.pass_time(10)
    assert (len(stage.pods()), stage.status["failed"]) == (1, 1)


def test_job_managed_by_other_controller_is_ignored() -> None:
    stage = JobStage(job(managedBy="example.com/other"))
    assert (stage.pods(None), "status" in stage.job) == ([], False)
    assert len(JobStage(job(managedBy="kubernetes.io/job-controller")).pods()) == 1


def test_deleted_job_releases_its_pods() -> None:
    stage = JobStage(job(parallelism=2, completions=2))
    stage.bind(stage.pods()[0])
    stage.delete(scheme.JOB, "job")
    assert (len(stage.pods(None)), stage.tracked()) == (1, 0)
    stage.stop()
    assert stage.pods(None) == []


def test_foreground_deletion_of_job_waits_for_pods() -> None:
    stage = JobStage(job(parallelism=2, completions=2))
    stage.bind(stage.pods()[0])
    stage._submit(Delete(key_of(stage.job), propagation=Propagation.FOREGROUND))
    stage.settle()
    assert (len(stage.pods(None)), stage.tracked()) == (1, 0)
    assert "deletionTimestamp" in stage.job["metadata"]
    stage.stop()
    assert stage.client.list(scheme.JOB) == []


def test_fail_job_rule_fails_job_at_once() -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    stage = JobStage(job(parallelism=2, completions=2, podFailurePolicy={"rules": rules}))
    failed = stage.pods()[0]
    stage.become("Failed", failed, containerStatuses=[terminated_status("c", 42)])
    name = failed["metadata"]["name"]
    message = f"Container c for pod team/{name} failed with exit code 42 matching FailJob rule at index 0"
    why = ("True", "PodFailurePolicy", message)
    assert (condition_state(stage.job, "FailureTarget"), condition_state(stage.job, "Failed")) == (why, why)
    assert stage.status["failed"] == 2


def test_fail_index_rule_prevents_retry_of_index() -> None:
    rules = [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}}]
    stage = JobStage(per_index(9, podFailurePolicy={"rules": rules}))
    stage.become("Failed", stage.pods()[0], containerStatuses=[terminated_status("c", 42)])
    stage.pass_time(1000)
    assert (stage.status["failedIndexes"], stage.indexes()) == ("0", ["1", "2"])


def test_too_many_succeeded_pods_event_is_reported() -> None:
    stage = JobStage(job())
    stage._submit(Create(with_metadata(stage.pods()[0], name="twin", uid=None, resourceVersion=None)))
    stage.become("Succeeded", *stage.pods())
    assert (condition_state(stage.job, "Complete"), stage.status["succeeded"]) == (REACHED, 2)
    reported = ("Warning", "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
    assert reported in [event[1:4] for event in stage.events]


def test_restarted_controller_adopts_existing_pods() -> None:
    stage = JobStage(indexed())
    assert JobPodController().reconcile(key_of(stage.job), stage.client, make.NOW).writes == []


def test_finished_job_is_not_changed() -> None:
    stage = JobStage(job())
    stage.become("Succeeded")
    done, pods = stage.job, stage.pods(None)
    stage.change(parallelism=5)
    stage.pass_time(100)
    assert (stage.status, stage.pods(None)) == (done["status"], pods)


def test_ready_count_is_batched_until_all_pods_are_ready() -> None:
    stage = JobStage(job(parallelism=3, completions=3))
    stage.become("Running", stage.pods()[0], ready=True)
    stage.pass_time(0.5)
    stage.become("Running", stage.pods()[0], ready=True)
    assert stage.status["ready"] == 0
    stage.pass_time(0.5)
    assert stage.status["ready"] == 2
    stage.become("Running", ready=True)
    assert stage.status["ready"] == 3


def test_rejected_pods_are_retried_after_other_pods_change() -> None:
    refused = ["1", "2"]

    def admit(pod: Obj) -> None:
        if annotation(pod, COMPLETION_INDEX) in refused:
            raise Forbidden("the leader is not placed yet")

    stage = JobStage(indexed(), admit=admit)
    stage.pass_time(30)
    assert (stage.indexes(), stage.status["active"]) == (["0"], 1)
    refused.clear()
    stage.bind()
    assert (sorted(map(str, stage.indexes())), stage.status["active"]) == (["0", "1", "2"], 3)


def test_duplicate_pod_of_index_is_deleted() -> None:
    stage = JobStage(indexed())
    twin = with_metadata(stage.pods()[0], name="twin", uid=None, resourceVersion=None)
    stage._submit(Create(twin))
    stage.pass_time(1)
    assert (sorted(map(str, stage.indexes())), stage.status["active"]) == (["0", "1", "2"], 3)
