"""Controller of pods and groups of pods in queues: creates their Workloads, and ungates or deletes the pods.

A pod in a queue waits with a scheduling gate. When its Workload is admitted, it gets the node selector and the
tolerations of its flavors, and loses the gate. A pod never waits again: after an eviction it is deleted. A group has
one Workload with the name of the group; its key is that of this Workload. Failed pods of a group keep their finalizer
until other pods replace them. Source: pkg/controller/jobs/pod/pod_controller.go of Kueue.

These rules differ from Kueue's:
- A pod without the label of pods in queues is still managed while it has the finalizer or a Workload. Kueue leaves such
  a pod with its finalizer, and its Workload with its quota.
- If a Job or JobSet in a queue owns a pod, the label on the pod has no effect. Kueue deletes the pod.
- A group counts only pods that are in a queue, by the same rule.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.admission_plugins import built_in
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views import pods, queued_pods
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework import workloads
from batchyard.jobframework.reconciler import (
    JobPass,
    JobReconciler,
    delete_unmatched,
    release_quota,
    report_missing_class,
)
from batchyard.jobframework.workloads import PodSetInfo, release_workload_finalizer
from batchyard.jobs.pod import group
from batchyard.jobs.pod.group import PodJob
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.workload import adjustments, evictions, lifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.scheduling.workload.retention import RetentionPolicy

#: Groups of more pods are reconciled once for all changes within a batch period.
_BATCHED_GROUP_MIN: Final = 100
_DELETED: Final = EventType.DELETED
_WORKLOAD_DELETED: Final = "WorkloadDeleted"
_SERVING_OWNERS: Final = frozenset({"StatefulSet", "LeaderWorkerSet"})
#: The reasons of TerminationTarget for messages of the job reconciler; other messages are those of evictions.
_STOP_REASONS: Final = {
    "Workload is deleted": _WORKLOAD_DELETED,
    "Not admitted by cluster queue": "NotAdmitted",
    "missing workload": "NoMatchingWorkload",
    "Missing Workload; unable to restore pod templates": "NoMatchingWorkload",
    "No matching Workload; restoring pod templates according to existent Workload": "NoMatchingWorkload",
}


class QueuedPods:
    """Index of the pods in queues: the members of each group, and the group of each pod."""

    def __init__(self) -> None:
        #: By the key of a group's Workload, the keys of its pods.
        self._members: dict[Key, dict[Key, None]] = {}
        self._group_by_pod: dict[Key, Key] = {}

    def observe(self, event: WatchEvent) -> list[Key]:
        """Update the index from the event of a pod; return the keys to reconcile: of its group, or of the pod."""
        old_group = self._group_by_pod.get(event.key)
        new_group = None if event.type is _DELETED else _group_key(event.obj)
        if old_group != new_group:
            self._move(event.key, old_group, new_group)
        keys = [key for key in (old_group, new_group) if key is not None]
        return list(dict.fromkeys(keys)) or [event.key]

    def reconciled_key(self, key: Key) -> Key:
        """Return the key of a pod's group; the key itself if it is not that of a pod in a group."""
        return self._group_by_pod.get(key, key)

    def members(self, group_key: Key, reader: Reader) -> list[Obj]:
        """Return the pods of a group, oldest first."""
        members = [pod for key in self._members.get(group_key, ()) if (pod := reader.get(key)) is not None]
        return sorted(members, key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]))

    def has_group(self, group_key: Key) -> bool:
        """Return whether a group has pods."""
        return group_key in self._members

    def size(self, group_key: Key) -> int:
        """Return the number of pods of a group."""
        return len(self._members.get(group_key, ()))

    def _move(self, pod: Key, old_group: Key | None, new_group: Key | None) -> None:
        if old_group is not None:
            del self._group_by_pod[pod]
            del self._members[old_group][pod]
            if not self._members[old_group]:
                del self._members[old_group]
        if new_group is not None:
            self._group_by_pod[pod] = new_group
            self._members.setdefault(new_group, {})[pod] = None


def _group_key(pod: Obj) -> Key | None:
    name = queued_pods.group_name(pod)
    return Key(scheme.WORKLOAD, pod["metadata"].get("namespace", ""), name) if name and pods.is_in_queue(pod) else None


