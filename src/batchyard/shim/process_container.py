"""Containers that run as plain processes, and the subreaper: a command's parent process, which cleans up after it.

The subreaper is a child of the shim, and the command is a child of the subreaper. The subreaper adopts orphans of the
command. When the command has ended, or the shim was killed, the subreaper kills all its descendants. It reports to the
shim through a pipe, as JSON lines in the format of bubblewrap's `--json-status-fd`: `child-pid`, then `exit-code`, or
`error` if the command could not be started.
"""

import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from batchyard.shim import linux, run, stop


class ProcessCommand(NamedTuple):
    """A command to execute as a plain process: environment, working directory, user and resource limits."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    user: tuple[int, int] | None = None
    limits: Mapping[int, int] = {}
    #: Whether standard input is a terminal, which becomes the command's controlling terminal.
    has_terminal: bool = False
    #: Formats the error message of a command that could not be started.
    format_start_error: Callable[[str], str] = run.format_start_error


def run_process_subreaper(command: ProcessCommand, status_fd: int, *, is_enclosed: bool = False) -> NoReturn:
    """Start a command, report its start and end (or the start error) on the pipe `status_fd`, and exit.

    Before the report of the end, the command's descendants are killed. In a pid namespace of its own (`is_enclosed`),
    the kernel kills them. On SIGTERM, this process kills all its descendants and exits.
    """
    linux.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: _kill_descendants_and_exit())
    linux.die_with_parent(signal.SIGTERM)
    failure_reader, failure_writer = os.pipe2(os.O_CLOEXEC)
    child_pid = os.fork()
    if child_pid == 0:
        _execute_command(command, failure_writer)
    os.close(failure_writer)
    error = os.read(failure_reader, 4096)
    if error:
        os.write(status_fd, json.dumps({"error": command.format_start_error(error.decode())}).encode() + b"\n")
    else:
        os.write(status_fd, json.dumps({"child-pid": child_pid}).encode() + b"\n")
        exit_code = _wait_for_command(child_pid)
        if not is_enclosed:
            stop.kill_descendants()
        os.write(status_fd, json.dumps({"exit-code": exit_code}).encode() + b"\n")
    os._exit(0)


def _execute_command(command: ProcessCommand, failure_writer: int) -> NoReturn:
    try:
        _prepare_command_process(command)
    except (OSError, ValueError) as failure:
        os.write(failure_writer, str(failure).encode())
        os._exit(1)
    try:
        os.execvpe(command.argv[0], list(command.argv), dict(command.environment))
    except OSError as failure:
        os.write(failure_writer, run.format_execute_error(command.argv[0], failure.errno or 0).encode())
    os._exit(1)


def _prepare_command_process(command: ProcessCommand) -> None:
    if command.has_terminal:
        linux.set_controlling_terminal(0)
    else:
        os.setsid()
    for limit, maximum in command.limits.items():
        resource.setrlimit(limit, (maximum, maximum))
    if command.user:
        os.setgroups([])
        os.setgid(command.user[1])
        os.setuid(command.user[0])
    os.makedirs(command.folder, exist_ok=True)
    linux.change_folder(command.folder)
    linux.reset_signal_handlers()


def _wait_for_command(command_pid: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == command_pid:
            exit_code = os.waitstatus_to_exitcode(status)
            return 128 - exit_code if exit_code < 0 else exit_code


def _kill_descendants_and_exit() -> NoReturn:
    stop.kill_descendants()
    os._exit(1)
