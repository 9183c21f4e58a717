"""The audit log: a file of JSON lines that its owner alone may read, begun anew when it is large."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from batchyard.apiserver.audit import Audited, audit_event
from batchyard.live.clock import wall_clock

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
        self._begin()

    def note(self, audited: Audited) -> None:
        """Write down a request that was answered; a disk that is full stops nobody, but is told."""
        self._count += 1
        line = _encode(audit_event(audited, wall_clock(), self._count)) + b"\n"
        try:
            if self._file.tell() + len(line) > self._size_max:
                self._file.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._begin()
            self._file.write(line)
        except OSError as error:
            _LOG.error("a line of the audit log %s is lost: %s", self._path, error)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _begin(self) -> None:
        self._path.touch(mode=0o600)
        self._file = self._path.open("ab", buffering=0)
