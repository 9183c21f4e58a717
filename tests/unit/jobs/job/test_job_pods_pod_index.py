"""Pod changes that trigger a reconcile, at once or batched."""

from operator import is_

import make
from batchyard.api.well_known import JOB_TRACKING
from batchyard.jobs.job.controller import JobPodController, RelevantJobPods
from stage import condition_state
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import indexed, job


def reconciles(stage: JobStage) -> int:
    return stage.runner.reconciles


def test_pod_binding_triggers_no_reconcile() -> None:
    stage = JobStage(indexed())
    before = reconciles(stage)
    stage.bind()
    assert reconciles(stage) == before


def test_pod_scheduled_condition_triggers_no_reconcile() -> None:
    stage = JobStage(indexed())
    before = reconciles(stage)
    stage.become("Pending", conditions=[make.condition("PodScheduled", False, reason="Unschedulable")])
    stage.pass_time(5)
    assert reconciles(stage) == before


def test_container_restart_is_reconciled_within_second() -> None:
    stage = JobStage(job(restart="OnFailure", backoffLimit=1))
    stage.become("Running", ready=True)
    stage.become("Running", *stage.pods("Running"), ready=True, containerStatuses=[{"name": "c", "restartCount": 1}])
    assert stage.conditions() == []
    stage.pass_time(1)
    assert condition_state(stage.job, "Failed")[1] == "BackoffLimitExceeded"


def test_active_deadline_is_enforced_during_batching() -> None:
    stage = JobStage(indexed(activeDeadlineSeconds=10))
    stage.pass_time(9.5)
    stage.become("Running", stage.pods()[0], ready=True)
    stage.run(10)
    assert condition_state(stage.job, "Failed")[1] == "DeadlineExceeded"


def test_pod_successes_are_batched_for_second() -> None:
    stage = JobStage(indexed())
    for pod in stage.pods()[:2]:
        stage.become("Succeeded", pod)
        stage.pass_time(0.25)
    assert "completedIndexes" not in stage.status
    stage.pass_time(0.5)
    assert stage.status["completedIndexes"] == "0,1"


def test_last_success_is_reconciled_at_once() -> None:
    stage = JobStage(indexed())
    for pod in stage.pods():
        stage.become("Succeeded", pod)
    assert stage.status["completedIndexes"] == "0-2"
    assert "completionTime" in stage.status


def test_success_that_allows_new_pod_is_reconciled_at_once() -> None:
    stage = JobStage(indexed(completions=9))
    stage.become("Succeeded", stage.pods()[0])
    assert stage.status["completedIndexes"] == "0"


def test_pod_failures_are_reconciled_at_once() -> None:
    stage = JobStage(indexed())
    stage.become("Failed", stage.pods()[0])
    assert stage.status["failed"] == 1


def test_urgent_change_flushes_batched_changes() -> None:
    stage = JobStage(indexed())
    stage.become("Succeeded", stage.pods()[0])
    stage.become("Failed", stage.pods()[0])
    assert (stage.status["completedIndexes"], stage.status["failed"]) == ("0", 1)


def test_counted_pods_trigger_no_reconcile() -> None:
    stage = JobStage(indexed())
    stage.become("Succeeded", stage.pods()[0])
    stage.pass_time(1)
    before = reconciles(stage)
    counted = stage.pods("Succeeded")[0]
    assert JOB_TRACKING not in counted["metadata"].get("finalizers", ())
    stage.become("Succeeded", counted, message="told late")
    stage.pass_time(5)
    assert reconciles(stage) == before


def test_pod_index_keeps_uncounted_pods_only() -> None:
    stage = JobStage(job(parallelism=1, completions=50))
    for _ in range(49):
        stage.become("Succeeded")
    (controller,) = (queue.controller for queue in stage.runner._queue.queues)
    assert isinstance(controller, JobPodController)
    assert len(list(controller._index.pods_of(stage.job).pod_keys)) == 1


def test_unchanged_pods_are_parsed_once() -> None:
    stage = JobStage(indexed())
    index = RelevantJobPods()
    index.add_existing(stage.pods())
    first = index.read_pods(stage.client)
    stage.become("Running", stage.pods()[0], ready=True)
    second = index.read_pods(stage.client)
    assert [pod.ready for pod in second] == [True, *[False] * (len(first) - 1)]
    assert second[0] is not first[0]
    assert second[1:] == first[1:]
    assert all(map(is_, second[1:], first[1:]))
