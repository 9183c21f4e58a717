"""How the Jobs of each replicated job stand, as a JobSet's status tells it."""

from typing import Any

from batchyard.api.meta import Obj
from batchyard.api.views.job import pods_at_once
from batchyard.core.lifecycle.jobset.children import Children, replicated_job_name
from batchyard.core.lifecycle.jobset.spec import replicas_of, replicated_jobs

Counts = dict[str, Any]
"""One entry of status.replicatedJobsStatus: its name, and counts of Jobs."""


def replicated_statuses(jobset: Obj, children: Children) -> dict[str, Counts]:
    """The entries by name. Jobs of earlier restart attempts do not count."""
    counts: dict[str, Counts] = {
        each["name"]: {"name": each["name"], "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
        for each in replicated_jobs(jobset)
    }
    for job in children.active:
        mine = counts.get(replicated_job_name(job))
        if mine is not None:
            mine["ready"] += _is_ready(job)
            mine["active"] += (job.get("status") or {}).get("active", 0) > 0
            mine["suspended"] += bool(job["spec"].get("suspend"))
    for field, jobs in (("succeeded", children.successful), ("failed", children.failed)):
        for job in jobs:
            mine = counts.get(replicated_job_name(job))
            if mine is not None:
                mine[field] += 1
    return counts


def are_all_ready(jobset: Obj, statuses: dict[str, Counts]) -> bool:
    """Whether every Job there is to be runs or has succeeded."""
    wanted = sum(map(replicas_of, replicated_jobs(jobset)))
    there: int = sum(counts["ready"] + counts["succeeded"] for counts in statuses.values())
    return wanted == there


def _is_ready(job: Obj) -> bool:
    """Whether as many of its pods are ready or have succeeded as may run at once."""
    status = job.get("status") or {}
    return bool(status.get("succeeded", 0) + status.get("ready", 0) >= pods_at_once(job["spec"]))
