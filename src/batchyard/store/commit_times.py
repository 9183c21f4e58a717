"""The wall-clock times of the last transactions of a journal, in a ring file beside it, for point-in-time restore.

The journal keeps at least its last 20,000 revisions, and the ring holds more transactions than that. A record is
written before its transaction is acknowledged. A process that is killed therefore loses no time, and a power loss may
lose the last ones.
"""

import os
import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from batchyard.base.instant import Instant

#: The number of transactions in the file.
RING_SLOTS: Final = 32_768
_RECORD: Final = struct.Struct("=QQ")
CommitTime: TypeAlias = tuple[int, Instant]
"""The last revision of a transaction, and its wall-clock time."""


class CommitTimes:
    """The open ring file of a journal, to which the time of each transaction is added."""

    def __init__(self, journal: Path, clock: Callable[[], Instant]) -> None:
        """Open the file, or create it. Raise OSError if that fails."""
        last_records = read_commit_times(journal)
        self._clock, self._last_time = clock, last_records[-1][1] if last_records else 0
        self._slot = _next_slot(_read_records(journal))
        self._fd = os.open(commit_times_path(journal), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def record(self, revision: int) -> None:
        """Add the time of the transaction that ends with a revision. Times never decrease. Raise OSError on failure."""
        self._last_time = max(self._last_time, self._clock())
        os.pwrite(self._fd, _RECORD.pack(revision, self._last_time), self._slot * _RECORD.size)
        self._slot = (self._slot + 1) % RING_SLOTS

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def commit_times_path(journal: Path) -> Path:
    """Return the path of the ring file of a journal."""
    return journal.with_suffix(".times")


def read_commit_times(journal: Path, after: int = 0) -> Sequence[CommitTime]:
    """Return the recorded transactions that end after a revision, in order; another process may add some meanwhile."""
    records = _read_records(journal)
    last_slot = _next_slot(records) - 1
    commit_times: list[CommitTime] = []
    bound: CommitTime = (1 << 64, 1 << 64)
    for step in range(RING_SLOTS):
        slot = 2 * ((last_slot - step) % RING_SLOTS)
        if slot >= len(records):
            continue
        revision, time = records[slot], records[slot + 1]
        if revision <= after or revision >= bound[0] or time > bound[1]:
            break
        bound = (revision, time)
        commit_times.append(bound)
    return commit_times[::-1]


def _read_records(journal: Path) -> "array[int]":
    records = array("Q")
    try:
        fd = os.open(commit_times_path(journal), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return records
    try:
        content = os.pread(fd, RING_SLOTS * _RECORD.size, 0)
    finally:
        os.close(fd)
    records.frombytes(content[: len(content) // _RECORD.size * _RECORD.size])
    return records


def _next_slot(records: "array[int]") -> int:
    """Return the slot after the record with the greatest revision."""
    revisions = records[::2]
    return (revisions.index(max(revisions)) + 1) % RING_SLOTS if revisions else 0
