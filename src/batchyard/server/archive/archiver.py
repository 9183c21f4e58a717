"""The process that archives a journal: it reads acknowledged rows from the file, and uploads bases and segments.

It is a process of its own, so that requests do not wait for it. It holds one segment in memory. If the storage is away,
it reads the rows later, and begins again with a base if the journal has compacted them meanwhile. It ends when its
standard input is closed, and writes its status as JSON lines to its standard output.
"""

import io
import logging
import os
import select
import signal
import sys
from pathlib import Path
from tempfile import mkstemp
from typing import Final

import msgspec

from batchyard.base.instant import HOUR, SECOND, Duration, Instant, exponential_backoff
from batchyard.server.archive.encoding import ContentHeader, write_content
from batchyard.server.archive.epochs import (
    ArchiverIdentity,
    ClaimedEpoch,
    RejectedArchiveError,
    check_fence,
    claim_epoch,
    read_history,
)
from batchyard.server.archive.history import ArchivedObject, EpochState, claim_name, state_name
from batchyard.server.archive.source import SEGMENT_ROWS_MAX, JournalSource
from batchyard.server.archive.storage import ObjectExistsError, ObjectStorage, StorageError, open_storage
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.logging.logs import LogSettings, configure_logging
from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.store.journal_file import JournalError

#: A change is uploaded within this time, if the storage accepts it.
SEGMENT_SECONDS: Final = 5
#: The exit code after a rejection: the process is not started again.
REJECTED_EXIT_CODE: Final = 3
FLUSH_COMMAND: Final = b"flush\n"
_POLL_SECONDS: Final = 0.25
_STATE_SECONDS: Final = 15
_LAG_WARNING_SECONDS: Final = 60
_BACKOFF_FIRST: Final = 1 * SECOND
_BACKOFF_MAX: Final = 30 * SECOND
#: A new base follows after this time, so many segments, or so many bytes of segments, at least four times the base.
_BASE_INTERVAL: Final = 24 * HOUR
_BASE_SEGMENTS_MAX: Final = 5_000
_BASE_SEGMENT_BYTES_MIN: Final = 64 * 1024 * 1024
_BASE_DRAFT_PREFIX: Final = ".archive-base."
_NICENESS: Final = 5
_LOG: Final = logging.getLogger("batchyard.archive")


class ArchiverSettings(msgspec.Struct, frozen=True):
    """The arguments of the process. `keep` is the time for which states stay restorable in microseconds; 0: forever."""

    url: str
    folder: str
    keep: Duration
    speed: float
    is_replicated: bool
    node: str
    is_json: bool


class ArchiverStatus(msgspec.Struct, frozen=True):
    """The progress of the process: the archived and the last revision, and the time before which all is archived."""

    is_claimed: bool
    archived_revision: int
    last_revision: int
    complete_until: Instant
    uploaded_bytes: int
    failures: int
    #: Why the platform must not write into this archive; '' if it may.
    rejection: str = ""
    #: The last error of the storage; '' after a success.
    error: str = ""


class _BaseProgress:
    """The size and time of the last base, and of the segments after it."""

    def __init__(self) -> None:
        self.time, self.size = 0, 0
        self.segment_count = self.segment_bytes = 0

    def add(self, obj: ArchivedObject) -> None:
        if obj.is_base:
            self.time, self.size = obj.time, obj.size
            self.segment_count = self.segment_bytes = 0
        else:
            self.segment_count += 1
            self.segment_bytes += obj.size

    def is_due(self, now: Instant, interval: Duration) -> bool:
        return self.segment_count > 0 and (
            now - self.time >= interval
            or self.segment_count >= _BASE_SEGMENTS_MAX
            or self.segment_bytes >= max(_BASE_SEGMENT_BYTES_MIN, 4 * self.size)
        )


