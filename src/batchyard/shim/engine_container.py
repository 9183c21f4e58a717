"""A container of the engine, and the warden who ends with it what is left of it.

Keeper, warden and container, as for a plain process; but the engine puts its own watcher (conmon) between the two. The
warden adopts it, and the container itself where the watcher is killed. In the words of bubblewrap's
`--json-status-fd` he tells `child-pid`, then `exit-code` with `oom`; or `error`, where it could not be started.
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
from batchyard.shim.engine import Engine

_START_SECONDS = 120.0
#: How long the engine may take to tidy up after a container.
_END_SECONDS = 30.0
_KILLED = 128 + signal.SIGKILL
#: The engine's exit codes where it started nothing; others may be the container's, whose terminal it passes on.
_NOT_STARTED = (125, 126, 127)
_LOOK_SECONDS = 0.005
#: How a container's first process calls itself before the command takes its place.
_PREPARING = (b"/proc/self/exe\0init\0", b"runc\0init\0", b"/proc/self/fd/")


class Contained(NamedTuple):
    """What is to be run."""

    engine: Engine
    name: str
    #: What comes after `podman run`.
    options: Sequence[str]
    #: The run's folder, where the engine writes the container's process.
    run: int
    #: Whether the engine stays between the container and the terminal.
    has_terminal: bool
    #: The control group that the container's own lies in.
    group: Group


def warden(wish: Contained, status: int) -> NoReturn:
    """Be the warden of a container: start it, tell its end on the pipe, leave nothing of it."""
    linux.adopt_orphans()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watch = cgroups.watched_for_oom(wish.group)
    engine = _start(wish)
    signal.signal(signal.SIGTERM, lambda *_: _abandon(wish, engine))
    linux.die_with_parent(signal.SIGTERM)
    ended: dict[int, int] = {}
    pid = _begun(wish, engine, ended)
    if pid is None:
        if engine in ended:  # it tidies up itself: who breaks that off leaves more to be done
            _reap(ended)
        wish.engine.forget(wish.name)
        _tell(status, **({} if ended.get(engine) else {"error": words.start_error("the engine did not start it")}))
        os._exit(1)
    _tell(status, **{"child-pid": pid})
    with suppress(ProcessLookupError):
        _await(os.pidfd_open(pid))
    _reap(ended)
    code, is_oom = _told(wish, ended.get(pid))
    wish.engine.forget(wish.name)
    _tell(status, **{"exit-code": code, "oom": is_oom or _was_told(watch)})
    stop.kill_all()
    os._exit(0)


def _start(wish: Contained) -> int:
    """Start the engine with the files that are the container's."""
    engine = wish.engine
    child = os.fork()
    if child == 0:
        try:
            linux.default_signals()
            argv = [engine.program, *engine.options, "run", *wish.options]
            os.execve(engine.program, argv, dict(engine.environment))
        finally:
            os._exit(127)
    for file in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), file)
    return child


def _begun(wish: Contained, engine: int, ended: dict[int, int]) -> int | None:
    """The container's first process once it executes the command; None where it does not come to that."""
    end = clock.monotonic() + _START_SECONDS
    while clock.monotonic() < end:
        _reap_once(ended)
        pid = _first_process(wish.run)
        code = ended.get(engine)
        if code is not None and (code in _NOT_STARTED or not (wish.has_terminal or code == 0)):
            return None
        if (wish.has_terminal or code == 0) and pid is not None and _executes(pid):
            return pid
        select.select([], [], [], _LOOK_SECONDS)
    return None


def _first_process(run: int) -> int | None:
    with suppress(OSError, ValueError), open(os.open("pid", os.O_RDONLY, dir_fd=run), encoding="utf-8") as file:
        return int(file.read())
    return None


def _executes(pid: int) -> bool:
    """Whether the command has taken the place of what prepares it, or is over."""
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
    """Reap what there was around a container that has ended, the engine's tidying too."""
    end = clock.monotonic() + _END_SECONDS
    while _reap_once(ended) and clock.monotonic() < end:
        select.select([], [], [], _LOOK_SECONDS)


def _reap_once(ended: dict[int, int]) -> bool:
    """Note the exit codes of children that have ended; whether others are there."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    except ChildProcessError:
        return False
    return True


def _told(wish: Contained, direct: int | None) -> tuple[int, bool]:
    """The container's exit code, and whether it had no memory left."""
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
    said = wish.engine.ask("container", "inspect", "--format", form, wish.name).output.split()
    is_oom = said[-1:] == ["true"]
    if direct is not None:  # the engine's watcher was killed
        return (128 - direct if direct < 0 else direct), is_oom
    if said[:1] in (["exited"], ["stopped"]):
        return int(said[1]) % 256, is_oom
    return _KILLED, is_oom


def _was_told(watch: int | None) -> bool:
    with suppress(BlockingIOError):
        return watch is not None and os.eventfd_read(watch) > 0
    return False


def _abandon(wish: Contained, engine: int) -> NoReturn:
    """The keeper is gone: end everything."""
    with suppress(ProcessLookupError):
        os.kill(engine, signal.SIGKILL)
    wish.engine.forget(wish.name)
    stop.kill_all()
    os._exit(1)


def _tell(status: int, **said: object) -> None:
    os.write(status, json.dumps(said).encode() + b"\n")
