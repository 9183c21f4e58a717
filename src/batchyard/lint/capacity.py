"""The lint rule `quota-above-capacity`: reports quota of a flavor that exceeds the capacity of its machines."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, format_amount
from batchyard.base.counts import count_with_noun
from batchyard.lint.findings import RuleResult
from batchyard.lint.linted_manifests import LintedManifests, MachineGroup
from batchyard.scheduling.quota import QuotaNode

# The maximum amount of a flavor-resource that a tree of queues can use at the same time.


class QuotaDemand(NamedTuple):
    """How much of a flavor-resource a cohort subtree can use: quota that it does not lend, and quota of its parent.

    `from_parent` is None if the use of the parent's quota is unlimited.
    """

    from_retained: int
    from_parent: int | None


def max_concurrent_usage(root: QuotaNode, fr: int, active_leaves: Container[QuotaNode]) -> int:
    """Return how much of a flavor-resource pair the ClusterQueues `active_leaves` of a cohort tree can use at once.

    `fr` is the id of the flavor-resource pair.
    """
    if not root.children:
        return root.subtree_quota[fr] if root in active_leaves else 0
    demands = [_quota_demand(child, fr, active_leaves) for child in root.children.values()]
    return sum(each.from_retained for each in demands) + _limit_demand(
        root.subtree_quota[fr], _total_demand_from_parent(demands)
    )


def _quota_demand(node: QuotaNode, fr: int, active_leaves: Container[QuotaNode]) -> QuotaDemand:
    if not node.children:
        return (
            QuotaDemand(node.local_quota[fr], node.borrowing_ceiling[fr])
            if node in active_leaves
            else QuotaDemand(0, 0)
        )
    demands = [_quota_demand(child, fr, active_leaves) for child in node.children.values()]
    total_demand = _total_demand_from_parent(demands)
    local_use = _limit_demand(node.local_quota[fr], total_demand)
    excess_demand = None if total_demand is None else total_demand - local_use
    borrowing_ceiling = node.borrowing_ceiling[fr]
    from_parent = excess_demand if borrowing_ceiling is None else _limit_demand(borrowing_ceiling, excess_demand)
    return QuotaDemand(sum(demand.from_retained for demand in demands) + local_use, from_parent)


def _total_demand_from_parent(demands: list[QuotaDemand]) -> int | None:
    total_demand = 0
    for demand in demands:
        if demand.from_parent is None:
            return None
        total_demand += demand.from_parent
    return total_demand


def _limit_demand(limit: int, demand: int | None) -> int:
    return limit if demand is None else min(limit, demand)


class QuotaDeclaration(NamedTuple):
    """A nominalQuota in a manifest: the manifest of the ClusterQueue or Cohort, the field path and the amount."""

    manifest: Manifest
    path: str
    nominal: int


def quota_above_capacity(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each flavor-resource whose usable quota exceeds the capacity of the flavor's machines.

    Flavors without machines and the resource `pods` are not checked.
    """
    if not linted.inventory.is_known:
        return
    for fr, (flavor, resource) in enumerate(linted.snapshot.flavor_resource_names):
        if flavor not in linted.flavors or resource == "pods":
            continue
        labels = linted.flavors[flavor][1].labels
        machine_groups = linted.inventory.machines_for(linted.flavors[flavor][1])
        can_create_pools = linted.can_create_pools_for(flavor)
        available_amount = sum(group.total_allocatable(resource) for group in machine_groups)
        available_amount += linted.inventory.max_creatable_amount(resource, labels) if can_create_pools else 0
        admissible = max_admissible_amount(linted, fr, flavor)
        if (machine_groups or can_create_pools) and admissible > available_amount:
            yield from _report_over_capacity(linted, (flavor, resource), (admissible, available_amount), machine_groups)


def max_admissible_amount(linted: LintedManifests, fr: int, flavor: str) -> int:
    """Return how much of the flavor-resource `fr`, which belongs to `flavor`, can be in use at once.

    ClusterQueues with an AdmissionCheck that requests machines for the flavor do not count.
    """
    snapshot = linted.snapshot

    def may_use_flavor(node: QuotaNode) -> bool:
        view = snapshot.queue_of[node].view
        return flavor in view.flavors and not linted.creates_provisioning_requests(view, flavor)

    active_leaves = {node: None for node in snapshot.queue_of if may_use_flavor(node)}
    root_nodes = {node.path[0]: None for node in active_leaves}
    return sum(max_concurrent_usage(root, fr, active_leaves) for root in root_nodes)


def quota_declarations_of(linted: LintedManifests, flavor: str, resource: str) -> list[QuotaDeclaration]:
    """Return all nominal quotas above 0 of a resource in a flavor: ClusterQueues first, then Cohorts."""
    return [
        QuotaDeclaration(
            manifest, f"spec.resourceGroups[{index}].flavors[{group.flavors.index(flavor)}]", quota.nominal
        )
        for manifest, groups in linted.resource_groups
        for index, group in enumerate(groups)
        for quota in group.quotas
        if (quota.flavor, quota.resource) == (flavor, resource) and quota.nominal > 0
    ]


def _report_over_capacity(
    linted: LintedManifests,
    flavor_resource: tuple[str, str],
    amounts: tuple[int, int],
    machines: Sequence[MachineGroup],
) -> Iterator[RuleResult]:
    flavor, resource = flavor_resource
    declarations = quota_declarations_of(linted, flavor, resource)
    admissible_text, capacity = (format_amount(resource, amount) for amount in amounts)
    names = ", ".join(sorted({quota.manifest.obj["metadata"]["name"] for quota in declarations}))
    count_texts = [f"{group.name}: {_format_machine_count(group)}" for group in machines]
    machine_counts = ", ".join(count_texts) or "pools that could be created"
    problem = (
        f"the queues may use {admissible_text} {resource} of flavor {flavor} at once, but its machines have {capacity}"
        f" ({machine_counts})."
        " Workloads that are admitted beyond that amount hold quota while their pods stay Pending"
    )
    fix = f"lower the quota of {resource} in {names} to {capacity} in total, or enlarge the pools"
    patches = [(quota.manifest, _lower_quota_patch(quota, flavor_resource, amounts)) for quota in declarations]
    yield from (RuleResult(quota.manifest, quota.path, problem, fix, patches) for quota in declarations[:1])


def _format_machine_count(machines: MachineGroup) -> str:
    return f"{'at most ' if machines.is_autoscaled else ''}{count_with_noun(machines.max_count, 'node')}"


def _lower_quota_patch(quota: QuotaDeclaration, flavor_resource: tuple[str, str], amounts: tuple[int, int]) -> Obj:
    admissible_amount, available_amount = amounts
    lower_quota = format_amount(flavor_resource[1], quota.nominal * available_amount // admissible_amount)
    resource_groups = [
        {**group, "flavors": [_set_nominal_quota(flavor, flavor_resource, lower_quota) for flavor in group["flavors"]]}
        for group in quota.manifest.obj["spec"]["resourceGroups"]
    ]
    return {"spec": {"resourceGroups": resource_groups}}


def _set_nominal_quota(flavor: Mapping[str, Any], flavor_resource: tuple[str, str], nominal: str) -> Mapping[str, Any]:
    if flavor["name"] != flavor_resource[0]:
        return flavor
    resource_quotas = [
        {**quota, "nominalQuota": nominal} if quota["name"] == flavor_resource[1] else quota
        for quota in flavor["resources"]
    ]
    return {**flavor, "resources": resource_quotas}
