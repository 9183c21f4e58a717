"""Controller of StatefulSets in queues: one Workload for all pods, which it puts into the group of this Workload.

A StatefulSet that is scaled to zero keeps its Workload, which is on hold and has no quota. While a StatefulSet is
updated, gated pods of the old revision are released, because they would block the update. Sources:
statefulset_reconciler.go and statefulset_pod_reconciler.go in pkg/controller/jobs/statefulset of Kueue.

These rules differ from Kueue's:
- If a StatefulSet is scaled from zero to another number of replicas than before, its Workload gets this number, as in
  Kueue 0.20. In Kueue 0.19, the Workload keeps the old number, and finishes as out of sync if this number is too small.
- A StatefulSet that is being deleted gets no Workload.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views import pods, queued_pods
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework import workloads
from batchyard.jobs.serving import admission
from batchyard.scheduling import messages
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.workload import adjustments, lifecycle
from batchyard.scheduling.workload.adjustments import MissingPriorityClass

#: The name of the only pod set.
_POD_SET: Final = "main"
_FRAMEWORK: Final = admission.FRAMEWORKS[scheme.STATEFUL_SET]
_CLASS_KINDS: Final = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS)


class AwaitedClasses:
    """Index of the objects that wait for a priority class: each for at most one."""

    def __init__(self) -> None:
        self._class_by_object: dict[Key, Key] = {}
        self._objects_by_class: dict[Key, dict[Key, None]] = {}

    def add(self, missing: MissingPriorityClass, key: Key) -> None:
        """Record that the object with this key waits for a class, and for no other."""
        self.remove(key)
        self._class_by_object[key] = missing.key
        self._objects_by_class.setdefault(missing.key, {})[key] = None

    def remove(self, key: Key) -> None:
        """Record that the object with this key waits for no class."""
        class_key = self._class_by_object.pop(key, None)
        if class_key is not None:
            objects = self._objects_by_class[class_key]
            del objects[key]
            if not objects:
                del self._objects_by_class[class_key]

    def observe(self, event: WatchEvent) -> Iterable[Key]:
        """Return the keys of the objects that waited for a class which exists now."""
        if event.type is EventType.DELETED:
            return ()
        keys = list(self._objects_by_class.get(event.key, ()))
        for key in keys:
            self.remove(key)
        return keys


class StatefulSetReconciler:
    """Controller that keeps the Workloads of StatefulSets in queues, and the labels of their pods."""

    name = "statefulset"
    rank = 0
    kinds = (scheme.STATEFUL_SET, scheme.POD, scheme.WORKLOAD, *_CLASS_KINDS)

    def __init__(self, managed_jobs: ManagedJobs, rules: DecisionRules = DEFAULT_RULES) -> None:
        self._managed_jobs = managed_jobs
        #: Whether pods of the old revision are released only if their Workload is admitted, as since Kueue 0.20.
        self._needs_admission = rules.is_current
        self._awaited_classes = AwaitedClasses()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a changed StatefulSet, or of that of a changed pod or Workload."""
        kind = event.key.kind
        if kind in _CLASS_KINDS:
            return self._awaited_classes.observe(event)
        if kind == scheme.STATEFUL_SET:
            self._awaited_classes.remove(event.key)
            return () if event.type is EventType.DELETED else (event.key,)
        if kind == scheme.POD:
            return () if event.type is EventType.DELETED else _stateful_set_of(event)
        owners = event.obj["metadata"].get("ownerReferences") or ()
        keys = [meta.owner_key(owner, event.key.namespace) for owner in owners if owner["kind"] == "StatefulSet"]
        return [key for key in keys if key.kind == scheme.STATEFUL_SET]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes that prepare the pods of a StatefulSet, and keep its Workload in sync."""
        stateful_set = reader.get(key)
        if stateful_set is None or admission.is_queued_elsewhere(stateful_set):
            return ReconcileResult()
        if not admission.is_managed_service(stateful_set, reader.get, self._managed_jobs):
            return ReconcileResult()
        name, workload = admission.find_stateful_workload(stateful_set, reader.get)
        outcome = ReconcileResult(independent=True)
        owned_objects = reader.owned_by(stateful_set["metadata"].get("uid", ""), key.namespace)
        is_releasing = not self._needs_admission or (workload is not None and lifecycle.is_admitted(workload))
        for pod in filter(_is_gated_by_framework, owned_objects):
            new_pod = _prepared_pod(pod, stateful_set, name, is_releasing=is_releasing)
            if new_pod is not pod:
                outcome.add(Update(new_pod), ())
        if workload is None:
            self._add_workload(stateful_set, reader, outcome)
        else:
            _sync_workload(stateful_set, workload, outcome, now)
        return outcome

    def _add_workload(self, stateful_set: Obj, reader: Reader, outcome: ReconcileResult) -> None:
        if not admission.replicas_of(stateful_set) or "deletionTimestamp" in stateful_set["metadata"]:
            return
        key, pod_class = meta.key_of(stateful_set), _pod_spec(stateful_set).get("priorityClassName") or ""
        priority = adjustments.resolve_priority(stateful_set, pod_class, reader)
        if isinstance(priority, MissingPriorityClass):
            self._awaited_classes.add(priority, key)
            outcome.events += missing_class_events(key, priority)
            return
        workload = service_workload(stateful_set, pod_sets_of(stateful_set), priority)
        event = EventRecord(key, "Normal", "CreatedWorkload", f"Created Workload: {meta.key_of(workload)}")
        outcome.add(Create(workload), [event])


def _stateful_set_of(event: WatchEvent) -> Sequence[Key]:
    pod = event.obj
    if not _is_gated_by_framework(pod) or not changes_membership(event):
        return ()
    owner = meta.controller_of(pod)
    key = None if owner is None else meta.owner_key(owner, event.key.namespace)
    return () if key is None or key.kind != scheme.STATEFUL_SET else (key,)


def changes_membership(event: WatchEvent) -> bool:
    """Return whether an event of a pod can change its group or gates; most changes of a status cannot."""
    return event.old is None or event.type is EventType.DELETED or _membership(event.old) != _membership(event.obj)


def _membership(pod: Obj) -> tuple[Any, ...]:
    fields = ("labels", "annotations", "ownerReferences", "deletionTimestamp")
    return (*map(pod["metadata"].get, fields), pod["spec"].get("schedulingGates"), pods.is_terminal(pod))


def _is_gated_by_framework(obj: Obj) -> bool:
    return obj["kind"] == "Pod" and meta.annotation(obj, well_known.SUSPENDING_PARENT) == _FRAMEWORK


def _pod_spec(stateful_set: Obj) -> Mapping[str, Any]:
    return admission.template_of(stateful_set).get("spec") or {}


# Pods.


def _prepared_pod(pod: Obj, stateful_set: Obj, workload_name: str, *, is_releasing: bool) -> Obj:
    """Return a pod in the group of the Workload, with the queue of its StatefulSet; the same object if it is ready.

    `is_releasing` is whether pods of the old revision lose their gates.
    """
    queue_labels = admission.copied_labels(stateful_set)
    if queued_pods.group_name(pod) != workload_name:
        return pod if pods.is_terminal(pod) or pods.is_terminating(pod) else _member(pod, stateful_set, workload_name)
    queue = queue_labels.get(well_known.QUEUE_NAME)
    if queue and meta.label(pod, well_known.QUEUE_NAME) != queue and admission.replicas_of(stateful_set):
        pod = meta.with_path(pod, ("metadata", "labels", well_known.QUEUE_NAME), queue)
    return without_gates(pod) if is_releasing and is_outdated(pod, stateful_set) else pod


def _member(pod: Obj, stateful_set: Obj, workload_name: str) -> Obj:
    metadata = pod["metadata"]
    labels = {well_known.MANAGED: queued_pods.ENABLED, **admission.copied_labels(stateful_set)}
    annotations = {
        well_known.PREBUILT_WORKLOAD: workload_name,
        well_known.POD_GROUP_NAME: workload_name,
        well_known.POD_GROUP_COUNT: str(admission.replicas_of(stateful_set)),
        well_known.POD_GROUP_FAST_ADMISSION: queued_pods.ENABLED,
        well_known.POD_GROUP_SERVING: queued_pods.ENABLED,
        well_known.POD_GROUP_INDEX_LABEL: well_known.POD_INDEX,
        well_known.ROLE_HASH: _POD_SET,
    }
    return meta.with_metadata(
        pod,
        labels={**(metadata.get("labels") or {}), **labels},
        annotations={**(metadata.get("annotations") or {}), **annotations},
    )


def is_outdated(pod: Obj, stateful_set: Obj | None) -> bool:
    """Return whether an update of a StatefulSet will replace a pod, so that the pod must not wait for quota.

    This also holds if there is no StatefulSet. Source: pkg/util/statefulset of Kueue.
    """
    if stateful_set is None:
        return True
    status = stateful_set.get("status") or {}
    current, update = status.get("currentRevision") or "", status.get("updateRevision") or ""
    return current != update and current == (meta.label(pod, well_known.REVISION_HASH) or "")


def without_gates(pod: Obj) -> Obj:
    """Return a pod without the gates of queues; the same object if it has none."""
    gates = pod["spec"].get("schedulingGates") or ()
    kept_gates = [gate for gate in gates if gate["name"] not in queued_pods.QUEUE_GATES]
    return (
        pod if len(kept_gates) == len(gates) else meta.with_path(pod, ("spec", "schedulingGates"), kept_gates or None)
    )


# Workloads.


def pod_sets_of(stateful_set: Obj) -> list[dict[str, Any]]:
    """Return the only pod set of a StatefulSet, with the number of its replicas."""
    template = workloads.without_duplicate_env({"spec": _pod_spec(stateful_set)})
    request = workloads.topology_request(admission.template_of(stateful_set), podIndexLabel=well_known.POD_INDEX)
    count = admission.replicas_of(stateful_set)
    return [{"name": _POD_SET, "template": template, "count": count, "topologyRequest": request}]


def service_workload(
    service: Obj,
    pod_sets: workloads.PodSets,
    priority: adjustments.WorkloadPriority,
    name: str = "",
    copied_keys: workloads.CopiedKeys = workloads.NO_COPIED_KEYS,
) -> Obj:
    """Return a new Workload of a group whose owner is a StatefulSet or LeaderWorkerSet; '' generates its name."""
    workload = workloads.make_workload(service, pod_sets, priority, copied_keys)
    annotations = workload["metadata"].get("annotations") or {}
    return meta.with_metadata(
        workload,
        name=name or workload["metadata"]["name"],
        annotations={**annotations, well_known.IS_GROUP_WORKLOAD: queued_pods.ENABLED, **_owner_annotations(service)},
        ownerReferences=[meta.owner_reference(service)],
    )


def _owner_annotations(service: Obj) -> dict[str, str]:
    return {
        well_known.JOB_OWNER_KIND: f"{service['apiVersion']}, Kind={service['kind']}",
        well_known.JOB_OWNER_NAME: service["metadata"]["name"],
    }


def missing_class_events(key: Key, missing: MissingPriorityClass) -> list[EventRecord]:
    """Return the warning about a missing WorkloadPriorityClass; there is none about a missing PriorityClass."""
    if missing.key.kind != scheme.WORKLOAD_PRIORITY_CLASS:
        return []
    message = f'WorkloadPriorityClass "{missing.key.name}" not found'
    return [EventRecord(key, "Warning", "WorkloadPriorityClassNotFound", message)]


def _sync_workload(stateful_set: Obj, workload: Obj, outcome: ReconcileResult, now: Instant) -> None:
    """Add the first write that the Workload needs: of its owner, queue and gate, or of its quota."""
    replicas = admission.replicas_of(stateful_set)
    updated = _with_owner(workload, stateful_set) if replicas else workload
    if replicas:
        queue = meta.label(stateful_set, well_known.QUEUE_NAME) or ""
        updated = with_queue(_with_count(updated, replicas), queue)
    if add_gated_update(stateful_set, workload, updated, outcome):
        return
    if not replicas:
        is_reserved = lifecycle.has_quota_reservation(workload) and lifecycle.is_active(workload)
        if is_reserved and not lifecycle.is_finished(workload):
            message = "StatefulSet scaled to zero; workload on hold"
            outcome.add(UpdateStatus(lifecycle.set_pending(workload, lifecycle.ON_HOLD, message, now)), ())
    elif lifecycle.is_on_hold(workload):
        message = "Workload no longer on hold; waiting for quota reservation"
        pending = lifecycle.set_pending(workload, messages.PENDING_EVALUATION, message, now)
        outcome.add(UpdateStatus(pending), ())


def add_gated_update(service: Obj, workload: Obj, updated: Obj, outcome: ReconcileResult) -> bool:
    """Add the update of a Workload that has changed, or whose admission gates differ; return whether it was needed."""
    gated = workloads.with_annotation_of(updated, service, well_known.ADMISSION_GATED_BY)
    if gated is workload:
        return False
    events = []
    if gated is not updated:
        gates = meta.annotation(service, well_known.ADMISSION_GATED_BY) or ""
        message = f'Updated workload AdmissionGatedBy to "{gates}"'
        events = [EventRecord(meta.key_of(service), "Normal", "UpdatedWorkload", message)]
    outcome.add(Update(gated), events)
    return True


def with_queue(workload: Obj, queue: str) -> Obj:
    """Return a Workload with the name of a LocalQueue ('' for none); the same object if it has it."""
    if workload["spec"].get("queueName", "") == queue:
        return workload
    return meta.with_path(workload, ("spec", "queueName"), queue or None)


def _with_count(workload: Obj, replicas: int) -> Obj:
    pod_sets: Sequence[Any] = workload["spec"].get("podSets") or ()
    if not lifecycle.is_on_hold(workload) or len(pod_sets) != 1 or pod_sets[0]["count"] == replicas:
        return workload
    return meta.with_path(workload, ("spec", "podSets"), [{**pod_sets[0], "count": replicas}])


def _with_owner(workload: Obj, stateful_set: Obj) -> Obj:
    owners = workload["metadata"].get("ownerReferences") or ()
    if any(owner["uid"] == stateful_set["metadata"].get("uid") for owner in owners):
        return workload
    annotations = {**(workload["metadata"].get("annotations") or {}), **_owner_annotations(stateful_set)}
    owner = meta.owner_reference(stateful_set)
    return meta.with_metadata(workload, annotations=annotations, ownerReferences=[*owners, owner])
