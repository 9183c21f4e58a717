"""The journal: the revisions of a store in one SQLite file, so that they survive the process.

Every change is one row under its revision, with the key and either the new object or a deletion. Rows are only added.
Compaction deletes rows that a later row at or below the floor has replaced. The remaining rows yield the current
objects, and every change above the floor with the previous object. So watches continue after a restart.

Damage is reported, and damaged data is never served. On opening, the file is read completely (journal_file.py) and
compared with the commit mark (commit_mark.py). One process at a time has the journal open; others may read it meanwhile
(backup.py). `append` is one atomic transaction. Its durability depends on `Sync`:

    FULL     it survives a power loss (one flush of the disk for each transaction)
    PROCESS  it survives any end of the process; a power loss may lose the last transactions
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from tempfile import mkstemp
from typing import Final, TypeAlias

import msgspec

from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.journal_file import (
    BUSY_FOR,
    CommitMark,
    CommitRecord,
    CompactionFloor,
    DamagedMark,
    JournalContents,
    JournalError,
    damaged,
    floor_over_all,
    journal_errors,
    make_journal,
    new_identity,
    note_replaced,
    peek,
    read_journal,
    read_only,
    reject_interrupted_restore,
    reject_orphaned_log,
    rename_durably,
    restored_draft,
    row_checksum,
    write_floor,
)
from batchyard.store.memory import RecoveredStore

#: The increase of the revision after a loss of revisions: no revision ever gets two meanings for a client.
LEAP: Final = 1_000_000_000
_Row: TypeAlias = tuple[int, str, str, str, bytes | None, int]
#: The number of rows added with one statement.
_ROWS_AT_ONCE: Final = 64
#: The number of rows deleted with one statement.
_DELETED_AT_ONCE: Final = 256
_INSERT: Final = [
    f"INSERT INTO revisions VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * count)}"  # noqa: S608 - of nothing from outside
    for count in range(1, _ROWS_AT_ONCE + 1)
]
#: The size of SQLite's statement cache, so that each statement is prepared once.
_STATEMENTS: Final = _ROWS_AT_ONCE + 16
_encode = msgspec.json.Encoder().encode


class SyncMode(StrEnum):
    """The durability of an acknowledged change."""

    FULL = "full"
    PROCESS = "process"


class RevisionJournal:
    """An open journal: the file, its mark, the floor and the replaced rows. Not thread-safe."""

    def __init__(self, path: Path, sync: SyncMode = SyncMode.FULL, *, accept_loss: bool = False) -> None:
        """Open a file; create it if it does not exist.

        With `accept_loss`, a journal that ends before its mark is accepted, and its revision is raised beyond all known
        ones.
        """
        self._path = path
        self._mark = CommitMark(path)
        try:
            contents = self._contents(accept_loss=accept_loss)
            self._file = self._opened(contents.recovered.revision, sync)
        except JournalError:
            self._mark.close()
            raise
        self._floor = contents.floor
        self._recovered: RecoveredStore | None = contents.recovered
        self._replaced = contents.replaced

    @property
    def floor(self) -> int:
        """The compacted revision: rows replaced at or below it are deleted."""
        return self._floor.revision

    def recover(self) -> RecoveredStore:
        """Return the contents read on opening; to be called once."""
        recovered, self._recovered = self._recovered, None
        assert recovered is not None, "recover() is called once"
        return recovered

    def append(self, changes: Sequence[WatchEvent]) -> int:
        """Append changes in one transaction; return the size of their objects in bytes.

        Raise JournalError if that fails; then none of them is stored.
        """
        rows = [_row(change) for change in changes]
        # One statement is a transaction by itself.
        with self._transaction() if len(rows) > _ROWS_AT_ONCE else journal_errors(self._path):
            self._insert(rows)
        for change in changes:
            note_replaced(self._replaced, change)
        if changes:
            self._acknowledge(changes[-1].revision)
        return sum(len(text) for *_, text, _checksum in rows if text is not None)

    def compact(self, floor: int) -> None:
        """Delete rows replaced by a revision up to this one."""
        self._flush_mark()
        gone = [replaced for by, replaced in takewhile(lambda pair: pair[0] <= floor, self._replaced)]
        # Above the floor every revision has its row: counting them would take time proportional to their number.
        rows = self._floor.rows + floor - self._floor.revision - len(gone)
        raised = CompactionFloor(self._floor.identity, floor, rows)
        with self._transaction():
            for begin in range(0, len(gone), _DELETED_AT_ONCE):
                self._delete(gone[begin : begin + _DELETED_AT_ONCE])
            write_floor(self._file, raised)
        self._floor = raised
        for _ in gone:
            self._replaced.popleft()

    def close(self) -> None:
        """Close the file and the mark."""
        self._flush_mark()
        with journal_errors(self._path):
            self._file.close()
        self._mark.close()

    # --- opening ---

    def _contents(self, *, accept_loss: bool) -> JournalContents:
        """Read the file; JournalError unless it holds everything that was acknowledged."""
        try:
            marked, wrong = self._mark.read(), "" if self._path.exists() else "missing"
        except DamagedMark:
            marked, wrong = None, "its mark is damaged, so the acknowledged revision is unknown"
        if wrong == "missing":
            reject_interrupted_restore(self._path)
            if marked is not None and marked.revision:
                gone = f"{self._path} is missing, of which {marked.revision} revisions were acknowledged"
                raise JournalError(f"{gone}; restore a backup into another data directory")
            reject_orphaned_log(self._path)
            marked = self._made()
            wrong = ""
        contents = read_journal(self._path)
        wrong = wrong or _what_is_wrong(contents, marked)
        if not wrong:
            return contents
        if not accept_loss:
            raise JournalError(f"{self._path} is damaged: {wrong}; restore a backup, or start with --accept-loss")
        return self._leapt(max(contents.recovered.revision, marked.revision if marked else 0))

    def _made(self) -> CommitRecord:
        """Create an empty journal. It is renamed into place when it is complete, so a partial one is never used."""
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            draft.unlink(missing_ok=True)
            marked = CommitRecord(make_journal(draft).identity, 0)
            self._mark.write(marked)
            self._mark.flush()
            rename_durably(draft, self._path)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        return marked

    def _leapt(self, revision: int) -> JournalContents:
        """Raise the revision beyond all that clients may have seen; older watches must list again."""
        self._file = sqlite3.connect(self._path, isolation_level=None, timeout=0)
        with self._transaction():
            (identity,) = self._file.execute("SELECT identity FROM floor").fetchone()
            self._floor = write_floor(self._file, floor_over_all(self._file, identity, revision + LEAP))
        self._file.close()
        self._acknowledge(revision + LEAP)
        return read_journal(self._path)

    def _opened(self, revision: int, sync: SyncMode) -> sqlite3.Connection:
        """Open the file for writing; JournalError if it has changed since it was read."""
        with journal_errors(self._path):
            file = sqlite3.connect(
                self._path,
                isolation_level=None,
                check_same_thread=False,
                timeout=BUSY_FOR,
                cached_statements=_STATEMENTS,
            )
            file.execute(f"PRAGMA synchronous = {'FULL' if sync is SyncMode.FULL else 'NORMAL'}")
            file.execute("BEGIN IMMEDIATE")
            (last,) = file.execute("SELECT max(revision) FROM revisions").fetchone()
            file.execute("COMMIT")
        if (last or 0) > revision:
            file.close()
            raise JournalError(f"{self._path}: another process has it open; end that one first")
        return file

    # --- writing ---

    def _insert(self, rows: Sequence[_Row]) -> None:
        """Insert rows, many with each statement, because each statement releases and reacquires the GIL."""
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[begin : begin + _ROWS_AT_ONCE]
            self._file.execute(_INSERT[len(part) - 1], [value for row in part for value in row])

    def _delete(self, revisions: Sequence[int]) -> None:
        places = ", ".join("?" * len(revisions))
        self._file.execute(f"DELETE FROM revisions WHERE revision IN ({places})", revisions)  # noqa: S608 - as above

    def _acknowledge(self, revision: int) -> None:
        with self._mark_errors():
            self._mark.write(CommitRecord(self._floor.identity, revision))

    def _flush_mark(self) -> None:
        with self._mark_errors():
            self._mark.flush()

    @contextmanager
    def _mark_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(f"{self._path}, its mark: {error.strerror}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with journal_errors(self._path):
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._file.execute("COMMIT")
            finally:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")


def _what_is_wrong(contents: JournalContents, marked: CommitRecord | None) -> str:
    """Describe how a journal differs from its mark; '' if it does not."""
    last = contents.recovered.revision
    if marked is None:
        return "its mark is missing, so the acknowledged revision is unknown"
    if marked.identity != contents.floor.identity:
        return "it is the journal of another data directory"
    if marked.revision > last:
        return f"it ends at revision {last}, and {marked.revision} was acknowledged"
    if marked.revision < contents.floor.revision:
        return "its mark is older than its last compaction"
    return ""


def _row(change: WatchEvent) -> _Row:
    text = None if change.type is EventType.DELETED else _encode(change.obj)
    return change.revision, *change.key, text, row_checksum(change.revision, change.key, text)


# --- backup ---
#
# Backups of a journal: one file with all objects at one revision, taken while the journal is open or closed.
#
# A restored journal continues far beyond the revisions of its backup, and holds no history. The platform that was
# backed up may have served later revisions. A client that has seen those must list again, instead of mistaking new
# revisions for known ones. (Restoring etcd's snapshots for Kubernetes works in the same way: bumped, and marked as
# compacted.)


#: The first bytes of every SQLite file.
_SQLITE: Final = b"SQLite format 3\0"


def back_up(journal: Path, backup: Path) -> JournalContents:
    """Write a backup, read it through, and return its contents. JournalError if the journal is damaged."""
    if not journal.exists():
        raise JournalError(f"{journal}: there is no such journal; name its data directory")
    _refuse_to_overwrite(backup)
    if not backup.parent.is_dir():
        raise JournalError(f"{backup}: there is no folder {backup.parent}")
    try:
        marked = peek(journal)
    except DamagedMark:
        marked = None
    with _draft(backup) as draft:
        _copy(journal, draft, reported_as=backup)
        contents = read_journal(draft, is_alone=True, reported_as=journal)
        last = contents.recovered.revision
        if marked is None or marked.revision > last or marked.identity != contents.floor.identity:
            raise damaged(journal, f"its mark does not match its contents, which end at revision {last}")
        _refuse_to_overwrite(backup)  # another process may have created it meanwhile
        rename_durably(draft, backup)
    return contents


def restore(backup: Path, journal: Path) -> JournalContents:
    """Create a journal from a backup, and return its contents. JournalError if one is invalid or the other exists."""
    if not backup.is_file():
        raise JournalError(f"{backup}: there is no such file")
    if any(backup.with_name(backup.name + end).exists() for end in ("-wal", "-journal")):
        raise JournalError(f"{backup} is no backup: a log lies beside it; make one with `batchyard backup`")
    with backup.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise JournalError(f"{backup} is no backup; name a file that `batchyard backup` wrote")
    contents = read_journal(backup, is_alone=True)
    mark = CommitMark(journal)
    try:
        _refuse_to_overwrite(journal)
        reject_orphaned_log(journal)
        draft = restored_draft(journal)
        for end in ("", "-journal", "-wal", "-shm"):
            draft.with_name(draft.name + end).unlink(missing_ok=True)
        _copy(backup, draft, is_alone=True, reported_as=journal)
        with journal_errors(draft), closing(sqlite3.connect(draft, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            floor = write_floor(file, floor_over_all(file, new_identity(file), contents.recovered.revision + LEAP))
            file.execute("COMMIT")
        restored = read_journal(draft, is_alone=True)
        mark.write(CommitRecord(floor.identity, floor.revision))
        mark.flush()
        rename_durably(draft, journal)
    finally:
        mark.close()
    return restored


def _copy(path: Path, to: Path, *, is_alone: bool = False, reported_as: Path | None = None) -> None:
    """Copy a journal in its current state; a disk error names the file that it concerns."""
    with journal_errors(path), closing(read_only(path, is_alone=is_alone)) as source:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with journal_errors(to if reported_as is None else reported_as), closing(sqlite3.connect(to)) as copy:
            source.backup(copy)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Create a private file in the folder of another; it is deleted at the end unless it was renamed."""
    try:
        file, name = mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}; name a file in a folder that you may write") from error
    os.close(file)
    draft = Path(name)
    try:
        yield draft
    finally:
        for end in ("", "-journal"):
            draft.with_name(draft.name + end).unlink(missing_ok=True)


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise JournalError(f"{path}: it already exists and is not overwritten; name another file")
