"""The controller of RayJobs: states, the submitting Job, reports, retries, suspension, deadlines and cleanup.

Source: ray-operator/controllers/ray/rayjob_controller_{test,unit_test,suspended_test}.go of KubeRay.
"""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.jobs.described.description import built_in_descriptions
from batchyard.jobs.described.integration import DescribedJobIntegration
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.stand_ins.ray import RayClusterController
from batchyard.jobs.stand_ins.ray_jobs import RayJobController
from batchyard.jobs.stand_ins.ray_nodes import RAY_CLUSTER, RAY_JOB
from unit.jobs.stand_ins.ray_world import RayWorld, cluster_spec, ray_job, report


def running_world(**fields: Any) -> RayWorld:
    """A world with a RayJob whose cluster is ready and whose submitting Job has a pod."""
    world = RayWorld(ray_job(**fields))
    world.start_cluster()
    world.run(1)
    return world


def first_container(world: RayWorld) -> Any:
    return world.get(scheme.JOB, "rj")["spec"]["template"]["spec"]["containers"][0]


def test_job_creates_a_cluster_and_waits_for_it() -> None:
    world = RayWorld(ray_job())
    assert world.phase() == ("Initializing", "")
    metadata = world.cluster()["metadata"]
    assert metadata["name"] == world.job()["rayClusterName"]
    assert metadata["name"].startswith("rj-")
    assert metadata["labels"] == {
        "team": "a",
        "ray.io/originated-from-cr-name": "rj",
        "ray.io/originated-from-crd": "RayJob",
        "ray.io/job-submission-mode": "K8sJobMode",
    }
    assert world.messages("CreatedRayCluster") == [f"Created RayCluster team/{metadata['name']}"]
    assert (world.job()["startTime"], world.job()["failed"]) == (make.stamp(), 0)
    assert not world.client.list(scheme.JOB)


def test_job_is_submitted_when_the_cluster_is_ready() -> None:
    world = running_world(entrypointNumCpus=1.5, runtimeEnvYAML="env_vars: {A: b}", metadata={"k": "v"})
    assert world.phase() == ("Running", "PENDING")
    dashboard = f"{world.job()['rayClusterName']}-head-svc.team.svc.cluster.local:8265"
    assert world.job()["dashboardURL"] == dashboard
    script, job_id = first_container(world)["args"][0], world.job()["jobId"]
    options = """--runtime-env-json '{"env_vars":{"A":"b"}}' --metadata-json '{"k":"v"}'"""
    submission = f"ray job submit --address http://{dashboard} --no-wait {options} --submission-id {job_id}"
    assert f"then {submission} --entrypoint-num-cpus 1.500000 -- python main.py ; fi ; ray job logs" in script
    assert first_container(world)["command"] == ["/bin/bash", "-ce", "--"]
    variables = {each["name"]: each["value"] for each in first_container(world)["env"]}
    assert (variables["RAY_DASHBOARD_ADDRESS"], variables["RAY_JOB_SUBMISSION_ID"]) == (dashboard, job_id)
    assert world.get(scheme.JOB, "rj")["spec"]["backoffLimit"] == 2
    service = world.get(scheme.SERVICE, "rj-head-svc")
    assert service["spec"]["selector"]["ray.io/cluster"] == world.job()["rayClusterName"]


def test_job_runs_with_its_submitter() -> None:
    world = running_world()
    world.set_status(world.submitters())
    world.run(3)
    assert world.phase() == ("Running", "RUNNING")
    assert world.job()["rayClusterStatus"]["state"] == "ready"


