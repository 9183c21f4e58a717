"""Status of a JobSet: its counts, and the draft that applies changes and records their Events.

All changes of a JobSet's conditions, restarts or terminal state are made here. Every changed condition is reported by
an Event with its reason and message. A condition that was never True is not set to False.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.api.views.ownership import pods_at_once
from batchyard.base.instant import Instant
from batchyard.jobs.jobset import spec as r
from batchyard.jobs.jobset.spec import Children, ReasonMessage, replicas_of, replicated_job_name, replicated_jobs

# --- replicated job statuses ---
#
# The counts of the Jobs of each replicated job, for a JobSet's status.


ReplicatedJobCounts = dict[str, Any]
"""One entry of status.replicatedJobsStatus: its name, and counts of Jobs."""


def replicated_statuses(jobset: Obj, children: Children) -> dict[str, ReplicatedJobCounts]:
    """Return the entries by name. Jobs of earlier restart attempts do not count."""
    counts: dict[str, ReplicatedJobCounts] = {
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


def are_all_ready(jobset: Obj, statuses: dict[str, ReplicatedJobCounts]) -> bool:
    """Report whether all Jobs exist and are ready or succeeded."""
    wanted = sum(map(replicas_of, replicated_jobs(jobset)))
    there: int = sum(counts["ready"] + counts["succeeded"] for counts in statuses.values())
    return wanted == there


def _is_ready(job: Obj) -> bool:
    """Report whether as many of its pods are ready or succeeded as may run at once."""
    status = job.get("status") or {}
    return bool(status.get("succeeded", 0) + status.get("ready", 0) >= pods_at_once(job["spec"]))


NORMAL: Final = "Normal"
WARNING: Final = "Warning"

#: Two mutually exclusive conditions.
_OTHER: Final = {r.STARTUP_IN_PROGRESS: r.STARTUP_COMPLETED, r.STARTUP_COMPLETED: r.STARTUP_IN_PROGRESS}


class JobSetEvent(NamedTuple):
    """An Event about the JobSet."""

    type: str
    reason: str
    message: str


class JobSetStatusDraft:
    """The status of one JobSet during a reconcile, and the Events of its changes."""

    __slots__ = ("_conditions", "_jobset", "_status", "_time", "is_changed", "notes")

    def __init__(self, jobset: Obj, now: Instant) -> None:
        self._jobset = jobset
        self._time = format_time(now)
        self._status: dict[str, Any] = {"restarts": 0, **(jobset.get("status") or {})}
        self._conditions: list[Mapping[str, Any]] = list(self._status.get("conditions") or ())
        self.is_changed = False
        self.notes: list[JobSetEvent] = []

    def result(self) -> Obj:
        """Return the JobSet with the drafted status."""
        if self._conditions:
            self._status["conditions"] = self._conditions
        return {**self._jobset, "status": self._status}

    def count(self, statuses: Mapping[str, ReplicatedJobCounts]) -> None:
        """Set the counts of each replicated job; like upstream, sorted by name in descending order."""
        entries = [statuses[name] for name in sorted(statuses, reverse=True)]
        if entries != (self._status.get("replicatedJobsStatus") or []):
            self._status["replicatedJobsStatus"] = entries
            self.is_changed = True

    def complete(self) -> None:
        """Set the JobSet to completed."""
        self._set(r.COMPLETED, True, r.JOBS_COMPLETED)
        self._set(r.RESTARTING, False, r.RESTART_ENDED_BY_COMPLETION)
        self._status["terminalState"] = r.COMPLETED

    def fail(self, why: ReasonMessage) -> None:
        """Set the JobSet to failed."""
        self._set(r.FAILED, True, why, WARNING)
        self._set(r.RESTARTING, False, r.RESTART_ENDED_BY_FAILURE)
        self._status["terminalState"] = r.FAILED

    def restart(self, cause: str, action: ReasonMessage, *, counts: bool) -> None:
        """Begin the next restart attempt. `counts` is whether it counts towards the maximum."""
        self._status["restarts"] += 1
        if counts:
            self._status["restartsCountTowardsMax"] = self._status.get("restartsCountTowardsMax", 0) + 1
        self.is_changed = True
        self._set(r.RESTARTING, True, ReasonMessage(cause, action.message), WARNING)
        self.notes.append(JobSetEvent(WARNING, *action))

    def end_restart(self) -> None:
        """End a restart, if there is one, because all Jobs are ready."""
        self._set(r.RESTARTING, False, r.RESTARTED)

    def suspend(self) -> None:
        """Set the JobSet to suspended."""
        self._set(r.SUSPENDED, True, r.JOBS_SUSPENDED)
        self._set(r.RESTARTING, False, r.RESTART_ENDED_BY_SUSPENSION)

    def resume(self) -> None:
        """Set the JobSet to resumed."""
        self._set(r.SUSPENDED, False, r.JOBS_RESUMED)

    def start_in_order(self) -> None:
        """Record that the in-order startup is in progress."""
        self._set(r.STARTUP_IN_PROGRESS, True, r.IN_ORDER_IN_PROGRESS)

    def end_start_in_order(self) -> None:
        """Record that the in-order startup has completed."""
        self._set(r.STARTUP_COMPLETED, True, r.IN_ORDER_COMPLETED)

    def _set(self, kind: str, holds: bool, why: ReasonMessage, event_type: str = NORMAL) -> None:
        """Set a condition, and record an Event if it changed."""
        index = next((i for i, each in enumerate(self._conditions) if each["type"] == kind), None)
        changed = holds and self._end_other(kind)
        if index is None:
            if holds:
                self._conditions.append(self._condition(kind, "True", self._time, why))
                changed = True
        else:
            old, status = self._conditions[index], "True" if holds else "False"
            since = self._time if old["status"] != status else old.get("lastTransitionTime", self._time)
            if (old["status"], old.get("reason"), old.get("message")) != (status, *why):
                self._conditions[index] = self._condition(kind, status, since, why)
                changed = True
        if changed:
            self.is_changed = True
            self.notes.append(JobSetEvent(event_type, *why))

    def _end_other(self, kind: str) -> bool:
        """Set the other one of two exclusive conditions to False, unchanged otherwise. Return whether it was True."""
        for index, condition in enumerate(self._conditions):
            if condition["type"] == _OTHER.get(kind) and condition["status"] == "True":
                self._conditions[index] = {**condition, "status": "False"}
                return True
        return False

    def _condition(self, kind: str, status: str, since: str, why: ReasonMessage) -> dict[str, Any]:
        return {
            "type": kind,
            "status": status,
            "lastTransitionTime": since,
            "reason": why.reason,
            "message": why.message,
        }