class PodReconciler(JobReconciler):
    """Controller that manages the Workloads of pods and groups of pods; pods run only while these are admitted."""

    def __init__(
        self,
        copied_keys: workloads.CopiedKeys = workloads.NO_COPIED_KEYS,
        *,
        pods_ready: PodsReadyPolicy | None = None,
        managed_jobs: ManagedJobs = ALL_QUEUED_JOBS,
        rules: DecisionRules = DEFAULT_RULES,
        retention: RetentionPolicy | None = None,
        batch_period: Duration = 0,
    ) -> None:
        """Create the controller; changes of a large group within `batch_period` are handled together."""
        super().__init__(
            PodJob((), "", 0),
            copied_keys,
            pods_ready=pods_ready,
            managed_jobs=managed_jobs,
            rules=rules,
            retention=retention,
        )
        self.kinds = [kind for kind in self.kinds if kind not in meta.JOB_KINDS]
        self._pods = QueuedPods()
        self._batch_period = batch_period
        #: When large groups with recent changes are reconciled.
        self._due: dict[Key, Instant] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the index from an event; return the keys of the pods and groups to reconcile."""
        if event.key.kind == scheme.POD:
            return self._observe_pod(event, now)
        keys = [self._pods.reconciled_key(key) for key in self._relations.observe(event)]
        if event.key.kind == scheme.WORKLOAD and (
            lifecycle.is_group_workload(event.obj) or self._pods.has_group(event.key)
        ):
            keys.append(event.key)
        return dict.fromkeys(keys)

    def _observe_pod(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        old = event.old
        is_known = pods.is_in_queue(event.obj) or (old is not None and pods.is_in_queue(old))
        if not is_known or (old is not None and event.type is not _DELETED and _state(old) == _state(event.obj)):
            return ()
        self._relations.observe(event)
        keys = self._pods.observe(event)
        for key in keys:
            if self._batch_period and self._pods.size(key) > _BATCHED_GROUP_MIN:
                self._due.setdefault(key, now + self._batch_period)
        return keys

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes of the first action that a pod, or a group, and its Workload need now."""
        if key.kind == scheme.WORKLOAD:
            return self._reconcile_group(key, reader, now)
        pod = reader.get(key)
        owned_workloads = self._relations.workloads_of(key, reader)
        if pod is None:
            return _finish_orphaned(owned_workloads, now, self._rules)
        if queued_pods.group_name(pod) or not (pods.is_in_queue(pod) or owned_workloads):
            return ReconcileResult()
        job_pass = _new_pass([pod], "", reader, now, self._rules)
        if pods.is_terminating(pod):
            return _release_terminating(job_pass, owned_workloads, self._rules)
        if not _is_managed(pod, reader, self._managed_jobs):
            return ReconcileResult()
        return self._manage_workloads(job_pass)

    def _priority_of(self, job_pass: JobPass) -> adjustments.WorkloadPriority | adjustments.MissingPriorityClass:
        pod_class = adjustments.first_priority_class(pod_set["template"] for pod_set in job_pass.pod_sets)
        return adjustments.resolve_priority(job_pass.job, pod_class, job_pass.reader)

    # Steps of the job reconciler that differ for pods.

    def _sync_job(self, job_pass: JobPass, workload: Obj) -> ReconcileResult:
        job = _job_of(job_pass)
        if not lifecycle.is_finished(workload):
            outcome = super()._sync_job(job_pass, workload)
            if lifecycle.is_evicted(workload) and lifecycle.has_quota_reservation(workload) and not outcome.writes:
                outcome.requeue_at = outcome.requeue_at or job.stuck_after()
            return outcome
        outcome = super()._sync_job(job_pass, workload)
        outcome.writes += _finalizer_writes(self._all_members(job_pass))
        return outcome

    def _start_or_stop_job(self, job_pass: JobPass, workload: Obj) -> ReconcileResult:
        """Start or stop the pods; the Workload of a group that serves keeps its LocalQueue."""
        outcome = super()._start_or_stop_job(job_pass, workload)
        is_renamed = any(isinstance(write, Update) and write.obj["kind"] == "Workload" for write in outcome.writes)
        return ReconcileResult() if is_renamed and _job_of(job_pass).is_serving else outcome

    def _all_members(self, job_pass: JobPass) -> Sequence[Obj]:
        job = _job_of(job_pass)
        if not job.group:
            return job.pods
        return self._pods.members(Key(scheme.WORKLOAD, job_pass.key.namespace, job.group), job_pass.reader)

    def _start_with(self, job_pass: JobPass, injections: Sequence[PodSetInfo], message: str) -> ReconcileResult:
        """Return the writes that ungate the pods; pods of a role that the Workload lacks make it fail."""
        job = _job_of(job_pass)
        gated_pods = [pod for pod in job.pods if queued_pods.has_admission_gate(pod)]
        outcome = ReconcileResult(independent=True)
        injection_by_role = {injection.name: injection for injection in injections}
        for pod in gated_pods:
            role = queued_pods.role_of(pod)
            if not job.group:
                started_pod = job.started_job(pod, injections)
            elif role in injection_by_role:
                started_pod = group.ungated_pod(pod, injection_by_role[role])
            else:
                message = f"podSetInfo with the name '{role}' is not found"
                raise workloads.InvalidPodSetInfo(f"invalid podset infos: {message}")
            outcome.add(Update(started_pod), [_pod_event(pod, "Started", message)])
        return outcome

    def _stop_job(self, job_pass: JobPass, workload: Obj | None, message: str) -> ReconcileResult | None:
        """Return the writes that mark and delete the pods; None if none is left to delete.

        Pods that wait for admission or have ended stay, unless the Workload is deleted. Then those of a group lose
        their finalizer too.
        """
        reason = _STOP_REASONS.get(message) or f"WorkloadEvictedDueTo{_eviction_reason(workload)}"
        is_deletion = reason == _WORKLOAD_DELETED
        job = _job_of(job_pass)
        outcome = ReconcileResult(independent=True)
        for pod in job.pods:
            if pods.is_terminating(pod) or (queued_pods.is_suspended_pod(pod) and not is_deletion):
                continue
            reason_and_message = (reason, message)
            marked = pods.with_condition(pod, group.TERMINATION_TARGET, True, reason_and_message, job_pass.now)
            outcome.add(UpdateStatus(marked), ())
            deletion = Delete(meta.key_of(pod), uid=pod["metadata"].get("uid"))
            outcome.add(deletion, [_pod_event(pod, "Stopped", message)])
        if not outcome.writes and is_deletion and job.group:
            outcome.writes += _finalizer_writes(self._all_members(job_pass))
        return outcome if outcome.writes else None

    def _stop_evicted_job(self, job_pass: JobPass, workload: Obj) -> ReconcileResult | None:
        """Stop the pods of an evicted Workload; a single pod never holds quota, so its Workload loses it at once."""
        outcome = super()._stop_evicted_job(job_pass, workload)
        is_stopping = outcome is not None and any(isinstance(write, Delete) for write in outcome.writes)
        is_single = not _job_of(job_pass).group and lifecycle.has_quota_reservation(workload)
        if outcome is not None and is_stopping and is_single:
            outcome.add(release_quota(job_pass, workload, self._rules).writes[0], ())
        return outcome

    # Groups.

    def _reconcile_group(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        due = self._due.get(key)
        if due is not None and due > now:
            return ReconcileResult(requeue_at=due)
        self._due.pop(key, None)
        members, workload = self._pods.members(key, reader), reader.get(key)
        if not members:
            return _reconcile_empty_group(workload, now)
        job_pass = _new_pass(members, key.name, reader, now, self._rules)
        if not _is_managed(job_pass.job, reader, self._managed_jobs):
            return ReconcileResult()
        if workloads.prebuilt_key(job_pass.job) is not None:
            return self._manage_prebuilt_group(job_pass, workload)
        if workload is None:
            return self._create_group(job_pass)
        if not lifecycle.is_group_workload(workload):
            return _report_name_conflict(job_pass, key.name)
        return self._manage_group(job_pass, workload)

    def _manage_group(self, job_pass: JobPass, workload: Obj) -> ReconcileResult:
        job = _job_of(job_pass)
        assigned = group.assign_members(job, workload["spec"]["podSets"])
        has_equal_limit = workload["spec"].get("maximumExecutionTimeSeconds") == workloads.execution_seconds_max(
            job_pass.job
        )
        kept_pod_sets = job.role_pod_sets(assigned.kept)
        if not (has_equal_limit and assigned.kept and group.has_equal_roles(workload, kept_pod_sets, self._rules)):
            return self._replace_group_workload(job_pass, workload)
        owned_workload = _with_owners(workload, assigned.kept)
        if owned_workload is not workload:
            return _owners_added(workload, owned_workload)
        outcome = _clean_up(assigned.excess, assigned.replaced)
        if outcome.writes:
            return outcome
        kept_job = job._replace(pods=assigned.kept)
        kept_pass = job_pass._replace(
            job=kept_job.first,
            key=meta.key_of(kept_job.first),
            integration=kept_job,
            suspended=kept_job.is_suspended(kept_job.first),
        )
        return self._sync_group(kept_pass, workload, assigned.absent_count)

    def _sync_group(self, job_pass: JobPass, workload: Obj, absent_count: int) -> ReconcileResult:
        synced = self._sync_workload(job_pass, workload)
        if synced is not None:
            return synced
        new_workload = group.with_replacement_condition(workload, absent_count, job_pass.now)
        if new_workload is not workload:
            return ReconcileResult([UpdateStatus(new_workload)])
        return self._sync_job(job_pass, workload)

    def _replace_group_workload(self, job_pass: JobPass, workload: Obj) -> ReconcileResult:
        """Update a Workload that no longer matches its group, if it has no quota; else stop the pods and delete it."""
        job = _job_of(job_pass)
        if job_pass.suspended and not lifecycle.has_quota_reservation(workload):
            return self._create_group(job_pass, workload)
        if not job_pass.suspended and job.completion(job_pass.job) is None:
            message = "No matching Workload; restoring pod templates according to existent Workload"
            stop_result = self._stop_job(job_pass, workload, message)
            if stop_result is not None:
                return stop_result
        return delete_unmatched(job_pass, [workload]) or self._sync_job(job_pass, workload)

    def _manage_prebuilt_group(self, job_pass: JobPass, workload: Obj | None) -> ReconcileResult:
        job = _job_of(job_pass)
        controller = None if workload is None else meta.controller_of(workload)
        if workload is not None and controller is None:
            owned_workload = _with_owners(workload, job.pods)
            if owned_workload is not workload:
                return _owners_added(workload, owned_workload)
            if group.has_equal_roles(workload, job_pass.pod_sets, self._rules):
                return self._sync_group(job_pass, workload, 0)
            if not lifecycle.is_finished(workload):
                message = "The prebuilt workload is out of sync with its user job"
                finished = lifecycle.finish(workload, lifecycle.OUT_OF_SYNC, message, job_pass.now)
                return ReconcileResult([UpdateStatus(finished)])
        if job.completion(job_pass.job) is not None:
            return ReconcileResult(_finalizer_writes(job.pods))
        return self._stop_job(job_pass, None, "missing workload") or ReconcileResult()

    def _create_group(self, job_pass: JobPass, unmatched: Obj | None = None) -> ReconcileResult:
        """Create the Workload of a group, or update the one that does not match, once enough pods exist."""
        job = _job_of(job_pass)
        if unmatched is None and not job_pass.suspended and job.completion(job_pass.job) is None:
            stop_result = self._stop_job(job_pass, None, "Missing Workload; unable to restore pod templates")
            if stop_result is not None:
                return stop_result
        if job.completion(job_pass.job) is not None:
            return ReconcileResult(_finalizer_writes(job.pods))
        if unmatched is None and job.is_active(job_pass.job):
            return ReconcileResult()
        if self._rules.is_current and unmatched is None and all(map(pods.is_terminating, job.pods)):
            return ReconcileResult(_finalizer_writes(job.pods))
        active = [pod for pod in job.pods if job.is_runnable_or_succeeded(pod)]
        inactive = [pod for pod in job.pods if not job.is_runnable_or_succeeded(pod)]
        writes = _finalizer_writes(inactive)
        if error := group.group_error(job, active):
            return ReconcileResult(writes, [job_pass.event("ErrWorkloadCompose", error, kind="Warning")])
        members, excess = group.split_excess(active, job.total_count or 0)
        outcome = _clean_up(excess, inactive)
        if outcome.writes:
            return outcome
        return self._write_group(job_pass._replace(integration=job._replace(pods=members)), unmatched)

    def _write_group(self, job_pass: JobPass, unmatched: Obj | None) -> ReconcileResult:
        job = _job_of(job_pass)
        pod_sets = job.pod_sets(job_pass.job)
        keys = self._copied_keys
        labels = group.shared_values(job.pods, "labels", keys.labels)
        annotations = group.shared_values(job.pods, "annotations", keys.annotations)
        problem = _compose_problem(pod_sets, labels, annotations)
        if problem or not pod_sets:
            return ReconcileResult([], [job_pass.event("ErrWorkloadCompose", problem, kind="Warning")] * bool(problem))
        if unmatched is not None:
            job_pass = job_pass._replace(pod_sets=pod_sets)
            return _update_group(job_pass, unmatched, self._priority_of(job_pass))
        complete = partial(_with_group_metadata, job=job, labels=labels or {}, annotations=annotations or {})
        return self._write_new_workload(job_pass._replace(pod_sets=pod_sets), pod_sets, complete)


def _release_terminating(job_pass: JobPass, owned_workloads: Sequence[Obj], rules: DecisionRules) -> ReconcileResult:
    """Release a pod that is being deleted; its Workload finishes now, or since Kueue 0.20 once the pod is gone."""
    outcome = ReconcileResult()
    for each in owned_workloads:
        if not rules.is_current:
            outcome.writes += _finish_orphaned([each], job_pass.now, rules).writes
        elif pods.is_terminating(each):
            outcome.writes += release_workload_finalizer(each).writes
        elif lifecycle.is_evicted(each) and lifecycle.has_quota_reservation(each):
            outcome.writes += release_quota(job_pass, each, rules).writes
    outcome.writes += _finalizer_writes([job_pass.job])
    return outcome


def _is_managed(pod: Obj, reader: Reader, managed_jobs: ManagedJobs) -> bool:
    namespace = pod["metadata"].get("namespace", "")
    if not (built_in.is_managed_namespace(namespace, managed_jobs.namespaces, reader.get) and managed_jobs.names(pod)):
        return False
    if meta.annotation(pod, well_known.SUSPENDING_PARENT) is not None:
        return True  # its owner is in the queue by means of its pods
    if managed_jobs.implies_pods:
        return False
    return built_in.find_managed_ancestor(pod, reader.get, managed_jobs).managed_key is None


def _finish_orphaned(orphans: Sequence[Obj], now: Instant, rules: DecisionRules) -> ReconcileResult:
    """Return the writes that finish the Workloads of a pod that is gone, and release those that are finished.

    Source: FinalizeOrphanedWorkload in pkg/workload/workload.go of Kueue.
    """
    outcome = ReconcileResult()
    for workload in orphans:
        if not rules.finishes_orphans or lifecycle.is_finished(workload) or pods.is_terminating(workload):
            outcome.writes += release_workload_finalizer(workload).writes
        else:
            message = "The workload's owner no longer exists"
            outcome.writes.append(UpdateStatus(lifecycle.finish(workload, lifecycle.OWNER_NOT_FOUND, message, now)))
    return outcome


def _new_pass(members: Sequence[Obj], name: str, reader: Reader, now: Instant, rules: DecisionRules) -> JobPass:
    job = PodJob(members, name, now, rules)
    first_key = meta.key_of(job.first)
    return JobPass(first_key, job.first, job, job.pod_sets(job.first), job.is_suspended(job.first), reader, now)


def _compose_problem(
    pod_sets: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None
) -> str:
    if len(pod_sets) > group.ROLES_MAX:
        return f"pod group can't include more than {group.ROLES_MAX} roles"
    if labels is None or annotations is None:
        return f"constructing workload: pods have different {'label' if labels is None else 'annotation'} values"
    return ""


def _update_group(
    job_pass: JobPass, unmatched: Obj, priority: adjustments.WorkloadPriority | adjustments.MissingPriorityClass
) -> ReconcileResult:
    if isinstance(priority, adjustments.MissingPriorityClass):
        return report_missing_class(job_pass, priority)
    spec = workloads.workload_spec(job_pass.job, job_pass.pod_sets, priority)
    spec["active"] = lifecycle.is_active(unmatched)
    message = f"Updated not matching Workload for suspended job: {meta.key_of(unmatched)}"
    return ReconcileResult([Update({**unmatched, "spec": spec})], [job_pass.event("UpdatedWorkload", message)])


def _job_of(job_pass: JobPass) -> PodJob:
    assert isinstance(job_pass.integration, PodJob)
    return job_pass.integration


def _state(pod: Obj) -> tuple[Any, ...]:
    """Return what a pod's reconcile depends on."""
    metadata, spec = pod["metadata"], pod["spec"]
    return (
        *(metadata.get(field) for field in ("labels", "annotations", "finalizers", "deletionTimestamp")),
        *(metadata.get("ownerReferences"), spec.get("schedulingGates"), bool(spec.get("nodeName"))),
        *(pods.phase(pod), pods.is_ready(pod)),
    )


def _eviction_reason(workload: Obj | None) -> str:
    condition = None if workload is None else meta.find_condition(workload, lifecycle.EVICTED)
    return "" if condition is None else str(condition["reason"])


def _pod_event(pod: Obj, reason: str, message: str) -> EventRecord:
    return EventRecord(meta.key_of(pod), "Normal", reason, message)


def _finalizer_writes(members: Sequence[Obj]) -> list[Write]:
    """Return the writes that remove the finalizer of pods in queues."""
    released = [(pod, meta.without_finalizer(pod, well_known.MANAGED)) for pod in members]
    return [Update(new) for pod, new in released if new is not pod]


def _clean_up(excess: Sequence[Obj], replaced: Sequence[Obj]) -> ReconcileResult:
    """Return the writes that delete the excess pods of a group, and release them and the replaced ones."""
    outcome = ReconcileResult(independent=True)
    for pod in excess:
        for write in _finalizer_writes([pod]):
            outcome.add(write, ())
        if not pods.is_terminating(pod):
            deletion = Delete(meta.key_of(pod), uid=pod["metadata"].get("uid"))
            outcome.add(deletion, [_pod_event(pod, "ExcessPodDeleted", "Excess pod deleted")])
    for write in _finalizer_writes(replaced):
        outcome.add(write, ())
    return outcome


def _with_owners(workload: Obj, members: Sequence[Obj]) -> Obj:
    """Return the Workload with all members as owners; the same object if it has them."""
    owners = list(workload["metadata"].get("ownerReferences") or ())
    known_uids = {owner["uid"] for owner in owners}
    added = [meta.owner_reference(pod) for pod in members if pod["metadata"].get("uid") not in known_uids]
    return meta.with_metadata(workload, ownerReferences=[*owners, *added]) if added else workload


def _owners_added(old: Obj, new: Obj) -> ReconcileResult:
    count = len(new["metadata"]["ownerReferences"]) - len(old["metadata"].get("ownerReferences") or ())
    event = EventRecord(meta.key_of(new), "Normal", "OwnerReferencesAdded", f"Added {count} owner reference(s)")
    return ReconcileResult([Update(new)], [event])


def _with_group_metadata(
    workload: Obj, *, job: PodJob, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Obj:
    """Return the new Workload of a group: with its name, its members as owners, and the values that they share."""
    metadata = workload["metadata"]
    group_annotations = {**(metadata.get("annotations") or {}), **annotations}
    fields: dict[str, Any] = {
        "name": job.group,
        "labels": dict(labels) or None,
        "annotations": {**group_annotations, well_known.IS_GROUP_WORKLOAD: queued_pods.ENABLED},
        "ownerReferences": [meta.owner_reference(pod) for pod in job.pods],
    }
    return meta.with_metadata(workload, **fields)


def _is_foreign(workload: Obj) -> bool:
    """Return whether a Workload with the name of a group belongs to another job; a prebuilt one has no controller."""
    return not lifecycle.is_group_workload(workload) and meta.controller_of(workload) is not None


def _reconcile_empty_group(workload: Obj | None, now: Instant) -> ReconcileResult:
    """Release the Workload of a group without pods; that of a service stays, and loses its quota if it is evicted."""
    if workload is None or _is_foreign(workload):
        return ReconcileResult()
    if not _is_of_service(workload):
        return release_workload_finalizer(workload)
    if not (lifecycle.is_evicted(workload) and lifecycle.has_quota_reservation(workload)):
        return ReconcileResult()
    return ReconcileResult([UpdateStatus(evictions.release_after_eviction(workload, now))])


def _is_of_service(workload: Obj) -> bool:
    """Return whether a Workload stays without pods: a StatefulSet or LeaderWorkerSet owns it, and it is not deleted."""
    owners = workload["metadata"].get("ownerReferences") or ()
    return not pods.is_terminating(workload) and any(owner["kind"] in _SERVING_OWNERS for owner in owners)


def _report_name_conflict(job_pass: JobPass, name: str) -> ReconcileResult:
    """Return the Event about another Workload with the name of a group; deleted pods of the group are released."""
    rest_text = "already exists but is not a pod group workload; this pod group cannot be admitted"
    event = job_pass.event("WorkloadNameConflict", f'A Workload named "{name}" {rest_text}', kind="Warning")
    members = _job_of(job_pass).pods
    return ReconcileResult(
        _finalizer_writes([pod for pod in members if not group.is_runnable_or_succeeded(pod)]), [event]
    )
