"""Lint rules about the capacity of machines: quota above the capacity of a flavor, and topology domains."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, format_amount
from batchyard.api.views.node import FlavorView, node_view
from batchyard.api.views.topology import TopologyRequest
from batchyard.api.views.workload import ClusterQueueView
from batchyard.api.well_known import (
    HOSTNAME,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
)
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.lint.findings import LintRule, RuleResult, Severity
from batchyard.lint.linted_manifests import LintedManifests, MachineGroup
from batchyard.lint.workloads import LintedJob
from batchyard.scheduling.cluster_queue import flavor_mismatch
from batchyard.scheduling.quota import QuotaNode
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyFailure, assign_domains
from batchyard.topology.placement import has_levels, resolve_parameters
from batchyard.topology.state import TopologyState

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


# Topologies: levels and nodes, and requests that no domain can satisfy.


def _levels_of(linted: LintedManifests, flavor: FlavorView) -> tuple[Manifest, list[str]] | None:
    """Return the Topology of a flavor and its levels; None if the flavor has none or the manifests do not have it."""
    manifest = linted.find(scheme.TOPOLOGY, flavor.topology) if flavor.topology else None
    if manifest is None:
        return None
    levels = manifest.obj["spec"].get("levels") or ()
    return manifest, [level.get("nodeLabel", "") for level in levels]


def _lacking_levels(machines: MachineGroup, levels: Sequence[str]) -> list[str]:
    """Return the levels for which no machine of a group has a label."""
    common_levels = [level for level in levels if level not in machines.own_labels]
    return [level for level in common_levels if not any(level in each.labels for each in machines.templates)]


def level_without_nodes(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each level of a Topology whose label no machine of a flavor has."""
    for flavor_name, (_, flavor) in linted.flavors.items():
        found, machine_groups = _levels_of(linted, flavor), linted.inventory.machines_for(flavor)
        if found is None or not machine_groups:
            continue
        manifest, levels = found
        for index, level in enumerate(levels):
            if all(level in _lacking_levels(machines, levels) for machines in machine_groups):
                problem = f"no node of flavor {flavor_name} has the label {level}: no Workload with a topology fits"
                fix = "add the label to the nodes, or remove the level"
                yield RuleResult(manifest, f"spec.levels[{index}].nodeLabel", problem, fix)


