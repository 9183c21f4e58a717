"""The history that an archive holds, computed from the names of its objects: epochs, restorable ranges, plans.

An archive is a sequence of epochs. Each process that archives claims the next epoch, and only that process writes its
objects. An epoch continues the epoch before it at a revision, or begins with a base. A path is the objects from the
oldest base to the end of an epoch that no other epoch continues.

    00000003/claim.json                          the owner of epoch 3
    00000003/state.json                          the time until which the epoch has all changes
    00000003/base-LAST-LAST-TIME-SHA256          all objects at a revision
    00000003/segment-FIRST-LAST-TIME-SHA256      the changes of a range of revisions
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from batchyard.base.instant import Instant

_NAME: Final = re.compile(r"(\d{8})/(base|segment)-(\d{16})-(\d{16})-(\d{16})-([0-9a-f]{64})")
_CLAIM: Final = re.compile(r"(\d{8})/claim\.json")


class ArchiveError(Exception):
    """The archive cannot be used as requested; the message contains the reason and the remedy."""


class ContinuedEpoch(msgspec.Struct, frozen=True):
    """The epoch that another one continues, and the last revision that both share."""

    epoch: int
    revision: int


class EpochClaim(msgspec.Struct, frozen=True):
    """The owner of an epoch: the identity of its journal, its machine, and the time of the claim."""

    identity: str
    node: str
    claimed_at: Instant
    #: The speed of the platform's clock, for people.
    speed: float
    #: The settings of the journal, which a restore writes again.
    settings: Mapping[str, str]
    continues: ContinuedEpoch | None = None
    version: int = 1


class EpochState(msgspec.Struct, frozen=True):
    """The progress of an epoch, which its owner overwrites from time to time."""

    #: All changes up to this revision, and before this time, are archived.
    revision: int
    complete_until: Instant
    #: Whether the owner has ended after it archived all changes.
    is_ended: bool = False


class ArchivedObject(NamedTuple):
    """A base or segment: its epoch, range of revisions, time of the last transaction, digest, and bytes."""

    epoch: int
    is_base: bool
    first: int
    last: int
    time: Instant
    digest: str
    size: int = 0

    @property
    def name(self) -> str:
        """The name of the object in the archive."""
        kind = "base" if self.is_base else "segment"
        return f"{self.epoch:08d}/{kind}-{self.first:016d}-{self.last:016d}-{self.time:016d}-{self.digest}"


def claim_name(epoch: int) -> str:
    """Return the name of the claim of an epoch."""
    return f"{epoch:08d}/claim.json"


def state_name(epoch: int) -> str:
    """Return the name of the state of an epoch."""
    return f"{epoch:08d}/state.json"


def parse_object_name(name: str, size: int = 0) -> ArchivedObject | None:
    """Return the base or segment with a name; None if it is another object."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    epoch, kind, first, last, time, digest = match.groups()
    return ArchivedObject(int(epoch), kind == "base", int(first), int(last), int(time), digest, size)


def parse_claim_name(name: str) -> int | None:
    """Return the epoch that an object claims; None if it is another object."""
    match = _CLAIM.fullmatch(name)
    return None if match is None else int(match[1])


class RestorableRange(NamedTuple):
    """A range of revisions without a gap, each of which can be restored, with the times of the first and the last."""

    first: int
    last: int
    first_time: Instant
    last_time: Instant


class RestorePlan(NamedTuple):
    """What a restore reads: bases to begin with, the newest first, then segments, up to a revision or a time."""

    bases: Sequence[ArchivedObject]
    segments: Sequence[ArchivedObject]
    #: The revision to restore; with a time, the last one of the segments, which can be after that time.
    revision: int
    time: Instant | None
    #: The last revision of an epoch that belongs to the restored history, for epochs that another one continues.
    limits: Mapping[int, int]


class ArchivePath(NamedTuple):
    """The objects from the oldest base to the end of an epoch, in order.

    `limits` has the last revision of each earlier epoch that belongs to the path.
    """

    epoch: int
    objects: Sequence[ArchivedObject]
    limits: Mapping[int, int]

    def last_of(self, obj: ArchivedObject) -> int:
        """Return the last revision of an object that belongs to the path."""
        return min(obj.last, self.limits.get(obj.epoch, obj.last))

    def ranges(self) -> Sequence[RestorableRange]:
        """Return the restorable ranges, in order."""
        ranges: list[RestorableRange] = []
        for obj in self.objects:
            current, last = ranges[-1] if ranges else None, self.last_of(obj)
            if current is not None and obj.first <= current.last + 1:
                if last > current.last:
                    ranges[-1] = current._replace(last=last, last_time=obj.time)
            elif obj.is_base:
                ranges.append(RestorableRange(last, last, obj.time, obj.time))
        return ranges

    def plan(self, span: RestorableRange, revision: int, time: Instant | None) -> RestorePlan:
        """Return the plan for a revision or time in a restorable range."""
        bases = [
            obj
            for obj in self.objects
            if obj.is_base and span.first <= obj.last <= revision and (time is None or obj.time <= time)
        ]
        segments: list[ArchivedObject] = []
        for obj in self.objects:
            if not obj.is_base and span.first < self.last_of(obj) <= span.last and obj.first <= revision:
                segments.append(obj)
                if time is not None and obj.time > time:
                    break
        return RestorePlan(bases[::-1], segments, revision, time, self.limits)


