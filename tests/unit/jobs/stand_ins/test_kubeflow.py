"""The controller of Kubeflow's training jobs: pods, conditions, restarts, limits, suspension and cleanup.

Sources: pkg/controller.v1/*/*_controller_test.go and pkg/controller.v1/common/*_test.go of the training operator.
"""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, with_path
from batchyard.jobs.stand_ins.kubeflow import TrainingJobController
from unit.jobs.stand_ins.training import TrainingWorld, replica, training_job

PODS = ["master-0", "worker-0", "worker-1"]
#: The fields of a pod besides its metadata and status.
FIELDS = ("apiVersion", "kind", "spec")


def world(kind: str = "PyTorchJob", *args: Any, **fields: Any) -> TrainingWorld:
    return TrainingWorld(training_job(kind, *args, **fields))


def test_job_gets_a_pod_and_a_service_for_each_replica() -> None:
    stage = world()
    assert (stage.pods(), stage.services()) == (PODS, PODS)
    assert stage.state("Created") == ("True", "PyTorchJobCreated", "PyTorchJob train is created.")
    assert stage.status()["startTime"] == make.stamp()
    assert "Created pod: train-master-0" in stage.messages("SuccessfulCreatePod")
    assert "Created service: train-worker-1" in stage.messages("SuccessfulCreateService")


def test_job_runs_and_succeeds_with_its_master() -> None:
    stage = world()
    stage.report("Running")
    assert stage.state("Running") == ("True", "PyTorchJobRunning", "PyTorchJob train is running.")
    assert stage.status()["replicaStatuses"]["Worker"]["active"] == 2
    stage.report("Succeeded", "master-0", code=0)
    message = "PyTorchJob train is successfully completed."
    assert stage.state("Succeeded") == ("True", "PyTorchJobSucceeded", message)
    assert stage.conditions()["Running"] == "False"
    assert stage.messages("PyTorchJobSucceeded") == [message]
    assert "Pod: team.train-master-0 exited with code 0" in stage.messages("ExitedWithCode")
    workers = stage.status()["replicaStatuses"]["Worker"]
    assert (workers.get("active"), workers["succeeded"]) == (None, 2)
    assert stage.status()["completionTime"] == make.stamp()


def test_job_without_master_succeeds_with_all_workers() -> None:
    stage = world(counts={"Worker": 2})
    stage.report("Running")
    assert stage.state("Running")[2] == "PyTorchJob team/train is running."
    stage.report("Succeeded", "worker-0", code=0)
    assert "Succeeded" not in stage.conditions()
    stage.report("Succeeded", "worker-1", code=0)
    assert stage.state("Succeeded")[2] == "PyTorchJob team/train successfully completed."


def test_selector_of_workers_names_their_labels() -> None:
    labels = ("job-name=train", "operator-name=jaxjob-controller", "replica-type=worker")
    statuses = world("JAXJob", {"Worker": 1}).status()["replicaStatuses"]
    assert statuses["Worker"]["selector"] == ",".join(f"training.kubeflow.org/{label}" for label in labels)


def test_failed_pod_fails_a_job_that_never_restarts() -> None:
    stage = world(restart_policy="Never")
    stage.report("Running")
    stage.report("Failed", "worker-1", code=1)
    message = "PyTorchJob train is failed because 1 Worker replica(s) failed."
    assert stage.state("Failed") == ("True", "PyTorchJobFailed", message)
    assert stage.messages("PyTorchJobFailed") == [message]
    assert stage.pods() == PODS


@pytest.mark.parametrize(
    ("policy", "code", "is_replaced"), [("ExitCode", 137, True), ("ExitCode", 1, False), ("OnFailure", 1, True)]
)
def test_restart_policy_decides_whether_a_failed_pod_is_replaced(policy: str, code: int, is_replaced: bool) -> None:
    stage = world(restart_policy=policy)
    stage.report("Running")
    stage.run(60)
    old = stage.get(scheme.POD, "train-worker-0")["metadata"]["uid"]
    stage.report("Failed", "worker-0", code=code)
    stage.run(70)
    assert (stage.get(scheme.POD, "train-worker-0")["metadata"]["uid"] != old) == is_replaced
    if is_replaced:
        restarts = [f"{each} because " for each in ("job train is restarting", "PyTorchJob train is restarting")]
        causes = ("Worker replica(s) failed.", "1 Worker replica(s) failed.")
        assert stage.messages("PyTorchJobRestarting") == [a + b for a, b in zip(restarts, causes, strict=True)]
        assert stage.conditions() == {"Created": "True", "Running": "True"}
    else:
        assert stage.state("Failed")[2] == 'job "train" is failing because "Worker" replica(s) failed.'


