"""A node as the platform uses it: write specs of runs, send their names to the spawner, and read their states."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Thread
from typing import Any

from batchyard.shim import linux, state_dir

PATIENCE_SECONDS = 20.0
#: A user without privileges and without an account.
ORDINARY_USER = 54321
POD = {"uid": "u", "namespace": "default", "name": "p"}


def container(*argv: str, **fields: Any) -> dict[str, Any]:
    """The spec of a container that executes a command."""
    spec: dict[str, Any] = {
        "kind": "container",
        "pod": POD,
        "container": "main",
        "attempt": 0,
        "argv": list(argv),
        "environment": {},
        "image": {"name": "python", "machine": True},
        "workingDir": None,
        "stdin": False,
        "tty": False,
        "mounts": [],
        "readOnlyRoot": False,
        "user": None,
        "limits": {"cpu": None, "memory": None, "pids": 1000},
        "requests": {"cpu": None},
        "devices": [],
        "network": "node",
        "probes": {},
        "hooks": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "log": {"maxBytes": 10485760, "maxFiles": 5},
    }
    return spec | fields


def sandbox(**fields: Any) -> dict[str, Any]:
    """The spec of a sandbox."""
    spec: dict[str, Any] = {
        "kind": "sandbox",
        "pod": POD,
        "hostname": "p",
        "network": "node",
        "address": None,
        "gateway": None,
        "resolvers": [],
        "searches": [],
        "hosts": "127.0.0.1 localhost\n",
        "tmpfs": [],
    }
    return spec | fields


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """The spec of a container that runs a shell script."""
    return container("sh", "-c", script, **fields)


def until(is_so: Callable[[], Any], what: str = "it", seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true result of a function."""
    end = linux.monotonic() + seconds
    while linux.monotonic() < end:
        result = is_so()
        if result:
            return result
        select.select([], [], [], 0.005)
    raise AssertionError(f"{what} did not happen before the timeout")


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


