"""Checkpoints that are whole or not there, for any trainer: what is saved is bytes, and a step.

A file begins with the SHA-256 of the rest, so that one that was torn (by a crash, by a full disk) is known and passed
over. It is written beside its place, forced to the disk, and then renamed: whoever looks sees the one before or this.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

#: The one before stays, for where the newest is torn.
KEPT = 2
_PATTERN = "step-*.checkpoint"
_DRAFTS = ".step-*.checkpoint"


def save(folder: Path, step: int, content: bytes) -> None:
    """Save the state after so many steps. OSError where that cannot be: what was saved before is still there then."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09}.checkpoint"
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        file.write(_digest(content) + content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _force(folder)
    for old in sorted(folder.glob(_PATTERN))[:-KEPT]:
        old.unlink(missing_ok=True)


def newest(folder: Path, tell: Callable[[str], None]) -> tuple[int, bytes] | None:
    """The newest whole checkpoint, its step and what was saved; None if there is none. Tells what it passes over."""
    for draft in folder.glob(_DRAFTS):  # of a process that was killed
        draft.unlink(missing_ok=True)
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        found = path.read_bytes()
        content = found[len(_digest(b"")) :]
        if found == _digest(content) + content:
            return int(path.stem.removeprefix("step-")), content
        tell(f"{path.name} is torn: passed over")
        path.unlink()  # a later one of the same step shall not be taken for it, and it counts for none that are kept
    return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def _force(folder: Path) -> None:
    """Let the disk have the folder's list of files too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
