"""Validation of Workloads: spec, status, conditions, and the annotation for admission gates.

Source: Kueue's Workload webhook at its default feature gates, and the rules in its CRD.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta as quantity
from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, is_elastic, is_true
from batchyard.api.schema import semantic_equality
from batchyard.api.validation import pods as node_constraints
from batchyard.api.validation import rules
from batchyard.api.validation import topology as topology_assignment

# Rules of conditions. Source: k8s.io/apimachinery/pkg/apis/meta/v1/validation.


_CONDITION_STATUSES: Final = ("True", "False", "Unknown")


def condition_errors(conditions: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Report conditions with an invalid type or status, and several conditions of one type."""
    seen_condition_types: dict[str, None] = {}
    for i, condition in enumerate(conditions):
        item_path, kind = f"{path}[{i}]", condition["type"]
        if kind in seen_condition_types:
            yield rules.duplicate(f"{item_path}.type", kind, "keep one condition of each type")
        seen_condition_types[kind] = None
        yield from rules.label_key_errors(kind, f"{item_path}.type")
        if condition["status"] not in _CONDITION_STATUSES:
            yield rules.unsupported(f"{item_path}.status", condition["status"], _CONDITION_STATUSES)


# Rules of a Workload's status: admission, reclaimable pods, admission checks, clusters.
#
# Source: Kueue's Workload webhook at its default feature gates, and the rules in its CRD.


_ADMISSION_TYPE: Final = "Workload.status.admission"
_ADMISSION_CHECKS_FIELD_TYPE: Final = "Workload.status.admissionChecks"
_ADMISSION_PATH: Final = "status.admission"
_CHECKS_PATH: Final = "status.admissionChecks"
_RECLAIMABLE_PODS_PATH: Final = "status.reclaimablePods"


