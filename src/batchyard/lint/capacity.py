"""The rule on quota above the capacity of the machines."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.manifests import Manifest
from batchyard.api.meta import format_amount
from batchyard.lint.configuration import Configuration, MachineGroup
from batchyard.lint.findings import RuleResult
from batchyard.scheduling.quota import QuotaNode

# --- reach ---
#
# The most of a flavor-resource that a tree of queues can use at the same time.


class QuotaDemand(NamedTuple):
    """The demand of a subtree: from its own unlent quota, and from above (None: unlimited)."""

    kept: int
    drawn: int | None


def most_used(root: QuotaNode, fr: int, users: Container[QuotaNode]) -> int:
    """The most that all queues of a tree use together, if only the leaves in `users` use it."""
    if not root.children:
        return root.subtree[fr] if root in users else 0
    reaches = [_reach(child, fr, users) for child in root.children.values()]
    return sum(reach.kept for reach in reaches) + _bounded(root.subtree[fr], _sum(reaches))


def _reach(node: QuotaNode, fr: int, users: Container[QuotaNode]) -> QuotaDemand:
    if not node.children:
        return QuotaDemand(node.local[fr], node.borrowing_ceiling[fr]) if node in users else QuotaDemand(0, 0)
    reaches = [_reach(child, fr, users) for child in node.children.values()]
    wanted = _sum(reaches)
    own = _bounded(node.local[fr], wanted)
    beyond = None if wanted is None else wanted - own
    ceiling = node.borrowing_ceiling[fr]
    drawn = beyond if ceiling is None else _bounded(ceiling, beyond)
    return QuotaDemand(sum(reach.kept for reach in reaches) + own, drawn)


def _sum(reaches: list[QuotaDemand]) -> int | None:
    total = 0
    for reach in reaches:
        if reach.drawn is None:
            return None
        total += reach.drawn
    return total


def _bounded(bound: int, wanted: int | None) -> int:
    return bound if wanted is None else min(bound, wanted)


class QuotaHolder(NamedTuple):
    """A nominal quota of a flavor-resource, and its place."""

    manifest: Manifest
    path: str
    nominal: int


def quota_above_capacity(config: Configuration) -> Iterator[RuleResult]:
    """More quota than machines: Workloads are admitted, but their pods stay Pending."""
    if not config.park.is_known:
        return
    for fr, (flavor, resource) in enumerate(config.snapshot.names):
        if flavor not in config.flavors or resource == "pods":
            continue
        labels = config.flavors[flavor][1].labels
        machines, more = config.park.of(config.flavors[flavor][1]), config.makes_pools_for(flavor)
        there = sum(each.amount(resource) for each in machines)
        there += config.park.could_be_made(resource, labels) if more else 0
        promised = promised_amount(config, fr, flavor)
        if (machines or more) and promised > there:
            yield from _over_capacity(config, (flavor, resource), (promised, there), machines)


def promised_amount(config: Configuration, fr: int, flavor: str) -> int:
    """The most of a flavor-resource that queues may use together without requesting machines first."""
    snapshot = config.snapshot

    def may_use(node: QuotaNode) -> bool:
        view = snapshot.queue_of[node].view
        return flavor in view.flavors and not config.provisions(view, flavor)

    leaves = {node: None for node in snapshot.queue_of if may_use(node)}
    roots = {node.path[0]: None for node in leaves}
    return sum(most_used(root, fr, leaves) for root in roots)


def holders_of(config: Configuration, flavor: str, resource: str) -> list[QuotaHolder]:
    """The nominal quotas of a flavor-resource, in order of their definition."""
    return [
        QuotaHolder(manifest, f"spec.resourceGroups[{index}].flavors[{group.flavors.index(flavor)}]", quota.nominal)
        for manifest, groups in config.quotas
        for index, group in enumerate(groups)
        for quota in group.quotas
        if (quota.flavor, quota.resource) == (flavor, resource) and quota.nominal > 0
    ]


def _over_capacity(
    config: Configuration, of: tuple[str, str], amounts: tuple[int, int], machines: Sequence[MachineGroup]
) -> Iterator[RuleResult]:
    """One finding for all quotas of the flavor, at the first of them."""
    flavor, resource = of
    holders = holders_of(config, flavor, resource)
    promised, there = (format_amount(resource, amount) for amount in amounts)
    names = ", ".join(sorted({holder.manifest.obj["metadata"]["name"] for holder in holders}))
    where = ", ".join(f"{each.name}: {_size(each)}" for each in machines) or "pools that could be created"
    problem = (
        f"the queues may use {promised} {resource} of flavor {flavor} at once, but its machines have {there} ({where})."
        " Work that is admitted beyond that holds quota while its pods stay Pending"
    )
    fix = f"lower the quota of {resource} in {names} to {there} in total, or enlarge the pools"
    patches = [(holder.manifest, _lowered(holder, of, amounts)) for holder in holders]
    yield from (RuleResult(holder.manifest, holder.path, problem, fix, patches) for holder in holders[:1])


def _size(machines: MachineGroup) -> str:
    return f"{'at most ' if machines.grows else ''}{machines.most} node{'s' * (machines.most != 1)}"


def _lowered(holder: QuotaHolder, of: tuple[str, str], amounts: tuple[int, int]) -> Mapping[str, Any]:
    """A patch with a holder's proportional part of the capacity."""
    promised, there = amounts
    lower = format_amount(of[1], holder.nominal * there // promised)
    groups = [
        {**group, "flavors": [_with_nominal(flavor, of, lower) for flavor in group["flavors"]]}
        for group in holder.manifest.obj["spec"]["resourceGroups"]
    ]
    return {"spec": {"resourceGroups": groups}}


def _with_nominal(flavor: Mapping[str, Any], of: tuple[str, str], nominal: str) -> Mapping[str, Any]:
    if flavor["name"] != of[0]:
        return flavor
    rows = [{**row, "nominalQuota": nominal} if row["name"] == of[1] else row for row in flavor["resources"]]
    return {**flavor, "resources": rows}
