"""Rules of Workloads.

Source: Kueue's Workload webhook at its default feature gates, and the rules in its CRD.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta as quantity
from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, is_elastic, is_true
from batchyard.api.schema import meaning_of
from batchyard.api.validation import pods as node_constraints
from batchyard.api.validation import rules
from batchyard.api.validation import topology as topology_assignment

# --- conditions ---
#
# Rules of conditions. Source: k8s.io/apimachinery/pkg/apis/meta/v1/validation.


STATUSES: Final = ("True", "False", "Unknown")


def condition_faults(conditions: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Condition types are unique qualified names, and statuses are valid."""
    seen: dict[str, None] = {}
    for i, condition in enumerate(conditions):
        at, kind = f"{path}[{i}]", condition["type"]
        if kind in seen:
            yield rules.duplicate(f"{at}.type", kind, "leave one condition of each type")
        seen[kind] = None
        yield from rules.label_key_faults(kind, f"{at}.type")
        if condition["status"] not in STATUSES:
            yield rules.unsupported(f"{at}.status", condition["status"], STATUSES)


# --- workload status ---
#
# Rules of a Workload's status: admission, reclaimable pods, admission checks, clusters.
#
# Source: Kueue's Workload webhook at its default feature gates, and the rules in its CRD.


_ADMISSION_TYPE: Final = "Workload.status.admission"
_CHECK_TYPE: Final = "Workload.status.admissionChecks"
_ADMISSION: Final = "status.admission"
_CHECKS: Final = "status.admissionChecks"
_RECLAIMABLE: Final = "status.reclaimablePods"