def test_pod_that_fails_at_once_is_replaced_after_a_pause() -> None:
    stage = world(restart_policy="ExitCode")
    old = stage.get(scheme.POD, "train-worker-0")["metadata"]["uid"]
    stage.report("Failed", "worker-0", code=137)
    stage.run(4)
    assert stage.get(scheme.POD, "train-worker-0")["metadata"]["uid"] == old
    stage.run(6)
    assert stage.get(scheme.POD, "train-worker-0")["metadata"]["uid"] != old


def test_suspended_job_has_no_pods_until_it_is_resumed() -> None:
    stage = world(policy={"suspend": True})
    assert (stage.pods(), stage.services()) == ([], [])
    assert stage.state("Suspended") == ("True", "PyTorchJobSuspended", "PyTorchJob train is suspended.")
    assert "startTime" not in stage.status()
    stage.run(30)
    stage.change("runPolicy.suspend", value=False)
    assert stage.state("Suspended") == ("False", "PyTorchJobResumed", "PyTorchJob train is resumed.")
    assert (stage.pods(), stage.status()["startTime"]) == (PODS, make.stamp(30))


def test_suspension_deletes_pods_and_services() -> None:
    stage = world()
    stage.report("Running")
    stage.change("runPolicy.suspend", value=True)
    assert (stage.pods(), stage.services()) == ([], [])
    assert stage.state("Running")[:2] == ("False", "PyTorchJobSuspended")
    assert [each.get("active") for each in stage.status()["replicaStatuses"].values()] == [None, None]
    assert stage.messages("PyTorchJobSuspended") == ["PyTorchJob train is suspended."]


def test_pods_of_an_earlier_run_in_deletion_are_no_failures() -> None:
    job = training_job(counts={"Worker": 1}, restart_policy="Never")
    kept = replica("PyTorchJob", 1, "Never", metadata={"finalizers": ["example.com/kept"]})
    stage = TrainingWorld(with_path(job, ("spec", "pytorchReplicaSpecs", "Worker"), kept))
    stage.report("Running")
    stage.change("runPolicy.suspend", value=True)
    stage.run(30)
    stage.change("runPolicy.suspend", value=False)
    assert "Failed" not in stage.conditions()
    pod = stage.get(scheme.POD, "train-worker-0")
    stage.put({"metadata": {**pod["metadata"], "finalizers": []}, **{field: pod[field] for field in FIELDS}})
    assert stage.get(scheme.POD, "train-worker-0")["metadata"]["uid"] != pod["metadata"]["uid"]


def test_job_fails_after_its_deadline() -> None:
    stage = world(policy={"activeDeadlineSeconds": 60})
    stage.run(59)
    assert "Failed" not in stage.conditions()
    stage.run(61)
    message = "Job train has failed because it was active longer than specified deadline"
    assert stage.state("Failed")[2] == message
    assert stage.pods() == []


def test_job_fails_when_its_containers_restart_too_often() -> None:
    stage = world(policy={"backoffLimit": 3})
    stage.report("Running")
    for count, has_failed in ((2, False), (3, True)):
        pod = stage.get(scheme.POD, "train-worker-0")
        stage.put(with_path(pod, ("status", "containerStatuses"), [{"name": "pytorch", "restartCount": count}]))
        assert ("Failed" in stage.conditions()) == has_failed
    assert stage.state("Failed")[2] == "Job train has failed because it has reached the specified backoff limit"
    assert stage.pods() == []


def test_first_failure_ends_a_job_with_a_limit_of_zero() -> None:
    stage = world(policy={"backoffLimit": 0})
    stage.report("Running")
    stage.report("Failed", "worker-0", code=137)
    assert stage.state("Failed")[2] == "Job train has failed because it has reached the specified backoff limit"


@pytest.mark.parametrize(("policy", "left"), [("None", PODS), ("Running", ["master-0"]), ("All", []), (None, PODS)])
def test_policy_decides_which_pods_of_a_finished_job_remain(policy: str | None, left: list[str]) -> None:
    stage = world(policy={} if policy is None else {"cleanPodPolicy": policy})
    stage.report("Running")
    stage.report("Succeeded", "master-0", code=0)
    assert (stage.pods(), stage.services()) == (left, left)


