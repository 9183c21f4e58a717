"""The status of a JobSet being rewritten: what each event does to it, and the events that tell of it.

Whatever changes a JobSet's conditions, restarts or terminal state does so here. A condition that changes, in whatever
way, is told by an event with its reason and message. One that never was true is not told to be false.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.api.views.ownership import pods_at_once
from batchyard.base.instant import Instant
from batchyard.jobs.jobset import spec as r
from batchyard.jobs.jobset.spec import Children, Why, replicas_of, replicated_job_name, replicated_jobs

# --- statuses ---
#
# How the Jobs of each replicated job stand, as a JobSet's status tells it.


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


NORMAL: Final = "Normal"
WARNING: Final = "Warning"

#: Two conditions of which one is true at most.
_OTHER: Final = {r.STARTUP_IN_PROGRESS: r.STARTUP_COMPLETED, r.STARTUP_COMPLETED: r.STARTUP_IN_PROGRESS}


class Note(NamedTuple):
    """An event about the JobSet."""

    type: str
    reason: str
    message: str


class StatusDraft:
    """The status of one JobSet while a look at it changes it, and the events that go with the changes."""

    __slots__ = ("_conditions", "_jobset", "_status", "_time", "is_changed", "notes")

    def __init__(self, jobset: Obj, now: Instant) -> None:
        self._jobset = jobset
        self._time = format_time(now)
        self._status: dict[str, Any] = {"restarts": 0, **(jobset.get("status") or {})}
        self._conditions: list[Mapping[str, Any]] = list(self._status.get("conditions") or ())
        self.is_changed = False
        self.notes: list[Note] = []

    def result(self) -> Obj:
        """The JobSet with the status as drafted."""
        if self._conditions:
            self._status["conditions"] = self._conditions
        return {**self._jobset, "status": self._status}

    def count(self, statuses: Mapping[str, Counts]) -> None:
        """Tell how the Jobs of each replicated job stand; upstream keeps the entries by name, the last one first."""
        entries = [statuses[name] for name in sorted(statuses, reverse=True)]
        if entries != (self._status.get("replicatedJobsStatus") or []):
            self._status["replicatedJobsStatus"] = entries
            self.is_changed = True

    def complete(self) -> None:
        """Enough of its Jobs have succeeded."""
        self._set(r.COMPLETED, True, r.JOBS_COMPLETED)
        self._set(r.RESTARTING, False, r.RESTART_ENDED_BY_COMPLETION)
        self._status["terminalState"] = r.COMPLETED

    def fail(self, why: Why) -> None:
        """It has failed for good."""
        self._set(r.FAILED, True, why, WARNING)
        self._set(r.RESTARTING, False, r.RESTART_ENDED_BY_FAILURE)
        self._status["terminalState"] = r.FAILED

    def restart(self, cause: str, action: Why, *, counts: bool) -> None:
        """The next restart attempt begins; Jobs of earlier ones are to go. `counts`: it is one of those allowed."""
        self._status["restarts"] += 1
        if counts:
            self._status["restartsCountTowardsMax"] = self._status.get("restartsCountTowardsMax", 0) + 1
        self.is_changed = True
        self._set(r.RESTARTING, True, Why(cause, action.message), WARNING)
        self.notes.append(Note(WARNING, *action))

    def end_restart(self) -> None:
        """All Jobs are ready: a restart, if there was one, is over."""
        self._set(r.RESTARTING, False, r.RESTARTED)

    def suspend(self) -> None:
        """Its Jobs are suspended."""
        self._set(r.SUSPENDED, True, r.JOBS_SUSPENDED)
        self._set(r.RESTARTING, False, r.RESTART_ENDED_BY_SUSPENSION)

    def resume(self) -> None:
        """Its Jobs are let go."""
        self._set(r.SUSPENDED, False, r.JOBS_RESUMED)

    def start_in_order(self) -> None:
        """Its replicated jobs start one after the other, and some have not."""
        self._set(r.STARTUP_IN_PROGRESS, True, r.IN_ORDER_IN_PROGRESS)

    def end_start_in_order(self) -> None:
        """Its replicated jobs have all started, one after the other."""
        self._set(r.STARTUP_COMPLETED, True, r.IN_ORDER_COMPLETED)

    def _set(self, kind: str, holds: bool, why: Why, event_type: str = NORMAL) -> None:
        """Set a condition, and tell of it if that changes anything."""
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
            self.notes.append(Note(event_type, *why))

    def _end_other(self, kind: str) -> bool:
        """Of two conditions that exclude each other the other one is false now; it says nothing else about it."""
        for index, condition in enumerate(self._conditions):
            if condition["type"] == _OTHER.get(kind) and condition["status"] == "True":
                self._conditions[index] = {**condition, "status": "False"}
                return True
        return False

    def _condition(self, kind: str, status: str, since: str, why: Why) -> dict[str, Any]:
        return {
            "type": kind,
            "status": status,
            "lastTransitionTime": since,
            "reason": why.reason,
            "message": why.message,
        }
