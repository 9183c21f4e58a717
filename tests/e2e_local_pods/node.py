"""A platform with this machine as its only node, and its leftovers."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any
from unittest.mock import patch

from e2e_platform.platform_process import UpProcess

PATIENCE = "--timeout=60s"
IMAGE = ("--image", "machine=/")


def programs_of(folder: Path) -> list[int]:
    """The processes of the node of a data directory."""
    result = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{folder / 'node'}\0".encode() in (entry / "cmdline").read_bytes():
                result.append(int(entry.name))
    return result


@contextmanager
def local_platform(
    folder: Path,
    *options: str,
    cluster: Path = Path("local"),
    image: Sequence[str] = IMAGE,
    without: str = "podman,docker",
) -> Iterator[UpProcess]:
    """A platform with this machine as its node; its remaining processes are killed at the end."""
    try:
        with (
            patch.dict(os.environ, {"BATCHYARD_NODE_WITHOUT": without}),
            UpProcess(folder, "--cluster", str(cluster), *image, *options) as platform,
        ):
            if platform.kubeconfig.exists():  # it exists only with TLS
                platform.kubectl("wait", "node", "--all", "--for=condition=Ready", PATIENCE)
            yield platform
    finally:
        for pid in programs_of(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        if "podman" not in without:
            _remove_containers(folder / "node" / "id")


def _remove_containers(identity: Path) -> None:
    """Remove the podman containers of a node after all its programs are killed, as another spawner would."""
    if not identity.exists() or shutil.which("podman") is None:
        return
    label = f"label=batchyard.node={identity.read_text()}"
    listed = ["podman", "ps", "--all", "--quiet", "--filter", label]
    result = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    if result:
        removed = ["podman", "rm", "--force", "--ignore", "--time", "0", *result]
        subprocess.run(removed, capture_output=True, check=False)


def script(name: str, text: str, **spec: Any) -> str:
    """The manifest of a pod that runs a shell script, once by default."""
    container = {"name": "main", "image": "machine", "command": ["sh", "-c", text]}
    container |= spec.pop("container", {})
    whole = {"restartPolicy": "Never", "containers": [container], **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})


def wait_for(platform: UpProcess, name: str, phase: str) -> None:
    """Wait until a pod is in a phase."""
    platform.kubectl("wait", f"pod/{name}", f"--for=jsonpath={{.status.phase}}={phase}", PATIENCE)


def terminated_state(platform: UpProcess, name: str) -> dict[str, Any]:
    """The terminated state of the container of a pod."""
    state: dict[str, Any] = json.loads(
        platform.kubectl("get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.terminated}")
    )
    return state


@contextmanager
def follow_output(platform: UpProcess, *arguments: str) -> Iterator[Iterator[str]]:
    """The output lines of a kubectl command as they arrive."""
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig)}
    with subprocess.Popen(["kubectl", *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield iter(process.stdout)
        finally:
            process.kill()
