"""Which changes of pods are looked at when."""

import make
from batchyard.api.well_known import JOB_TRACKING
from batchyard.jobs.job.controller import JobPodController
from stage import stated
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import indexed, job


def looks(stage: JobStage) -> int:
    return stage.runner.reconciles


def test_that_a_pod_is_bound_makes_no_look() -> None:
    stage = JobStage(indexed())
    before = looks(stage)
    stage.bind()
    assert looks(stage) == before


def test_what_a_node_or_its_lack_is_told_makes_no_look() -> None:
    stage = JobStage(indexed())
    before = looks(stage)
    stage.become("Pending", conditions=[make.condition("PodScheduled", False, reason="Unschedulable")])
    stage.pass_time(5)
    assert looks(stage) == before


def test_a_restarted_container_is_looked_at_within_a_second() -> None:
    stage = JobStage(job(restart="OnFailure", backoffLimit=1))
    stage.become("Running", ready=True)
    stage.become("Running", *stage.pods("Running"), ready=True, containerStatuses=[{"name": "c", "restartCount": 1}])
    assert stage.conditions() == []
    stage.pass_time(1)
    assert stated(stage.job, "Failed")[1] == "BackoffLimitExceeded"


def test_a_deadline_is_kept_whatever_is_gathered() -> None:
    stage = JobStage(indexed(activeDeadlineSeconds=10))
    stage.pass_time(9.5)
    stage.become("Running", stage.pods()[0], ready=True)
    stage.run(10)
    assert stated(stage.job, "Failed")[1] == "DeadlineExceeded"


def test_single_successes_are_gathered_for_a_second() -> None:
    stage = JobStage(indexed())
    for pod in stage.pods()[:2]:
        stage.become("Succeeded", pod)
        stage.pass_time(0.25)
    assert "completedIndexes" not in stage.status
    stage.pass_time(0.5)
    assert stage.status["completedIndexes"] == "0,1"


def test_the_last_success_is_not_waited_for() -> None:
    stage = JobStage(indexed())
    for pod in stage.pods():
        stage.become("Succeeded", pod)
    assert stage.status["completedIndexes"] == "0-2"
    assert "completionTime" in stage.status


def test_a_success_that_makes_room_is_not_waited_for() -> None:
    stage = JobStage(indexed(completions=9))
    stage.become("Succeeded", stage.pods()[0])
    assert stage.status["completedIndexes"] == "0"


def test_failures_are_not_waited_for() -> None:
    stage = JobStage(indexed())
    stage.become("Failed", stage.pods()[0])
    assert stage.status["failed"] == 1


def test_what_is_gathered_comes_with_the_next_change_that_cannot_wait() -> None:
    stage = JobStage(indexed())
    stage.become("Succeeded", stage.pods()[0])
    stage.become("Failed", stage.pods()[0])
    assert (stage.status["completedIndexes"], stage.status["failed"]) == ("0", 1)


def test_pods_that_were_counted_are_not_looked_at_again() -> None:
    stage = JobStage(indexed())
    stage.become("Succeeded", stage.pods()[0])
    stage.pass_time(1)
    before = looks(stage)
    counted = stage.pods("Succeeded")[0]
    assert JOB_TRACKING not in counted["metadata"].get("finalizers", ())
    stage.become("Succeeded", counted, message="told late")
    stage.pass_time(5)
    assert looks(stage) == before


def test_a_look_costs_as_much_as_there_are_pods_that_matter() -> None:
    stage = JobStage(job(parallelism=1, completions=50))
    for _ in range(49):
        stage.become("Succeeded")
    (controller,) = (lane.controller for lane in stage.runner._queue.lanes)
    assert isinstance(controller, JobPodController)
    assert len(list(controller._index.of(stage.job).pods)) == 1
