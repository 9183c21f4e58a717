"""The journal as the source of an archive: another process writes it, and this one reads its acknowledged rows."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.store import journal_file
from batchyard.store.commit_times import CommitTime, read_commit_times
from batchyard.store.journal import JournalRow
from batchyard.store.journal_file import JournalError

#: Maximum rows and bytes of a segment; a single larger row is one segment.
SEGMENT_ROWS_MAX: Final = 2_000
SEGMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_SELECT_ROWS: Final = "SELECT * FROM revisions WHERE revision > ? AND revision <= ? ORDER BY revision"


class JournalSource:
    """Read access to a journal that is open in another process. Each read is one short transaction."""

    def __init__(self, path: Path) -> None:
        """Open the journal. Raise JournalError if that fails."""
        self.path: Final = path
        with journal_file.convert_sqlite_errors(path):
            self._connection = journal_file.open_read_only(path)
            self.identity: bytes = self._connection.execute("SELECT identity FROM floor").fetchone()[0]

    def last_revision(self) -> int:
        """Return the last acknowledged revision. Raise JournalError if the journal was replaced or is damaged."""
        try:
            record = journal_file.read_commit_record(self.path)
        except journal_file.DamagedCommitMarkError as error:
            raise JournalError(f"{self.path}: its commit mark is damaged") from error
        if record is None or record.identity != self.identity:
            raise JournalError(f"{self.path}: another journal has replaced it")
        return record.revision

    def floor(self) -> int:
        """Return the compacted revision: every later revision has its row."""
        with journal_file.convert_sqlite_errors(self.path):
            return int(self._connection.execute("SELECT revision FROM floor").fetchone()[0])

    def rows(self, after: int, last: int) -> Sequence[JournalRow]:
        """Return the first rows of a range of revisions, without a gap and within the limits of a segment.

        Return none if the journal has compacted past the beginning.
        """
        rows: list[JournalRow] = []
        size = 0
        with journal_file.convert_sqlite_errors(self.path):
            for row in self._connection.execute(f"{_SELECT_ROWS} LIMIT {SEGMENT_ROWS_MAX}", (after, last)):
                if row[0] != after + len(rows) + 1:
                    break
                _check_row(self.path, row)
                rows.append(row)
                size += len(row[4] or b"")
                if size >= SEGMENT_BYTES_MAX:
                    break
        return rows

    def checksums(self, first: int, last: int) -> Mapping[int, int]:
        """Return the checksums of the rows in a range of revisions."""
        sql = "SELECT revision, checksum FROM revisions WHERE revision >= ? AND revision <= ?"
        with journal_file.convert_sqlite_errors(self.path):
            return dict(self._connection.execute(sql, (first, last)))

    def all_rows(self, last: int) -> Iterator[JournalRow]:
        """Yield all rows up to a revision, in order, as of one moment."""
        with journal_file.convert_sqlite_errors(self.path):
            for row in self._connection.execute(_SELECT_ROWS, (-1, last)):
                _check_row(self.path, row)
                yield row

    def settings(self) -> Mapping[str, str]:
        """Return the settings that the journal records."""
        try:
            return dict(self._connection.execute("SELECT name, value FROM settings"))
        except sqlite3.OperationalError:  # it has none
            return {}

    def commit_times(self, after: int, last: int, now: Instant) -> Sequence[CommitTime]:
        """Return the transactions in a range of revisions with their times; the last one ends at the last revision.

        A transaction whose time is lost gets that of the next one, or `now`.
        """
        recorded = read_commit_times(self.path, after)
        times = [(revision, time) for revision, time in recorded if revision < last]
        return [*times, (last, next((time for revision, time in recorded if revision >= last), now))]

    def close(self) -> None:
        """Close the journal."""
        self._connection.close()


def _check_row(path: Path, row: JournalRow) -> None:
    revision, kind, namespace, name, text, checksum = row
    if checksum != journal_file.row_checksum(revision, Key(kind, namespace, name), text):
        raise journal_file.damaged_journal_error(path, f"the checksum of revision {revision} does not match")
