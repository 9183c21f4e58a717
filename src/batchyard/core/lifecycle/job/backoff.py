"""How long a Job waits before it replaces pods that failed: 10 s, twice as long after each failure, 10 min at most.

A success starts the count anew. Source: pkg/controller/job/backoff_utils.go of Kubernetes.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.core.lifecycle.backoff import backoff
from batchyard.core.lifecycle.job.pods import count_noted
from batchyard.core.lifecycle.pod import READY, deleted_at

_FIRST: Final = 10 * SECOND
_LONGEST: Final = 10 * MINUTE
#: More failures make no difference.
FAILURES_MAX: Final = 7


def since_success(failures: Iterable[Instant], successes: Iterable[Instant]) -> list[Instant]:
    """When the last failures were, in order, as many as make a difference, without those before the last success."""
    last_success = max(successes, default=-1)
    return sorted(instant for instant in failures if instant > last_success)[-FAILURES_MAX:]


def due_after(failures: list[Instant]) -> Instant:
    """When pods may be made after these failures since the last success."""
    return failures[-1] + backoff(_FIRST, _LONGEST, len(failures)) if failures else 0


def index_due_after(failed: Obj) -> Instant:
    """When the pod of an index may be replaced: each index has a count of its own, which its pods hand on."""
    noted = count_noted(failed, well_known.INDEX_FAILURES) + count_noted(failed, well_known.INDEX_IGNORED_FAILURES)
    return finished_at(failed) + backoff(_FIRST, _LONGEST, noted + 1)


def finished_at(pod: Obj) -> Instant:
    """When a pod ended: as its containers say, else when it was not ready any more, else when it was deleted."""
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
