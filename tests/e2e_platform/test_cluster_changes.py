"""Changes of the Cluster of a running platform, and another Cluster at its next start."""

import subprocess
import sys
from pathlib import Path

from e2e_platform.platform_process import UpProcess

CLUSTER = """\
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {{name: {name}}}
spec:
  zones: [z-a]
  nodePools:
    - {{name: base, machineType: {machine}, nodeCount: {count}}}
    - {{name: other, machineType: e2-medium, nodeCount: 1}}
"""


def cluster(name: str = "lab", count: int = 1, machine: str = "e2-medium") -> str:
    return CLUSTER.format(name=name, machine=machine, count=count)


def write(folder: Path, text: str) -> str:
    file = folder / "cluster.yaml"
    file.write_text(text, "utf-8")
    return str(file)


def size(platform: UpProcess, pool: str = "base") -> str:
    return platform.kubectl("get", "nodepool", pool, "-o", "jsonpath={.spec.nodeCount}")


def test_changed_cluster_changes_node_pools(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", "--cluster", write(tmp_path, cluster())) as platform:
        platform.kubectl("patch", "nodepool", "other", "--type=merge", "-p", '{"spec": {"nodeCount": 3}}')
        platform.kubectl("apply", "-f", "-", sent=cluster(count=2))
        platform.kubectl("wait", "--for=jsonpath={.spec.nodeCount}=2", "nodepool/base", "--timeout=30s")
        assert size(platform, "other") == "3"
        refused = platform.kubectl("apply", "-f", "-", sent=cluster(machine="e2-small"), fails=True)
        assert 'spec.nodePools[0].machineType: Invalid value: "e2-small": field is immutable' in refused
        refused = platform.kubectl("apply", "-f", "-", sent=cluster("second"), fails=True)
        assert "the platform already has Cluster lab; change that one" in refused
        new_row = "- {name: new, machineType: e2-big, nodeCount: 1}"
        refused = platform.kubectl("apply", "-f", "-", sent=f"{cluster()}    {new_row}\n", fails=True)
        assert "spec.nodePools[2].machineType: unknown machine type 'e2-big'" in refused
        platform.end()
    with UpProcess(tmp_path / "data", "--cluster", write(tmp_path, cluster(count=4))) as platform:
        platform.kubectl("wait", "--for=jsonpath={.spec.nodeCount}=4", "nodepool/base", "--timeout=30s")
        assert size(platform, "other") == "3"
        platform.end()
    for given, reason in (
        (cluster("second"), "metadata.name differs; rename Cluster second to lab, or set another folder"),
        (cluster(machine="e2-small"), "spec.nodePools[0].machineType: Invalid value"),
    ):
        error = failed_start(tmp_path, given)
        assert f"{tmp_path / 'data'}: the platform has Cluster lab" in error
        assert reason in error


def test_start_rejects_unknown_machine_type_with_its_line(tmp_path: Path) -> None:
    error = failed_start(tmp_path, cluster(machine="e2-big"))
    assert "cluster.yaml:7 Cluster/lab: spec.nodePools[0].machineType: unknown machine type 'e2-big'" in error


def failed_start(folder: Path, given: str) -> str:
    """Return the error of a start with this Cluster."""
    command = [sys.executable, "-m", "batchyard", "up", "--data-dir", str(folder / "data")]
    command += ["--cluster", write(folder, given)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    return ended.stderr
