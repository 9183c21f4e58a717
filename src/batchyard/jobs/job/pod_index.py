"""Index of the pods of each Job, from their events: which pods are relevant, and when the Job must be reconciled.

A pod is relevant until it has ended and is untracked. A reconcile costs time for each relevant pod, so changes that can
wait are batched for a second: pods that become ready, succeed, or change otherwise. The last of these cannot wait, nor
can failures and deletions, nor any change while pods are missing. Kubernetes delays all pod events by a second
(syncJobBatchPeriod in pkg/controller/job).

The index also keeps the failure times of pods that may be deleted by now, for the backoff of their Job. Kubernetes also
keeps them in memory, and restarts the backoff without them.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.views.pod_lifecycle import SUCCEEDED, is_ready, is_terminal, is_terminating, phase
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobs.job.observed import finished_at, is_tracked, since_success
from batchyard.jobs.job.plan import JobPlan
from batchyard.jobs.job.spec import is_finished, job_spec

_GATHERING: Final = SECOND
_DELETED: Final = EventType.DELETED

# Flags of a relevant pod.
_TRACKED: Final = 1
_ACTIVE: Final = 2
_READY: Final = 4
_TERMINATING: Final = 8
_SUCCEEDED: Final = 16


class RelevantPods:
    """The relevant pods of one Job, and when to reconcile it."""

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
        #: The relevant pods with their flags.
        self._flags: dict[Key, int] = {}
        self._active = 0
        self._ready = 0
        #: The number of pods observed so far.
        self.came = 0
        #: The failure times of untracked pods, as far back as the backoff needs.
        self.failures: list[Instant] = []
        #: When to reconcile the Job because of events since the last reconcile.
        self._due: Instant | None = None
        #: When to reconcile it in any case.
        self._wake_at: Instant | None = None
        #: Whether the last reconcile found pods missing.
        self._is_short = False
        #: Whether each success may allow another pod or end the Job.
        self._needs_successes = False
        self.job_is_known = False
        #: Whether pods from before the first event are included.
        self.is_complete = False

    @property
    def pods(self) -> Iterable[Key]:
        """The relevant pods."""
        return self._flags

    def complete(self, owned: Iterable[Obj]) -> None:
        """Add pods that existed before this controller."""
        for obj in owned:
            if obj["kind"] == "Pod" and key_of(obj) not in self._flags:
                self._note(key_of(obj), 0, _flags(obj))
        self.is_complete = True

    def schedule_reconcile(self, at: Instant) -> None:
        """Schedule a reconcile at that time, or earlier if already scheduled."""
        self._due = at if self._due is None else min(self._due, at)

    def look_at(self, now: Instant) -> Instant:
        """Return when to reconcile the Job: now, or later to batch more events."""
        if self._due is None:
            return now
        return max(now, self._due if self._wake_at is None else min(self._due, self._wake_at))

    def note_job(self, job: Obj) -> None:
        """Record the current spec of the Job."""
        spec = job_spec(job)
        self.job_is_known = True
        self._needs_successes = bool(spec.success_rules) or (spec.completions or 0) > spec.parallelism

    def looked(self, todo: JobPlan) -> None:
        """Record the result of a reconcile of the Job."""
        self._due = None
        self._wake_at = todo.wake_at
        self._is_short = bool(todo.change.create)

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Process a change of a pod. Return whether it is relevant."""
        before = self._flags.get(event.key, 0)
        after = 0 if event.type is _DELETED else _flags(event.obj)
        if before == after and not self._is_short and (before == 0 or _has_same_containers(event)):
            return False
        self._note(event.key, before, after)
        if before & ~after & _TRACKED:
            self._note_end(event.obj)
        self.schedule_reconcile(now if self._cannot_wait(before, after) else now + _GATHERING)
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
        """Report whether the Job may be waiting for this change."""
        lost = before & ~after
        if self._is_short or not self.is_complete or lost & (_TRACKED | _TERMINATING):
            return True
        if lost & _ACTIVE:
            return not after & _SUCCEEDED or self._needs_successes or self._active == 0
        return bool(after & ~before & _READY) and self._ready == self._active

    def _note_end(self, pod: Obj) -> None:
        """Record a pod that is no longer tracked; pods released while active are surplus and do not count."""
        if phase(pod) == SUCCEEDED:
            self.failures = since_success(self.failures, [finished_at(pod)])
        elif is_terminal(pod) or is_terminating(pod):
            self.failures = since_success([*self.failures, finished_at(pod)], ())


class PodIndex:
    """The relevant pods of all Jobs."""

    __slots__ = ("_by_job",)

    def __init__(self) -> None:
        #: By namespace and uid of the Job; pods in other namespaces never belong to it.
        self._by_job: dict[tuple[str, str], RelevantPods] = {}

    def of(self, job: Obj) -> RelevantPods:
        """Return the pods of a Job."""
        return self._of(_place(job))

    def observe_job(self, event: WatchEvent, now: Instant) -> None:
        """Process a change of a Job; finished Jobs are dropped."""
        job = event.obj
        if event.type is _DELETED or is_finished(job):
            self._by_job.pop(_place(job), None)
            return
        known = self.of(job)
        known.note_job(job)
        known.schedule_reconcile(now)

    def observe_pod(self, event: WatchEvent, job_uid: str, now: Instant) -> bool:
        """Process a change of a pod. Return whether it is relevant to its Job."""
        place = event.key.namespace, job_uid
        known = self._of(place)
        matters = known.observe(event, now)
        if not (known.job_is_known or known.pods):  # the last pod of a deleted Job
            del self._by_job[place]
        return matters

    def _of(self, place: tuple[str, str]) -> RelevantPods:
        known = self._by_job.get(place)
        if known is None:
            known = self._by_job[place] = RelevantPods()
        return known


def _place(job: Obj) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata.get("namespace", ""), metadata["uid"]


def _flags(pod: Obj) -> int:
    """Return the flags of a pod; 0 if it is not relevant."""
    tracked = _TRACKED if is_tracked(pod) else 0
    if is_terminal(pod):
        return tracked | _SUCCEEDED if tracked and phase(pod) == SUCCEEDED else tracked
    if is_terminating(pod):
        return tracked | _TERMINATING
    return tracked | _ACTIVE | (_READY if is_ready(pod) else 0)


def _has_same_containers(event: WatchEvent) -> bool:
    """Report whether the container statuses are unchanged, as when a pod is scheduled or unschedulable."""
    if event.old is None:
        return False
    old, new = event.old.get("status") or {}, event.obj.get("status") or {}
    return all(new.get(field) == old.get(field) for field in ("containerStatuses", "initContainerStatuses"))
