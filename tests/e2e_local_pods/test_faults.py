"""Misbehaving pods of this machine are contained, and their status is correct."""

import json
import shutil
from typing import Any

import pytest

from e2e_local_pods.node import PATIENCE, script, terminated_state, wait_for
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def features(platform: UpProcess) -> dict[str, Any]:
    """The isolation features of this machine."""
    result: dict[str, Any] = json.loads((platform.kubeconfig.parent / "node/features.json").read_text("utf-8"))
    return result


def test_container_over_memory_limit_is_oom_killed(platform: UpProcess) -> None:
    cgroups = features(platform)["cgroups"]
    if cgroups is None or "memory" not in cgroups["controllers"]:
        pytest.skip("there are no cgroups for memory here")
    eater = {"command": ["python3", "-c", "x = bytearray(1 << 30); print(len(x))"]}
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    platform.kubectl("create", "-f", "-", sent=script("eater", "", container=eater | limits))
    wait_for(platform, "eater", "Failed")
    assert (terminated_state(platform, "eater")["exitCode"], terminated_state(platform, "eater")["reason"]) == (
        137,
        "OOMKilled",
    )


def test_container_ignoring_sigterm_is_killed_on_delete(platform: UpProcess) -> None:
    text = "trap '' TERM; echo begun; while :; do sleep 0.1; done"
    platform.kubectl("create", "-f", "-", sent=script("deaf", text, terminationGracePeriodSeconds=1))
    wait_for(platform, "deaf", "Running")
    platform.kubectl("delete", "pod", "deaf", PATIENCE)
    assert "not found" in platform.kubectl("get", "pod", "deaf", fails=True)


def test_endlessly_forking_pod_is_deleted_and_node_stays_ready(platform: UpProcess) -> None:
    text = "f() { sleep 300 & f; }; f"
    platform.kubectl("create", "-f", "-", sent=script("forks", text, terminationGracePeriodSeconds=1))
    platform.kubectl("wait", "pod/forks", "--for=jsonpath={.status.startTime}", PATIENCE)
    platform.kubectl("delete", "pod", "forks", PATIENCE)
    assert platform.kubectl("get", "nodes", "--no-headers").split()[1] == "Ready"


def test_endless_log_keeps_newest_lines(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("talks", "yes | head -c 100000000; echo the last"))
    wait_for(platform, "talks", "Succeeded")
    assert platform.kubectl("logs", "talks", "--tail=1") == "the last\n"
    pods = (platform.kubeconfig.parent / "node/pods").glob("*/logs/main/*")
    assert sum(part.stat().st_size for part in pods) < 60 * 1024 * 1024


def test_missing_command_is_reported_as_start_error(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("none", "", container={"command": ["no-such-command"]}))
    wait_for(platform, "none", "Failed")
    assert (terminated_state(platform, "none")["exitCode"], terminated_state(platform, "none")["reason"]) == (
        128,
        "StartError",
    )
    assert "no-such-command" in terminated_state(platform, "none")["message"]


def test_pod_over_volume_size_limit_is_evicted(platform: UpProcess) -> None:
    volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    mounts = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    fills = script("fills", "head -c 2000000 /dev/zero > /scratch/x; sleep 600", container=mounts, volumes=volumes)
    if features(platform)["bubblewrap"] is None:
        pytest.skip("volumes cannot be mounted here")
    platform.kubectl("create", "-f", "-", sent=fills)
    wait_for(platform, "fills", "Failed")
    reported = platform.kubectl("get", "pod", "fills", "-o", "jsonpath={.status.reason}: {.status.message}")
    assert reported == 'Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '
