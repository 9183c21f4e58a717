"""`batchyard snapshot` of a running platform, and the use of its file by other commands."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess
from e2e_platform.snapshot_commands import CompletedCommand, batchyard
from unit.sim.forks_make import queue, workload

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

TEAM = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
VIEWER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: snapshot}
rules:
- {apiGroups: [kueue.x-k8s.io], resources: ["*"], verbs: [get, list]}
- {apiGroups: [""], resources: [namespaces, limitranges, nodes], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: snapshot}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: snapshot}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: looker}]
"""


CONFIGURATION = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"


def manager_config(lines: str) -> list[dict[str, object]]:
    """The ConfigMap of the manager of Kueue, and its Namespace."""
    text = CONFIGURATION + lines.replace("%s", "[LessThanInitialShare]")
    where = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    data = {"controller_manager_config.yaml": text}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": where, "data": data},
    ]


def sent(*objects: object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with a long-running Workload and a pending Workload."""
    with UpProcess(tmp_path_factory.mktemp("platform")) as started:
        started.kubectl("create", "-f", "-", sent=sent(TEAM, *queue(1), workload("a", 3600)))
        started.kubectl("wait", "-n", "team", "--for=condition=Admitted", "--timeout=60s", "workload/a")
        started.kubectl("create", "-f", "-", sent=sent(workload("b", 60)))
        started.kubectl("create", "-f", "-", sent=VIEWER)
        yield started


def taken(platform: UpProcess, *options: str) -> CompletedCommand:
    return batchyard("snapshot", "--kubeconfig", str(platform.kubeconfig), *options)


def test_snapshot_contains_workloads_and_file_is_private(platform: UpProcess, tmp_path: Path) -> None:
    file = tmp_path / "state.yaml"
    done = taken(platform, str(file))
    listed = json.loads(file.read_text("utf-8"))
    names = {item["metadata"]["name"] for item in listed["items"] if item["kind"] == "Workload"}
    assert (done.code, names, file.stat().st_mode & 0o777) == (0, {"a", "b"}, 0o600)
    assert "2 workloads" in done.stderr
    assert not {"Secret", "ConfigMap", "Event"} & {item["kind"] for item in listed["items"]}


def test_snapshot_reports_effect_of_missing_permissions(platform: UpProcess) -> None:
    folder = platform.kubeconfig.parent
    assert batchyard("user", "looker", "--data-dir", str(folder)).code == 0
    done = batchyard("snapshot", "--kubeconfig", str(folder / "users" / "looker.kubeconfig"))
    assert done.code == 0
    assert "no permission to list pods: nodes count as empty" in done.stderr
    kinds = json.loads(done.stdout)["metadata"]["annotations"]["batchyard.dev/not-read"].split(",")
    assert {"PriorityClass.scheduling.k8s.io", "RuntimeClass.node.k8s.io", "Job.batch"} <= set(kinds)


def test_snapshot_contains_configuration_of_kueue(platform: UpProcess, tmp_path: Path) -> None:
    file = tmp_path / "state.yaml"
    platform.kubectl(
        "create", "-f", "-", sent=sent(*manager_config("metrics: {}\nfairSharing: {preemptionStrategies: %s}"))
    )
    try:
        done = taken(platform, str(file))
        reported = batchyard("eta", "workload/b", "-n", "team", "-f", str(file)).code
    finally:
        platform.kubectl("delete", "namespace", "kueue-system")
    (result,) = (item for item in json.loads(file.read_text("utf-8"))["items"] if item["kind"] == "Configuration")
    assert result["fairSharing"] == {"preemptionStrategies": ["LessThanInitialShare"]}
    assert "metrics" not in result
    assert (done.code, reported) == (0, 0)
    assert "Kueue's Configuration was read from ConfigMap kueue-manager-config of kueue-system" in done.stderr


def test_snapshot_reports_and_omits_invalid_configuration(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=sent(*manager_config("foo: 1")))
    try:
        done = taken(platform)
    finally:
        platform.kubectl("delete", "namespace", "kueue-system")
    assert done.code == 0
    assert "ConfigMap kueue-manager-config of kueue-system:3: foo: unknown field" in done.stderr
    assert "Configuration" not in {item["kind"] for item in json.loads(done.stdout)["items"]}


def test_snapshot_contains_configuration_of_platform(tmp_path: Path) -> None:
    file = tmp_path / "kueue.yaml"
    file.write_text(CONFIGURATION + "waitForPodsReady: {timeout: 5m}\n")
    with UpProcess(tmp_path / "data", "--config", str(file)) as started:
        done = taken(started)
    (result,) = (item for item in json.loads(done.stdout)["items"] if item["kind"] == "Configuration")
    assert result["waitForPodsReady"]["timeout"] == "5m"


def test_snapshot_fails_without_running_platform(tmp_path: Path) -> None:
    done = batchyard("snapshot", "--data-dir", str(tmp_path), str(tmp_path / "x"))
    assert done.code == 1
    assert "no platform runs in" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_snapshot_writes_to_named_pipe_without_replacing_it(platform: UpProcess, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "batchyard", "snapshot", "--kubeconfig", str(platform.kubeconfig)]
    with subprocess.Popen([*command, str(pipe)]) as taking:
        assert json.loads(pipe.read_text("utf-8"))["kind"] == "List"
        assert taking.wait(60) == 0
    assert pipe.is_fifo()


def test_snapshot_reports_write_errors_and_leaves_no_file(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    for name, why in (("full", "No space left on device"), ("gone/x", "No such file"), (".", "Is a directory")):
        done = taken(platform, str(tmp_path / name))
        assert done.code == 1
        assert f"{tmp_path / name}: {why}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_dump_of_kubectl_is_state_of_its_moment(platform: UpProcess, tmp_path: Path) -> None:
    file = tmp_path / "dump.yaml"
    kinds = "clusterqueues,localqueues,resourceflavors,workloads,jobs,pods,nodes,namespaces,priorityclasses"
    file.write_text(platform.kubectl("get", kinds, "-A", "-o", "yaml"), "utf-8")
    answer = json.loads(batchyard("why", "workload/b", "-n", "team", "-f", str(file), "-o", "json").stdout)
    simulated = batchyard("simulate", str(file), "--until", "2h")
    assert (answer["state"], answer["binding"]["limit"]) == ("Pending", "nominal")
    assert "the latest timestamp in it" in simulated.stderr
    assert "Workloads: 2 finished, 0 admitted, 0 pending" in simulated.stderr
    assert "rejected" not in simulated.stderr
    assert "<invalid>" not in simulated.stdout
