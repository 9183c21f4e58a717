"""Controller of LeaderWorkerSets in queues: one Workload for each group of a leader and its workers.

The LeaderWorkerSet controller creates the pods, by StatefulSets. This controller puts the pods of a group into the
group of their Workload. Sources: leaderworkerset_reconciler.go in pkg/controller/jobs/leaderworkerset of Kueue, and
pkg/util/statefulset of Kueue.

These rules differ from Kueue's:
- A pod keeps its gates if its StatefulSet is not known yet. Kueue releases it.
- A LeaderWorkerSet that is being deleted gets no Workloads.
- At most 500 Workloads are created at once, and excess Workloads are deleted when all others exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views import pods, queued_pods
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, ObjectReader, Reader, Update, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework import workloads
from batchyard.jobs.serving import admission, stateful_set
from batchyard.jobs.serving.stateful_set import AwaitedClasses, add_gated_update, missing_class_events, service_workload
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.workload import adjustments, lifecycle
from batchyard.scheduling.workload.adjustments import MissingPriorityClass

KIND: Final = scheme.LEADER_WORKER_SET
_FRAMEWORK: Final = admission.FRAMEWORKS[KIND]
_LABEL_PREFIX: Final = "leaderworkerset.sigs.k8s.io"
_NAME_LABEL: Final = f"{_LABEL_PREFIX}/name"
_GROUP_INDEX: Final = f"{_LABEL_PREFIX}/group-index"
_WORKER_INDEX: Final = f"{_LABEL_PREFIX}/worker-index"
#: On workers: the name of the pod that leads their group.
_LEADER_NAME: Final = f"{_LABEL_PREFIX}/leader-name"
#: The maximum number of Workloads that one reconcile creates.
_CREATED_MAX: Final = 500
_CLASS_KINDS: Final = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS)
_DELETED: Final = EventType.DELETED


class LeaderWorkerSetReconciler:
    """Controller that keeps the Workloads of LeaderWorkerSets in queues, and the labels of their pods."""

    name = "leaderworkerset"
    rank = 0
    kinds = (KIND, scheme.POD, scheme.STATEFUL_SET, scheme.WORKLOAD, *_CLASS_KINDS)

    def __init__(
        self,
        managed_jobs: ManagedJobs,
        copied_keys: workloads.CopiedKeys,
        rules: DecisionRules = DEFAULT_RULES,
        objects: ObjectReader | None = None,
    ) -> None:
        """Create the controller; `objects` reads the pods that are older than the first LeaderWorkerSet."""
        self._managed_jobs = managed_jobs
        self._needs_admission = rules.is_current
        self._copied_keys = copied_keys
        self._awaited_classes = AwaitedClasses()
        #: The pods of each LeaderWorkerSet, by their label.
        self._pods: dict[Key, dict[Key, None]] = {}
        for pod in () if objects is None else objects.list(scheme.POD):
            self._index(meta.key_of(pod), pod, is_added=True)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a changed LeaderWorkerSet, or of that of a changed pod, StatefulSet or Workload."""
        kind, obj, namespace = event.key.kind, event.obj, event.key.namespace
        if kind in _CLASS_KINDS:
            return self._awaited_classes.observe(event)
        if kind == KIND:
            self._awaited_classes.remove(event.key)
            return () if event.type is _DELETED else (event.key,)
        if kind == scheme.WORKLOAD:
            owners = obj["metadata"].get("ownerReferences") or ()
            keys = [meta.owner_key(owner, namespace) for owner in owners if owner["kind"] == "LeaderWorkerSet"]
            return [key for key in keys if key.kind == KIND]
        if kind == scheme.POD:
            return self._observe_pod(event)
        template = admission.template_of(obj)
        name = meta.label(obj, _NAME_LABEL)
        is_queued = admission.annotations_of(template).get(well_known.SUSPENDING_PARENT) == _FRAMEWORK
        return (Key(KIND, namespace, name),) if name and is_queued and event.type is not _DELETED else ()

    def _observe_pod(self, event: WatchEvent) -> Iterable[Key]:
        pod, old = event.obj, event.old
        if not stateful_set.changes_membership(event):
            return ()
        if old is not None:
            self._index(event.key, old, is_added=False)
        self._index(event.key, pod, is_added=event.type is not _DELETED)
        name = meta.label(pod, _NAME_LABEL)
        is_queued = meta.annotation(pod, well_known.SUSPENDING_PARENT) == _FRAMEWORK
        return (Key(KIND, event.key.namespace, name),) if name and is_queued and event.type is not _DELETED else ()

    def _index(self, key: Key, pod: Obj, *, is_added: bool) -> None:
        name = meta.label(pod, _NAME_LABEL)
        if not name:
            return
        owner = Key(KIND, key.namespace, name)
        if is_added:
            self._pods.setdefault(owner, {})[key] = None
        elif owner in self._pods:
            self._pods[owner].pop(key, None)
            if not self._pods[owner]:
                del self._pods[owner]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes that keep the Workloads of a LeaderWorkerSet in sync, and prepare its pods."""
        service, outcome = reader.get(key), ReconcileResult(independent=True)
        if service is not None:
            if not admission.is_managed_service(service, reader.get, self._managed_jobs):
                return outcome
            self._sync_workloads(service, reader, outcome)
        for pod_key in self._pods.get(key, ()):
            pod: Obj | None = reader.get(pod_key)
            if pod is None:
                continue
            new_pod = self._prepared_pod(pod, service, reader)
            if new_pod is not pod:
                outcome.add(Update(new_pod), ())
        return outcome

    def _prepared_pod(self, pod: Obj, service: Obj | None, reader: Reader) -> Obj:
        """Return a pod in the group of its Workload, or without gates if an update replaces it."""
        if service is None:
            return stateful_set.without_gates(pod)
        namespace, owner = pod["metadata"].get("namespace", ""), meta.controller_of(pod)
        parent = None if owner is None else reader.get(meta.owner_key(owner, namespace))
        if parent is not None and meta.label(parent, _NAME_LABEL) and stateful_set.is_outdated(pod, parent):
            workload = reader.get(Key(scheme.WORKLOAD, namespace, queued_pods.group_name(pod)))
            if not self._needs_admission or (workload is not None and lifecycle.is_admitted(workload)):
                return stateful_set.without_gates(pod)
        return pod if pods.is_terminal(pod) or pods.is_terminating(pod) else _member(pod, service)

    def _sync_workloads(self, service: Obj, reader: Reader, outcome: ReconcileResult) -> None:
        owned = reader.owned_by(service["metadata"].get("uid", ""), service["metadata"].get("namespace", ""))
        excess = {each["metadata"]["name"]: each for each in owned if each["kind"] == "Workload"}
        missing: list[tuple[str, int]] = []
        for index in range(_group_count(service)):
            name = _workload_name(service, str(index))
            workload = excess.pop(name, None)
            if workload is not None:
                self._update_workload(service, workload, reader, outcome)
                continue
            missing.append((name, index))
            if len(missing) == _CREATED_MAX:
                break
        if "deletionTimestamp" not in service["metadata"]:
            self._create_workloads(service, missing, reader, outcome)
        if len(missing) < _CREATED_MAX:
            for write in workloads.delete_workloads(list(excess.values())).writes:
                outcome.add(write, ())

    def _create_workloads(
        self, service: Obj, missing: Sequence[tuple[str, int]], reader: Reader, outcome: ReconcileResult
    ) -> None:
        key, pod_sets = meta.key_of(service), pod_sets_of(service)
        priority = self._priority_of(service, pod_sets, reader, outcome) if missing else None
        if priority is None:
            return
        for name, index in missing:
            workload = service_workload(service, pod_sets, priority, name, self._copied_keys)
            path = ("metadata", "annotations", well_known.COMPONENT_WORKLOAD_INDEX)
            workload = meta.with_path(workload, path, str(index))
            event = EventRecord(key, "Normal", "CreatedWorkload", f"Created Workload: {meta.key_of(workload)}")
            outcome.add(Create(workload), [event])

    def _priority_of(
        self, service: Obj, pod_sets: workloads.PodSets, reader: Reader, outcome: ReconcileResult
    ) -> adjustments.WorkloadPriority | None:
        pod_class = adjustments.first_priority_class(pod_set["template"] for pod_set in pod_sets)
        priority = adjustments.resolve_priority(service, pod_class, reader)
        if not isinstance(priority, MissingPriorityClass):
            return priority
        self._awaited_classes.add(priority, meta.key_of(service))
        outcome.events += missing_class_events(meta.key_of(service), priority)
        return None

    def _update_workload(self, service: Obj, workload: Obj, reader: Reader, outcome: ReconcileResult) -> None:
        updated = stateful_set.with_queue(workload, meta.label(service, well_known.QUEUE_NAME) or "")
        if add_gated_update(service, workload, updated, outcome):
            return
        label_class = meta.label(service, well_known.PRIORITY_CLASS) or ""
        has_quota = lifecycle.has_quota_reservation(workload)
        is_same = adjustments.priority_class_name(workload) == label_class
        if is_same or not adjustments.follows_priority_label(workload, has_quota):
            return
        priority = self._priority_of(service, workload["spec"]["podSets"], reader, outcome)
        if priority is not None:
            spec = {**workload["spec"], "priority": priority.value, "priorityClassRef": priority.class_ref}
            message = f"Updated workload priority class: {meta.key_of(workload)}"
            event = EventRecord(meta.key_of(service), "Normal", "UpdatedWorkload", message)
            outcome.add(Update({**workload, "spec": spec}), [event])


# Workloads.


def _group_count(service: Obj) -> int:
    """Return the number of groups with a Workload: the replicas, and during an update also the surge replicas."""
    replicas = admission.replicas_of(service)
    status = service.get("status") or {}
    current: int = status.get("replicas") or 0
    strategy = (service.get("spec") or {}).get("rolloutStrategy") or {}
    surge = (strategy.get("rollingUpdateConfiguration") or {}).get("maxSurge") or 0
    # A percentage counts as 0, as in Kueue.
    surge_count = surge if isinstance(surge, int) else meta.parse_integer(surge) or 0
    is_updating = surge_count > 0 and (status.get("updatedReplicas") or 0) < replicas
    return min(current if current > replicas and is_updating else replicas, admission.GROUPS_MAX)


def _workload_name(service: Obj, group_index: str) -> str:
    metadata, group = service["metadata"], service["apiVersion"].rpartition("/")[0]
    name = f"{metadata['name']}-{group_index}"
    return workloads.workload_name(service["kind"], group, name, metadata.get("uid", ""))


def pod_sets_of(service: Obj) -> list[dict[str, Any]]:
    """Return the pod sets of a group: of its leader and its workers, or of all pods if they have one template."""
    return [
        {
            "name": name,
            "template": workloads.without_duplicate_env(_without_lws_metadata(template)),
            "count": count,
            "topologyRequest": workloads.topology_request(
                template, **({} if name == admission.LEADER else {"podIndexLabel": _WORKER_INDEX})
            ),
        }
        for name, template, count, _ in admission.group_templates(service)
    ]


def unit_pod_sets(service: Obj) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the pod sets of one Workload of an object that serves, and the paths of their templates.

    These are the pod sets of a pod of a Deployment, of a StatefulSet, or of a group of a LeaderWorkerSet.
    """
    kind = meta.group_kind(service)
    if kind == KIND:
        return pod_sets_of(service), [".".join(path) for *_, path in admission.group_templates(service)]
    (pod_set,) = stateful_set.pod_sets_of(service)
    count = 1 if kind == scheme.DEPLOYMENT else max(1, pod_set["count"])
    return [{**pod_set, "count": count}], ["spec.template"]


