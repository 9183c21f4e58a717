"""How a Job stands: what its status has on record, and what its pods say beyond that.

Source: syncJob, getNewFinishedPods, calculateSucceededIndexes, calculateFailedIndexes and
getPodsWithDelayedDeletionPerIndex in Kubernetes's pkg/controller/job.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.core.lifecycle.job.backoff import finished_at
from batchyard.core.lifecycle.job.failure_policy import FAIL_INDEX, IGNORE, is_counted, judgement
from batchyard.core.lifecycle.job.indexes import NONE, Spans, contains, parsed, total, with_indexes
from batchyard.core.lifecycle.job.pods import JobPod, count_noted, has_failed
from batchyard.core.lifecycle.job.spec import JobSpec, job_spec
from batchyard.core.lifecycle.pod import SUCCEEDED


@dataclass(frozen=True, slots=True)
class Standing:
    """An unfinished Job with its pods."""

    spec: JobSpec
    status: Mapping[str, Any]
    #: The Job itself is being deleted.
    leaving: bool
    pods: Sequence[JobPod]
    active: Sequence[JobPod]
    #: The uids of pods that ended and are on record, but may still be tracked: not in the counts of the status yet.
    uncounted_succeeded: Collection[str]
    uncounted_failed: Collection[str]
    #: How many pods, or indexes, succeeded and how many pods failed, on record or not.
    succeeded: int
    failed: int
    #: The indexes that the status has as succeeded; these and the new ones; those that failed for good.
    recorded_indexes: Spans
    succeeded_indexes: Spans
    failed_indexes: Spans
    #: By index, the failed pod that stays tracked until the one in its place has taken over its count of failures.
    predecessors: Mapping[int, JobPod]


def standing(job: Obj, pods: Sequence[JobPod]) -> Standing:
    """How the Job stands with these pods."""
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
    return Standing(
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
    """Whether a pod has ended, or is going to, and the status does not know yet; pods without a place never count."""
    if not pod.tracked or pod.active or pod.uid in uncounted:
        return False
    return not spec.indexed or spec.has_index(pod.index)


def _failed_indexes(spec: JobSpec, status: Mapping[str, Any], pods: Sequence[JobPod]) -> Spans:
    """The indexes that are not tried again."""
    if spec.backoff_limit_per_index is None:
        return NONE
    recorded = parsed(status.get("failedIndexes"), spec.completions or 0)
    return with_indexes(recorded, [pod.index for pod in pods if _is_last_try(pod, spec, spec.backoff_limit_per_index)])


def _is_last_try(pod: JobPod, spec: JobSpec, limit: int) -> bool:
    """Whether an index has failed with this pod."""
    if not (pod.tracked and spec.has_index(pod.index) and has_failed(pod, spec)):
        return False
    action = judgement(spec.failure_rules, pod.obj).action
    return action == FAIL_INDEX or (action != IGNORE and count_noted(pod.obj, well_known.INDEX_FAILURES) >= limit)


def _predecessors(
    spec: JobSpec, pods: Sequence[JobPod], active: Sequence[JobPod], decided: tuple[Spans, Spans]
) -> Mapping[int, JobPod]:
    """The failed pods of indexes that are to be tried again and have no pod yet: of each index the latest."""
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
    """How many pods of its index failed before it, and when it did."""
    before = count_noted(pod.obj, well_known.INDEX_FAILURES)
    return before + count_noted(pod.obj, well_known.INDEX_IGNORED_FAILURES), finished_at(pod.obj)
