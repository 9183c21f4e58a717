"""The file format of the store's journal: commit mark, SQLite tables, creation, and reading with verification.

Each row of an object change has a checksum, and so has the single row of the table `floor`, which stores the compacted
revision and the number of rows up to it. The revisions above the compacted one have no gap. Any mismatch is reported.
Reading changes nothing: a damaged file stays as found, including its write-ahead log.
"""

import errno
import fcntl
import os
import re
import sqlite3
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from batchyard.api.conversion import SharedParts
from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.memory import RecoveredStore

# The commit mark: a second record of the last acknowledged revision of a journal, and the lock on both.
#
# SQLite silently ends its write-ahead log at the first invalid frame, so one flipped bit could revert acknowledged
# changes. Therefore a mark is written after each transaction: the identity of the journal, and its last revision. A
# journal that ends before its mark has lost changes or is an older copy. A journal with another identity is a different
# one.
#
# The mark costs one system call and no flush. The end of the process cannot separate it from the journal. After a power
# loss it may be older than the journal, which weakens the check. With `SyncMode.FULL` it is never newer.


_COMMIT_RECORD_STRUCT: Final = struct.Struct("<16sQ")
_CHECKSUM_STRUCT: Final = struct.Struct("<I")
_COMMIT_MARK_LENGTH: Final = _COMMIT_RECORD_STRUCT.size + _CHECKSUM_STRUCT.size
#: How often the lock is tried while other processes only test it, and the seconds between two attempts.
_LOCK_ATTEMPTS: Final = 200
_LOCK_RETRY_SECONDS: Final = 0.01
_COPY_BYTES: Final = 1 << 20
#: The layout of SQLite's files: pages, and the headers of a write-ahead log and of its frames.
_PAGE_BYTES: Final = 4096
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_CHECKSUM_PAIR_STRUCT: Final = struct.Struct(">II")
#: So many bytes of a row are in one piece, in its page.
_ROW_SEARCH_BYTES: Final = 300
_PAGE_NUMBER: Final = re.compile(r"[Pp]age (\d+)")


class JournalError(Exception):
    """The journal file cannot be used; the message contains the reason, and the remedy if one is known."""


class StandbyLostError(JournalError):
    """The primary has no answer of its standby, which may take over, so that the primary must not serve."""

    #: Whether the process ends, because it got a termination signal as well.
    is_final = False


class SupersededError(JournalError):
    """Another platform has taken over the data, so that this one must not serve."""


class CommitRecord(NamedTuple):
    """The content of a commit mark file: the random identity of its journal, and the last acknowledged revision."""

    identity: bytes
    revision: int


class DamagedCommitMarkError(Exception):
    """The commit mark file of a journal has a wrong length or checksum."""


class CommitMark:
    """The open commit mark file of a journal. The file holds a CommitRecord; a flock on the file locks the journal."""

    def __init__(self, journal: Path) -> None:
        path = commit_mark_path(journal)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(
                f"{path}: {error.strerror}; check that its folder exists and that both are writable"
            ) from error
        try:
            _lock_exclusively(self._fd)
        except OSError as error:
            os.close(self._fd)
            raise JournalError(f"{journal}: another process has the journal open; stop that process first") from error

    def read(self) -> CommitRecord | None:
        """Return the record; None if the file is empty. Raises DamagedCommitMarkError if the record is invalid."""
        return _read_commit_record_from(self._fd)

    def write(self, commit_record: CommitRecord) -> None:
        """Overwrite the commit mark file with a record, without a flush. Raises OSError if that fails."""
        packed_record = _COMMIT_RECORD_STRUCT.pack(*commit_record)
        written_length = os.pwrite(self._fd, packed_record + _CHECKSUM_STRUCT.pack(zlib.crc32(packed_record)), 0)
        if written_length != _COMMIT_MARK_LENGTH:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        """Flush the commit mark file to the disk (fsync)."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the commit mark file. This releases the journal's lock, which is a lock on this file."""
        os.close(self._fd)


