"""Job controller: creates the pods of Jobs, counts their terminations, and ends the Jobs.

Decisions are in the other modules of batchyard.jobs.job. Source: pkg/controller/job of Kubernetes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import ApiError, Forbidden, NamespaceTerminating
from batchyard.api.meta import (
    Key,
    Obj,
    controller_of,
    controller_reference,
    key_of,
    label,
    with_finalizer,
    with_metadata,
)
from batchyard.api.selectors import selector
from batchyard.api.views.pod_lifecycle import is_terminating
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.job.new_pods import new_pods
from batchyard.jobs.job.observed import is_tracked, job_pods, untracked
from batchyard.jobs.job.plan import JobPlan, plan_job
from batchyard.jobs.job.pod_index import PodIndex
from batchyard.jobs.job.spec import is_finished, is_ours, with_selector

# --- claims ---
#
# Ownership of pods: a Job owns the pods that its selector matches.
#
# A Job adopts a matching orphan pod, and releases an own pod whose labels no longer match.
# Source: PodControllerRefManager in Kubernetes's pkg/controller.


_DELETED: Final = EventType.DELETED


class PodClaims:
    """The orphan pods, and the Jobs that may adopt them."""

    def __init__(self) -> None:
        #: By namespace and name of the Job in their label, and by namespace alone.
        self._free_pods: dict[tuple[str, str], dict[Key, None]] = {}
        #: By namespace, the unfinished Jobs with manual selectors.
        self._choosers: dict[str, dict[Key, None]] = {}

    def observe_job(self, event: WatchEvent) -> None:
        """Process a change of a Job."""
        if not _chooses(event.obj):
            return
        choosers = self._choosers.setdefault(event.key.namespace, {})
        if event.type is _DELETED or is_finished(event.obj):
            choosers.pop(event.key, None)
        else:
            choosers[event.key] = None

    def observe_pod(self, event: WatchEvent) -> Iterable[Key]:
        """Process a change of a pod. Return the Jobs that may adopt it, if it is an orphan."""
        namespace = event.key.namespace
        for name in () if event.old is None else _makers(event.old):
            self._free_pods.get((namespace, name), {}).pop(event.key, None)
        if event.type is _DELETED or controller_of(event.obj) is not None:
            return ()
        for name in _makers(event.obj):
            self._free_pods.setdefault((namespace, name), {})[event.key] = None
        named = [Key(scheme.JOB, namespace, name) for name in _makers(event.obj) if name]
        return [*named, *self._choosers.get(namespace, ())]

    def adoptions(self, job: Obj, reader: Reader) -> list[Obj]:
        """Return the orphan pods that a Job adopts, with the Job as their owner."""
        metadata = job["metadata"]
        free = self._free_pods.get((metadata.get("namespace", ""), "" if _chooses(job) else metadata["name"]))
        if not free or "deletionTimestamp" in metadata:
            return []
        pods = [pod for key in free if (pod := reader.get(key)) is not None and not is_terminating(pod)]
        return [_adopted(pod, job) for pod in pods if controller_of(pod) is None and is_selected(pod, job)]


def is_selected(pod: Obj, job: Obj) -> bool:
    """Report whether a Job's selector matches a pod."""
    wanted = selector(with_selector(job)["spec"].get("selector"))
    return wanted is not None and wanted.matches(pod["metadata"].get("labels") or {})


def may_be_strayed(event: WatchEvent, owner_uid: str) -> bool:
    """Report whether a pod's labels may not match its Job: they changed, or a new pod lacks the Job's uid label."""
    labels = event.obj["metadata"].get("labels")
    if event.old is None:
        return labels is None or labels.get(well_known.CONTROLLER_UID) != owner_uid
    old = event.old["metadata"].get("labels")
    return labels is not old and labels != old


def given_up(pod: Obj, job: Obj) -> Obj:
    """Return the pod without its owner."""
    uid = job["metadata"]["uid"]
    owners = [owner for owner in pod["metadata"].get("ownerReferences") or () if owner["uid"] != uid]
    return untracked(with_metadata(pod, ownerReferences=owners or None))


def _chooses(job: Obj) -> bool:
    """Report whether a Job has a manual selector, which may match any pod."""
    return bool(job["spec"].get("manualSelector"))


def _makers(pod: Obj) -> Iterable[str]:
    """Return the name of the Job in the pod's label, and "" for Jobs with manual selectors."""
    name = label(pod, well_known.JOB_NAME)
    return ("",) if name is None else (name, "")


def _adopted(pod: Obj, job: Obj) -> Obj:
    owners = [*(pod["metadata"].get("ownerReferences") or ()), controller_reference(job)]
    return with_finalizer(with_metadata(pod, ownerReferences=owners), well_known.JOB_TRACKING)


