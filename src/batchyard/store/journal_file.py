"""The file of a journal: its layout, how one is made, and how all of one is read and checked.

Every row has a checksum, and so has the one row of `floor`; revisions above the floor have no gap, and the number of
rows below it is known. Whatever does not fit is told. Reading changes nothing: what is damaged stays as it was found,
the write-ahead log beside it included.
"""

import os
import sqlite3
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.commit_mark import JournalError
from batchyard.store.log import Recovered

FORMAT: Final = 1
"""The version of the file's layout, in SQLite's `user_version`."""
APPLICATION: Final = 0x62617463
"""What tells our files from other SQLite files: its `application_id`."""

BUSY_FOR: Final = 2.0
"""Seconds to wait for another who has it open: whoever opens it first after a crash puts its log in order, alone."""

_TABLES: Final = """
CREATE TABLE revisions (
    revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    object BLOB, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE floor (
    identity BLOB NOT NULL, revision INTEGER NOT NULL, rows INTEGER NOT NULL, checksum INTEGER NOT NULL
) STRICT;
"""
#: What SQLite cannot do, by its primary result code, and what to do about it.
_FAULTS: Final = {
    sqlite3.SQLITE_BUSY: ("another process has it open", "end that one first"),
    sqlite3.SQLITE_LOCKED: ("another process has it open", "end that one first"),
    sqlite3.SQLITE_FULL: ("database or disk is full", "make room and start again"),
    sqlite3.SQLITE_IOERR: ("the disk refuses to read or write it", "look at the disk, and start again"),
    sqlite3.SQLITE_READONLY: ("it may not be written", "give its owner the right to, and start again"),
    sqlite3.SQLITE_CANTOPEN: (
        "unable to open database file",
        "see that it may be read and written, that its folder is there, and that its path is shorter than 500 bytes",
    ),
}
#: What tells that a file is damaged: SQLite says so in words that it read there, which need be no text at all.
DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
_decode = msgspec.json.Decoder(dict).decode


class Floor(NamedTuple):
    """Which journal it is, the revision up to which what was replaced is gone, and how many rows there are up to it."""

    identity: bytes
    revision: int
    rows: int


class Contents(NamedTuple):
    """All that a journal holds."""

    floor: Floor
    recovered: Recovered
    #: Rows that later ones have replaced, in order: the revision that did, and what it replaced.
    replaced: deque[tuple[int, int]]


def make_journal(path: Path) -> Floor:
    """Write an empty journal."""
    with told(path), closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.executescript(_TABLES)
        file.execute(f"PRAGMA application_id = {APPLICATION}")
        file.execute(f"PRAGMA user_version = {FORMAT}")
        floor = Floor(new_identity(file), 0, 0)
        file.execute("INSERT INTO floor VALUES (?, ?, ?, ?)", (*floor, floor_checksum(floor)))
    return floor


def new_identity(file: sqlite3.Connection) -> bytes:
    """What no other journal is called."""
    (identity,) = file.execute("SELECT randomblob(16)").fetchone()
    assert isinstance(identity, bytes), "SQLite says so"
    return identity


def floor_over_all(file: sqlite3.Connection, identity: bytes, revision: int) -> Floor:
    """A floor at a revision that is above all rows."""
    (rows,) = file.execute("SELECT count(*) FROM revisions").fetchone()
    return Floor(identity, revision, int(rows))


def write_floor(file: sqlite3.Connection, floor: Floor) -> Floor:
    """Set the floor, within a transaction."""
    file.execute("UPDATE floor SET identity = ?, revision = ?, rows = ?, checksum = ?", (*floor, floor_checksum(floor)))
    return floor


def read_only(path: Path, *, is_alone: bool = False) -> sqlite3.Connection:
    """A connection that changes nothing; `is_alone`: nobody writes the file, and no log lies beside it."""
    options = "mode=ro&immutable=1" if is_alone else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{options}", uri=True, isolation_level=None, timeout=BUSY_FOR
    )


def read_journal(path: Path, *, is_alone: bool = False, told_as: Path | None = None) -> Contents:
    """All that is in a file. JournalError if it is none of ours, or if anything does not fit.

    `told_as` is the file of which it is a copy.
    """
    name = path if told_as is None else told_as
    with told(name), closing(read_only(path, is_alone=is_alone)) as file:
        file.execute("BEGIN")
        _check_file(name, file)
        return _Reading(name, _floor(name, file)).read(file)


def refuse_log_of_another(path: Path) -> None:
    """Refuse to give a new journal a name beside which a log lies: SQLite would take it for the new one's."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        left = f"{log} is there without its journal, and may hold what that was told last"
        raise JournalError(f"{left}; put the journal back, or name another data directory")


def restored_draft(path: Path) -> Path:
    """What a restore writes until it is whole: by another name than a new journal's, to tell who was broken off."""
    return path.with_name(f"{path.name}.restored")