def _lock_exclusively(fd: int) -> None:
    """Lock an open commit mark file. Raises BlockingIOError if it is locked.

    `is_journal_open` takes a shared lock for a moment. Such a lock is no reason to fail, so try again.
    """
    for _ in range(_LOCK_ATTEMPTS):
        if _try_lock(fd, fcntl.LOCK_EX):
            return
        if not _try_lock(fd, fcntl.LOCK_SH):
            break
        fcntl.flock(fd, fcntl.LOCK_UN)
        Event().wait(_LOCK_RETRY_SECONDS)
    raise BlockingIOError


def _try_lock(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def commit_mark_path(journal: Path) -> Path:
    """Return the path of a journal's commit mark, the file with its last acknowledged revision."""
    return journal.with_suffix(".mark")


def is_journal_open(journal: Path) -> bool:
    """Return whether a process has the journal file open; False if its commit mark file cannot be opened."""
    try:
        fd = os.open(commit_mark_path(journal), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def wait_until_journal_closed(journal: Path) -> None:
    """Wait until no process has the journal file open. Raises FileNotFoundError without a commit mark file."""
    fd = os.open(commit_mark_path(journal), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def read_commit_record(journal: Path) -> CommitRecord | None:
    """Return the commit record of a journal, which may be open; None if its commit mark file is missing or empty.

    Raises DamagedCommitMarkError if the commit mark file is damaged.
    """
    try:
        fd = os.open(commit_mark_path(journal), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _read_commit_record_from(fd)
    finally:
        os.close(fd)


def rename_durably(draft_path: Path, path: Path) -> None:
    """Rename a complete file to `path`, so that the new name survives a power loss."""
    draft_path.rename(path)
    flush_folder(path)


def flush_folder(path: Path) -> None:
    """Flush the folder of a file to the disk, so that the names of its files survive a power loss."""
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


def rewrite_log(path: Path) -> None:
    """Write the bytes of a journal's write-ahead log again, and flush them and the folder. Raises OSError.

    After a failed flush, Linux serves pages from its cache that are not on the disk, and the next flush succeeds
    without writing them. A log that another process left must therefore not be extended before it is written again.
    SQLite ignores errors when it flushes the folder of a new log.
    """
    fd = os.open(path.with_name(f"{path.name}-wal"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        offset = 0
        while chunk := os.pread(fd, _COPY_BYTES, offset):
            offset += os.pwrite(fd, chunk, offset)
        os.fsync(fd)
    finally:
        os.close(fd)
    flush_folder(path)


def _read_commit_record_from(fd: int) -> CommitRecord | None:
    record_bytes = os.pread(fd, _COMMIT_MARK_LENGTH + 1, 0)
    if not record_bytes:
        return None
    packed_record, checksum = record_bytes[: _COMMIT_RECORD_STRUCT.size], record_bytes[_COMMIT_RECORD_STRUCT.size :]
    if len(record_bytes) != _COMMIT_MARK_LENGTH or checksum != _CHECKSUM_STRUCT.pack(zlib.crc32(packed_record)):
        raise DamagedCommitMarkError
    return CommitRecord(*_COMMIT_RECORD_STRUCT.unpack(packed_record))


JOURNAL_FORMAT: Final = 1
"""The version of the file's layout, in SQLite's `user_version`."""
JOURNAL_APPLICATION_ID: Final = 0x62617463
"""SQLite's `application_id` of journal files, which distinguishes them from other SQLite files."""

BUSY_TIMEOUT_SECONDS: Final = 2.0
"""Seconds to wait for another process: the first one to open the file after a crash locks it for recovery."""

_CREATE_TABLES_SQL: Final = """
CREATE TABLE revisions (
    revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    object BLOB, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE floor (
    identity BLOB NOT NULL, revision INTEGER NOT NULL, rows INTEGER NOT NULL, checksum INTEGER NOT NULL
) STRICT;
"""
#: Faults of SQLite by primary result code: the description, and the remedy.
_PROBLEM_AND_REMEDY_BY_CODE: Final = {
    sqlite3.SQLITE_BUSY: ("another process has the journal open", "stop that process first"),
    sqlite3.SQLITE_LOCKED: ("another process has the journal open", "stop that process first"),
    sqlite3.SQLITE_FULL: ("database or disk is full", "free disk space and start again"),
    sqlite3.SQLITE_IOERR: ("the disk cannot read or write the file", "check the disk and start again"),
    sqlite3.SQLITE_READONLY: ("the file is not writable", "make it writable for its owner and start again"),
    sqlite3.SQLITE_CANTOPEN: (
        "unable to open database file",
        "check that it is readable and writable, that its folder exists, and that its path is shorter than 500 bytes",
    ),
}
#: The exceptions for a damaged file: SQLite's messages may contain bytes of the file that are not valid UTF-8.
DAMAGE_ERRORS: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
_decode_json = msgspec.json.Decoder(dict).decode


class CompactionFloor(NamedTuple):
    """The random identity of a journal, its compacted revision, and the number of rows up to that revision."""

    identity: bytes
    revision: int
    row_count: int


class JournalContents(NamedTuple):
    """The contents of a journal file: compaction floor, objects and changes, and rows that compaction may delete."""

    floor: CompactionFloor
    store: RecoveredStore
    #: Replaced rows in order: the replacing revision, and the replaced one.
    replaced_rows: deque[tuple[int, int]]


def create_journal(path: Path) -> CompactionFloor:
    """Create an empty journal file with a new identity; return its compaction floor, at revision 0."""
    with convert_sqlite_errors(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (journal_mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal_mode != "wal":  # SQLite reports errors of this statement only in its result
            raise sqlite3.OperationalError("cannot write a write-ahead log; check the disk and start again")
        connection.executescript(_CREATE_TABLES_SQL)
        connection.execute(f"PRAGMA application_id = {JOURNAL_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {JOURNAL_FORMAT}")
        floor = CompactionFloor(new_identity(connection), 0, 0)
        connection.execute("INSERT INTO floor VALUES (?, ?, ?, ?)", (*floor, floor_checksum(floor)))
        empty_log(connection)
    return floor


def empty_log(connection: sqlite3.Connection) -> None:
    """Move the write-ahead log into the file and flush it. SQLite does this on closing, but ignores errors then."""
    is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if is_busy:
        raise sqlite3.OperationalError("another process reads the file")


def new_identity(connection: sqlite3.Connection) -> bytes:
    """Return a new random identity for a journal."""
    (identity,) = connection.execute("SELECT randomblob(16)").fetchone()
    assert isinstance(identity, bytes), "the SQL function randomblob must return bytes"
    return identity


def floor_covering_all_rows(connection: sqlite3.Connection, identity: bytes, revision: int) -> CompactionFloor:
    """Return a compaction floor at `revision` that covers all rows of the journal file; no row may be newer."""
    (row_count,) = connection.execute("SELECT count(*) FROM revisions").fetchone()
    return CompactionFloor(identity, revision, int(row_count))


def write_floor(connection: sqlite3.Connection, floor: CompactionFloor) -> CompactionFloor:
    """Overwrite the compaction floor in a journal file, within the caller's transaction, and return it."""
    row_values = (*floor, floor_checksum(floor))
    connection.execute("UPDATE floor SET identity = ?, revision = ?, rows = ?, checksum = ?", row_values)
    return floor


def open_read_only(path: Path, *, is_immutable: bool = False) -> sqlite3.Connection:
    """Open a journal file read-only. Set `is_immutable` if no process writes it and it has no write-ahead log."""
    url = f"file:{quote(os.fsencode(path))}?mode=ro" + ("&immutable=1" if is_immutable else "")
    return sqlite3.connect(url, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_SECONDS)


def read_journal(path: Path, *, is_immutable: bool = False, error_path: Path | None = None) -> JournalContents:
    """Read and verify a journal file, and return its contents. Raise JournalError if it is damaged or not a journal.

    Errors name the file `error_path`, if `path` is a copy of it.
    """
    reported_path = path if error_path is None else error_path
    with convert_sqlite_errors(reported_path), closing(open_read_only(path, is_immutable=is_immutable)) as connection:
        connection.execute("BEGIN")
        _check_file(reported_path, connection)
        return _JournalReader(reported_path, path, _read_floor(reported_path, connection)).read(connection)


_CREATE_SETTINGS_SQL: Final = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"


def read_setting(path: Path, name: str) -> str:
    """Return a setting that a journal file records; '' if it records none, or if the file is missing or unreadable."""
    try:
        with closing(open_read_only(path)) as connection:
            (value,) = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone() or ("",)
    except DAMAGE_ERRORS:
        return ""
    return str(value)


def write_setting(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Record a setting in a journal file, within the caller's transaction. Backups contain it."""
    connection.execute(_CREATE_SETTINGS_SQL)
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))


def reject_orphaned_log(path: Path) -> None:
    """Raise JournalError if a missing journal has left a non-empty write-ahead log.

    SQLite would apply the log to a new journal.
    """
    write_ahead_log_path = path.with_name(f"{path.name}-wal")
    if write_ahead_log_path.exists() and write_ahead_log_path.stat().st_size:
        problem = f"{write_ahead_log_path} exists without its journal and may hold its last changes"
        raise JournalError(f"{problem}; put the journal back, or choose another data directory")


def restore_draft_path(path: Path) -> Path:
    """Return the path of the temporary file in which `batchyard restore` builds the journal that becomes `path`."""
    return path.with_name(f"{path.name}.restored")


def reject_interrupted_restore(path: Path) -> None:
    """Raise JournalError if a restore of the journal was interrupted, so that no empty journal is created instead."""
    draft_path = restore_draft_path(path)
    if draft_path.exists():
        problem = f"{path.parent}: a restore was started here and not finished"
        raise JournalError(f"{problem}; run `batchyard restore` again, or remove {draft_path.name} to start empty")


def _check_file(path: Path, connection: sqlite3.Connection) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (check_result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if check_result != "ok" or not path.stat().st_size:
        raise damaged_journal_error(path, str(check_result))
    if application_id != JOURNAL_APPLICATION_ID:
        raise JournalError(f"{path} is not a batchyard journal; choose another data directory")
    if version != JOURNAL_FORMAT:
        problem = f"{path} has journal format {version}, but this version of batchyard reads format {JOURNAL_FORMAT}"
        raise JournalError(f"{problem}; use the version that wrote it")


def _read_floor(path: Path, connection: sqlite3.Connection) -> CompactionFloor:
    floor_rows = connection.execute("SELECT identity, revision, rows, checksum FROM floor").fetchall()
    if len(floor_rows) != 1:
        raise damaged_journal_error(path, f"its table `floor` has {len(floor_rows)} rows instead of 1")
    *floor_fields, checksum = floor_rows[0]
    floor = CompactionFloor(*floor_fields)
    if checksum != floor_checksum(floor):
        raise damaged_journal_error(path, "the checksum of its compaction floor does not match")
    return floor


class _JournalReader:
    def __init__(self, path: Path, file_path: Path, floor: CompactionFloor) -> None:
        self._path = path
        self._file_path = file_path
        self._floor = floor
        self._objects: dict[Key, Obj] = {}
        self._shared_parts = SharedParts()
        self._replaced_rows: deque[tuple[int, int]] = deque()

    def read(self, connection: sqlite3.Connection) -> JournalContents:
        floor, changes, rows_below_floor = self._floor, list[WatchEvent](), 0
        revision = floor.revision
        for row in connection.execute("SELECT * FROM revisions ORDER BY revision"):
            change = self._apply_row(row)
            if change.revision > floor.revision:
                if change.revision != revision + 1:
                    raise damaged_journal_error(self._path, f"revision {revision + 1} is missing")
                revision = change.revision
                changes.append(change)
            else:
                rows_below_floor += 1
            record_replaced_rows(self._replaced_rows, change)
        if rows_below_floor != floor.row_count:
            mismatch = f"it has {rows_below_floor} rows up to revision {floor.revision} instead of {floor.row_count}"
            raise damaged_journal_error(self._path, mismatch)
        return JournalContents(floor, RecoveredStore(revision, self._objects, changes), self._replaced_rows)

    def _apply_row(self, row: tuple[int, str, str, str, bytes | None, int]) -> WatchEvent:
        revision, kind, namespace, name, text, checksum = row
        key = Key(kind, namespace, name)
        if checksum != row_checksum(revision, key, text):
            row_start = f"{kind}{namespace}{name}".encode() + (text or b"")[:_ROW_SEARCH_BYTES]
            problem = f"the checksum of revision {revision} does not match"
            raise damaged_journal_error(self._path, problem, find_row(self._file_path, row_start))
        old = self._objects.get(key)
        if text is None:
            if old is None:
                raise damaged_journal_error(self._path, f'revision {revision} deletes the missing {kind} "{key}"')
            del self._objects[key]
            return WatchEvent(EventType.DELETED, key, old, old, revision)
        obj = _decode_json(text)
        self._shared_parts.share(obj)
        self._objects[key] = obj
        return WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key, obj, old, revision)


def record_replaced_rows(replaced_rows: deque[tuple[int, int]], change: WatchEvent) -> None:
    """Append the journal rows that a change makes obsolete, as pairs of the change's revision and the row's revision.

    A change makes the previous row of its object obsolete. A deletion also makes its own row obsolete.
    """
    if change.old is not None:
        replaced_rows.append((change.revision, int(change.old["metadata"]["resourceVersion"])))
    if change.type is EventType.DELETED:
        replaced_rows.append((change.revision, change.revision))


def row_checksum(revision: int, key: Key, text: bytes | None) -> int:
    """Return the CRC-32 of a journal row: of its revision, its key and the encoded object (None if deleted)."""
    key_fields = "\0".join((str(revision), *key)).encode()
    return zlib.crc32(b"\0gone" if text is None else text, zlib.crc32(key_fields))


def floor_checksum(floor: CompactionFloor) -> int:
    """Return the CRC-32 of a journal's compaction floor."""
    return zlib.crc32(f"{floor.revision} {floor.row_count}".encode(), zlib.crc32(floor.identity))


@contextmanager
def convert_sqlite_errors(path: Path) -> Iterator[None]:
    """Convert SQLite's errors within the `with` block, even undecodable ones, into JournalErrors that name `path`."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise journal_error(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged_journal_error(path, str(error)) from error
    except UnicodeDecodeError as error:
        raise damaged_journal_error(path, error.object.decode("utf-8", "replace")) from error


@contextmanager
def convert_disk_errors(path: Path) -> Iterator[None]:
    """Convert the operating system's errors within the `with` block into JournalErrors that name `path`."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}; check the disk and its free space, then try again") from error


def journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """Return the JournalError for an SQLite error other than damage, with the remedy if one is known."""
    if _sqlite_result_code(error) == sqlite3.SQLITE_ERROR:  # the statements are right, so the schema is damaged
        return damaged_journal_error(path, str(error))
    problem, remedy = _PROBLEM_AND_REMEDY_BY_CODE.get(_sqlite_result_code(error), (str(error), ""))
    return JournalError(f"{path}: {problem}; {remedy}" if remedy else f"{path}: {problem}")


def is_disk_error(error: sqlite3.Error) -> bool:
    """Return whether an SQLite error is about locks, access, I/O or disk space, not about the file's contents."""
    return _sqlite_result_code(error) in _PROBLEM_AND_REMEDY_BY_CODE


def _sqlite_result_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def damaged_journal_error(path: Path, problem: str, place: str = "") -> JournalError:
    """Return the JournalError for a damaged journal file, with the place of the damage and the advice to restore.

    Without a `place`, it is derived from the page number in SQLite's message.
    """
    if "offset" in problem:
        return JournalError(f"{path} is damaged: {problem}; restore a backup")
    if not place:
        page = _PAGE_NUMBER.search(problem.replace("not a database", "not a database: page 1"))
        place = f"page at offset {(int(page[1]) - 1) * _PAGE_BYTES}" if page else "at an unknown offset"
    return JournalError(f"{path} is damaged: {problem} ({place}); restore a backup")


def find_row(path: Path, row: bytes) -> str:
    """Return the file and the offset of a row of the journal, found by its first bytes; the log is searched first."""
    for searched_path in (path.with_name(f"{path.name}-wal"), path):
        try:
            fd = os.open(searched_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        offset = _offset_of(fd, row)
        os.close(fd)
        if offset is not None:
            return f"{searched_path.name}, offset {offset}"
    return "at an unknown offset"


def _offset_of(fd: int, row: bytes) -> int | None:
    """Return the offset of a row in a file; None if the file does not contain it, or cannot be read."""
    offset, before = 0, b""
    try:
        while chunk := os.pread(fd, _COPY_BYTES, offset):
            position = (before + chunk).rfind(row)
            if position >= 0:
                return offset - len(before) + position
            offset, before = offset + len(chunk), chunk[-len(row) :]
    except OSError:
        return None
    return None


def find_end_of_log(path: Path) -> str:
    """Return the file and the offset at which the valid part of a journal's write-ahead log ends."""
    log_path = path.with_name(f"{path.name}-wal")
    try:
        fd = os.open(log_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return f"{log_path.name} cannot be read, offset 0"
    try:
        return f"{log_path.name} is valid up to offset {_valid_log_bytes(fd)}"
    except OSError:
        return f"{log_path.name} cannot be read, at an unknown offset"
    finally:
        os.close(fd)


def _valid_log_bytes(fd: int) -> int:
    """Return the number of bytes before the first invalid frame of a write-ahead log of SQLite."""
    header = os.pread(fd, _LOG_HEADER_BYTES, 0)
    if len(header) < _LOG_HEADER_BYTES:
        return 0
    words = struct.Struct(">1024I" if header[3] & 1 else "<1024I")
    checksum = _log_checksum(words, header[:24], (0, 0))
    if checksum != _CHECKSUM_PAIR_STRUCT.unpack(header[24:]):
        return 0
    offset = _LOG_HEADER_BYTES
    while len(frame := os.pread(fd, _FRAME_HEADER_BYTES + _PAGE_BYTES, offset)) == _FRAME_HEADER_BYTES + _PAGE_BYTES:
        checksum = _log_checksum(words, frame[_FRAME_HEADER_BYTES:], _log_checksum(words, frame[:8], checksum))
        if frame[8:16] != header[16:24] or checksum != _CHECKSUM_PAIR_STRUCT.unpack(frame[16:24]):
            break
        offset += len(frame)
    return offset


def _log_checksum(words: struct.Struct, content: bytes, checksum: tuple[int, int]) -> tuple[int, int]:
    first, second = checksum
    numbers = words.unpack(content.ljust(_PAGE_BYTES, b"\0"))[: len(content) // 4]
    for index in range(0, len(numbers), 2):
        first = (first + numbers[index] + second) & 0xFFFFFFFF
        second = (second + numbers[index + 1] + first) & 0xFFFFFFFF
    return first, second
