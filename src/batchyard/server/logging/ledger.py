"""The decision ledger: the controllers' decisions with reasons, in a SQLite file that a background thread writes.

Beyond a limit, the oldest entries are deleted. A damaged file is renamed and replaced by an empty one,
because the ledger only explains decisions. A power loss may lose the last entries.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from batchyard.api.meta import Key
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Instant
from batchyard.interfaces.controller import DecisionRecord, LedgerQuery, LedgerUnreadable, QueryTooBroad
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import gauge_text
from batchyard.server.platform.group_commit import BackgroundThread
from batchyard.store.journal_file import DAMAGE_ERRORS, convert_sqlite_errors, is_disk_error, journal_error

#: Maximum decisions in the ledger.
ENTRIES_MAX: Final = 1_000_000
#: A query is aborted after this many thousand steps of SQLite, about half a second.
_THOUSAND_STEPS_MAX: Final = 20_000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS decisions (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, component TEXT NOT NULL, kind TEXT NOT NULL,
    namespace TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    details BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS about ON decisions (kind, namespace, name);
"""
_COLUMNS: Final = "number, at, component, kind, namespace, name, type, reason, message, details"
_ROWS_AT_ONCE: Final = 64
_INSERT_STATEMENTS: Final = [
    f"INSERT INTO decisions ({_COLUMNS}) VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)'] * count)}"  # noqa: S608 - only constants
    for count in range(1, _ROWS_AT_ONCE + 1)
]
#: The size of SQLite's statement cache, so that each statement is prepared once.
_STATEMENT_CACHE_SIZE: Final = _ROWS_AT_ONCE + 16
_encode = msgspec.json.Encoder().encode
_decode_details = msgspec.json.Decoder(dict[str, Any]).decode


