"""The file of a journal: its layout, its creation, and reading it with all checks.

Every row has a checksum, and so has the single row of `floor`. Revisions above the floor have no gap, and the number of
rows below it is stored. Any mismatch is reported. Reading changes nothing: a damaged file stays as found, including its
write-ahead log.
"""

import fcntl
import os
import sqlite3
import struct
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
from batchyard.store.memory import RecoveredStore

# --- commit mark ---
#
# The commit mark: a second record of the last acknowledged revision of a journal, and the lock on both.
#
# SQLite silently ends its write-ahead log at the first invalid frame, so one flipped bit could revert acknowledged
# changes. Therefore a mark is written after each transaction: the identity of the journal, and its last revision. A
# journal that ends before its mark has lost changes or is an older copy. A journal with another identity is a different
# one.
#
# The mark costs one system call and no flush. The end of the process cannot separate it from the journal. After a power
# loss it may be older than the journal, which weakens the check. With `Sync.FULL` it is never newer.


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


FORMAT: Final = 1
"""The version of the file's layout, in SQLite's `user_version`."""
APPLICATION: Final = 0x62617463
"""Distinguishes our files from other SQLite files: SQLite's `application_id`."""

BUSY_FOR: Final = 2.0
"""Seconds to wait for another process: the first to open the file after a crash recovers its log exclusively."""

_TABLES: Final = """
CREATE TABLE revisions (
    revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    object BLOB, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE floor (
    identity BLOB NOT NULL, revision INTEGER NOT NULL, rows INTEGER NOT NULL, checksum INTEGER NOT NULL
) STRICT;
"""
#: Faults of SQLite by primary result code: the description, and the remedy.
_FAULTS: Final = {
    sqlite3.SQLITE_BUSY: ("another process has it open", "end that one first"),
    sqlite3.SQLITE_LOCKED: ("another process has it open", "end that one first"),
    sqlite3.SQLITE_FULL: ("database or disk is full", "make room and start again"),
    sqlite3.SQLITE_IOERR: ("the disk refuses to read or write it", "look at the disk, and start again"),
    sqlite3.SQLITE_READONLY: ("it may not be written", "give its owner the right to, and start again"),
    sqlite3.SQLITE_CANTOPEN: (
        "unable to open database file",
        "check that it is readable and writable, that its folder exists, and that its path is shorter than 500 bytes",
    ),
}
#: The exceptions for a damaged file: SQLite's messages may contain bytes of the file that are not valid UTF-8.
DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
_decode = msgspec.json.Decoder(dict).decode


class CompactionFloor(NamedTuple):
    """The identity of the journal, its compacted revision, and the number of rows up to it."""

    identity: bytes
    revision: int
    rows: int


class JournalContents(NamedTuple):
    """The contents of a journal."""

    floor: CompactionFloor
    recovered: RecoveredStore
    #: Replaced rows in order: the replacing revision, and the replaced one.
    replaced: deque[tuple[int, int]]


def make_journal(path: Path) -> CompactionFloor:
    """Write an empty journal."""
    with journal_errors(path), closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.executescript(_TABLES)
        file.execute(f"PRAGMA application_id = {APPLICATION}")
        file.execute(f"PRAGMA user_version = {FORMAT}")
        floor = CompactionFloor(new_identity(file), 0, 0)
        file.execute("INSERT INTO floor VALUES (?, ?, ?, ?)", (*floor, floor_checksum(floor)))
    return floor


def new_identity(file: sqlite3.Connection) -> bytes:
    """Return a new random identity."""
    (identity,) = file.execute("SELECT randomblob(16)").fetchone()
    assert isinstance(identity, bytes), "randomblob returns bytes"
    return identity


def floor_over_all(file: sqlite3.Connection, identity: bytes, revision: int) -> CompactionFloor:
    """Return a floor at a revision above all rows."""
    (rows,) = file.execute("SELECT count(*) FROM revisions").fetchone()
    return CompactionFloor(identity, revision, int(rows))


def write_floor(file: sqlite3.Connection, floor: CompactionFloor) -> CompactionFloor:
    """Set the floor, within a transaction."""
    file.execute("UPDATE floor SET identity = ?, revision = ?, rows = ?, checksum = ?", (*floor, floor_checksum(floor)))
    return floor


def read_only(path: Path, *, is_alone: bool = False) -> sqlite3.Connection:
    """Open a read-only connection; `is_alone`: no process writes the file, and it has no write-ahead log."""
    options = "mode=ro&immutable=1" if is_alone else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{options}", uri=True, isolation_level=None, timeout=BUSY_FOR
    )


def read_journal(path: Path, *, is_alone: bool = False, reported_as: Path | None = None) -> JournalContents:
    """Return the contents of a file. JournalError if it is not a journal, or if a check fails.

    `reported_as` is the file to name in errors, of which this one is a copy.
    """
    name = path if reported_as is None else reported_as
    with journal_errors(name), closing(read_only(path, is_alone=is_alone)) as file:
        file.execute("BEGIN")
        _check_file(name, file)
        return _JournalReader(name, _floor(name, file)).read(file)