class ArchiveHistory:
    """The claims and objects of an archive."""

    def __init__(self, claims: Mapping[int, EpochClaim], objects: Iterable[ArchivedObject]) -> None:
        self.claims: Final = dict(sorted(claims.items()))
        self.objects: Final = sorted(objects, key=lambda obj: (obj.epoch, obj.last, not obj.is_base))

    @property
    def last_epoch(self) -> int:
        """The newest epoch; 0 without one."""
        return max((*self.claims, *(obj.epoch for obj in self.objects)), default=0)

    def path(self, epoch: int) -> ArchivePath:
        """Return the path that ends with an epoch."""
        epochs, limits, limit = [epoch], dict[int, int](), None
        while (claim := self.claims.get(epochs[-1])) is not None and claim.continues is not None:
            parent, limit = claim.continues.epoch, min(claim.continues.revision, limit or claim.continues.revision)
            if parent >= epochs[-1]:
                break
            limits[parent] = limit
            epochs.append(parent)
        objects = [
            obj
            for obj in self.objects
            if obj.epoch in epochs and (obj.last if obj.is_base else obj.first) <= limits.get(obj.epoch, obj.last)
        ]
        return ArchivePath(epoch, objects, limits)

    def paths(self) -> Sequence[ArchivePath]:
        """Return the paths with objects, the newest first; an epoch that another one continues ends no path."""
        continued = {claim.continues.epoch for claim in self.claims.values() if claim.continues is not None}
        paths = [self.path(epoch) for epoch in self.claims if epoch not in continued]
        return [path for path in reversed(paths) if path.objects]

    def plan(self, revision: int | None, time: Instant | None) -> RestorePlan:
        """Return the plan for a revision, a time, or the newest state. Raise ArchiveError if it is not restorable."""
        paths = [path for path in self.paths() if path.ranges()]
        if not paths:
            raise ArchiveError("the archive holds no complete base; set the URL of an archive that `up` has written")
        if revision is not None:
            return self._plan_revision(paths, revision)
        if time is not None:
            return _plan_time(paths, time)
        path = paths[0]
        _refuse_tail(path)
        span = path.ranges()[-1]
        return path.plan(span, span.last, None)

    def _plan_revision(self, paths: Sequence[ArchivePath], revision: int) -> RestorePlan:
        for path in paths:
            for span in reversed(path.ranges()):
                if span.first <= revision <= span.last:
                    return path.plan(span, revision, None)
        spans = sorted(span for path in paths for span in path.ranges())
        before = max((span.last for span in spans if span.last < revision), default=None)
        problem = f"revision {revision} is not in the archive, which has {_join_ranges(spans)}"
        if before is None:
            raise ArchiveError(f"{problem}; choose one of these with --to-revision")
        raise ArchiveError(f"{problem}; the newest restorable revision before it: --to-revision {before}")

    def expired(self, cutoff: Instant) -> Iterator[ArchivedObject]:
        """Yield the objects that no state at or after a time needs, so that those left have no new gap."""
        paths = self.paths()
        bases = [obj for obj in paths[0].objects if obj.is_base and obj.time <= cutoff] if paths else []
        if not bases:
            return
        kept = bases[-1]
        for is_base in (True, False):
            for obj in self.objects:
                is_older = (obj.epoch, obj.last) <= (kept.epoch, kept.last)
                if obj.is_base is is_base and obj != kept and is_older and obj.time <= cutoff:
                    yield obj

    def empty_epochs(self) -> Iterator[int]:
        """Yield the epochs before the oldest one with objects, in order.

        An empty epoch after it stays: later epochs continue earlier ones through it, and its claim fences their owners.
        """
        oldest = min((obj.epoch for obj in self.objects), default=self.last_epoch)
        yield from (epoch for epoch in self.claims if epoch < oldest)


def _refuse_tail(path: ArchivePath) -> None:
    """Raise ArchiveError if the path has segments after its last restorable revision, because one is missing."""
    last = path.ranges()[-1].last
    later = min((obj for obj in path.objects if obj.first > last), default=None, key=lambda obj: obj.first)
    if later is not None:
        problem = f"the archive lacks revisions {last + 1} to {later.first - 1}, before {later.name}"
        raise ArchiveError(f"{problem}; the newest restorable revision before them: --to-revision {last}")


def _plan_time(paths: Sequence[ArchivePath], time: Instant) -> RestorePlan:
    for path in paths:
        ranges = path.ranges()
        started = [span for span in ranges if span.first_time <= time]
        if not started:
            continue
        span = started[-1]
        if time > span.last_time:
            if span == ranges[-1]:
                _refuse_tail(path)
            else:
                later = ranges[len(started)]
                problem = f"the archive lacks revisions {span.last + 1} to {later.first - 1}, which may be of this time"
                raise ArchiveError(f"{problem}; the newest restorable revision before them: --to-revision {span.last}")
        return path.plan(span, span.last, time)
    raise ArchiveError("the archive begins after this time; see `batchyard restore URL --list`")


def _join_ranges(spans: Sequence[RestorableRange]) -> str:
    texts = [f"{span.first}" if span.first == span.last else f"{span.first} to {span.last}" for span in spans]
    return ", ".join(texts[-8:])
