"""Parallelism of a Job: how many pods it should have, which are surplus, and which may be created now.

Missing pods are created in one batch, up to the limit of Kubernetes, because a Job may want more pods than fit while
others wait. Kubernetes starts with one and doubles, to protect its API server from many rejected writes.
Sources: Kubernetes's pkg/controller/job (manageJob, activePodsForRemoval, firstPendingIndexes) and pkg/controller
(ActivePods, the order in which pods are given up).
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
    ObservedJob,
    count_noted,
    due_after,
    finished_at,
    has_failed,
    index_due_after,
    since_success,
)
from batchyard.jobs.job.spec import first_missing, union, with_indexes

#: The number of pods created in one batch. Their events trigger the next one.
CREATED_MAX: Final = 500
_PHASES: Final = {PENDING: 0, RUNNING: 2}  # one on a lost node is between them


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod to create."""

    index: int = NO_INDEX
    #: The counted and ignored failures of its index; None if they are not counted.
    failures: int | None = None
    ignored: int = 0


class PodChanges(NamedTuple):
    """A change of the number of pods."""

    create: Sequence[NewPod] = ()
    #: Surplus pods, which do not count as failures.
    dismiss: Sequence[JobPod] = ()
    #: Pods deleted with the Job, which count as failures.
    delete: Sequence[JobPod] = ()
    wake_at: Instant | None = None


def plan_pod_changes(standing: ObservedJob, failures: Iterable[Instant], now: Instant) -> PodChanges:
    """Return the change for a continuing Job; `failures` are the times of failures of untracked pods."""
    if standing.spec.suspended:
        return PodChanges(dismiss=standing.active)
    wanted = _wanted(standing)
    surplus = _surplus(standing, max(0, len(standing.active) - wanted))
    if surplus:
        return PodChanges(dismiss=surplus)
    missing = min(wanted - len(standing.active) - len(_awaited(standing)), CREATED_MAX)
    if missing <= 0:
        return PodChanges()
    if standing.spec.backoff_limit_per_index is not None:
        return _indexes_due(standing, _missing_indexes(standing, missing), now)
    waits_until = due_after(_failures(standing, failures))
    if waits_until > now:
        return PodChanges(wake_at=waits_until)
    indexes = _missing_indexes(standing, missing) if standing.spec.indexed else [NO_INDEX] * missing
    return PodChanges(create=[NewPod(index) for index in indexes])


def _wanted(standing: ObservedJob) -> int:
    """Return the desired number of active pods."""
    spec = standing.spec
    if spec.completions is not None:
        return max(0, min(spec.parallelism, spec.completions - standing.succeeded))
    return len(standing.active) if standing.succeeded else spec.parallelism


def _surplus(standing: ObservedJob, at_least: int) -> list[JobPod]:
    """Return the surplus pods: `at_least` of them, and all with an invalid or duplicate index."""
    if not at_least and _all_have_places(standing):
        return []
    kept, surplus = sorted(standing.active, key=_worth), []
    if standing.spec.indexed:
        best = {pod.index: pod for pod in kept if standing.spec.has_index(pod.index)}
        surplus = [pod for pod in kept if best.get(pod.index) is not pod]
        kept = [pod for pod in kept if best.get(pod.index) is pod]
    return surplus + kept[: max(0, at_least - len(surplus))]


def _all_have_places(standing: ObservedJob) -> bool:
    """Report whether each active pod has a valid index of its own."""
    if not standing.spec.indexed:
        return True
    indexes = {pod.index for pod in standing.active if standing.spec.has_index(pod.index)}
    return len(indexes) == len(standing.active)


def _worth(pod: JobPod) -> tuple[bool, int, bool, Instant, int, Instant]:
    """Return the sort key for surplus pods: the least advanced first, then the newest."""
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


def _missing_indexes(standing: ObservedJob, count: int) -> list[int]:
    """Return the first indexes that neither succeeded, nor finally failed, nor have a pod."""
    spec = standing.spec
    placed = [pod.index for pod in (*standing.active, *_awaited(standing)) if spec.has_index(pod.index)]
    taken = with_indexes(standing.succeeded_indexes, placed)
    return first_missing(union(taken, standing.failed_indexes), count, spec.completions or 0)


def _awaited(standing: ObservedJob) -> list[JobPod]:
    """Return the terminating pods that are replaced only when they have ended."""
    return [pod for pod in standing.pods if pod.terminating] if standing.spec.waits_for_the_end else []


def _failures(standing: ObservedJob, failures: Iterable[Instant]) -> list[Instant]:
    """Return the times of failures since the last success."""
    tracked = [pod for pod in standing.pods if pod.tracked and not pod.active]
    if standing.spec.indexed:
        tracked = [pod for pod in tracked if standing.spec.has_index(pod.index)]
    failed = [finished_at(pod.obj) for pod in tracked if has_failed(pod, standing.spec)]
    return since_success([*failures, *failed], [finished_at(p.obj) for p in tracked if p.phase == SUCCEEDED])


def _indexes_due(standing: ObservedJob, indexes: Sequence[int], now: Instant) -> PodChanges:
    """Return new pods for the indexes whose own backoff is over."""
    create: list[NewPod] = []
    waits: list[Instant] = []
    for index in indexes:
        predecessor = standing.predecessors.get(index)
        due = 0 if predecessor is None else index_due_after(predecessor.obj)
        if due <= now:
            create.append(_successor(index, predecessor, standing))
        else:
            waits.append(due)
    return PodChanges(create=create, wake_at=min(waits, default=None))


def _successor(index: int, failed: JobPod | None, standing: ObservedJob) -> NewPod:
    """Return the next pod of an index, with the failure counts of the previous ones."""
    if failed is None:
        return NewPod(index, 0)
    counted = is_counted(standing.spec.failure_rules, failed.obj)
    failures = count_noted(failed.obj, well_known.INDEX_FAILURES) + counted
    ignored = count_noted(failed.obj, well_known.INDEX_IGNORED_FAILURES) + (not counted)
    return NewPod(index, failures, ignored)
