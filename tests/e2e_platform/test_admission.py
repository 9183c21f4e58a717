"""Quotas, limits and disruption budgets with kubectl."""

import shutil
from collections.abc import Iterator

import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

BOUNDS = """
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: compute, namespace: team}
spec: {hard: {requests.cpu: "2", pods: "2", requests.nvidia.com/gpu: "4"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: usual, namespace: team}
spec: {limits: [{type: Container, default: {cpu: "1"}, defaultRequest: {cpu: 500m}, max: {cpu: "2"}}]}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: wide, namespace: team}
spec:
  parallelism: 3
  completions: 3
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}
"""
GUARDED = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: c, image: i}]}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform without nodes."""
    with UpProcess(tmp_path_factory.mktemp("platform")) as running:
        yield running


def test_resource_quota_limits_pods_and_is_described(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=BOUNDS)
    platform.kubectl("apply", "-f", "-", sent=JOB)
    platform.kubectl("wait", "-n", "team", "job/wide", "--for=jsonpath={.status.active}=2", "--timeout=20s")
    rows = [line.split() for line in platform.kubectl("describe", "quota", "-n", "team").splitlines()]
    assert ["pods", "2", "2"] in rows
    assert ["requests.cpu", "1", "2"] in rows
    assert ["requests.nvidia.com/gpu", "0", "4"] in rows
    assert "exceeded quota: compute, requested: pods=1, used: pods=2, limited: pods=2" in platform.kubectl(
        "describe", "job", "wide", "-n", "team"
    )
    assert "Default Limit" in platform.kubectl("describe", "namespace", "team")


def test_pod_mounts_service_account_token_and_certificate(platform: UpProcess) -> None:
    platform.kubectl("run", "plain", "--image=i")
    reported = platform.kubectl("describe", "pod", "plain")
    assert "Service Account:  default" in reported
    assert "/var/run/secrets/kubernetes.io/serviceaccount from kube-api-access-" in reported
    assert "BEGIN CERTIFICATE" in platform.kubectl("get", "configmap", "kube-root-ca.crt", "-o", "yaml")
    refused = platform.kubectl("run", "x", "--image=i", '--overrides={"spec":{"serviceAccountName":"no"}}', fails=True)
    assert 'error looking up service account default/no: serviceaccount "no" not found' in refused


def test_eviction_respects_pod_disruption_budget(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=GUARDED)
    platform.kubectl("wait", "pdb/web", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=20s")
    eviction = '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"web","namespace":"default"}}'
    path = "/api/v1/namespaces/default/pods/web/eviction"
    refused = platform.kubectl("create", "--raw", path, "-f", "-", sent=eviction, fails=True)
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused
    platform.kubectl("patch", "pdb", "web", "--type=merge", "-p", '{"spec":{"minAvailable":0}}')
    platform.kubectl("wait", "pdb/web", "--for=jsonpath={.status.disruptionsAllowed}=1", "--timeout=20s")
    assert "Success" in platform.kubectl("create", "--raw", path, "-f", "-", sent=eviction)