class Archiver:
    """Archives a journal: the claimed epoch, the last archived revision, and the progress since the last base."""

    def __init__(self, storage: ObjectStorage, source: JournalSource, settings: ArchiverSettings) -> None:
        self._storage, self._source, self._settings = storage, source, settings
        self._owner = ArchiverIdentity(settings.node, settings.speed, settings.is_replicated)
        self._claimed: ClaimedEpoch | None = None
        #: The last archived revision; None if a base is necessary.
        self._archived: int | None = None
        self._last_revision, self._last_time = source.last_revision(), 0
        self._pending_since: Instant | None = None
        self._base, self._state_at = _BaseProgress(), 0
        self.complete_until: Instant = 0
        self.uploaded_bytes = self.failures = 0
        self.error = ""

    def step(self, now: Instant, *, is_flush: bool = False) -> bool:
        """Upload at most one object; return whether more are due. Raise StorageError and RejectedArchiveError."""
        self._last_revision = self._source.last_revision()
        if self._claimed is None:
            self._claim(now)
            return True
        if self._archived is None or self._base.is_due(now, self._base_interval()):
            self._upload_base(now)
            self._delete_expired(now)
            return True
        if self._archived >= self._last_revision:
            self._pending_since, self.complete_until = None, now
            self._write_state(now, is_ended=is_flush)
            return False
        pending = self._last_revision - self._archived
        self._pending_since = self._pending_since or now
        if is_flush or pending >= SEGMENT_ROWS_MAX or now - self._pending_since >= SEGMENT_SECONDS * SECOND:
            self._upload_segment(now)
            return True
        return False

    def status(self, rejection: str = "") -> ArchiverStatus:
        """Return the progress."""
        archived = self._archived or 0
        counts = self.complete_until, self.uploaded_bytes, self.failures
        return ArchiverStatus(self._claimed is not None, archived, self._last_revision, *counts, rejection, self.error)

    def _claim(self, now: Instant) -> None:
        self._claimed = claimed = claim_epoch(self._storage, self._source, self._owner, now)
        ranges = claimed.path.ranges()
        if claimed.claim.continues is None:
            return
        self._archived, self._last_time = claimed.claim.continues.revision, ranges[-1].last_time
        for obj in claimed.path.objects:
            self._base.add(obj)

    def _base_interval(self) -> Duration:
        return min(_BASE_INTERVAL, self._settings.keep or _BASE_INTERVAL)

    def _upload_segment(self, now: Instant) -> None:
        assert self._archived is not None, "a segment follows a base"
        rows = self._source.rows(self._archived, self._last_revision)
        if not rows:
            _LOG.warning(
                "the journal no longer has revision %d, which is not archived; the archive gets a new base and a gap",
                self._archived + 1,
            )
            self._archived = None
            return
        first, last = rows[0][0], rows[-1][0]
        times = [(r, max(time, self._last_time)) for r, time in self._source.commit_times(first - 1, last, now)]
        buffer = io.BytesIO()
        digest = write_content(buffer, ContentHeader(first, last, times, len(rows)), rows)
        content = buffer.getvalue()
        obj = self._new_object(is_base=False, first=first, last=last, time=times[-1][1], digest=digest)
        self._check_fence()
        try:
            self._storage.create(obj.name, content)
        except ObjectExistsError:  # an earlier attempt of this process succeeded, since the name has the digest
            _LOG.debug("%s was uploaded by an earlier attempt", obj.name)
        self._base.add(obj._replace(size=len(content)))
        self._archived, self._last_time = last, obj.time
        self.uploaded_bytes += len(content)
        self._pending_since = None if last >= self._last_revision else self._pending_since

    def _upload_base(self, now: Instant) -> None:
        revision = self._last_revision
        ((_, time),) = self._source.commit_times(revision - 1, revision, now)
        time = max(time, self._last_time)
        fd, draft = mkstemp(prefix=_BASE_DRAFT_PREFIX, dir=self._settings.folder)
        try:
            with os.fdopen(fd, "wb") as file:
                header = ContentHeader(revision, revision, [(revision, time)], 0)
                digest = write_content(file, header, self._source.all_rows(revision))
            obj = self._new_object(is_base=True, first=revision, last=revision, time=time, digest=digest)
            obj = obj._replace(size=Path(draft).stat().st_size)
            self._check_fence()
            self._storage.upload(obj.name, Path(draft))
        finally:
            Path(draft).unlink()
        self._base.add(obj)
        self.uploaded_bytes += obj.size
        if self._archived is None:  # otherwise segments continue from the last one
            self._archived, self._last_time = revision, time

    def _new_object(self, *, is_base: bool, first: int, last: int, time: Instant, digest: str) -> ArchivedObject:
        assert self._claimed is not None, "objects belong to a claimed epoch"
        return ArchivedObject(self._claimed.epoch, is_base, first, last, time, digest)

    def _check_fence(self) -> None:
        assert self._claimed is not None, "only the owner of an epoch uploads"
        check_fence(self._storage, self._claimed.epoch)

    def _write_state(self, now: Instant, *, is_ended: bool) -> None:
        if self._claimed is not None and (is_ended or now - self._state_at >= _STATE_SECONDS * SECOND):
            self._check_fence()
            state = EpochState(self._archived or 0, self.complete_until, is_ended)
            self._storage.replace(state_name(self._claimed.epoch), msgspec.json.encode(state))
            self._state_at = now

    def _delete_expired(self, now: Instant) -> None:
        """Delete what is older than the retention. A base is uploaded first, so that the deletion leaves no gap."""
        if not self._settings.keep:
            return
        self._check_fence()
        history = read_history(self._storage)
        for obj in list(history.expired(now - self._settings.keep)):
            self._storage.delete(obj.name)
            history.objects.remove(obj)
        for epoch in list(history.empty_epochs()):
            self._storage.delete(state_name(epoch))
            self._storage.delete(claim_name(epoch))


