"""What the events of pods told of each Job: which of its pods still matter, and how soon it must be looked at.

A pod matters until it has ended and is not tracked any more. A look costs as much as there are such pods, so what can
wait does, for a second, to be looked at together: that some pods became ready, succeeded, or changed in another way.
What cannot wait is the last of these, whatever fails or goes, and everything while pods are missing. Kubernetes lets
all events of pods wait for a second (syncJobBatchPeriod in pkg/controller/job).

Here is also when pods failed that may be gone by now, for the backoff of their Job. Kubernetes keeps that in memory,
too, and starts anew without.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Instant
from batchyard.core.lifecycle.job.backoff import finished_at, since_success
from batchyard.core.lifecycle.job.pods import is_tracked
from batchyard.core.lifecycle.job.spec import is_finished, job_spec
from batchyard.core.lifecycle.pod import SUCCEEDED, is_ready, is_terminal, is_terminating, phase
from batchyard.ports.client import EventType, WatchEvent

_GATHERED: Final = SECOND
_DELETED: Final = EventType.DELETED

# What is known of a pod that matters.
_TRACKED: Final = 1
_ACTIVE: Final = 2
_READY: Final = 4
_TERMINATING: Final = 8
_SUCCEEDED: Final = 16


class Crew:
    """The pods of one Job."""

    __slots__ = (
        "_active",
        "_ready",
        "_standings",
        "came",
        "due",
        "failures",
        "is_complete",
        "is_short",
        "job_is_known",
        "needs_successes",
    )

    def __init__(self) -> None:
        #: The pods that matter, each with its flags.
        self._standings: dict[Key, int] = {}
        self._active = 0
        self._ready = 0
        #: How many pods came so far.
        self.came = 0
        #: When pods failed that are not tracked any more, as far back as the backoff goes.
        self.failures: list[Instant] = []
        #: When the Job is to be looked at because of what came since the last look.
        self.due: Instant | None = None
        #: The last look found that pods are missing.
        self.is_short = False
        #: Each success may make room for another pod, or end the Job.
        self.needs_successes = False
        self.job_is_known = False
        #: The pods are known that were there before the first event.
        self.is_complete = False

    @property
    def pods(self) -> Iterable[Key]:
        """The pods that matter."""
        return self._standings

    def complete(self, owned: Iterable[Obj]) -> None:
        """Take note of pods that were there before this controller."""
        for obj in owned:
            if obj["kind"] == "Pod" and key_of(obj) not in self._standings:
                self._note(key_of(obj), 0, _flags(obj))
        self.is_complete = True

    def wants_look(self, at: Instant) -> None:
        """Have the Job looked at then, if not earlier."""
        self.due = at if self.due is None else min(self.due, at)

    def looked(self, job: Obj, *, is_short: bool) -> None:
        """Take note of a look at the Job."""
        spec = job_spec(job)
        self.due = None
        self.is_short = is_short
        self.needs_successes = bool(spec.success_rules) or (spec.completions or 0) > spec.parallelism

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Take note of a change of a pod; whether it matters."""
        before = self._standings.get(event.key, 0)
        after = 0 if event.type is _DELETED else _flags(event.obj)
        if before == after and not self.is_short and (before == 0 or _status_is_the_same(event)):
            return False
        self._note(event.key, before, after)
        if before & ~after & _TRACKED:
            self._note_end(event.obj)
        self.wants_look(now if self._cannot_wait(before, after) else now + _GATHERED)
        return True

    def _note(self, pod: Key, before: int, after: int) -> None:
        self._active += bool(after & _ACTIVE) - bool(before & _ACTIVE)
        self._ready += bool(after & _READY) - bool(before & _READY)
        self.came += bool(after and not before)
        if after:
            self._standings[pod] = after
        else:
            self._standings.pop(pod, None)

    def _cannot_wait(self, before: int, after: int) -> bool:
        """Whether a change may be what the Job waits for."""
        lost = before & ~after
        if self.is_short or not self.is_complete or lost & (_TRACKED | _TERMINATING):
            return True
        if lost & _ACTIVE:
            return not after & _SUCCEEDED or self.needs_successes or self._active == 0
        return bool(after & ~before & _READY) and self._ready == self._active

    def _note_end(self, pod: Obj) -> None:
        """Take note of a pod that is not tracked any more; of those that are still active the Job rid itself."""
        if phase(pod) == SUCCEEDED:
            self.failures = since_success(self.failures, [finished_at(pod)])
        elif is_terminal(pod) or is_terminating(pod):
            self.failures = since_success([*self.failures, finished_at(pod)], ())


class Crews:
    """The crews of all Jobs."""

    __slots__ = ("_crews",)

    def __init__(self) -> None:
        #: By uid of the Job.
        self._crews: dict[str, Crew] = {}

    def of(self, job: Obj) -> Crew:
        """The crew of a Job."""
        return self._of(job["metadata"]["uid"])

    def observe_job(self, event: WatchEvent, now: Instant) -> None:
        """Take note of a change of a Job; one that has ended needs no crew."""
        job = event.obj
        if event.type is _DELETED or is_finished(job):
            self._crews.pop(job["metadata"]["uid"], None)
            return
        crew = self.of(job)
        crew.job_is_known = True
        crew.wants_look(now)

    def observe_pod(self, event: WatchEvent, job_uid: str, now: Instant) -> bool:
        """Take note of a change of a pod; whether it matters to its Job."""
        crew = self._of(job_uid)
        matters = crew.observe(event, now)
        if not (crew.job_is_known or crew.pods):  # the last pod of a Job that is gone
            del self._crews[job_uid]
        return matters

    def _of(self, job_uid: str) -> Crew:
        crew = self._crews.get(job_uid)
        if crew is None:
            crew = self._crews[job_uid] = Crew()
        return crew


def _flags(pod: Obj) -> int:
    """What is known of a pod; 0 where it matters no more."""
    tracked = _TRACKED if is_tracked(pod) else 0
    if is_terminal(pod):
        return tracked | _SUCCEEDED if tracked and phase(pod) == SUCCEEDED else tracked
    if is_terminating(pod):
        return tracked | _TERMINATING
    return tracked | _ACTIVE | (_READY if is_ready(pod) else 0)


def _status_is_the_same(event: WatchEvent) -> bool:
    """Whether only the spec changed, as when a pod is bound to its node."""
    return event.old is not None and event.obj.get("status") == event.old.get("status")
