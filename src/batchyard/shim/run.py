"""Run directories as shims use them, execution of commands with a timeout, and containerd's error messages."""

import errno
import os
import re
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from batchyard.shim import linux, state_dir


class ShimRun:
    """A container start, sandbox or image pull: its directory, lock, spec and state, as its shim uses them."""

    def __init__(self, node_fd: int, path: str) -> None:
        """Open the run's directory, at `path` below the open node directory `node_fd`. Raises OSError on failure."""
        self.node_fd = node_fd
        self.path = path
        self.folder_fd = state_dir.open_folder(path, node_fd)
        self.lock_fd: int | None = None
        self.spec: dict[str, Any] = {}
        self.state: dict[str, Any] = {}

    def claim(self) -> bool:
        """Lock this run for the calling shim and read its spec; return whether that succeeds.

        False if the run is locked, was claimed before, or has no readable spec.
        """
        self.lock_fd = state_dir.acquire_lock(self.folder_fd, "lock")
        spec = state_dir.read_json(self.folder_fd, "spec.json")
        if self.lock_fd is None or spec is None:
            return False
        try:
            os.close(os.open("claimed", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.folder_fd))
        except FileExistsError:
            return False
        self.spec = spec
        return True

    def write_state(self, **changed_fields: object) -> bool:
        """Change fields of the container's, sandbox's or pull's state and write state.json; return False on failure."""
        self.state |= changed_fields
        try:
            state_dir.write_json(self.folder_fd, "state.json", self.state)
        except OSError as failure:
            if failure.errno != errno.ENOENT:
                state_dir.log_error(
                    self.node_fd, f"state.json of run {self.path} cannot be written: {failure.strerror}"
                )
            return False
        return True

    def announce(self, timeout: float = 0.0) -> bool:
        """Notify batchyard's server of a changed state; return False if the server is busy for `timeout` seconds.

        Return True if no server listens, because a server reads the directories when it starts.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(timeout)
            try:
                sender.connect(state_dir.socket_address(self.node_fd, "events"))
                sender.send(self.path.encode())
            except (BlockingIOError, TimeoutError):
                return False
            except OSError:
                return True
        return True

    def read_stop_request(self) -> dict[str, Any] | None:
        """Return the kubelet's request to stop this container or sandbox; None if none is readable.

        `at` is in microseconds since the epoch, and `grace` in seconds.
        """
        return state_dir.read_json(self.folder_fd, "stop.json")

    def is_gone(self) -> bool:
        """Return whether the directory of this container start, sandbox or image pull was removed."""
        return state_dir.is_removed(self.folder_fd)

    def close_lock(self) -> None:
        """In a forked child of the shim: close the run's lock, so that it is free when the shim ends."""
        if self.lock_fd is not None:
            os.close(self.lock_fd)
            self.lock_fd = None


# Runs programs of the machine with a timeout, and collects their output.


_OUTPUT_BYTES_MAX = 1 << 20
_NOT_STARTED_EXIT_CODE = 127


class CommandResult(NamedTuple):
    """The result of a command: its exit code (None after a timeout), stdout and stderr."""

    exit_code: int | None
    output: str
    errors: str


def run_command(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> CommandResult:
    """Run a command without stdin, and kill it after `seconds`; return its result. `argv[0]` must be a path.

    The exit code is None after a timeout, 127 if the command cannot be executed, and 128 + N if signal N ends it. If
    this process ends, the command is killed.
    """
    pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    child_pid = os.fork()
    if child_pid == 0:
        try:
            linux.die_with_parent(signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            linux.reset_signal_handlers()
            for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (pipes[0][1], 1), (pipes[1][1], 2)):
                os.dup2(source, target)
            os.execve(argv[0], list(argv), dict(environment))
        finally:
            os._exit(_NOT_STARTED_EXIT_CODE)
    for _, write_end in pipes:
        os.close(write_end)
    output = read_all([read_end for read_end, _ in pipes], seconds)
    for read_end, _ in pipes:
        os.close(read_end)
    if output is None:
        with suppress(ProcessLookupError):
            os.killpg(child_pid, signal.SIGKILL)
    exit_status = os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1])
    if output is None:
        return CommandResult(None, "", f"{os.path.basename(argv[0])} did not answer within {seconds:g} seconds")
    return CommandResult(
        128 - exit_status if exit_status < 0 else exit_status, *(text.decode(errors="replace") for text in output)
    )


