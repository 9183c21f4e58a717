"""Whose turn it is: which replicated jobs may have Jobs, and may let them run.

`dependsOn` lets one wait for some before it; `startupPolicy: InOrder` lets each wait for the one before it. A JobSet
that is suspended has all its Jobs at once, in whatever order they start later, but for those that depend on others.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.api.meta import Obj
from batchyard.core.lifecycle.jobset.spec import is_suspended, replicas_of, replicated_jobs, starts_in_order
from batchyard.core.lifecycle.jobset.statuses import Counts


class Turn(NamedTuple):
    """The replicated jobs whose turn it is, and whether others wait until these have started."""

    replicated_jobs: list[Mapping[str, Any]]
    others_wait: bool


def turn_of(jobset: Obj, statuses: Mapping[str, Counts]) -> Turn:
    """Whose turn it is, by how the Jobs of all replicated jobs stand."""
    in_order = starts_in_order(jobset) and not is_suspended(jobset)
    replicas: dict[str, int] = {}
    free: list[Mapping[str, Any]] = []
    for replicated in replicated_jobs(jobset):
        replicas[replicated["name"]] = replicas_of(replicated)
        if not all(_is_reached(each, replicas, statuses) for each in replicated.get("dependsOn") or ()):
            continue
        if not in_order:
            free.append(replicated)
        elif not _has_started(replicas_of(replicated), statuses[replicated["name"]]):
            return Turn([replicated], others_wait=True)
    return Turn(free, others_wait=False)


def _is_reached(dependency: Mapping[str, Any], replicas: Mapping[str, int], statuses: Mapping[str, Counts]) -> bool:
    """Whether all Jobs of another replicated job are where they are waited for: started, or complete."""
    name = dependency["name"]
    counts = statuses.get(name)
    if counts is None:
        return False
    if dependency["status"] == "Complete":
        succeeded: int = counts["succeeded"]
        return replicas.get(name, 0) == succeeded
    return _has_started(replicas.get(name, 0), counts)


def _has_started(replicas: int, counts: Counts) -> bool:
    """Whether all its Jobs are ready or have ended."""
    return bool(replicas == counts["failed"] + counts["ready"] + counts["succeeded"])
