"""A node as the platform sees it: it writes wishes, sends their names, and reads what became of them."""

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
#: Somebody without any privilege, and without an account.
ORDINARY_USER = 54321
POD = {"uid": "u", "namespace": "default", "name": "p"}


def container(*argv: str, **fields: Any) -> dict[str, Any]:
    """The wish for a container that executes a command."""
    wish: dict[str, Any] = {
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
    return wish | fields


def sandbox(**fields: Any) -> dict[str, Any]:
    """The wish for a sandbox."""
    wish: dict[str, Any] = {
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
    return wish | fields


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """The wish for a container that runs a script of the shell."""
    return container("sh", "-c", script, **fields)


def until(is_so: Callable[[], Any], what: str = "it", seconds: float = PATIENCE_SECONDS) -> Any:
    """What a function says once it says something."""
    end = linux.monotonic() + seconds
    while linux.monotonic() < end:
        found = is_so()
        if found:
            return found
        select.select([], [], [], 0.005)
    raise AssertionError(f"{what} did not come true")


def is_alive(pid: int) -> bool:
    """Whether a process is there and more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


class Machine:
    """The folder of a node, and the spawner at work in it."""

    def __init__(
        self, root: Path, without: str, user: int | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self.without = without
        self.user = user
        self.variables = variables or {}
        self.folder = state_dir.open_folder(str(root))
        self.events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.events.bind(state_dir.address(self.folder, "events"))
        self._is_closed = False
        self.heard: list[str] = []
        self._listener = Thread(target=self._listen)
        self._listener.start()
        self.spawner = self.start_spawner()

    def _listen(self) -> None:
        """Hear what the keepers announce."""
        while path := self.events.recv(4096).decode():
            self.heard.append(path)

    def start_spawner(self) -> subprocess.Popen[bytes]:
        """A spawner that is ready to take wishes."""
        (self.root / "features.json").unlink(missing_ok=True)
        environment = {"PATH": os.environ["PATH"], "BATCHYARD_NODE_WITHOUT": self.without, "NODE": str(self.root)}
        environment |= self.variables
        started = subprocess.Popen([sys.executable, "-I", *self._program(), str(self.root)], env=environment)
        until(lambda: (self.root / "features.json").exists() or started.poll() is not None, "the spawner's start")
        return started

    def _program(self) -> list[str]:
        """The spawner. An ordinary user may not be let at this interpreter, so he takes over what has been read.

        Linux takes from who changed his user the right to his own files in /proc; an exec would give it back.
        """
        if self.user is None:
            return ["-m", "batchyard.shim.spawner"]
        become = f"os.setgroups([]); os.setgid({self.user}); os.setuid({self.user}); ctypes.CDLL(None).prctl(4, 1)"
        main = "from batchyard.shim.spawner import main"
        return ["-c", f"import ctypes, os, sys; {main}; {become}; sys.exit(main(sys.argv))"]

    @property
    def features(self) -> dict[str, Any]:
        """What the spawner says that it can do here."""
        reported = json.loads((self.root / "features.json").read_text())
        assert isinstance(reported, dict)
        return reported

    def ask(self, path: str) -> None:
        """Send the name of a run to the spawner."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(path.encode(), state_dir.address(self.folder, "spawner"))

    def wish(self, path: str, spec: dict[str, Any]) -> Path:
        """Write a wish, and ask for it; the run's folder."""
        run = self.write(path, spec)
        self.ask(path)
        return run

    def write(self, path: str, spec: dict[str, Any]) -> Path:
        """Write a wish; the run's folder."""
        pod = "/".join(path.split("/")[:2])
        run = self.make(path)
        self.make(f"{pod}/logs")
        environment = {"NODE": str(self.root)} | spec.get("environment", {})
        (run / "spec.json").write_text(json.dumps(spec | {"environment": environment}))
        self._hand_over(run / "spec.json")
        return run

    def make(self, path: str, mode: int = 0o700) -> Path:
        """Make a folder, and those it lies in, as the user's who the node works as."""
        made = self.root / path
        if not made.exists():
            self.make(str(made.parent.relative_to(self.root)))
            made.mkdir()
            made.chmod(mode)
            self._hand_over(made)
        return made

    def _hand_over(self, place: Path) -> None:
        if self.user is not None:
            os.chown(place, self.user, self.user)

    def sandbox(self, pod: str = "u", **fields: Any) -> Path:
        """A sandbox that is ready; its folder."""
        run = self.wish(f"pods/{pod}/sandbox", sandbox(**fields))
        assert reached(run, "Ready")
        return run

    def start(self, spec: dict[str, Any], pod: str = "u") -> Path:
        """Ask for a container's run; its folder."""
        return self.wish(f"pods/{pod}/runs/{spec['container']}/{spec['attempt']}", spec)

    def ended(self, spec: dict[str, Any], pod: str = "u") -> dict[str, Any]:
        """What became of a container, once it has ended."""
        return reached(self.start(spec, pod), "Exited")

    def log(self, pod: str = "u", name: str = "main/0.log") -> list[tuple[str, str, str]]:
        """The stream, tag and text of each line of a log."""
        text = (self.root / "pods" / pod / "logs" / name).read_text()
        rows = [line.split(" ", 3) for line in text.splitlines()]
        return [(row[1], row[2], row[3]) for row in rows]

    def texts(self, pod: str = "u") -> list[str]:
        """The texts of a log's lines."""
        return [text for _, _, text in self.log(pod)]

    def stop(self, run: Path, grace: float = 30.0) -> None:
        """Tell a run to end."""
        self.wish_for_end(run, grace)
        os.kill(state(run)["keeper"], signal.SIGTERM)

    def wish_for_end(self, run: Path, grace: float) -> None:
        """Write that a run is to end."""
        (run / "stop.json.new").write_text(json.dumps({"at": linux.now(), "grace": grace, "why": "test"}))
        self._hand_over(run / "stop.json.new")
        (run / "stop.json.new").rename(run / "stop.json")

    def processes(self) -> list[int]:
        """The processes that are the node's, and those of its containers: all know the name of its folder."""
        name = f"NODE={self.root}\0".encode()
        return [pid for pid in map(int, filter(str.isdigit, names_in("/proc"))) if name in bytes_of(pid, "environ")]

    def left(self) -> list[str]:
        """What there is of the node's pods: processes, mounts, control groups."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{self.root}/" in line]
        processes = [f"process {pid}" for pid in self.processes() if not self._is_resident(pid)]
        return processes + mounts + [str(group) for group in self.groups()] + self._containers()

    def _containers(self) -> list[str]:
        """The containers of an engine that are the node's."""
        engines = self.features.get("engines") or [] if (self.root / "features.json").exists() else []
        if not any(engine["runs"] for engine in engines):
            return []
        label = f"label=batchyard.node={(self.root / 'id').read_text()}"
        asked = ["podman", "ps", "--all", "--quiet", "--filter", label]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()

    def _is_resident(self, pid: int) -> bool:
        """Whether a process is the spawner or the switch, which have no pod's folder open."""
        files = [link_of(f"/proc/{pid}/fd/{name}") for name in names_in(f"/proc/{pid}/fd")]
        is_spawners = bytes_of(pid, "cmdline") == bytes_of(self.spawner.pid, "cmdline")
        return is_spawners and not any(file.startswith(f"{self.root}/pods/") for file in files)

    def groups(self) -> list[Path]:
        """The control groups of the node's pods, and of their runs."""
        identity = self.root / "id"
        name = f"batchyard-{identity.read_text() if identity.exists() else 'none'}-"
        return [Path(path) for path, _, _ in os.walk("/sys/fs/cgroup") if name in path]

    def settle(self) -> None:
        """End all that still runs. Nothing of it may be left."""
        for run in sorted(self.root.glob("pods/*/runs/*/*")) + sorted(self.root.glob("pods/*/sandbox")):
            if is_kept(run):
                with suppress(ProcessLookupError):
                    self.stop(run, grace=0)
                until(partial(_is_left, run), f"the end of {run}")
        until(lambda: not self.left(), f"the end of {self.left()}")
        rmtree(self.root / "pods", ignore_errors=True)
        self.heard.clear()

    def end(self) -> None:
        """End the spawner. Nothing of it may be left."""
        self.spawner.terminate()
        self.spawner.wait()
        until(lambda: not self.processes(), f"the end of {self.processes()}")

    def close(self) -> None:
        """Let go of the folder, and of all that a failed test has left. Once more is nothing more."""
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
    """The names in a folder of /proc, as long as it is there."""
    try:
        return [place.name for place in Path(folder).iterdir()]
    except OSError:
        return []


def link_of(path: str) -> str:
    """Where a link of /proc leads, as long as it is there."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def bytes_of(pid: int, name: str) -> bytes:
    """A file of a process, as long as it is there."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def is_kept(run: Path) -> bool:
    """Whether a run's keeper lives."""
    held = state_dir.open_folder(str(run))
    try:
        return state_dir.is_locked(held)
    finally:
        os.close(held)


def state(run: Path) -> dict[str, Any]:
    """What a run's keeper tells of it; nothing where there is nothing yet."""
    try:
        reported = json.loads((run / "state.json").read_text())
    except OSError:
        return {}
    assert isinstance(reported, dict)
    return reported


def reached(run: Path, phase: str) -> dict[str, Any]:
    """What a run's keeper tells once the run is in a phase."""
    found: dict[str, Any] = until(
        lambda: (reported := state(run)).get("phase") == phase and reported, f"{run} is {phase}"
    )
    return found


@contextmanager
def machine(
    without: str = "",
    user: int | None = None,
    root: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Machine]:
    """A node in a folder of its own; when it is given back it is ended, and nothing of it may be left."""
    if root is None:
        root = Path(mkdtemp(prefix="node-"))
    root.mkdir(exist_ok=True)
    if user is not None:
        os.chown(root, user, user)
    made = Machine(root, without, user, variables)
    try:
        yield made
        made.settle()
        made.end()
    finally:
        made.close()


def _is_left(run: Path) -> bool:
    return not is_kept(run)