def read_all(fds: list[int], timeout: float | None) -> list[bytes] | None:
    """Read all descriptors to their ends; return the data of each, or None if that takes over `timeout` seconds.

    Data of a descriptor beyond about 1 MiB is discarded.
    """
    deadline = None if timeout is None else linux.monotonic() + timeout
    received_data = dict.fromkeys(fds, b"")
    open_fds = list(fds)
    while open_fds:
        if deadline is not None and linux.monotonic() >= deadline:
            return None
        ready_fds = select.select(
            open_fds, [], [], None if deadline is None else max(0.0, deadline - linux.monotonic())
        )[0]
        if not ready_fds:
            return None
        for fd in ready_fds:
            data = os.read(fd, 65536)
            if not data:
                open_fds.remove(fd)
            elif len(received_data[fd]) < _OUTPUT_BYTES_MAX:
                received_data[fd] += data
    return list(received_data.values())


# Error messages for commands that could not be started, in the format of containerd and runc.


_CREATE_ERROR_PREFIX = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
)
#: The texts that podman adds before and after the message of its OCI runtime.
_PODMAN_PREFIXES = ("runc create failed: ", "unable to start container process: ", "error during container init: ")
_PODMAN_ERROR_SUFFIXES = (
    ": OCI runtime attempted to invoke a command that was not found",
    ": OCI permission denied",
    ": OCI runtime error",
)
_ERROR_NUMBERS_BY_TEXT = {os.strerror(number): number for number in errno.errorcode}


def format_start_error(text: str) -> str:
    """Return containerd's error message for a container that runc could not start."""
    return f"{_CREATE_ERROR_PREFIX}unable to start container process: error during container init: {text}"


def format_exec_error(text: str) -> str:
    """Return containerd's error message for an exec command that runc could not start."""
    error_prefix = f'failed to start exec "{os.getpid():064x}"'
    return f"{error_prefix}: OCI runtime exec failed: exec failed: unable to start container process: {text}"


def format_execute_error(program: str, error_number: int) -> str:
    """Return the error message for a program that cannot be executed, in the format of runc (Go's exec.LookPath)."""
    if "/" not in program and error_number in {errno.ENOENT, errno.EACCES}:
        return f'exec: "{program}": executable file not found in $PATH'
    text = os.strerror(error_number).lower()
    stat_prefix = f"stat {program}: " if error_number == errno.ENOENT else ""
    return f'exec: "{program}": {stat_prefix}{text}'


def parse_bubblewrap_error(text: str) -> str:
    """Convert bubblewrap's message that a command cannot be executed to runc's message.

    Other messages are returned without the prefix `bwrap: `.
    """
    line = text.strip().removeprefix("bwrap: ")
    match = re.fullmatch(r"execvp (.*): (.*)", line, re.DOTALL)
    if match and match[2] in _ERROR_NUMBERS_BY_TEXT:
        return format_execute_error(match[1], _ERROR_NUMBERS_BY_TEXT[match[2]])
    return line


def parse_engine_error(text: str) -> str:
    """Extract the error message of runc from podman's error output; '' if the output is empty."""
    lines = [line for line in text.splitlines() if line.startswith("Error: ")] or text.strip().splitlines()[-1:]
    line = lines[-1].removeprefix("Error: ") if lines else ""
    for prefix in _PODMAN_PREFIXES:
        line = line.rpartition(prefix)[2]
    for suffix in _PODMAN_ERROR_SUFFIXES:
        line = line.removesuffix(suffix)
    return line


def format_not_running_error(phase: str) -> str:
    """Return containerd's error message for an exec command in a container that is not running."""
    return f"container is in {'CONTAINER_EXITED' if phase == 'Exited' else 'CONTAINER_CREATED'} state"