def status_faults(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Validate a status; `old` is the Workload before the update, None for a new one."""
    status = workload.get("status") or {}
    if is_true(workload, "QuotaReserved"):
        yield from _admission_faults(workload, old)
    yield from condition_faults(status.get("conditions") or (), "status.conditions")
    yield from _reclaimable_faults(workload, old)
    for i, check in enumerate(status.get("admissionChecks") or ()):
        yield from _check_faults(check, _sizes(workload), f"{_CHECKS}[{i}].podSetUpdates")
    if status.get("clusterName") is not None and status.get("nominatedClusterNames"):
        message = "clusterName and nominatedClusterNames are mutually exclusive"
        yield rules.broken_rule("status", "object", message, "drop nominatedClusterNames once a cluster is chosen")
    if old is not None and old.get("status"):
        yield from _update_faults(workload, old)


def _update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """An admission is immutable until it is removed as a whole."""
    if is_true(new, "QuotaReserved") and is_true(old, "QuotaReserved"):
        yield from _reclaimable_update_faults(new, old)
    status, before = new.get("status") or {}, old["status"]
    yield from _admission_update_faults(status.get("admission"), before.get("admission"))
    ready = {check["name"]: check for check in status.get("admissionChecks") or () if check["state"] == "Ready"}
    for i, check in enumerate(before.get("admissionChecks") or ()):
        now = ready.get(check["name"]) if check["state"] == "Ready" else None
        if now is not None and not meaning_of(scheme.WORKLOAD).is_same_field(_CHECK_TYPE, "podSetUpdates", now, check):
            yield rules.immutable(f"{_CHECKS}[{i}].podSetUpdates", now.get("podSetUpdates"), "keep it while Ready")


def _sizes(workload: Obj) -> dict[str, int]:
    """Return the counts by the names of the pod sets."""
    pod_sets = (workload.get("spec") or {}).get("podSets") or ()
    return {pod_set.get("name", "main"): pod_set.get("count", 1) for pod_set in pod_sets}


def _admission_faults(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Reserved quota has an admission for each pod set. An old Workload without one may be updated, for repairs."""
    admission = workload["status"].get("admission")
    if admission is None:
        was_so = old and is_true(old, "QuotaReserved") and not (old.get("status") or {}).get("admission")
        if not was_so:
            message = "must be set while the QuotaReserved condition is true"
            yield rules.required(_ADMISSION, message, "give the admission, or set QuotaReserved to False")
        return
    sizes, assignments = _sizes(workload), admission.get("podSetAssignments") or ()
    if len(assignments) != len(sizes):
        message = "podSetAssignments must have the same number of podSets as the spec"
        yield rules.broken_rule("", "object", message, f"assign each of the {len(sizes)} podSets of the spec")
    for i, assignment in enumerate(assignments):
        yield from _assignment_faults(assignment, sizes, f"{_ADMISSION}.podSetAssignments[{i}]")


def _assignment_faults(assignment: Obj, sizes: Mapping[str, int], path: str) -> Iterator[FieldError]:
    """An assignment is for a pod set of the spec, and its usage is a multiple of the count."""
    name, count = assignment.get("name", "main"), assignment.get("count") or 0
    if name not in sizes:
        yield rules.not_found(f"{path}.name", name, f"use the name of a podSet: {', '.join(sizes)}")
    for resource, value in (assignment.get("resourceUsage") or {}).items():
        if count > 0 and rules.nano(value) is not None and quantity.amount(resource, value) % count:
            at = f"{path}.resourceUsage[{resource}]"
            remedy = "give what one pod uses, times the count"
            yield rules.invalid(at, rules.shown(value), f"is not a multiple of {count}", remedy)
    if topology := assignment.get("topologyAssignment"):
        yield from topology_assignment.assignment_faults(topology, f"{path}.topologyAssignment")


def _reclaimable_faults(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Reclaimable pods are pods of the spec; counts from before an elastic Workload shrank may stay."""
    reclaimable = (workload.get("status") or {}).get("reclaimablePods") or ()
    sizes = _sizes(workload) if reclaimable else {}
    stale = _reclaimable_counts(old) if old is not None and is_elastic(workload) else {}
    for pods in reclaimable:
        at, name, count = f"{_RECLAIMABLE}[{pods['name']}]", pods["name"], pods.get("count", 0)
        if name not in sizes:
            yield rules.unsupported(f"{at}.name", name, sizes)
        elif count > sizes[name] and stale.get(name) != count:
            message = f"should be less or equal to {sizes[name]}"
            yield rules.invalid(f"{at}.count", count, message, f"give at most {sizes[name]}")


def _reclaimable_counts(workload: Obj) -> dict[str, int]:
    """Return the reclaimable counts by pod set."""
    return {p["name"]: p.get("count", 0) for p in (workload.get("status") or {}).get("reclaimablePods") or ()}


def _reclaimable_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Reclaimable counts do not decrease, except if an elastic Workload shrank."""
    before, after = _reclaimable_counts(old), _reclaimable_counts(new)
    shrunk = _shrunk(new)
    for name, count in after.items():
        if count < before.get(name, 0) and name not in shrunk:
            at = f"{_RECLAIMABLE}[{name}].count"
            yield rules.invalid(at, count, f"cannot be less than {before[name]}", f"give at least {before[name]}")
    for name in before:
        if name not in after and name not in shrunk:
            yield rules.required(f"{_RECLAIMABLE}[{name}]", "cannot be removed", f"keep it, at {before[name]} or more")


def _shrunk(workload: Obj) -> dict[str, None]:
    """Return the pod sets of an elastic Workload that are smaller now than at admission."""
    admission = (workload.get("status") or {}).get("admission")
    if not admission or not is_elastic(workload):
        return {}
    sizes = _sizes(workload)
    assignments = {a.get("name", "main"): a.get("count") or 0 for a in admission.get("podSetAssignments") or ()}
    return {name: None for name, count in assignments.items() if count > sizes.get(name, 0)}


def _check_faults(check: Obj, sizes: Mapping[str, int], path: str) -> Iterator[FieldError]:
    """An admission check updates pod sets of the spec, with valid labels, annotations and tolerations."""
    for i, update in enumerate(check.get("podSetUpdates") or ()):
        at = f"{path}[{i}]"
        if update["name"] not in sizes:
            yield rules.unsupported(f"{at}.name", update["name"], sizes)
        yield from node_constraints.toleration_faults(update.get("tolerations") or (), f"{at}.tolerations")
        yield from rules.annotation_faults(update.get("annotations"), f"{at}.annotations")
        yield from rules.label_faults(update.get("nodeSelector"), f"{at}.nodeSelector")
        yield from rules.label_faults(update.get("labels"), f"{at}.labels")


def _admission_update_faults(new: Obj | None, old: Obj | None) -> Iterator[FieldError]:
    """An admission is set or removed, never changed; only topology assignments may be added later."""
    if new is None or old is None:
        return
    if not meaning_of(scheme.WORKLOAD).is_same(_ADMISSION_TYPE, _placeless(new), _placeless(old)):
        yield rules.immutable(_ADMISSION, new, "evict the Workload first: an admission is set and unset, never changed")


def _placeless(admission: Obj) -> dict[str, Any]:
    """Return an admission without topology assignments."""
    assignments: Sequence[Obj] = admission.get("podSetAssignments") or ()
    hidden = ("topologyAssignment", "delayedTopologyRequest")
    kept = [{field: value for field, value in a.items() if field not in hidden} for a in assignments]
    return {**admission, "podSetAssignments": kept}


def cluster_name_update_faults(new: Obj, old: Obj, *, replaces: bool) -> Iterator[FieldError]:
    """A Workload is sent once, to a nominated cluster; a replacement slice is sent to that of the replaced one."""
    after, before = ((obj.get("status") or {}).get("clusterName") for obj in (new, old))
    if after is None or after == before:
        return
    if before is not None:
        yield rules.broken_rule("status", "object", "clusterName is immutable once set", f"keep {before}")
    elif not replaces and after not in ((old.get("status") or {}).get("nominatedClusterNames") or ()):
        message = "when setting clusterName it must be one of the nominatedClusterNames"
        yield rules.invalid("status.clusterName", after, message, "nominate the cluster first")


# --- admission gates ---
#
# Rules of the annotation that keeps a Job or Workload from reserving quota.
#
# Source: Kueue's pkg/util/webhook.


PATH: Final = f"metadata.annotations[{well_known.ADMISSION_GATED_BY}]"
_REMEDY: Final = "list names such as example.com/gate, each once, with commas between them"


def gate_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Gates are unique domain-prefixed names."""
    value = _value(obj)
    seen: dict[str, None] = {}
    for gate in _gates(value):
        if not gate:
            yield rules.invalid(PATH, value, "cannot contain empty gate names", _REMEDY)
        elif gate in seen:
            yield rules.invalid(PATH, value, f"duplicate gate name: {gate}", _REMEDY)
        else:
            seen[gate] = None
            for message in rules.domain_path(gate):
                yield rules.invalid(PATH, gate, message, _REMEDY)
            if len(gate) > rules.LABEL_LENGTH_MAX:
                yield rules.too_long(PATH, rules.LABEL_LENGTH_MAX, "shorten the name of the gate")


def gate_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Gates may only be removed."""
    before, after = _gates(_value(old)), _gates(_value(new))
    if after and not before:
        remedy = "set the annotation when creating the object"
        yield rules.forbidden(PATH, "cannot add admission gate after creation", remedy)
    elif any(gate not in before for gate in after):
        yield rules.forbidden(PATH, "can only remove gates, not add new ones", f"leave only gates of {before}")


def _value(obj: Mapping[str, Any]) -> str:
    """Return the annotation, or ''."""
    annotations = obj["metadata"].get("annotations")
    return annotations.get(well_known.ADMISSION_GATED_BY) or "" if annotations else ""


def _gates(value: str) -> list[str]:
    """Return the gates in the annotation's value."""
    return [gate.strip() for gate in value.split(",")] if value.strip() else []


_WEBHOOK: Final = "vworkload.kb.io"
_POD_SETS: Final = "spec.podSets"
_POD_SET_TYPE: Final = "Workload.spec.podSets"
_CLASS: Final = "spec.priorityClassRef"
_CLASS_KINDS: Final = {"scheduling.k8s.io": "PriorityClass", "kueue.x-k8s.io": "WorkloadPriorityClass"}


def workload_faults(workload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Workload."""
    yield from rules.metadata_faults(workload)
    yield from rules.denied_by(_WEBHOOK, _spec_faults(workload))
    if workload.get("status"):
        yield from rules.denied_by(_WEBHOOK, status_faults(workload, None))


def workload_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Workload: the fields that quota was reserved for are immutable."""
    yield from rules.metadata_faults(new)
    yield from rules.denied_by(_WEBHOOK, _change_faults(new, old))


def workload_status_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a status update of a Workload."""
    yield from rules.denied_by(_WEBHOOK, _status_change_faults(new, old))


def _status_change_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from status_faults(new, old)
    replaces = well_known.REPLACEMENT_FOR in (new["metadata"].get("annotations") or {})
    yield from cluster_name_update_faults(new, old, replaces=replaces)


def _change_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the changes of an update."""
    yield from _spec_faults(new)
    yield from _status_change_faults(new, old)
    yield from gate_update_faults(new, old)
    if is_true(old, "QuotaReserved"):
        yield from _pod_set_update_faults(new["spec"].get("podSets") or (), old["spec"].get("podSets") or ())
        yield from _class_update_faults(new["spec"].get("priorityClassRef"), old["spec"].get("priorityClassRef"))
        if is_true(new, "QuotaReserved"):
            yield from _kept(new, old, "queueName", None)
    if is_true(old, "Admitted") and is_true(new, "Admitted"):
        yield from _kept(new, old, "maximumExecutionTimeSeconds", 0)


def _spec_faults(workload: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate pod sets, priority class and gates."""
    spec = workload.get("spec") or {}
    variable, seen = 0, {}
    for i, pod_set in enumerate(spec.get("podSets") or ()):
        yield from _pod_set_faults(pod_set, f"{_POD_SETS}[{i}]")
        variable += pod_set.get("minCount") is not None
        if (name := pod_set.get("name", "main")) in seen:
            yield rules.duplicate(f"{_POD_SETS}[{i}].name", name, "give each podSet a name of its own")
        seen[name] = i
    if variable > 1:
        remedy = "leave minCount on one podSet"
        yield rules.invalid(_POD_SETS, variable, "at most one podSet can use minCount", remedy)
    if variable and is_elastic(workload):
        message = "partial admission and elastic job cannot be used together"
        yield rules.invalid(_POD_SETS, variable, message, f"drop minCount, or the annotation {well_known.ELASTIC_JOB}")
    yield from _class_faults(spec)
    yield from gate_faults(workload)


def _pod_set_faults(pod_set: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate a pod set's counts, labels and requests."""
    template, least, count = pod_set["template"], pod_set.get("minCount"), pod_set.get("count", 1)
    if least is not None and least > count:
        message = "minCount should be positive and less or equal to count"
        yield rules.broken_rule(path, "object", message, f"give minCount from 1 to {count}")
    if meta := template.get("metadata"):
        yield from rules.label_faults(meta.get("labels"), f"{path}.template.metadata.labels")
        yield from rules.annotation_faults(meta.get("annotations"), f"{path}.template.metadata.annotations")
    if spec := template.get("spec"):
        yield from _requests_faults(spec, f"{path}.template.spec")
    if request := pod_set.get("topologyRequest"):
        yield from _topology_request_faults(request, f"{path}.topologyRequest")


def _requests_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Requests and limits, of containers and of the pod, are valid amounts of resources other than pods."""
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            if resources := container.get("resources"):
                yield from _resources_faults(resources, f"{path}.{field}[{i}].resources")
    if resources := spec.get("resources"):
        yield from _resources_faults(resources, f"{path}.resources")


def _resources_faults(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Requests and limits are not negative, and no resource is named pods."""
    for field in ("requests", "limits"):
        for name, value in (resources.get(field) or {}).items():
            if name == "pods":
                message = "the key is reserved for internal kueue use"
                yield rules.invalid(f"{path}.{field}[{name}]", name, message, "drop it: pods are counted by themselves")
            amount = rules.nano(value)
            if amount is None or amount < 0:
                yield from rules.amount_faults(value, f"{path}.{field}[{name}]")


def _topology_request_faults(request: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A slice has both topology and size or neither, and sizes are positive."""
    topology, size = request.get("podSetSliceRequiredTopology"), request.get("podSetSliceSize")
    if topology is not None and size is None:
        message = "must be set when podSetSliceRequiredTopology is specified"
        yield rules.required(f"{path}.podSetSliceSize", message, "say how many pods a slice has")
    elif topology is None and size is not None:
        message = "may not be set when podSetSliceRequiredTopology is not specified"
        yield rules.forbidden(f"{path}.podSetSliceSize", message, "drop it, or give podSetSliceRequiredTopology")
    elif size is not None and size <= 0:
        yield rules.invalid(f"{path}.podSetSliceSize", size, "must be greater than 0", "give 1 or more")
    for i, constraint in enumerate(request.get("podsetSliceRequiredTopologyConstraints") or ()):
        if constraint["size"] <= 0:
            at = f"{path}.podsetSliceRequiredTopologyConstraints[{i}].size"
            yield rules.invalid(at, constraint["size"], "must be greater than 0", "give 1 or more")


def _class_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """The kind of a priority class matches its group, and its value is in the Workload."""
    reference = spec.get("priorityClassRef")
    if reference is None:
        return
    if spec.get("priority") is None:
        message = "priority should not be nil when priorityClassRef is set"
        yield rules.broken_rule("spec", "object", message, "give spec.priority, the value of the class")
    expected = _CLASS_KINDS.get(reference["group"])
    if expected and reference["kind"] != expected:
        message = f"only the {expected} kind is allowed for the {reference['group']} group"
        yield rules.broken_rule(_CLASS, "object", message, f"use the kind {expected}")


def _pod_set_update_faults(new: Sequence[Any], old: Sequence[Any]) -> Iterator[FieldError]:
    """While quota is reserved, pod sets are immutable, except that they may shrink."""
    remedy = "wait until the Workload is evicted, or deactivate it first"
    if len(new) != len(old):
        yield rules.immutable(_POD_SETS, f"{len(new)} podSets", remedy)
        return
    meaning = meaning_of(scheme.WORKLOAD)
    for i, (after, before) in enumerate(zip(new, old, strict=True)):
        shrunk = after.get("count", 1) < before.get("count", 1)
        kept = {**before, "count": after.get("count", 1)} if shrunk else before
        if not meaning.is_same(_POD_SET_TYPE, after, kept):
            yield rules.immutable(f"{_POD_SETS}.{i}", after, remedy)  # Kueue writes this one path with a dot


def _class_update_faults(new: Mapping[str, Any] | None, old: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """While quota is reserved, only a WorkloadPriorityClass may be replaced."""
    remedy, while_reserved = "wait until the Workload is evicted", "is immutable while workload quota reserved"
    if new is None or old is None:
        if new != old:
            yield rules.broken_rule("", "object", f"priorityClassRef {while_reserved}", remedy)
        return
    for field in ("group", "kind"):
        if new[field] != old[field]:
            yield rules.broken_rule("", "object", f"priorityClassRef.{field} {while_reserved}", remedy)
    if new["kind"] == "PriorityClass" and new["name"] != old["name"]:
        subject = "priorityClassRef.name is immutable for scheduling.k8s.io/priorityclass"
        yield rules.broken_rule("", "object", f"{subject} while workload quota reserved", remedy)


def _kept(new: Mapping[str, Any], old: Mapping[str, Any], field: str, absent: object) -> Iterator[FieldError]:
    """A field of the spec is immutable while quota is reserved."""
    before, after = old["spec"].get(field, absent), new["spec"].get(field, absent)
    if before != after:
        message = f"{field} is immutable while workload quota reserved"
        yield rules.broken_rule("", "object", message, f"keep {field}, or wait until the Workload is evicted")