@pytest.mark.parametrize(("state", "phase"), [("SUCCEEDED", "Complete"), ("STOPPED", "Complete"), ("FAILED", "Failed")])
def test_report_of_the_submitter_ends_the_job(state: str, phase: str) -> None:
    world = running_world()
    world.end_submitter(10, report(state, "how it ended", start_time=make.NOW // 1000, end_time=make.at(2) // 1000))
    assert world.phase() == (phase, state)
    status = world.job()
    assert status["message"] == "how it ended"
    assert status["endTime"] > status["startTime"]
    assert status["rayJobInfo"] == {"startTime": make.stamp(), "endTime": make.stamp(2)}
    assert status.get("reason") == ("AppFailed" if state == "FAILED" else None)
    assert (status["failed"], status["succeeded"]) == (int(state == "FAILED"), int(state == "SUCCEEDED"))
    assert len(world.client.list(RAY_CLUSTER)) == 1


def test_success_without_a_report_is_success() -> None:
    world = running_world()
    world.end_submitter(10)
    assert world.phase() == ("Complete", "SUCCEEDED")


@pytest.mark.parametrize("message", ["{", "[]", '{"status":"RUNNING"}', '{"status":1}'])
def test_invalid_report_fails_the_job(message: str) -> None:
    world = running_world()
    world.end_submitter(10, message)
    assert world.phase()[0] == "Failed"
    assert world.job()["message"] == "The submitter has completed without a report about the Ray job."


def test_own_command_of_the_submitter_is_kept() -> None:
    container = {"name": "mine", "image": "i", "command": ["ray", "job", "submit"]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    world = running_world(submitterPodTemplate=template, submitterConfig={"backoffLimit": 0})
    assert first_container(world)["command"] == ["ray", "job", "submit"]
    assert world.get(scheme.JOB, "rj")["spec"]["template"]["metadata"]["labels"]["a"] == "b"
    world.end_submitter(10, "done")
    assert world.phase() == ("Complete", "SUCCEEDED")


def test_failed_submission_fails_the_job() -> None:
    world = running_world(submitterConfig={"backoffLimit": 0})
    world.end_submitter(10, phase="Failed")
    assert world.phase() == ("Failed", "FAILED")
    problem = "Reason: BackoffLimitExceeded. Message: Job has reached the specified backoff limit"
    assert world.job()["message"] == f"Job submission has failed. {problem}"
    assert world.job()["reason"] == "SubmissionFailed"


def test_failed_job_is_retried_with_another_cluster() -> None:
    world = running_world(backoffLimit=1)
    first_name, first_id = world.job()["rayClusterName"], world.job()["jobId"]
    world.end_submitter(10, report("FAILED"))
    assert world.phase() == ("Initializing", "")
    assert world.job()["failed"] == 1
    assert (world.job()["rayClusterName"] == first_name, world.job()["jobId"] == first_id) == (False, False)
    assert world.cluster()["metadata"]["name"] == world.job()["rayClusterName"]
    world.start_cluster()
    world.run(12)
    service = world.get(scheme.SERVICE, "rj-head-svc")
    assert service["spec"]["selector"]["ray.io/cluster"] == world.job()["rayClusterName"]
    world.end_submitter(20, report("FAILED"))
    assert (world.phase(), world.job()["failed"]) == (("Failed", "FAILED"), 2)


def test_suspended_job_loses_its_cluster_and_starts_again() -> None:
    world = running_world(shutdownAfterJobFinishes=True)
    first_name = world.job()["rayClusterName"]
    world.change(RAY_JOB, "rj", "suspend", True)
    world.run(10)
    assert world.phase() == ("Suspended", "")
    assert [*world.client.list(RAY_CLUSTER), *world.client.list(scheme.JOB), *world.nodes()] == []
    assert "rayClusterName" not in world.job()
    assert world.messages("DeletedRayCluster") == [f"Deleted cluster team/{first_name}"]
    world.change(RAY_JOB, "rj", "suspend", False)
    world.start_cluster()
    assert world.phase() == ("Running", "PENDING")
    assert world.job()["rayClusterName"] != first_name


def test_job_created_suspended_creates_nothing() -> None:
    world = RayWorld(ray_job(suspend=True, shutdownAfterJobFinishes=True))
    assert world.phase() == ("Suspended", "")
    assert world.messages("CreatedRayCluster") == []


@pytest.mark.parametrize(
    ("field", "reason"), [("active", "DeadlineExceeded"), ("preRunning", "PreRunningDeadlineExceeded")]
)
def test_job_fails_at_a_deadline(field: str, reason: str) -> None:
    world = RayWorld(ray_job(**{f"{field}DeadlineSeconds": 60}))
    world.run(59)
    assert world.phase()[0] == "Initializing"
    world.run(61)
    assert (world.phase()[0], world.job()["reason"]) == ("Failed", reason)
    title = f"{field}DeadlineSeconds"
    start = f"StartTime: 2026-01-01 00:00:00 +0000 UTC. {title[0].upper()}{title[1:]}: 60"
    assert world.job()["message"] == f"The RayJob has passed the {title}. {start}"


def test_submitter_is_deleted_after_the_active_deadline() -> None:
    world = running_world(activeDeadlineSeconds=60, backoffLimit=3)
    world.set_status(world.submitters())
    world.run(61)
    assert world.phase()[0] == "Failed"
    assert not world.client.list(scheme.JOB)


@pytest.mark.parametrize("seconds", [0, 30])
def test_cluster_is_deleted_after_the_job_finishes(seconds: int) -> None:
    world = running_world(shutdownAfterJobFinishes=True, ttlSecondsAfterFinished=seconds)
    world.end_submitter(10, report("SUCCEEDED"))
    assert len(world.client.list(RAY_CLUSTER)) == (1 if seconds else 0)
    world.run(60)
    assert [*world.client.list(RAY_CLUSTER), *world.nodes()] == []
    assert world.phase() == ("Complete", "SUCCEEDED")
    assert len(world.client.list(scheme.JOB)) == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"suspend": True}, "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended"),
        ({"submissionMode": "HTTPMode"}, "submissionMode HTTPMode needs KubeRay's own operator"),
        ({"clusterSelector": {"ray.io/cluster": "a"}}, "clusterSelector needs KubeRay's own operator"),
        ({"rayClusterSpec": None}, "one of RayClusterSpec or ClusterSelector must be set"),
        ({"rayClusterSpec": cluster_spec(gcsFaultToleranceOptions={})}, "gcsFaultToleranceOptions needs KubeRay's"),
        ({"runtimeEnvYAML": "a: ["}, "failed to unmarshal RuntimeEnvYAML"),
        ({"runtimeEnvYAML": "text"}, "it is not one mapping"),
        ({"activeDeadlineSeconds": 0}, "activeDeadlineSeconds must be a positive integer"),
        ({"jobId": "a; rm"}, "jobId must consist of"),
    ],
)
def test_invalid_job_fails_its_validation(fields: dict[str, Any], problem: str) -> None:
    world = RayWorld(ray_job(**fields))
    assert world.phase() == ("ValidationFailed", "")
    assert world.job()["message"].startswith("The RayJob spec is invalid: ")
    assert problem in world.job()["message"]
    assert world.messages("InvalidRayJobSpec") == [f"team/rj: {world.job()['message']}"]
    assert not world.client.list(RAY_CLUSTER)


