"""The claim of an epoch of an archive by a process, and the checks that it may continue the archive."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from batchyard.api.meta import Key
from batchyard.api.times import format_second
from batchyard.base.instant import SECOND, Instant
from batchyard.server.archive.encoding import ContentReader, DamagedContentError
from batchyard.server.archive.history import (
    ArchivedObject,
    ArchiveHistory,
    ArchivePath,
    ContinuedEpoch,
    EpochClaim,
    EpochState,
    claim_name,
    parse_claim_name,
    parse_object_name,
    state_name,
)
from batchyard.server.archive.source import JournalSource
from batchyard.server.archive.storage import ObjectExistsError, ObjectMissingError, ObjectStorage, StorageError
from batchyard.store.journal import JournalRow

#: The setting of a restored journal with the identity of the journal whose archive it comes from.
ORIGIN_SETTING: Final = "archive-origin"
#: An owner that has written its state within this time is alive.
ALIVE_SECONDS: Final = 40
_CLAIM_BYTES_MAX: Final = 1024 * 1024
_CLAIM_ATTEMPTS: Final = 5
_decode_claim: Final = msgspec.json.Decoder(EpochClaim).decode
_decode_state: Final = msgspec.json.Decoder(EpochState).decode


class RejectedArchiveError(Exception):
    """The platform must not write into the archive; the message contains the reason and the remedy."""


class ArchiverIdentity(NamedTuple):
    """The platform that archives: its machine, the speed of its clock, and whether it has or is a standby."""

    node: str
    speed: float
    is_replicated: bool


class ClaimedEpoch(NamedTuple):
    """An epoch that this process owns, and the path that it continues."""

    epoch: int
    claim: EpochClaim
    path: ArchivePath


def read_small(storage: ObjectStorage, name: str) -> bytes:
    """Return the content of a small object. Raise StorageError if it is missing or not small."""
    content = b""
    for part in storage.read(name):
        content += part
        if len(content) > _CLAIM_BYTES_MAX:
            raise StorageError(f"{storage.url}/{name} is too large")
    return content


def read_claim(storage: ObjectStorage, epoch: int) -> EpochClaim:
    """Return the claim of an epoch. Raise StorageError if it is missing or damaged."""
    try:
        return _decode_claim(read_small(storage, claim_name(epoch)))
    except msgspec.MsgspecError as error:
        raise StorageError(f"{storage.url}/{claim_name(epoch)} is damaged: {error}") from error


def read_state(storage: ObjectStorage, epoch: int) -> EpochState | None:
    """Return the state of an epoch; None if it is missing or damaged."""
    try:
        return _decode_state(read_small(storage, state_name(epoch)))
    except (ObjectMissingError, msgspec.MsgspecError):
        return None


def read_history(storage: ObjectStorage) -> ArchiveHistory:
    """Return the claims and objects of an archive. Raise StorageError if a claim cannot be read."""
    objects: list[ArchivedObject] = []
    epochs: list[int] = []
    try:
        for stored in storage.list():
            parsed, epoch = parse_object_name(stored.name, stored.size), parse_claim_name(stored.name)
            objects += [] if parsed is None else [parsed]
            epochs += [] if epoch is None else [epoch]
    except ObjectMissingError:
        return ArchiveHistory({}, [])
    return ArchiveHistory({epoch: read_claim(storage, epoch) for epoch in epochs}, objects)


def claim_epoch(storage: ObjectStorage, source: JournalSource, owner: ArchiverIdentity, now: Instant) -> ClaimedEpoch:
    """Claim the next epoch. Raise RejectedArchiveError if the archive is not that of this journal, and StorageError."""
    settings = source.settings()
    for _ in range(_CLAIM_ATTEMPTS):
        history = read_history(storage)
        last_epoch = history.last_epoch
        continues = None
        if last_epoch:
            _check_owner(storage, history, source, now)
            continues = _continued_epoch(storage, history, source, is_replicated=owner.is_replicated)
        claim = EpochClaim(source.identity.hex(), owner.node, now, owner.speed, settings, continues)
        try:
            storage.create(claim_name(last_epoch + 1), msgspec.json.encode(claim))
        except ObjectExistsError:
            continue
        history.claims[last_epoch + 1] = claim
        return ClaimedEpoch(last_epoch + 1, claim, history.path(last_epoch + 1))
    raise StorageError(f"{storage.url}: other platforms claim epochs at the same time")


def check_fence(storage: ObjectStorage, epoch: int) -> None:
    """Raise RejectedArchiveError if another process has claimed a later epoch."""
    try:
        claim = read_claim(storage, epoch + 1)
    except ObjectMissingError:
        try:
            read_small(storage, claim_name(epoch))
        except ObjectMissingError as error:  # the retention deletes the claims of the oldest epochs in order
            problem = f"{storage.url}: another platform has taken over the archive, and has deleted epoch {epoch}"
            raise RejectedArchiveError(f"{problem}; end one of both, or set another --archive") from error
        return
    problem = (
        f"{storage.url}: a platform on {claim.node} has taken over the archive at {format_second(claim.claimed_at)}"
    )
    raise RejectedArchiveError(f"{problem}; end one of both, or set another --archive")


def _check_owner(storage: ObjectStorage, history: ArchiveHistory, source: JournalSource, now: Instant) -> None:
    """Raise RejectedArchiveError if the last epoch belongs to another journal that this one was not restored from."""
    epoch = history.last_epoch
    claim = history.claims.get(epoch)
    if claim is None:
        raise StorageError(f"{storage.url}: the claim of epoch {epoch} is missing; set another --archive")
    if claim.identity == source.identity.hex():
        return
    if claim.identity != source.settings().get(ORIGIN_SETTING):
        problem = f"{storage.url}: this archive belongs to another platform, which ran on {claim.node}"
        raise RejectedArchiveError(f"{problem}; set another URL or folder with --archive")
    state = read_state(storage, epoch)
    if state is not None and not state.is_ended and now - state.complete_until < ALIVE_SECONDS * SECOND:
        problem = f"{storage.url}: the platform that this one was restored from still writes its archive"
        remedy = f"end it on {claim.node}, or set another --archive"
        seconds = ALIVE_SECONDS - (now - state.complete_until) // SECOND
        raise RejectedArchiveError(f"{problem}; {remedy}; if it was killed, try again in {seconds} s")


def _continued_epoch(
    storage: ObjectStorage, history: ArchiveHistory, source: JournalSource, *, is_replicated: bool
) -> ContinuedEpoch | None:
    """Return the end of the history that the journal shares with the last epoch; None if a new base is necessary."""
    path = history.path(history.last_epoch)
    ranges = path.ranges()
    claim = history.claims[history.last_epoch]
    if not ranges or claim.identity != source.identity.hex():
        return None
    archived, own = ranges[-1].last, source.last_revision()
    if archived > own and not is_replicated:
        problem = f"{storage.url}: the archive has revision {archived}, but this journal ends at revision {own}"
        remedy = "the data directory is an older copy; restore the archive into a new one, or set another --archive"
        raise RejectedArchiveError(f"{problem}; {remedy}")
    revision = _last_common_revision(storage, path, source)
    if revision is None or revision < source.floor() or any(obj.first > archived for obj in path.objects):
        return None
    if revision < archived and not is_replicated:
        problem = f"{storage.url}: the archive and this journal have different changes after revision {revision}"
        raise RejectedArchiveError(f"{problem}; set another --archive")
    return ContinuedEpoch(history.last_epoch, revision)


def _last_common_revision(storage: ObjectStorage, path: ArchivePath, source: JournalSource) -> int | None:
    """Return the last archived revision up to which the journal has the same history; None if none is proven."""
    own, floor = source.last_revision(), source.floor()
    if path.ranges()[-1].last < floor:
        return None
    for base in reversed(path.objects):
        if base.is_base and base.last <= own:
            try:
                revision = _proven_revision(storage, path, base, source)
            except (DamagedContentError, ObjectMissingError):
                continue
            if revision is not None or base.last <= floor:  # an older base leads to the same objects at the floor
                return revision
    return None


def _proven_revision(
    storage: ObjectStorage, path: ArchivePath, base: ArchivedObject, source: JournalSource
) -> int | None:
    """Compare the objects at the base or at the journal's floor, then row by row up to the first difference."""
    reached, start = base.last, max(base.last, source.floor())
    own_rows, checksums = _live_rows(source.all_rows(start)), source.checksums(start + 1, source.last_revision())
    rows = _archived_rows(storage, path, base)
    later: list[JournalRow] = []

    def earlier() -> Iterator[JournalRow]:
        nonlocal reached
        for row in rows:
            if row[0] > start:
                later.append(row)
                reached = start
                return
            reached = max(reached, row[0])
            yield row

    if _live_rows(earlier()) != own_rows or reached < start:
        return None
    for row in chain(later, rows):
        if checksums.get(row[0]) != row[5]:
            break
        start = row[0]
    return start


def _live_rows(rows: Iterable[JournalRow]) -> dict[Key, tuple[int, int]]:
    """Return the revision and checksum of each object after some rows."""
    live: dict[Key, tuple[int, int]] = {}
    for revision, kind, namespace, name, text, checksum in rows:
        key = Key(kind, namespace, name)
        if text is None:
            live.pop(key, None)
        else:
            live[key] = revision, checksum
    return live


def _archived_rows(storage: ObjectStorage, path: ArchivePath, base: ArchivedObject) -> Iterator[JournalRow]:
    """Yield the rows of a base and of the segments after it, up to the first gap."""
    yield from ContentReader(storage.read(base.name), base.digest).rows()
    revision = base.last
    for obj in path.objects:
        if obj.is_base or path.last_of(obj) <= revision:
            continue
        for row in ContentReader(storage.read(obj.name), obj.digest).rows():
            if revision < row[0] <= path.last_of(obj):
                if row[0] != revision + 1:
                    return
                revision = row[0]
                yield row
