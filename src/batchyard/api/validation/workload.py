"""Rules of Workloads: what is asked for. Those of their status are in workload_status.

Source: Kueue's Workload webhook at its default feature gates, and the rules in its CRD.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.annotations import is_elastic
from batchyard.api.conditions import is_true
from batchyard.api.errors import FieldError
from batchyard.api.schema import meaning_of
from batchyard.api.validation import admission_gates, amounts, faults, metadata, workload_status

_WEBHOOK: Final = "vworkload.kb.io"
_POD_SETS: Final = "spec.podSets"
_POD_SET_TYPE: Final = "Workload.spec.podSets"
_CLASS: Final = "spec.priorityClassRef"
_CLASS_KINDS: Final = {"scheduling.k8s.io": "PriorityClass", "kueue.x-k8s.io": "WorkloadPriorityClass"}


def workload_faults(workload: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Workload."""
    yield from metadata.metadata_faults(workload)
    yield from faults.denied_by(_WEBHOOK, _spec_faults(workload))
    if workload.get("status"):
        yield from faults.denied_by(_WEBHOOK, workload_status.status_faults(workload, None))


def workload_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Workload: what quota was reserved for stays."""
    yield from metadata.metadata_faults(new)
    yield from faults.denied_by(_WEBHOOK, _change_faults(new, old))


def workload_status_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Workload of which the status alone is changed."""
    yield from faults.denied_by(_WEBHOOK, _status_change_faults(new, old))


def _status_change_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from workload_status.status_faults(new, old)
    replaces = well_known.REPLACEMENT_FOR in (new["metadata"].get("annotations") or {})
    yield from workload_status.cluster_name_update_faults(new, old, replaces=replaces)


def _change_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """What may not become of a Workload."""
    yield from _spec_faults(new)
    yield from _status_change_faults(new, old)
    yield from admission_gates.gate_update_faults(new, old)
    if is_true(old, "QuotaReserved"):
        yield from _pod_set_update_faults(new["spec"].get("podSets") or (), old["spec"].get("podSets") or ())
        yield from _class_update_faults(new["spec"].get("priorityClassRef"), old["spec"].get("priorityClassRef"))
        if is_true(new, "QuotaReserved"):
            yield from _kept(new, old, "queueName", None)
    if is_true(old, "Admitted") and is_true(new, "Admitted"):
        yield from _kept(new, old, "maximumExecutionTimeSeconds", 0)


def _spec_faults(workload: Mapping[str, Any]) -> Iterator[FieldError]:
    """What is asked for, and in what order."""
    spec = workload.get("spec") or {}
    variable, seen = 0, {}
    for i, pod_set in enumerate(spec.get("podSets") or ()):
        yield from _pod_set_faults(pod_set, f"{_POD_SETS}[{i}]")
        variable += pod_set.get("minCount") is not None
        if (name := pod_set.get("name", "main")) in seen:
            yield faults.duplicate(f"{_POD_SETS}[{i}].name", name, "give each podSet a name of its own")
        seen[name] = i
    if variable > 1:
        remedy = "leave minCount on one podSet"
        yield faults.invalid(_POD_SETS, variable, "at most one podSet can use minCount", remedy)
    if variable and is_elastic(workload):
        message = "partial admission and elastic job cannot be used together"
        yield faults.invalid(_POD_SETS, variable, message, f"drop minCount, or the annotation {well_known.ELASTIC_JOB}")
    yield from _class_faults(spec)
    yield from admission_gates.gate_faults(workload)


