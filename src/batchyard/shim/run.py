"""A run's folder, as its keeper has it: claimed once for ever, locked as long as the keeper lives, its state told."""

import errno
import os
import re
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from batchyard.shim import clock, linux, state_dir


class Run:
    """A run that this process keeps."""

    def __init__(self, node: int, path: str) -> None:
        """The run in a folder, its path relative to the node's. OSError where there is none."""
        self.node = node
        self.path = path
        self.folder = state_dir.open_folder(path, node)
        self.lock: int | None = None
        self.spec: dict[str, Any] = {}
        self.state: dict[str, Any] = {}

    def claim(self) -> bool:
        """Whether this process may keep the run: nobody does, or ever did, and its wish can be read."""
        self.lock = state_dir.lock(self.folder, "lock")
        spec = state_dir.read_json(self.folder, "spec.json")
        if self.lock is None or spec is None:
            return False
        try:
            os.close(os.open("claimed", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.folder))
        except FileExistsError:
            return False
        self.spec = spec
        return True

    def write(self, **changes: object) -> bool:
        """Add to the state, and write it. Whether it could be written."""
        self.state |= changes
        try:
            state_dir.write_json(self.folder, "state.json", self.state)
        except OSError as failure:
            if failure.errno != errno.ENOENT:
                state_dir.complain(self.node, f"{self.path}: state.json cannot be written: {failure}")
            return False
        return True

    def announce(self, patience: float = 0.0) -> bool:
        """Tell the platform that the state changed; False where it is there and cannot take it for so many seconds.

        Nobody there is fine: the platform reads the folders when it starts.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(patience)
            try:
                sender.connect(state_dir.address(self.node, "events"))
                sender.send(self.path.encode())
            except (BlockingIOError, TimeoutError):
                return False
            except OSError:
                return True
        return True

    def stop_wish(self) -> dict[str, Any] | None:
        """When and how the platform wants the run to end; None where it does not."""
        return state_dir.read_json(self.folder, "stop.json")

    def is_gone(self) -> bool:
        """Whether the folder was removed."""
        return state_dir.is_gone(self.folder)

    def release(self) -> None:
        """In a child of the keeper: hold the run's lock no longer, so that it ends with the keeper."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


# --- commands ---
#
# Programs of the machine that are asked for something: what they write, and how they end, bounded in time.


_OUTPUT_BYTES = 1 << 20
_NOT_STARTED = 127


class Done(NamedTuple):
    """How a program ended: its exit code, None where it took too long; and the texts that it wrote."""

    code: int | None
    output: str
    errors: str


def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> Done:
    """Let a program run, with nothing to read, for so many seconds at most. It ends with this process."""
    outputs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    child = os.fork()
    if child == 0:
        try:
            linux.die_with_parent(signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            linux.default_signals()
            for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (outputs[0][1], 1), (outputs[1][1], 2)):
                os.dup2(source, target)
            os.execve(argv[0], list(argv), dict(environment))
        finally:
            os._exit(_NOT_STARTED)
    for _, writes in outputs:
        os.close(writes)
    texts = read([reads for reads, _ in outputs], seconds)
    for reads, _ in outputs:
        os.close(reads)
    if texts is None:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if texts is None:
        return Done(None, "", f"{os.path.basename(argv[0])} did not answer within {seconds:g} seconds")
    return Done(128 - status if status < 0 else status, *(text.decode(errors="replace") for text in texts))


def read(files: list[int], timeout: float | None) -> list[bytes] | None:
    """What is written to some files until all are closed; None where that takes too long."""
    end = None if timeout is None else clock.monotonic() + timeout
    texts = dict.fromkeys(files, b"")
    waiting = list(files)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], None if end is None else max(0.0, end - clock.monotonic()))
        if not ready:
            return None
        for file in ready:
            data = os.read(file, 65536)
            if not data:
                waiting.remove(file)
            elif len(texts[file]) < _OUTPUT_BYTES:
                texts[file] += data
    return list(texts.values())


# --- words ---
#
# Why a command could not be started, in the words of containerd and runc.


_CREATE = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
)
#: What podman says around the words of its runtime.
_BEFORE = ("runc create failed: ", "unable to start container process: ", "error during container init: ")
_AFTER = (
    ": OCI runtime attempted to invoke a command that was not found",
    ": OCI permission denied",
    ": OCI runtime error",
)
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


def start_error(text: str) -> str:
    """What containerd says of a container that runc could not start."""
    return f"{_CREATE}unable to start container process: error during container init: {text}"


def exec_error(text: str) -> str:
    """What containerd says of one more command in a container that runc could not start."""
    started = f'failed to start exec "{os.getpid():064x}"'
    return f"{started}: OCI runtime exec failed: exec failed: unable to start container process: {text}"


def not_executed(program: str, number: int) -> str:
    """Why a program could not be executed, in the words of Go's exec.LookPath, which runc asks."""
    if "/" not in program and number in {errno.ENOENT, errno.EACCES}:
        return f'exec: "{program}": executable file not found in $PATH'
    text = os.strerror(number).lower()
    return f'exec: "{program}": stat {program}: {text}' if number == errno.ENOENT else f'exec: "{program}": {text}'


def said_by_bubblewrap(text: str) -> str:
    """The same from the words in which bubblewrap says it."""
    line = text.strip().removeprefix("bwrap: ")
    found = re.fullmatch(r"execvp (.*): (.*)", line, re.DOTALL)
    return not_executed(found[1], _NUMBERS[found[2]]) if found and found[2] in _NUMBERS else line


def said_by_engine(text: str) -> str:
    """The same from the words in which podman passes on what its runtime says."""
    lines = [line for line in text.splitlines() if line.startswith("Error: ")] or text.strip().splitlines()[-1:]
    line = lines[-1].removeprefix("Error: ") if lines else ""
    for before in _BEFORE:
        line = line.rpartition(before)[2]
    for after in _AFTER:
        line = line.removesuffix(after)
    return line


def not_running(phase: str) -> str:
    """What containerd says of a container into which nobody can get since it does not run."""
    return f"container is in {'CONTAINER_EXITED' if phase == 'Exited' else 'CONTAINER_CREATED'} state"
