"""An image for the tests of containers of an engine: busybox, imported and not pulled."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

SAYS = (
    'ENTRYPOINT ["/bin/sh", "-c"]',
    'CMD ["echo from the image; id -u; pwd"]',
    "ENV WHO=image",
    "ENV KEPT=yes",
    "WORKDIR /srv",
    "USER 1234",
    "STOPSIGNAL SIGUSR1",
)


@contextmanager
def busybox_image(*says: str) -> Iterator[str]:
    """The name of an image that says that, as long as it is wanted; skips where there is no engine for it."""
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("no podman is here, or it may not be used: apt-get install podman runc, and be root")
    if busybox is None:
        pytest.skip("no busybox to make an image of is here: apt-get install busybox-static")
    with TemporaryDirectory() as made:
        root = Path(made)
        name = f"localhost/batchyard/busybox:{root.name}"
        for folder in ("bin", "etc", "tmp", "srv"):
            (root / folder).mkdir()
        (root / "tmp").chmod(0o1777)
        shutil.copy(busybox, root / "bin/busybox")
        for command in ("sh", "id", "env", "cat", "sleep", "pwd", "ls", "hostname", "touch", "ip", "grep", "true"):
            (root / "bin" / command).symlink_to("busybox")
        changes = [part for line in says for part in ("--change", line)]
        tar = subprocess.run(["tar", "-C", made, "--mode", "a+rX", "-c", "."], capture_output=True, check=True).stdout
        subprocess.run(["podman", "import", *changes, "-", name], input=tar, capture_output=True, check=True)
    try:
        yield name
    finally:
        subprocess.run(["podman", "image", "rm", name], capture_output=True, check=True)


def image_id(name: str) -> str:
    """What an engine calls an image for good."""
    asked = ["podman", "image", "inspect", "--format", "{{.Id}}", name]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
