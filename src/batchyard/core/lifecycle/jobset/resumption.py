"""A suspended Job that is let go takes over what was put into the JobSet's templates meanwhile.

A queue writes there where the pods are to run. What others put into the Job's own template stays. The template of a
Job may change only while the Job has no start time, so that goes first, in a write of its own.
"""

from typing import Any

from batchyard.api.meta import Obj, with_path


def has_start_time(job: Obj) -> bool:
    """Whether the Job ran before, so that its start time is to be cleared first."""
    return bool((job.get("status") or {}).get("startTime"))


def without_start_time(job: Obj) -> dict[str, Any]:
    """The Job with its start time cleared."""
    return with_path(job, ("status", "startTime"), None)


def resumed_job(job: Obj, template: Obj) -> dict[str, Any]:
    """The Job let go, its pod template merged with that of its replicated job."""
    merged = _merged_template(job["spec"]["template"], template)
    return {**job, "spec": {**job["spec"], "template": merged, "suspend": False}}


def _merged_template(own: Obj, added: Obj) -> Obj:
    for path in (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector")):
        new = (added.get(path[0]) or {}).get(path[1])
        if new:
            old = (own.get(path[0]) or {}).get(path[1]) or {}
            own = with_path(own, path, {**old, **new})
    for field in ("tolerations", "schedulingGates"):
        there = (own.get("spec") or {}).get(field) or []
        missing = [each for each in (added.get("spec") or {}).get(field) or () if each not in there]
        if missing:
            own = with_path(own, ("spec", field), [*there, *missing])
    return own
