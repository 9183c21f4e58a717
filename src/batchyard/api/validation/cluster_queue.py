"""Rules of ClusterQueues.

Source: Kueue's ClusterQueue webhook and the rules in its CRD.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, quotas

_CHECKS: Final = "spec.admissionChecksStrategy.admissionChecks"
_POLICY: Final = "spec.concurrentAdmissionPolicy"
_PREFERRED: Final = "TryPreferredFlavors"


def cluster_queue_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ClusterQueue."""
    yield from _spec_faults(queue)
    yield from _on_flavors_faults(queue.get("spec") or {}, {})


def cluster_queue_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ClusterQueue.

    References to missing flavors that were stored before the rule existed may stay, as upstream lets them.
    """
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    yield from _spec_faults(new)
    kept = _on_flavors(old_spec) if _flavors(spec).keys() == _flavors(old_spec).keys() else {}
    yield from _on_flavors_faults(spec, kept)
    if spec.get("concurrentAdmissionPolicy") != old_spec.get("concurrentAdmissionPolicy"):
        yield faults.immutable(_POLICY, spec.get("concurrentAdmissionPolicy"))


def _spec_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """What holds of new and changed ClusterQueues alike."""
    spec = queue.get("spec") or {}
    groups = spec.get("resourceGroups") or ()
    yield from metadata.metadata_faults(queue)
    yield from quotas.group_faults(groups, kind="ClusterQueue", parent=spec.get("cohortName") or "")
    yield from metadata.selector_faults(spec.get("namespaceSelector"), "spec.namespaceSelector")
    yield from _preemption_faults(spec.get("preemption") or {})
    yield from _fungibility_faults(spec.get("flavorFungibility") or {})
    yield from quotas.fair_sharing_faults(spec.get("fairSharing"))
    yield from quotas.total_faults(groups)
    yield from _concurrent_admission_faults(spec)


def _flavors(spec: Mapping[str, Any]) -> dict[str, None]:
    """The flavors of a ClusterQueue, in its order."""
    return {flavor["name"]: None for group in spec.get("resourceGroups") or () for flavor in group["flavors"]}


def _checks(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rules of the admission check strategy."""
    return (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []


def _on_flavors(spec: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The flavors of each admission check."""
    return {check["name"]: frozenset(check.get("onFlavors") or ()) for check in _checks(spec)}


def _on_flavors_faults(spec: Mapping[str, Any], kept: Mapping[str, frozenset[str]]) -> Iterator[FieldError]:
    """An admission check is for flavors that the ClusterQueue has."""
    flavors = _flavors(spec)
    for i, check in enumerate(_checks(spec)):
        on_flavors = check.get("onFlavors") or ()
        if kept.get(check["name"]) == frozenset(on_flavors):
            continue
        for j, flavor in enumerate(on_flavors):
            if flavor not in flavors:
                yield faults.unsupported(f"{_CHECKS}[{i}].onFlavors[{j}]", flavor, flavors)


def _preemption_faults(preemption: Mapping[str, Any]) -> Iterator[FieldError]:
    """Who reclaims nothing cannot preempt while borrowing."""
    borrowing = (preemption.get("borrowWithinCohort") or {}).get("policy", "Never")
    if preemption.get("reclaimWithinCohort", "Never") == "Never" and borrowing != "Never":
        message = "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"
        remedy = "set reclaimWithinCohort to LowerPriority or Any, or borrowWithinCohort.policy to Never"
        yield faults.broken_rule("spec.preemption", "object", message, remedy)


def _fungibility_faults(fungibility: Mapping[str, Any]) -> Iterator[FieldError]:
    """A preference matters only where the search for flavors goes on."""
    both = (fungibility.get("whenCanBorrow"), fungibility.get("whenCanPreempt"))
    if fungibility.get("preference") and both != ("TryNextFlavor", "TryNextFlavor"):
        message = "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"
        remedy = "set both to TryNextFlavor, or drop the preference"
        yield faults.broken_rule("spec.flavorFungibility", "object", message, remedy)


def _concurrent_admission_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """Racing flavors needs one group of at most 16 of them, and a queue that is not strict."""
    policy = spec.get("concurrentAdmissionPolicy")
    if not policy:
        return
    groups: Sequence[Mapping[str, Any]] = spec.get("resourceGroups") or ()
    if len(groups) != 1:
        message = "must have exactly one ResourceGroup when ConcurrentAdmissionPolicy is defined"
        yield faults.invalid(quotas.PATH, len(groups), message, "leave one group, or drop concurrentAdmissionPolicy")
    elif len(groups[0]["flavors"]) > 16:
        message = (
            "cannot have more than 16 resource flavors in the ResourceGroup when ConcurrentAdmissionPolicy is defined"
        )
        count = len(groups[0]["flavors"])
        yield faults.invalid(f"{quotas.PATH}[0].flavors", count, message, "leave at most 16 flavors")
    yield from _constraint_faults(policy["migration"], _flavors(spec))
    if spec.get("queueingStrategy") == "StrictFIFO":
        message = "StrictFIFO queueing strategy cannot be used when ConcurrentAdmissionPolicy is defined"
        yield faults.invalid("spec.queueingStrategy", "StrictFIFO", message, "use BestEffortFIFO")


def _constraint_faults(migration: Mapping[str, Any], flavors: Mapping[str, None]) -> Iterator[FieldError]:
    """Only migrations to preferred flavors have constraints, and these name flavors of the ClusterQueue."""
    constraints, mode = migration.get("constraints"), migration.get("mode")
    if constraints is None:
        return
    path = f"{_POLICY}.migration.constraints"
    if mode and mode != _PREFERRED:
        message = f'may only be set when migration.mode is "{_PREFERRED}" (got "{mode}")'
        yield faults.forbidden(path, message, f"drop the constraints, or set the mode to {_PREFERRED}")
        return
    last = constraints.get("lastAcceptableFlavorName")
    if last is not None and last not in flavors:
        choice = " ".join(flavors)
        message = f"must be one of the flavors defined in the ClusterQueue: [{choice}]"
        yield faults.invalid(f"{path}.lastAcceptableFlavorName", last, message, f"use one of {choice or 'its flavors'}")
