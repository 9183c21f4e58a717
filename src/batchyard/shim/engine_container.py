"""Container run by a container engine, and the warden that removes it and its remaining processes.

Shim, warden and container, as for a plain process, but the engine's monitor (conmon) runs in between. The warden adopts
the monitor, and the container itself if the monitor is killed. It reports in the format of bubblewrap's
`--json-status-fd`: `child-pid`, then `exit-code` with `oom`, or `error` if the container could not be started.
"""

import json
import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from batchyard.shim import cgroups, clock, linux, stop
from batchyard.shim import run as words
from batchyard.shim.cgroups import Group
from batchyard.shim.engine import ContainerEngine

_START_SECONDS = 120.0
#: How long the engine may take to clean up after a container.
_END_SECONDS = 30.0
_KILLED = 128 + signal.SIGKILL
#: The engine's exit codes when it started nothing. With a terminal the engine returns the container's exit code, so
#: others may be the container's.
_NOT_STARTED = (125, 126, 127)
_LOOK_SECONDS = 0.005
#: Command lines of a container's first process before it executes the command.
_PREPARING = (b"/proc/self/exe\0init\0", b"runc\0init\0", b"/proc/self/fd/")


class EngineContainer(NamedTuple):
    """A container to run with an engine, and its options."""

    engine: ContainerEngine
    name: str
    #: The arguments of `podman run`.
    options: Sequence[str]
    #: The run's directory, where the engine writes the pid file.
    run: int
    #: Whether the engine stays between the container and the terminal.
    has_terminal: bool
    #: The control group above the container's own.
    group: Group


def warden(request: EngineContainer, status: int) -> NoReturn:
    """Run a container as its warden: start it, report its end on the pipe, and remove what it leaves."""
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
    """Start the engine with the container's standard files; return its pid."""
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
    """Return the container's first process once it executes the command; None if the start fails or times out."""
    end = clock.monotonic() + _START_SECONDS
    while clock.monotonic() < end:
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
    """Whether the command has replaced the process that prepares it, or has ended."""
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
    """Reap the processes around an ended container, including the engine that cleans up."""
    end = clock.monotonic() + _END_SECONDS
    while _reap_once(ended) and clock.monotonic() < end:
        select.select([], [], [], _LOOK_SECONDS)


def _reap_once(ended: dict[int, int]) -> bool:
    """Record the exit codes of ended children; return whether others remain."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    except ChildProcessError:
        return False
    return True


def _exit_status(request: EngineContainer, direct: int | None) -> tuple[int, bool]:
    """Return the container's exit code, and whether it was OOM-killed."""
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
    """The shim is gone: kill and remove everything."""
    with suppress(ProcessLookupError):
        os.kill(engine, signal.SIGKILL)
    request.engine.forget(request.name)
    stop.kill_all()
    os._exit(1)


def _report_status(status: int, **status_fields: object) -> None:
    os.write(status, json.dumps(status_fields).encode() + b"\n")
