"""The Jobs of a JobSet, sorted by what they mean to it."""

from collections.abc import Iterable
from typing import NamedTuple

from batchyard.api import well_known
from batchyard.api.conditions import Condition
from batchyard.api.meta import Obj, label


class Children(NamedTuple):
    """Those of the present restart attempt by how they stand, and those of earlier ones, which are to go."""

    active: list[Obj]
    successful: list[Obj]
    failed: list[Obj]
    previous: list[Obj]

    def names(self) -> dict[str, None]:
        """The names that are taken."""
        return {job["metadata"]["name"]: None for jobs in self for job in jobs}


def sort_children(jobset: Obj, jobs: Iterable[Obj]) -> Children | None:
    """The Jobs by what they mean; None if one does not say which restart attempt it belongs to.

    A JobSet with such a Job is left alone until the Job is gone or marked, as upstream leaves it.
    """
    restarts: int = (jobset.get("status") or {}).get("restarts", 0)
    children = Children([], [], [], [])
    for job in jobs:
        attempt = label(job, well_known.RESTART_ATTEMPT) or ""
        if not (attempt.isascii() and attempt.isdigit()):
            return None
        if int(attempt) < restarts:
            children.previous.append(job)
            continue
        end = ending(job)
        if end is None:
            children.active.append(job)
        elif end["type"] == "Failed":
            children.failed.append(job)
        else:
            children.successful.append(job)
    return children


def ending(job: Obj) -> Condition | None:
    """The condition that says how a Job ended; None while it has not."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in {"Complete", "Failed"}:
            return condition  # type: ignore[no-any-return]
    return None


def replicated_job_name(job: Obj) -> str:
    """The replicated job a Job is of; '' if it does not say."""
    return label(job, well_known.REPLICATED_JOB_NAME) or ""
