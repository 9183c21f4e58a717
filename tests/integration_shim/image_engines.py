"""Engines that pull images for tests: a separate docker, and podman of an ordinary user."""

import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from integration_shim.engine_image import SAYS, archive_of_busybox, name_of_image
from integration_shim.machine import ORDINARY_USER, ShimMachine, until


@contextmanager
def docker() -> Iterator[Mapping[str, str]]:
    """The environment for docker; skips if docker is missing or does not start."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("docker") is None:
        pytest.skip("docker is missing or may not be started: run apt-get install docker.io, and run the tests as root")
    with TemporaryDirectory(prefix="docker-") as created:
        place, log = Path(created), Path(created) / "log"
        place.chmod(0o755)
        variables = {"DOCKER_HOST": f"unix://{created}/socket"}
        own = ["--data-root", f"{created}/data", "--exec-root", f"{created}/exec", "--pidfile", f"{created}/pid"]
        network = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        with log.open("wb") as reported:
            argv = ["dockerd", "--host", variables["DOCKER_HOST"], *own, *network]
            daemon = subprocess.Popen(argv, stdout=reported, stderr=reported, start_new_session=True)
        try:
            until(lambda: daemon.poll() is not None or _answers(variables), "docker's daemon answers", 60)
            if daemon.returncode is not None:
                pytest.skip(f"the docker daemon does not start: {log.read_text().splitlines()[-1]}")
            (place / "socket").chmod(0o666)  # ordinary users of the tests are in no group
            yield variables
        finally:
            daemon.terminate()
            daemon.wait()


def _answers(variables: Mapping[str, str]) -> bool:
    request = subprocess.run(["docker", "version"], env=os.environ | variables, capture_output=True, check=False)
    return request.returncode == 0


def insecure_registries(folder: Path) -> Mapping[str, str]:
    """The environment with which podman uses registries of this machine without TLS."""
    registries = folder / "registries.conf"
    registries.write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    registries.chmod(0o644)
    return {"CONTAINERS_REGISTRIES_CONF": str(registries)}


@contextmanager
def user_home() -> Iterator[Mapping[str, str]]:
    """The environment of a user with a home folder for images of podman; skips without podman."""
    if shutil.which("podman") is None:
        pytest.skip("podman is missing: apt-get install podman")
    with TemporaryDirectory(prefix="home-") as created:
        user = ordinary_user()
        runtime = Path(created) / "run"
        runtime.mkdir(0o700)
        if user is not None:
            os.chown(created, user, user)
            os.chown(runtime, user, user)
        variables = {"HOME": created, "XDG_RUNTIME_DIR": str(runtime), **insecure_registries(Path(created))}
        engine_output("podman", variables, user, "info")  # leaves a process, which must not belong to a node
        try:
            yield variables
        finally:
            engine_output("podman", variables, user, "system", "reset", "--force")  # and its leftover process
            _end_pause(runtime)


def _end_pause(runtime: Path) -> None:
    """End the process by which podman holds its user namespace."""
    held = runtime / "libpod/tmp/pause.pid"
    if held.exists():
        with suppress(ProcessLookupError):
            os.kill(int(held.read_text()), signal.SIGKILL)


def ordinary_user() -> int | None:
    """An ordinary user, or None if the tests run as an ordinary user."""
    return ORDINARY_USER if os.geteuid() == 0 else None


class EngineImage(NamedTuple):
    """An engine, its environment, and one of its images."""

    engine: str
    variables: Mapping[str, str]
    image: str


class ImageNode(NamedTuple):
    """A node with an engine that pulls images as a user (None: root), and a busybox image of the engine."""

    node: ShimMachine
    bringer: EngineImage
    user: int | None

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self.bringer.engine

    @property
    def image(self) -> str:
        """The name of the busybox image."""
        return self.bringer.image

    def remove_image(self, name: str) -> None:
        """Remove an image that the engine may have pulled."""
        engine_output(self.engine, self.bringer.variables, self.user, "image", "rm", "--force", name)


@contextmanager
def engine_with_image(engine: str, variables: Mapping[str, str], user: int | None) -> Iterator[EngineImage]:
    """A temporary busybox image of an engine; no container of it may be left."""
    name = name_of_image()
    if engine == "docker":  # its `import` supports fewer settings of an image
        built = {"DOCKER_BUILDKIT": "0", **variables}
        engine_output(engine, built, user, "build", "--quiet", "--tag", name, "-", given=_context(*SAYS))
    else:
        changes = [part for line in SAYS for part in ("--change", line)]
        engine_output(engine, variables, user, "import", *changes, "-", name, given=archive_of_busybox())
    try:
        yield EngineImage(engine, variables, name)
        assert engine_output(engine, variables, user, "ps", "--all", "--quiet") == ""
    finally:
        engine_output(engine, variables, user, "image", "rm", "--force", name)


def _context(*says: str) -> bytes:
    """The build context of an image for docker."""
    lines = ["FROM scratch", "ADD root.tar /", *says]
    written = BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in {"Dockerfile": "\n".join(lines).encode(), "root.tar": archive_of_busybox()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return written.getvalue()


def engine_output(engine: str, variables: Mapping[str, str], user: int | None, *stated: str, given: bytes = b"") -> str:
    """The output of an engine command for a user."""
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(
        [engine, *stated],
        input=given,
        env=environment,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        capture_output=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()
