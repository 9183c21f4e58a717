"""Rules of ClusterQueues.

Source: Kueue's ClusterQueue webhook at its default feature gates, and the rules in its CRD.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, quotas

WEBHOOK: Final = "vclusterqueue.kb.io"
_CHECKS: Final = "spec.admissionChecksStrategy.admissionChecks"


def cluster_queue_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ClusterQueue."""
    yield from metadata.metadata_faults(queue)
    yield from faults.denied_by(WEBHOOK, _spec_faults(queue))
    yield from faults.denied_by(WEBHOOK, _on_flavors_faults(queue.get("spec") or {}, {}))


def cluster_queue_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ClusterQueue.

    References to missing flavors that were stored before the rule existed may stay, as upstream lets them.
    """
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    yield from metadata.metadata_faults(new)
    yield from faults.denied_by(WEBHOOK, _spec_faults(new))
    kept = _on_flavors(old_spec) if _flavors(spec).keys() == _flavors(old_spec).keys() else {}
    yield from faults.denied_by(WEBHOOK, _on_flavors_faults(spec, kept))
    if spec.get("concurrentAdmissionPolicy") != old_spec.get("concurrentAdmissionPolicy"):
        kept_policy = faults.immutable("spec.concurrentAdmissionPolicy", spec.get("concurrentAdmissionPolicy"))
        yield from faults.denied_by(WEBHOOK, [kept_policy])


def _spec_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """What holds of new and changed ClusterQueues alike."""
    spec = queue.get("spec") or {}
    groups = spec.get("resourceGroups") or ()
    yield from quotas.group_faults(groups, kind="ClusterQueue", parent=spec.get("cohortName") or "")
    yield from metadata.selector_faults(spec.get("namespaceSelector"), "spec.namespaceSelector")
    yield from _preemption_faults(spec.get("preemption") or {})
    yield from _fungibility_faults(spec.get("flavorFungibility") or {})
    yield from quotas.fair_sharing_faults(spec.get("fairSharing"))
    yield from quotas.total_faults(groups)


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
