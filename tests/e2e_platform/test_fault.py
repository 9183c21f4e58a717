"""`batchyard fault node`: crashes, reclaims or drains a machine of a running platform."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess

CLUSTER = """\
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  zones: [z-a]
  nodePools:
    - {name: fixed, machineType: e2-medium, nodeCount: 2}
    - {name: spot, machineType: e2-medium, nodeCount: 1, provisioning: spot}
"""


class FaultyNodesPlatform(UpProcess):
    """A platform with faults of nodes."""

    def fault(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "batchyard", "fault", "node", *arguments]
        folder = str(self.kubeconfig.parent)
        done = subprocess.run([*command, "--data-dir", folder], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stderr

    def first(self, pool: str) -> str:
        """The first node of a pool."""
        selector = f"cloud.google.com/gke-nodepool={pool}"
        return self.kubectl("get", "nodes", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}")

    def phase(self, node: str) -> str:
        return self.kubectl("get", "instances", node, "-o", "jsonpath={.status.phase}")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyNodesPlatform]:
    """One platform for all tests."""
    folder = tmp_path_factory.mktemp("platform")
    (folder / "cluster.yaml").write_text(CLUSTER, "utf-8")
    with FaultyNodesPlatform(folder / "data", "--cluster", str(folder / "cluster.yaml")) as started:
        yield started


def test_crash_option_crashes_machine(platform: FaultyNodesPlatform) -> None:
    node = platform.first("fixed")
    assert f"the machine of node {node} crashed at " in platform.fault(node, "--crash")
    assert platform.phase(node) == "Crashed"
    assert "is in phase Crashed" in platform.fault(node, "--crash", code=1)


def test_reclaim_option_applies_to_spot_machines_only(platform: FaultyNodesPlatform) -> None:
    node = platform.first("spot")
    assert "is being reclaimed and stops at " in platform.fault(node, "--reclaim")
    assert platform.phase(node) == "Stopping"
    fixed = platform.kubectl("get", "nodes", "-o", "jsonpath={.items[1].metadata.name}")
    assert "is not a Spot machine" in platform.fault(fixed, "--reclaim", code=1)


def test_drain_option_evicts_pods_and_cordons_node(platform: FaultyNodesPlatform) -> None:
    node = platform.kubectl("get", "nodes", "-o", "jsonpath={.items[1].metadata.name}")
    overrides = json.dumps({"spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]}})
    platform.kubectl("run", "busy", "--image=c", f"--overrides={overrides}")
    assert "pods evicted: 1 of 1" in platform.fault(node, "--drain")
    assert platform.kubectl("get", "node", node, "-o", "jsonpath={.spec.unschedulable}") == "true"


def test_fault_rejects_unknown_node_and_wrong_options(platform: FaultyNodesPlatform) -> None:
    assert "node other not found" in platform.fault("other", "--crash", code=1)
    assert "node other not found" in platform.fault("other", "--drain", code=1)
    assert "use exactly one of --crash, --reclaim and --drain" in platform.fault("other", code=2)
    assert "use exactly one of --crash, --reclaim and --drain" in platform.fault("other", "--crash", "--drain", code=2)


def test_fault_rejects_crash_of_node_without_simulated_machine(platform: FaultyNodesPlatform) -> None:
    node = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "real"}}'
    platform.kubectl("apply", "-f", "-", sent=node)
    assert "has no simulated machine" in platform.fault("real", "--crash", code=1)
    assert "pods evicted: 0 of 0" in platform.fault("real", "--drain")


def test_fault_fails_without_running_platform(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batchyard", "fault", "node", "n", "--crash", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "no platform runs in" in done.stderr) == (1, True)