def test_job_that_becomes_invalid_loses_its_cluster() -> None:
    world = running_world()
    world.change(RAY_JOB, "rj", "backoffLimit", -1)
    assert world.phase()[0] == "ValidationFailed"
    assert [*world.client.list(RAY_CLUSTER), *world.client.list(scheme.JOB)] == []


def test_job_of_another_owner_with_the_name_is_kept() -> None:
    world = RayWorld(make.job("rj", queue=None))
    world.put(ray_job())
    world.start_cluster()
    assert world.phase()[0] == "Initializing"
    problem = "Failed to create new Kubernetes Job team/rj: another Job has this name"
    assert problem in world.messages("FailedToCreateRayJobSubmitter")
    world.delete(scheme.JOB, "rj")
    world.run(31)
    assert world.phase()[0] == "Running"


def test_deleted_submitter_fails_the_job() -> None:
    world = running_world()
    world.delete(scheme.JOB, "rj")
    assert world.job()["message"].endswith("Reason: NotFound. Message: The Job team/rj does not exist")


def test_deleted_cluster_is_created_again() -> None:
    world = running_world()
    world.delete(RAY_CLUSTER, world.job()["rayClusterName"])
    assert world.cluster()["metadata"]["name"] == world.job()["rayClusterName"]


def test_deleted_job_loses_everything() -> None:
    world = running_world()
    world.delete(RAY_JOB, "rj")
    assert [*world.client.list(RAY_CLUSTER), *world.client.list(scheme.JOB), *world.nodes()] == []


def test_queue_reads_the_status() -> None:
    integration = DescribedJobIntegration(built_in_descriptions()[RAY_JOB])
    world = running_world(shutdownAfterJobFinishes=True)
    job = world.get(RAY_JOB, "rj")
    assert (integration.is_active(job), integration.completion(job)) == (True, None)
    world.end_submitter(10, report("FAILED", "no luck"))
    completion = integration.completion(world.get(RAY_JOB, "rj"))
    assert completion is not None
    assert (completion.succeeded, completion.message) == (False, "no luck")


def test_controllers_continue_after_a_restart() -> None:
    world = running_world()
    world.replace_controllers(RayJobController(), RayClusterController(), JobPodController())
    world.run(3)
    world.end_submitter(10, report("SUCCEEDED"))
    assert world.phase() == ("Complete", "SUCCEEDED")
