"""Engines that bring images, for tests: a docker of their own, and podman of an ordinary user."""

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
from integration_shim.machine import ORDINARY_USER, Machine, until


@contextmanager
def docker() -> Iterator[Mapping[str, str]]:
    """The variables by which docker is asked; skips where there is none, or it does not start."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("docker") is None:
        pytest.skip("no docker is here, or it may not be started: apt-get install docker.io, and be root")
    with TemporaryDirectory(prefix="docker-") as made:
        place, log = Path(made), Path(made) / "log"
        place.chmod(0o755)
        variables = {"DOCKER_HOST": f"unix://{made}/socket"}
        own = ["--data-root", f"{made}/data", "--exec-root", f"{made}/exec", "--pidfile", f"{made}/pid"]
        network = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        with log.open("wb") as reported:
            argv = ["dockerd", "--host", variables["DOCKER_HOST"], *own, *network]
            daemon = subprocess.Popen(argv, stdout=reported, stderr=reported, start_new_session=True)
        try:
            until(lambda: daemon.poll() is not None or _answers(variables), "docker's daemon answers", 60)
            if daemon.returncode is not None:
                pytest.skip(f"docker's daemon does not start here: {log.read_text().splitlines()[-1]}")
            (place / "socket").chmod(0o666)  # ordinary users of the tests are in no group
            yield variables
        finally:
            daemon.terminate()
            daemon.wait()


def _answers(variables: Mapping[str, str]) -> bool:
    asked = subprocess.run(["docker", "version"], env=os.environ | variables, capture_output=True, check=False)
    return asked.returncode == 0


def insecure_registries(folder: Path) -> Mapping[str, str]:
    """The variables with which podman asks registries of this machine without TLS."""
    registries = folder / "registries.conf"
    registries.write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    registries.chmod(0o644)
    return {"CONTAINERS_REGISTRIES_CONF": str(registries)}


@contextmanager
def home_of_a_user() -> Iterator[Mapping[str, str]]:
    """The variables of a user with a home of his own, as which podman keeps images; skips where there is no podman."""
    if shutil.which("podman") is None:
        pytest.skip("no podman is here: apt-get install podman")
    with TemporaryDirectory(prefix="home-") as made:
        user = ordinary_user()
        runtime = Path(made) / "run"
        runtime.mkdir(0o700)
        if user is not None:
            os.chown(made, user, user)
            os.chown(runtime, user, user)
        variables = {"HOME": made, "XDG_RUNTIME_DIR": str(runtime), **insecure_registries(Path(made))}
        asked("podman", variables, user, "info")  # leaves a process, which is to be no node's
        try:
            yield variables
        finally:
            asked("podman", variables, user, "system", "reset", "--force")  # and the process that it leaves there
            _end_pause(runtime)


def _end_pause(runtime: Path) -> None:
    """End the process by which podman holds its user namespace."""
    held = runtime / "libpod/tmp/pause.pid"
    if held.exists():
        with suppress(ProcessLookupError):
            os.kill(int(held.read_text()), signal.SIGKILL)


def ordinary_user() -> int | None:
    """An ordinary user; None where who runs the tests is one."""
    return ORDINARY_USER if os.geteuid() == 0 else None


class Bringer(NamedTuple):
    """An engine, the variables by which it is asked, and an image that it has."""

    engine: str
    variables: Mapping[str, str]
    image: str


class Brings(NamedTuple):
    """A node whose engine brings images, and one of busybox that it has."""

    node: Machine
    engine: str
    image: str


@contextmanager
def brought_image(engine: str, variables: Mapping[str, str], user: int | None) -> Iterator[Bringer]:
    """An image of busybox that an engine has as long as it is wanted; no container of it may be left."""
    name = name_of_image()
    if engine == "docker":  # whose `import` lets an image say less
        built = {"DOCKER_BUILDKIT": "0", **variables}
        asked(engine, built, user, "build", "--quiet", "--tag", name, "-", given=_context(*SAYS))
    else:
        changes = [part for line in SAYS for part in ("--change", line)]
        asked(engine, variables, user, "import", *changes, "-", name, given=archive_of_busybox())
    try:
        yield Bringer(engine, variables, name)
        assert asked(engine, variables, user, "ps", "--all", "--quiet") == ""
    finally:
        asked(engine, variables, user, "image", "rm", "--force", name)


def _context(*says: str) -> bytes:
    """What docker builds an image of."""
    lines = ["FROM scratch", "ADD root.tar /", *says]
    written = BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in {"Dockerfile": "\n".join(lines).encode(), "root.tar": archive_of_busybox()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return written.getvalue()


def asked(engine: str, variables: Mapping[str, str], user: int | None, *stated: str, given: bytes = b"") -> str:
    """What an engine answers to a user."""
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
