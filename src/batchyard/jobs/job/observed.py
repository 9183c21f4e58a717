"""Observed state of a Job: its recorded status, and what its pods add to it.

Source: syncJob, getNewFinishedPods, calculateSucceededIndexes, calculateFailedIndexes and
getPodsWithDelayedDeletionPerIndex in Kubernetes's pkg/controller/job.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, annotation, finalizers_of, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.pod_lifecycle import FAILED, READY, SUCCEEDED, deleted_at, is_ready, phase
from batchyard.base.backoff import backoff
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.jobs.job.failure_policy import FAIL_INDEX, IGNORE, is_counted, policy_decision
from batchyard.jobs.job.spec import NONE, JobSpec, Spans, contains, job_spec, parsed, total, with_indexes

# --- pods ---
#
# The pods of a Job, as its controller sees them.
#
# A pod is tracked while it has the Job finalizer: until its termination is recorded in the Job's status.
# Sources: Kubernetes's pkg/controller/job (isPodFailed, getCompletionIndex), pkg/controller (IsPodActive,
# IsPodTerminating).


NO_INDEX = -1


@dataclass(slots=True)
class JobPod:
    """One pod."""

    obj: Obj
    uid: str
    phase: str
    index: int
    tracked: bool
    #: Whether it has a deletion timestamp; it may still be running.
    deleted: bool

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.phase in {SUCCEEDED, FAILED}

    @property
    def active(self) -> bool:
        """Whether it is running or pending, and not being deleted."""
        return not self.deleted and not self.ended

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted and has not ended."""
        return self.deleted and not self.ended

    @property
    def ready(self) -> bool:
        """Whether it is ready."""
        return is_ready(self.obj)


def job_pods(pods: Iterable[Obj]) -> list[JobPod]:
    """Return the views of the pods of a Job."""
    return [_job_pod(pod) for pod in pods]


def has_failed(pod: JobPod, spec: JobSpec) -> bool:
    """Report whether it failed. A terminating pod counts as failed unless the Job waits for its end."""
    return pod.phase == FAILED or (pod.terminating and not spec.waits_for_the_end)


def is_tracked(obj: Obj) -> bool:
    """Report whether a pod has the Job finalizer."""
    return well_known.JOB_TRACKING in finalizers_of(obj)


def untracked(obj: Obj) -> Obj:
    """Return the pod without the Job finalizer."""
    return without_finalizer(obj, well_known.JOB_TRACKING)


def count_noted(obj: Obj, name: str) -> int:
    """Return the number in an annotation of a pod; 0 if it is absent."""
    text = annotation(obj, name)
    return 0 if text is None else max(0, _index(text))


def _job_pod(obj: Obj) -> JobPod:
    metadata = obj["metadata"]
    text = annotation(obj, well_known.COMPLETION_INDEX)
    return JobPod(
        obj,
        metadata["uid"],
        phase(obj),
        NO_INDEX if text is None else _index(text),
        is_tracked(obj),
        "deletionTimestamp" in metadata,
    )


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else NO_INDEX


# --- backoff ---
#
# The backoff before a Job replaces failed pods: 10 s, doubled with each failure, at most 10 min.
#
# A success resets the count. Source: pkg/controller/job/backoff_utils.go of Kubernetes.


_FIRST: Final = 10 * SECOND
_LONGEST: Final = 10 * MINUTE
#: Further failures do not increase the backoff.
FAILURES_MAX: Final = 7


def since_success(failures: Iterable[Instant], successes: Iterable[Instant]) -> list[Instant]:
    """Return the times of the relevant failures since the last success, in order."""
    last_success = max(successes, default=-1)
    return sorted(instant for instant in failures if instant > last_success)[-FAILURES_MAX:]


def due_after(failures: list[Instant]) -> Instant:
    """Return when pods may be created after these failures."""
    return failures[-1] + backoff(_FIRST, _LONGEST, len(failures)) if failures else 0


def index_due_after(failed: Obj) -> Instant:
    """Return when the pod of an index may be replaced; each index has its own failure count, passed on by its pods."""
    noted = count_noted(failed, well_known.INDEX_FAILURES) + count_noted(failed, well_known.INDEX_IGNORED_FAILURES)
    return finished_at(failed) + backoff(_FIRST, _LONGEST, noted + 1)


def finished_at(pod: Obj) -> Instant:
    """Return when a pod ended: from its containers, else when it became unready, else its deletion time."""
    status = pod.get("status") or {}
    ends = [_ended(container) for container in status.get("containerStatuses") or ()]
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        return max(map(parse_time, known))
    ready = find_condition(status, READY)
    if ready is not None and ready["status"] == "False" and ready.get("lastTransitionTime"):
        return parse_time(ready["lastTransitionTime"])
    deleted = deleted_at(pod)
    return parse_time(pod["metadata"]["creationTimestamp"]) if deleted is None else deleted


