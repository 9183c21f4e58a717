"""Partial preemptions in a simulation: how many pods each shrunk Workload lost, and for how long.

A shrinking begins when a Workload gets the condition PartiallyPreempted. It ends when the job has quota for as many
pods as before, which may be in a later slice, or when the job loses its quota or finishes. Everything is computed from
watch events.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj, controller_of, find_condition, is_true
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant, duration_seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobframework.slices import granted_counts, slice_name
from batchyard.scheduling.messages import parse_preemptor_uid
from batchyard.scheduling.preemption.shrinking import PARTIALLY_PREEMPTED

#: Decimal places of seconds in documents: microseconds, as instants.
_DECIMAL_PLACES: Final = 6


@dataclass(slots=True)
class Shrinking:
    """A period in which a job had fewer pods because of a partial preemption."""

    #: `namespace/name` of the Workload that was shrunk, and of its job.
    workload: str
    job: str
    preemptor: str
    began_at: Instant
    #: The pods with quota before, and the pods that the Workload kept.
    pods_before: int
    pods_kept: int
    #: When the job had all its pods again, or ended; None: not before the end of the run.
    ended_at: Instant | None = None
    #: The time that pods did not have quota, as the sum over the pods, up to the last change of their number.
    lost_pod_time: Duration = 0

    @property
    def pods_lost(self) -> int:
        """How many pods the Workload lost."""
        return self.pods_before - self.pods_kept


@dataclass(slots=True)
class _OpenShrinking:
    """A shrinking that has not ended, with the present number of pods and the time of its last change."""

    shrinking: Shrinking
    pods: int
    changed_at: Instant

    def change_pods(self, pods: int, now: Instant) -> None:
        lost = max(0, self.shrinking.pods_before - self.pods)
        self.shrinking.lost_pod_time += lost * (now - self.changed_at)
        self.pods, self.changed_at = pods, now


class ShrinkTracker:
    """Tracks the partial preemptions of all elastic jobs from watch events."""

    def __init__(self) -> None:
        #: The shrinkings, in order of time.
        self.shrinkings: list[Shrinking] = []
        self._open: dict[str, _OpenShrinking] = {}
        #: By job (the first slice of its chain), the pods with quota of its Workloads, by uid.
        self._pods_by_job: dict[str, dict[str, int]] = {}
        self._key_by_uid: dict[str, str] = {}

    def observe(self, batch: Iterable[WatchEvent], now: Instant) -> None:
        """Update the shrinkings after a batch of watch events."""
        changed_jobs: dict[str, None] = {}
        for event in batch:
            if event.key.kind == scheme.WORKLOAD:
                view = workload_view(event.obj)
                self._key_by_uid[view.uid] = view.key
                if view.elastic:
                    changed_jobs[self._observe_slice(event, view, now)] = None
        for job in changed_jobs:
            self._update(job, now)

    def finish(self, now: Instant) -> Sequence[Shrinking]:
        """Return all shrinkings, with the lost pod time up to the end of the run."""
        for each in self._open.values():
            each.change_pods(each.pods, now)
        return self.shrinkings

    def _observe_slice(self, event: WatchEvent, view: WorkloadView, now: Instant) -> str:
        job = f"{view.namespace}/{slice_name(event.obj)}"
        pods = self._pods_by_job.setdefault(job, {})
        holds_quota = view.quota_reserved and not (view.finished or view.evicted)
        if _begins_to_shrink(event):
            self._open_shrinking(job, event.obj, pods.get(view.uid, 0), now)
        if holds_quota and event.type is not EventType.DELETED:
            pods[view.uid] = sum(granted_counts(event.obj).values())
        else:
            pods.pop(view.uid, None)
        return job

    def _open_shrinking(self, job: str, obj: Obj, pods_before: int, now: Instant) -> None:
        self._close(job, now)
        condition = find_condition(obj, PARTIALLY_PREEMPTED)
        assert condition is not None
        uid = parse_preemptor_uid(condition["message"])
        kept = _kept_pods(obj)
        view, owner = workload_view(obj), controller_of(obj)
        owner_key = view.key if owner is None else f"{view.namespace}/{owner['name']}"
        preemptor = self._key_by_uid.get(uid, uid)
        shrinking = Shrinking(view.key, owner_key, preemptor, now, max(pods_before, kept), kept)
        self.shrinkings.append(shrinking)
        self._open[job] = _OpenShrinking(shrinking, shrinking.pods_before, now)

    def _update(self, job: str, now: Instant) -> None:
        pods = self._pods_by_job[job]
        count = max(pods.values(), default=0)
        if not pods:
            del self._pods_by_job[job]
        tracked = self._open.get(job)
        if tracked is None:
            return
        has_regrown = tracked.pods < count and count >= tracked.shrinking.pods_before
        if not pods or has_regrown:
            self._close(job, now)
        else:
            tracked.change_pods(count, now)

    def _close(self, job: str, now: Instant) -> None:
        tracked = self._open.pop(job, None)
        if tracked is not None:
            tracked.change_pods(tracked.pods, now)
            tracked.shrinking.ended_at = now


def _begins_to_shrink(event: WatchEvent) -> bool:
    if event.old is None or event.type is EventType.DELETED:
        return False  # it began before the run, or has ended
    return is_true(event.obj, PARTIALLY_PREEMPTED) and not is_true(event.old, PARTIALLY_PREEMPTED)


def _kept_pods(workload: Obj) -> int:
    min_counts = {each["name"]: each.get("minCount") for each in workload["spec"].get("podSets") or ()}
    granted = granted_counts(workload)
    return sum(count if (least := min_counts[name]) is None else min(count, least) for name, count in granted.items())


class ShrinkTotals(NamedTuple):
    """The partial preemptions of one Workload, or of several, in sum."""

    shrink_count: int
    #: The most pods that were lost at once.
    pods_lost: int
    #: How long the Workload had fewer pods, in seconds.
    seconds: float
    #: The time that its lost pods did not run, as the sum over the pods, in seconds.
    pod_seconds: float
    #: The Workload that was the first to shrink it.
    preemptor: str

    def document(self) -> dict[str, Any]:
        """Return the totals as a JSON document."""
        return {
            "count": self.shrink_count,
            "podsLost": self.pods_lost,
            "seconds": round(self.seconds, _DECIMAL_PLACES),
            "lostPodSeconds": round(self.pod_seconds, _DECIMAL_PLACES),
            "by": self.preemptor,
        }


def totals_of(shrinkings: Sequence[Shrinking], end: Instant) -> ShrinkTotals | None:
    """Return the totals of shrinkings, of which open ones last until `end`; None without any."""
    if not shrinkings:
        return None
    periods = [(end if each.ended_at is None else each.ended_at) - each.began_at for each in shrinkings]
    return ShrinkTotals(
        len(shrinkings),
        max(each.pods_lost for each in shrinkings),
        duration_seconds(sum(periods)),
        duration_seconds(sum(each.lost_pod_time for each in shrinkings)),
        shrinkings[0].preemptor,
    )


def totals_by_name(
    shrinkings: Sequence[Shrinking], end: Instant, since: Instant = 0, *, by_job: bool = False
) -> dict[str, ShrinkTotals]:
    """Return the totals of the shrinkings that began at `since` or later, by Workload, or with `by_job`, by job."""
    groups: dict[str, list[Shrinking]] = {}
    for each in shrinkings:
        if each.began_at >= since:
            groups.setdefault(each.job if by_job else each.workload, []).append(each)
    return {name: found for name, each in groups.items() if (found := totals_of(each, end)) is not None}