class JobPodController:
    """Runs the decisions for Jobs, from an index of their pods and of orphan pods."""

    name = "job-pods"
    rank = 0
    kinds = (scheme.JOB, scheme.POD, scheme.PRIORITY_CLASS)

    def __init__(self) -> None:
        self._index = PodIndex()
        self._claims = PodClaims()
        #: Jobs by the PriorityClass of their pods; without the class no pods can be created.
        self._by_class: dict[str, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the Job, or the pod's Job; also a pod that may not match, or is deleted and may have no Job."""
        if event.key.kind == scheme.PRIORITY_CLASS:
            return list(self._by_class.get(event.key.name, ())) if event.type is EventType.ADDED else ()
        if event.key.kind == scheme.JOB:
            self._index.observe_job(event, now)
            self._claims.observe_job(event)
            self._note_class(event)
            return (event.key,)
        owner = _job_of(event.obj)
        if owner is None:
            strayed = (event.key,) if event.type is not EventType.DELETED and is_tracked(event.obj) else ()
            return [*self._claims.observe_pod(event), *self._left(event, now), *strayed]
        if event.old is not None and _job_of(event.old) is None:
            self._claims.observe_pod(event)
        job = Key(scheme.JOB, event.key.namespace, owner["name"])
        matters = self._index.observe_pod(event, owner["uid"], now)
        if may_be_strayed(event, owner["uid"]):
            return (job, event.key)
        if not matters:
            return ()
        return (job, event.key) if is_terminating(event.obj) and is_tracked(event.obj) else (job,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Reconcile a Job, or release a pod that no Job counts."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if key.kind == scheme.POD:
            return _release_pod(obj, reader)
        if is_finished(obj) or not is_ours(obj):
            return ReconcileResult()
        adoptions = self._claims.adoptions(obj, reader)
        if adoptions:
            return ReconcileResult([Update(pod) for pod in adoptions], independent=True)
        known = self._index.of(obj)
        look_at = known.look_at(now)
        if look_at > now:
            return ReconcileResult(requeue_at=look_at)
        if not known.is_complete:
            known.complete(reader.owned_by(obj["metadata"]["uid"], key.namespace))
        pods = job_pods(pod for each in known.pods if (pod := reader.get(each)) is not None)
        todo = plan_job(obj, pods, known.failures, now)
        known.looked(todo)
        names = (pod.obj["metadata"]["name"] for pod in pods)
        return _outcome(key, obj, todo, new_pods(obj, todo.change.create, names, known.came, now))

    def _left(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the Job that a pod no longer belongs to."""
        owner = None if event.old is None else _job_of(event.old)
        if owner is None:
            return ()
        self._index.observe_pod(event._replace(type=EventType.DELETED), owner["uid"], now)
        return (Key(scheme.JOB, event.key.namespace, owner["name"]),)

    def _note_class(self, event: WatchEvent) -> None:
        name = event.obj["spec"]["template"]["spec"].get("priorityClassName")
        if not name:
            return
        if event.type is EventType.DELETED:
            self._by_class[name].pop(event.key, None)
        else:
            self._by_class.setdefault(name, {})[event.key] = None


def _job_of(pod: Obj) -> Mapping[str, Any] | None:
    """Return the Job that controls a pod."""
    owner = controller_of(pod)
    return owner if owner is not None and owner["kind"] == "Job" and owner["apiVersion"] == "batch/v1" else None


def _release_pod(pod: Obj, reader: Reader) -> ReconcileResult:
    """Release a pod that its Job does not select; untrack an orphan, or a deleted pod of a finished Job."""
    owner = _job_of(pod)
    if owner is None:
        is_free = controller_of(pod) is None and is_tracked(pod)
        return ReconcileResult([Update(untracked(pod))] if is_free else [])
    job = reader.get(Key(scheme.JOB, pod["metadata"].get("namespace", ""), owner["name"]))
    if job is not None and job["metadata"]["uid"] == owner["uid"] and not (is_ours(job) and is_finished(job)):
        is_kept = not is_ours(job) or "deletionTimestamp" in job["metadata"] or is_selected(pod, job)
        return ReconcileResult() if is_kept else ReconcileResult([Update(given_up(pod, job))])
    return ReconcileResult([Update(untracked(pod))] if is_terminating(pod) and is_tracked(pod) else [])


def _outcome(key: Key, job: Obj, todo: JobPlan, new: Sequence[Obj]) -> ReconcileResult:
    """Convert a plan to writes. Creations and deletions come first: if the rest is lost, it is computed again.

    A rejected pod does not block the others.
    """
    release = [Update(untracked(pod.obj)) for pod in todo.release]
    outcome = ReconcileResult([*release], requeue_at=todo.wake_at, independent=True)
    change, writes = todo.change, outcome.writes
    for pod in change.dismiss:
        if pod.tracked:
            writes.append(Update(untracked(pod.obj)))
    for pod in (*change.dismiss, *change.delete):
        reported = _pod_event(key, "SuccessfulDelete", "Deleted", pod.obj)
        outcome.add(Delete(key_of(pod.obj), uid=pod.uid), [reported])
    for born in new:
        outcome.add(Create(born), [_pod_event(key, "SuccessfulCreate", "Created", born)])
    if new:
        outcome.if_refused = partial(_rejection_event, key)
    if todo.status is not None and todo.status != job.get("status"):
        writes.append(UpdateStatus({**job, "status": todo.status}))
    outcome.events += [EventRecord(key, *each) for each in todo.reported]
    return outcome


def _rejection_event(key: Key, _write: Write, error: ApiError) -> EventRecord | None:
    """Return an Event for a rejected pod, except if its Namespace is terminating."""
    if not isinstance(error, Forbidden) or isinstance(error, NamespaceTerminating):
        return None
    return EventRecord(key, "Warning", "FailedCreate", f"Error creating: {error}")


def _pod_event(key: Key, reason: str, done: str, pod: Obj) -> EventRecord:
    return EventRecord(key, "Normal", reason, f"{done} pod: {pod['metadata']['name']}")
