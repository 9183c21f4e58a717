"""The audit log: a file of JSON lines that its owner alone may read, begun anew when it is large."""

import errno
import logging
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from batchyard.apiserver.audit import Audited, audit_event
from batchyard.apiserver.responses import Later
from batchyard.server.clocks.wall import wall_clock

#: At this size the file becomes FILE.1, in the place of the one before.
SIZE_MAX: Final = 100 * 1024 * 1024
_LOG: Final = logging.getLogger("batchyard.audit")
_encode = msgspec.json.Encoder().encode


class AuditLog:
    """See the module."""

    def __init__(self, path: Path, size_max: int = SIZE_MAX) -> None:
        self._path = path
        self._size_max = size_max
        self._count = 0
        self._file = _opened(path)

    def note(self, audited: Audited) -> None:
        """Write down a request that was answered; a disk that is full stops nobody, but is told."""
        if isinstance(audited.answer, Later):
            return  # it is noted once its answer is there
        self._count += 1
        line = _encode(audit_event(audited, wall_clock(), self._count)) + b"\n"
        try:
            self._write(line)
        except OSError as error:
            _LOG.error("a line of the audit log %s is lost: %s", self._path, error)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        """Write a line whole, or nothing of it."""
        end = self._file.tell()
        if end + len(line) > self._size_max:
            self._begin_anew()
            end = 0
        if self._file.write(line) != len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin_anew(self) -> None:
        """Put the file aside, and begin another. What cannot be done now is tried again with the next line."""
        with suppress(FileNotFoundError):  # it was put aside already, and another could not be begun
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        file = _opened(self._path)
        self._file.close()
        self._file = file


def _opened(path: Path) -> FileIO:
    """A file to go on with; a new one is for its owner alone to read."""
    return FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")
