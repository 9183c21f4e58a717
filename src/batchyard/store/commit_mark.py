"""The commit mark: a second record of the last acknowledged revision of a journal, and the lock on both.

SQLite silently ends its write-ahead log at the first invalid frame, so one flipped bit could revert acknowledged
changes. Therefore a mark is written after each transaction: the identity of the journal, and its last revision. A
journal that ends before its mark has lost changes or is an older copy. A journal with another identity is a different
one.

The mark costs one system call and no flush. The end of the process cannot separate it from the journal. After a power
loss it may be older than the journal, which weakens the check. With `Sync.FULL` it is never newer.
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
    """The journal cannot be used; the message contains the reason and the remedy."""


class CommitRecord(NamedTuple):
    """The identity of a journal, and its last acknowledged revision."""

    identity: bytes
    revision: int


class DamagedMark(Exception):  # noqa: N818 - the name is the condition
    """The mark is damaged."""


class CommitMark:
    """The open mark of a journal, with an exclusive lock."""

    def __init__(self, journal: Path) -> None:
        path = mark_of(journal)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}; check that its folder exists and is writable") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise JournalError(f"{journal}: another process has it open; end that one first") from error

    def read(self) -> CommitRecord | None:
        """Return the content; None if the mark is empty. BadMark if it is damaged."""
        return _read(self._file)

    def write(self, marked: CommitRecord) -> None:
        """Overwrite the mark. OSError if that fails."""
        record = _RECORD.pack(*marked)
        os.pwrite(self._file, record + _CHECKSUM.pack(zlib.crc32(record)), 0)

    def flush(self) -> None:
        """Flush the mark to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the mark and release the lock."""
        os.close(self._file)


def mark_of(journal: Path) -> Path:
    """Return the path of the mark of a journal."""
    return journal.with_suffix(".mark")


def is_held(journal: Path) -> bool:
    """Report whether a process has a journal open."""
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


def wait_until_released(journal: Path) -> None:
    """Wait until no process has a journal open."""
    file = os.open(mark_of(journal), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def peek(journal: Path) -> CommitRecord | None:
    """Return the mark of a journal that another process may have open; None if it does not exist."""
    try:
        file = os.open(mark_of(journal), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _read(file)
    finally:
        os.close(file)


def rename_durably(draft: Path, path: Path) -> None:
    """Rename a complete file into place, durably across a power loss."""
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(file: int) -> CommitRecord | None:
    record = os.pread(file, _LENGTH + 1, 0)
    if not record:
        return None
    head, tail = record[: _RECORD.size], record[_RECORD.size :]
    if len(record) != _LENGTH or tail != _CHECKSUM.pack(zlib.crc32(head)):
        raise DamagedMark
    return CommitRecord(*_RECORD.unpack(head))
