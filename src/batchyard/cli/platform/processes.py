"""Commands as processes: their output goes to files, so that they go on unharmed where whoever started them is killed.

Each has a session of its own: Ctrl-C at the terminal reaches us alone, and we tell the command to end.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, TypeAlias

from batchyard.cli.platform.lock import Lock
from batchyard.provision.steps.model import NO_SUCH_PROGRAM, TOO_LONG, Answer, Command
from batchyard.server.clocks.wall import ticks

#: Told while a command runs: the last line it wrote, and for how many seconds it has been running.
Watching: TypeAlias = Callable[[str, float], None]

_TICK_SECONDS: Final = 0.1
#: How long a command has to end by itself once its time is over, before it is ended.
_GRACE_SECONDS: Final = 60
_TAIL_BYTES: Final = 4096


class InterruptedCommandError(KeyboardInterrupt):
    """Somebody pressed Ctrl-C, and the command has ended."""


class Processes:
    """Runs commands in a folder."""

    def __init__(self, folder: Path, lock: Lock, telling: Callable[[str], None]) -> None:
        self._folder = folder
        self._lock = lock
        self._telling = telling

    def look(self, command: Command, watching: Watching) -> Answer:
        """Run a command to see what it says; nothing of it is kept."""
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as told:
            code = self._ended(command, printed, told, watching)
            why = _why(code, command)
            return Answer(code, _whole(printed), f"{why}\n{_whole(told)}" if why else _whole(told))

    def act(self, command: Command, log: Path, watching: Watching) -> Answer:
        """Run a command; both of its outputs are appended to a log, and what was appended is the answer."""
        with log.open("ab+") as file:
            begin = file.seek(0, os.SEEK_END)
            code = self._ended(command, file, file, watching)
            file.seek(begin)
            text = file.read().decode("utf-8", "replace")
            if why := _why(code, command):
                text = f"{why}\n{text}"
                file.write(f"{why}\n".encode())
            return Answer(code, "", text)

    def _ended(self, command: Command, printed: IO[bytes], told: IO[bytes], watching: Watching) -> int:
        """Its exit code, when it has ended."""
        begun = ticks()
        try:
            process = self._started(command, printed, told)
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
                watching(_last_line(told), waited)
                is_late = self._hurried(process, command, waited, is_late)
            except KeyboardInterrupt:
                interrupts += 1
                self._interrupt(process, command, interrupts)
            else:
                return _code(code, interrupts, is_late)

    def _started(self, command: Command, printed: IO[bytes], told: IO[bytes]) -> "subprocess.Popen[bytes]":
        with tempfile.TemporaryFile() as sent:
            sent.write(command.sent.encode())
            sent.seek(0)
            return subprocess.Popen(  # noqa: S603 - the steps' own commands
                command.full_argv,
                cwd=self._folder,
                stdin=sent,
                stdout=subprocess.DEVNULL if command.is_secret else printed,
                stderr=told,
                start_new_session=True,
                pass_fds=(self._lock.inherited,),
            )

    def _hurried(self, process: "subprocess.Popen[bytes]", command: Command, waited: float, is_late: bool) -> bool:
        """Tell a command to end whose time is over, and end it when it does not; whether its time is over."""
        if waited > command.limit_seconds + _GRACE_SECONDS:
            _signal(process, signal.SIGKILL)
        elif waited > command.limit_seconds and not is_late:
            _signal(process, signal.SIGINT)
            return True
        return is_late

    def _interrupt(self, process: "subprocess.Popen[bytes]", command: Command, interrupts: int) -> None:
        """Pass Ctrl-C on: a request the first time, an order the second, the end the third."""
        name = command.argv[0]
        if interrupts == 1:
            self._telling(f"told {name} to end; waiting for it (Ctrl-C again: at once, which can lose what it knows)")
            _signal(process, signal.SIGINT)
        else:
            _signal(process, signal.SIGTERM if interrupts == 2 else signal.SIGKILL)


def _code(code: int, interrupts: int, is_late: bool) -> int:
    """What an ended command's code means: InterruptedCommandError where the user ended it."""
    if interrupts:
        raise InterruptedCommandError
    return TOO_LONG if is_late else code


def _why(code: int, command: Command) -> str:
    """What to say for a command that said nothing."""
    if code == NO_SUCH_PROGRAM:
        return f"{command.argv[0]}: there is no such program on the PATH"
    if code == TOO_LONG:
        return f"{command.argv[0]} took longer than {command.limit_seconds} s, and was told to end"
    return ""


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Send a signal to a command and all that it has started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _whole(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _last_line(file: IO[bytes]) -> str:
    """The last line that a command has written to a file, which it goes on writing."""
    end = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), _TAIL_BYTES, max(0, end - _TAIL_BYTES)).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
