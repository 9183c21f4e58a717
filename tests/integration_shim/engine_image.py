"""An image for tests of engine containers: busybox, imported instead of pulled."""

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

COMMANDS = ("sh", "id", "env", "cat", "sleep", "pwd", "ls", "hostname", "touch", "ip", "grep", "true", "stat")


@contextmanager
def busybox_image(*says: str) -> Iterator[str]:
    """The name of a temporary image with these settings; skips without an engine."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("podman is missing or may not be used: run apt-get install podman runc, and run the tests as root")
    name = name_of_image()
    changes = [part for line in says for part in ("--change", line)]
    subprocess.run(
        ["podman", "import", *changes, "-", name], input=archive_of_busybox(), capture_output=True, check=True
    )
    try:
        yield name
    finally:
        subprocess.run(["podman", "image", "rm", name], capture_output=True, check=True)


def name_of_image() -> str:
    """A unique image name."""
    with TemporaryDirectory() as created:
        return f"localhost/batchyard/busybox:{Path(created).name}"


def archive_of_busybox() -> bytes:
    """A root filesystem with busybox as a tar archive; skips without busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is missing: apt-get install busybox-static")
    with TemporaryDirectory() as created:
        root = Path(created)
        for folder in ("bin", "etc", "tmp", "srv", "run", "var"):
            (root / folder).mkdir()
        (root / "tmp").chmod(0o1777)
        (root / "var/run").symlink_to("/run")  # as in Debian
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nworker:x:1234:50:Worker:/srv:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nstaff:x:50:\n")
        shutil.copy(busybox, root / "bin/busybox")
        for command in COMMANDS:
            (root / "bin" / command).symlink_to("busybox")
        # Root owns all files, because users without a range of ids can unpack no other owners.
        owned = ["--owner", "0", "--group", "0", "--mode", "a+rX"]
        return subprocess.run(["tar", "-C", created, *owned, "-c", "."], capture_output=True, check=True).stdout


def image_id(name: str) -> str:
    """The permanent id of an image."""
    request = ["podman", "image", "inspect", "--format", "{{.Id}}", name]
    return subprocess.run(request, capture_output=True, text=True, check=True).stdout.strip()
