"""Workloads of jobs: construction, comparison with the job, changes of pod templates, and the GenericJob interface."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import meta, scheme, well_known
from batchyard.api.schema import semantic_equality
from batchyard.api.validation.topology import SLICE_LAYERS_MAX, parse_slice_layers
from batchyard.api.well_known import (
    POD_SET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)
from batchyard.interfaces.client import Delete, EventType, Update, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.adjustments import WorkloadPriority
from batchyard.scheduling.workload.lifecycle import admission_of, cluster_queue_of

# Scheduling directives of an admission (PodSetInfo): injected into pod templates, and restored when a job stops.
#
# Templates are never changed in place. Source: pkg/podset/podset.go of Kueue, and
# getPodSetsInfoFromStatus in its pkg/controller/jobframework/reconciler.go.


_DNS_LABEL_PATTERN: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EMPTY_MAP: Final[Mapping[str, str]] = {}

PodTemplate = Mapping[str, Any]
FindFlavor = Callable[[str], meta.Obj | None]


class InvalidPodSetInfo(Exception):  # noqa: N818 - named like the reasons of Kubernetes
    """Raised if scheduling fields of an admission conflict, or if its number of pod sets is not that of the job."""


@dataclass(frozen=True, slots=True)
class PodSetInfo:
    """Labels, annotations, node selector and other scheduling fields of a pod set's pod template, and its pod count."""

    name: str
    count: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    scheduling_gates: Sequence[Mapping[str, Any]] = ()


def admitted_injections(
    workload: meta.Obj, find_flavor: FindFlavor, *, gates_topology_pods: bool = True
) -> list[PodSetInfo] | None:
    """Return, for each pod set of an admitted Workload, the scheduling fields to add; None while a flavor is missing.

    With `gates_topology_pods`, pods with a topology assignment wait with a scheduling gate for their domain.
    Raises InvalidPodSetInfo if updates of admission checks conflict with the flavors or with each other.
    """
    assignments = admission_of(workload).get("podSetAssignments") or ()
    injections = []
    for assignment, pod_set in zip(assignments, workload["spec"]["podSets"], strict=False):
        injection = flavor_injection(assignment, pod_set, find_flavor)
        if injection is None:
            return None
        labels = {well_known.POD_SET: assignment["name"], **_queue_labels(workload)}
        annotations = {**injection.annotations, well_known.WORKLOAD: workload["metadata"]["name"]}
        if meta.is_elastic(workload):
            annotations[well_known.SLICE_NAME] = (
                meta.annotation(workload, well_known.SLICE_NAME) or annotations[well_known.WORKLOAD]
            )
        gates = injection.scheduling_gates if gates_topology_pods else ()
        injection = replace(injection, labels=labels, annotations=annotations, scheduling_gates=gates)
        injections.append(_with_check_updates(injection, workload))
    return injections


def flavor_injection(
    assignment: Mapping[str, Any], pod_set: Mapping[str, Any], find_flavor: FindFlavor
) -> PodSetInfo | None:
    """Return the scheduling fields of the flavors assigned to a pod set; None while a flavor is missing."""
    flavors = [find_flavor(name) for name in _flavor_names(assignment)]
    if None in flavors:
        return None
    return _info_from_flavors(assignment, pod_set, [flavor for flavor in flavors if flavor is not None])


def original_injections(workload: meta.Obj) -> list[PodSetInfo]:
    """Return the scheduling fields of each pod template in the spec of a Workload."""
    return [_original_pod_set_info(pod_set) for pod_set in workload["spec"]["podSets"]]


def _flavor_names(assignment: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(flavor for _, flavor in sorted((assignment.get("flavors") or _EMPTY_MAP).items())))


def _info_from_flavors(
    assignment: Mapping[str, Any], pod_set: Mapping[str, Any], flavors: Iterable[meta.Obj]
) -> PodSetInfo:
    node_selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for flavor in flavors:
        spec = flavor.get("spec") or {}
        node_selector.update(spec.get("nodeLabels") or _EMPTY_MAP)
        tolerations += spec.get("tolerations") or ()
    count = assignment.get("count", pod_set["count"])
    info = PodSetInfo(assignment["name"], count, node_selector=node_selector, tolerations=tolerations)
    return _with_topology_gate(info, pod_set) if assignment.get("topologyAssignment") else info


