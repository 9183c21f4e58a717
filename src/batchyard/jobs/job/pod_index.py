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
from batchyard.api.views.pod_lifecycle import SUCCEEDED, is_ready, is_terminal, is_terminating, phase
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobs.job.observed import finished_at, is_tracked, since_success
from batchyard.jobs.job.plan import Plan
from batchyard.jobs.job.spec import is_finished, job_spec

_GATHERING: Final = SECOND
_DELETED: Final = EventType.DELETED

# What is known of a pod that matters.
_TRACKED: Final = 1
_ACTIVE: Final = 2
_READY: Final = 4
_TERMINATING: Final = 8
_SUCCEEDED: Final = 16


class KnownPods:
    """The pods of one Job."""

    __slots__ = (
        "_active",
        "_due",
        "_flags",
        "_is_short",
        "_needs_successes",
        "_ready",
        "_wake_at",
        "came",
        "failures",
        "is_complete",
        "job_is_known",
    )

    def __init__(self) -> None:
        #: The pods that matter, each with its flags.
        self._flags: dict[Key, int] = {}
        self._active = 0
        self._ready = 0
        #: How many pods came so far.
        self.came = 0
        #: When pods failed that are not tracked any more, as far back as the backoff goes.
        self.failures: list[Instant] = []
        #: When the Job is to be looked at because of what came since the last look.
        self._due: Instant | None = None
        #: When it is to be looked at in any case.
        self._wake_at: Instant | None = None
        #: The last look found that pods are missing.
        self._is_short = False
        #: Each success may make room for another pod, or end the Job.
        self._needs_successes = False
        self.job_is_known = False
        #: The pods are known that were there before the first event.
        self.is_complete = False

    @property
    def pods(self) -> Iterable[Key]:
        """The pods that matter."""
        return self._flags

    def complete(self, owned: Iterable[Obj]) -> None:
        """Take note of pods that were there before this controller."""
        for obj in owned:
            if obj["kind"] == "Pod" and key_of(obj) not in self._flags:
                self._note(key_of(obj), 0, _flags(obj))
        self.is_complete = True

    def wants_look(self, at: Instant) -> None:
        """Have the Job looked at then, if not earlier."""
        self._due = at if self._due is None else min(self._due, at)

    def look_at(self, now: Instant) -> Instant:
        """When the Job is to be looked at: now, or when what has come may be looked at together with more."""
        if self._due is None:
            return now
        return max(now, self._due if self._wake_at is None else min(self._due, self._wake_at))

    def note_job(self, job: Obj) -> None:
        """Take note of the Job as it is now."""
        spec = job_spec(job)
        self.job_is_known = True
        self._needs_successes = bool(spec.success_rules) or (spec.completions or 0) > spec.parallelism

    def looked(self, todo: Plan) -> None:
        """Take note of what a look at the Job came to."""
        self._due = None
        self._wake_at = todo.wake_at
        self._is_short = bool(todo.change.create)

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Take note of a change of a pod; whether it matters."""
        before = self._flags.get(event.key, 0)
        after = 0 if event.type is _DELETED else _flags(event.obj)
        if before == after and not self._is_short and (before == 0 or _says_nothing_new(event)):
            return False
        self._note(event.key, before, after)
        if before & ~after & _TRACKED:
            self._note_end(event.obj)
        self.wants_look(now if self._cannot_wait(before, after) else now + _GATHERING)
        return True

    def _note(self, pod: Key, before: int, after: int) -> None:
        self._active += bool(after & _ACTIVE) - bool(before & _ACTIVE)
        self._ready += bool(after & _READY) - bool(before & _READY)
        self.came += bool(after and not before)
        if after:
            self._flags[pod] = after
        else:
            self._flags.pop(pod, None)

    def _cannot_wait(self, before: int, after: int) -> bool:
        """Whether a change may be what the Job waits for."""
        lost = before & ~after
        if self._is_short or not self.is_complete or lost & (_TRACKED | _TERMINATING):
            return True
        if lost & _ACTIVE:
            return not after & _SUCCEEDED or self._needs_successes or self._active == 0
        return bool(after & ~before & _READY) and self._ready == self._active

    def _note_end(self, pod: Obj) -> None:
        """Take note of a pod that is not tracked any more; of those that are still active the Job rid itself."""
        if phase(pod) == SUCCEEDED:
            self.failures = since_success(self.failures, [finished_at(pod)])
        elif is_terminal(pod) or is_terminating(pod):
            self.failures = since_success([*self.failures, finished_at(pod)], ())


class PodIndex:
    """The known pods of all Jobs."""

    __slots__ = ("_by_job",)

    def __init__(self) -> None:
        #: By namespace and uid of the Job: pods elsewhere are not its, whatever they say.
        self._by_job: dict[tuple[str, str], KnownPods] = {}

    def of(self, job: Obj) -> KnownPods:
        """The pods of a Job."""
        return self._of(_place(job))

    def observe_job(self, event: WatchEvent, now: Instant) -> None:
        """Take note of a change of a Job; of one that has ended nothing need be known."""
        job = event.obj
        if event.type is _DELETED or is_finished(job):
            self._by_job.pop(_place(job), None)
            return
        known = self.of(job)
        known.note_job(job)
        known.wants_look(now)

    def observe_pod(self, event: WatchEvent, job_uid: str, now: Instant) -> bool:
        """Take note of a change of a pod; whether it matters to its Job."""
        place = event.key.namespace, job_uid
        known = self._of(place)
        matters = known.observe(event, now)
        if not (known.job_is_known or known.pods):  # the last pod of a Job that is gone
            del self._by_job[place]
        return matters

    def _of(self, place: tuple[str, str]) -> KnownPods:
        known = self._by_job.get(place)
        if known is None:
            known = self._by_job[place] = KnownPods()
        return known


def _place(job: Obj) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata.get("namespace", ""), metadata["uid"]


def _flags(pod: Obj) -> int:
    """What is known of a pod; 0 where it matters no more."""
    tracked = _TRACKED if is_tracked(pod) else 0
    if is_terminal(pod):
        return tracked | _SUCCEEDED if tracked and phase(pod) == SUCCEEDED else tracked
    if is_terminating(pod):
        return tracked | _TERMINATING
    return tracked | _ACTIVE | (_READY if is_ready(pod) else 0)


def _says_nothing_new(event: WatchEvent) -> bool:
    """Whether the containers are as they were, as when a pod is bound to its node, or cannot be."""
    if event.old is None:
        return False
    old, new = event.old.get("status") or {}, event.obj.get("status") or {}
    return all(new.get(field) == old.get(field) for field in ("containerStatuses", "initContainerStatuses"))
