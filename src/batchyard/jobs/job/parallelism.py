"""How many pods a Job should have, which of them are too many, and which new ones may be made now.

Pods that are missing are made together, as many as Kubernetes makes at a time: a Job may want more than there is room
for, and others wait meanwhile. Kubernetes begins with one and doubles, so as not to flood its API server with what it
may refuse. Sources: Kubernetes's pkg/controller/job (manageJob, activePodsForRemoval, firstPendingIndexes) and
pkg/controller (ActivePods, the order in which pods are given up).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.conditions import find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.pod_lifecycle import PENDING, READY, RUNNING, SUCCEEDED
from batchyard.base.instant import Instant
from batchyard.jobs.job.failure_policy import is_counted
from batchyard.jobs.job.observed import (
    NO_INDEX,
    JobPod,
    Standing,
    count_noted,
    due_after,
    finished_at,
    has_failed,
    index_due_after,
    since_success,
)
from batchyard.jobs.job.spec import first_missing, union, with_indexes

#: Pods that are made at a time. They bring the Job back for the next.
CREATED_MAX: Final = 500
_PHASES: Final = {PENDING: 0, RUNNING: 2}  # one whose node is lost is between them


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod to make."""

    index: int = NO_INDEX
    #: What it takes over: how often pods of its index failed, and how often without counting. None: nobody counts.
    failures: int | None = None
    ignored: int = 0


class Scaling(NamedTuple):
    """How the number of pods changes."""

    create: Sequence[NewPod] = ()
    #: Pods that the Job does without: they do not count as failures.
    dismiss: Sequence[JobPod] = ()
    #: Pods that end with the Job: they count as failures.
    delete: Sequence[JobPod] = ()
    wake_at: Instant | None = None


def scaling(standing: Standing, failures: Iterable[Instant], now: Instant) -> Scaling:
    """What a Job that goes on needs; `failures` tells when pods failed that are not tracked any more."""
    if standing.spec.suspended:
        return Scaling(dismiss=standing.active)
    wanted = _wanted(standing)
    surplus = _surplus(standing, max(0, len(standing.active) - wanted))
    if surplus:
        return Scaling(dismiss=surplus)
    missing = min(wanted - len(standing.active) - len(_awaited(standing)), CREATED_MAX)
    if missing <= 0:
        return Scaling()
    if standing.spec.backoff_limit_per_index is not None:
        return _indexes_due(standing, _missing_indexes(standing, missing), now)
    waits_until = due_after(_failures(standing, failures))
    if waits_until > now:
        return Scaling(wake_at=waits_until)
    indexes = _missing_indexes(standing, missing) if standing.spec.indexed else [NO_INDEX] * missing
    return Scaling(create=[NewPod(index) for index in indexes])


def _wanted(standing: Standing) -> int:
    """How many pods are to be active."""
    spec = standing.spec
    if spec.completions is not None:
        return max(0, min(spec.parallelism, spec.completions - standing.succeeded))
    return len(standing.active) if standing.succeeded else spec.parallelism


def _surplus(standing: Standing, at_least: int) -> list[JobPod]:
    """The active pods to give up: so many, and all whose index is not the Job's or has another pod already."""
    if not at_least and _all_have_places(standing):
        return []
    kept, surplus = sorted(standing.active, key=_worth), []
    if standing.spec.indexed:
        best = {pod.index: pod for pod in kept if standing.spec.has_index(pod.index)}
        surplus = [pod for pod in kept if best.get(pod.index) is not pod]
        kept = [pod for pod in kept if best.get(pod.index) is pod]
    return surplus + kept[: max(0, at_least - len(surplus))]


def _all_have_places(standing: Standing) -> bool:
    """Whether each active pod has an index of its own."""
    if not standing.spec.indexed:
        return True
    indexes = {pod.index for pod in standing.active if standing.spec.has_index(pod.index)}
    return len(indexes) == len(standing.active)


def _worth(pod: JobPod) -> tuple[bool, int, bool, Instant, int, Instant]:
    """The sort key by which pods are given up: those who have come least far first, then the newest."""
    status = pod.obj.get("status") or {}
    ready = find_condition(status, READY) if pod.ready else None
    restarts = max((c.get("restartCount", 0) for c in status.get("containerStatuses") or ()), default=0)
    return (
        bool(pod.obj["spec"].get("nodeName")),
        _PHASES.get(pod.phase, 1),
        ready is not None,
        -parse_time(ready["lastTransitionTime"]) if ready is not None else 0,
        -restarts,
        -parse_time(pod.obj["metadata"]["creationTimestamp"]),
    )


def _missing_indexes(standing: Standing, count: int) -> list[int]:
    """The first indexes that neither succeeded, nor failed for good, nor have a pod."""
    spec = standing.spec
    placed = [pod.index for pod in (*standing.active, *_awaited(standing)) if spec.has_index(pod.index)]
    taken = with_indexes(standing.succeeded_indexes, placed)
    return first_missing(union(taken, standing.failed_indexes), count, spec.completions or 0)


def _awaited(standing: Standing) -> list[JobPod]:
    """The pods on their way out that are replaced only when they have ended."""
    return [pod for pod in standing.pods if pod.terminating] if standing.spec.waits_for_the_end else []


def _failures(standing: Standing, failures: Iterable[Instant]) -> list[Instant]:
    """When pods failed since the last success."""
    tracked = [pod for pod in standing.pods if pod.tracked and not pod.active]
    if standing.spec.indexed:
        tracked = [pod for pod in tracked if standing.spec.has_index(pod.index)]
    failed = [finished_at(pod.obj) for pod in tracked if has_failed(pod, standing.spec)]
    return since_success([*failures, *failed], [finished_at(p.obj) for p in tracked if p.phase == SUCCEEDED])


def _indexes_due(standing: Standing, indexes: Sequence[int], now: Instant) -> Scaling:
    """New pods for the indexes that need not wait; each waits after its own failures."""
    create: list[NewPod] = []
    waits: list[Instant] = []
    for index in indexes:
        predecessor = standing.predecessors.get(index)
        due = 0 if predecessor is None else index_due_after(predecessor.obj)
        if due <= now:
            create.append(_successor(index, predecessor, standing))
        else:
            waits.append(due)
    return Scaling(create=create, wake_at=min(waits, default=None))


def _successor(index: int, failed: JobPod | None, standing: Standing) -> NewPod:
    """The next pod of an index, with the failures of those before it."""
    if failed is None:
        return NewPod(index, 0)
    counted = is_counted(standing.spec.failure_rules, failed.obj)
    failures = count_noted(failed.obj, well_known.INDEX_FAILURES) + counted
    ignored = count_noted(failed.obj, well_known.INDEX_IGNORED_FAILURES) + (not counted)
    return NewPod(index, failures, ignored)
