"""Job reconciler for all kinds: creates one Workload per job, keeps both in sync, and releases the Workload.

A reconcile finds the first action that is due, in the order of Kueue's JobReconciler (pkg/controller/jobframework/
reconciler.go), and returns its one write. The event of that write triggers the next reconcile. A job is managed if it
names a queue and no owner of it is managed. The reconciler does not depend on the controller that runs the pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.admission_plugins.queued_jobs import is_managed_namespace
from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj, annotation, controller_of, key_of, label, with_path, without_finalizer
from batchyard.api.selectors import Selector
from batchyard.api.views.ownership import JOB_KINDS, ancestry
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, Outcome
from batchyard.jobframework import workloads
from batchyard.jobframework.family import Family
from batchyard.jobframework.podsets import InvalidInjection, admitted_injections, original_injections
from batchyard.jobframework.workloads import Integration
from batchyard.scheduling.workload import checks, lifecycle
from batchyard.scheduling.workload import lifecycle as r
from batchyard.scheduling.workload.pods_ready import tell_pods_ready
from batchyard.scheduling.workload.priority import MissingClass, Priority, class_name, follows_label, resolve_priority


class _Look(NamedTuple):
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


class JobController:
    """Manages the Workloads of one kind of job."""

    rank = 0
    kinds = (
        *(*JOB_KINDS, scheme.WORKLOAD, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
        scheme.RESOURCE_FLAVOR,
    )

    def __init__(
        self,
        integration: Integration,
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
        self._family = Family(integration)
        #: The Namespaces whose jobs are managed; None for all.
        self._managed_namespaces = managed_namespaces

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the affected job: it, its Workload or its owner's changed, or its missing class was created."""
        return self._family.note(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Do the first action that is due for a job."""
        job = reader.get(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            gone = self._family.workloads_of(key, reader)
            if job is not None and well_known.ORPHAN_FINALIZER in job["metadata"].get("finalizers", ()):
                # Its dependents stay, and finish once they have no owner.
                return Outcome([write for workload in gone for write in _release_finalizer(workload).writes])
            return _release(gone)
        if not is_managed_namespace(key.namespace, self._managed_namespaces, reader.get):
            return Outcome()
        above = ancestry(job, reader.get)
        if above.managed is not None:
            return self._obey_ancestor(key, job, _unfinished_workloads(above.managed, reader))
        if above.missing is not None or not label(job, well_known.QUEUE_NAME):
            return Outcome()
        suspended = self._integration.is_suspended(job)
        look = _Look(key, job, self._integration.pod_sets(job), suspended, reader, now)
        return self._manage(look)

    def _obey_ancestor(self, key: Key, job: Obj, unfinished: Sequence[Obj]) -> Outcome:
        """Suspend a child job unless a Workload of its managed owner is admitted."""
        integration = self._integration
        if integration.ending(job) is not None or integration.is_suspended(job):
            return Outcome()
        if any(lifecycle.is_admitted(workload) for workload in unfinished):
            return Outcome()
        event = EventRecord(key, "Normal", "Suspended", "Kueue managed child job suspended")
        return Outcome([Update(with_path(job, ("spec", "suspend"), True))], [event])

    # --- one Workload per job ---

    def _manage(self, look: _Look) -> Outcome:
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

    def _manage_prebuilt(self, look: _Look, workload: Obj | None) -> Outcome:
        """Adopt a prebuilt Workload; without an equivalent one the job does not run."""
        if workload is not None and controller_of(workload) is None:
            return Outcome([Update(workloads.taken_by(workload, look.job))])
        if workload is not None and workloads.belongs(workload, look.job):
            if workloads.matches(workload, look.job, look.pod_sets, look.suspended):
                return self._obey(look, workload)
            if not lifecycle.is_finished(workload):
                message = "The prebuilt workload is out of sync with its user job"
                return Outcome([UpdateStatus(lifecycle.finish(workload, r.OUT_OF_SYNC, message, look.now))])
        stop = None if self._integration.ending(look.job) is not None else self._stop(look, None, "missing workload")
        return stop or Outcome()

    def _stop_unmatched(self, look: _Look, others: Sequence[Obj]) -> Outcome | None:
        """Stop a running job without a Workload."""
        if look.suspended or self._integration.ending(look.job) is not None:
            return None
        if len(others) == 1:
            message = "No matching Workload; restoring pod templates according to existent Workload"
            return self._stop(look, others[0], message)
        return self._stop(look, None, "Missing Workload; unable to restore pod templates")

    def _replace(self, look: _Look, others: Sequence[Obj]) -> Outcome | None:
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
        return Outcome([Update({**first, "spec": spec})], [look.event("UpdatedWorkload", message)])

    def _delete(self, look: _Look, others: Sequence[Obj]) -> Outcome | None:
        outcome = _release(others)
        gone = [key_of(workload) for workload in others if "deletionTimestamp" not in workload["metadata"]]
        outcome.events += [look.event("DeletedWorkload", f"Deleted not matching Workload: {key}") for key in gone]
        return outcome if outcome.writes else None

    def _create(self, look: _Look) -> Outcome:
        if self._integration.ending(look.job) is not None or self._integration.is_active(look.job):
            return Outcome()  # finished, or its old pods are still stopping
        priority = self._priority_of(look)
        if isinstance(priority, MissingClass):
            return _missing_class(look, priority)
        workload = workloads.make_workload(look.job, look.pod_sets, priority, self._copied_labels)
        message = f"Created Workload: {key_of(workload)}"
        return Outcome([Create(workload)], [look.event("CreatedWorkload", message)])

    def _follow(self, look: _Look, workload: Obj) -> Outcome | None:
        """Propagate mutable fields of the job: the admission gate and the priority class."""
        if lifecycle.is_finished(workload):
            return None
        gated = workloads.with_gate_of(workload, look.job)
        if gated is not workload:
            gate = annotation(look.job, well_known.ADMISSION_GATED_BY) or ""
            return Outcome(
                [Update(gated)], [look.event("UpdatedWorkload", f'Updated workload AdmissionGatedBy to "{gate}"')]
            )
        return self._follow_priority(look, workload)

    def _priority_of(self, look: _Look) -> Priority | MissingClass:
        return resolve_priority(look.job, self._integration.templates(look.job), look.reader)

    def _follow_priority(self, look: _Look, workload: Obj) -> Outcome | None:
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
        return Outcome([Update(updated)], [look.event("UpdatedWorkload", message)])

    # --- the job follows its Workload ---

    def _obey(self, look: _Look, workload: Obj) -> Outcome:
        if lifecycle.is_finished(workload):
            return _release_finalizer(workload)
        if "deletionTimestamp" in workload["metadata"]:
            return self._stop(look, workload, "Workload is deleted") or _release_finalizer(workload)
        return (
            self._finish(look, workload)
            or self._reclaim(look, workload)
            or self._tell_pods_ready(look, workload)
            or self._yield(look, workload)
            or self._run(look, workload)
        )

    def _finish(self, look: _Look, workload: Obj) -> Outcome | None:
        ending = self._integration.ending(look.job)
        if ending is None:
            return None
        reason = r.SUCCEEDED if ending.succeeded else r.FAILED
        finished = lifecycle.finish(workload, reason, ending.message, look.now)
        message = f"Workload '{key_of(workload)}' is declared finished"
        return Outcome([UpdateStatus(finished)], [look.event("FinishedWorkload", message)])

    def _reclaim(self, look: _Look, workload: Obj) -> Outcome | None:
        updated = _with_reclaimable_pods(workload, self._integration.reclaimable_pods(look.job))
        return None if updated is workload else Outcome([UpdateStatus(updated)])

    def _tell_pods_ready(self, look: _Look, workload: Obj) -> Outcome | None:
        if not self._wait_for_pods_ready:
            return None
        updated = tell_pods_ready(workload, self._integration.pods_ready(look.job), look.now)
        return None if updated is workload else Outcome([UpdateStatus(updated)])

    def _yield(self, look: _Look, workload: Obj) -> Outcome | None:
        """Stop an evicted job, and release its quota once its pods are gone."""
        if not lifecycle.is_evicted(workload):
            return None
        evicted = find_condition(workload, r.EVICTED)
        assert evicted is not None
        stop = self._stop(look, workload, evicted["message"])
        if stop is not None:
            return stop
        if not lifecycle.has_quota_reservation(workload) or self._integration.is_active(look.job):
            return Outcome()
        return Outcome([UpdateStatus(lifecycle.release_after_eviction(workload, look.now))])

    def _run(self, look: _Look, workload: Obj) -> Outcome:
        admitted = lifecycle.is_admitted(workload)
        if not look.suspended:
            return Outcome() if admitted else self._stop(look, workload, "Not admitted by cluster queue") or Outcome()
        if admitted:
            return self._start(look, workload)
        queue = label(look.job, well_known.QUEUE_NAME)
        if workload["spec"].get("queueName") != queue and not lifecycle.has_quota_reservation(workload):
            return Outcome([Update(with_path(workload, ("spec", "queueName"), queue))])
        return Outcome([], _news_of_checks(look, workload))

    def _start(self, look: _Look, workload: Obj) -> Outcome:
        def flavor(name: str) -> Obj | None:
            return look.reader.get(Key(scheme.RESOURCE_FLAVOR, "", name))

        try:
            injections = admitted_injections(workload, flavor)
            if injections is None:
                self._family.awaits_flavor(look.key)
                return Outcome()
            started = self._integration.started(look.job, injections)
        except InvalidInjection as wrong:
            failed = lifecycle.finish(workload, r.FAILED_TO_START, str(wrong), look.now)
            return Outcome([UpdateStatus(failed)])
        message = f"Admitted by clusterQueue {lifecycle.cluster_queue_of(workload)}"
        return Outcome([Update(started)], [look.event("Started", message)])

    def _stop(self, look: _Look, workload: Obj | None, message: str) -> Outcome | None:
        """Return the next write to stop a job with the original templates of its Workload; None if it is stopped."""
        if _is_told_to_stop(look) and self._integration.is_active(look.job):
            return Outcome()
        originals = original_injections(workload) if workload is not None else []
        write = self._integration.stop(look.job, originals)
        if write is None:
            return None
        first = look.job["spec"].get("suspend") is not True
        return Outcome([write], [look.event("Stopped", message)] if first else [])


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


def _is_told_to_stop(look: _Look) -> bool:
    """Report whether it is suspended but not stopped yet. While it has pods, Kubernetes 1.36 rejects template changes.

    Source: shouldAllowMutablePodTemplate in pkg/registry/batch/job/strategy.go.
    """
    return look.job["spec"].get("suspend") is True and not look.suspended


def _news_of_checks(look: _Look, workload: Obj) -> list[EventRecord]:
    """Return an Event on the job with the messages of its Workload's Pending checks."""
    if not lifecycle.has_quota_reservation(workload):
        return []
    texts = [f"{c['name']}: {c['message']}" for c in checks.in_state(workload, checks.PENDING) if c.get("message")]
    return [look.event("UpdatedAdmissionCheck", "; ".join(texts))] if texts else []


def _missing_class(look: _Look, missing: MissingClass) -> Outcome:
    """Wait for the class; its creation triggers a reconcile of the job."""
    if missing.key.kind != scheme.WORKLOAD_PRIORITY_CLASS:
        return Outcome()
    message = f'WorkloadPriorityClass "{missing.key.name}" not found'
    return Outcome([], [look.event("WorkloadPriorityClassNotFound", message, kind="Warning")])


def _release(gone: Sequence[Obj]) -> Outcome:
    """Delete unneeded Workloads, unless the garbage collector has done so."""
    outcome = Outcome()
    for workload in gone:
        outcome.writes += _release_finalizer(workload).writes
        if "deletionTimestamp" not in workload["metadata"]:
            outcome.writes.append(Delete(key_of(workload)))
    return outcome


def _release_finalizer(workload: Obj) -> Outcome:
    released = without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return Outcome() if released is workload else Outcome([Update(released)])
