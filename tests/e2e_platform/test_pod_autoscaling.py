"""HorizontalPodAutoscalers on a running platform, with kubectl."""

import json
import shutil
from collections.abc import Iterator

import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

BEHAVIOR = {"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}, "maxReplicas": 2}}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform whose simulated pods use what they request."""
    with UpProcess(tmp_path_factory.mktemp("platform"), "--speed", "20x") as started:
        started.kubectl("create", "deployment", "web", "--image=i:1")
        started.kubectl("set", "resources", "deployment/web", "--requests=cpu=500m")
        started.kubectl("autoscale", "deployment/web", "--cpu-percent=50", "--min=1", "--max=3")
        yield started


def wait_for_replicas(platform: UpProcess, replicas: int) -> None:
    platform.kubectl("wait", f"--for=jsonpath={{.spec.replicas}}={replicas}", "deployment/web", "--timeout=60s")


def test_deployment_grows_and_shrinks(platform: UpProcess) -> None:
    wait_for_replicas(platform, 3)
    platform.kubectl("wait", "--for=jsonpath={.status.currentReplicas}=3", "hpa/web", "--timeout=60s")
    header, row = platform.kubectl("get", "hpa").splitlines()
    assert header.split() == ["NAME", "REFERENCE", "TARGETS", "MINPODS", "MAXPODS", "REPLICAS", "AGE"]
    assert row.split()[:7] == ["web", "Deployment/web", "cpu:", "100%/50%", "1", "3", "3"]
    described = platform.kubectl("describe", "hpa", "web")
    assert "TooManyReplicas" in described
    assert "SuccessfulRescale" in described
    platform.kubectl("patch", "hpa", "web", "--type=merge", "-p", json.dumps(BEHAVIOR))
    wait_for_replicas(platform, 2)


def test_old_version_keeps_all_fields(platform: UpProcess) -> None:
    patch = json.dumps({"metadata": {"labels": {"a": "b"}}, "spec": {"targetCPUUtilizationPercentage": 60}})
    platform.kubectl("patch", "horizontalpodautoscalers.v1.autoscaling", "web", "--type=merge", "-p", patch)
    old = json.loads(platform.kubectl("get", "horizontalpodautoscalers.v1.autoscaling", "web", "-o", "json"))
    assert (old["apiVersion"], old["spec"]["targetCPUUtilizationPercentage"]) == ("autoscaling/v1", 60)
    new = json.loads(platform.kubectl("get", "hpa", "web", "-o", "json"))
    assert new["apiVersion"] == "autoscaling/v2"
    assert new["spec"]["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 60}
    assert "annotations" not in new["metadata"]
    assert {each["type"] for each in new["status"]["conditions"]} == {"AbleToScale", "ScalingActive", "ScalingLimited"}


def test_invalid_autoscaler_is_rejected(platform: UpProcess) -> None:
    refused = platform.kubectl("autoscale", "deployment/web", "--name=bad", "--min=4", "--max=3", fails=True)
    assert "MAXPODS must be larger or equal" in refused
    broken = {"spec": {"maxReplicas": 0}}
    refused = platform.kubectl("patch", "hpa", "web", "--type=merge", "-p", json.dumps(broken), fails=True)
    assert "spec.maxReplicas: Required value: must be set and greater than 0" in refused
