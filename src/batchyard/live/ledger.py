"""The decision ledger of a platform that runs: whatever controllers record goes into it, with what it rested on.

Entries gather for a moment, and a thread writes them. A query sees those that gather, too. What is told again and again
of one object is one entry. At the level `info` of the log `batchyard.decisions` each entry is a line, with its number.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Final

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.base.remembered import Remembered
from batchyard.controllers.events import component_of
from batchyard.controllers.runner import EventSink
from batchyard.live.writer import Writer
from batchyard.ports.controller import EventRecord
from batchyard.ports.decisions import DecisionRecord, LedgerQuery
from batchyard.store.ledger import LedgerFile

LOG: Final = logging.getLogger("batchyard.decisions")
_FAULTS: Final = logging.getLogger("batchyard")
#: Entries gather for so long.
_GATHER: Final = 0.05  # seconds
#: Beyond so many that wait to be written the oldest are lost.
_WAITING_MAX: Final = 200_000


class LiveLedger:
    """See the module. An EventSink, before another."""

    def __init__(self, file: LedgerFile, loop: asyncio.AbstractEventLoop, sink: EventSink) -> None:
        self._file = file
        self._loop = loop
        self._sink = sink
        self._writer = Writer(loop)
        self._number = file.last
        self._gathered: list[DecisionRecord] = []
        self._writing: list[DecisionRecord] = []
        self._is_due = False
        self._told: Remembered[Key, tuple[str, str]] = Remembered()

    def __call__(self, now: Instant, controller: str, record: EventRecord) -> None:
        """Keep what a controller records, and tell it on."""
        self._sink(now, controller, record)
        regarding, type_, reason, message, details = record
        if self._told.recall(regarding) == (reason, message):
            return
        self._told.remember(regarding, (reason, message))
        self._number += 1
        told = {} if details is None else details()
        entry = DecisionRecord(self._number, now, component_of(controller), regarding, type_, reason, message, told)
        self._gathered.append(entry)
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("%s %s: %s", reason, regarding, message, extra={"decision": entry})
        if not self._is_due and not self._writing:
            self._is_due = True
            self._loop.call_later(_GATHER, self._write)

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """The entries asked for, in order, those that are yet to be written too."""
        recent = [each for each in (*self._writing, *self._gathered) if _is_asked_for(each, query)]
        known = {each.number: each for each in (*self._file.find(query), *recent)}
        return [known[number] for number in sorted(known)][-query.limit :] if query.limit else []

    def get(self, number: int) -> DecisionRecord | None:
        """The entry of that number, if it is still kept."""
        waiting = (each for each in (*self._writing, *self._gathered) if each.number == number)
        return next(waiting, None) or self._file.get(number)

    def close(self) -> None:
        """Write what is left, and let the file go."""
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
        self._writing, self._gathered = self._gathered[-_WAITING_MAX:], []
        self._writer.do(partial(self._append, self._writing)).add_done_callback(self._written)

    def _written(self, _done: "asyncio.Future[None]") -> None:
        self._writing = []
        if self._gathered and not self._is_due:
            self._is_due = True
            self._loop.call_later(_GATHER, self._write)

    def _append(self, records: Sequence[DecisionRecord]) -> None:
        """Write entries; a disk that is full stops nobody here, but is told."""
        try:
            self._file.append(records)
        except sqlite3.Error as error:
            _FAULTS.error("%d entries of the decision ledger are lost: %s", len(records), error)


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
    """Whether it is the one asked for, whose name may end with `?`s."""
    if (key.kind, key.namespace) != (asked.kind, asked.namespace):
        return False
    known = asked.name.rstrip("?")
    return key.name.startswith(known) and len(key.name) == len(asked.name)
