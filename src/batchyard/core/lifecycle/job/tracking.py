"""How each pod that ends is counted exactly once, whatever is lost on the way.

1. Its end is put on record in the Job's status: the uid under `uncountedTerminatedPods`, or the completed index.
2. Then it loses its finalizer.
3. Then the count grows, in the write that takes the uid off the record.

Each step needs only what the step before it wrote, and is done again if it was lost. Source: Kubernetes's
pkg/controller/job (trackJobStatusAndRemoveFinalizers, canRemoveFinalizer, cleanUncountedPodsWithoutFinalizers).
"""

from enum import Enum, auto
from typing import Any, Final

from batchyard.core.lifecycle.job.failure_policy import is_counted
from batchyard.core.lifecycle.job.indexes import contains, total, written
from batchyard.core.lifecycle.job.pods import JobPod, has_failed
from batchyard.core.lifecycle.job.standing import Standing
from batchyard.core.lifecycle.job.verdict import Verdict
from batchyard.core.lifecycle.pod import SUCCEEDED

#: How many uids a status may list, so that it stays small.
UNCOUNTED_MAX: Final = 500


class Due(Enum):
    """What a tracked pod is to be put on record as before it loses its finalizer."""

    NOT_YET = auto()  # it is needed, or may still do something
    NOTHING = auto()
    SUCCESS = auto()
    FAILURE = auto()


_NOT_YET, _NOTHING, _SUCCESS, _FAILURE = Due.NOT_YET, Due.NOTHING, Due.SUCCESS, Due.FAILURE


def releasable(standing: Standing, verdict: Verdict | None) -> list[JobPod]:
    """The tracked pods whose end is on record, with that verdict on record: they may lose their finalizer."""
    tracked = [(pod, due(pod, standing, verdict)) for pod in standing.pods if pod.tracked]
    return [pod for pod, as_what in tracked if as_what is not _NOT_YET and _is_recorded(pod, as_what, standing)]


def recorded(standing: Standing, verdict: Verdict | None) -> dict[str, Any]:
    """The fields of the status that tell of ended pods, with all ends on record that are due."""
    tracked = {pod.uid: due(pod, standing, verdict) for pod in standing.pods if pod.tracked}
    status = standing.status
    uncounted: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    room = UNCOUNTED_MAX
    for field, as_what in (("succeeded", _SUCCESS), ("failed", _FAILURE)):
        listed = (status.get("uncountedTerminatedPods") or {}).get(field) or []
        kept = [uid for uid in listed if uid in tracked]
        if standing.spec.indexed and as_what is _SUCCESS:
            fields[field] = total(standing.succeeded_indexes)
        else:
            fields[field] = status.get(field, 0) + len(listed) - len(kept)
            new = [uid for uid, due_as in tracked.items() if due_as is as_what and uid not in listed]
            kept += new[: max(0, room - len(kept))]
        room -= len(kept)
        if kept:
            uncounted[field] = kept
    fields["uncountedTerminatedPods"] = uncounted
    if standing.spec.indexed:
        fields["completedIndexes"] = written(standing.succeeded_indexes)
    if standing.spec.backoff_limit_per_index is not None:
        fields["failedIndexes"] = written(standing.failed_indexes)
    return fields


def due(pod: JobPod, standing: Standing, verdict: Verdict | None) -> Due:
    """What a tracked pod is to be put on record as."""
    spec = standing.spec
    has_index = not spec.indexed or spec.has_index(pod.index)
    if pod.phase == SUCCEEDED:
        return _SUCCESS if has_index and pod.uid not in standing.uncounted_failed else _NOTHING
    failed = has_failed(pod, spec)
    if verdict is None and not standing.leaving:
        predecessor = standing.predecessors.get(pod.index)
        if not failed or (predecessor is not None and predecessor.uid == pod.uid):
            return _NOT_YET
    if failed or (verdict is not None and not verdict.succeeded):  # a Job that fails takes its pods with it
        return _FAILURE if has_index and is_counted(spec.failure_rules, pod.obj) else _NOTHING
    return _NOTHING


def _is_recorded(pod: JobPod, as_what: Due, standing: Standing) -> bool:
    if as_what is _FAILURE:
        return pod.uid in standing.uncounted_failed
    if as_what is _SUCCESS:
        if standing.spec.indexed:
            return contains(standing.recorded_indexes, pod.index)
        return pod.uid in standing.uncounted_succeeded
    return True
