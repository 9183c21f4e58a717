"""Runs the commands of steps as subprocesses that write to files, so that a command survives if this process is killed.

Each command has its own session: Ctrl-C reaches only this process, which then signals the command.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import IO, Final, TypeAlias

from batchyard.cli.platform.journal import FolderLock
from batchyard.provision.steps.model import NO_SUCH_PROGRAM, TOO_LONG, CommandOutput, StepCommand
from batchyard.server.clocks.wall import monotonic_seconds

#: A progress callback: it receives the last output line and the run time in seconds of the running command.
ProgressCallback: TypeAlias = Callable[[str, float], None]

_POLL_SECONDS: Final = 0.1
#: The delay between SIGINT, at the time limit of a command, and SIGKILL.
_INTERRUPT_GRACE_SECONDS: Final = 60
_LOG_TAIL_BYTES: Final = 4096


class InterruptedCommandError(KeyboardInterrupt):
    """The user pressed Ctrl-C, and the running command has ended."""


class CommandRunner:
    """Runs the commands of steps in the folder of a rendered Platform, which must be locked."""

    def __init__(self, folder: Path, lock: FolderLock, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._lock = lock
        self._report = report

    def run_probe(self, command: StepCommand, show_progress: ProgressCallback) -> CommandOutput:
        """Run a read-only command and return its output, without writing a log."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            exit_code = self._run(command, stdout, stderr, show_progress)
            failure = _failure_message(exit_code, command)
            error_text = _read_all(stderr)
            return CommandOutput(exit_code, _read_all(stdout), f"{failure}\n{error_text}" if failure else error_text)

    def run_logged(self, command: StepCommand, log: Path, show_progress: ProgressCallback) -> CommandOutput:
        """Run a command and append its standard output and error to a log file; return both as the output's stderr."""
        with log.open("ab+") as log_file:
            log_offset = log_file.seek(0, os.SEEK_END)
            exit_code = self._run(command, log_file, log_file, show_progress)
            log_file.seek(log_offset)
            text = log_file.read().decode("utf-8", "replace")
            if failure := _failure_message(exit_code, command):
                text = f"{failure}\n{text}"
                log_file.write(f"{failure}\n".encode())
            return CommandOutput(exit_code, "", text)

    def _run(self, command: StepCommand, stdout: IO[bytes], stderr: IO[bytes], show_progress: ProgressCallback) -> int:
        """Run a command and return its exit code; NO_SUCH_PROGRAM if it cannot start, TOO_LONG after its time limit.

        Raises InterruptedCommandError after Ctrl-C.
        """
        started_at = monotonic_seconds()
        try:
            process = self._start(command, stdout, stderr)
        except (FileNotFoundError, PermissionError):
            return NO_SUCH_PROGRAM
        self._lock.record_command(process.pid, command.argv)
        interrupt_count = 0
        has_timed_out = False
        while True:
            try:
                exit_code = process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                waited_seconds = monotonic_seconds() - started_at
                show_progress(_last_line(stderr), waited_seconds)
                has_timed_out = self._enforce_time_limit(process, command, waited_seconds, has_timed_out)
            except KeyboardInterrupt:
                interrupt_count += 1
                self._interrupt(process, command, interrupt_count)
            else:
                return _final_exit_code(exit_code, interrupt_count, has_timed_out)

    def _start(self, command: StepCommand, stdout_file: IO[bytes], stderr_file: IO[bytes]) -> "Popen[bytes]":
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(command.stdin_text.encode())
            stdin_file.seek(0)
            return subprocess.Popen(  # noqa: S603 - commands of the steps
                command.full_argv,
                cwd=self._folder,
                stdin=stdin_file,
                stdout=subprocess.DEVNULL if command.is_secret else stdout_file,
                stderr=stderr_file,
                start_new_session=True,
                pass_fds=(self._lock.inherited_fd,),
            )

    def _enforce_time_limit(self, process: "Popen[bytes]", command: StepCommand, seconds: float, is_late: bool) -> bool:
        if seconds > command.limit_seconds + _INTERRUPT_GRACE_SECONDS:
            _signal_process_group(process, signal.SIGKILL)
        elif seconds > command.limit_seconds and not is_late:
            _signal_process_group(process, signal.SIGINT)
            return True
        return is_late

    def _interrupt(self, process: "Popen[bytes]", command: StepCommand, interrupt_count: int) -> None:
        name = command.argv[0]
        if interrupt_count == 1:
            self._report(f"interrupted {name}, waiting until it ends (Ctrl-C again kills it, which can lose its state)")
            _signal_process_group(process, signal.SIGINT)
        else:
            _signal_process_group(process, signal.SIGTERM if interrupt_count == 2 else signal.SIGKILL)


def _final_exit_code(exit_code: int, interrupt_count: int, has_timed_out: bool) -> int:
    if interrupt_count:
        raise InterruptedCommandError
    return TOO_LONG if has_timed_out else exit_code


def _failure_message(exit_code: int, command: StepCommand) -> str:
    if exit_code == NO_SUCH_PROGRAM:
        return f"{command.argv[0]}: program not found on the PATH; install it first"
    if exit_code == TOO_LONG:
        return f"{command.argv[0]} took longer than {command.limit_seconds} s and was interrupted"
    return ""


def _signal_process_group(process: "Popen[bytes]", signal_number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, signal_number)
    except ProcessLookupError:
        return


def _read_all(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _last_line(file: IO[bytes]) -> str:
    end = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), _LOG_TAIL_BYTES, max(0, end - _LOG_TAIL_BYTES)).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
