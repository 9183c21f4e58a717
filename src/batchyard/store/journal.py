"""The journal: the changes of the object store in one SQLite file, so that they survive the API server's process.

Every change is one row under its revision, with the key and either the new object or a deletion. Rows never change.
Compaction to a revision (the floor) deletes rows that a later row at or below the floor has replaced. The remaining
rows yield the current objects, and every change above the floor with the previous object. So watches continue after a
restart.

Damage is reported, and damaged data is never served. On opening, the file is read completely (journal_file.py) and
compared with its commit mark. One process at a time has the journal open; others may back it up meanwhile. `append` is
one atomic transaction. Its durability depends on `SyncMode`:

    FULL     a transaction survives a power loss (one flush of the disk for each)
    PROCESS  a transaction survives any end of the process; a power loss may lose the last ones
"""

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from tempfile import mkstemp
from typing import Final, TypeAlias

import msgspec

from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store import journal_file
from batchyard.store.memory import RecoveredStore

#: Added to the revision after a loss of revisions, so that no revision is used for two different changes.
REVISION_LEAP: Final = 1_000_000_000
JournalRow: TypeAlias = tuple[int, str, str, str, bytes | None, int]
"""A row of the journal: revision, kind, namespace, name, encoded object (None if deleted), checksum."""
#: The number of rows added with one statement.
_ROWS_PER_INSERT: Final = 64
#: The number of rows deleted with one statement.
_ROWS_PER_DELETE: Final = 256
_INSERT_STATEMENTS: Final = [
    f"INSERT INTO revisions VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * count)}"  # noqa: S608 - only placeholders
    for count in range(1, _ROWS_PER_INSERT + 1)
]
#: The size of SQLite's statement cache, so that each statement is prepared once.
_STATEMENT_CACHE_SIZE: Final = _ROWS_PER_INSERT + 16
_encode_json = msgspec.json.Encoder().encode


class SyncMode(StrEnum):
    """What an acknowledged change survives: also a power loss (FULL), or only the end of the process (PROCESS)."""

    FULL = "full"
    PROCESS = "process"