class ShimMachine:
    """The folder of a node, and its running spawner."""

    def __init__(
        self, root: Path, without: str, user: int | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self.without = without
        self.user = user
        self.variables = variables or {}
        self.folder = state_dir.open_folder(str(root))
        self.events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.events.bind(state_dir.socket_address(self.folder, "events"))
        self._is_closed = False
        self.heard: list[str] = []
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.spawner = self.start_spawner()

    def _listen(self) -> None:
        """Receive the announcements of the supervisors."""
        while path := self.events.recv(4096).decode():
            self.heard.append(path)

    def start_spawner(self) -> subprocess.Popen[bytes]:
        """Start a spawner that accepts specs of runs."""
        (self.root / "features.json").unlink(missing_ok=True)
        environment = {"PATH": os.environ["PATH"], "BATCHYARD_NODE_WITHOUT": self.without, "NODE": str(self.root)}
        environment |= self.variables
        started = subprocess.Popen([sys.executable, "-I", *self._program(), str(self.root)], env=environment)
        until(lambda: (self.root / "features.json").exists() or started.poll() is not None, "the spawner's start")
        return started

    def _program(self) -> list[str]:
        """The arguments of the spawner. An ordinary user may lack access to this interpreter, so it imports first.

        Linux denies a process that changed its user access to its own files in /proc; an exec would restore it.
        """
        if self.user is None:
            return ["-m", "batchyard.shim.spawner"]
        become = f"os.setgroups([]); os.setgid({self.user}); os.setuid({self.user}); ctypes.CDLL(None).prctl(4, 1)"
        main = "from batchyard.shim.spawner import main"
        return ["-c", f"import ctypes, os, sys; {main}; {become}; sys.exit(main(sys.argv))"]

    @property
    def features(self) -> dict[str, Any]:
        """The features that the spawner reports."""
        reported = json.loads((self.root / "features.json").read_text())
        assert isinstance(reported, dict)
        return reported

    def ask(self, path: str) -> None:
        """Send the name of a run to the spawner."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(path.encode(), state_dir.socket_address(self.folder, "spawner"))

    def request_run(self, path: str, spec: dict[str, Any]) -> Path:
        """Write the spec of a run, and send its name to the spawner; return the folder of the run."""
        run = self.write(path, spec)
        self.ask(path)
        return run

    def write(self, path: str, spec: dict[str, Any]) -> Path:
        """Write the spec of a run; return the folder of the run."""
        pod = "/".join(path.split("/")[:2])
        run = self.make(path)
        self.make(f"{pod}/logs")
        environment = {"NODE": str(self.root)} | spec.get("environment", {})
        (run / "spec.json").write_text(json.dumps(spec | {"environment": environment}))
        self._hand_over(run / "spec.json")
        return run

    def make(self, path: str, mode: int = 0o700) -> Path:
        """Create a folder and its parents, owned by the user of the node."""
        created = self.root / path
        if not created.exists():
            self.make(str(created.parent.relative_to(self.root)))
            created.mkdir()
            created.chmod(mode)
            self._hand_over(created)
        return created

    def _hand_over(self, place: Path) -> None:
        if self.user is not None:
            os.chown(place, self.user, self.user)

    def sandbox(self, pod: str = "u", **fields: Any) -> Path:
        """Start a sandbox, and wait until it is ready; return its folder."""
        run = self.request_run(f"pods/{pod}/sandbox", sandbox(**fields))
        assert wait_for_phase(run, "Ready")
        return run

    def start(self, spec: dict[str, Any], pod: str = "u") -> Path:
        """Start the run of a container; return its folder."""
        return self.request_run(f"pods/{pod}/runs/{spec['container']}/{spec['attempt']}", spec)

    def ended(self, spec: dict[str, Any], pod: str = "u") -> dict[str, Any]:
        """Run a container to its end; return its state."""
        return wait_for_phase(self.start(spec, pod), "Exited")

    def log(self, pod: str = "u", name: str = "main/0.log") -> list[tuple[str, str, str]]:
        """The stream, tag and text of each line of a log."""
        text = (self.root / "pods" / pod / "logs" / name).read_text()
        rows = [line.split(" ", 3) for line in text.splitlines()]
        return [(row[1], row[2], row[3]) for row in rows]

    def texts(self, pod: str = "u") -> list[str]:
        """The texts of the lines of a log."""
        return [text for _, _, text in self.log(pod)]

    def stop(self, run: Path, grace: float = 30.0) -> None:
        """Stop a run."""
        self.request_stop(run, grace)
        os.kill(state(run)["keeper"], signal.SIGTERM)

    def request_stop(self, run: Path, grace: float) -> None:
        """Write the request to stop a run."""
        (run / "stop.json.new").write_text(json.dumps({"at": linux.now(), "grace": grace, "why": "test"}))
        self._hand_over(run / "stop.json.new")
        (run / "stop.json.new").rename(run / "stop.json")

    def processes(self) -> list[int]:
        """The processes of the node and its containers: all refer to its folder."""
        name = f"NODE={self.root}\0".encode()
        return [pid for pid in map(int, filter(str.isdigit, names_in("/proc"))) if name in bytes_of(pid, "environ")]

    def left(self) -> list[str]:
        """The leftovers of pods: processes, mounts and control groups."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{self.root}/" in line]
        processes = [f"process {pid}" for pid in self.processes() if not self._is_resident(pid)]
        return processes + mounts + [str(group) for group in self.groups()] + self._containers()

    def _containers(self) -> list[str]:
        """The engine containers of the node."""
        engines = self.features.get("engines") or [] if (self.root / "features.json").exists() else []
        if not any(engine["runs"] for engine in engines):
            return []
        label = f"label=batchyard.node={(self.root / 'id').read_text()}"
        request = ["podman", "ps", "--all", "--quiet", "--filter", label]
        return subprocess.run(request, capture_output=True, text=True, check=True).stdout.split()

    def _is_resident(self, pid: int) -> bool:
        """Whether a process is the spawner or the switch, which have no folder of a pod open."""
        files = [link_of(f"/proc/{pid}/fd/{name}") for name in names_in(f"/proc/{pid}/fd")]
        is_spawners = bytes_of(pid, "cmdline") == bytes_of(self.spawner.pid, "cmdline")
        return is_spawners and not any(file.startswith(f"{self.root}/pods/") for file in files)

    def groups(self) -> list[Path]:
        """The control groups of pods and their runs."""
        identity = self.root / "id"
        name = f"batchyard-{identity.read_text() if identity.exists() else 'none'}-"
        return [Path(path) for path, _, _ in os.walk("/sys/fs/cgroup") if name in path]

    def settle(self) -> None:
        """End all runs; nothing may be left."""
        for run in sorted(self.root.glob("pods/*/runs/*/*")) + sorted(self.root.glob("pods/*/sandbox")):
            if is_supervised(run):
                with suppress(ProcessLookupError):
                    self.stop(run, grace=0)
                until(partial(_is_left, run), f"the end of {run}")
        until(lambda: not self.left(), f"the end of {self.left()}")
        rmtree(self.root / "pods", ignore_errors=True)
        self.heard.clear()

    def end(self) -> None:
        """End the spawner; nothing may be left."""
        self.spawner.terminate()
        self.spawner.wait()
        until(lambda: not self.processes(), f"the end of {self.processes()}")

    def close(self) -> None:
        """Close the folder, and remove the leftovers of a failed test. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.spawner.kill()
        self.spawner.wait()
        for container in self._containers():
            subprocess.run(["podman", "rm", "--force", "--ignore", "--time", "0", container], check=False)
        for group in reversed(self.groups()):
            group.rmdir()
        self.events.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self.events.close()
        os.close(self.folder)
        rmtree(self.root)


def names_in(folder: str) -> list[str]:
    """The names in a folder of /proc, or none if it is gone."""
    try:
        return [place.name for place in Path(folder).iterdir()]
    except OSError:
        return []


def link_of(path: str) -> str:
    """The target of a link of /proc, or '' if it is gone."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def bytes_of(pid: int, name: str) -> bytes:
    """The content of a file of a process, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def is_supervised(run: Path) -> bool:
    """Whether the supervisor of a run is alive."""
    held = state_dir.open_folder(str(run))
    try:
        return state_dir.is_locked(held)
    finally:
        os.close(held)


def state(run: Path) -> dict[str, Any]:
    """The state of a run from its supervisor; empty before the first state."""
    try:
        reported = json.loads((run / "state.json").read_text())
    except OSError:
        return {}
    assert isinstance(reported, dict)
    return reported


def wait_for_phase(run: Path, phase: str) -> dict[str, Any]:
    """Wait until a run is in a phase; return its state."""
    result: dict[str, Any] = until(
        lambda: (reported := state(run)).get("phase") == phase and reported, f"{run} is {phase}"
    )
    return result


@contextmanager
def machine(
    without: str = "", user: int | None = None, root: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[ShimMachine]:
    """A node in a separate folder; it is ended afterwards, and nothing may be left."""
    if root is None:
        root = Path(mkdtemp(prefix="node-"))
    root.mkdir(exist_ok=True)
    if user is not None:
        os.chown(root, user, user)
    created = ShimMachine(root, without, user, variables)
    try:
        yield created
        created.settle()
        created.end()
    finally:
        created.close()


def _is_left(run: Path) -> bool:
    return not is_supervised(run)
