"""Finalizer tracking: counts each terminated pod exactly once, even if writes are lost.

1. The termination is recorded in the Job's status: the uid under `uncountedTerminatedPods`, or the completed index.
2. Then the pod's finalizer is removed.
3. Then the counter is incremented, in the write that removes the uid from the record.

Each step depends only on what the previous step wrote, and is repeated if it was lost. Source: Kubernetes's
pkg/controller/job (trackJobStatusAndRemoveFinalizers, canRemoveFinalizer, cleanUncountedPodsWithoutFinalizers).
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from batchyard.api.views.pod_lifecycle import SUCCEEDED
from batchyard.jobs.job.completion import JobOutcome
from batchyard.jobs.job.failure_policy import is_counted
from batchyard.jobs.job.observed import JobPod, ObservedJob, has_failed
from batchyard.jobs.job.spec import contains, written

#: The maximum number of uids in a status, to limit its size.
UNCOUNTED_MAX: Final = 500


class PodTerminationRecord(Enum):
    """How the termination of a tracked pod is recorded."""

    NOT_YET = auto()  # it is needed, or may still run
    NOTHING = auto()
    SUCCESS = auto()
    FAILURE = auto()


_NOT_YET, _NOTHING, _SUCCESS, _FAILURE = (
    PodTerminationRecord.NOT_YET,
    PodTerminationRecord.NOTHING,
    PodTerminationRecord.SUCCESS,
    PodTerminationRecord.FAILURE,
)  # enum attribute access is slow


def releasable(standing: ObservedJob, verdict: JobOutcome | None) -> list[JobPod]:
    """Return the tracked pods whose termination is recorded under that outcome: their finalizer may be removed."""
    ends = [(pod, _end(pod, standing, verdict)) for pod in standing.pods if pod.tracked]
    return [pod for pod, end in ends if end is not _NOT_YET and _is_recorded(pod, end, standing)]


def recorded(standing: ObservedJob, verdict: JobOutcome | None) -> dict[str, Any]:
    """Return the status fields about terminated pods, with all due terminations recorded."""
    ends = {pod.uid: _end(pod, standing, verdict) for pod in standing.pods if pod.tracked}
    spec, uncounted = standing.spec, standing.status.get("uncountedTerminatedPods") or {}
    fields: dict[str, Any] = {}
    listed: list[list[str]] = []
    for field, kind in (("succeeded", _SUCCESS), ("failed", _FAILURE)):
        known = dict.fromkeys(uncounted.get(field) or ())
        kept = [uid for uid in known if uid in ends]
        fields[field] = standing.status.get(field, 0) + len(known) - len(kept)
        listed.append(kept + [uid for uid, end in ends.items() if end is kind and uid not in known])
    if spec.indexed:  # each index is its own record
        listed[0] = []
        fields |= {"succeeded": standing.succeeded, "completedIndexes": written(standing.succeeded_indexes)}
    if spec.backoff_limit_per_index is not None:
        fields["failedIndexes"] = written(standing.failed_indexes)
    return {**fields, "uncountedTerminatedPods": _bounded(*listed)}


def _end(pod: JobPod, standing: ObservedJob, verdict: JobOutcome | None) -> PodTerminationRecord:
    """Return how the termination of a tracked pod is to be recorded."""
    spec = standing.spec
    has_place = not spec.indexed or spec.has_index(pod.index)
    if pod.phase == SUCCEEDED:
        return _SUCCESS if has_place and pod.uid not in standing.uncounted_failed else _NOTHING
    failed = has_failed(pod, spec)
    if verdict is None and not standing.leaving:
        predecessor = standing.predecessors.get(pod.index)
        if not failed or (predecessor is not None and predecessor.uid == pod.uid):
            return _NOT_YET
    if failed or (verdict is not None and not verdict.succeeded):  # a failing Job terminates its pods
        return _FAILURE if has_place and is_counted(spec.failure_rules, pod.obj) else _NOTHING
    return _NOTHING


def _is_recorded(pod: JobPod, end: PodTerminationRecord, standing: ObservedJob) -> bool:
    """Report whether the status records this termination of a pod."""
    if end is _FAILURE:
        return pod.uid in standing.uncounted_failed
    if end is _SUCCESS:
        if standing.spec.indexed:
            return contains(standing.recorded_indexes, pod.index)
        return pod.uid in standing.uncounted_succeeded
    return True


def _bounded(succeeded: Sequence[str], failed: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the uids for the status, up to the limit; the other pods stay tracked until there is space."""
    listed = {"succeeded": succeeded[:UNCOUNTED_MAX], "failed": failed[: max(0, UNCOUNTED_MAX - len(succeeded))]}
    return {field: uids for field, uids in listed.items() if uids}