class RevisionJournal:
    """An open journal file of the object store, to which changes are appended. Not thread-safe."""

    def __init__(self, path: Path, sync: SyncMode = SyncMode.FULL, *, accept_loss: bool = False) -> None:
        """Open a journal file; create it if it does not exist. Raise JournalError if the file cannot be used.

        The commit mark is a small file beside the journal with the last acknowledged revision. With `accept_loss`, an
        intact journal is opened even if its commit mark is missing, damaged or does not match, although the journal may
        lack acknowledged changes. The revision is then raised by REVISION_LEAP, so that no revision is used twice.
        """
        self._path = path
        self._is_mark_flushed_early = sync is SyncMode.FULL
        self._commit_mark = journal_file.CommitMark(path)
        try:
            with journal_file.convert_disk_errors(path):
                journal_contents = self._read_contents(accept_loss=accept_loss)
                self._floor = journal_contents.floor
                self._connection = self._open_connection(journal_contents.store.revision, sync)
        except journal_file.JournalError:
            self._commit_mark.close()
            raise
        self._recovered: RecoveredStore | None = journal_contents.store
        self._replaced_rows = journal_contents.replaced_rows
        #: Called with the last revision of each transaction before the revision is acknowledged; None without archive.
        self.on_written: Callable[[int], None] | None = None

    @property
    def compacted_revision(self) -> int:
        """The compacted revision: object versions that were replaced up to it are deleted from the journal."""
        return self._floor.revision

    @property
    def identity(self) -> bytes:
        """The random identity of the journal, which its copies on standbys share."""
        return self._floor.identity

    def recover(self) -> RecoveredStore:
        """Return the objects and changes that were read when the journal was opened; to be called once."""
        recovered_store, self._recovered = self._recovered, None
        assert recovered_store is not None, "recover() must be called only once"
        return recovered_store

    def append(self, changes: Sequence[WatchEvent]) -> int:
        """Append object changes to the journal in one transaction; return the size of the encoded objects in bytes.

        Raise JournalError if the transaction fails, or if the commit mark cannot be written after it.
        """
        journal_rows = [encode_row(change) for change in changes]
        replaced_rows: deque[tuple[int, int]] = deque()
        for change in changes:
            journal_file.record_replaced_rows(replaced_rows, change)
        self.append_rows(journal_rows, replaced_rows)
        return sum(len(text) for *_, text, _checksum in journal_rows if text is not None)

    def append_rows(self, journal_rows: Sequence[JournalRow], replaced_rows: Iterable[tuple[int, int]]) -> None:
        """Append rows in one transaction; `replaced_rows` are pairs as `record_replaced_rows` appends them.

        Raise JournalError if the transaction fails, or if the commit mark cannot be written after it.
        """
        # One statement is a transaction by itself.
        with (
            self._transaction()
            if len(journal_rows) > _ROWS_PER_INSERT
            else journal_file.convert_sqlite_errors(self._path)
        ):
            self._insert_rows(journal_rows)
        self._replaced_rows.extend(replaced_rows)
        if journal_rows:
            if self.on_written is not None:
                with self._convert_mark_errors():
                    self.on_written(journal_rows[-1][0])
            self._record_acknowledged(journal_rows[-1][0])

    def compact(self, floor: int) -> None:
        """Delete the rows that changes up to revision `floor` made obsolete; `floor` becomes the compacted revision."""
        self._flush_commit_mark()
        obsolete_rows = [
            replaced_revision for _, replaced_revision in takewhile(lambda pair: pair[0] <= floor, self._replaced_rows)
        ]
        # Above the floor every revision has its row: counting them would take time proportional to their number.
        remaining_row_count = self._floor.row_count + floor - self._floor.revision - len(obsolete_rows)
        new_floor = journal_file.CompactionFloor(self._floor.identity, floor, remaining_row_count)
        with self._transaction():
            for start_index in range(0, len(obsolete_rows), _ROWS_PER_DELETE):
                self._delete_rows(obsolete_rows[start_index : start_index + _ROWS_PER_DELETE])
            journal_file.write_floor(self._connection, new_floor)
        self._floor = new_floor
        for _ in obsolete_rows:
            self._replaced_rows.popleft()

    def raise_revision(self, revision: int) -> None:
        """Raise the last revision by REVISION_LEAP and drop the history, so that all clients must list again."""
        new_revision = revision + REVISION_LEAP
        new_floor = journal_file.floor_covering_all_rows(self._connection, self._floor.identity, new_revision)
        with self._transaction():
            journal_file.write_floor(self._connection, new_floor)
        self._floor = new_floor
        self._record_acknowledged(new_revision)
        self._flush_commit_mark()

    def record_setting(self, name: str, value: str, default: str) -> None:
        """Record a setting in the journal file, unless it is recorded; a journal without it has the default."""
        if (journal_file.read_setting(self._path, name) or default) != value:
            with self._transaction():
                journal_file.write_setting(self._connection, name, value)

    def flush_commit_mark(self) -> None:
        """Flush the commit mark, so that the loss of changes before it is detected even after a power loss.

        With SyncMode.PROCESS, do nothing, since the mark must not reach the disk before the changes.
        """
        if self._is_mark_flushed_early:
            self._flush_commit_mark()

    def close(self) -> None:
        """Close the journal file, and its commit mark (the small file that is also the journal's lock)."""
        try:
            self._flush_commit_mark()
        finally:
            with journal_file.convert_sqlite_errors(self._path):
                self._connection.close()
            self._commit_mark.close()

    # --- opening ---

    def _read_contents(self, *, accept_loss: bool) -> journal_file.JournalContents:
        """Read the journal file, or create it. Raise JournalError if it is damaged, or contradicts its commit mark.

        With `accept_loss`, an existing file that only contradicts its mark is accepted, and its revision is raised.
        """
        try:
            commit_record, problem = self._commit_mark.read(), "" if self._path.exists() else "missing"
        except journal_file.DamagedCommitMarkError:
            problem = "its commit mark is damaged (offset 0), so the acknowledged revision is unknown"
            commit_record = None
        if problem == "missing":
            journal_file.reject_interrupted_restore(self._path)
            if commit_record is not None and commit_record.revision:
                absence = f"{self._path} is missing, although its revision {commit_record.revision} was acknowledged"
                raise journal_file.JournalError(f"{absence}; restore a backup into another data directory")
            journal_file.reject_orphaned_log(self._path)
            commit_record = self._create_journal()
            problem = ""
        contents = journal_file.read_journal(self._path)
        problem = problem or _find_mark_mismatch(contents, commit_record)
        if not problem and commit_record is not None and commit_record.revision < contents.floor.revision:
            problem = "its commit mark (offset 0) is older than its last compaction"
        if not problem:
            return contents
        if not accept_loss:
            damage_text = f"{self._path} is damaged: {problem}"
            if "offset" not in problem:
                damage_text += f" ({journal_file.find_end_of_log(self._path)})"
            raise journal_file.JournalError(f"{damage_text}; restore a backup, or start with --accept-loss")
        return self._raise_revision(max(contents.store.revision, commit_record.revision if commit_record else 0))

    def _create_journal(self) -> journal_file.CommitRecord:
        draft_path = self._path.with_name(f"{self._path.name}.new")
        try:
            for suffix in ("", "-wal"):
                draft_path.with_name(draft_path.name + suffix).unlink(missing_ok=True)
            commit_record = journal_file.CommitRecord(journal_file.create_journal(draft_path).identity, 0)
            self._commit_mark.write(commit_record)
            self._commit_mark.flush()
            journal_file.rename_durably(draft_path, self._path)
        except OSError as error:
            creation_error_text = f"{self._path} cannot be created: {error.strerror}"
            remedy = "check the permissions and the free disk space of its folder"
            raise journal_file.JournalError(f"{creation_error_text}; {remedy}") from error
        return commit_record

    def _raise_revision(self, revision: int) -> journal_file.JournalContents:
        """Raise the journal's revision far beyond `revision`, so that clients with older watches must list again.

        Return the contents of the journal, read again.
        """
        with journal_file.convert_sqlite_errors(self._path):
            self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=0)
        with closing(self._connection), self._transaction():
            (identity,) = self._connection.execute("SELECT identity FROM floor").fetchone()
            self._floor = journal_file.write_floor(
                self._connection,
                journal_file.floor_covering_all_rows(self._connection, identity, revision + REVISION_LEAP),
            )
        self._record_acknowledged(revision + REVISION_LEAP)
        return journal_file.read_journal(self._path)

    def _open_connection(self, revision: int, sync: SyncMode) -> sqlite3.Connection:
        with journal_file.convert_sqlite_errors(self._path):
            connection = sqlite3.connect(
                self._path,
                isolation_level=None,
                check_same_thread=False,
                timeout=journal_file.BUSY_TIMEOUT_SECONDS,
                cached_statements=_STATEMENT_CACHE_SIZE,
            )
        with ExitStack() as on_failure, journal_file.convert_sqlite_errors(self._path):
            on_failure.callback(connection.close)
            connection.execute(f"PRAGMA synchronous = {'FULL' if sync is SyncMode.FULL else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            (last_revision,) = connection.execute("SELECT max(revision) FROM revisions").fetchone()
            connection.execute("COMMIT")
            if (last_revision or 0) > revision:
                raise journal_file.JournalError(
                    f"{self._path}: another process has the journal open; stop that process first"
                )
            self._make_durable(revision)
            on_failure.pop_all()
        return connection

    def _make_durable(self, revision: int) -> None:
        """Write again what an earlier process may have left in the page cache only, before clients see it."""
        journal_file.rewrite_log(self._path)
        self._record_acknowledged(revision)
        self._flush_commit_mark()

    # --- writing ---

    def _insert_rows(self, rows: Sequence[JournalRow]) -> None:
        """Insert rows into the journal, many per SQL statement, since each one releases and reacquires the GIL."""
        for start_index in range(0, len(rows), _ROWS_PER_INSERT):
            batch = rows[start_index : start_index + _ROWS_PER_INSERT]
            self._connection.execute(_INSERT_STATEMENTS[len(batch) - 1], [value for row in batch for value in row])

    def _delete_rows(self, revisions: Sequence[int]) -> None:
        placeholders = ", ".join("?" * len(revisions))
        self._connection.execute(f"DELETE FROM revisions WHERE revision IN ({placeholders})", revisions)  # noqa: S608 - as above

    def _record_acknowledged(self, revision: int) -> None:
        with self._convert_mark_errors():
            self._commit_mark.write(journal_file.CommitRecord(self._floor.identity, revision))

    def _flush_commit_mark(self) -> None:
        with self._convert_mark_errors():
            self._commit_mark.flush()

    @contextmanager
    def _convert_mark_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            mark_error_text = f"{self._path}: cannot write its commit mark: {error.strerror}"
            raise journal_file.JournalError(f"{mark_error_text}; check the disk and its free space") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with journal_file.convert_sqlite_errors(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


def _find_mark_mismatch(contents: journal_file.JournalContents, commit_record: journal_file.CommitRecord | None) -> str:
    last_revision = contents.store.revision
    if commit_record is None:
        return "its commit mark is missing (offset 0), so the acknowledged revision is unknown"
    if commit_record.identity != contents.floor.identity:
        return "it belongs to another data directory (its commit mark, offset 0)"
    if commit_record.revision > last_revision:
        return f"it ends at revision {last_revision}, but revision {commit_record.revision} was acknowledged"
    return ""


def encode_row(change: WatchEvent) -> JournalRow:
    """Return the journal row of a change."""
    text = None if change.type is EventType.DELETED else _encode_json(change.obj)
    return change.revision, *change.key, text, journal_file.row_checksum(change.revision, change.key, text)


# Backups of a journal: one file with all objects at one revision, taken while the journal is open or closed.
#
# A restored journal continues far beyond the revisions of its backup, and holds no history. The platform that was
# backed up may have served later revisions. A client that has seen those must list again, instead of mistaking new
# revisions for known ones. (`etcdutl snapshot restore` does the same with --bump-revision and --mark-compacted.)


#: The first bytes of every SQLite file.
_SQLITE_FILE_HEADER: Final = b"SQLite format 3\0"


def back_up(journal: Path, backup: Path) -> journal_file.JournalContents:
    """Write a verified backup of a journal to a new file; return its contents.

    Raises JournalError if the journal is missing or damaged, or if the backup exists or cannot be written.
    """
    if not journal.exists():
        raise journal_file.JournalError(
            f"{journal} does not exist; set the data directory of a platform with --data-dir"
        )
    _refuse_to_overwrite(backup)
    if not backup.parent.is_dir():
        raise journal_file.JournalError(f"{backup}: the folder {backup.parent} does not exist; create it first")
    try:
        with journal_file.convert_disk_errors(journal):
            record = journal_file.read_commit_record(journal)
    except journal_file.DamagedCommitMarkError:
        record = None
    with journal_file.convert_disk_errors(backup), _temporary_file(backup) as draft_path:
        copy_journal(journal, draft_path, error_path=backup)
        backup_contents = journal_file.read_journal(draft_path, is_immutable=True, error_path=journal)
        mismatch = _find_mark_mismatch(backup_contents, record)
        if mismatch:
            raise journal_file.damaged_journal_error(journal, mismatch)
        _refuse_to_overwrite(backup)  # another process may have created it meanwhile
        journal_file.rename_durably(draft_path, backup)
    return backup_contents


def restore_backup(backup: Path, journal: Path) -> journal_file.JournalContents:
    """Create a journal from a backup; return the contents of the journal.

    Raises JournalError if the backup is invalid, or if the journal exists or cannot be written.
    """
    if not backup.is_file():
        problem = "is not a file" if backup.exists() else "does not exist"
        raise journal_file.JournalError(f"{backup} {problem}; pass a file that `batchyard backup` wrote")
    if any(backup.with_name(backup.name + suffix).exists() for suffix in ("-wal", "-journal")):
        raise journal_file.JournalError(
            f"{backup} is not a backup: a SQLite log file is beside it; pass a file that `batchyard backup` wrote"
        )
    with journal_file.convert_disk_errors(backup), backup.open("rb") as file:
        if file.read(len(_SQLITE_FILE_HEADER)) != _SQLITE_FILE_HEADER:
            raise journal_file.JournalError(f"{backup} is not a backup; pass a file that `batchyard backup` wrote")
    backup_contents = journal_file.read_journal(backup, is_immutable=True)
    commit_mark = journal_file.CommitMark(journal)
    try:
        with journal_file.convert_disk_errors(journal):
            return _restore_contents(backup, journal, commit_mark, backup_contents.store.revision + REVISION_LEAP)
    finally:
        commit_mark.close()


def restore_rows(
    journal: Path, rows: Iterable[JournalRow], revision: int, settings: Mapping[str, str]
) -> journal_file.JournalContents:
    """Create a journal from the rows up to a revision, in order; return its contents.

    Raises JournalError if the journal exists or cannot be written, or if a row deletes a missing object.
    """
    commit_mark = journal_file.CommitMark(journal)
    try:
        with journal_file.convert_disk_errors(journal):
            draft_path = _prepare_draft(journal)
            journal_file.create_journal(draft_path)
            with (
                journal_file.convert_sqlite_errors(draft_path),
                closing(sqlite3.connect(draft_path, isolation_level=None)) as db,
            ):
                db.execute("BEGIN IMMEDIATE")
                _insert_current_rows(draft_path, db, rows)
                for name, value in settings.items():
                    journal_file.write_setting(db, name, value)
                db.execute("COMMIT")
            return _finish_restore(draft_path, journal, commit_mark, revision + REVISION_LEAP)
    finally:
        commit_mark.close()


def _insert_current_rows(path: Path, db: sqlite3.Connection, rows: Iterable[JournalRow]) -> None:
    """Insert the rows of the objects that exist after all rows."""
    current_revisions: dict[tuple[str, str, str], int] = {}
    for row in rows:
        revision, kind, namespace, name, text, _ = row
        key = (kind, namespace, name)
        replaced_revision = current_revisions.pop(key, None)
        if replaced_revision is not None:
            db.execute("DELETE FROM revisions WHERE revision = ?", (replaced_revision,))
        elif text is None:
            raise journal_file.damaged_journal_error(path, f"revision {revision} deletes the missing {kind} {name}")
        if text is not None:
            current_revisions[key] = revision
            db.execute(_INSERT_STATEMENTS[0], row)


def _prepare_draft(journal: Path) -> Path:
    _refuse_to_overwrite(journal)
    journal_file.reject_orphaned_log(journal)
    draft_path = journal_file.restore_draft_path(journal)
    for suffix in ("", "-journal", "-wal", "-shm"):
        draft_path.with_name(draft_path.name + suffix).unlink(missing_ok=True)
    return draft_path


def _restore_contents(
    backup: Path, journal: Path, commit_mark: journal_file.CommitMark, restored_revision: int
) -> journal_file.JournalContents:
    draft_path = _prepare_draft(journal)
    copy_journal(backup, draft_path, is_immutable=True, error_path=journal)
    return _finish_restore(draft_path, journal, commit_mark, restored_revision)


def _finish_restore(
    draft_path: Path, journal: Path, commit_mark: journal_file.CommitMark, restored_revision: int
) -> journal_file.JournalContents:
    with (
        journal_file.convert_sqlite_errors(draft_path),
        closing(sqlite3.connect(draft_path, isolation_level=None)) as db,
    ):
        db.execute("BEGIN IMMEDIATE")
        new_floor = journal_file.floor_covering_all_rows(db, journal_file.new_identity(db), restored_revision)
        journal_file.write_floor(db, new_floor)
        db.execute("COMMIT")
        journal_file.empty_log(db)
    restored_contents = journal_file.read_journal(draft_path, is_immutable=True)
    commit_mark.write(journal_file.CommitRecord(new_floor.identity, new_floor.revision))
    commit_mark.flush()
    journal_file.rename_durably(draft_path, journal)
    return restored_contents


def copy_journal(path: Path, copy_path: Path, *, is_immutable: bool = False, error_path: Path | None = None) -> None:
    """Copy a journal file in its current state.

    The message of an error in writing the copy contains `error_path` instead of `copy_path`, unless it is None.
    """
    with (
        journal_file.convert_sqlite_errors(path),
        closing(journal_file.open_read_only(path, is_immutable=is_immutable)) as db,
    ):
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with journal_file.convert_sqlite_errors(error_path or copy_path), closing(sqlite3.connect(copy_path)) as copy:
            db.backup(copy)


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Yield the path of a new private file beside `path`, which is deleted after the `with` block unless renamed."""
    try:
        fd, name = mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    except OSError as error:
        raise journal_file.JournalError(
            f"{path}: {error.strerror}; choose a writable folder with free space"
        ) from error
    os.close(fd)
    draft_path = Path(name)
    try:
        yield draft_path
    finally:
        for suffix in ("", "-journal"):
            draft_path.with_name(draft_path.name + suffix).unlink(missing_ok=True)


def install_copy(copy: Path, journal: Path) -> journal_file.JournalContents:
    """Verify a copy of another journal and put it into the place of `journal`; return its contents.

    An existing journal is renamed to `*.replaced`. Raises JournalError if the copy is damaged, or if `journal` is open.
    """
    contents = journal_file.read_journal(copy, is_immutable=True)
    commit_mark = journal_file.CommitMark(journal)
    try:
        journal.with_name(f"{journal.name}-shm").unlink(missing_ok=True)
        for suffix in ("", "-wal"):  # a log without its journal is moved away by the next attempt
            with suppress(FileNotFoundError):
                journal.with_name(journal.name + suffix).replace(journal.with_name(f"{journal.name}.replaced{suffix}"))
        commit_mark.write(journal_file.CommitRecord(contents.floor.identity, contents.store.revision))
        commit_mark.flush()
        journal_file.rename_durably(copy, journal)
    finally:
        commit_mark.close()
    return contents


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise journal_file.JournalError(f"{path} already exists and is not overwritten; choose another path")