class LedgerFile:
    """An open file of the decision ledger: one SQLite connection for writing, and one for reading."""

    def __init__(self, path: Path, entries_max: int = ENTRIES_MAX) -> None:
        """Open or create a ledger file that keeps about `entries_max` decisions.

        A damaged file is renamed and replaced. Raises OSError or JournalError if the file cannot be opened.
        """
        self._path = path
        self._entries_max = entries_max
        #: Whether the file was damaged, and was therefore renamed and replaced.
        self.was_damaged = False
        try:
            self._db = _open_database(path)
        except DAMAGE_ERRORS as error:
            if isinstance(error, sqlite3.Error) and is_disk_error(error):
                raise journal_error(path, error) from error
            path.replace(path.with_name(f"{path.name}.damaged"))
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            with convert_sqlite_errors(path):
                self._db = _open_database(path)
            self.was_damaged = True
        with convert_sqlite_errors(path):
            self._reader = _open_database(path)
        first_number, last_number = self._decision_number_range()
        self._entry_count = last_number - first_number + 1 if last_number else 0
        #: The number of the last decision in the file; 0 if there is none.
        self.last_number = last_number

    def append(self, records: Sequence[DecisionRecord]) -> None:
        """Add decisions in one transaction; delete the oldest ones if the file then exceeds its limit by over a tenth.

        Raises sqlite3.Error.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._insert_records(records)
            new_count = self._entry_count + len(records)
            if new_count > self._entries_max + self._entries_max // 10:
                self._db.execute("DELETE FROM decisions WHERE number <= ?", (records[-1].number - self._entries_max,))
                new_count = self._entries_max
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        self._entry_count = new_count

    def _insert_records(self, records: Sequence[DecisionRecord]) -> None:
        """Insert many decisions with each SQL statement, because each statement releases and reacquires the GIL."""
        for begin in range(0, len(records), _ROWS_AT_ONCE):
            record_batch = records[begin : begin + _ROWS_AT_ONCE]
            self._db.execute(_INSERT_STATEMENTS[len(record_batch) - 1], _insert_parameters(record_batch))

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """Return the newest decisions that match a query, up to its limit, oldest first.

        Raises QueryTooBroad or LedgerUnreadable.
        """
        order_clause = f"ORDER BY number DESC LIMIT {max(0, query.limit)}"
        remaining_steps = iter(range(_THOUSAND_STEPS_MAX))
        with self._read_errors():
            where_clause, sql_parameters = self._where_conditions(query)
            self._reader.set_progress_handler(lambda: next(remaining_steps, None) is None, 1000)
            try:
                statement = f"SELECT {_COLUMNS} FROM decisions {where_clause} {order_clause}"  # noqa: S608 - as above
                records = [_record_of_row(row) for row in self._reader.execute(statement, sql_parameters)]
            finally:
                self._reader.set_progress_handler(None, 0)
        return records[::-1]

    def get(self, number: int) -> DecisionRecord | None:
        """Return the decision with this number; None if the file does not contain it. Raises LedgerUnreadable."""
        with self._read_errors():
            row = self._reader.execute(f"SELECT {_COLUMNS} FROM decisions WHERE number = ?", (number,)).fetchone()  # noqa: S608 - as above
            return None if row is None else _record_of_row(row)

    def close(self) -> None:
        """Close both SQLite connections of the ledger file."""
        self._reader.close()
        self._db.close()

    def _decision_number_range(self) -> tuple[int, int]:
        return _decision_number_range_in(self._reader)

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        try:
            yield
        except (*DAMAGE_ERRORS, msgspec.DecodeError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise QueryTooBroad from error
            message = f"the decision ledger {self._path} cannot be read: {error}"
            raise LedgerUnreadable(f"{message}; stop the platform, move the file away and start it again") from error

    def _where_conditions(self, query: LedgerQuery) -> tuple[str, Sequence[Any]]:
        conditions = [*_field_conditions(query)]
        if query.regarding:
            key_clause = "(kind = ? AND namespace = ? AND name GLOB ?)"
            conditions.append(
                (" OR ".join([key_clause] * len(query.regarding)), [part for key in query.regarding for part in key])
            )
        if query.since is not None:
            conditions.append(("number >= ?", [self._first_decision_number_since(query.since)]))
        if query.until is not None:
            conditions.append(("number < ?", [self._first_decision_number_since(query.until)]))
        where_clause = " AND ".join(f"({condition})" for condition, _ in conditions)
        return f"WHERE {where_clause}" if where_clause else "", [value for _, values in conditions for value in values]

    def _first_decision_number_since(self, instant: Instant) -> int:
        """Return the number of the first decision at or after an instant; without one, a number after the last."""
        low, last_number = self._decision_number_range()
        high = last_number + 1
        while low < high:
            middle_number = (low + high) // 2
            row = self._reader.execute(
                "SELECT number, at FROM decisions WHERE number >= ? ORDER BY number LIMIT 1", (middle_number,)
            ).fetchone()
            if row is None or row[1] >= instant:
                high = middle_number
            else:
                low = row[0] + 1
        return low


def _open_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENT_CACHE_SIZE)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_SCHEMA)
        _decision_number_range_in(db)
    except DAMAGE_ERRORS:
        db.close()
        raise
    return db


def _decision_number_range_in(db: sqlite3.Connection) -> tuple[int, int]:
    # One SELECT for both would make SQLite scan the whole table.
    (first_number,) = db.execute("SELECT min(number) FROM decisions").fetchone()
    (last_number,) = db.execute("SELECT max(number) FROM decisions").fetchone()
    return first_number or 0, last_number or 0


def _field_conditions(query: LedgerQuery) -> Iterator[tuple[str, Sequence[Any]]]:
    if query.kind:
        yield "kind = ?", [query.kind]
    if query.namespace:
        # Cluster-scoped objects are listed under the namespace of their Events.
        yield "namespace = ?" + (" OR namespace = ''" if query.namespace == "default" else ""), [query.namespace]
    if query.name:
        yield "name = ?", [query.name]
    if query.reason:
        yield "reason = ?", [query.reason]


def _insert_parameters(records: Sequence[DecisionRecord]) -> list[Any]:
    values: list[Any] = []
    previous_details: Mapping[str, Any] = {}
    encoded_details: bytes | None = None
    for number, at, component, regarding, type_, reason, message, details in records:
        if details is not previous_details:
            previous_details, encoded_details = details, _encode(details) if details else None
        values += (number, at, component, *regarding, type_, reason, message, encoded_details if details else None)
    return values


def _record_of_row(row: Sequence[Any]) -> DecisionRecord:
    number, at, component, kind, namespace, name, type_, reason, message, details = row
    decoded_details = {} if details is None else _decode_details(details)
    return DecisionRecord(number, at, component, Key(kind, namespace, name), type_, reason, message, decoded_details)


# Decision ledger of a running platform, with batched writes on a background thread.
#
# Queries also return decisions that are not written yet.


_LOG: Final = logging.getLogger("batchyard")
#: How long decisions are collected before they are written together.
_WRITE_DELAY: Final = 0.05  # seconds
#: Maximum unwritten decisions; the oldest ones beyond this number are dropped.
_UNWRITTEN_MAX: Final = 200_000


class LiveLedger:
    """The decision ledger of a running platform: its file, and the decisions that are not written yet."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._file = LedgerFile(path)
        if self._file.was_damaged:
            _LOG.error(
                "the decision ledger %s is damaged; renamed to %s.damaged and replaced by an empty one", path, path
            )
        #: The number of the last decision when the file was opened.
        self.last_number = self._file.last_number
        self._loop = loop
        self._writer = BackgroundThread(loop)
        self._unwritten_entries: list[DecisionRecord] = []
        self._writing_entries: list[DecisionRecord] = []
        self._is_write_scheduled = False
        #: The number of added decisions, and the number of lost ones.
        self._added_count = self._lost_count = 0

    def add_entry(self, entry: DecisionRecord) -> None:
        """Add a decision, whose number must be greater than the numbers of all earlier decisions."""
        self._added_count += 1
        self._unwritten_entries.append(entry)
        if not self._is_write_scheduled and not self._writing_entries:
            self._is_write_scheduled = True
            self._loop.call_later(_WRITE_DELAY, self._write)

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """Return the newest decisions that match a query, written or not, up to its limit, oldest first.

        Raises QueryTooBroad or LedgerUnreadable.
        """
        unwritten_matches = [
            entry for entry in (*self._writing_entries, *self._unwritten_entries) if _matches_query(entry, query)
        ]
        entries_by_number = {entry.number: entry for entry in (*self._file.find(query), *unwritten_matches)}
        return (
            [entries_by_number[number] for number in sorted(entries_by_number)][-query.limit :] if query.limit else []
        )

    def get(self, number: int) -> DecisionRecord | None:
        """Return the decision with this number, written or not; None if it does not exist or was deleted.

        Raises LedgerUnreadable.
        """
        unwritten_entries = (
            entry for entry in (*self._writing_entries, *self._unwritten_entries) if entry.number == number
        )
        return next(unwritten_entries, None) or self._file.get(number)

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the decision ledger, as Prometheus text."""
        unwritten_count = len(self._writing_entries) + len(self._unwritten_entries)
        values_by_name = {
            "entries_total": self._added_count,
            "lost_total": self._lost_count,
            "waiting": unwritten_count,
        }
        for name, value in values_by_name.items():
            yield gauge_text(metric(f"batchyard_ledger_{name}"), [((), value)])

    def close(self) -> None:
        """Write the remaining decisions, and close the ledger file."""
        self._writer.end()
        self._is_write_scheduled = True  # nothing more is written later
        if self._unwritten_entries:
            self._append_records(self._unwritten_entries)
            self._unwritten_entries = []
        self._file.close()

    def _write(self) -> None:
        self._is_write_scheduled = False
        if not self._unwritten_entries or self._writing_entries:
            return
        self._lost_count += max(0, len(self._unwritten_entries) - _UNWRITTEN_MAX)
        self._writing_entries, self._unwritten_entries = self._unwritten_entries[-_UNWRITTEN_MAX:], []
        self._writer.submit(partial(self._append_records, self._writing_entries), self._finish_write)

    def _finish_write(self, _error: Exception | None) -> None:
        self._writing_entries = []
        if self._unwritten_entries and not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._loop.call_later(_WRITE_DELAY, self._write)

    def _append_records(self, records: Sequence[DecisionRecord]) -> None:
        try:
            self._file.append(records)
        except sqlite3.Error as error:
            self._lost_count += len(records)
            lost_text = count_with_noun(len(records), "entry")
            _LOG.error("%s: %s could not be written: %s; check the free disk space", self._path, lost_text, error)


def _matches_query(entry: DecisionRecord, query: LedgerQuery) -> bool:
    kind, namespace, name = entry.regarding
    return (
        query.kind in {"", kind}
        and (query.namespace in {"", namespace} or (query.namespace == "default" and not namespace))
        and query.name in {"", name}
        and query.reason in {"", entry.reason}
        and (query.since is None or entry.at >= query.since)
        and (query.until is None or entry.at < query.until)
        and (not query.regarding or any(_matches_key(entry.regarding, key) for key in query.regarding))
    )


def _matches_key(key: Key, requested_key: Key) -> bool:
    """Return whether a key matches a requested key, whose name may end with `?` wildcards for one character each."""
    if (key.kind, key.namespace) != (requested_key.kind, requested_key.namespace):
        return False
    prefix = requested_key.name.rstrip("?")
    return key.name.startswith(prefix) and len(key.name) == len(requested_key.name)