def _ended(container: Obj) -> str | None:
    ended = (container.get("state") or {}).get("terminated") or {}
    return ended.get("finishedAt") or None


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """An unfinished Job with its pods."""

    spec: JobSpec
    status: Mapping[str, Any]
    #: Whether the Job is being deleted.
    leaving: bool
    pods: Sequence[JobPod]
    active: Sequence[JobPod]
    #: The uids of terminated pods that are recorded, but not in the counters of the status yet.
    uncounted_succeeded: Collection[str]
    uncounted_failed: Collection[str]
    #: Numbers of succeeded pods (or indexes) and of failed pods, recorded or not.
    succeeded: int
    failed: int
    #: The succeeded indexes in the status; these and the new ones; the finally failed indexes.
    recorded_indexes: Spans
    succeeded_indexes: Spans
    failed_indexes: Spans
    #: By index, the failed pod that stays tracked until its replacement has taken over its failure count.
    predecessors: Mapping[int, JobPod]


def observe_job(job: Obj, pods: Sequence[JobPod]) -> ObservedJob:
    """Return the observed state of a Job with these pods."""
    spec, status = job_spec(job), job.get("status") or {}
    uncounted = status.get("uncountedTerminatedPods") or {}
    uncounted_succeeded, uncounted_failed = (frozenset(uncounted.get(f) or ()) for f in ("succeeded", "failed"))
    new = [pod for pod in pods if _is_new(pod, spec, uncounted_succeeded | uncounted_failed)]
    succeeded = [pod for pod in new if pod.phase == SUCCEEDED]
    failed = [pod for pod in new if has_failed(pod, spec) and is_counted(spec.failure_rules, pod.obj)]
    active = [pod for pod in pods if pod.active]
    recorded = parsed(status.get("completedIndexes"), spec.completions or 0) if spec.indexed else NONE
    done = with_indexes(recorded, [pod.index for pod in succeeded]) if spec.indexed else NONE
    lost = _failed_indexes(spec, status, pods)
    successes = status.get("succeeded", 0) + len(uncounted_succeeded) + len(succeeded)
    return ObservedJob(
        spec=spec,
        status=status,
        leaving="deletionTimestamp" in job["metadata"],
        pods=pods,
        active=active,
        uncounted_succeeded=uncounted_succeeded,
        uncounted_failed=uncounted_failed,
        succeeded=total(done) if spec.indexed else successes,
        failed=status.get("failed", 0) + len(uncounted_failed) + len(failed),
        recorded_indexes=recorded,
        succeeded_indexes=done,
        failed_indexes=lost,
        predecessors=_predecessors(spec, pods, active, (done, lost)),
    )


def _is_new(pod: JobPod, spec: JobSpec, uncounted: Collection[str]) -> bool:
    """Report whether a pod has ended or is ending, and is not in the status yet; it needs a valid index."""
    if not pod.tracked or pod.active or pod.uid in uncounted:
        return False
    return not spec.indexed or spec.has_index(pod.index)


def _failed_indexes(spec: JobSpec, status: Mapping[str, Any], pods: Sequence[JobPod]) -> Spans:
    """Return the indexes that are not retried."""
    if spec.backoff_limit_per_index is None:
        return NONE
    recorded = parsed(status.get("failedIndexes"), spec.completions or 0)
    return with_indexes(recorded, [pod.index for pod in pods if _is_last_try(pod, spec, spec.backoff_limit_per_index)])


def _is_last_try(pod: JobPod, spec: JobSpec, limit: int) -> bool:
    """Report whether this pod makes its index fail."""
    if not (pod.tracked and spec.has_index(pod.index) and has_failed(pod, spec)):
        return False
    action = policy_decision(spec.failure_rules, pod.obj).action
    return action == FAIL_INDEX or (action != IGNORE and count_noted(pod.obj, well_known.INDEX_FAILURES) >= limit)


def _predecessors(
    spec: JobSpec, pods: Sequence[JobPod], active: Sequence[JobPod], decided: tuple[Spans, Spans]
) -> Mapping[int, JobPod]:
    """Return the latest failed pod of each index that is to be retried and has no pod yet."""
    if spec.backoff_limit_per_index is None:
        return {}
    taken = {pod.index for pod in active}
    found: dict[int, JobPod] = {}
    for pod in pods:
        index = pod.index
        if not (pod.tracked and spec.has_index(index) and has_failed(pod, spec)) or index in taken:
            continue
        if any(contains(spans, index) for spans in decided):
            continue
        if index not in found or _generation(pod) >= _generation(found[index]):
            found[index] = pod
    return found


def _generation(pod: JobPod) -> tuple[int, int]:
    """Return the number of failed pods of its index before it, and when it failed."""
    before = count_noted(pod.obj, well_known.INDEX_FAILURES)
    return before + count_noted(pod.obj, well_known.INDEX_IGNORED_FAILURES), finished_at(pod.obj)
