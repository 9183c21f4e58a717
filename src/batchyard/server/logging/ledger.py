"""Decision ledger of a running platform, with batched writes on a background thread.

Queries also return entries that are not written yet.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from batchyard.api.meta import Key
from batchyard.interfaces.controller import DecisionRecord, LedgerQuery
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import text_of
from batchyard.server.platform.group_commit import BackgroundThread
from batchyard.store.ledger import LedgerFile

_LOG: Final = logging.getLogger("batchyard")
#: How long entries are batched.
_GATHER: Final = 0.05  # seconds
#: Maximum unwritten entries. Beyond it the oldest are dropped.
_WAITING_MAX: Final = 200_000


class LiveLedger:
    """The ledger file, and the entries that are not written yet."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._file = LedgerFile(path)
        if self._file.was_damaged:
            _LOG.error("%s was damaged: it is renamed, and a new one is started", path)
        #: The number of the last entry when the file was opened.
        self.last = self._file.last
        self._loop = loop
        self._writer = BackgroundThread(loop)
        self._gathered: list[DecisionRecord] = []
        self._writing: list[DecisionRecord] = []
        self._is_due = False
        #: The number of entries, and of those that were lost.
        self._entries = self._lost = 0

    def keep(self, entry: DecisionRecord) -> None:
        """Add an entry, whose number must be greater than all before."""
        self._entries += 1
        self._gathered.append(entry)
        if not self._is_due and not self._writing:
            self._is_due = True
            self._loop.call_later(_GATHER, self._write)

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """Return the matching entries in order, including unwritten ones."""
        recent = [each for each in (*self._writing, *self._gathered) if _is_asked_for(each, query)]
        known = {each.number: each for each in (*self._file.find(query), *recent)}
        return [known[number] for number in sorted(known)][-query.limit :] if query.limit else []

    def get(self, number: int) -> DecisionRecord | None:
        """Return the entry with a number, or None if it is no longer kept."""
        waiting = (each for each in (*self._writing, *self._gathered) if each.number == number)
        return next(waiting, None) or self._file.get(number)

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the ledger."""
        waiting = len(self._writing) + len(self._gathered)
        figures = {"entries_total": self._entries, "lost_total": self._lost, "waiting": waiting}
        for name, value in figures.items():
            yield text_of(metric(f"batchyard_ledger_{name}"), [((), value)])

    def close(self) -> None:
        """Write the remaining entries, and close the file."""
        self._writer.end()
        self._is_due = True  # nothing more is written later
        if self._gathered:
            self._append(self._gathered)
            self._gathered = []
        self._file.close()

    def _write(self) -> None:
        self._is_due = False
        if not self._gathered or self._writing:
            return
        self._lost += max(0, len(self._gathered) - _WAITING_MAX)
        self._writing, self._gathered = self._gathered[-_WAITING_MAX:], []
        self._writer.do(partial(self._append, self._writing), self._written)

    def _written(self, _done: Exception | None) -> None:
        self._writing = []
        if self._gathered and not self._is_due:
            self._is_due = True
            self._loop.call_later(_GATHER, self._write)

    def _append(self, records: Sequence[DecisionRecord]) -> None:
        """Write entries. On errors they are lost and the error is logged."""
        try:
            self._file.append(records)
        except sqlite3.Error as error:
            self._lost += len(records)
            _LOG.error("%d entries of the decision ledger are lost: %s", len(records), error)


def _is_asked_for(entry: DecisionRecord, query: LedgerQuery) -> bool:
    kind, namespace, name = entry.regarding
    return (
        query.kind in {"", kind}
        and (query.namespace in {"", namespace} or (query.namespace == "default" and not namespace))
        and query.name in {"", name}
        and query.reason in {"", entry.reason}
        and (query.since is None or entry.at >= query.since)
        and (query.until is None or entry.at < query.until)
        and (not query.about or any(_is_like(entry.regarding, key) for key in query.about))
    )


def _is_like(key: Key, asked: Key) -> bool:
    """Whether a key matches the requested one, whose name may end with `?` wildcards of one character each."""
    if (key.kind, key.namespace) != (asked.kind, asked.namespace):
        return False
    known = asked.name.rstrip("?")
    return key.name.startswith(known) and len(key.name) == len(asked.name)