def _pod_set_faults(pod_set: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A pod set's counts, labels and requests."""
    template, least, count = pod_set["template"], pod_set.get("minCount"), pod_set.get("count", 1)
    if least is not None and least > count:
        message = "minCount should be positive and less or equal to count"
        yield faults.broken_rule(path, "object", message, f"give minCount from 1 to {count}")
    if meta := template.get("metadata"):
        yield from metadata.label_faults(meta.get("labels"), f"{path}.template.metadata.labels")
        yield from metadata.annotation_faults(meta.get("annotations"), f"{path}.template.metadata.annotations")
    if spec := template.get("spec"):
        yield from _requests_faults(spec, f"{path}.template.spec")
    if request := pod_set.get("topologyRequest"):
        yield from _topology_request_faults(request, f"{path}.topologyRequest")


def _requests_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Requests and limits, of containers and of the pod, are amounts of resources other than pods."""
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            if resources := container.get("resources"):
                yield from _resources_faults(resources, f"{path}.{field}[{i}].resources")
    if resources := spec.get("resources"):
        yield from _resources_faults(resources, f"{path}.resources")


def _resources_faults(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Requests and limits are not negative, and none of them is called pods."""
    for field in ("requests", "limits"):
        for name, value in (resources.get(field) or {}).items():
            if name == "pods":
                message = "the key is reserved for internal kueue use"
                yield faults.invalid(
                    f"{path}.{field}[{name}]", name, message, "drop it: pods are counted by themselves"
                )
            amount = amounts.nano(value)
            if amount is None or amount < 0:
                yield from amounts.amount_faults(value, f"{path}.{field}[{name}]")


def _topology_request_faults(request: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A slice has a topology and a size, both or neither, and sizes are positive."""
    topology, size = request.get("podSetSliceRequiredTopology"), request.get("podSetSliceSize")
    if topology is not None and size is None:
        message = "must be set when podSetSliceRequiredTopology is specified"
        yield faults.required(f"{path}.podSetSliceSize", message, "say how many pods a slice has")
    elif topology is None and size is not None:
        message = "may not be set when podSetSliceRequiredTopology is not specified"
        yield faults.forbidden(f"{path}.podSetSliceSize", message, "drop it, or give podSetSliceRequiredTopology")
    elif size is not None and size <= 0:
        yield faults.invalid(f"{path}.podSetSliceSize", size, "must be greater than 0", "give 1 or more")
    for i, constraint in enumerate(request.get("podsetSliceRequiredTopologyConstraints") or ()):
        if constraint["size"] <= 0:
            at = f"{path}.podsetSliceRequiredTopologyConstraints[{i}].size"
            yield faults.invalid(at, constraint["size"], "must be greater than 0", "give 1 or more")


def _class_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """A priority class is of the kind of its group, and its value is in the Workload."""
    reference = spec.get("priorityClassRef")
    if reference is None:
        return
    if spec.get("priority") is None:
        message = "priority should not be nil when priorityClassRef is set"
        yield faults.broken_rule("spec", "object", message, "give spec.priority, the value of the class")
    expected = _CLASS_KINDS.get(reference["group"])
    if expected and reference["kind"] != expected:
        message = f"only the {expected} kind is allowed for the {reference['group']} group"
        yield faults.broken_rule(_CLASS, "object", message, f"use the kind {expected}")


def _pod_set_update_faults(new: Sequence[Any], old: Sequence[Any]) -> Iterator[FieldError]:
    """While quota is reserved pod sets stay as they are; they may only shrink."""
    remedy = "wait until the Workload is evicted, or deactivate it first"
    if len(new) != len(old):
        yield faults.immutable(_POD_SETS, f"{len(new)} podSets", remedy)
        return
    meaning = meaning_of(scheme.WORKLOAD)
    for i, (after, before) in enumerate(zip(new, old, strict=True)):
        shrunk = after.get("count", 1) < before.get("count", 1)
        kept = {**before, "count": after.get("count", 1)} if shrunk else before
        if not meaning.is_same(_POD_SET_TYPE, after, kept):
            yield faults.immutable(f"{_POD_SETS}.{i}", after, remedy)  # as Kueue writes this one path


def _class_update_faults(new: Mapping[str, Any] | None, old: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """While quota is reserved only a WorkloadPriorityClass may be swapped for another."""
    remedy, while_reserved = "wait until the Workload is evicted", "is immutable while workload quota reserved"
    if new is None or old is None:
        if new != old:
            yield faults.broken_rule("", "object", f"priorityClassRef {while_reserved}", remedy)
        return
    for field in ("group", "kind"):
        if new[field] != old[field]:
            yield faults.broken_rule("", "object", f"priorityClassRef.{field} {while_reserved}", remedy)
    if new["kind"] == "PriorityClass" and new["name"] != old["name"]:
        subject = "priorityClassRef.name is immutable for scheduling.k8s.io/priorityclass"
        yield faults.broken_rule("", "object", f"{subject} while workload quota reserved", remedy)


def _kept(new: Mapping[str, Any], old: Mapping[str, Any], field: str, absent: object) -> Iterator[FieldError]:
    """A field of the spec that must not change now."""
    before, after = old["spec"].get(field, absent), new["spec"].get(field, absent)
    if before != after:
        message = f"{field} is immutable while workload quota reserved"
        yield faults.broken_rule("", "object", message, f"keep {field}, or wait until the Workload is evicted")
