"""Backups of a journal: one file with all objects at one revision, taken while the journal is open or closed.

A restored journal continues far beyond the revisions of its backup, and holds no history. The platform that was backed
up may have served later revisions. A client that has seen those must list again, instead of mistaking new revisions for
known ones. (Restoring etcd's snapshots for Kubernetes works in the same way: bumped, and marked as compacted.)
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Final

from batchyard.store.journal import LEAP
from batchyard.store.journal_file import (
    CommitMark,
    CommitRecord,
    DamagedMark,
    JournalContents,
    JournalError,
    damaged,
    floor_over_all,
    journal_errors,
    new_identity,
    peek,
    read_journal,
    read_only,
    reject_orphaned_log,
    rename_durably,
    restored_draft,
    write_floor,
)

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
