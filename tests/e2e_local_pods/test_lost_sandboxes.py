"""Pods of this machine that lose their sandbox or the supervisor of a container."""

import json
import os
import shutil
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from e2e_local_pods.node import PATIENCE, local_platform, script, wait_for
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
FIRST = "{.status.containerStatuses[0]}"


def run_of(platform: UpProcess, folder: Path, pod: str, run: str) -> Path:
    """The folder of a run of a pod."""
    uid = platform.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
    return folder / "node" / "pods" / uid / run


def kill_supervisor(run: Path) -> None:
    """Kill the supervisor of a run."""
    os.kill(json.loads((run / "state.json").read_text())["keeper"], SIGKILL)


def container_status(platform: UpProcess, pod: str) -> Any:
    """The status of the container of a pod."""
    return json.loads(platform.kubectl("get", "pod", pod, "-o", f"jsonpath={FIRST}"))


def test_pod_restarts_with_its_volumes_after_loss_of_sandbox(platform: UpProcess, folder: Path) -> None:
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    text = "cat /kept/word; echo told > /kept/word; exec sleep 3600"
    spec = {
        "volumes": [{"name": "kept", "emptyDir": {}}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
    }
    platform.kubectl("create", "-f", "-", sent=script("anew", text, container={"volumeMounts": mounts}, **spec))
    wait_for(platform, "anew", "Running")
    kill_supervisor(run_of(platform, folder, "anew", "sandbox"))
    again = f"{FIRST.removesuffix('}')}.restartCount}}=1"
    platform.kubectl("wait", "pod/anew", f"--for=jsonpath={again}", PATIENCE)
    platform.kubectl("wait", "pod/anew", "--for=condition=Ready", PATIENCE)
    assert platform.kubectl("logs", "anew") == "told\n"
    assert "word" in platform.kubectl("logs", "anew", "--previous")  # cat could not find it


def test_container_status_is_unknown_after_its_keeper_is_killed(platform: UpProcess, folder: Path) -> None:
    platform.kubectl("create", "-f", "-", sent=script("lost", "exec sleep 3600"))
    wait_for(platform, "lost", "Running")
    kill_supervisor(run_of(platform, folder, "lost", "runs/main/0"))
    wait_for(platform, "lost", "Failed")
    ended = container_status(platform, "lost")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")


def test_container_status_is_unknown_after_kill_of_platform_and_keeper(tmp_path: Path) -> None:
    with local_platform(tmp_path) as platform:
        platform.kubectl("create", "-f", "-", sent=script("silent", "exec sleep 3600"))
        wait_for(platform, "silent", "Running")
        run = run_of(platform, tmp_path, "silent", "runs/main/0")
        platform.kill()
        kill_supervisor(run)
        (run / "state.json").unlink()
        with local_platform(tmp_path) as again:
            wait_for(again, "silent", "Failed")
            assert container_status(again, "silent")["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
