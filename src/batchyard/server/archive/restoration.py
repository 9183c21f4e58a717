"""Restores a state of an archive into a new journal, and describes the states that an archive can restore."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.server.archive.encoding import ContentHeader, ContentReader, DamagedContentError
from batchyard.server.archive.epochs import ORIGIN_SETTING, read_history, read_state
from batchyard.server.archive.history import ArchivedObject, ArchiveError, ArchiveHistory, RestorePlan
from batchyard.server.archive.storage import ObjectMissingError, ObjectStorage
from batchyard.store.journal import JournalRow, restore_rows
from batchyard.store.journal_file import JournalContents, JournalError, restore_draft_path

#: Maximum objects of an epoch in the description; older ones are counted.
_LISTED_OBJECTS_MAX: Final = 10_000


class RestoredState(NamedTuple):
    """The outcome of a restore: the journal, the restored revision and its time, and remarks for the user."""

    contents: JournalContents
    revision: int
    time: Instant
    remarks: list[str]


class _RowReader:
    """Reads the rows of a plan from one base, and notes the last revision and its time."""

    def __init__(self, storage: ObjectStorage, plan: RestorePlan, base: ArchivedObject) -> None:
        self._storage, self._plan, self._base = storage, plan, base
        self.revision, self.time = base.last, base.time

    def rows(self) -> Iterator[JournalRow]:
        """Yield the rows in order. Raise ArchiveError for a damaged or missing object."""
        for obj in (self._base, *self._plan.segments):
            if obj.is_base or obj.last > self.revision:
                yield from self._rows_of(obj)

    def _rows_of(self, obj: ArchivedObject) -> Iterator[JournalRow]:
        start = -1 if obj.is_base else self.revision
        try:
            reader = ContentReader(self._storage.read(obj.name), obj.digest)
            limit, time = self._limit(obj, reader.header)
            for row in reader.rows():
                if start < row[0] <= limit:
                    yield row
        except DamagedContentError as error:
            raise self._damage(obj, f"is damaged: {error}") from error
        except ObjectMissingError as error:
            raise self._damage(obj, "is missing") from error
        if limit > self.revision:
            self.revision, self.time = limit, time

    def _limit(self, obj: ArchivedObject, header: ContentHeader) -> tuple[int, Instant]:
        """Return the last revision of an object to restore, and its time."""
        if obj.is_base:
            return obj.last, obj.time
        plan = self._plan
        limit = min(obj.last, plan.limits.get(obj.epoch, obj.last), plan.revision)
        if plan.time is not None:
            limit = min(limit, max((last for last, time in header.times if time <= plan.time), default=0))
        return limit, next((time for last, time in header.times if last >= limit), obj.time)

    def _damage(self, obj: ArchivedObject, problem: str) -> ArchiveError:
        text = f"{self._storage.url}/{obj.name} {problem}"
        if obj.is_base:
            return _DamagedBaseError(text)
        return ArchiveError(f"{text}; the newest restorable revision before it: --to-revision {self.revision}")


class _DamagedBaseError(ArchiveError):
    """A base is damaged or missing."""


def restore_archive(
    storage: ObjectStorage, journal: Path, revision: int | None = None, time: Instant | None = None
) -> RestoredState:
    """Create a journal with the state of an archive at a revision or a time, or with its newest state.

    Raises ArchiveError if the state cannot be restored, StorageError, and JournalError for the journal.
    """
    history = read_history(storage)
    plan = history.plan(revision, time)
    remarks: list[str] = []
    for base in plan.bases:
        reader = _RowReader(storage, plan, base)
        settings = _settings_of(history, (plan.segments or [base])[-1].epoch)
        try:
            # No revision that the archived platforms have used gets another meaning.
            contents = restore_rows(journal, reader.rows(), max(obj.last for obj in history.objects), settings)
        except _DamagedBaseError as error:
            _remove_draft(journal)
            remarks.append(f"{error}; an older base was used")
            continue
        except (ArchiveError, JournalError):
            _remove_draft(journal)
            raise
        if revision is None:
            remarks.extend(_end_remarks(storage, history, time))
        return RestoredState(contents, reader.revision, reader.time, remarks)
    before = plan.bases[-1].last - 1 if plan.bases else 0
    raise ArchiveError(f"{'; '.join(remarks)}; no intact base is left; try --to-revision {before} or an earlier one")


def _settings_of(history: ArchiveHistory, epoch: int) -> Mapping[str, str]:
    claim = history.claims[epoch]
    return {**claim.settings, ORIGIN_SETTING: claim.identity}


def _remove_draft(journal: Path) -> None:
    draft = restore_draft_path(journal)
    for suffix in ("", "-journal", "-wal", "-shm"):
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _end_remarks(storage: ObjectStorage, history: ArchiveHistory, time: Instant | None) -> Iterator[str]:
    """Yield a remark if the archive may lack changes of the requested time, or of the newest state."""
    state = read_state(storage, history.last_epoch)
    if state is None or state.is_ended or (time is not None and time <= state.complete_until):
        return
    yield f"the archive has all changes until {format_time(state.complete_until)}; later ones may be missing"


def describe_archive(storage: ObjectStorage) -> dict[str, Any]:
    """Return a JSON document of an archive: the restorable ranges, the epochs and their objects."""
    history = read_history(storage)
    return {
        "url": storage.url,
        "restorable": [
            {
                "epoch": path.epoch,
                "fromRevision": span.first,
                "toRevision": span.last,
                "fromTime": format_time(span.first_time),
                "toTime": format_time(span.last_time),
            }
            for path in history.paths()
            for span in reversed(path.ranges())
        ],
        "epochs": [_epoch_document(storage, history, epoch) for epoch in history.claims],
    }


def _epoch_document(storage: ObjectStorage, history: ArchiveHistory, epoch: int) -> dict[str, Any]:
    claim, state = history.claims[epoch], read_state(storage, epoch)
    objects = [obj for obj in history.objects if obj.epoch == epoch]
    continues = claim.continues
    return {
        "epoch": epoch,
        "node": claim.node,
        "began": format_time(claim.claimed_at),
        "speed": claim.speed,
        "continues": None if continues is None else {"epoch": continues.epoch, "revision": continues.revision},
        "completeUntil": None if state is None else format_time(state.complete_until),
        "bytes": sum(obj.size for obj in objects),
        "bases": [_object_document(obj) for obj in objects if obj.is_base],
        "segments": [_object_document(obj) for obj in objects if not obj.is_base][-_LISTED_OBJECTS_MAX:],
    }


def _object_document(obj: ArchivedObject) -> dict[str, Any]:
    return {
        "name": obj.name,
        "fromRevision": obj.first,
        "toRevision": obj.last,
        "time": format_time(obj.time),
        "bytes": obj.size,
    }
