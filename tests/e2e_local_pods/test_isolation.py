"""Pods of this machine are isolated: no pod reaches files or processes of another pod."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_local_pods.node import local_platform, script, terminated_state, wait_for
from e2e_platform.platform_process import UpProcess

WORD = "a-word-of-team-a"
VOLUMES = [{"name": "word", "secret": {"secretName": "word"}}]
MOUNTS = {"volumeMounts": [{"name": "word", "mountPath": "/word"}]}

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap: nothing is kept apart"),
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with a pod that holds a secret, in a volume and in its environment."""
    with local_platform(tmp_path_factory.mktemp("platform")) as started:
        started.kubectl("create", "secret", "generic", "word", f"--from-literal=word={WORD}")
        variable = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}
        holder = {**MOUNTS, "env": [variable]}
        text = "cat /word/word; echo; exec sleep 600"
        started.kubectl("create", "-f", "-", sent=script("holder", text, container=holder, volumes=VOLUMES))
        wait_for(started, "holder", "Running")
        yield started


def reported(platform: UpProcess, name: str, text: str) -> str:
    """The log of a pod that runs a script until it succeeds."""
    platform.kubectl("create", "-f", "-", sent=script(name, text))
    wait_for(platform, name, "Succeeded")
    return platform.kubectl("logs", name)


def test_pod_reads_its_own_secret(platform: UpProcess) -> None:
    assert platform.kubectl("logs", "holder") == f"{WORD}\n"


def test_pod_cannot_read_secret_of_another_pod(platform: UpProcess) -> None:
    data = platform.kubeconfig.parent
    files = f"grep -rsl --exclude=cmdline {WORD.replace('-', '.')} /tmp /run /var /root /home /mnt /srv /opt"
    result = reported(platform, "curious", f"{files}; grep -sl {WORD} /proc/[0-9]*/environ; ls {data} 2>&1; true")
    assert result.splitlines() == [f"ls: cannot access '{data}': No such file or directory"]


def test_pod_cannot_see_or_kill_processes_of_another_pod(platform: UpProcess) -> None:
    seen = reported(platform, "rude", "trap '' TERM; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1; true")
    assert "sleep 600" not in seen
    state = platform.kubectl("get", "pod", "holder", "-o", "jsonpath={.status.containerStatuses[0].state}")
    assert "running" in json.loads(state)


def test_container_cannot_modify_machine(platform: UpProcess, tmp_path: Path) -> None:
    mark = f"/usr/batchyard-test-{tmp_path.name}"
    platform.kubectl("create", "-f", "-", sent=script("writer", f"touch {mark}; touch /etc/x; mount -t tmpfs x /mnt"))
    wait_for(platform, "writer", "Failed")
    assert not Path(mark).exists()
    assert not Path("/etc/x").exists()
    assert terminated_state(platform, "writer")["reason"] == "Error"


def test_machine_without_isolation_runs_pods_of_its_owner_only(tmp_path: Path) -> None:
    with local_platform(tmp_path, without="podman,docker,seccomp") as platform:
        platform.kubectl("create", "rolebinding", "anna", "--clusterrole=edit", "--user=anna", "--namespace=default")
        platform.kubectl("create", "-f", "-", sent=script("mine", "true"))
        wait_for(platform, "mine", "Succeeded")
        manifest = tmp_path / "hers.json"
        manifest.write_text(script("hers", "true"))
        reported = platform.kubectl("create", "-f", str(manifest), "--as=anna", fails=True)
        assert "this machine cannot isolate pods, so only its owner may run them: it lacks seccomp" in reported
