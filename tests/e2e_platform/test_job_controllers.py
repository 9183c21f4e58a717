"""`up --job-controllers`: the kinds exist from the start, jobs run, and definitions of the user stay as they are."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from batchyard.controller_groups import JOB_CONTROLLERS
from e2e_platform.platform_process import Child, UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
OPTION = ("--job-controllers", "kubeflow")
DEFINITION = "pytorchjobs.kubeflow.org"


def pytorch_job(name: str, **policy: Any) -> str:
    container = {"name": "pytorch", "image": "pytorch"}
    replica = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    replicas = {"Master": replica, "Worker": {**replica, "replicas": 2}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    return json.dumps({**job, "spec": {"runPolicy": policy, "pytorchReplicaSpecs": replicas}})


def definition(platform: UpProcess) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(platform.kubectl("get", "crd", DEFINITION, "-o", "json"))
    return stored


def own_definition(stored: dict[str, Any]) -> str:
    """A definition of the user: without columns, and with a short name."""
    (version,) = stored["spec"]["versions"]
    spec = {**stored["spec"], "versions": [{**version, "additionalPrinterColumns": []}]}
    names = {**spec["names"], "shortNames": ["ptj"]}
    head = {name: stored[name] for name in ("apiVersion", "kind")}
    return json.dumps({**head, "metadata": {"name": DEFINITION}, "spec": {**spec, "names": names}})


def test_jobs_run_without_controllers_of_the_project(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", *OPTION, "--runtime", "1s") as platform:
        assert (
            len(platform.kubectl("get", "crd", "-o", "name").split("kubeflow.org"))
            == len(JOB_CONTROLLERS["kubeflow"]) + 1
        )
        platform.kubectl("create", "-f", "-", sent=pytorch_job("train"))
        platform.kubectl("wait", "--for=condition=Succeeded", "pytorchjob/train", "--timeout=30s")
        header, row = platform.kubectl("get", "pytorchjobs").splitlines()
        assert header.split() == ["NAME", "STATE", "AGE"]
        assert row.split()[:2] == ["train", "Succeeded"]
        source = "jsonpath={.items[?(@.reason=='PyTorchJobSucceeded')].source.component}"
        assert platform.kubectl("get", "events", "-o", source) == "pytorchjob-controller"


def test_invalid_jobs_are_rejected_as_by_the_webhook_of_the_project(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", *OPTION) as platform:
        invalid = json.loads(pytorch_job("bad"))
        invalid["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
        refusal = platform.kubectl("create", "-f", "-", sent=json.dumps(invalid), fails=True)
        webhook = 'admission webhook "validator.pytorchjob.training-operator.kubeflow.org" denied the request'
        assert f"{webhook}: spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1" in refusal
        platform.kubectl("create", "-f", "-", sent=pytorch_job("good", suspend=True))
        change = json.dumps({"spec": {"elasticPolicy": {"maxReplicas": 2}}})
        refusal = platform.kubectl("patch", "pytorchjob", "good", "--type=merge", "-p", change, fails=True)
        assert "spec.elasticPolicy: Forbidden" in refusal


def test_definition_of_the_user_survives_a_restart(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", *OPTION) as platform:
        platform.kubectl("create", "-f", "-", sent=own_definition(definition(platform)))
        replaced = definition(platform)
        assert replaced["spec"]["names"]["shortNames"] == ["ptj"]
        platform.end()
    with UpProcess(tmp_path / "data", *OPTION) as platform:
        assert definition(platform)["spec"] == replaced["spec"]
        platform.kubectl("get", "ptj")


def test_kinds_do_not_exist_without_the_option(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data") as platform:
        assert "the server doesn't have a resource type" in platform.kubectl("get", "pytorchjobs", fails=True)


def test_unknown_name_is_rejected(tmp_path: Path) -> None:
    with Child("up", "--data-dir", str(tmp_path / "data"), "--job-controllers", "slurm") as child:
        assert child.ended() == 2
        assert "'slurm' is not one of kubeflow" in " ".join(child.reported.read().split())


def ray_job(name: str) -> str:
    """A RayJob whose cluster runs for ten minutes, while its submitting pod runs for the time of the platform."""
    container = {"name": "ray", "image": "rayproject/ray"}
    template = {"metadata": {"annotations": {"batchyard.dev/runtime": "10m"}}, "spec": {"containers": [container]}}
    groups = [{"groupName": "small", "replicas": 2, "template": template}]
    cluster = {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}
    spec = {"entrypoint": "true", "rayClusterSpec": cluster, "shutdownAfterJobFinishes": True}
    return json.dumps({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec})


def test_ray_job_runs_in_simulated_pods(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", "--job-controllers", "ray", "--runtime", "1s") as platform:
        platform.kubectl("create", "-f", "-", sent=ray_job("train"))
        complete = "--for=jsonpath={.status.jobDeploymentStatus}=Complete"
        platform.kubectl("wait", complete, "rayjob/train", "--timeout=30s")
        status = json.loads(platform.kubectl("get", "rayjob", "train", "-o", "json"))["status"]
        assert (status["jobStatus"], status["rayClusterStatus"]["availableWorkerReplicas"]) == ("SUCCEEDED", 2)
        platform.kubectl("wait", "--for=delete", "rayclusters", "--all", "--timeout=30s")
        invalid = json.loads(ray_job("bad"))
        invalid["spec"] |= {"submissionMode": "Other", "ttlSecondsAfterFinished": "soon"}
        refusal = platform.kubectl("create", "-f", "-", sent=json.dumps(invalid), fails=True)
        assert "spec.submissionMode" in refusal
        assert "spec.ttlSecondsAfterFinished" in refusal