def status_errors(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Validate the status of a Workload; `old` is the Workload before the update, None for a new one."""
    status = workload.get("status") or {}
    if is_true(workload, "QuotaReserved"):
        yield from _admission_errors(workload, old)
    yield from condition_errors(status.get("conditions") or (), "status.conditions")
    yield from _reclaimable_pods_errors(workload, old)
    for i, check in enumerate(status.get("admissionChecks") or ()):
        yield from _admission_check_errors(check, _count_by_pod_set(workload), f"{_CHECKS_PATH}[{i}].podSetUpdates")
    if status.get("clusterName") is not None and status.get("nominatedClusterNames"):
        message = "clusterName and nominatedClusterNames are mutually exclusive"
        yield rules.schema_rule_fault("status", "object", message, "remove nominatedClusterNames: clusterName is set")
    if old is not None and old.get("status"):
        yield from _status_transition_errors(workload, old)


def _status_transition_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    if is_true(new, "QuotaReserved") and is_true(old, "QuotaReserved"):
        yield from _reclaimable_update_errors(new, old)
    status, old_status = new.get("status") or {}, old["status"]
    yield from _admission_update_errors(status.get("admission"), old_status.get("admission"))
    ready_checks = {check["name"]: check for check in status.get("admissionChecks") or () if check["state"] == "Ready"}
    for i, check in enumerate(old_status.get("admissionChecks") or ()):
        new_check = ready_checks.get(check["name"]) if check["state"] == "Ready" else None
        if new_check is not None and not semantic_equality(scheme.WORKLOAD).is_same_field(
            _ADMISSION_CHECKS_FIELD_TYPE, "podSetUpdates", new_check, check
        ):
            remedy = "keep the field while the state of the check is Ready"
            yield rules.immutable(f"{_CHECKS_PATH}[{i}].podSetUpdates", new_check.get("podSetUpdates"), remedy)


def _count_by_pod_set(workload: Obj) -> dict[str, int]:
    pod_sets = (workload.get("spec") or {}).get("podSets") or ()
    return {pod_set.get("name", "main"): pod_set.get("count", 1) for pod_set in pod_sets}


def _admission_errors(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Report a Workload with reserved quota and no admission, or without an assignment for each pod set.

    Workloads that lacked the admission before the update are excepted, so that they can be repaired.
    """
    admission = workload["status"].get("admission")
    if admission is None:
        lacked_old_admission = old and is_true(old, "QuotaReserved") and not (old.get("status") or {}).get("admission")
        if not lacked_old_admission:
            message = "must be set while the QuotaReserved condition is true"
            yield rules.required(
                _ADMISSION_PATH, message, "set status.admission, or the condition QuotaReserved to False"
            )
        return
    counts, assignments = _count_by_pod_set(workload), admission.get("podSetAssignments") or ()
    if len(assignments) != len(counts):
        message = "podSetAssignments must have the same number of podSets as the spec"
        yield rules.schema_rule_fault("", "object", message, f"add an assignment for each of the {len(counts)} podSets")
    for i, assignment in enumerate(assignments):
        yield from _pod_set_assignment_errors(assignment, counts, f"{_ADMISSION_PATH}.podSetAssignments[{i}]")


def _pod_set_assignment_errors(assignment: Obj, count_by_pod_set: Mapping[str, int], path: str) -> Iterator[FieldError]:
    name, count = assignment.get("name", "main"), assignment.get("count") or 0
    if name not in count_by_pod_set:
        yield rules.not_found(f"{path}.name", name, f"use the name of a podSet: {', '.join(count_by_pod_set)}")
    for resource, value in (assignment.get("resourceUsage") or {}).items():
        if count > 0 and rules.parse_nano_amount(value) is not None and quantity.amount(resource, value) % count:
            item_path = f"{path}.resourceUsage[{resource}]"
            remedy = "specify the amount that one pod uses times the count"
            yield rules.invalid(
                item_path, rules.canonical_quantity_or_text(value), f"is not a multiple of {count}", remedy
            )
    if topology := assignment.get("topologyAssignment"):
        yield from topology_assignment.assignment_errors(topology, f"{path}.topologyAssignment")


def _reclaimable_pods_errors(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Report `reclaimablePods` entries with an unknown pod set, or with a higher count than that of the pod set.

    In an elastic Workload, an unchanged count is valid, because the pod set may have shrunk.
    """
    reclaimable_pods = (workload.get("status") or {}).get("reclaimablePods") or ()
    count_by_pod_set = _count_by_pod_set(workload) if reclaimable_pods else {}
    old_counts = _reclaimable_count_by_pod_set(old) if old is not None and is_elastic(workload) else {}
    for pods in reclaimable_pods:
        item_path, name, count = f"{_RECLAIMABLE_PODS_PATH}[{pods['name']}]", pods["name"], pods.get("count", 0)
        if name not in count_by_pod_set:
            yield rules.unsupported(f"{item_path}.name", name, count_by_pod_set)
        elif count > count_by_pod_set[name] and old_counts.get(name) != count:
            message = f"should be less or equal to {count_by_pod_set[name]}"
            yield rules.invalid(f"{item_path}.count", count, message, f"use at most {count_by_pod_set[name]}")


def _reclaimable_count_by_pod_set(workload: Obj) -> dict[str, int]:
    return {p["name"]: p.get("count", 0) for p in (workload.get("status") or {}).get("reclaimablePods") or ()}


def _reclaimable_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    counts, new_counts = _reclaimable_count_by_pod_set(old), _reclaimable_count_by_pod_set(new)
    shrunk_pod_sets = _shrunk_pod_sets(new)
    for name, count in new_counts.items():
        if count < counts.get(name, 0) and name not in shrunk_pod_sets:
            item_path = f"{_RECLAIMABLE_PODS_PATH}[{name}].count"
            yield rules.invalid(item_path, count, f"cannot be less than {counts[name]}", f"use {counts[name]} or more")
    for name in counts:
        if name not in new_counts and name not in shrunk_pod_sets:
            remedy = f"keep the entry, with a count of {counts[name]} or more"
            yield rules.required(f"{_RECLAIMABLE_PODS_PATH}[{name}]", "cannot be removed", remedy)


def _shrunk_pod_sets(workload: Obj) -> dict[str, None]:
    """Return the names of the pod sets of an elastic Workload that are smaller now than at admission."""
    admission = (workload.get("status") or {}).get("admission")
    if not admission or not is_elastic(workload):
        return {}
    count_by_pod_set = _count_by_pod_set(workload)
    counts_by_name = {a.get("name", "main"): a.get("count") or 0 for a in admission.get("podSetAssignments") or ()}
    return {name: None for name, count in counts_by_name.items() if count > count_by_pod_set.get(name, 0)}


def _admission_check_errors(check: Obj, count_by_pod_set: Mapping[str, int], path: str) -> Iterator[FieldError]:
    for i, update in enumerate(check.get("podSetUpdates") or ()):
        item_path = f"{path}[{i}]"
        if update["name"] not in count_by_pod_set:
            yield rules.unsupported(f"{item_path}.name", update["name"], count_by_pod_set)
        yield from node_constraints.toleration_errors(update.get("tolerations") or (), f"{item_path}.tolerations")
        yield from rules.annotation_errors(update.get("annotations"), f"{item_path}.annotations")
        yield from rules.label_errors(update.get("nodeSelector"), f"{item_path}.nodeSelector")
        yield from rules.label_errors(update.get("labels"), f"{item_path}.labels")


def _admission_update_errors(new: Obj | None, old: Obj | None) -> Iterator[FieldError]:
    if new is None or old is None:
        return
    if not semantic_equality(scheme.WORKLOAD).is_same(_ADMISSION_TYPE, _without_topology(new), _without_topology(old)):
        yield rules.immutable(
            _ADMISSION_PATH, new, "evict the Workload first: an admission can only be set and removed"
        )


def _without_topology(admission: Obj) -> dict[str, Any]:
    assignments: Sequence[Obj] = admission.get("podSetAssignments") or ()
    topology_fields = ("topologyAssignment", "delayedTopologyRequest")
    assignments = [{field: value for field, value in a.items() if field not in topology_fields} for a in assignments]
    return {**admission, "podSetAssignments": assignments}


def cluster_name_update_errors(new: Obj, old: Obj, *, is_replacement: bool) -> Iterator[FieldError]:
    """Report a clusterName that replaces another, or is not nominated; a replacement Workload needs no nomination."""
    new_name, old_name = ((obj.get("status") or {}).get("clusterName") for obj in (new, old))
    if new_name is None or new_name == old_name:
        return
    if old_name is not None:
        yield rules.schema_rule_fault("status", "object", "clusterName is immutable once set", f"keep {old_name}")
    elif not is_replacement and new_name not in ((old.get("status") or {}).get("nominatedClusterNames") or ()):
        message = "when setting clusterName it must be one of the nominatedClusterNames"
        yield rules.invalid("status.clusterName", new_name, message, "first add the cluster to nominatedClusterNames")


# Rules of the annotation with the admission gates of a Job or Workload: it cannot reserve quota while it has gates.
#
# Source: Kueue's pkg/util/webhook.


_GATES_PATH: Final = f"metadata.annotations[{well_known.ADMISSION_GATED_BY}]"
_ADMISSION_GATES_REMEDY: Final = "list unique names such as example.com/gate, separated by commas"


def admission_gate_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report admission gates in the annotation that are empty, duplicate, too long, or not domain-prefixed names."""
    value = _gate_annotation(obj)
    seen_gate_names: dict[str, None] = {}
    for gate in _parse_admission_gates(value):
        if not gate:
            yield rules.invalid(_GATES_PATH, value, "cannot contain empty gate names", _ADMISSION_GATES_REMEDY)
        elif gate in seen_gate_names:
            yield rules.invalid(_GATES_PATH, value, f"duplicate gate name: {gate}", _ADMISSION_GATES_REMEDY)
        else:
            seen_gate_names[gate] = None
            for message in rules.domain_path_errors(gate):
                yield rules.invalid(_GATES_PATH, gate, message, _ADMISSION_GATES_REMEDY)
            if len(gate) > rules.LABEL_LENGTH_MAX:
                yield rules.too_long(_GATES_PATH, rules.LABEL_LENGTH_MAX, "shorten the name of the gate")


def admission_gate_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report admission gates that an update adds: an update may only remove gates."""
    old_gates, new_gates = _parse_admission_gates(_gate_annotation(old)), _parse_admission_gates(_gate_annotation(new))
    if new_gates and not old_gates:
        remedy = "set the annotation when creating the object"
        yield rules.forbidden(_GATES_PATH, "cannot add admission gate after creation", remedy)
    elif any(gate not in old_gates for gate in new_gates):
        yield rules.forbidden(
            _GATES_PATH, "can only remove gates, not add new ones", f"use only the gates {', '.join(old_gates)}"
        )


def _gate_annotation(obj: Mapping[str, Any]) -> str:
    annotations = obj["metadata"].get("annotations")
    return annotations.get(well_known.ADMISSION_GATED_BY) or "" if annotations else ""


def _parse_admission_gates(value: str) -> list[str]:
    return [gate.strip() for gate in value.split(",")] if value.strip() else []


_WORKLOAD_WEBHOOK_NAME: Final = "vworkload.kb.io"
_POD_SETS_PATH: Final = "spec.podSets"
_POD_SET_TYPE: Final = "Workload.spec.podSets"
_PRIORITY_CLASS_PATH: Final = "spec.priorityClassRef"
_PRIORITY_CLASS_KIND_BY_GROUP: Final = {"scheduling.k8s.io": "PriorityClass", "kueue.x-k8s.io": "WorkloadPriorityClass"}


def workload_errors(workload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Workload: its metadata, spec and status."""
    yield from rules.metadata_errors(workload)
    yield from rules.attribute_to_webhook(_WORKLOAD_WEBHOOK_NAME, _spec_errors(workload))
    if workload.get("status"):
        yield from rules.attribute_to_webhook(_WORKLOAD_WEBHOOK_NAME, status_errors(workload, None))


def workload_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Workload: most spec fields are immutable while quota is reserved."""
    yield from rules.metadata_errors(new)
    yield from rules.attribute_to_webhook(_WORKLOAD_WEBHOOK_NAME, _webhook_update_errors(new, old))


def workload_status_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a status update of a Workload: its new status, and the changes from the old one."""
    yield from rules.attribute_to_webhook(_WORKLOAD_WEBHOOK_NAME, _status_change_errors(new, old))


def _status_change_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from status_errors(new, old)
    is_replacement = well_known.REPLACEMENT_FOR in (new["metadata"].get("annotations") or {})
    yield from cluster_name_update_errors(new, old, is_replacement=is_replacement)


def _webhook_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from _spec_errors(new)
    yield from _status_change_errors(new, old)
    yield from admission_gate_update_errors(new, old)
    if is_true(old, "QuotaReserved"):
        yield from _pod_set_update_errors(new["spec"].get("podSets") or (), old["spec"].get("podSets") or ())
        yield from _priority_class_update_errors(
            new["spec"].get("priorityClassRef"), old["spec"].get("priorityClassRef")
        )
        if is_true(new, "QuotaReserved"):
            yield from _immutable_field_errors(new, old, "queueName", None)
    if is_true(old, "Admitted") and is_true(new, "Admitted"):
        yield from _immutable_field_errors(new, old, "maximumExecutionTimeSeconds", 0)


def _spec_errors(workload: Mapping[str, Any]) -> Iterator[FieldError]:
    spec = workload.get("spec") or {}
    min_count_pod_sets, seen_pod_set_names = 0, {}
    for i, pod_set in enumerate(spec.get("podSets") or ()):
        yield from _pod_set_errors(pod_set, f"{_POD_SETS_PATH}[{i}]")
        min_count_pod_sets += pod_set.get("minCount") is not None
        if (name := pod_set.get("name", "main")) in seen_pod_set_names:
            yield rules.duplicate(f"{_POD_SETS_PATH}[{i}].name", name, "give each podSet a unique name")
        seen_pod_set_names[name] = i
    allows_min_count = is_elastic(workload) and _allows_min_count(workload)
    if min_count_pod_sets > 1 and not allows_min_count:
        remedy = "keep minCount in one podSet only"
        yield rules.invalid(_POD_SETS_PATH, min_count_pod_sets, "at most one podSet can use minCount", remedy)
    if min_count_pod_sets and is_elastic(workload) and not allows_min_count:
        message = "partial admission and elastic job cannot be used together"
        yield rules.invalid(_POD_SETS_PATH, min_count_pod_sets, message, f"remove minCount or {well_known.ELASTIC_JOB}")
    yield from _priority_class_errors(spec)
    yield from admission_gate_errors(workload)


def _allows_min_count(workload: Mapping[str, Any]) -> bool:
    """Return whether a slice of an elastic job may have `minCount`: the job may grow or be preempted in part."""
    annotations = workload["metadata"].get("annotations") or {}
    is_partial = annotations.get(well_known.SCALE_UP_STRATEGY) == well_known.PARTIAL_SCALE_UP
    return is_partial or annotations.get(well_known.PARTIAL_PREEMPTION) == "true"


def _pod_set_errors(pod_set: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    template, min_count, count = pod_set["template"], pod_set.get("minCount"), pod_set.get("count", 1)
    if min_count is not None and min_count > count:
        message = "minCount should be positive and less or equal to count"
        yield rules.schema_rule_fault(path, "object", message, f"set minCount to a number from 0 to {count}")
    if meta := template.get("metadata"):
        yield from rules.label_errors(meta.get("labels"), f"{path}.template.metadata.labels")
        yield from rules.annotation_errors(meta.get("annotations"), f"{path}.template.metadata.annotations")
    if spec := template.get("spec"):
        yield from _pod_spec_requests_errors(spec, f"{path}.template.spec")
    if request := pod_set.get("topologyRequest"):
        for error in _topology_request_errors(request, f"{path}.topologyRequest"):
            yield error._replace(gate=well_known.TAS_SLICE_SIZE_VALIDATION)


def _pod_spec_requests_errors(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            if resources := container.get("resources"):
                yield from _container_resources_errors(resources, f"{path}.{field}[{i}].resources")
    if resources := spec.get("resources"):
        yield from _container_resources_errors(resources, f"{path}.resources")


def _container_resources_errors(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("requests", "limits"):
        for name, value in (resources.get(field) or {}).items():
            if name == "pods":
                message = "the key is reserved for internal kueue use"
                yield rules.invalid(
                    f"{path}.{field}[{name}]", name, message, "remove the entry: Kueue counts pods itself"
                )
            amount = rules.parse_nano_amount(value)
            if amount is None or amount < 0:
                yield from rules.amount_errors(value, f"{path}.{field}[{name}]")


def _topology_request_errors(request: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    slice_topology, slice_size = request.get("podSetSliceRequiredTopology"), request.get("podSetSliceSize")
    if slice_topology is not None and slice_size is None:
        message = "must be set when podSetSliceRequiredTopology is specified"
        yield rules.required(f"{path}.podSetSliceSize", message, "specify the number of pods in a slice")
    elif slice_topology is None and slice_size is not None:
        message = "may not be set when podSetSliceRequiredTopology is not specified"
        yield rules.forbidden(
            f"{path}.podSetSliceSize", message, "remove the field, or set podSetSliceRequiredTopology"
        )
    elif slice_size is not None and slice_size <= 0:
        yield rules.invalid(f"{path}.podSetSliceSize", slice_size, "must be greater than 0", "use 1 or more")
    for i, constraint in enumerate(request.get("podsetSliceRequiredTopologyConstraints") or ()):
        if constraint["size"] <= 0:
            item_path = f"{path}.podsetSliceRequiredTopologyConstraints[{i}].size"
            yield rules.invalid(item_path, constraint["size"], "must be greater than 0", "use 1 or more")


def _priority_class_errors(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    class_reference = spec.get("priorityClassRef")
    if class_reference is None:
        return
    if spec.get("priority") is None:
        message = "priority should not be nil when priorityClassRef is set"
        yield rules.schema_rule_fault("spec", "object", message, "set spec.priority to the value of the priority class")
    expected_kind = _PRIORITY_CLASS_KIND_BY_GROUP.get(class_reference["group"])
    if expected_kind and class_reference["kind"] != expected_kind:
        message = f"only the {expected_kind} kind is allowed for the {class_reference['group']} group"
        yield rules.schema_rule_fault(_PRIORITY_CLASS_PATH, "object", message, f"use the kind {expected_kind}")


def _pod_set_update_errors(new: Sequence[Any], old: Sequence[Any]) -> Iterator[FieldError]:
    """Report changes of pod sets while quota is reserved; only their counts may decrease, and `minCount` with them."""
    remedy = "wait until the Workload is evicted, or deactivate it first"
    if len(new) != len(old):
        yield rules.immutable(_POD_SETS_PATH, f"{len(new)} podSets", remedy)
        return
    field_equality = semantic_equality(scheme.WORKLOAD)
    for i, (new_pod_set, old_pod_set) in enumerate(zip(new, old, strict=True)):
        new_count, expected_pod_set = new_pod_set.get("count", 1), old_pod_set
        if new_count < old_pod_set.get("count", 1):
            expected_pod_set = {**old_pod_set, "count": new_count}
            if (old_pod_set.get("minCount") or 0) > new_count:
                expected_pod_set["minCount"] = new_count
        if not field_equality.is_same(_POD_SET_TYPE, new_pod_set, expected_pod_set):
            yield rules.immutable(f"{_POD_SETS_PATH}.{i}", new_pod_set, remedy)  # Kueue writes this one path with a dot


def _priority_class_update_errors(new: Mapping[str, Any] | None, old: Mapping[str, Any] | None) -> Iterator[FieldError]:
    remedy, reserved_message = "wait until the Workload is evicted", "is immutable while workload quota reserved"
    if new is None or old is None:
        if new != old:
            yield rules.schema_rule_fault("", "object", f"priorityClassRef {reserved_message}", remedy)
        return
    for field in ("group", "kind"):
        if new[field] != old[field]:
            yield rules.schema_rule_fault("", "object", f"priorityClassRef.{field} {reserved_message}", remedy)
    if new["kind"] == "PriorityClass" and new["name"] != old["name"]:
        subject_message = "priorityClassRef.name is immutable for scheduling.k8s.io/priorityclass"
        yield rules.schema_rule_fault("", "object", f"{subject_message} while workload quota reserved", remedy)


def _immutable_field_errors(new: Obj, old: Obj, field: str, value_if_absent: object) -> Iterator[FieldError]:
    old_value, new_value = old["spec"].get(field, value_if_absent), new["spec"].get(field, value_if_absent)
    if old_value != new_value:
        message = f"{field} is immutable while workload quota reserved"
        yield rules.schema_rule_fault("", "object", message, f"keep {field}, or wait until the Workload is evicted")
