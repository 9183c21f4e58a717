"""Jobs of custom kinds in queues of a running platform, with real kubectl."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import make
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCHEMA = {"type": "object", "properties": {"spec": OPEN, "status": OPEN}}
VERSION = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
SPEC = {
    "group": "kubeflow.org",
    "scope": "Namespaced",
    "names": {"kind": "PyTorchJob", "plural": "pytorchjobs"},
    "versions": [{**VERSION, "schema": {"openAPIV3Schema": SCHEMA}}],
}
METADATA = {"name": "pytorchjobs.kubeflow.org"}
DEFINITION = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": METADATA}
QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
spec: {nodeLabels: {pool: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: research}
spec:
  namespaceSelector: {}
  resourceGroups:
  - {coveredResources: [cpu], flavors: [{name: spot, resources: [{name: cpu, nominalQuota: 4}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: training, namespace: default}
spec: {clusterQueue: research}
"""

JOB_KIND = make.job_kind()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path / "data", "--port", "0") as up:
        up.kubectl("apply", "-f", "-", sent=f"{yaml.safe_dump({**DEFINITION, 'spec': SPEC})}\n---\n{QUEUES}")
        up.kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org")
        yield up


def training(name: str) -> str:
    containers = [{"name": "pytorch", "image": "python", "resources": {"requests": {"cpu": "1"}}}]
    template = {"spec": {"containers": containers}}
    replicas = {"Master": {"template": template}, "Worker": {"replicas": 2, "template": template}}
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "training"}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata}
    return json.dumps({**job, "spec": {"pytorchReplicaSpecs": replicas}})


def job_spec(platform: UpProcess, name: str) -> Any:
    return json.loads(platform.kubectl("get", "pytorchjob", name, "-o", "json"))["spec"]


def wait_until_suspended(platform: UpProcess, name: str, value: bool) -> Any:
    condition = f"--for=jsonpath={{.spec.runPolicy.suspend}}={str(value).lower()}"
    platform.kubectl("wait", condition, f"pytorchjob/{name}", "--timeout=30s")
    return job_spec(platform, name)


def test_finished_job_gives_quota_to_next_job(platform: UpProcess) -> None:
    for name in ("first", "second"):
        platform.kubectl("create", "-f", "-", sent=training(name))
    spec = wait_until_suspended(platform, "first", False)
    assert spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] == {"pool": "spot"}
    assert job_spec(platform, "second")["runPolicy"]["suspend"] is True
    condition = {"type": "Succeeded", "status": "True", "message": "all pods succeeded"}
    status = json.dumps({"status": {"conditions": [condition]}})
    platform.kubectl("patch", "pytorchjob", "first", "--subresource=status", "--type=merge", "-p", status)
    wait_until_suspended(platform, "second", False)
    path = "jsonpath={.items[*].status.conditions[?(@.type=='Finished')].message}"
    assert platform.kubectl("get", "workloads", "-o", path) == "all pods succeeded"


def test_events_refer_to_job(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=training("first"))
    wait_until_suspended(platform, "first", False)
    path = "jsonpath={.items[*].involvedObject.apiVersion}"
    selector = "involvedObject.kind=PyTorchJob,reason=Started"
    assert platform.kubectl("get", "events", "--field-selector", selector, "-o", path) == "kubeflow.org/v1"


def test_queue_of_running_job_is_immutable(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=training("first"))
    wait_until_suspended(platform, "first", False)
    label = ("label", "pytorchjob", "first", "kueue.x-k8s.io/queue-name=other", "--overwrite")
    assert "field is immutable" in platform.kubectl(*label, fails=True)


def why(platform: UpProcess, subject: str) -> str:
    """What `batchyard why` prints about a job."""
    command = [sys.executable, "-m", "batchyard", "why", subject, "--data-dir", str(platform.kubeconfig.parent)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    return done.stdout + done.stderr


def test_why_explains_the_workload_of_a_job(platform: UpProcess) -> None:
    for name in ("first", "second"):
        platform.kubectl("create", "-f", "-", sent=training(name))
    wait_until_suspended(platform, "first", False)
    assert re.match(r"Workload default/pytorchjob-second-\w+: Pending\n", why(platform, "pytorchjob/second"))
    assert "not found" in why(platform, "pytorchjob/third")
    unlabelled = json.loads(training("free"))
    del unlabelled["metadata"]["labels"]
    platform.kubectl("create", "-f", "-", sent=json.dumps(unlabelled))
    assert "pytorchjob default/free has no Workload: set the label" in why(platform, "pytorchjob/free")


def test_job_kind_enables_its_kind(platform: UpProcess) -> None:
    names = {"kind": "Training", "plural": "trainings", "singular": "training"}
    spec = {**SPEC, "group": "ml.example.com", "names": names}
    definition = {**DEFINITION, "metadata": {"name": "trainings.ml.example.com"}, "spec": spec}
    platform.kubectl("apply", "-f", "-", sent=json.dumps(definition))
    platform.kubectl("wait", "--for=condition=Established", "crd/trainings.ml.example.com")
    invalid = {**JOB_KIND, "spec": {**JOB_KIND["spec"], "ready": "job.status +"}}
    assert "invalid CEL expression" in platform.kubectl("apply", "-f", "-", sent=json.dumps(invalid), fails=True)
    platform.kubectl("apply", "-f", "-", sent=json.dumps(JOB_KIND))
    template = {"spec": {"containers": [{"name": "main", "image": "python", "resources": {"requests": {"cpu": "1"}}}]}}
    metadata = {"name": "a", "labels": {"kueue.x-k8s.io/queue-name": "training"}}
    job = {"apiVersion": "ml.example.com/v1", "kind": "Training", "metadata": metadata}
    platform.kubectl("create", "-f", "-", sent=json.dumps({**job, "spec": {"workers": 2, "template": template}}))
    platform.kubectl("wait", "--for=jsonpath={.spec.paused}=false", "training/a", "--timeout=30s")
    path = "jsonpath={.spec.template.spec.nodeSelector}"
    assert platform.kubectl("get", "training", "a", "-o", path) == '{"pool":"spot"}'


def test_stopped_queue_suspends_job_and_restores_its_templates(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=training("first"))
    wait_until_suspended(platform, "first", False)
    platform.kubectl(
        "patch", "clusterqueue", "research", "--type=merge", "-p", '{"spec":{"stopPolicy":"HoldAndDrain"}}'
    )
    spec = wait_until_suspended(platform, "first", True)
    assert "nodeSelector" not in spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