def refuse_half_a_restore(path: Path) -> None:
    """Refuse to begin with nothing where a restore was broken off: whoever asked for it has not got what he wanted."""
    draft = restored_draft(path)
    if draft.exists():
        begun = f"{path.parent}: a restore was begun here and not ended"
        raise JournalError(f"{begun}; say `batchyard restore` again, or remove {draft.name} to begin with nothing")


def _check_file(path: Path, file: sqlite3.Connection) -> None:
    (application,) = file.execute("PRAGMA application_id").fetchone()
    (version,) = file.execute("PRAGMA user_version").fetchone()
    (pages,) = file.execute("PRAGMA quick_check(1)").fetchone()
    if pages != "ok" or not path.stat().st_size:
        raise damaged(path, str(pages))
    if application != APPLICATION:
        raise JournalError(f"{path}: this is no file of batchyard; choose another data directory")
    if version != FORMAT:
        raise JournalError(f"{path}: its format is {version} and not {FORMAT}; use the batchyard that wrote it")


def _floor(path: Path, file: sqlite3.Connection) -> Floor:
    rows = file.execute("SELECT identity, revision, rows, checksum FROM floor").fetchall()
    if len(rows) != 1:
        raise damaged(path, f"it has {len(rows)} floors")
    *fields, checksum = rows[0]
    floor = Floor(*fields)
    if checksum != floor_checksum(floor):
        raise damaged(path, "its floor is not what was written")
    return floor


class _Reading:
    """One reading of a file, row by row."""

    def __init__(self, path: Path, floor: Floor) -> None:
        self._path = path
        self._floor = floor
        self._objects: dict[Key, Obj] = {}
        self._replaced: deque[tuple[int, int]] = deque()

    def read(self, file: sqlite3.Connection) -> Contents:
        """All rows in order."""
        floor, changes, below = self._floor, list[WatchEvent](), 0
        revision = floor.revision
        for row in file.execute("SELECT * FROM revisions ORDER BY revision"):
            change = self._change(row)
            if change.revision > floor.revision:
                if change.revision != revision + 1:
                    raise damaged(self._path, f"revision {revision + 1} is missing")
                revision = change.revision
                changes.append(change)
            else:
                below += 1
            note_replaced(self._replaced, change)
        if below != floor.rows:
            told_rows = f"of the rows up to revision {floor.revision} there are {below} and not {floor.rows}"
            raise damaged(self._path, told_rows)
        return Contents(floor, Recovered(revision, self._objects, changes), self._replaced)

    def _change(self, row: tuple[int, str, str, str, bytes | None, int]) -> WatchEvent:
        """A row as the change it was, taken into the objects."""
        revision, kind, namespace, name, text, checksum = row
        key = Key(kind, namespace, name)
        if checksum != row_checksum(revision, key, text):
            raise damaged(self._path, f"revision {revision} is not what was written")
        old = self._objects.get(key)
        if text is None:
            if old is None:
                raise damaged(self._path, f'revision {revision} deletes {kind} "{key}", which is not there')
            del self._objects[key]
            return WatchEvent(EventType.DELETED, key, old, old, revision)
        self._objects[key] = obj = _decode(text)
        return WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key, obj, old, revision)


def note_replaced(replaced: deque[tuple[int, int]], change: WatchEvent) -> None:
    """Take note of the row that a change replaces; that something is gone need not be known for ever either."""
    if change.old is not None:
        replaced.append((change.revision, int(change.old["metadata"]["resourceVersion"])))
    if change.type is EventType.DELETED:
        replaced.append((change.revision, change.revision))


def row_checksum(revision: int, key: Key, text: bytes | None) -> int:
    """The checksum of a row."""
    head = "\0".join((str(revision), *key)).encode()
    return zlib.crc32(b"\0gone" if text is None else text, zlib.crc32(head))


def floor_checksum(floor: Floor) -> int:
    """The checksum of the floor."""
    return zlib.crc32(f"{floor.revision} {floor.rows}".encode(), zlib.crc32(floor.identity))


@contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors in words of ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise told_of(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error
    except UnicodeDecodeError as error:
        raise damaged(path, error.object.decode("utf-8", "replace")) from error


def told_of(path: Path, error: sqlite3.Error) -> JournalError:
    """What SQLite cannot do to a file that is as it was written."""
    what, remedy = _FAULTS.get(_code_of(error), (str(error), ""))
    return JournalError(f"{path}: {what}; {remedy}" if remedy else f"{path}: {what}")


def is_of_the_disk(error: sqlite3.Error) -> bool:
    """Whether it is about who may read and write a file, and room for it, and nothing of what it holds."""
    return _code_of(error) in _FAULTS


def _code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def damaged(path: Path, what: str) -> JournalError:
    """The file is not what was written."""
    return JournalError(f"{path} is damaged: {what}; restore a backup")