def test_finished_job_is_deleted_after_its_time_to_live() -> None:
    stage = world(policy={"ttlSecondsAfterFinished": 60})
    stage.report("Succeeded", "master-0", code=0)
    stage.run(59)
    assert stage.job()
    stage.run(61)
    assert stage.client.get(Key(stage.kind, "team", "train")) is None
    assert stage.pods() == []


def test_job_of_another_manager_is_left_alone() -> None:
    stage = world(policy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert (stage.pods(), "status" in stage.job()) == ([], False)
    assert world(policy={"managedBy": "kubeflow.org/training-operator"}).pods() == PODS


def test_invalid_job_fails_with_the_reason() -> None:
    stage = world(elasticPolicy={"maxReplicas": 3})
    problem = "spec.elasticPolicy: Forbidden: elastic jobs need Kubeflow's own training operator"
    message = f"PyTorchJob failed validation because {problem}"
    assert stage.state("Failed") == ("True", "PyTorchJobFailedValidation", message)
    assert stage.messages("PyTorchJobFailedValidation") == [message]
    assert stage.pods() == []


def test_invalid_pod_template_is_reported() -> None:
    job = training_job(counts={"Worker": 1})
    bad = replica("PyTorchJob", 1, container={"imagePullPolicy": "Sometimes"})
    stage = TrainingWorld(with_path(job, ("spec", "pytorchReplicaSpecs", "Worker"), bad))
    assert stage.pods() == []
    assert "spec.containers[0].imagePullPolicy" in stage.messages("FailedCreatePod")[0]


def test_workers_follow_the_number_of_replicas() -> None:
    stage = world()
    stage.change("pytorchReplicaSpecs.Worker.replicas", 1)
    assert (stage.pods(), stage.services()) == (PODS[:2], PODS[:2])
    stage.change("pytorchReplicaSpecs.Worker.replicas", 3)
    assert (stage.pods(), stage.services()) == ([*PODS, "worker-2"], [*PODS, "worker-2"])


def test_restart_policy_of_the_template_is_overwritten_with_a_warning() -> None:
    job = training_job(counts={"Worker": 1})
    own = replica("PyTorchJob", 1, "OnFailure")
    own["template"]["spec"]["restartPolicy"] = "Never"
    stage = TrainingWorld(with_path(job, ("spec", "pytorchReplicaSpecs", "Worker"), own))
    assert stage.get(scheme.POD, "train-worker-0")["spec"]["restartPolicy"] == "OnFailure"
    assert len(stage.messages("SetPodTemplateRestartPolicy")) == 1


@pytest.mark.parametrize(("policy", "succeeds"), [("", True), ("AllWorkers", False)])
def test_first_worker_decides_a_tensorflow_job(policy: str, succeeds: bool) -> None:
    stage = world("TFJob", {"PS": 1, "Worker": 2}, successPolicy=policy)
    stage.report("Running")
    stage.report("Succeeded", "worker-0", code=0)
    assert ("Succeeded" in stage.conditions()) == succeeds


def test_tensorflow_job_fails_with_any_replica() -> None:
    stage = world("TFJob", {"Chief": 1, "Worker": 1})
    stage.report("Running")
    stage.report("Failed", "worker-0", code=1)
    assert stage.state("Failed")[2] == "TFJob team/train has failed because 1 Worker replica(s) failed."


def test_tensorflow_job_restarts_after_retryable_exit_codes() -> None:
    stage = world("TFJob", {"Worker": 2}, restart_policy="ExitCode")
    stage.report("Running")
    stage.run(60)
    stage.report("Failed", "worker-1", code=130)
    assert stage.messages("TFJobRestarting") == ["job train is restarting because Worker replica(s) failed."]
    assert stage.conditions() == {"Created": "True", "Running": "True"}


def test_xgboost_job_fails_although_its_policy_restarts() -> None:
    stage = world("XGBoostJob", restart_policy="ExitCode")
    stage.report("Running")
    stage.run(60)
    stage.report("Failed", "worker-0", code=137)
    assert "Failed" not in stage.conditions()
    stage = world("XGBoostJob")
    stage.report("Failed", "worker-0", code=1)
    assert stage.state("Failed")[2] == "XGBoostJob train is failed because 1 Worker replica(s) failed."


def test_job_is_kept_by_a_new_controller() -> None:
    stage = world()
    stage.report("Running")
    before = stage.job()
    stage.replace_controllers(TrainingJobController(stage.kind))
    assert stage.job() == before
