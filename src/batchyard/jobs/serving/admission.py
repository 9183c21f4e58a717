"""Kueue's webhooks of the kinds that serve: they prepare the pod templates, and reject changes that quota rules out.

The pods of a Deployment in a queue wait one by one. The pods of a StatefulSet in a queue wait together: its number of
replicas is fixed, except that it can be scaled to zero and back. The pods of each group of a LeaderWorkerSet wait
together: the size of its groups is fixed. Sources: deployment_webhook.go, statefulset_webhook.go and
leaderworkerset_webhook.go in pkg/controller/jobs of Kueue, at its default feature gates.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins import built_in
from batchyard.admission_plugins.built_in import FindObject, ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import FieldError, Forbidden, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.validation import job as queued_jobs
from batchyard.api.validation import rules, topology
from batchyard.api.views import queued_pods
from batchyard.jobframework.workloads import workload_name
from batchyard.scheduling.workload import lifecycle

#: The names of the kinds in the annotation that excludes the pods of a template from other queues.
FRAMEWORKS: Final[Mapping[str, str]] = {
    kind: name for name, kind in scheme.JOB_FRAMEWORKS.items() if kind in scheme.SERVING_KINDS
}
_TEMPLATE: Final = ("spec", "template")
_EMPTY: Final[Mapping[str, Any]] = {}
#: The labels of a service that the pods of its template get.
_COPIED_LABELS: Final = (well_known.QUEUE_NAME, well_known.PRIORITY_CLASS)


def queue_service(service: Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> Obj:
    """Return a new or changed object as Kueue's webhook completes it; the same object if no queue manages it.

    Raises Forbidden if the search for a managed owner fails.
    """
    kind = meta.group_kind(service)
    if not managed_jobs.has_kind(kind) or is_queued_elsewhere(service):
        return service
    owner = meta.controller_of(service)
    if owner is None or not managed_jobs.has_kind_of_owner(owner):
        service = built_in.with_default_labels(service, find_object, managed_jobs)
    return _COMPLETERS[kind](service) if _is_managed(service, find_object, managed_jobs, "m") else service


def is_queued_elsewhere(service: Obj) -> bool:
    """Return whether another framework queues the pods of a StatefulSet, for example a LeaderWorkerSet."""
    framework = annotations_of(template_of(service)).get(well_known.SUSPENDING_PARENT)
    return meta.group_kind(service) == scheme.STATEFUL_SET and framework not in (None, FRAMEWORKS[scheme.STATEFUL_SET])


def template_of(service: Obj) -> Mapping[str, Any]:
    """Return the pod template of a Deployment or StatefulSet; empty if it has none."""
    return (service.get("spec") or _EMPTY).get("template") or _EMPTY


def annotations_of(template: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of a pod template."""
    return (template.get("metadata") or _EMPTY).get("annotations") or _EMPTY


def replicas_of(service: Obj) -> int:
    """Return the number of replicas in the spec of an object, which defaults to 1."""
    replicas: int | None = (service.get("spec") or _EMPTY).get("replicas")
    return 1 if replicas is None else replicas