def _without_lws_metadata(template: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = dict(template.get("metadata") or {})
    for field in ("labels", "annotations"):
        if metadata.get(field):
            values = {k: v for k, v in metadata[field].items() if not k.startswith(_LABEL_PREFIX) or k == _NAME_LABEL}
            metadata[field] = values
    return {**template, "metadata": metadata} if metadata else template


# Pods.


def _member(pod: Obj, service: Obj) -> Obj:
    labels, annotations = (dict(pod["metadata"].get(field) or {}) for field in ("labels", "annotations"))
    queue = meta.label(service, well_known.QUEUE_NAME)
    if queue and queued_pods.has_admission_gate(pod):
        labels[well_known.QUEUE_NAME] = queue
    if well_known.MANAGED in labels or _GROUP_INDEX not in labels:
        is_managed = well_known.MANAGED in labels and labels != pod["metadata"]["labels"]
        return meta.with_metadata(pod, labels=labels) if is_managed else pod
    name = _workload_name(service, labels[_GROUP_INDEX])
    labels[well_known.MANAGED] = queued_pods.ENABLED
    role = admission.POD_SET
    if admission.group_of(service).get("leaderTemplate") is not None:
        role = admission.WORKER if _LEADER_NAME in annotations else admission.LEADER
    annotations |= {
        well_known.POD_GROUP_NAME: name,
        well_known.PREBUILT_WORKLOAD: name,
        well_known.POD_GROUP_COUNT: str(admission.group_size(service)),
        well_known.ROLE_HASH: role,
    }
    return meta.with_metadata(pod, labels=labels, annotations=annotations)
