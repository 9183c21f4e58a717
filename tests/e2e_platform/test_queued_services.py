"""Deployments and StatefulSets in queues, with kubectl: on the platform, and with an operator of a platform."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.operator_process import platform_with_queues
from e2e_platform.platform_process import UpProcess
from e2e_platform.test_described_jobs import why

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

EXAMPLES = Path(__file__).parents[2] / "examples" / "pods"


@pytest.fixture(params=["platform", "operator"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UpProcess]:
    with platform_with_queues(tmp_path, has_operator=request.param == "operator") as started:
        yield started


def await_replicas(platform: UpProcess, name: str, count: int) -> None:
    platform.kubectl("wait", f"--for=jsonpath={{.status.readyReplicas}}={count}", "--timeout=60s", name)


def apply_stateful_sets(platform: UpProcess) -> None:
    """Create the second StatefulSet once the first one runs: Workloads of the same second have no fixed order."""
    first, _, second = (EXAMPLES / "statefulset.yaml").read_text().rpartition("---\n")
    platform.kubectl("apply", "-f", "-", sent=first)
    await_replicas(platform, "statefulset/cache", 3)
    platform.kubectl("apply", "-f", "-", sent=second)
    wait_for_workloads(platform, {"statefulset-cache": [True], "statefulset-search": [False]})


def workloads(platform: UpProcess) -> dict[str, dict[str, Any]]:
    items = json.loads(platform.kubectl("get", "workloads", "-o", "json"))["items"]
    return {each["metadata"]["name"].rpartition("-")[0]: each for each in items}


def wait_for_workloads(platform: UpProcess, expected: dict[str, list[bool]]) -> None:
    """Wait until each owner has Workloads with or without an admission; groups of a LeaderWorkerSet count together."""
    found: dict[str, list[bool]] = {}
    for _ in range(240):
        found = {}
        for name, each in workloads(platform).items():
            owner = name.rstrip("-0123456789")
            found[owner] = sorted([*found.get(owner, []), "admission" in (each.get("status") or {})])
        if found == expected:
            return
        threading.Event().wait(0.25)
    raise AssertionError(f"{found} instead of {expected}")


def await_condition(platform: UpProcess, name: str, type: str, reason: str) -> dict[str, Any]:  # noqa: A002
    full_name = workloads(platform)[name]["metadata"]["name"]
    path = f'{{.status.conditions[?(@.type=="{type}")].reason}}'
    platform.kubectl("wait", f"--for=jsonpath={path}={reason}", "--timeout=60s", f"workload/{full_name}")
    return workloads(platform)[name]


def test_pods_of_deployment_wait_one_by_one(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", str(EXAMPLES / "deployment.yaml"))
    await_replicas(platform, "deployment/inference", 2)
    gates = "-o=jsonpath={.items[*].spec.schedulingGates[*].name}"
    assert platform.kubectl("get", "pods", gates).split() == ["kueue.x-k8s.io/admission"]
    assert len(json.loads(platform.kubectl("get", "workloads", "-o", "json"))["items"]) == 3
    refused = platform.kubectl(
        "label", "deployment", "inference", "kueue.x-k8s.io/queue-name=other", "--overwrite", fails=True
    )
    assert 'admission webhook "vdeployment.kb.io" denied the request: metadata.labels' in refused
    assert '[kueue.x-k8s.io/queue-name]: Invalid value: "other": field is immutable' in refused
    second = (EXAMPLES / "deployment.yaml").read_text().rpartition("---")[2].replace("inference", "chat")
    platform.kubectl("apply", "-f", "-", sent=second.replace("replicas: 3", "replicas: 1"))
    platform.kubectl("scale", "deployment", "inference", "--replicas=0")
    await_replicas(platform, "deployment/chat", 1)
    platform.kubectl("label", "deployment", "inference", "kueue.x-k8s.io/queue-name=other", "--overwrite")
    queue = "-o=jsonpath={.spec.template.metadata.labels.kueue\\.x-k8s\\.io/queue-name}"
    assert platform.kubectl("get", "deployment", "inference", queue) == "other"


def test_why_explains_first_pod_that_waits(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", str(EXAMPLES / "deployment.yaml"))
    await_replicas(platform, "deployment/inference", 2)
    explanation = why(platform, "deploy/inference")
    assert "Deployment default/inference: 1 of 3 pods wait in the queue; pod inference-" in explanation
    assert "limit        nominal at ClusterQueue research; missing 2 cpu default" in explanation
    assert 'deployments.apps "other" not found' in why(platform, "deployment/other")


def test_second_stateful_set_waits_until_first_is_scaled_to_zero(platform: UpProcess) -> None:
    apply_stateful_sets(platform)
    found = workloads(platform)
    assert found["statefulset-cache"]["spec"]["podSets"][0]["count"] == 3
    assert "admission" not in found["statefulset-search"]["status"]
    refused = platform.kubectl("patch", "sts", "cache", "-p", '{"spec": {"replicas": 2}}', fails=True)
    assert "spec.replicas: Invalid value: 2: field is immutable" in refused
    platform.kubectl("scale", "statefulset", "cache", "--replicas=0")
    held = await_condition(platform, "statefulset-cache", "QuotaReserved", "OnHold")
    assert "admission" not in held["status"]
    await_replicas(platform, "statefulset/search", 2)


def test_stateful_set_waits_again_after_it_was_scaled_to_zero(platform: UpProcess) -> None:
    apply_stateful_sets(platform)
    platform.kubectl("delete", "statefulset", "search")
    platform.kubectl("scale", "statefulset", "cache", "--replicas=0")
    await_condition(platform, "statefulset-cache", "QuotaReserved", "OnHold")
    platform.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=60s")
    platform.kubectl("wait", "--for=jsonpath={.status.replicas}=0", "--timeout=60s", "statefulset/cache")
    platform.kubectl("scale", "statefulset", "cache", "--replicas=4")
    await_replicas(platform, "statefulset/cache", 4)
    assert workloads(platform)["statefulset-cache"]["spec"]["podSets"][0]["count"] == 4


def test_updated_stateful_set_keeps_its_workload(platform: UpProcess) -> None:
    apply_stateful_sets(platform)
    before = workloads(platform)["statefulset-cache"]["metadata"]["uid"]
    platform.kubectl("set", "image", "statefulset/cache", "main=busybox:1.38")
    platform.kubectl("rollout", "status", "statefulset/cache", "--timeout=60s")
    assert workloads(platform)["statefulset-cache"]["metadata"]["uid"] == before
    refused = platform.kubectl("set", "resources", "statefulset", "cache", "--requests=cpu=2", fails=True)
    path = "spec.template.spec.containers[0].resources.requests"
    assert f'{path}: Invalid value: {{"cpu":"2"}}: field is immutable' in refused
    platform.kubectl("delete", "statefulset", "cache")
    await_replicas(platform, "statefulset/search", 2)


LEADER_WORKER_SETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: leaderworkersets.leaderworkerset.x-k8s.io}
spec:
  group: leaderworkerset.x-k8s.io
  scope: Namespaced
  names: {kind: LeaderWorkerSet, plural: leaderworkersets, singular: leaderworkerset, shortNames: [lws]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
MODEL = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llm, namespace: default, labels: {kueue.x-k8s.io/queue-name: services}}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 3
    workerTemplate:
      spec:
        containers: [{name: main, image: "busybox:1.37", resources: {requests: {cpu: "1"}}}]
"""