def is_managed_service(service: Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> bool:
    """Return whether a queue manages an object that serves; False if the search for a managed owner fails."""
    search = built_in.find_managed_ancestor(service, find_object, managed_jobs)
    return not search.problem and search.managed_key is None and _is_selected(service, find_object, managed_jobs)


def _is_managed(service: Obj, find_object: FindObject, managed_jobs: ManagedJobs, phase: str) -> bool:
    if "deletionTimestamp" in service["metadata"]:
        return False
    search = built_in.find_managed_ancestor(service, find_object, managed_jobs)
    if search.problem:
        webhook = f"{phase}{service['kind'].lower()}.kb.io"
        raise Forbidden(f'admission webhook "{webhook}" denied the request: {search.problem}')
    return search.managed_key is None and _is_selected(service, find_object, managed_jobs)


def _is_selected(service: Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> bool:
    if meta.label(service, well_known.QUEUE_NAME):
        return True
    namespace = service["metadata"].get("namespace", "")
    return managed_jobs.without_queue_name and built_in.is_managed_namespace(
        namespace, managed_jobs.namespaces, find_object
    )


# Pod templates.


def _complete_deployment(deployment: Obj) -> Obj:
    labels = {well_known.MANAGED: queued_pods.ENABLED, **copied_labels(deployment)}
    annotations = {well_known.SUSPENDING_PARENT: FRAMEWORKS[scheme.DEPLOYMENT]}
    return _with_template(deployment, _TEMPLATE, labels, annotations)


def _complete_stateful_set(stateful_set: Obj) -> Obj:
    annotations = {well_known.SUSPENDING_PARENT: FRAMEWORKS[scheme.STATEFUL_SET]}
    return _with_template(stateful_set, _TEMPLATE, {}, annotations)


def _complete_leader_worker_set(service: Obj) -> Obj:
    labels = copied_labels(service)
    annotations = {
        well_known.SUSPENDING_PARENT: FRAMEWORKS[scheme.LEADER_WORKER_SET],
        well_known.POD_GROUP_SERVING: queued_pods.ENABLED,
    }
    for name, template, _, path in group_templates(service):
        is_offset = name == WORKER and well_known.POD_SET_GROUP not in annotations_of(template)
        offset = {well_known.POD_INDEX_OFFSET: "1"} if is_offset else {}
        service = _with_template(service, path, labels, {**annotations, **offset})
    return service


#: The names of the pod sets of a group: of the leader and the workers, or of all pods.
LEADER, WORKER, POD_SET = "leader", "worker", "main"
_GROUP_PATH: Final = ("spec", "leaderWorkerTemplate")


def group_of(service: Obj) -> Mapping[str, Any]:
    """Return the description of the groups of a LeaderWorkerSet; empty if it has none."""
    return (service.get("spec") or _EMPTY).get("leaderWorkerTemplate") or _EMPTY


def group_size(service: Obj) -> int:
    """Return the number of pods in each group of a LeaderWorkerSet, which defaults to 1."""
    size: int | None = group_of(service).get("size")
    return 1 if size is None else size


def group_templates(service: Obj) -> list[tuple[str, Mapping[str, Any], int, Sequence[str]]]:
    """Return the name, pod template, number of pods and template path of each pod set of a LeaderWorkerSet's groups."""
    group = group_of(service)
    leader, workers, size = group.get("leaderTemplate"), group.get("workerTemplate") or _EMPTY, group_size(service)
    worker_path = (*_GROUP_PATH, "workerTemplate")
    if leader is None:
        return [(POD_SET, workers, size, worker_path)]
    return [(LEADER, leader, 1, (*_GROUP_PATH, "leaderTemplate")), (WORKER, workers, size - 1, worker_path)]


_COMPLETERS: Final[Mapping[str, Callable[[Obj], Obj]]] = {
    scheme.DEPLOYMENT: _complete_deployment,
    scheme.STATEFUL_SET: _complete_stateful_set,
    scheme.LEADER_WORKER_SET: _complete_leader_worker_set,
}


def copied_labels(service: Obj) -> dict[str, str]:
    """Return the queue and the priority class of an object, as labels of its pods."""
    return {name: value for name in _COPIED_LABELS if (value := meta.label(service, name))}


def _with_template(service: Obj, path: Sequence[str], labels: Mapping[str, str], annotations: Mapping[str, str]) -> Obj:
    """Return the object with more labels and annotations in a pod template; the same object if it has them."""
    for field, values in (("labels", labels), ("annotations", annotations)):
        field_path = (*path, "metadata", field)
        old_values: Any = service
        for step in field_path:
            old_values = old_values.get(step) or _EMPTY
        if any(old_values.get(name) != value for name, value in values.items()):
            service = meta.with_path(service, field_path, {**old_values, **values})
    return service


# Rules of new and changed objects.


def check_service(new: Obj, old: Obj | None, find_object: FindObject, managed_jobs: ManagedJobs) -> None:
    """Raise InvalidObject with the errors of a new or changed object that serves (`old` is None for a new one).

    Raises Forbidden if the search for a managed owner fails.
    """
    errors = service_errors(new, old, find_object, managed_jobs)
    if errors:
        raise InvalidObject(errors)


def service_errors(
    new: Obj, old: Obj | None, find_object: FindObject, managed_jobs: ManagedJobs
) -> Sequence[FieldError]:
    """Return the errors of Kueue's validating webhook for a new or changed object; `old` is None for a new one.

    Raises Forbidden if the search for a managed owner fails.
    """
    if is_queued_elsewhere(new):
        return ()
    kind = meta.group_kind(new)
    errors = list(queued_jobs.service_settings_errors(new, old))
    if kind == scheme.LEADER_WORKER_SET:
        errors += _group_errors(new)
    if old is not None and kind != scheme.DEPLOYMENT and _is_managed(new, find_object, managed_jobs, "v"):
        is_leader_worker_set = kind == scheme.LEADER_WORKER_SET
        errors += (
            _group_update_errors(new, old)
            if is_leader_worker_set
            else _stateful_set_update_errors(new, old, find_object)
        )
    return list(rules.attribute_to_webhook(built_in.validating_webhook(new), errors))


_SCALING_DOWN: Final = "scaling down is still in progress"
_WORKLOAD_REMAINS: Final = "workload from previous scale-down is still being deleted"


def _stateful_set_update_errors(new: Obj, old: Obj, find_object: FindObject) -> Iterator[FieldError]:
    """Report changes of the requirements of the pods, and of the number of replicas unless it is 0 before or after."""
    yield from pod_spec_errors(template_of(new).get("spec"), template_of(old).get("spec"), "spec.template.spec")
    replicas, old_replicas = replicas_of(new), replicas_of(old)
    if replicas and old_replicas and replicas != old_replicas:
        yield rules.immutable("spec.replicas", new["spec"].get("replicas"), "scale to 0 first, then to the new number")
    if old_replicas or not replicas:
        return
    if (new.get("status") or _EMPTY).get("replicas"):
        yield rules.forbidden("spec.replicas", _SCALING_DOWN, "wait until the pods have terminated")
        return
    workload = find_stateful_workload(old, find_object)[1]
    if workload is not None and not lifecycle.is_on_hold(workload):
        yield rules.forbidden("spec.replicas", _WORKLOAD_REMAINS, "try again")


def find_stateful_workload(stateful_set: Obj, find_object: FindObject) -> tuple[str, Obj | None]:
    """Return the name of the Workload of a StatefulSet, and the Workload; None if it does not exist.

    A Workload of an earlier release of Kueue, whose name does not depend on the uid, has precedence over a missing one.
    """
    metadata = stateful_set["metadata"]
    namespace, group = metadata.get("namespace", ""), stateful_set["apiVersion"].rpartition("/")[0]
    names = [workload_name(stateful_set["kind"], group, metadata["name"], uid) for uid in (metadata.get("uid", ""), "")]
    for name in names:
        workload = find_object(meta.Key(scheme.WORKLOAD, namespace, name))
        if workload is not None:
            return name, workload
    return names[0], None


def pod_spec_errors(new: Mapping[str, Any] | None, old: Mapping[str, Any] | None, path: str) -> Iterator[FieldError]:
    """Report changes of the fields of a pod's spec from which quota and nodes are chosen."""
    return _shape_errors(queued_pods.role_shape(new or _EMPTY), queued_pods.role_shape(old or _EMPTY), path)


def _shape_errors(new: Mapping[str, Any], old: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in sorted(new.keys() | old.keys()):
        field_path, value, old_value = f"{path}.{field}", new.get(field), old.get(field)
        if field in {"containers", "initContainers"} and len(value or ()) == len(old_value or ()):
            for index, (container, old_container) in enumerate(zip(value or (), old_value or (), strict=True)):
                yield from _shape_errors(container, old_container, f"{field_path}[{index}]")
        elif field == "resources" and value is not None and old_value is not None and "requests" in value:
            yield from _shape_errors(value, old_value, field_path)
        elif value != old_value:
            yield rules.immutable(field_path, value)


#: The most groups of a LeaderWorkerSet.
GROUPS_MAX: Final = 1_000_000


def _group_errors(service: Obj) -> Iterator[FieldError]:
    """Validate the number of groups of a LeaderWorkerSet, and the topology requests of its pods."""
    replicas = replicas_of(service)
    if not 0 <= replicas <= GROUPS_MAX:
        bound = ">= 0" if replicas < 0 else f"<= {GROUPS_MAX}"
        message = f"invalid LeaderWorkerSet replicas: must be {bound}, got {replicas}"
        yield rules.invalid("spec.replicas", replicas, message, f"use a number from 0 to {GROUPS_MAX}")
    pod_sets = [
        topology.PodSetTopology(annotations_of(template), f"{'.'.join(path)}.metadata.annotations", count)
        for _, template, count, path in group_templates(service)
    ]
    for pod_set in pod_sets:
        yield from topology.topology_request_errors(pod_set.annotations, pod_set.path, pod_set.count)
    yield from topology.pod_set_group_errors(pod_sets)


def _group_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Report changes of the requirements of the pods of a LeaderWorkerSet, and of the size of its groups."""
    group, old_group = group_of(new), group_of(old)
    for field in ("leaderTemplate", "workerTemplate"):
        path, template, old_template = f"spec.leaderWorkerTemplate.{field}", group.get(field), old_group.get(field)
        if template is not None and old_template is not None:
            yield from pod_spec_errors(template.get("spec"), old_template.get("spec"), f"{path}.spec")
        elif template is not old_template:
            yield rules.immutable(path, template)
    if group_size(new) != group_size(old):
        yield rules.immutable("spec.leaderWorkerTemplate.size", group_size(new))
