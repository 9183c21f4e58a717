"""Rules of quotas and shares, which ClusterQueues and Cohorts have in common.

Source: Kueue's ClusterQueue and Cohort webhooks and the rules in their CRDs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import amounts, faults, metadata

Groups = Sequence[Mapping[str, Any]]
PATH: Final = "spec.resourceGroups"


def group_faults(groups: Groups, *, kind: str, parent: str) -> Iterator[FieldError]:
    """All rules of `spec.resourceGroups`.

    `kind` is what lends or borrows, `parent` its cohort or parent cohort, '' where it has none.
    """
    resources: dict[str, str] = {}
    flavors: dict[str, str] = {}
    for i, group in enumerate(groups):
        path = f"{PATH}[{i}]"
        yield from _covered_faults(group["coveredResources"], path, resources)
        if any(len(flavor["resources"]) != len(group["coveredResources"]) for flavor in group["flavors"]):
            message = "flavors must have the same number of resources as the coveredResources"
            remedy = f"give each flavor exactly these resources: {', '.join(group['coveredResources'])}"
            yield faults.broken_rule(path, "object", message, remedy)
        for j, flavor in enumerate(group["flavors"]):
            at = f"{path}.flavors[{j}]"
            yield from _flavor_faults(flavor, group["coveredResources"], at, kind=kind, parent=parent)
            yield from _taken(f"{at}.name", flavor["name"], flavors, "a flavor belongs to one group only")


def _covered_faults(covered: Sequence[str], path: str, seen: dict[str, str]) -> Iterator[FieldError]:
    """Covered resources are resource names, each in one group only."""
    for j, resource in enumerate(covered):
        at = f"{path}.coveredResources[{j}]"
        yield from metadata.label_key_faults(resource, at)
        yield from _taken(at, resource, seen, "a resource belongs to one group only")


def _taken(path: str, name: str, seen: dict[str, str], rule: str) -> Iterator[FieldError]:
    """A name that was seen before; notes it otherwise."""
    if name in seen:
        yield faults.duplicate(path, name, f"drop it here: {rule}, and {name} is at {seen[name]} already")
    else:
        seen[name] = path


def _flavor_faults(
    flavor: Mapping[str, Any], covered: Sequence[str], path: str, *, kind: str, parent: str
) -> Iterator[FieldError]:
    """A flavor's resources are those covered, in the same order, with quotas that make sense."""
    for i, (quota, expected) in enumerate(zip(flavor["resources"], covered, strict=False)):
        at = f"{path}.resources[{i}]"
        if quota["name"] != expected:
            message = "must match the name in coveredResources"
            remedy = f"put {expected} here: resources stand in the order of coveredResources"
            yield faults.invalid(f"{at}.name", quota["name"], message, remedy)
        for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
            if (value := quota.get(field)) is not None:
                yield from amounts.amount_faults(value, f"{at}.{field}")
        if not parent:
            yield from _limit_faults(quota, at, kind)
        yield from _lending_faults(quota, at, kind)


def _limit_faults(quota: Mapping[str, Any], path: str, kind: str) -> Iterator[FieldError]:
    """Nobody borrows or lends alone."""
    absent, remedy = {
        "ClusterQueue": ("cohort", "drop the limit, or give spec.cohortName"),
        "Cohort": ("parent", "drop the limit, or give spec.parentName"),
    }[kind]
    for field in ("borrowingLimit", "lendingLimit"):
        if (value := quota.get(field)) is not None:
            message = f"must be nil when {absent} is empty"
            yield faults.invalid(f"{path}.{field}", amounts.shown(value), message, remedy)


def _lending_faults(quota: Mapping[str, Any], path: str, kind: str) -> Iterator[FieldError]:
    """A ClusterQueue lends no more than it has; a Cohort may lend what its members have."""
    limit, nominal = quota.get("lendingLimit"), quota.get("nominalQuota", 0)
    if kind == "ClusterQueue" and limit is not None and amounts.exceeds(limit, nominal):
        message = "must be less than or equal to the nominalQuota"
        remedy = f"give at most {amounts.shown(nominal)}"
        yield faults.invalid(f"{path}.lendingLimit", amounts.shown(limit), message, remedy)


def total_faults(groups: Groups) -> Iterator[FieldError]:
    """A ClusterQueue has at most 256 flavors, 256 resources, and 512 pairs of them in a group."""
    for what, field in (("flavors", "flavors"), ("covered resources", "coveredResources")):
        total = sum(len(group[field]) for group in groups)
        if total > 256:
            message = f"total number of {what} across all resourceGroups must be ≤ 256, got {total}"
            yield faults.invalid(PATH, total, message, f"spread the {what} over several ClusterQueues of one cohort")
    for i, group in enumerate(groups):
        pairs = sum(len(flavor["resources"]) for flavor in group["flavors"])
        if pairs > 512:
            message = f"number of flavor-resource combinations in a resourceGroup must be ≤ 512, got {pairs}"
            yield faults.invalid(f"{PATH}[{i}]", pairs, message, "spread the flavors over several ClusterQueues")


def fair_sharing_faults(fair_sharing: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """A weight is 0 or more, and not so small that a share divided by it has no meaning."""
    weight = (fair_sharing or {}).get("weight")
    if weight is None:
        return
    yield from amounts.amount_faults(weight, "spec.fairSharing")
    if amounts.nano(weight) == 1:
        message = "When not 0, weight must be > 10e-9"
        yield faults.invalid("spec.fairSharing", amounts.shown(weight), message, "give 0, or more than 1n")
