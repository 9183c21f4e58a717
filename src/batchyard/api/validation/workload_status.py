"""Rules of a Workload's status: admission, reclaimable pods, admission checks, clusters.

Source: Kueue's Workload webhook at its default feature gates, and the rules in its CRD.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import quantity, scheme
from batchyard.api.annotations import is_elastic
from batchyard.api.conditions import is_true
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.schema import meaning_of
from batchyard.api.validation import amounts, conditions, faults, metadata, tolerations, topology_assignment

_ADMISSION_TYPE: Final = "Workload.status.admission"
_CHECK_TYPE: Final = "Workload.status.admissionChecks"
_ADMISSION: Final = "status.admission"
_CHECKS: Final = "status.admissionChecks"
_RECLAIMABLE: Final = "status.reclaimablePods"


def status_faults(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """All rules of a status; `old` is the Workload before the change, None where it is new."""
    status = workload.get("status") or {}
    if is_true(workload, "QuotaReserved"):
        yield from _admission_faults(workload, old)
    yield from conditions.condition_faults(status.get("conditions") or (), "status.conditions")
    yield from _reclaimable_faults(workload, old)
    for i, check in enumerate(status.get("admissionChecks") or ()):
        yield from _check_faults(check, _sizes(workload), f"{_CHECKS}[{i}].podSetUpdates")
    if status.get("clusterName") is not None and status.get("nominatedClusterNames"):
        message = "clusterName and nominatedClusterNames are mutually exclusive"
        yield faults.broken_rule("status", "object", message, "drop nominatedClusterNames once a cluster is chosen")
    if old is not None and old.get("status"):
        yield from _update_faults(workload, old)


def _update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """What was decided stays decided until it is taken back as a whole."""
    if is_true(new, "QuotaReserved") and is_true(old, "QuotaReserved"):
        yield from _reclaimable_update_faults(new, old)
    status, before = new.get("status") or {}, old["status"]
    yield from _admission_update_faults(status.get("admission"), before.get("admission"))
    ready = {check["name"]: check for check in status.get("admissionChecks") or () if check["state"] == "Ready"}
    for i, check in enumerate(before.get("admissionChecks") or ()):
        now = ready.get(check["name"]) if check["state"] == "Ready" else None
        if now is not None and not meaning_of(scheme.WORKLOAD).is_same_field(_CHECK_TYPE, "podSetUpdates", now, check):
            yield faults.immutable(f"{_CHECKS}[{i}].podSetUpdates", now.get("podSetUpdates"), "keep it while Ready")


def _sizes(workload: Obj) -> dict[str, int]:
    """Counts by the names of the pod sets."""
    pod_sets = (workload.get("spec") or {}).get("podSets") or ()
    return {pod_set.get("name", "main"): pod_set.get("count", 1) for pod_set in pod_sets}


def _admission_faults(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Reserved quota is assigned to each pod set. One that was without before may stay, so that it can be removed."""
    admission = workload["status"].get("admission")
    if admission is None:
        was_so = old and is_true(old, "QuotaReserved") and not (old.get("status") or {}).get("admission")
        if not was_so:
            message = "must be set while the QuotaReserved condition is true"
            yield faults.required(_ADMISSION, message, "give the admission, or set QuotaReserved to False")
        return
    sizes, assignments = _sizes(workload), admission.get("podSetAssignments") or ()
    if len(assignments) != len(sizes):
        message = "podSetAssignments must have the same number of podSets as the spec"
        yield faults.broken_rule("", "object", message, f"assign each of the {len(sizes)} podSets of the spec")
    for i, assignment in enumerate(assignments):
        yield from _assignment_faults(assignment, sizes, f"{_ADMISSION}.podSetAssignments[{i}]")


def _assignment_faults(assignment: Obj, sizes: Mapping[str, int], path: str) -> Iterator[FieldError]:
    """An assignment is for a pod set of the spec, and each of its pods uses a whole amount."""
    name, count = assignment.get("name", "main"), assignment.get("count") or 0
    if name not in sizes:
        yield faults.not_found(f"{path}.name", name, f"use the name of a podSet: {', '.join(sizes)}")
    for resource, value in (assignment.get("resourceUsage") or {}).items():
        if count > 0 and amounts.nano(value) is not None and quantity.amount(resource, value) % count:
            at = f"{path}.resourceUsage[{resource}]"
            remedy = "give what one pod uses, times the count"
            yield faults.invalid(at, amounts.shown(value), f"is not a multiple of {count}", remedy)
    if topology := assignment.get("topologyAssignment"):
        yield from topology_assignment.assignment_faults(topology, f"{path}.topologyAssignment")


