"""Job reconciler for all kinds: creates one Workload per job, keeps both in sync, and releases the Workload.

A reconcile finds the first action that is due, in the order of Kueue's JobReconciler (pkg/controller/jobframework/
reconciler.go), and returns its one write. The event of that write triggers the next reconcile. A job is managed if it
names a queue and no owner of it is managed. The reconciler does not depend on the controller that runs the pods.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from batchyard.admission_plugins.built_in import is_managed_namespace
from batchyard.api import scheme, well_known
from batchyard.api.meta import (
    JOB_KINDS,
    Key,
    Obj,
    Selector,
    ancestry,
    annotation,
    controller_of,
    find_condition,
    key_of,
    label,
    owner_key,
    with_path,
    without_finalizer,
)
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework import workloads
from batchyard.jobframework.workloads import (
    GenericJob,
    InvalidPodSetInfo,
    admitted_injections,
    original_injections,
    prebuilt_key,
)
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.adjustments import (
    MissingClass,
    Priority,
    class_key,
    class_name,
    follows_label,
    resolve_priority,
)
from batchyard.scheduling.workload.pods_ready import set_pods_ready

# --- family ---
#
# Index of the relations between jobs, their Workloads, child jobs, and the classes and Workloads that they wait for.
#
# It is built only from watch events.


_CLASSES: Final = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS)


class JobRelations:
    """The relations of one kind of job."""

    def __init__(self, integration: GenericJob) -> None:
        self._integration = integration
        self._workloads: dict[Key, dict[Key, None]] = {}
        self._children: dict[str, dict[Key, None]] = {}
        self._by_class: dict[Key, dict[Key, None]] = {}
        self._by_prebuilt: dict[Key, dict[Key, None]] = {}
        #: Admitted jobs that wait for a missing flavor of their admission.
        self._without_flavor: dict[Key, None] = {}

    def note(self, event: WatchEvent) -> Iterable[Key]:
        """Process a change. Return the affected jobs."""
        kind = event.key.kind
        if kind == self._integration.kind:
            return self._note_job(event)
        if kind == scheme.WORKLOAD:
            return self._note_workload(event)
        if kind in _CLASSES and event.type is EventType.ADDED:
            return list(self._by_class.get(event.key, ()))
        if kind == scheme.RESOURCE_FLAVOR and event.type is EventType.ADDED:
            waiting, self._without_flavor = self._without_flavor, {}
            return list(waiting)
        return ()

    def awaits_flavor(self, job: Key) -> None:
        """Reconcile a job again when a flavor is created."""
        self._without_flavor[job] = None

    def workloads_of(self, job: Key, reader: Reader) -> list[Obj]:
        """Return the Workloads created for a job, oldest first."""
        found = [workload for key in self._workloads.get(job, ()) if (workload := reader.get(key)) is not None]
        return sorted(found, key=lambda w: (w["metadata"].get("creationTimestamp", ""), w["metadata"]["name"]))

    def _note_job(self, event: WatchEvent) -> Iterable[Key]:
        _move(self._children, event, _owner_uid)
        _move(self._by_class, event, self._class_of)
        _move(self._by_prebuilt, event, prebuilt_key)
        return (event.key,)

    def _class_of(self, job: Obj) -> Key | None:
        """Return the class that a managed job names; None for a job with an owner."""
        if controller_of(job) is not None or not label(job, well_known.QUEUE_NAME):
            return None
        return class_key(job, self._integration.templates(job))

    def _note_workload(self, event: WatchEvent) -> Iterable[Key]:
        promised = self._by_prebuilt.get(event.key, ())
        if not event.obj["metadata"].get("ownerReferences"):
            if event.old is not None and event.old["metadata"].get("ownerReferences"):
                _move(self._workloads, event, self._job_of)  # its job was deleted and orphaned it
            return list(promised)
        owner = controller_of(event.obj)
        if owner is None:
            return list(promised)
        _move(self._workloads, event, self._job_of)
        children = self._children.get(owner["uid"], ())
        job = self._job_of(event.obj)
        return [*(() if job is None else (job,)), *children, *promised]

    def _job_of(self, workload: Obj) -> Key | None:
        """Return the job of this kind that a Workload was created for."""
        owner = controller_of(workload)
        job = None if owner is None else owner_key(owner, workload["metadata"].get("namespace", ""))
        return job if job is not None and job.kind == self._integration.kind else None


PlaceT = TypeVar("PlaceT", bound=Hashable)


def _move(index: dict[PlaceT, dict[Key, None]], event: WatchEvent, place_of: Callable[[Obj], PlaceT | None]) -> None:
    """Move a key to the place that its object belongs to, if any; empty places are removed."""
    before = None if event.old is None else place_of(event.old)
    after = None if event.type is EventType.DELETED else place_of(event.obj)
    if before is not None and before != after and before in index:
        index[before].pop(event.key, None)
        if not index[before]:
            del index[before]
    if after is not None:
        index.setdefault(after, {})[event.key] = None


def _owner_uid(obj: Obj) -> str | None:
    owner = controller_of(obj)
    return None if owner is None else owner["uid"]


class _JobPass(NamedTuple):
    """A job and its state, at an instant."""

    key: Key
    job: Obj
    pod_sets: list[dict[str, Any]]
    suspended: bool
    reader: Reader
    now: Instant

    def event(self, reason: str, message: str, kind: str = "Normal") -> EventRecord:
        """Return an Event about the job."""
        return EventRecord(self.key, kind, reason, message)


class JobReconciler:
    """Manages the Workloads of one kind of job."""

    rank = 0
    kinds = (
        *(*JOB_KINDS, scheme.WORKLOAD, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
        scheme.RESOURCE_FLAVOR,
    )

    def __init__(
        self,
        integration: GenericJob,
        copied_labels: Sequence[str] = (),
        *,
        wait_for_pods_ready: bool = False,
        managed_namespaces: Selector | None = None,
    ) -> None:
        self.name = integration.kind.partition(".")[0].lower()
        self._integration = integration
        #: Whether PodsReady is set on Workloads from the pods of their jobs.
        self._wait_for_pods_ready = wait_for_pods_ready
        self._copied_labels = tuple(copied_labels)
        self._family = JobRelations(integration)
        #: The Namespaces whose jobs are managed; None for all.
        self._managed_namespaces = managed_namespaces

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the affected job: it, its Workload or its owner's changed, or its missing class was created."""
        return self._family.note(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Do the first action that is due for a job."""
        job = reader.get(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            gone = self._family.workloads_of(key, reader)
            if job is not None and well_known.ORPHAN_FINALIZER in job["metadata"].get("finalizers", ()):
                # Its dependents stay, and finish once they have no owner.
                return ReconcileResult([write for workload in gone for write in _release_finalizer(workload).writes])
            return _release(gone)
        if not is_managed_namespace(key.namespace, self._managed_namespaces, reader.get):
            return ReconcileResult()
        above = ancestry(job, reader.get)
        if above.managed is not None:
            return self._obey_ancestor(key, job, _unfinished_workloads(above.managed, reader))
        if above.missing is not None or not label(job, well_known.QUEUE_NAME):
            return ReconcileResult()
        suspended = self._integration.is_suspended(job)
        look = _JobPass(key, job, self._integration.pod_sets(job), suspended, reader, now)
        return self._manage(look)

    def _obey_ancestor(self, key: Key, job: Obj, unfinished: Sequence[Obj]) -> ReconcileResult:
        """Suspend a child job unless a Workload of its managed owner is admitted."""
        integration = self._integration
        if integration.ending(job) is not None or integration.is_suspended(job):
            return ReconcileResult()
        if any(lifecycle.is_admitted(workload) for workload in unfinished):
            return ReconcileResult()
        event = EventRecord(key, "Normal", "Suspended", "Kueue managed child job suspended")
        return ReconcileResult([Update(with_path(job, ("spec", "suspend"), True))], [event])

    # --- one Workload per job ---

    def _manage(self, look: _JobPass) -> ReconcileResult:
        prebuilt = workloads.prebuilt_key(look.job)
        if prebuilt is not None:
            return self._manage_prebuilt(look, look.reader.get(prebuilt))
        match, others = None, []
        for workload in self._family.workloads_of(look.key, look.reader):
            if match is None and workloads.matches(workload, look.job, look.pod_sets, look.suspended):
                match = workload
            else:
                others.append(workload)
        if match is None:
            return self._stop_unmatched(look, others) or self._replace(look, others) or self._create(look)
        return self._delete(look, others) or self._follow(look, match) or self._obey(look, match)

    def _manage_prebuilt(self, look: _JobPass, workload: Obj | None) -> ReconcileResult:
        """Adopt a prebuilt Workload; without an equivalent one the job does not run."""
        if workload is not None and controller_of(workload) is None:
            return ReconcileResult([Update(workloads.taken_by(workload, look.job))])
        if workload is not None and workloads.belongs(workload, look.job):
            if workloads.matches(workload, look.job, look.pod_sets, look.suspended):
                return self._obey(look, workload)
            if not lifecycle.is_finished(workload):
                message = "The prebuilt workload is out of sync with its user job"
                return ReconcileResult(
                    [UpdateStatus(lifecycle.finish(workload, lifecycle.OUT_OF_SYNC, message, look.now))]
                )
        stop = None if self._integration.ending(look.job) is not None else self._stop(look, None, "missing workload")
        return stop or ReconcileResult()

    def _stop_unmatched(self, look: _JobPass, others: Sequence[Obj]) -> ReconcileResult | None:
        """Stop a running job without a Workload."""
        if look.suspended or self._integration.ending(look.job) is not None:
            return None
        if len(others) == 1:
            message = "No matching Workload; restoring pod templates according to existent Workload"
            return self._stop(look, others[0], message)
        return self._stop(look, None, "Missing Workload; unable to restore pod templates")

    def _replace(self, look: _JobPass, others: Sequence[Obj]) -> ReconcileResult | None:
        """Update the pending Workload of a changed job; delete Workloads that can no longer be changed."""
        if not others:
            return None
        first = others[0]
        changeable = (
            look.suspended and workloads.belongs(first, look.job) and not lifecycle.has_quota_reservation(first)
        )
        if not changeable or lifecycle.is_finished(first) or "deletionTimestamp" in first["metadata"]:
            return self._delete(look, others)
        if len(others) > 1:
            return self._delete(look, others[1:])
        priority = self._priority_of(look)
        if isinstance(priority, MissingClass):
            return _missing_class(look, priority)
        spec = workloads.workload_spec(look.job, look.pod_sets, priority)
        spec["active"] = lifecycle.is_active(first)
        message = f"Updated not matching Workload for suspended job: {key_of(first)}"
        return ReconcileResult([Update({**first, "spec": spec})], [look.event("UpdatedWorkload", message)])

    def _delete(self, look: _JobPass, others: Sequence[Obj]) -> ReconcileResult | None:
        outcome = _release(others)
        gone = [key_of(workload) for workload in others if "deletionTimestamp" not in workload["metadata"]]
        outcome.events += [look.event("DeletedWorkload", f"Deleted not matching Workload: {key}") for key in gone]
        return outcome if outcome.writes else None

    def _create(self, look: _JobPass) -> ReconcileResult:
        if self._integration.ending(look.job) is not None or self._integration.is_active(look.job):
            return ReconcileResult()  # finished, or its old pods are still stopping
        priority = self._priority_of(look)
        if isinstance(priority, MissingClass):
            return _missing_class(look, priority)
        workload = workloads.make_workload(look.job, look.pod_sets, priority, self._copied_labels)
        message = f"Created Workload: {key_of(workload)}"
        return ReconcileResult([Create(workload)], [look.event("CreatedWorkload", message)])

    def _follow(self, look: _JobPass, workload: Obj) -> ReconcileResult | None:
        """Propagate mutable fields of the job: the admission gate and the priority class."""
        if lifecycle.is_finished(workload):
            return None
        gated = workloads.with_gate_of(workload, look.job)
        if gated is not workload:
            gate = annotation(look.job, well_known.ADMISSION_GATED_BY) or ""
            return ReconcileResult(
                [Update(gated)], [look.event("UpdatedWorkload", f'Updated workload AdmissionGatedBy to "{gate}"')]
            )
        return self._follow_priority(look, workload)

    def _priority_of(self, look: _JobPass) -> Priority | MissingClass:
        return resolve_priority(look.job, self._integration.templates(look.job), look.reader)

    def _follow_priority(self, look: _JobPass, workload: Obj) -> ReconcileResult | None:
        wanted = label(look.job, well_known.PRIORITY_CLASS) or ""
        reserved = lifecycle.has_quota_reservation(workload)
        if class_name(workload) == wanted or not follows_label(workload, reserved):
            return None
        priority = self._priority_of(look)
        if isinstance(priority, MissingClass):
            return _missing_class(look, priority)
        if Priority(workload["spec"].get("priority", 0), workload["spec"].get("priorityClassRef")) == priority:
            return None
        updated = with_path(workload, ("spec", "priority"), priority.value)
        updated = with_path(updated, ("spec", "priorityClassRef"), priority.class_ref)
        message = f"Updated workload priority class: {key_of(workload)}"
        return ReconcileResult([Update(updated)], [look.event("UpdatedWorkload", message)])

    # --- the job follows its Workload ---

    def _obey(self, look: _JobPass, workload: Obj) -> ReconcileResult:
        if lifecycle.is_finished(workload):
            return _release_finalizer(workload)
        if "deletionTimestamp" in workload["metadata"]:
            return self._stop(look, workload, "Workload is deleted") or _release_finalizer(workload)
        return (
            self._finish(look, workload)
            or self._reclaim(look, workload)
            or self._set_pods_ready(look, workload)
            or self._yield(look, workload)
            or self._run(look, workload)
        )

    def _finish(self, look: _JobPass, workload: Obj) -> ReconcileResult | None:
        ending = self._integration.ending(look.job)
        if ending is None:
            return None
        reason = lifecycle.SUCCEEDED if ending.succeeded else lifecycle.FAILED
        finished = lifecycle.finish(workload, reason, ending.message, look.now)
        message = f"Workload '{key_of(workload)}' is declared finished"
        return ReconcileResult([UpdateStatus(finished)], [look.event("FinishedWorkload", message)])

    def _reclaim(self, look: _JobPass, workload: Obj) -> ReconcileResult | None:
        updated = _with_reclaimable_pods(workload, self._integration.reclaimable_pods(look.job))
        return None if updated is workload else ReconcileResult([UpdateStatus(updated)])

    def _set_pods_ready(self, look: _JobPass, workload: Obj) -> ReconcileResult | None:
        if not self._wait_for_pods_ready:
            return None
        updated = set_pods_ready(workload, self._integration.pods_ready(look.job), look.now)
        return None if updated is workload else ReconcileResult([UpdateStatus(updated)])

    def _yield(self, look: _JobPass, workload: Obj) -> ReconcileResult | None:
        """Stop an evicted job, and release its quota once its pods are gone."""
        if not lifecycle.is_evicted(workload):
            return None
        evicted = find_condition(workload, lifecycle.EVICTED)
        assert evicted is not None
        stop = self._stop(look, workload, evicted["message"])
        if stop is not None:
            return stop
        if not lifecycle.has_quota_reservation(workload) or self._integration.is_active(look.job):
            return ReconcileResult()
        return ReconcileResult([UpdateStatus(evictions.release_after_eviction(workload, look.now))])

    def _run(self, look: _JobPass, workload: Obj) -> ReconcileResult:
        admitted = lifecycle.is_admitted(workload)
        if not look.suspended:
            return (
                ReconcileResult()
                if admitted
                else self._stop(look, workload, "Not admitted by cluster queue") or ReconcileResult()
            )
        if admitted:
            return self._start(look, workload)
        queue = label(look.job, well_known.QUEUE_NAME)
        if workload["spec"].get("queueName") != queue and not lifecycle.has_quota_reservation(workload):
            return ReconcileResult([Update(with_path(workload, ("spec", "queueName"), queue))])
        return ReconcileResult([], _check_events(look, workload))

    def _start(self, look: _JobPass, workload: Obj) -> ReconcileResult:
        def flavor(name: str) -> Obj | None:
            return look.reader.get(Key(scheme.RESOURCE_FLAVOR, "", name))

        try:
            injections = admitted_injections(workload, flavor)
            if injections is None:
                self._family.awaits_flavor(look.key)
                return ReconcileResult()
            started = self._integration.started(look.job, injections)
        except InvalidPodSetInfo as wrong:
            failed = lifecycle.finish(workload, lifecycle.FAILED_TO_START, str(wrong), look.now)
            return ReconcileResult([UpdateStatus(failed)])
        message = f"Admitted by clusterQueue {lifecycle.cluster_queue_of(workload)}"
        return ReconcileResult([Update(started)], [look.event("Started", message)])

    def _stop(self, look: _JobPass, workload: Obj | None, message: str) -> ReconcileResult | None:
        """Return the next write to stop a job with the original templates of its Workload; None if it is stopped."""
        if _is_stopping(look) and self._integration.is_active(look.job):
            return ReconcileResult()
        originals = original_injections(workload) if workload is not None else []
        write = self._integration.stop(look.job, originals)
        if write is None:
            return None
        first = look.job["spec"].get("suspend") is not True
        return ReconcileResult([write], [look.event("Stopped", message)] if first else [])


def _unfinished_workloads(job: Key, reader: Reader) -> list[Obj]:
    """Return the unfinished Workloads of a job, which may be of another kind than the controller's."""
    parent = reader.get(job)
    uid = parent["metadata"].get("uid", "") if parent is not None else ""
    owned = reader.owned_by(uid, job.namespace) if uid else ()
    return [obj for obj in owned if obj["kind"] == "Workload" and not lifecycle.is_finished(obj)]


def _with_reclaimable_pods(workload: Obj, reclaimable: Sequence[Mapping[str, Any]]) -> Obj:
    """Return the Workload with the pods that will not run again, capped by its counts; itself if unchanged."""
    sizes = {pod_set["name"]: pod_set["count"] for pod_set in workload["spec"]["podSets"]}
    pods = [{"name": p["name"], "count": min(p["count"], sizes.get(p["name"], p["count"]))} for p in reclaimable]
    old = (workload.get("status") or {}).get("reclaimablePods") or ()
    if {p["name"]: p["count"] for p in old} == {p["name"]: p["count"] for p in pods}:
        return workload
    return with_path(workload, ("status", "reclaimablePods"), pods or None)


def _is_stopping(look: _JobPass) -> bool:
    """Report whether it is suspended but not stopped yet. While it has pods, Kubernetes 1.36 rejects template changes.

    Source: shouldAllowMutablePodTemplate in pkg/registry/batch/job/strategy.go.
    """
    return look.job["spec"].get("suspend") is True and not look.suspended


def _check_events(look: _JobPass, workload: Obj) -> list[EventRecord]:
    """Return an Event on the job with the messages of its Workload's Pending checks."""
    if not lifecycle.has_quota_reservation(workload):
        return []
    texts = [
        f"{c['name']}: {c['message']}" for c in lifecycle.in_state(workload, lifecycle.PENDING) if c.get("message")
    ]
    return [look.event("UpdatedAdmissionCheck", "; ".join(texts))] if texts else []


def _missing_class(look: _JobPass, missing: MissingClass) -> ReconcileResult:
    """Wait for the class; its creation triggers a reconcile of the job."""
    if missing.key.kind != scheme.WORKLOAD_PRIORITY_CLASS:
        return ReconcileResult()
    message = f'WorkloadPriorityClass "{missing.key.name}" not found'
    return ReconcileResult([], [look.event("WorkloadPriorityClassNotFound", message, kind="Warning")])


def _release(gone: Sequence[Obj]) -> ReconcileResult:
    """Delete unneeded Workloads, unless the garbage collector has done so."""
    outcome = ReconcileResult()
    for workload in gone:
        outcome.writes += _release_finalizer(workload).writes
        if "deletionTimestamp" not in workload["metadata"]:
            outcome.writes.append(Delete(key_of(workload)))
    return outcome


def _release_finalizer(workload: Obj) -> ReconcileResult:
    released = without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return ReconcileResult() if released is workload else ReconcileResult([Update(released)])