def _with_topology_gate(info: PodSetInfo, pod_set: Mapping[str, Any]) -> PodSetInfo:
    """Add the gate of pods that wait for a topology domain, and the request that such pods have at least."""
    request = pod_set.get("topologyRequest") or _EMPTY_MAP
    is_implied = all(request.get(mode) is None for mode in ("required", "preferred", "unconstrained"))
    annotations = {UNCONSTRAINED_TOPOLOGY: "true"} if is_implied else _EMPTY_MAP
    return replace(info, annotations=annotations, scheduling_gates=({"name": well_known.TOPOLOGY_GATE},))


def _queue_labels(workload: meta.Obj) -> dict[str, str]:
    labels = {well_known.LOCAL_QUEUE: workload["spec"].get("queueName", "")}
    cluster_queue = cluster_queue_of(workload)
    if _DNS_LABEL_PATTERN.fullmatch(cluster_queue):
        labels[well_known.CLUSTER_QUEUE] = cluster_queue
    return labels


def _with_check_updates(injection: PodSetInfo, workload: meta.Obj) -> PodSetInfo:
    for check in workload["status"].get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            if update["name"] == injection.name:
                injection = _merge_pod_set_infos(
                    injection, _pod_set_info_of_update(update), f'in admission check "{check["name"]}": '
                )
                break
    return injection


def _pod_set_info_of_update(update: Mapping[str, Any]) -> PodSetInfo:
    return PodSetInfo(
        update["name"],
        0,
        labels=update.get("labels") or _EMPTY_MAP,
        annotations=update.get("annotations") or _EMPTY_MAP,
        node_selector=update.get("nodeSelector") or _EMPTY_MAP,
        tolerations=update.get("tolerations") or (),
    )


def _original_pod_set_info(pod_set: Mapping[str, Any]) -> PodSetInfo:
    return _pod_set_info_from_template(pod_set["name"], pod_set["count"], pod_set.get("template") or {})


def _pod_set_info_from_template(name: str, count: int, template: PodTemplate) -> PodSetInfo:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    return PodSetInfo(
        name,
        count,
        labels=metadata.get("labels") or _EMPTY_MAP,
        annotations=metadata.get("annotations") or _EMPTY_MAP,
        node_selector=spec.get("nodeSelector") or _EMPTY_MAP,
        tolerations=spec.get("tolerations") or (),
        scheduling_gates=spec.get("schedulingGates") or (),
    )


def inject_pod_set_info(template: PodTemplate, injection: PodSetInfo) -> dict[str, Any]:
    """Return the pod template with scheduling fields added; raise InvalidPodSetInfo if the fields conflict."""
    base_info = _pod_set_info_from_template("", 0, template)
    if well_known.SLICE_NAME in injection.annotations:
        # The values of an earlier chain of slices are outdated. Source: overrideableAnnotations in pkg/podset of Kueue.
        outdated_names = (well_known.SLICE_NAME, well_known.WORKLOAD)
        annotations = {name: value for name, value in base_info.annotations.items() if name not in outdated_names}
        base_info = replace(base_info, annotations=annotations)
    return restore_pod_set_info(template, _merge_pod_set_infos(base_info, injection))


def restore_pod_set_info(template: PodTemplate, pod_set_info: PodSetInfo) -> dict[str, Any]:
    """Return the pod template with its scheduling fields replaced by those of `pod_set_info`."""
    restored_fields = (
        (("metadata", "labels"), pod_set_info.labels),
        (("metadata", "annotations"), pod_set_info.annotations),
        (("spec", "nodeSelector"), pod_set_info.node_selector),
        (("spec", "tolerations"), pod_set_info.tolerations),
        (("spec", "schedulingGates"), pod_set_info.scheduling_gates),
    )
    for path, value in restored_fields:
        if ((template.get(path[0]) or {}).get(path[1]) or None) != (value or None):
            template = meta.with_path(template, path, value or None)
    return {part: value for part, value in template.items() if value or part != "metadata"}


def _merge_pod_set_infos(base_info: PodSetInfo, added_info: PodSetInfo, message_prefix: str = "") -> PodSetInfo:
    conflict_prefix = f"{message_prefix}invalid admission check PodSetUpdate: conflict for"
    return replace(
        base_info,
        labels=_merge_maps(f"{conflict_prefix} labels", base_info.labels, added_info.labels),
        annotations=_merge_maps(f"{conflict_prefix} annotations", base_info.annotations, added_info.annotations),
        node_selector=_merge_maps(f"{conflict_prefix} nodeSelector", base_info.node_selector, added_info.node_selector),
        tolerations=_merge_lists(base_info.tolerations, added_info.tolerations),
        scheduling_gates=_merge_lists(base_info.scheduling_gates, added_info.scheduling_gates),
    )


