"""Runs commands as processes that write to files, so that they survive if this process is killed.

Each command has its own session: Ctrl-C reaches only this process, which then signals the command.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, TypeAlias

from batchyard.cli.platform.journal import Lock
from batchyard.provision.steps.model import NO_SUCH_PROGRAM, TOO_LONG, CommandOutput, StepCommand
from batchyard.server.clocks.wall import ticks

#: Called while a command runs, with its last output line and its seconds of run time.
Watching: TypeAlias = Callable[[str, float], None]

_TICK_SECONDS: Final = 0.1
#: The time a command has to end after SIGINT at its time limit, before SIGKILL.
_GRACE_SECONDS: Final = 60
_TAIL_BYTES: Final = 4096


class InterruptedCommandError(KeyboardInterrupt):
    """The user pressed Ctrl-C, and the command has ended."""


class CommandRunner:
    """Runs commands in a folder, holding its lock."""

    def __init__(self, folder: Path, lock: Lock, reporting: Callable[[str], None]) -> None:
        self._folder = folder
        self._lock = lock
        self._reporting = reporting

    def look(self, command: StepCommand, watching: Watching) -> CommandOutput:
        """Run a command and return its output, without logging it."""
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as reported:
            code = self._ended(command, printed, reported, watching)
            why = _why(code, command)
            return CommandOutput(code, _whole(printed), f"{why}\n{_whole(reported)}" if why else _whole(reported))

    def act(self, command: StepCommand, log: Path, watching: Watching) -> CommandOutput:
        """Run a command, append both outputs to a log, and return the appended text."""
        with log.open("ab+") as file:
            begin = file.seek(0, os.SEEK_END)
            code = self._ended(command, file, file, watching)
            file.seek(begin)
            text = file.read().decode("utf-8", "replace")
            if why := _why(code, command):
                text = f"{why}\n{text}"
                file.write(f"{why}\n".encode())
            return CommandOutput(code, "", text)

    def _ended(self, command: StepCommand, printed: IO[bytes], reported: IO[bytes], watching: Watching) -> int:
        """Run the command to its end; return its exit code."""
        begun = ticks()
        try:
            process = self._started(command, printed, reported)
        except (FileNotFoundError, PermissionError):
            return NO_SUCH_PROGRAM
        self._lock.started(process.pid, command.argv)
        interrupts = 0
        is_late = False
        while True:
            try:
                code = process.wait(_TICK_SECONDS)
            except subprocess.TimeoutExpired:
                waited = ticks() - begun
                watching(_last_line(reported), waited)
                is_late = self._hurried(process, command, waited, is_late)
            except KeyboardInterrupt:
                interrupts += 1
                self._interrupt(process, command, interrupts)
            else:
                return _code(code, interrupts, is_late)

    def _started(self, command: StepCommand, printed: IO[bytes], reported: IO[bytes]) -> "subprocess.Popen[bytes]":
        with tempfile.TemporaryFile() as sent:
            sent.write(command.sent.encode())
            sent.seek(0)
            return subprocess.Popen(  # noqa: S603 - commands of the steps
                command.full_argv,
                cwd=self._folder,
                stdin=sent,
                stdout=subprocess.DEVNULL if command.is_secret else printed,
                stderr=reported,
                start_new_session=True,
                pass_fds=(self._lock.inherited,),
            )

    def _hurried(self, process: "subprocess.Popen[bytes]", command: StepCommand, waited: float, is_late: bool) -> bool:
        """Send SIGINT at a command's time limit and SIGKILL after the grace period; return whether it is late."""
        if waited > command.limit_seconds + _GRACE_SECONDS:
            _signal(process, signal.SIGKILL)
        elif waited > command.limit_seconds and not is_late:
            _signal(process, signal.SIGINT)
            return True
        return is_late

    def _interrupt(self, process: "subprocess.Popen[bytes]", command: StepCommand, interrupts: int) -> None:
        """Forward Ctrl-C: SIGINT the first time, SIGTERM the second, SIGKILL from the third."""
        name = command.argv[0]
        if interrupts == 1:
            self._reporting(
                f"sent {name} an interrupt; waiting for it to end (Ctrl-C again ends it at once and can lose its state)"
            )
            _signal(process, signal.SIGINT)
        else:
            _signal(process, signal.SIGTERM if interrupts == 2 else signal.SIGKILL)


def _code(code: int, interrupts: int, is_late: bool) -> int:
    """The code of an ended command; InterruptedCommandError if the user ended it."""
    if interrupts:
        raise InterruptedCommandError
    return TOO_LONG if is_late else code


def _why(code: int, command: StepCommand) -> str:
    """The message for a command that could not be run or was late."""
    if code == NO_SUCH_PROGRAM:
        return f"{command.argv[0]}: program not found on the PATH"
    if code == TOO_LONG:
        return f"{command.argv[0]} took longer than {command.limit_seconds} s and was interrupted"
    return ""


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Send a signal to the process group of a command."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _whole(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _last_line(file: IO[bytes]) -> str:
    """The last line in a file that a command is still writing."""
    end = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), _TAIL_BYTES, max(0, end - _TAIL_BYTES)).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
