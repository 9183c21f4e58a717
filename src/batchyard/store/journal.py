"""The journal: the revisions of a store in one SQLite file, so that they outlive the process.

Every change is one row under its revision: which object, and what it is from there on, or that it is gone. Rows are
only added; compaction takes away those that a later row at or below its floor has replaced. So what is left gives the
objects as they are, and every change above the floor with what was there before it: watches go on after a restart.

Rows carry checksums, revisions above the floor have no gap, and the number of rows below is known; whatever does not
fit is told and never served. One process at a time has the file open. `append` is one transaction: what it was given is
there, all of it, once it returns, and none of it before. What that promise is worth is the choice of `Sync`:

    FULL     it survives the loss of power (one flush of the disk for each transaction)
    PROCESS  it survives the end of the process, however sudden; the loss of power may take the last transactions
"""

import sqlite3
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.ports.client import EventType, WatchEvent
from batchyard.store.log import Recovered

FORMAT: Final = 1
"""The version of the file's layout, in SQLite's `user_version`."""
APPLICATION: Final = 0x62617463
"""What tells our files from other SQLite files: its `application_id`."""

_TABLES: Final = """
CREATE TABLE revisions (
    revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    object BLOB, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE floor (revision INTEGER NOT NULL, rows INTEGER NOT NULL) STRICT;
INSERT INTO floor VALUES (0, 0);
"""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict).decode


class JournalError(Exception):
    """The file cannot be used; says why and what to do."""


class Sync(StrEnum):
    """What an acknowledged change survives."""

    FULL = "full"
    PROCESS = "process"


class Journal:
    """See the module. To be used by one thread at a time."""

    def __init__(self, path: Path, sync: Sync = Sync.FULL) -> None:
        """Open a file, made first if there is none."""
        self._path = path
        #: Rows that later ones have replaced, in order: the revision that did, and what it replaced.
        self._replaced: deque[tuple[int, int]] = deque()
        with self._told():
            if not path.exists():
                _make(path)
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            self._floor = self._open(sync)
        except JournalError:
            self._file.close()
            raise

    @property
    def floor(self) -> int:
        """The revision up to which what was replaced is gone."""
        return self._floor

    def recover(self) -> Recovered:
        """Read all there is. JournalError if anything does not fit."""
        self._replaced.clear()
        objects: dict[Key, Obj] = {}
        changes: list[WatchEvent] = []
        revision, below = self._floor, 0
        with self._told():
            for row in self._file.execute("SELECT * FROM revisions ORDER BY revision"):
                change = self._read(row, objects)
                if change.revision > self._floor:
                    if change.revision != revision + 1:
                        raise self._corrupt(f"revision {revision + 1} is missing")
                    revision = change.revision
                    changes.append(change)
                else:
                    below += 1
                self._note(change)
        if below != self._kept():
            raise self._corrupt(f"of the rows up to revision {self._floor} there are {below} and not {self._kept()}")
        return Recovered(revision, objects, changes)

    def append(self, changes: Sequence[WatchEvent]) -> None:
        """Keep changes, in one transaction. JournalError if that cannot be done: then none of them is kept."""
        with self._transaction():
            self._file.executemany("INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?)", map(_row, changes))
        for change in changes:
            self._note(change)

    def compact(self, floor: int) -> None:
        """Forget what was replaced by a revision up to this one."""
        gone = [(replaced,) for by, replaced in takewhile(lambda pair: pair[0] <= floor, self._replaced)]
        with self._transaction():
            self._file.executemany("DELETE FROM revisions WHERE revision = ?", gone)
            self._file.execute(
                "UPDATE floor SET revision = ?, rows = (SELECT count(*) FROM revisions WHERE revision <= ?)",
                (floor, floor),
            )
        self._floor = floor
        for _ in gone:
            self._replaced.popleft()

    def copy_to(self, path: Path) -> None:
        """Write all there is into a new file, while this one goes on being used."""
        with self._told():
            copy = sqlite3.connect(path)
            try:
                self._file.backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        """Use it no more."""
        self._file.close()

    # --- opening ---

    def _open(self, sync: Sync) -> int:
        """Take the file, and make sure that it is one of ours and whole; its floor."""
        with self._told():
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("COMMIT")
            self._file.execute(f"PRAGMA synchronous = {'FULL' if sync is Sync.FULL else 'NORMAL'}")
            (application,) = self._file.execute("PRAGMA application_id").fetchone()
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            (pages,) = self._file.execute("PRAGMA quick_check(1)").fetchone()
        if pages != "ok" or not self._path.stat().st_size:
            raise self._corrupt(pages)
        if application != APPLICATION:
            raise JournalError(f"{self._path}: this is no file of batchyard; choose another data directory")
        if version != FORMAT:
            raise JournalError(
                f"{self._path}: its format is {version} and not {FORMAT}; use the batchyard that wrote it"
            )
        with self._told():
            (floor,) = self._file.execute("SELECT revision FROM floor").fetchone()
        return int(floor)

    # --- reading ---

    def _read(self, row: tuple[int, str, str, str, bytes | None, int], objects: dict[Key, Obj]) -> WatchEvent:
        """A row as the change it was, taken into the objects."""
        revision, kind, namespace, name, text, checksum = row
        key = Key(kind, namespace, name)
        if checksum != _checksum(revision, key, text):
            raise self._corrupt(f"revision {revision} is not what was written")
        old = objects.get(key)
        if text is None:
            if old is None:
                raise self._corrupt(f'revision {revision} deletes {kind} "{key}", which is not there')
            del objects[key]
            return WatchEvent(EventType.DELETED, key, old, old, revision)
        objects[key] = obj = _decode(text)
        return WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key, obj, old, revision)

    def _note(self, change: WatchEvent) -> None:
        """Take note of the row that a change replaces; that something is gone need not be known for ever either."""
        if change.old is not None:
            self._replaced.append((change.revision, int(change.old["metadata"]["resourceVersion"])))
        if change.type is EventType.DELETED:
            self._replaced.append((change.revision, change.revision))

    def _kept(self) -> int:
        (rows,) = self._file.execute("SELECT rows FROM floor").fetchone()
        return int(rows)

    # --- what goes wrong ---

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._told():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._file.execute("COMMIT")
            finally:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors in words of ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                raise JournalError(f"{self._path}: another process has it open; end that one first") from error
            raise JournalError(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise self._corrupt(str(error)) from error

    def _corrupt(self, what: str) -> JournalError:
        return JournalError(f"{self._path} is damaged: {what}; restore a backup")


def _row(change: WatchEvent) -> tuple[int, str, str, str, bytes | None, int]:
    text = None if change.type is EventType.DELETED else _encode(change.obj)
    return change.revision, *change.key, text, _checksum(change.revision, change.key, text)


def _checksum(revision: int, key: Key, text: bytes | None) -> int:
    head = "\0".join((str(revision), *key)).encode()
    return zlib.crc32(b"\0gone" if text is None else text, zlib.crc32(head))


def _make(path: Path) -> None:
    """Make an empty journal. It gets its name when it is whole, so that half a file is never taken for a new one."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    file = sqlite3.connect(draft, isolation_level=None)
    try:
        file.execute("PRAGMA journal_mode = WAL")
        file.executescript(_TABLES)
        file.execute(f"PRAGMA application_id = {APPLICATION}")
        file.execute(f"PRAGMA user_version = {FORMAT}")
    finally:
        file.close()
    draft.rename(path)
