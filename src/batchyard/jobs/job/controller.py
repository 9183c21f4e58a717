"""Job controller: creates the pods of Jobs, counts terminated pods, adopts orphan pods, and ends the Jobs.

The module `plan` decides which pods to create and delete. Source: pkg/controller/job of Kubernetes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import ApiError, Forbidden, NamespaceTerminating
from batchyard.api.views.pods import SUCCEEDED, is_ready, is_terminal, is_terminating, phase
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for
from batchyard.client.local import generated_name
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.job.plan import JobPlan, NewPod, plan_job
from batchyard.jobs.job.spec import (
    NO_INDEX,
    JobPod,
    failures_since_success,
    finished_at,
    is_finished,
    is_managed_by_job_controller,
    is_tracked,
    job_pod,
    job_spec,
    remove_tracking_finalizer,
    with_selector,
)

# Sources: Kubernetes's pkg/controller/job (manageJob, indexed_job_utils.go) and pkg/controller (GetPodFromTemplate).


_INDEX_ENV: Final = "JOB_COMPLETION_INDEX"
_INDEX_FIELD: Final = {
    "name": _INDEX_ENV,
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{well_known.COMPLETION_INDEX}']"}},
}
#: The maximum length of `generateName`, so that a whole name fits into a label.
_NAME_PREFIX_LENGTH_MAX: Final = 58


def new_pods(
    job: meta.Obj, planned_pods: Sequence[NewPod], used_names: Iterable[str], pod_count: int, now: Instant
) -> list[meta.Obj]:
    """Return the manifests of new pods of a Job, with names not in `used_names`.

    The names are derived from `now` and from `pod_count`, the number of pods that the Job has had so far. Each
    pod has a full name besides the `generateName` prefix, so that the Event of its creation can contain the name.
    """
    if not planned_pods:
        return []
    template = _common_pod_fields(job, has_index=any(pod.index != NO_INDEX for pod in planned_pods))
    names = dict.fromkeys(used_names)
    pods: list[meta.Obj] = []
    for number, pod in enumerate(planned_pods, pod_count):
        name_prefix = _name_prefix(job["metadata"]["name"], pod.index)
        name = _unused_pod_name(name_prefix, names, (job["metadata"]["uid"], str(now), str(number)))
        names[name] = None
        pod_metadata = {**template["metadata"], "generateName": name_prefix, "name": name}
        pods.append(
            {**template, "metadata": pod_metadata}
            if pod.index == NO_INDEX
            else _indexed_pod(template, pod_metadata, pod, job)
        )
    return pods


def _common_pod_fields(job: meta.Obj, *, has_index: bool) -> dict[str, Any]:
    template = with_selector(job)["spec"]["template"]
    metadata, spec = template.get("metadata") or {}, template["spec"]
    finalizers = [*(metadata.get("finalizers") or ()), well_known.JOB_TRACKING]
    fields = {field: metadata[field] for field in ("labels", "annotations") if metadata.get(field)}
    fields |= {"finalizers": list(dict.fromkeys(finalizers)), "ownerReferences": [meta.controller_reference(job)]}
    if job["metadata"].get("namespace"):
        fields["namespace"] = job["metadata"]["namespace"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": fields, "spec": _with_index_env(spec) if has_index else spec}


def _with_index_env(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = {f: [_with_index_variable(c) for c in spec[f]] for f in ("initContainers", "containers") if spec.get(f)}
    return {**spec, **fields}


def _with_index_variable(container: Mapping[str, Any]) -> Mapping[str, Any]:
    env = container.get("env") or []
    return container if any(e["name"] == _INDEX_ENV for e in env) else {**container, "env": [*env, _INDEX_FIELD]}


def _name_prefix(job_name: str, index: int) -> str:
    if index == NO_INDEX:
        return f"{job_name}-"
    index_text = f"-{index}-"
    return job_name[: _NAME_PREFIX_LENGTH_MAX - len(index_text)] + index_text


def _unused_pod_name(prefix: str, used_names: Mapping[str, None], hash_seed: Sequence[str]) -> str:
    """Return a pod name that is not in `used_names`: the prefix and five characters derived from the seed."""
    for attempt in count():
        name = generated_name(prefix, uid_for(0, *hash_seed, prefix, str(attempt)))
        if name not in used_names:
            break
    return name


def _indexed_pod(template: Mapping[str, Any], metadata: dict[str, Any], pod: NewPod, job: meta.Obj) -> dict[str, Any]:
    index_label = {well_known.COMPLETION_INDEX: str(pod.index)}
    annotations = dict(index_label)
    if pod.failure_count is not None:
        annotations[well_known.INDEX_FAILURES] = str(pod.failure_count)
    if pod.ignored_count:
        annotations[well_known.INDEX_IGNORED_FAILURES] = str(pod.ignored_count)
    metadata["labels"] = {**metadata.get("labels", {}), **index_label}
    metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    hostname = f"{job['metadata']['name']}-{pod.index}"
    return {**template, "metadata": metadata, "spec": {**template["spec"], "hostname": hostname}}


# Index of the relevant pods of each Job, from their events, and of the time of the next reconcile.
#
# A pod is relevant until it has ended and is untracked. A reconcile costs time for each relevant pod, so most changes
# are batched for a second. The Job is reconciled without delay after failures, deletions, the last success or
# readiness, and any change while pods are missing. Kubernetes delays all pod events by a second (syncJobBatchPeriod in
# pkg/controller/job).
#
# The index also keeps the failure times of pods that may be deleted by now, for the backoff of their Job. Kubernetes
# also keeps them in memory, and restarts the backoff without them.


_BATCH_PERIOD: Final = SECOND
_DELETED: Final = EventType.DELETED

# Flags of a pod in the index.
_TRACKED_FLAG: Final = 1
_ACTIVE_FLAG: Final = 2
_READY_FLAG: Final = 4
_TERMINATING_FLAG: Final = 8
_SUCCEEDED_FLAG: Final = 16


class RelevantJobPods:
    """The pods of one Job that have not ended or still have the Job finalizer, and when to reconcile the Job next."""

    __slots__ = (
        "_active_count",
        "_flags_by_pod",
        "_has_missing_pods",
        "_needs_successes",
        "_parsed_pods",
        "_ready_count",
        "_reconcile_at",
        "_wake_at",
        "failure_times",
        "is_complete",
        "job_is_known",
        "pod_count",
    )

    def __init__(self) -> None:
        #: By pod that has not ended or has the Job finalizer: its flags.
        self._flags_by_pod: dict[meta.Key, int] = {}
        self._parsed_pods: dict[meta.Key, JobPod] = {}
        self._active_count = 0
        self._ready_count = 0
        #: The number of pods observed so far.
        self.pod_count = 0
        #: The failure times of untracked pods that the backoff needs.
        self.failure_times: list[Instant] = []
        #: When to reconcile the Job because of events since the last reconcile.
        self._reconcile_at: Instant | None = None
        #: When to reconcile the Job without an event.
        self._wake_at: Instant | None = None
        #: Whether the last reconcile found pods missing.
        self._has_missing_pods = False
        #: Whether each succeeded pod may allow another pod or end the Job.
        self._needs_successes = False
        #: Whether the Job itself was observed, not only its pods.
        self.job_is_known = False
        #: Whether pods that existed before the first event are included.
        self.is_complete = False

    @property
    def pod_keys(self) -> Iterable[meta.Key]:
        """The keys of the pods that have not ended or still have the Job finalizer."""
        return self._flags_by_pod

    def read_pods(self, reader: Reader) -> list[JobPod]:
        """Return the pods that exist now; a pod that has not changed since the last call is not parsed again."""
        parsed_pods, pods = self._parsed_pods, list[JobPod]()
        for key in self._flags_by_pod:
            obj = reader.get(key)
            if obj is None:
                continue
            pod = parsed_pods.get(key)
            if pod is None or pod.obj is not obj:
                pod = parsed_pods[key] = job_pod(obj)
            pods.append(pod)
        return pods

    def add_existing(self, owned_objects: Iterable[meta.Obj]) -> None:
        """Add the pods among the objects that a Job owns; such pods may predate this controller's first watch event."""
        for obj in owned_objects:
            if obj["kind"] == "Pod" and meta.key_of(obj) not in self._flags_by_pod:
                self._set_pod_flags(meta.key_of(obj), 0, _pod_flags(obj))
        self.is_complete = True

    def schedule_reconcile(self, at: Instant) -> None:
        """Schedule the next reconcile of the Job at this time, unless it is already scheduled earlier."""
        self._reconcile_at = at if self._reconcile_at is None else min(self._reconcile_at, at)

    def reconcile_at(self, now: Instant) -> Instant:
        """Return when to reconcile the Job: now, or up to a second later to combine several pod changes."""
        if self._reconcile_at is None:
            return now
        return max(now, self._reconcile_at if self._wake_at is None else min(self._reconcile_at, self._wake_at))

    def record_job(self, job: meta.Obj) -> None:
        """Record that the Job exists, and whether its spec requires a reconcile after each succeeded pod."""
        spec = job_spec(job)
        self.job_is_known = True
        self._needs_successes = bool(spec.success_rules) or (spec.completions or 0) > spec.parallelism

    def record_plan(self, plan: JobPlan) -> None:
        """Record from a reconcile's plan when to reconcile next, and whether pods were missing."""
        self._reconcile_at = None
        self._wake_at = plan.wake_at
        self._has_missing_pods = bool(plan.pod_changes.to_create)

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Process a watch event of a pod of the Job; return whether the Job must be reconciled because of it."""
        old_flags = self._flags_by_pod.get(event.key, 0)
        new_flags = 0 if event.type is _DELETED else _pod_flags(event.obj)
        if old_flags == new_flags and not self._has_missing_pods and (old_flags == 0 or _has_same_containers(event)):
            return False
        self._set_pod_flags(event.key, old_flags, new_flags)
        if old_flags & ~new_flags & _TRACKED_FLAG:
            self._record_pod_end(event.obj)
        self.schedule_reconcile(now if self._needs_prompt_reconcile(old_flags, new_flags) else now + _BATCH_PERIOD)
        return True

    def _set_pod_flags(self, pod: meta.Key, old_flags: int, new_flags: int) -> None:
        self._active_count += bool(new_flags & _ACTIVE_FLAG) - bool(old_flags & _ACTIVE_FLAG)
        self._ready_count += bool(new_flags & _READY_FLAG) - bool(old_flags & _READY_FLAG)
        self.pod_count += bool(new_flags and not old_flags)
        if new_flags:
            self._flags_by_pod[pod] = new_flags
        else:
            self._flags_by_pod.pop(pod, None)
            self._parsed_pods.pop(pod, None)

    def _needs_prompt_reconcile(self, old_flags: int, new_flags: int) -> bool:
        """Return whether a pod's change requires a reconcile of the Job now instead of a second later.

        The flags are bits for the state of the pod before and after the change, such as active or ready.
        """
        cleared_flags = old_flags & ~new_flags
        if self._has_missing_pods or not self.is_complete or cleared_flags & (_TRACKED_FLAG | _TERMINATING_FLAG):
            return True
        if cleared_flags & _ACTIVE_FLAG:
            return not new_flags & _SUCCEEDED_FLAG or self._needs_successes or self._active_count == 0
        return bool(new_flags & ~old_flags & _READY_FLAG) and self._ready_count == self._active_count

    def _record_pod_end(self, pod: meta.Obj) -> None:
        """Update the failure times for the backoff with a pod that lost the Job finalizer; ignore active pods."""
        if phase(pod) == SUCCEEDED:
            self.failure_times = failures_since_success(self.failure_times, [finished_at(pod)])
        elif is_terminal(pod) or is_terminating(pod):
            self.failure_times = failures_since_success([*self.failure_times, finished_at(pod)], ())


class PodIndex:
    """Index, by Job, of the pods that have not ended or still have the Job finalizer."""

    __slots__ = ("_pods_by_job",)

    def __init__(self) -> None:
        #: By namespace and uid of the Job: its pods that have not ended or have the Job finalizer.
        self._pods_by_job: dict[tuple[str, str], RelevantJobPods] = {}

    def pods_of(self, job: meta.Obj) -> RelevantJobPods:
        """Return the pods of a Job that have not ended or still have the Job finalizer."""
        return self._pods_of(_job_key(job))

    def observe_job(self, event: WatchEvent, now: Instant) -> None:
        """Process a watch event of a Job: schedule its reconcile; remove a finished or deleted Job from the index."""
        job = event.obj
        if event.type is _DELETED or is_finished(job):
            self._pods_by_job.pop(_job_key(job), None)
            return
        job_pods = self.pods_of(job)
        job_pods.record_job(job)
        job_pods.schedule_reconcile(now)

    def observe_pod(self, event: WatchEvent, job_uid: str, now: Instant) -> bool:
        """Process a watch event of a pod; return whether the Job with this uid must be reconciled because of it."""
        job_key = event.key.namespace, job_uid
        job_pods = self._pods_of(job_key)
        is_relevant = job_pods.observe(event, now)
        if not (job_pods.job_is_known or job_pods.pod_keys):  # the last pod of a deleted Job
            del self._pods_by_job[job_key]
        return is_relevant

    def _pods_of(self, job_key: tuple[str, str]) -> RelevantJobPods:
        job_pods = self._pods_by_job.get(job_key)
        if job_pods is None:
            job_pods = self._pods_by_job[job_key] = RelevantJobPods()
        return job_pods


def _job_key(job: meta.Obj) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata.get("namespace", ""), metadata["uid"]


def _pod_flags(pod: meta.Obj) -> int:
    tracking_flag = _TRACKED_FLAG if is_tracked(pod) else 0
    if is_terminal(pod):
        return tracking_flag | _SUCCEEDED_FLAG if tracking_flag and phase(pod) == SUCCEEDED else tracking_flag
    if is_terminating(pod):
        return tracking_flag | _TERMINATING_FLAG
    return tracking_flag | _ACTIVE_FLAG | (_READY_FLAG if is_ready(pod) else 0)


def _has_same_containers(event: WatchEvent) -> bool:
    if event.old is None:
        return False
    old_status, new_status = event.old.get("status") or {}, event.obj.get("status") or {}
    return all(
        new_status.get(field) == old_status.get(field) for field in ("containerStatuses", "initContainerStatuses")
    )


# Ownership of pods: a Job adopts orphan pods that its selector matches, and releases owned pods whose labels no longer
# match.
# Source: PodControllerRefManager in Kubernetes's pkg/controller.


class OrphanPodIndex:
    """Index of the pods without a controller, and of the unfinished Jobs with manual selectors."""

    def __init__(self) -> None:
        #: Orphan pods by namespace and by the Job name in their label ('' for Jobs with manual selectors).
        self._orphans_by_job_name: dict[tuple[str, str], dict[meta.Key, None]] = {}
        #: By namespace: the unfinished Jobs with manual selectors.
        self._manual_jobs_by_namespace: dict[str, dict[meta.Key, None]] = {}

    def observe_job(self, event: WatchEvent) -> None:
        """Process a watch event of a Job: record a Job with a manual selector; remove a finished or deleted one."""
        if not _has_manual_selector(event.obj):
            return
        manual_jobs = self._manual_jobs_by_namespace.setdefault(event.key.namespace, {})
        if event.type is _DELETED or is_finished(event.obj):
            manual_jobs.pop(event.key, None)
        else:
            manual_jobs[event.key] = None

    def observe_pod(self, event: WatchEvent) -> Iterable[meta.Key]:
        """Update the index from a watch event of a pod; return the keys of the Jobs that may adopt the pod.

        No Job may adopt a pod that has a controller or is deleted.
        """
        namespace = event.key.namespace
        for name in () if event.old is None else _candidate_job_names(event.old):
            self._orphans_by_job_name.get((namespace, name), {}).pop(event.key, None)
        if event.type is _DELETED or meta.controller_of(event.obj) is not None:
            return ()
        for name in _candidate_job_names(event.obj):
            self._orphans_by_job_name.setdefault((namespace, name), {})[event.key] = None
        named_jobs = [meta.Key(scheme.JOB, namespace, name) for name in _candidate_job_names(event.obj) if name]
        return [*named_jobs, *self._manual_jobs_by_namespace.get(namespace, ())]

    def adopted_pods(self, job: meta.Obj, reader: Reader) -> list[meta.Obj]:
        """Return copies of the orphan pods that a Job adopts, with the Job as controller and the Job finalizer."""
        metadata = job["metadata"]
        orphan_job_name = "" if _has_manual_selector(job) else metadata["name"]
        orphan_keys = self._orphans_by_job_name.get((metadata.get("namespace", ""), orphan_job_name))
        if not orphan_keys or "deletionTimestamp" in metadata:
            return []
        pods = [pod for key in orphan_keys if (pod := reader.get(key)) is not None and not is_terminating(pod)]
        return [_adopt_pod(pod, job) for pod in pods if meta.controller_of(pod) is None and is_selected(pod, job)]


def is_selected(pod: meta.Obj, job: meta.Obj) -> bool:
    """Return whether the selector of a Job matches a pod."""
    job_selector = meta.parse_selector(with_selector(job)["spec"].get("selector"))
    return job_selector is not None and job_selector.matches(pod["metadata"].get("labels") or {})


def may_mismatch_owner(event: WatchEvent, owner_uid: str) -> bool:
    """Return whether an event requires a check of a pod against its Job's selector.

    It does if the pod's labels changed, or if a new pod lacks the Job's uid label.
    """
    labels = event.obj["metadata"].get("labels")
    if event.old is None:
        return labels is None or labels.get(well_known.CONTROLLER_UID) != owner_uid
    old_labels = event.old["metadata"].get("labels")
    return labels is not old_labels and labels != old_labels


def release_pod_from_job(pod: meta.Obj, job: meta.Obj) -> meta.Obj:
    """Return a copy of the pod without the Job as owner and without the Job finalizer."""
    return remove_tracking_finalizer(meta.without_owner(pod, job["metadata"]["uid"]))


def _has_manual_selector(job: meta.Obj) -> bool:
    return bool(job["spec"].get("manualSelector"))


def _candidate_job_names(pod: meta.Obj) -> Iterable[str]:
    """Return the names under which OrphanPodIndex keeps a pod: its job-name label, if any, and ''.

    A Job with a manual selector may select any pod, so it is found under ''.
    """
    name = meta.label(pod, well_known.JOB_NAME)
    return ("",) if name is None else (name, "")


def _adopt_pod(pod: meta.Obj, job: meta.Obj) -> meta.Obj:
    return meta.with_finalizer(meta.with_controller(pod, job), well_known.JOB_TRACKING)


class JobPodController:
    """Controller that reconciles Jobs, with an index of their pods and of orphan pods."""

    name = "job-pods"
    rank = 0
    kinds = (scheme.JOB, scheme.POD, scheme.PRIORITY_CLASS)

    def __init__(self) -> None:
        self._index = PodIndex()
        self._orphan_pods = OrphanPodIndex()
        #: Jobs by the PriorityClass of their pods: pods cannot be created before the class exists.
        self._jobs_by_priority_class: dict[str, dict[meta.Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the indexes; return the keys of Jobs to reconcile, and of a pod whose owner must be checked."""
        if event.key.kind == scheme.PRIORITY_CLASS:
            return list(self._jobs_by_priority_class.get(event.key.name, ())) if event.type is EventType.ADDED else ()
        if event.key.kind == scheme.JOB:
            self._index.observe_job(event, now)
            self._orphan_pods.observe_job(event)
            self._record_priority_class(event)
            return (event.key,)
        owner_reference = _owner_job_reference(event.obj)
        if owner_reference is None:
            tracked_orphans = (event.key,) if event.type is not EventType.DELETED and is_tracked(event.obj) else ()
            return [*self._orphan_pods.observe_pod(event), *self._previous_owner_keys(event, now), *tracked_orphans]
        if event.old is not None and _owner_job_reference(event.old) is None:
            self._orphan_pods.observe_pod(event)
        job = meta.Key(scheme.JOB, event.key.namespace, owner_reference["name"])
        is_relevant = self._index.observe_pod(event, owner_reference["uid"], now)
        if may_mismatch_owner(event, owner_reference["uid"]):
            return (job, event.key)
        if not is_relevant:
            return ()
        return (job, event.key) if is_terminating(event.obj) and is_tracked(event.obj) else (job,)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Reconcile a Job; for a pod key, remove the pod's invalid owner reference or unneeded Job finalizer."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if key.kind == scheme.POD:
            return _release_pod(obj, reader)
        if is_finished(obj) or not is_managed_by_job_controller(obj):
            return ReconcileResult()
        adopted_pods = self._orphan_pods.adopted_pods(obj, reader)
        if adopted_pods:
            return ReconcileResult([Update(pod) for pod in adopted_pods], independent=True)
        job_index = self._index.pods_of(obj)
        reconcile_at = job_index.reconcile_at(now)
        if reconcile_at > now:
            return ReconcileResult(requeue_at=reconcile_at)
        if not job_index.is_complete:
            job_index.add_existing(reader.owned_by(obj["metadata"]["uid"], key.namespace))
        pods = job_index.read_pods(reader)
        plan = plan_job(obj, pods, job_index.failure_times, now)
        job_index.record_plan(plan)
        names = (pod.obj["metadata"]["name"] for pod in pods)
        return _plan_writes(key, obj, plan, new_pods(obj, plan.pod_changes.to_create, names, job_index.pod_count, now))

    def _previous_owner_keys(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Remove the pod from the index of the Job that controlled it before the event; return the key of that Job."""
        owner_reference = None if event.old is None else _owner_job_reference(event.old)
        if owner_reference is None:
            return ()
        self._index.observe_pod(event._replace(type=EventType.DELETED), owner_reference["uid"], now)
        return (meta.Key(scheme.JOB, event.key.namespace, owner_reference["name"]),)

    def _record_priority_class(self, event: WatchEvent) -> None:
        name = event.obj["spec"]["template"]["spec"].get("priorityClassName")
        if not name:
            return
        if event.type is EventType.DELETED:
            self._jobs_by_priority_class[name].pop(event.key, None)
        else:
            self._jobs_by_priority_class.setdefault(name, {})[event.key] = None


def _owner_job_reference(pod: meta.Obj) -> Mapping[str, Any] | None:
    owner = meta.controller_of(pod)
    return owner if owner is not None and owner["kind"] == "Job" and owner["apiVersion"] == "batch/v1" else None


def _release_pod(pod: meta.Obj, reader: Reader) -> ReconcileResult:
    owner_reference = _owner_job_reference(pod)
    if owner_reference is None:
        is_orphan = meta.controller_of(pod) is None and is_tracked(pod)
        return ReconcileResult([Update(remove_tracking_finalizer(pod))] if is_orphan else [])
    job = reader.get(meta.Key(scheme.JOB, pod["metadata"].get("namespace", ""), owner_reference["name"]))
    if (
        job is not None
        and job["metadata"]["uid"] == owner_reference["uid"]
        and not (is_managed_by_job_controller(job) and is_finished(job))
    ):
        is_still_owned = (
            not is_managed_by_job_controller(job) or "deletionTimestamp" in job["metadata"] or is_selected(pod, job)
        )
        return ReconcileResult() if is_still_owned else ReconcileResult([Update(release_pod_from_job(pod, job))])
    return ReconcileResult([Update(remove_tracking_finalizer(pod))] if is_terminating(pod) and is_tracked(pod) else [])


def _plan_writes(key: meta.Key, job: meta.Obj, plan: JobPlan, created_pods: Sequence[meta.Obj]) -> ReconcileResult:
    """Convert the plan of a Job to API writes: pod creations and deletions come before the status update.

    If the API server rejects a write, the other writes are still sent.
    """
    finalizer_removals = [Update(remove_tracking_finalizer(pod.obj)) for pod in plan.pods_to_release]
    reconcile_result = ReconcileResult([*finalizer_removals], requeue_at=plan.wake_at, independent=True)
    pod_changes, writes = plan.pod_changes, reconcile_result.writes
    for pod in pod_changes.to_dismiss:
        if pod.tracked:
            writes.append(Update(remove_tracking_finalizer(pod.obj)))
    for pod in (*pod_changes.to_dismiss, *pod_changes.to_delete):
        deletion_event = _pod_event(key, "SuccessfulDelete", "Deleted", pod.obj)
        reconcile_result.add(Delete(meta.key_of(pod.obj), uid=pod.uid), [deletion_event])
    for new_pod in created_pods:
        reconcile_result.add(Create(new_pod), [_pod_event(key, "SuccessfulCreate", "Created", new_pod)])
    if created_pods:
        reconcile_result.event_if_rejected = partial(_rejection_event, key)
    if plan.status is not None and plan.status != job.get("status"):
        writes.append(UpdateStatus({**job, "status": plan.status}))
    reconcile_result.events += [EventRecord(key, *each) for each in plan.events]
    return reconcile_result


def _rejection_event(key: meta.Key, _write: Write, error: ApiError) -> EventRecord | None:
    if not isinstance(error, Forbidden) or isinstance(error, NamespaceTerminating):
        return None
    return EventRecord(key, "Warning", "FailedCreate", f"Error creating: {error}")


def _pod_event(key: meta.Key, reason: str, action: str, pod: meta.Obj) -> EventRecord:
    return EventRecord(key, "Normal", reason, f"{action} pod: {pod['metadata']['name']}")