def _reclaimable_faults(workload: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Reclaimable pods are pods of the spec; counts left over from before an elastic Workload shrank may stay."""
    reclaimable = (workload.get("status") or {}).get("reclaimablePods") or ()
    sizes = _sizes(workload) if reclaimable else {}
    stale = _reclaimable_counts(old) if old is not None and is_elastic(workload) else {}
    for pods in reclaimable:
        at, name, count = f"{_RECLAIMABLE}[{pods['name']}]", pods["name"], pods.get("count", 0)
        if name not in sizes:
            yield faults.unsupported(f"{at}.name", name, sizes)
        elif count > sizes[name] and stale.get(name) != count:
            message = f"should be less or equal to {sizes[name]}"
            yield faults.invalid(f"{at}.count", count, message, f"give at most {sizes[name]}")


def _reclaimable_counts(workload: Obj) -> dict[str, int]:
    """Reclaimable counts by pod set."""
    return {p["name"]: p.get("count", 0) for p in (workload.get("status") or {}).get("reclaimablePods") or ()}


def _reclaimable_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Pods given back stay given back, but where an elastic Workload shrank."""
    before, after = _reclaimable_counts(old), _reclaimable_counts(new)
    shrunk = _shrunk(new)
    for name, count in after.items():
        if count < before.get(name, 0) and name not in shrunk:
            at = f"{_RECLAIMABLE}[{name}].count"
            yield faults.invalid(at, count, f"cannot be less than {before[name]}", f"give at least {before[name]}")
    for name in before:
        if name not in after and name not in shrunk:
            yield faults.required(f"{_RECLAIMABLE}[{name}]", "cannot be removed", f"keep it, at {before[name]} or more")


def _shrunk(workload: Obj) -> dict[str, None]:
    """The pod sets of an elastic Workload that are smaller now than at admission."""
    admission = (workload.get("status") or {}).get("admission")
    if not admission or not is_elastic(workload):
        return {}
    sizes = _sizes(workload)
    assignments = {a.get("name", "main"): a.get("count") or 0 for a in admission.get("podSetAssignments") or ()}
    return {name: None for name, count in assignments.items() if count > sizes.get(name, 0)}


def _check_faults(check: Obj, sizes: Mapping[str, int], path: str) -> Iterator[FieldError]:
    """An admission check changes pod sets of the spec, with valid labels, annotations and tolerations."""
    for i, update in enumerate(check.get("podSetUpdates") or ()):
        at = f"{path}[{i}]"
        if update["name"] not in sizes:
            yield faults.unsupported(f"{at}.name", update["name"], sizes)
        yield from tolerations.toleration_faults(update.get("tolerations") or (), f"{at}.tolerations")
        yield from metadata.annotation_faults(update.get("annotations"), f"{at}.annotations")
        yield from metadata.label_faults(update.get("nodeSelector"), f"{at}.nodeSelector")
        yield from metadata.label_faults(update.get("labels"), f"{at}.labels")


def _admission_update_faults(new: Obj | None, old: Obj | None) -> Iterator[FieldError]:
    """An admission is set or taken back, never changed; only pods find their places in the topology later."""
    if new is None or old is None:
        return
    if not meaning_of(scheme.WORKLOAD).is_same(_ADMISSION_TYPE, _placeless(new), _placeless(old)):
        yield faults.immutable(
            _ADMISSION, new, "evict the Workload first: an admission is set and unset, never changed"
        )


def _placeless(admission: Obj) -> dict[str, Any]:
    """An admission without the places of its pods."""
    assignments: Sequence[Obj] = admission.get("podSetAssignments") or ()
    hidden = ("topologyAssignment", "delayedTopologyRequest")
    kept = [{field: value for field, value in a.items() if field not in hidden} for a in assignments]
    return {**admission, "podSetAssignments": kept}


def cluster_name_update_faults(new: Obj, old: Obj, *, replaces: bool) -> Iterator[FieldError]:
    """A Workload goes to a cluster that was nominated, once; a slice that replaces another goes where that was."""
    after, before = ((obj.get("status") or {}).get("clusterName") for obj in (new, old))
    if after is None or after == before:
        return
    if before is not None:
        yield faults.broken_rule("status", "object", "clusterName is immutable once set", f"keep {before}")
    elif not replaces and after not in ((old.get("status") or {}).get("nominatedClusterNames") or ()):
        message = "when setting clusterName it must be one of the nominatedClusterNames"
        yield faults.invalid("status.clusterName", after, message, "nominate the cluster first")