def node_outside_topology(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report the machines of a flavor that lack a label for a level, if other machines of the flavor have it."""
    reported: set[str] = set()
    for flavor_name, (_, flavor) in linted.flavors.items():
        found, machine_groups = _levels_of(linted, flavor), linted.inventory.machines_for(flavor)
        if found is None:
            continue
        lacking = {machines.name: _lacking_levels(machines, found[1]) for machines in machine_groups}
        for machines in machine_groups:
            levels = [
                level
                for level in lacking[machines.name]
                if any(level not in lacking[other.name] for other in machine_groups)
            ]
            if levels and machines.name not in reported:
                reported.add(machines.name)
                problem = (
                    f"{machines.name} belongs to flavor {flavor_name}, but has no label {' or '.join(levels)}: "
                    f"Topology {flavor.topology} does not count its capacity"
                )
                path = f"{machines.path}.labels" if machines.path else "metadata.labels"
                yield RuleResult(machines.manifest, path, problem, f"add the label {' and '.join(levels)}")


def duplicate_hostname(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each Node whose host name another Node of the manifests has, if a Topology ends at the host name."""
    topologies = linted.latest_versions(scheme.TOPOLOGY)
    if not any((each.obj["spec"].get("levels") or [{}])[-1].get("nodeLabel") == HOSTNAME for each in topologies):
        return
    first_by_host: dict[str, str] = {}
    for manifest in linted.latest_versions(scheme.NODE):
        name = manifest.obj["metadata"]["name"]
        host = (manifest.obj["metadata"].get("labels") or {}).get(HOSTNAME)
        if host is None:
            continue
        first = first_by_host.setdefault(host, name)
        if first != name:
            problem = (
                f"Node {first} has the label {HOSTNAME}={host} too: both nodes are one topology domain, in which more "
                f"pods may be placed than fit on one node"
            )
            yield RuleResult(manifest, f"metadata.labels[{HOSTNAME}]", problem, "give each node its own host name")


def _requests_of(linted: LintedManifests) -> Iterator[tuple[LintedJob, int, TopologyRequest, ClusterQueueView]]:
    """Yield the explicit topology requests of pod sets in known ClusterQueues."""
    for job in linted.jobs:
        queue = linted.cluster_queue_of(job)
        for index, pod_set in enumerate(job.view.pod_sets):
            request = pod_set.topology_request
            if queue is not None and request is not None and request.is_explicit:
                yield job, index, request, queue.view


def _request_path(job: LintedJob, index: int, *keys: str) -> str:
    """Return the field path of the first annotation in `keys` that the pod template has, else of the request."""
    if not job.is_job:
        return f"spec.podSets[{index}].topologyRequest"
    annotations = (job.templates[index].get("metadata") or {}).get("annotations") or {}
    key = next((key for key in keys if key in annotations), "")
    return f"{job.paths[index]}.metadata.annotations[{key}]" if key else f"{job.paths[index]}.metadata.annotations"


def unknown_topology_level(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each topology request whose levels no flavor of the ClusterQueue has."""
    for job, index, request, queue in _requests_of(linted):
        views = [linted.flavors[name][1] for name in queue.flavors if name in linted.flavors]
        found = {view.topology: _levels_of(linted, view) for view in views if view.topology}
        if len(views) < len(queue.flavors) or None in found.values():
            continue  # unknown flavors and Topologies have their own rules
        levels_by_topology = {name: each[1] for name, each in found.items() if each is not None}
        requested = [request.required or request.preferred, *(layer.topology for layer in request.slices)]
        text = ", ".join(dict.fromkeys(filter(None, requested)))
        if not levels_by_topology:
            problem = f"no flavor of ClusterQueue {queue.name} has a Topology: Kueue never admits the job"
            fix = "set topologyName in a flavor of the queue, or remove the topology request"
        elif not text or any(has_levels(request, levels) for levels in levels_by_topology.values()):
            problem = _order_problem(request, levels_by_topology.values())
            if not problem:
                continue
            fix = "list the layers from the widest level to the narrowest, below the requested level"
        else:
            known = "; ".join(f"{name}: {', '.join(levels)}" for name, levels in levels_by_topology.items())
            problem = f"no flavor of ClusterQueue {queue.name} has the levels {text}: the job is never admitted"
            fix = f"use levels of one Topology ({known})"
        keys = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_TOPOLOGY, SLICE_LAYERS)
        yield RuleResult(job.manifest, _request_path(job, index, *keys), problem, fix)


def _order_problem(request: TopologyRequest, topologies: Iterable[Sequence[str]]) -> str:
    """Return why the levels of a request are in the wrong order for all Topologies that have them; '' if they are not.

    Kueue checks the order only when it places the pods.
    """
    reasons = [
        resolve_parameters(request, levels, 1, has_leader=False, is_implied=False, is_profile_mixed=True)
        for levels in topologies
        if has_levels(request, levels)
    ]
    texts = [reason for reason in reasons if isinstance(reason, str)]
    return f"{texts[0]}: the job is never admitted" if len(texts) == len(reasons) else ""


def uneven_slices(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set whose number of pods is not a multiple of its slice size."""
    for job in linted.jobs:
        for index, pod_set in enumerate(job.view.pod_sets):
            request = pod_set.topology_request
            size = request.slices[0].size if request is not None and request.slices else 0
            rest = pod_set.count % size if size > 0 else 0
            if rest:
                verbs = select_verb(rest, "is in no slice and gets", "are in no slice and get")
                problem = (
                    f"slices of {size} do not divide {count_with_noun(pod_set.count, 'pod')}: "
                    f"{count_with_noun(rest, 'pod')} {verbs} no topology domain"
                )
                fix = f"use {pod_set.count - rest} or {pod_set.count - rest + size} pods, or a size that divides them"
                yield RuleResult(job.manifest, _request_path(job, index, SLICE_SIZE, SLICE_LAYERS), problem, fix)


def topology_too_small(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job whose pods fit in the topology of no flavor, even if no other Workload runs.

    Only flavors whose machines are all Nodes of the manifests are considered, because machines of pools have no known
    domains.
    """
    state = TopologyState()
    state.enable({})
    for _, flavor in linted.flavors.values():
        found = _levels_of(linted, flavor)
        if found is not None and not any(each.path for each in linted.inventory.machines_for(flavor)):
            state.put_topology(flavor.topology, found[1])
            state.put_flavor(flavor)
    state.nodes = {each.obj["metadata"]["name"]: node_view(each.obj) for each in linted.latest_versions(scheme.NODE)}
    for job, index, _, queue in _requests_of(linted):
        pod_set = job.view.pod_sets[index]
        flavors = [
            name
            for name in queue.flavors
            if name in linted.flavors
            and linted.flavors[name][1].topology
            and not flavor_mismatch(pod_set.template, name, linted.flavors[name][1])
        ]
        failures = [_idle_failure(job, index, flavor, state) for flavor in flavors]
        known_failures = [failure for failure in failures if failure is not None]
        if failures and len(known_failures) == len(failures):
            problem = f"even without other Workloads, {known_failures[0].reason}: the job is never admitted"
            fix = "request fewer pods, a higher level, or add nodes to a domain"
            path = _request_path(job, index, REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_TOPOLOGY, SLICE_LAYERS)
            yield RuleResult(job.manifest, path, problem, fix)


def _idle_failure(job: LintedJob, index: int, flavor: str, state: TopologyState) -> TopologyFailure | None:
    """Return why a pod set does not fit in the idle topology of a flavor; None if it fits or if that is unknown."""
    built, pod_set = state.get(flavor), job.view.pod_sets[index]
    request = pod_set.topology_request
    if built is None or not built.tree.leaf_count or request is None or not has_levels(request, built.tree.levels):
        return None  # other rules report missing nodes, Topologies and levels
    count = pod_set.count if pod_set.min_count is None else pod_set.min_count
    placed = assign_domains(
        state,
        [PodSetTopologyRequest(pod_set.name, flavor, count, pod_set.template, request, False, None)],
        is_idle=True,
    )
    return placed if isinstance(placed, TopologyFailure) else None


def mixed_topology_queue(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue with flavors that have a Topology and flavors that have none."""
    for manifest, view in linted.queues.values():
        topologies = {name: linted.flavors[name][1].topology for name in view.flavors if name in linted.flavors}
        with_topology = [name for name, topology in topologies.items() if topology]
        others = [name for name, topology in topologies.items() if not topology]
        if not with_topology or not others:
            continue
        problem = (
            f"only flavor {', '.join(with_topology)} has a Topology: jobs without a topology request cannot use it, "
            f"and jobs with one can use no other flavor for the same resource"
        )
        fix = f"set topologyName in flavor {', '.join(others)} too, or use separate queues"
        closed_groups = [group for group in view.groups if all(topologies.get(name) for name in group.flavors)]
        if closed_groups:
            resources = ", ".join(closed_groups[0].resources)
            problem = (
                f"all flavors for {resources} have a Topology, but flavor {', '.join(others)} has none: jobs that "
                f"request {resources} without a topology request are never admitted"
            )
        severity = Severity.WARNING if closed_groups else None
        yield RuleResult(manifest, "spec.resourceGroups", problem, fix, severity=severity)


#: The rules about topologies.
TOPOLOGY_RULES: Final = (
    LintRule(
        "level-without-nodes", Severity.ERROR, "no node of a flavor has the label of a level", level_without_nodes
    ),
    LintRule(
        "node-outside-topology",
        Severity.WARNING,
        "a node of a flavor lacks the label of a level",
        node_outside_topology,
    ),
    LintRule("duplicate-hostname", Severity.WARNING, "two nodes have the same host name", duplicate_hostname),
    LintRule(
        "unknown-topology-level",
        Severity.ERROR,
        "a job requests a level that no flavor of its queue has",
        unknown_topology_level,
    ),
    LintRule("uneven-slices", Severity.WARNING, "the slice size does not divide the number of pods", uneven_slices),
    LintRule("topology-too-small", Severity.ERROR, "no topology domain can ever contain the pods", topology_too_small),
    LintRule(
        "mixed-topology-queue",
        Severity.NOTE,
        "some flavors of a ClusterQueue have a Topology and others have none",
        mixed_topology_queue,
    ),
)