class _ArchiverLoop:
    """Runs an archiver until its standard input is closed: polling, backoff, warnings and status lines."""

    def __init__(self, archiver: Archiver) -> None:
        self._archiver = archiver
        self._attempts, self._due_at, self._warned = 0, 0, False
        self._reported_at, self._was_claimed = 0, False

    def run(self) -> int:
        """Return the exit code."""
        self._report()
        wait_seconds = 0.0
        while not select.select([sys.stdin], [], [], wait_seconds)[0]:
            has_more = wall_clock() >= self._due_at and self._step()
            if has_more is None:
                return REJECTED_EXIT_CODE
            self._warn_of_lag()
            self._report()
            wait_seconds = 0.0 if has_more else _POLL_SECONDS
        if os.read(sys.stdin.fileno(), len(FLUSH_COMMAND)) == FLUSH_COMMAND:
            self._attempts = 0
            while self._step(is_flush=True):
                pass
        return 0

    def _step(self, *, is_flush: bool = False) -> bool | None:
        """Return whether more uploads are due; None after a rejection."""
        archiver = self._archiver
        try:
            has_more = archiver.step(wall_clock(), is_flush=is_flush)
        except RejectedArchiveError as error:
            self._report(str(error))
            return None
        except (StorageError, OSError) as error:
            archiver.failures, archiver.error = archiver.failures + 1, str(error)
            if not self._attempts:
                _LOG.warning("cannot archive: %s; the archiver tries again", error)
            self._attempts += 1
            self._due_at = wall_clock() + exponential_backoff(_BACKOFF_FIRST, _BACKOFF_MAX, self._attempts)
            return False
        if self._attempts:
            _LOG.warning("the archive accepts uploads again")
        self._attempts, archiver.error = 0, ""
        return has_more

    def _warn_of_lag(self) -> None:
        archiver = self._archiver
        lag = (wall_clock() - archiver.complete_until) // SECOND if archiver.complete_until else 0
        if lag >= _LAG_WARNING_SECONDS and not self._warned:
            _LOG.warning("the archive is %d s behind: %s", lag, archiver.error or "uploads are slower than the changes")
        self._warned = lag >= _LAG_WARNING_SECONDS

    def _report(self, rejection: str = "") -> None:
        status, now = self._archiver.status(rejection), wall_clock()
        if rejection or status.error or status.is_claimed is not self._was_claimed or now - self._reported_at >= SECOND:
            self._reported_at, self._was_claimed = now, status.is_claimed
            sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
            sys.stdout.buffer.flush()


def main() -> int:
    """Run the process; return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the platform ends the process, also by its own end
        signal.signal(number, signal.SIG_IGN)
    settings = msgspec.json.decode(sys.argv[1], type=ArchiverSettings)
    configure_logging(LogSettings("warning", settings.is_json))
    os.nice(_NICENESS)
    folder = Path(settings.folder)
    for draft in folder.glob(f"{_BASE_DRAFT_PREFIX}*"):  # of a killed process
        draft.unlink(missing_ok=True)
    try:
        archiver = Archiver(open_storage(settings.url), JournalSource(folder / JOURNAL_FILE), settings)
        return _ArchiverLoop(archiver).run()
    except (JournalError, StorageError) as error:
        _LOG.error("%s", error)
        return 1
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
