"""A command as a plain process, and the warden who ends with it whatever it left behind.

Keeper, warden and command are three generations. The warden adopts the orphans of the command; once the command has
ended, or the keeper was killed, the warden kills all that is below it. It tells the keeper by lines of JSON on its
standard output's place, a pipe, in the words of bubblewrap's `--json-status-fd`: `child-pid`, then `exit-code`; or
`error`, where the command could not be started.
"""

import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from batchyard.shim import linux, run, stop


class Command(NamedTuple):
    """What is to be executed, and as what."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    user: tuple[int, int] | None = None
    limits: Mapping[int, int] = {}
    #: Whether its standard input is a terminal that is to be its own.
    has_terminal: bool = False
    #: How it is said why it could not be started.
    start_error: Callable[[str], str] = run.start_error


def warden(command: Command, status: int, *, is_enclosed: bool = False) -> NoReturn:
    """Be the warden of the command: run it, tell its end on the pipe, leave nothing of it.

    What a command leaves that is enclosed, in a pid namespace, somebody else ends there.
    """
    linux.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: _abandon())
    linux.die_with_parent(signal.SIGTERM)
    fails, failing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _execute(command, failing)
    os.close(failing)
    error = os.read(fails, 4096)
    if error:
        os.write(status, json.dumps({"error": command.start_error(error.decode())}).encode() + b"\n")
    else:
        os.write(status, json.dumps({"child-pid": child}).encode() + b"\n")
        code = _ended(child)
        if not is_enclosed:
            stop.kill_all()
        os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")
    os._exit(0)


def _execute(command: Command, failing: int) -> NoReturn:
    """Become the command, or say why not."""
    try:
        _prepare(command)
    except (OSError, ValueError) as failure:
        os.write(failing, str(failure).encode())
        os._exit(1)
    try:
        os.execvpe(command.argv[0], list(command.argv), dict(command.environment))
    except OSError as failure:
        os.write(failing, run.not_executed(command.argv[0], failure.errno or 0).encode())
    os._exit(1)


def _prepare(command: Command) -> None:
    if command.has_terminal:
        linux.own_terminal(0)
    else:
        os.setsid()
    for limit, most in command.limits.items():
        resource.setrlimit(limit, (most, most))
    if command.user:
        os.setgroups([])
        os.setgid(command.user[1])
        os.setuid(command.user[0])
    os.makedirs(command.folder, exist_ok=True)
    linux.enter_folder(command.folder)
    linux.default_signals()


def _ended(child: int) -> int:
    """Reap whatever ends until the command has; its exit code."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _abandon() -> NoReturn:
    """The keeper is gone: end everything."""
    stop.kill_all()
    os._exit(1)