def test_groups_of_leader_worker_set_wait_one_by_one(platform: UpProcess) -> None:
    queue = (EXAMPLES / "statefulset.yaml").read_text().partition("---\napiVersion: apps")[0]
    platform.kubectl("apply", "-f", "-", sent=queue)
    platform.kubectl("apply", "-f", "-", sent=LEADER_WORKER_SETS)
    platform.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    platform.kubectl("apply", "-f", "-", sent=MODEL)
    wait_for_workloads(platform, {"leaderworkerset-llm": [False, True]})
    template = json.loads(platform.kubectl("get", "lws", "llm", "-o", "json"))["spec"]["leaderWorkerTemplate"]
    annotations = template["workerTemplate"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/pod-suspending-parent"] == "leaderworkerset.x-k8s.io/leaderworkerset"
    change = '{"spec": {"leaderWorkerTemplate": {"size": 4}}}'
    refused = platform.kubectl("patch", "lws", "llm", "--type=merge", "-p", change, fails=True)
    assert "spec.leaderWorkerTemplate.size: Invalid value: 4: field is immutable" in refused
    platform.kubectl("patch", "lws", "llm", "--type=merge", "-p", '{"spec": {"replicas": 1}}')
    wait_for_workloads(platform, {"leaderworkerset-llm": [True]})
    platform.kubectl("delete", "lws", "llm")
    wait_for_workloads(platform, {})
