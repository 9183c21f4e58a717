"""Job controller: creates the pods of Jobs, counts their terminations, and ends the Jobs.

Decisions are in the other modules of batchyard.jobs.job. Source: pkg/controller/job of Kubernetes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
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
    selector,
    with_finalizer,
    with_metadata,
)
from batchyard.api.views.pods import SUCCEEDED, is_ready, is_terminal, is_terminating, phase
from batchyard.base import uid_for
from batchyard.base.instant import SECOND, Instant
from batchyard.client.local import generated_name
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.job.plan import JobPlan, NewPod, plan_job
from batchyard.jobs.job.spec import (
    NO_INDEX,
    finished_at,
    is_finished,
    is_ours,
    is_tracked,
    job_pods,
    job_spec,
    since_success,
    untracked,
    with_selector,
)

# --- new pods ---
#
# New pods of a Job, from its template.
#
# Sources: Kubernetes's pkg/controller/job (manageJob, indexed_job_utils.go) and pkg/controller (GetPodFromTemplate).


_INDEX_ENV: Final = "JOB_COMPLETION_INDEX"
_INDEX_FIELD: Final = {
    "name": _INDEX_ENV,
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{well_known.COMPLETION_INDEX}']"}},
}
#: The maximum length of `generateName`, so that a whole name fits into a label.
_PREFIX_MAX: Final = 58


def new_pods(job: Obj, wanted: Sequence[NewPod], taken: Iterable[str], came: int, now: Instant) -> list[Obj]:
    """Build the pods to create, with names not in `taken`. `came` is the number of pods that the Job has had so far.

    Each has a full name besides its `generateName` prefix, so that the Event of its creation can contain the name.
    """
    if not wanted:
        return []
    template = _template(job, indexed=any(pod.index != NO_INDEX for pod in wanted))
    names = dict.fromkeys(taken)
    pods: list[Obj] = []
    for number, pod in enumerate(wanted, came):
        prefix = _name_prefix(job["metadata"]["name"], pod.index)
        name = _free_name(prefix, names, (job["metadata"]["uid"], str(now), str(number)))
        names[name] = None
        named = {**template["metadata"], "generateName": prefix, "name": name}
        pods.append({**template, "metadata": named} if pod.index == NO_INDEX else _indexed(template, named, pod, job))
    return pods


def _template(job: Obj, *, indexed: bool) -> dict[str, Any]:
    """Return the common part of all these pods."""
    template = with_selector(job)["spec"]["template"]
    metadata, spec = template.get("metadata") or {}, template["spec"]
    finalizers = [*(metadata.get("finalizers") or ()), well_known.JOB_TRACKING]
    common = {field: metadata[field] for field in ("labels", "annotations") if metadata.get(field)}
    common |= {"finalizers": list(dict.fromkeys(finalizers)), "ownerReferences": [controller_reference(job)]}
    if job["metadata"].get("namespace"):
        common["namespace"] = job["metadata"]["namespace"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": common, "spec": _with_index_env(spec) if indexed else spec}


def _with_index_env(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod spec whose containers get their index as an environment variable."""
    changed = {f: [_with_index_variable(c) for c in spec[f]] for f in ("initContainers", "containers") if spec.get(f)}
    return {**spec, **changed}


def _with_index_variable(container: Mapping[str, Any]) -> Mapping[str, Any]:
    env = container.get("env") or []
    return container if any(e["name"] == _INDEX_ENV for e in env) else {**container, "env": [*env, _INDEX_FIELD]}


def _name_prefix(job: str, index: int) -> str:
    """Return the name prefix of a pod; a long Job name is truncated to keep the index."""
    if index == NO_INDEX:
        return f"{job}-"
    end = f"-{index}-"
    return job[: _PREFIX_MAX - len(end)] + end


def _free_name(prefix: str, taken: Mapping[str, None], seed: Sequence[str]) -> str:
    """Return a name with a five-letter suffix derived from the seed; the next one if it is taken."""
    for attempt in count():
        name = generated_name(prefix, uid_for(0, *seed, prefix, str(attempt)))
        if name not in taken:
            break
    return name


def _indexed(template: Mapping[str, Any], metadata: dict[str, Any], pod: NewPod, job: Obj) -> dict[str, Any]:
    """Return the pod of an index."""
    index = {well_known.COMPLETION_INDEX: str(pod.index)}
    noted = dict(index)
    if pod.failures is not None:
        noted[well_known.INDEX_FAILURES] = str(pod.failures)
    if pod.ignored:
        noted[well_known.INDEX_IGNORED_FAILURES] = str(pod.ignored)
    metadata["labels"] = {**metadata.get("labels", {}), **index}
    metadata["annotations"] = {**metadata.get("annotations", {}), **noted}
    hostname = f"{job['metadata']['name']}-{pod.index}"
    return {**template, "metadata": metadata, "spec": {**template["spec"], "hostname": hostname}}


# --- pod index ---
#
# Index of the pods of each Job, from their events: which pods are relevant, and when the Job must be reconciled.
#
# A pod is relevant until it has ended and is untracked. A reconcile costs time for each relevant pod, so changes that
# can wait are batched for a second: pods that become ready, succeed, or change otherwise. The last of these cannot
# wait, nor can failures and deletions, nor any change while pods are missing. Kubernetes delays all pod events by a
# second (syncJobBatchPeriod in pkg/controller/job).
#
# The index also keeps the failure times of pods that may be deleted by now, for the backoff of their Job. Kubernetes
# also keeps them in memory, and restarts the backoff without them.


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


# --- claims ---
#
# Ownership of pods: a Job owns the pods that its selector matches.
#
# A Job adopts a matching orphan pod, and releases an own pod whose labels no longer match.
# Source: PodControllerRefManager in Kubernetes's pkg/controller.


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
