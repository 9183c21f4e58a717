"""Waiting times and preemption counts of Workloads, computed from the Events of controllers.

Cheap enough for every run: a few additions for each admission and eviction.
"""

from dataclasses import dataclass

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import EventRecord


@dataclass(slots=True)
class _WorkloadWaits:
    """The waits of one Workload: the begin of the current one (None: it has quota), and the sum of earlier ones."""

    created: Instant
    since: Instant | None
    waited: Duration = 0
    preemptions: int = 0


class WaitTracker:
    """The waits and preemptions of Workloads, and the totals of admissions, evictions and preemptions."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stories: dict[Key, _WorkloadWaits] = {}
        #: The numbers of admissions and evictions of all Workloads, and how many of the evictions were preemptions.
        self.admissions = 0
        self.evictions = 0
        self.preemptions = 0

    def observe(self, at: Instant, record: EventRecord) -> None:
        """Apply an Event. Events of pods are ignored, although pods have Preempted Events too."""
        if record.regarding.kind != scheme.WORKLOAD:
            return
        reason = record.reason
        if reason == "QuotaReserved":
            self._admitted(record.regarding, at)
        elif reason.startswith("EvictedDueTo"):
            self.evictions += 1
            self._left(record.regarding, at).since = at
        elif reason == "Preempted":  #  in addition to the Event of the eviction
            self.preemptions += 1
            self._left(record.regarding, at).preemptions += 1

    def waited(self, workload: Obj, now: Instant) -> Duration:
        """Return the total time that a Workload has been without quota, from its creation on."""
        story = self._story(_key(workload), workload)
        if story.since is None or _is_over(workload):
            return story.waited
        return story.waited + max(0, now - story.since)

    def preempted(self, workload: Obj) -> int:
        """Return how often a Workload was preempted."""
        return self._story(_key(workload), workload).preemptions

    def _admitted(self, key: Key, at: Instant) -> None:
        self.admissions += 1
        workload = self._reader.get(key)
        if workload is None:
            return
        story = self._stories[key] = self._story(key, workload)
        if story.since is not None:
            story.waited += max(0, at - story.since)
        story.since = None

    def _story(self, key: Key, workload: Obj) -> _WorkloadWaits:
        """Return the record of a Workload; a new one if the record belongs to a deleted Workload of the same name."""
        created, story = parse_time(workload["metadata"]["creationTimestamp"]), self._stories.get(key)
        return story if story is not None and story.created >= created else _WorkloadWaits(created, created)

    def _left(self, key: Key, at: Instant) -> _WorkloadWaits:
        """Return the record of a Workload that lost its quota; one without a record waits since now."""
        return self._stories.setdefault(key, _WorkloadWaits(at, at))


def _key(workload: Obj) -> Key:
    view = workload_view(workload)
    return Key(scheme.WORKLOAD, view.namespace, view.name)


def _is_over(workload: Obj) -> bool:
    """Whether it needs no quota any more."""
    view = workload_view(workload)
    return view.finished or not view.active