def _merge_maps(prefix: str, base: Mapping[str, str], added_map: Mapping[str, str]) -> dict[str, str]:
    for key in sorted(base.keys() & added_map.keys()):
        if base[key] != added_map[key]:
            raise InvalidPodSetInfo(f"{prefix}: conflict for key={key}, value1={base[key]}, value2={added_map[key]}")
    return {**base, **added_map}


def _merge_lists(base: Sequence[Mapping[str, Any]], added_list: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    merged_list = list(base)
    merged_list += [item for item in added_list if item not in merged_list]
    return merged_list


def are_pod_sets_equivalent(
    pod_sets: Sequence[Mapping[str, Any]], other_pod_sets: Sequence[Mapping[str, Any]], ignore_tolerations: bool
) -> bool:
    """Return whether two lists of pod sets have equal counts, minimum counts, (init) containers and tolerations.

    With `ignore_tolerations`, tolerations are not compared.
    """
    pairs = zip(pod_sets, other_pod_sets, strict=True)
    return len(pod_sets) == len(other_pod_sets) and all(_are_equivalent(a, b, ignore_tolerations) for a, b in pairs)


def _are_equivalent(pod_set: Mapping[str, Any], other_pod_set: Mapping[str, Any], ignore_tolerations: bool) -> bool:
    if (pod_set["count"], pod_set.get("minCount")) != (other_pod_set["count"], other_pod_set.get("minCount")):
        return False
    return semantic_equality(scheme.JOB).is_same(
        "PodSpec", _compared_fields(pod_set, ignore_tolerations), _compared_fields(other_pod_set, ignore_tolerations)
    )


def _compared_fields(pod_set: Mapping[str, Any], ignore_tolerations: bool) -> Mapping[str, Any]:
    spec = (pod_set.get("template") or {}).get("spec") or {}
    fields = ("containers", "initContainers") if ignore_tolerations else ("containers", "initContainers", "tolerations")
    return {field: spec[field] for field in fields if spec.get(field)}


def without_duplicate_env(template: PodTemplate) -> PodTemplate:
    """Return the pod template without duplicate environment variables; the last value wins, at the first position."""
    for containers_field in ("containers", "initContainers"):
        containers = (template.get("spec") or {}).get(containers_field) or ()
        new_containers = [_without_duplicate_env(container) for container in containers]
        if any(new is not old for new, old in zip(new_containers, containers, strict=True)):
            template = meta.with_path(template, ("spec", containers_field), new_containers)
    return template


def _without_duplicate_env(container: Mapping[str, Any]) -> Mapping[str, Any]:
    variables = container.get("env") or ()
    variables_by_name = {variable["name"]: variable for variable in variables}
    return (
        container
        if len(variables_by_name) == len(variables)
        else {**container, "env": list(variables_by_name.values())}
    )


# The topology request of a pod set, from the annotations of its pod template.
#
# Source: pkg/controller/jobframework/tas.go of Kueue. Validation rejects invalid annotations when a job is created;
# this code ignores them.


#: The field of a topology request that contains the layers of slices.
_LAYERS: Final = "podsetSliceRequiredTopologyConstraints"


def topology_request(template: Mapping[str, Any], **indices: Any) -> dict[str, Any]:
    """Return a pod set's `topologyRequest` from the annotations of its pod template, with `indices` as extra fields."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {**_placement_request(annotations), **_slice_request(annotations), **indices, **_group_request(annotations)}


def allowed_pod_sets(pod_sets: list[dict[str, Any]], *, allows_layers: bool) -> list[dict[str, Any]]:
    """Return pod sets, without layers of slices if the feature gate TASMultiLayerTopology is disabled."""
    if allows_layers:
        return pod_sets
    return [_without_layers(each) if _LAYERS in (each.get("topologyRequest") or {}) else each for each in pod_sets]


def _without_layers(pod_set: dict[str, Any]) -> dict[str, Any]:
    annotations = (pod_set["template"].get("metadata") or {}).get("annotations") or {}
    request = {name: value for name, value in pod_set["topologyRequest"].items() if name != _LAYERS}
    return {**pod_set, "topologyRequest": {**request, **_single_slice_request(annotations)}}


def _placement_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    if REQUIRED_TOPOLOGY in annotations:
        return {"required": annotations[REQUIRED_TOPOLOGY]}
    if PREFERRED_TOPOLOGY in annotations:
        return {"preferred": annotations[PREFERRED_TOPOLOGY]}
    if UNCONSTRAINED_TOPOLOGY in annotations:
        is_unconstrained = meta.parse_boolean(annotations[UNCONSTRAINED_TOPOLOGY])
        return {} if is_unconstrained is None else {"unconstrained": is_unconstrained}
    return {}


def _slice_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    slice_layers = (parse_slice_layers(annotations[SLICE_LAYERS]) if SLICE_LAYERS in annotations else None) or ()
    if 1 <= len(slice_layers) <= SLICE_LAYERS_MAX:
        return {_LAYERS: [{"topology": layer.topology, "size": layer.size} for layer in slice_layers]}
    return _single_slice_request(annotations)


def _single_slice_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    slice_size = meta.parse_integer(annotations.get(SLICE_SIZE, ""), bits=32)
    if SLICE_TOPOLOGY in annotations and slice_size is not None:
        return {"podSetSliceRequiredTopology": annotations[SLICE_TOPOLOGY], "podSetSliceSize": slice_size}
    return {}


def _group_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    if POD_SET_GROUP in annotations and (REQUIRED_TOPOLOGY in annotations or PREFERRED_TOPOLOGY in annotations):
        return {"podSetGroupName": annotations[POD_SET_GROUP]}
    return {}


# Names of Workloads, generated as in Kueue because clients look Workloads up by name.
#
# Source: pkg/controller/jobframework/workload_names.go.


_WORKLOAD_NAME_LENGTH_MAX: Final = 253
_NAME_HASH_LENGTH: Final = 5


def workload_name(kind: str, api_group: str, owner_name: str, uid: str, extra: str = "") -> str:
    """Return the name of a job's Workload, `<kind>-<owner>-<hash>`; the hash avoids name collisions.

    `extra` distinguishes the slices of an elastic job.
    """
    prefix = f"{kind.lower()}-{owner_name}"[: _WORKLOAD_NAME_LENGTH_MAX - 1 - _NAME_HASH_LENGTH]
    hashed_parts = (kind, api_group, owner_name, uid, extra) if extra else (kind, api_group, owner_name, uid)
    hashed_text = "\n".join(hashed_parts).encode()
    digest = hashlib.sha1(hashed_text, usedforsecurity=False).hexdigest()
    return f"{prefix}-{digest[:_NAME_HASH_LENGTH]}"


PodSets = Sequence[Mapping[str, Any]]


class CopiedKeys(NamedTuple):
    """The keys of the labels and annotations that a new Workload gets from its job.

    Source: NewWorkload in pkg/controller/jobframework/utils.go.
    """

    labels: Sequence[str] = ()
    annotations: Sequence[str] = ()


NO_COPIED_KEYS: Final[CopiedKeys] = CopiedKeys()


def make_workload(
    job: meta.Obj, pod_sets: PodSets, priority: WorkloadPriority, copied_keys: CopiedKeys
) -> dict[str, Any]:
    """Return the manifest of a new Workload for a job."""
    metadata, uid = job["metadata"], job["metadata"].get("uid", "")
    api_group, _, _ = job["apiVersion"].rpartition("/")
    labels = {name: value for name in copied_keys.labels if (value := meta.label(job, name)) is not None}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(job["kind"], api_group, metadata["name"], uid),
            "namespace": metadata.get("namespace", ""),
            "labels": {**labels, well_known.JOB_UID: uid},
            **_copied_annotations(job, copied_keys.annotations),
            "finalizers": [well_known.RESOURCE_IN_USE],
            "ownerReferences": [meta.controller_reference(job)],
        },
        "spec": workload_spec(job, pod_sets, priority),
    }


def prebuilt_key(job: meta.Obj) -> meta.Key | None:
    """Return the key of the prebuilt Workload that a job names in an annotation or label; None if it names none."""
    name = meta.annotation(job, well_known.PREBUILT_WORKLOAD) or meta.label(job, well_known.PREBUILT_WORKLOAD)
    return meta.Key(scheme.WORKLOAD, job["metadata"].get("namespace", ""), name) if name else None


def with_job_owner(workload: meta.Obj, job: meta.Obj) -> meta.Obj:
    """Return the Workload with the job as its controlling owner, and with the job's uid as a label."""
    labels = {**(workload["metadata"].get("labels") or {}), well_known.JOB_UID: job["metadata"].get("uid", "")}
    return meta.with_controller(meta.with_metadata(workload, labels=labels), job)


def workload_spec(job: meta.Obj, pod_sets: PodSets, priority: WorkloadPriority) -> dict[str, Any]:
    """Return the spec of a job's Workload, with `active` true; a job without a queue name sets no `queueName`."""
    spec: dict[str, Any] = {"podSets": list(pod_sets), "priority": priority.value, "active": True}
    if queue_name := meta.label(job, well_known.QUEUE_NAME):
        spec = {"queueName": queue_name, **spec}
    if priority.class_ref is not None:
        spec["priorityClassRef"] = priority.class_ref
    seconds_max = execution_seconds_max(job)
    if seconds_max is not None:
        spec["maximumExecutionTimeSeconds"] = seconds_max
    return spec


def execution_seconds_max(job: meta.Obj) -> int | None:
    """Return the maximum execution time in seconds from a job's label; None if missing, invalid or not positive."""
    seconds_max = meta.parse_integer(meta.label(job, well_known.MAX_EXEC_TIME) or "", bits=32)
    return seconds_max if seconds_max is not None and seconds_max > 0 else None


def is_created_for(workload: meta.Obj, job: meta.Obj) -> bool:
    """Return whether this job controls the Workload, as opposed to an earlier job of the same name."""
    owner_reference = meta.controller_of(workload)
    return owner_reference is not None and owner_reference["uid"] == job["metadata"].get("uid")


def workload_matches_job(workload: meta.Obj, job: meta.Obj, pod_sets: PodSets, is_suspended: bool) -> bool:
    """Return whether this job controls the Workload and still has its maximum execution time and its pod sets.

    `pod_sets` are those of the job now. If the Workload holds quota, they may have the admitted counts, and must have
    them if the job is not suspended. After admission, tolerations are ignored, because flavors add tolerations.
    """
    spec = workload["spec"]
    if not is_created_for(workload, job) or spec.get("maximumExecutionTimeSeconds") != execution_seconds_max(job):
        return False
    ignores_tolerations = lifecycle.is_admitted(workload)
    if lifecycle.has_quota_reservation(workload):
        if are_pod_sets_equivalent(pod_sets, _admitted_pod_sets(workload), ignores_tolerations):
            return True
        if not is_suspended:
            return False
    return are_pod_sets_equivalent(pod_sets, spec["podSets"], ignores_tolerations)


def is_status_change(event: WatchEvent) -> bool:
    """Return whether a change keeps the spec of an object (the same object as before) and its metadata."""
    old, new = event.old, event.obj
    if old is None or event.type is EventType.DELETED or new.get("spec") is not old.get("spec"):
        return False
    metadata = new["metadata"]
    return bool({**old["metadata"], "resourceVersion": metadata.get("resourceVersion")} == metadata)


def is_pending_report(event: WatchEvent) -> bool:
    """Return whether a change of a Workload only updates why it is pending, which the job reconciler does not read.

    Then no condition is True before and after the change, and of the status only the conditions and the reported
    requests change.
    """
    old, new = event.old, event.obj
    if old is None or not is_status_change(event):
        return False
    old_status, status = old.get("status") or {}, new.get("status") or {}
    for condition in (*(old_status.get("conditions") or ()), *(status.get("conditions") or ())):
        if condition["status"] == "True":
            return False
    report = {"conditions": None, "resourceRequests": None}
    return bool({**old_status, **report} == {**status, **report})


def delete_workloads(workloads: Sequence[meta.Obj]) -> ReconcileResult:
    """Return the writes that release the finalizers of Workloads and delete those that are not being deleted."""
    deletion_result = ReconcileResult()
    for workload in workloads:
        deletion_result.writes += release_workload_finalizer(workload).writes
        if "deletionTimestamp" not in workload["metadata"]:
            deletion_result.writes.append(Delete(meta.key_of(workload)))
    return deletion_result


def release_workload_finalizer(workload: meta.Obj) -> ReconcileResult:
    """Return the write that removes the finalizer of a Workload; no write if it has none."""
    new_workload = meta.without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return ReconcileResult() if new_workload is workload else ReconcileResult([Update(new_workload)])


def with_annotation_of(workload: meta.Obj, job: meta.Obj, name: str) -> meta.Obj:
    """Return the Workload with an annotation of its job, or without it; the same object if already equal."""
    value = meta.annotation(job, name) or ""
    if (meta.annotation(workload, name) or "") == value:
        return workload
    annotations = dict(workload["metadata"].get("annotations") or ())
    annotations.pop(name, None)
    if value:
        annotations[name] = value
    return {**workload, "metadata": {**workload["metadata"], "annotations": annotations}}


#: The annotations of a job from which the scheduler computes the cost of its preemption.
_RESTART_COST_ANNOTATIONS: Final = (well_known.CHECKPOINT_EVERY, well_known.RESTART_TIME)


def _copied_annotations(job: meta.Obj, keys: Sequence[str]) -> dict[str, Any]:
    annotations = job["metadata"].get("annotations") or {}
    copied_annotations = {
        name: value
        for name, value in annotations.items()
        if name.startswith(well_known.PROVISIONING_PREFIX)
        or name in _RESTART_COST_ANNOTATIONS
        or name in keys
        or (name == well_known.ADMISSION_GATED_BY and value)
    }
    return {"annotations": copied_annotations} if copied_annotations else {}


def _admitted_pod_sets(workload: meta.Obj) -> list[Mapping[str, Any]]:
    """Return the pod sets of a Workload with their admitted counts, which partial admission may have reduced."""
    pod_sets = workload["spec"]["podSets"]
    if not any(p.get("minCount") is not None and p["count"] > p["minCount"] for p in pod_sets):
        return list(pod_sets)
    assignments = (workload["status"].get("admission") or {}).get("podSetAssignments") or ()
    counts = {a["name"]: a["count"] for a in assignments if "count" in a}
    return [
        {**p, "count": counts[p["name"]]} if p.get("minCount") is not None and p["name"] in counts else p
        for p in pod_sets
    ]


# The interface between the framework and a kind of job: Kueue's GenericJob (pkg/controller/jobframework/interface.go)
# as functions of an object. An integration is stateless and independent of Workloads.


class JobCompletion(NamedTuple):
    """The result of a finished job: whether the job succeeded, and the message of its terminal condition."""

    succeeded: bool
    message: str


class GenericJob(Protocol):
    """Interface by which the job framework reads, starts and stops jobs of one kind."""

    @property
    def suspend_path(self) -> Sequence[str]:
        """The path of the field that suspends a job."""

    @property
    def kind(self) -> str:
        """The kind of the jobs, as `Kind.group`."""

    def is_suspended(self, job: meta.Obj) -> bool:
        """Return whether a job is suspended and its last stop is complete."""

    def is_active(self, job: meta.Obj) -> bool:
        """Return whether a job has active pods."""

    def pods_ready(self, job: meta.Obj) -> bool:
        """Return whether all pods of a job are ready or succeeded."""

    def completion(self, job: meta.Obj) -> JobCompletion | None:
        """Return how a finished job ended; None if it has not finished."""

    def pod_class(self, job: meta.Obj) -> str:
        """Return the name of the PriorityClass that a job names for its pods; '' if it names none."""

    def pod_sets(self, job: meta.Obj) -> list[dict[str, Any]]:
        """Return the pod sets that the Workload of a job must have."""

    def reclaimable_pods(self, job: meta.Obj) -> list[dict[str, Any]]:
        """Return the numbers of pods that will not run again, by pod set, in the form of `status.reclaimablePods`."""

    def started_job(self, job: meta.Obj, injections: Sequence[PodSetInfo]) -> meta.Obj:
        """Return the unsuspended job with scheduling fields in its templates; raise InvalidPodSetInfo on conflict."""

    def stop(self, job: meta.Obj, pod_set_infos: Sequence[PodSetInfo]) -> Write | None:
        """Return the next write that stops a job and restores its pod templates; None if the job is stopped."""


#: The path of the field that suspends Jobs, JobSets and most other kinds of jobs.
SUSPEND_PATH: Final[tuple[str, ...]] = ("spec", "suspend")


def is_set(job: meta.Obj, path: Sequence[str]) -> bool:
    """Return whether the field of a job at a path is true."""
    return value_at(job, path) is True


def value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of fields; None if a field is missing, or is not in an object."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def minimum_parallelism(job: meta.Obj) -> int | None:
    """Return the smallest number of pods of a Job, from its annotation; None if it is missing or malformed."""
    value = meta.annotation(job, well_known.MIN_PARALLELISM)
    return None if value is None else meta.parse_integer(value)


def find_true_condition(job: meta.Obj, *condition_types: str) -> Mapping[str, Any] | None:
    """Return the first condition of a job that is True and has one of the `condition_types`; None if there is none."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] in condition_types and c["status"] == "True"), None)
