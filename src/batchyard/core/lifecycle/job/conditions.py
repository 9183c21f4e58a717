"""The conditions of a Job, as its controller writes them, with the events that go with them.

They differ from those of other kinds: a change of the reason alone is a transition too, and False is not noted of what
never was. Source: ensureJobConditionStatus in Kubernetes's pkg/controller/job.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.conditions import Condition
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.core.lifecycle.job.verdict import Verdict


class Told(NamedTuple):
    """An event about the Job."""

    type: str
    reason: str
    message: str


class JobConditions:
    """The conditions of one status while they are rewritten."""

    def __init__(self, status: Mapping[str, Any], now: Instant) -> None:
        #: By type, in the order in which they stand in the status.
        self._conditions: dict[str, Condition] = {c["type"]: c for c in status.get("conditions") or ()}
        self._time = format_time(now)
        self.told: list[Told] = []

    def listed(self) -> Sequence[Condition]:
        """All of them."""
        return list(self._conditions.values())

    def set(self, kind: str, holds: bool, reason: str, message: str) -> bool:
        """Set a condition; whether that changed it."""
        old = self._conditions.get(kind)
        said = {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}
        if (old is None and not holds) or (old is not None and said.items() <= old.items()):
            return False
        self._conditions[kind] = {**said, "lastProbeTime": self._time, "lastTransitionTime": self._time}
        return True

    def set_suspended(self, suspended: bool) -> None:
        """Say whether the Job is suspended; of one that never was nothing is said."""
        reason, message = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
        if self.set("Suspended", suspended, reason, message):
            self.told.append(Told("Normal", reason.removeprefix("Job"), message))

    def end(self, verdict: Verdict, *, too_many: bool) -> None:
        """End the Job; too many of its pods may have succeeded."""
        self.set(verdict.final, True, verdict.reason, verdict.message)
        if not verdict.succeeded:
            self.told.append(Told("Warning", verdict.reason, verdict.message))
            return
        if too_many:
            message = "Too many succeeded pods running after completion count reached"
            self.told.append(Told("Warning", "TooManySucceededPods", message))
        self.told.append(Told("Normal", "Completed", "Job completed"))
