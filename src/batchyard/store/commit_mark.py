"""The mark: up to which revision a journal was acknowledged, told in a second place, and the lock on both.

SQLite ends its write-ahead log at the first frame that does not fit, without a word: one flipped bit there would take
back what was acknowledged. So a mark is written after each transaction: which journal it was, and its last revision. A
journal that ends before its mark has lost something, or is an older copy; one of another identity is not ours at all.

The mark costs one system call and no flush. The end of the process cannot part it from the journal. After a loss of
power it may be older than the journal, which asks for less than it could, but with `Sync.FULL` never newer.
"""

import fcntl
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

_RECORD: Final = struct.Struct("<16sQ")
_CHECKSUM: Final = struct.Struct("<I")
_LENGTH: Final = _RECORD.size + _CHECKSUM.size


class JournalError(Exception):
    """The journal cannot be used; says why and what to do."""


class Marked(NamedTuple):
    """Which journal, and the last revision that was acknowledged."""

    identity: bytes
    revision: int


class BadMark(Exception):  # noqa: N818 - says what it is
    """The mark is not what was written."""


class Mark:
    """The mark of a journal, which nobody else has while it is open."""

    def __init__(self, journal: Path) -> None:
        path = mark_of(journal)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}; see that its folder is there and may be written") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise JournalError(f"{journal}: another process has it open; end that one first") from error

    def read(self) -> Marked | None:
        """What it says; None if nothing was written yet. BadMark if it cannot be believed."""
        return _read(self._file)

    def write(self, marked: Marked) -> None:
        """Say it anew. OSError if that cannot be done."""
        record = _RECORD.pack(*marked)
        os.pwrite(self._file, record + _CHECKSUM.pack(zlib.crc32(record)), 0)

    def flush(self) -> None:
        """Bring it to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)


def mark_of(journal: Path) -> Path:
    """Where the mark of a journal lies."""
    return journal.with_suffix(".mark")


def is_held(journal: Path) -> bool:
    """Whether a process has a journal open."""
    try:
        file = os.open(mark_of(journal), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def wait_until_let_go(journal: Path) -> None:
    """Wait until no process has a journal open."""
    file = os.open(mark_of(journal), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def peek(journal: Path) -> Marked | None:
    """What the mark of a journal says that another process may have open; None if there is none."""
    try:
        file = os.open(mark_of(journal), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _read(file)
    finally:
        os.close(file)


def rename_for_good(draft: Path, path: Path) -> None:
    """Give a whole file its name, so that a loss of power does not take it back."""
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(file: int) -> Marked | None:
    record = os.pread(file, _LENGTH + 1, 0)
    if not record:
        return None
    head, tail = record[: _RECORD.size], record[_RECORD.size :]
    if len(record) != _LENGTH or tail != _CHECKSUM.pack(zlib.crc32(head)):
        raise BadMark
    return Marked(*_RECORD.unpack(head))
