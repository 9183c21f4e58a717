"""Why a command could not be started, in the words of containerd and runc."""

import errno
import os
import re

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
