"""Container engine client: runs the podman or docker command for images and containers."""

import json
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from batchyard.shim import linux, stop
from batchyard.shim import run as commands
from batchyard.shim import run as words
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.cgroups import Group
from batchyard.shim.run import CommandResult

PODMAN, DOCKER = "podman", "docker"
_LABEL = "batchyard.node"
RUN_LABEL = "batchyard.run"
_ASK_SECONDS = 60.0
_PULL_SECONDS = 3600.0
_REMOVALS = 3
#: The engines' messages for a missing image.
_NO_IMAGE = ("No such image", "image not known", "no such image")
#: docker's message for a missing container.
_NO_CONTAINER = "No such container"


class ContainerEngine(NamedTuple):
    """A usable container engine of this machine, and how its command is invoked."""

    #: `podman` or `docker`.
    kind: str
    program: str
    version: str
    #: Global options that precede each command.
    options: tuple[str, ...]
    environment: Mapping[str, str]
    #: The id of the node directory, with which this node's containers are labeled.
    identity: str
    #: Whether the engine runs containers in pod sandboxes; otherwise it only provides images.
    runs: bool

    def ask(self, *arguments: str, seconds: float = _ASK_SECONDS) -> CommandResult:
        """Run a command of the engine, such as `ps --all`, for at most `seconds`."""
        return commands.run([self.program, *self.options, *arguments], self.environment, seconds)

    def labels(self, path: str) -> list[str]:
        """Return the options that label a container with its node and its run; `path` is the run's path."""
        return ["--label", f"{_LABEL}={self.identity}", "--label", f"{RUN_LABEL}={path}"]

    def name(self, path: str) -> str:
        """Return the engine's container name for a run, given by its path."""
        _, uid, kind, container, attempt = path.split("/")
        of_image = "" if kind == "runs" else "image-"
        return f"batchyard-{self.identity}-{uid}-{of_image}{container}-{attempt}"

    def forget(self, *names: str) -> None:
        """Kill and remove containers by name; retry if that fails."""
        options = ["--ignore", "--time", "0"] if self.kind == PODMAN else []
        for _ in range(_REMOVALS if names else 0):
            result = self.ask("rm", "--force", *options, "--volumes", *names)
            if result.code == 0 or (result.code and all(_NO_CONTAINER in line for line in result.errors.splitlines())):
                return

    def containers(self) -> dict[str, str]:
        """Return the ids of this node's containers in the engine, by the paths of their runs."""
        labelled = f'index .Labels "{RUN_LABEL}"' if self.kind == PODMAN else f'.Label "{RUN_LABEL}"'
        form = f"{{{{{labelled}}}}} {{{{.ID}}}}"
        result = self.ask("ps", "--all", "--filter", f"label={_LABEL}={self.identity}", "--format", form)
        rows = (line.split() for line in result.output.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[0].count("/") == 4}

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return an image's metadata; None if the engine does not have the image. OSError if the engine fails."""
        result = self.ask("image", "inspect", reference)
        if result.code != 0:
            if result.code is not None and any(text in result.errors for text in _NO_IMAGE):
                return None
            raise OSError(last_line(result.errors))
        return _parse_image(json.loads(result.output)[0])

    def pull(self, reference: str, auth: Mapping[str, Any], own: str) -> CommandResult:
        """Pull an image with registry credentials; `own` is a directory for docker's configuration."""
        if not auth:
            return self.ask("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        file = os.memfd_create("auth", 0)  # not visible to other users of the machine
        os.write(file, json.dumps(auth).encode())
        os.lseek(file, 0, os.SEEK_SET)
        place = f"/proc/self/fd/{file}"
        try:
            if self.kind == PODMAN:
                return self.ask("pull", "--quiet", "--authfile", place, reference, seconds=_PULL_SECONDS)
            os.symlink(place, f"{own}/config.json")
            known = self._replace(environment={**self.environment, "DOCKER_CONFIG": own})
            return known.ask("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        finally:
            os.close(file)


def last_line(text: str) -> str:
    """Return an engine's error message: the last line of its error output."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return lines[-1].removeprefix("Error: ") if lines else "the container engine reported no reason"


def quoted(words: list[str]) -> str:
    """Format a command as JSON for the engine's option `--entrypoint`."""
    return json.dumps(words)


def program(name: str) -> str | None:
    """Return the path of an executable program in PATH; None if it is not installed."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _parse_image(image: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the output of `image inspect`, which podman and docker share, to image metadata."""
    config = image.get("Config") or {}
    tags, digests = image.get("RepoTags") or (), image.get("RepoDigests") or ()
    plain = image["Id"].removeprefix("sha256:")
    return {
        "id": image["Id"],
        "name": tags[0] if tags else "",
        "digest": digests[0] if digests else f"sha256:{plain}",
        "size": image.get("Size") or 0,
        "entrypoint": config.get("Entrypoint") or [],
        "command": config.get("Cmd") or [],
        "environment": dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair),
        "workingDir": config.get("WorkingDir") or "",
        "user": config.get("User") or "",
        "stopSignal": config.get("StopSignal") or "",
    }


# --- engine container ---
#
# A container that an engine runs, and its warden: the parent process that starts the engine and cleans up.
#
# The warden is a child of the shim. It adopts the engine's monitor process (conmon), and the container itself if the
# monitor is killed. It reports to the shim in the format of bubblewrap's `--json-status-fd`: `child-pid`, then
# `exit-code` with `oom`, or `error` if the container could not be started.


_START_SECONDS = 120.0
#: How long the engine may take to clean up after a container.
_END_SECONDS = 30.0
_KILLED = 128 + signal.SIGKILL
#: The engine's exit codes if it did not start the container. With a terminal, other codes may be the container's.
_NOT_STARTED = (125, 126, 127)
_LOOK_SECONDS = 0.005
#: Command lines of a container's first process before it executes the command.
_PREPARING = (b"/proc/self/exe\0init\0", b"runc\0init\0", b"/proc/self/fd/")


class EngineContainer(NamedTuple):
    """A container that an engine runs for a shim, with the options of `podman run`."""

    engine: ContainerEngine
    name: str
    #: The arguments of `podman run`.
    options: Sequence[str]
    #: A descriptor of the run's directory, where the engine writes the pid file.
    run: int
    #: Whether the container has a terminal, whose data the engine forwards.
    has_terminal: bool
    #: The parent control group of the container's own group.
    group: Group


def warden(request: EngineContainer, status: int) -> NoReturn:
    """Run a container as its warden: start it, report its end on the pipe `status`, and clean up after it."""
    linux.adopt_orphans()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watch = cgroups.watched_for_oom(request.group)
    engine = _start(request)
    signal.signal(signal.SIGTERM, lambda *_: _abandon(request, engine))
    linux.die_with_parent(signal.SIGTERM)
    ended: dict[int, int] = {}
    pid = _begun(request, engine, ended)
    if pid is None:
        if engine in ended:  # the engine is cleaning up: interrupting it would leave more to remove
            _reap(ended)
        request.engine.forget(request.name)
        _report_status(
            status,
            **(
                {}
                if ended.get(engine)
                else {"error": words.start_error("the container engine did not start the container")}
            ),
        )
        os._exit(1)
    _report_status(status, **{"child-pid": pid})
    with suppress(ProcessLookupError):
        _await(os.pidfd_open(pid))
    _reap(ended)
    code, is_oom = _exit_status(request, ended.get(pid))
    request.engine.forget(request.name)
    _report_status(status, **{"exit-code": code, "oom": is_oom or _was_oom_notified(watch)})
    stop.kill_all()
    os._exit(0)


def _start(request: EngineContainer) -> int:
    """Start the engine with the container's standard streams; return the engine's pid."""
    engine = request.engine
    child = os.fork()
    if child == 0:
        try:
            linux.default_signals()
            argv = [engine.program, *engine.options, "run", *request.options]
            os.execve(engine.program, argv, dict(engine.environment))
        finally:
            os._exit(127)
    for file in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), file)
    return child


