"""kubectl commands that do not read or write stored objects: logs, exec, usage and the visibility API."""

import json
import shutil
from collections.abc import Iterator

import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

SAVER = """
apiVersion: batch/v1
kind: Job
metadata:
  name: saver
  annotations: {batchyard.dev/checkpoint-every: 1m, batchyard.dev/runtime: 150s}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: python:3.12
        resources: {requests: {cpu: 1500m, memory: 3Gi}}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform without nodes that runs a Job."""
    with UpProcess(tmp_path_factory.mktemp("platform"), "--speed", "60x") as started:
        started.kubectl("apply", "-f", "-", sent=SAVER)
        yield started


def test_logs_follow_until_pod_ends(platform: UpProcess) -> None:
    platform.kubectl("wait", "--for=jsonpath={.status.active}=1", "--timeout=20s", "job/saver")
    reported = platform.kubectl("logs", "-f", "job/saver")
    assert [line.split()[1] for line in reported.splitlines()] == ["started:", "saved:", "saved:", "finished:"]
    assert len(platform.kubectl("logs", "-l", "job-name=saver", "--tail=1").splitlines()) == 1


def test_exec_and_port_forward_are_rejected_for_simulated_pod(platform: UpProcess) -> None:
    platform.kubectl("run", "held", "--image=python:3.12", "--", "sleep", "1000000")
    platform.kubectl("wait", "--for=condition=Ready", "--timeout=20s", "pod/held")
    refused = "(BadRequest): pod held is simulated: it has no process"
    assert refused in platform.kubectl("exec", "held", "--", "ls", fails=True)
    assert "it has no process" in platform.kubectl("port-forward", "pod/held", "0:80", fails=True)


def test_kubectl_top_reports_usage_of_pods(platform: UpProcess) -> None:
    request = '{"spec":{"containers":[{"name":"big","image":"i","resources":{"requests":{"cpu":"2","memory":"1Gi"}}}]}}'
    platform.kubectl("run", "big", "--image=i", f"--overrides={request}", "--annotations=batchyard.dev/runtime=24h")
    platform.kubectl("wait", "--for=condition=Ready", "--timeout=20s", "pod/big")
    assert platform.kubectl("top", "pods", "--no-headers", "-l", "run=big").split() == ["big", "2000m", "1024Mi"]


def test_visibility_api_of_kueue_is_served(platform: UpProcess) -> None:
    path = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/none/pendingworkloads"
    assert "NotFound" in platform.kubectl("get", "--raw", path, fails=True)
    served = json.loads(platform.kubectl("get", "--raw", "/apis/visibility.kueue.x-k8s.io/v1beta2"))
    assert len(served["resources"]) == 4
