"""Audit log: a private file of JSON lines, rotated by size."""

import errno
import logging
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from batchyard.apiserver.audit import AuditedRequest, audit_event
from batchyard.apiserver.responses import DeferredResponse
from batchyard.server.clocks.wall import wall_clock

#: At this size in bytes the file is renamed to FILE.1, replacing the previous one.
SIZE_MAX: Final = 100 * 1024 * 1024
_LOG: Final = logging.getLogger("batchyard.audit")
_encode = msgspec.json.Encoder().encode


class AuditLog:
    """The open file of the audit log."""

    def __init__(self, path: Path, size_max: int = SIZE_MAX) -> None:
        self._path = path
        self._size_max = size_max
        self._count = 0
        self._file = _opened(path)

    def note(self, audited: AuditedRequest) -> None:
        """Write the event of an answered request. On errors the event is lost and the error is logged."""
        if isinstance(audited.answer, DeferredResponse):
            return  # noted once it has its answer
        self._count += 1
        line = _encode(audit_event(audited, wall_clock(), self._count)) + b"\n"
        try:
            self._write(line)
        except OSError as error:
            _LOG.error("a line of the audit log %s is lost: %s", self._path, error)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        """Write a line completely or not at all."""
        end = self._file.tell()
        if end + len(line) > self._size_max:
            self._rotate()
            end = 0
        if self._file.write(line) != len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        """Rotate the file. If that fails, the next line retries it."""
        with suppress(FileNotFoundError):  # already renamed, but opening the new file failed
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        file = _opened(self._path)
        self._file.close()
        self._file = file


def _opened(path: Path) -> FileIO:
    """Open a file for appending. A new file is private to its owner."""
    return FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")