def reject_orphaned_log(path: Path) -> None:
    """Fail if a write-ahead log exists without its journal: SQLite would take it as the log of the new one."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        left = f"{log} exists without its journal and may hold its last changes"
        raise JournalError(f"{left}; put the journal back, or name another data directory")


def restored_draft(path: Path) -> Path:
    """Return the path of a restore in progress: not that of a new journal, so that an interrupted one is recognized."""
    return path.with_name(f"{path.name}.restored")


def reject_interrupted_restore(path: Path) -> None:
    """Fail if a restore was interrupted: an empty journal is not what the user asked for."""
    draft = restored_draft(path)
    if draft.exists():
        begun = f"{path.parent}: a restore was started here and not finished"
        raise JournalError(f"{begun}; run `batchyard restore` again, or remove {draft.name} to start empty")


def _check_file(path: Path, file: sqlite3.Connection) -> None:
    (application,) = file.execute("PRAGMA application_id").fetchone()
    (version,) = file.execute("PRAGMA user_version").fetchone()
    (pages,) = file.execute("PRAGMA quick_check(1)").fetchone()
    if pages != "ok" or not path.stat().st_size:
        raise damaged(path, str(pages))
    if application != APPLICATION:
        raise JournalError(f"{path}: this is not a batchyard file; choose another data directory")
    if version != FORMAT:
        raise JournalError(f"{path}: its format is {version}, not {FORMAT}; use the batchyard version that wrote it")


def _floor(path: Path, file: sqlite3.Connection) -> CompactionFloor:
    rows = file.execute("SELECT identity, revision, rows, checksum FROM floor").fetchall()
    if len(rows) != 1:
        raise damaged(path, f"it has {len(rows)} floor rows")
    *fields, checksum = rows[0]
    floor = CompactionFloor(*fields)
    if checksum != floor_checksum(floor):
        raise damaged(path, "the checksum of its floor does not match")
    return floor


class _JournalReader:
    """The state of reading a file row by row."""

    def __init__(self, path: Path, floor: CompactionFloor) -> None:
        self._path = path
        self._floor = floor
        self._objects: dict[Key, Obj] = {}
        self._replaced: deque[tuple[int, int]] = deque()

    def read(self, file: sqlite3.Connection) -> JournalContents:
        """Read all rows in order."""
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
            mismatch = f"up to revision {floor.revision} it has {below} rows, not {floor.rows}"
            raise damaged(self._path, mismatch)
        return JournalContents(floor, RecoveredStore(revision, self._objects, changes), self._replaced)

    def _change(self, row: tuple[int, str, str, str, bytes | None, int]) -> WatchEvent:
        """Return a row as the change it was, and apply it to the objects."""
        revision, kind, namespace, name, text, checksum = row
        key = Key(kind, namespace, name)
        if checksum != row_checksum(revision, key, text):
            raise damaged(self._path, f"the checksum of revision {revision} does not match")
        old = self._objects.get(key)
        if text is None:
            if old is None:
                raise damaged(self._path, f'revision {revision} deletes {kind} "{key}", which does not exist')
            del self._objects[key]
            return WatchEvent(EventType.DELETED, key, old, old, revision)
        self._objects[key] = obj = _decode(text)
        return WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key, obj, old, revision)


def note_replaced(replaced: deque[tuple[int, int]], change: WatchEvent) -> None:
    """Record the row that a change replaces; the row of a deletion is itself replaceable."""
    if change.old is not None:
        replaced.append((change.revision, int(change.old["metadata"]["resourceVersion"])))
    if change.type is EventType.DELETED:
        replaced.append((change.revision, change.revision))


def row_checksum(revision: int, key: Key, text: bytes | None) -> int:
    """Return the checksum of a row."""
    head = "\0".join((str(revision), *key)).encode()
    return zlib.crc32(b"\0gone" if text is None else text, zlib.crc32(head))


def floor_checksum(floor: CompactionFloor) -> int:
    """Return the checksum of the floor."""
    return zlib.crc32(f"{floor.revision} {floor.rows}".encode(), zlib.crc32(floor.identity))


@contextmanager
def journal_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into JournalError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise journal_error(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error
    except UnicodeDecodeError as error:
        raise damaged(path, error.object.decode("utf-8", "replace")) from error


def journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """Return the error for a fault that is not damage."""
    what, remedy = _FAULTS.get(_code_of(error), (str(error), ""))
    return JournalError(f"{path}: {what}; {remedy}" if remedy else f"{path}: {what}")


def is_disk_error(error: sqlite3.Error) -> bool:
    """Report whether an error is about access or disk space, not about the contents."""
    return _code_of(error) in _FAULTS


def _code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def damaged(path: Path, what: str) -> JournalError:
    """Return the error for a damaged file."""
    return JournalError(f"{path} is damaged: {what}; restore a backup")