def _begun(request: EngineContainer, engine: int, ended: dict[int, int]) -> int | None:
    """Wait until the container executes its command; return its first process, or None if the start fails."""
    end = linux.monotonic() + _START_SECONDS
    while linux.monotonic() < end:
        _reap_once(ended)
        pid = _first_process(request.run)
        code = ended.get(engine)
        if code is not None and (code in _NOT_STARTED or not (request.has_terminal or code == 0)):
            return None
        if (request.has_terminal or code == 0) and pid is not None and _executes(pid):
            return pid
        select.select([], [], [], _LOOK_SECONDS)
    return None


def _first_process(run: int) -> int | None:
    with suppress(OSError, ValueError), open(os.open("pid", os.O_RDONLY, dir_fd=run), encoding="utf-8") as file:
        return int(file.read())
    return None


def _executes(pid: int) -> bool:
    """Report whether a container's first process executes the command (or has ended), not the runtime's setup."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return True
    return bool(line) and not line.startswith(_PREPARING)


def _await(process: int) -> None:
    """Wait until a process has ended."""
    select.select([process], [], [])
    os.close(process)


def _reap(ended: dict[int, int]) -> None:
    """Reap the child processes of an ended container, including the engine, for a limited time."""
    end = linux.monotonic() + _END_SECONDS
    while _reap_once(ended) and linux.monotonic() < end:
        select.select([], [], [], _LOOK_SECONDS)


def _reap_once(ended: dict[int, int]) -> bool:
    """Record the exit codes of ended child processes in `ended`; return whether other children remain."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    except ChildProcessError:
        return False
    return True


def _exit_status(request: EngineContainer, direct: int | None) -> tuple[int, bool]:
    """Return a container's exit code, and whether it was OOM-killed; `direct` is the code that the warden reaped."""
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
    fields = request.engine.ask("container", "inspect", "--format", form, request.name).output.split()
    is_oom = fields[-1:] == ["true"]
    if direct is not None:  # the engine's monitor was killed
        return (128 - direct if direct < 0 else direct), is_oom
    if fields[:1] in (["exited"], ["stopped"]):
        return int(fields[1]) % 256, is_oom
    return _KILLED, is_oom


def _was_oom_notified(watch: int | None) -> bool:
    with suppress(BlockingIOError):
        return watch is not None and os.eventfd_read(watch) > 0
    return False


def _abandon(request: EngineContainer, engine: int) -> NoReturn:
    """After the end of the shim: kill the engine and all descendants, remove the container, and exit."""
    with suppress(ProcessLookupError):
        os.kill(engine, signal.SIGKILL)
    request.engine.forget(request.name)
    stop.kill_all()
    os._exit(1)


def _report_status(status: int, **status_fields: object) -> None:
    os.write(status, json.dumps(status_fields).encode() + b"\n")
