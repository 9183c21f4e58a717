"""Explains how topology domains limit a pending Workload, and where the pods of an admitted Workload are.

The counts of pods and the verdicts are those of the scheduler's own placement (`topology.assigner`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from batchyard.api.meta import Obj, with_path
from batchyard.api.validation.topology import SliceLayer
from batchyard.api.views.node import NodeView
from batchyard.api.views.workload import WorkloadView
from batchyard.api.well_known import HOSTNAME, PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY
from batchyard.base.counts import count_with_noun
from batchyard.explain.cohort_simulation import HypotheticalChange
from batchyard.explain.document import (
    BindingLimit,
    DocumentPart,
    ExplanationUser,
    PodSetFlavorOutcomes,
    nonempty_fields,
)
from batchyard.explain.proposals import (
    END,
    ENDED_WORKLOADS_MAX,
    NODES,
    ProposalCase,
    ViewBuilder,
    json_patch,
    merge_patch,
)
from batchyard.explain.searches import Patch, Proposal, Search, search_smallest_between
from batchyard.scheduling.cluster_queue import TOPOLOGY_MISMATCH, ClusterQueue
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.topology_nomination import is_topology_considered, is_topology_requested
from batchyard.topology.assigner import GroupCapacity, PodSetTopologyRequest, TopologyFailure, capacities_of
from batchyard.topology.counts import DomainCounts, NodeExclusions, pod_amounts
from batchyard.topology.state import FlavorTopology, domains_in
from batchyard.topology.tree import MAX_COUNT

#: The kind of the proposal to request less of a topology.
TOPOLOGY: Final = TOPOLOGY_MISMATCH
_OCCUPANTS_SHOWN: Final = 5
_OCCUPANTS_MAX: Final = 64
_FLAVORS_MAX: Final = 8
_ADDED_NODES_MAX: Final = 64
_DOMAINS_SHOWN: Final = 64
_NEW_JOB: Final = "; submit the job again with this change"


@dataclass(frozen=True, slots=True)
class DomainOccupant:
    """A Workload with pods in a topology domain."""

    key: str
    queue: str
    priority: int
    #: Its pods in the domain, and the number of the explained Workload's pods that fit there after its end.
    pod_count: int
    freed_count: int


@dataclass(frozen=True, slots=True)
class GroupFit:
    """The pods of a pod set (or a group of two) in the topology of one flavor, with the domain nearest to fitting."""

    capacity: GroupCapacity
    #: The level of the domain that must contain all pods; None if all domains together must contain them.
    level: int | None
    #: The domain of that level that needs the least to contain the pods; 0 without a level.
    domain: int

    @property
    def flavor(self) -> FlavorTopology:
        """The flavor and its topology."""
        return self.capacity.flavor

    @property
    def needed_count(self) -> int:
        """The number of pods to place, without a leader."""
        return self.capacity.parameters.pod_count

    @property
    def domain_name(self) -> str:
        """The path of the domain nearest to fitting; '' without a level."""
        return "" if self.level is None else "/".join(self.flavor.tree.paths[self.level][self.domain])

    @property
    def leaves(self) -> range:
        """The domains of the lowest level that can contain the pods if the domain nearest to fitting is used."""
        tree = self.flavor.tree
        return range(tree.leaf_count) if self.level is None else tree.leaves_below(self.level, self.domain)

    def fitting_count(self, *, is_idle: bool = False) -> int:
        """Return how many pods fit now, or with `is_idle`, without other Workloads."""
        counts = pods_by_domain(self.capacity, self.level or 0, is_idle=is_idle)
        return sum(counts) if self.level is None else counts[self.domain]


def pods_by_domain(capacity: GroupCapacity, level: int, *, is_idle: bool = False) -> list[int]:
    """Return how many pods fit in each domain of a level, beside the leader if there is one; only whole slices count.

    With `is_idle`, no Workload uses the domains.
    """
    counts: DomainCounts = capacity.idle if is_idle else capacity.free
    parameters, has_leader = capacity.parameters, capacity.leader is not None
    if level > parameters.slice_level:
        return counts.pods_with_leader[level] if has_leader else counts.pods[level]
    slices = counts.slices_with_leader[level] if has_leader else counts.slices[level]
    return [count * parameters.slice_size for count in slices]


def fit_of(capacity: GroupCapacity) -> GroupFit:
    """Return the domain nearest to fitting: one that is large enough when idle, with the most free room."""
    if not capacity.parameters.required:
        return GroupFit(capacity, None, 0)
    level, needed = capacity.parameters.level, capacity.parameters.pod_count
    free, idle = (pods_by_domain(capacity, level, is_idle=is_idle) for is_idle in (False, True))
    present = capacity.flavor.tree.present_domains(level)
    domain = max(present, key=lambda d: (idle[d] >= needed, free[d], idle[d], -d), default=0)
    return GroupFit(capacity, level if present else None, domain)


@dataclass(frozen=True, slots=True)
class FlavorFit:
    """The pod sets of a Workload in the topology of one flavor, up to the first one without room."""

    flavor: str
    #: Whether the requests fit the quota of the flavor.
    has_quota: bool
    groups: Sequence[GroupFit | TopologyFailure]

    @property
    def failure(self) -> GroupFit | TopologyFailure | None:
        """The pod sets that have no room; None if all fit."""
        last = self.groups[-1] if self.groups else None
        return last if isinstance(last, TopologyFailure) or (last is not None and last.capacity.reason) else None

    @property
    def fitting_fraction(self) -> float:
        """The fitting fraction of the pods that have no room; 1 if all fit."""
        failure = self.failure
        if failure is None or isinstance(failure, TopologyFailure):
            return 0.0 if failure is not None else 1.0
        return failure.fitting_count() / max(1, failure.needed_count)


class TopologyAnalysis:
    """How a pending Workload fits in the topologies of the flavors that it may use."""

    def __init__(
        self, snapshot: Snapshot, queue: ClusterQueue, view: WorkloadView, outcomes: Sequence[PodSetFlavorOutcomes]
    ) -> None:
        self._snapshot = snapshot
        self._view = view
        self._queue = queue
        flavors = [name for name in queue.view.flavors if name in queue.topology_flavors][:_FLAVORS_MAX]
        fits = [self._fit_in(flavor, outcomes) for flavor in dict.fromkeys(flavors)]
        self.fits = [fit for fit in fits if fit.groups]

    @property
    def binding(self) -> FlavorFit | None:
        """The flavor with quota that is nearest to having room; None if one has room, or if none has quota."""
        fits = [fit for fit in self.fits if fit.has_quota]
        if not fits or any(fit.failure is None for fit in fits):
            return None
        return max(fits, key=lambda fit: fit.fitting_fraction)

    def binding_limit(self) -> BindingLimit | None:
        """Return the limit of the topology that keeps the Workload pending although it has quota, else None."""
        fit = self.binding
        if fit is None:
            return None
        failure, topology = fit.failure, self._snapshot.flavors[fit.flavor].topology
        text = failure.reason if isinstance(failure, TopologyFailure) else _shortage_text(failure)
        return BindingLimit(TOPOLOGY, text, "Topology", topology, fit.flavor)

    def occupants(self) -> Sequence[DomainOccupant]:
        """Return the Workloads in the domain that binds, the one that frees most room first; () if none binds."""
        fit = self.binding
        return () if fit is None or not isinstance(fit.failure, GroupFit) else occupants_of(fit.failure, self._snapshot)

    def document_part(self, user: ExplanationUser, protection_of: Callable[[str], str]) -> DocumentPart:
        """Return the field `topology` of the Explanation document; {} if the Workload needs no topology domains.

        `protection_of` returns until when a Workload is protected from preemption, by its key, or ''.
        """
        parts = [
            _failure_part(group, fit.flavor, self._snapshot)
            if isinstance(group, TopologyFailure)
            else _group_part(group, self._snapshot, user, protection_of)
            for fit in self.fits
            for group in fit.groups
        ]
        return {"topology": parts} if parts else {}

    def _fit_in(self, flavor: str, outcomes: Sequence[PodSetFlavorOutcomes]) -> FlavorFit:
        requests: list[PodSetTopologyRequest] = []
        has_quota = True
        for pod_set, count, outcome in zip(self._view.pod_sets, self._view.counts, outcomes, strict=True):
            own_outcomes = [each for each in outcome.outcomes if each.flavor == flavor]
            if not is_topology_requested(pod_set, self._queue) or not count:
                continue
            if any(each.obstacle for each in own_outcomes) or (outcome.outcomes and not own_outcomes):
                continue
            has_quota &= all(each.fits for each in own_outcomes)
            request = pod_set.topology_request
            is_implied = request is None or not request.is_explicit
            requests.append(
                PodSetTopologyRequest(pod_set.name, flavor, count, pod_set.template, request, is_implied, pod_set.group)
            )
        capacities = capacities_of(self._snapshot.topology, requests)
        groups = [each if isinstance(each, TopologyFailure) else fit_of(each) for each in capacities]
        return FlavorFit(flavor, has_quota, groups)


def analyze_topology(
    snapshot: Snapshot, queue: ClusterQueue, view: WorkloadView, outcomes: Sequence[PodSetFlavorOutcomes]
) -> TopologyAnalysis | None:
    """Return how a pending Workload fits in topologies; None if topologies take no part in its nomination."""
    is_considered = is_topology_considered(view, queue, snapshot)
    return TopologyAnalysis(snapshot, queue, view, outcomes) if is_considered else None


def describe_missing_levels(view: WorkloadView, queue: ClusterQueue, snapshot: Snapshot) -> str:
    """Return a clause about requested levels that no Topology of a queue has, with the known levels; '' if none is."""
    known_levels = {
        built.flavor.topology: built.tree.levels
        for flavor in sorted(queue.topology_flavors)
        if (built := snapshot.topology.get(flavor)) is not None
    }
    requests = [each.topology_request for each in view.pod_sets if each.topology_request is not None]
    requested = [level for each in requests for level in (each.required, each.preferred) if level]
    requested += [layer.topology for each in requests for layer in each.slices]
    missing = [level for level in dict.fromkeys(requested) if not any(level in each for each in known_levels.values())]
    if not missing or not known_levels:
        return ""
    texts = [f"Topology {name} has {', '.join(levels)}" for name, levels in known_levels.items()]
    return f"; level {', '.join(missing)} requested, but {'; '.join(texts)}"


def _shortage_text(fit: GroupFit | None) -> str:
    assert fit is not None
    capacity, parameters, tree = fit.capacity, fit.capacity.parameters, fit.flavor.tree
    pods_text = count_with_noun(fit.needed_count, "pod")
    if parameters.slice_size > 1:
        layers = parameters.layers or (SliceLayer(tree.levels[parameters.slice_level], parameters.slice_size),)
        pods_text += f" in slices {', '.join(f'of {layer.size} at level {layer.topology}' for layer in layers)}"
    if capacity.leader is not None:
        pods_text += " and a leader"
    if fit.level is None:
        where = f"{pods_text} need domains of Topology {fit.flavor.topology}"
        text = f"{where}, and all domains together have room for {fit.fitting_count()}"
        name = "they"
    else:
        where = f"{pods_text} need one domain of level {tree.levels[fit.level]} in Topology {fit.flavor.topology}"
        text = f"{where}, and {_room_text(fit)}"
        name = "it"
    idle_count = fit.fitting_count(is_idle=True)
    if idle_count < fit.needed_count:
        text = f"{text}; even without other Workloads, {name} would have room for {idle_count}"
    exclusions = _exclusions_of(fit)
    excluded_texts = [] if exclusions is None else exclusions.texts()
    if excluded_texts:
        text = f"{text}; excluded of {count_with_noun(tree.present_count, 'node')}: {', '.join(excluded_texts)}"
    return text


def _room_text(fit: GroupFit) -> str:
    """Return the room in the domain nearest to fitting, and in that with the most room if it is another one."""
    assert fit.level is not None
    free, paths = pods_by_domain(fit.capacity, fit.level), fit.flavor.tree.paths[fit.level]
    best = max(range(len(free)), key=lambda d: (free[d], -d), default=fit.domain)
    text = f"{fit.domain_name} has room for {fit.fitting_count()}"
    if not free or free[best] <= free[fit.domain]:
        return text
    idle = pods_by_domain(fit.capacity, fit.level, is_idle=True)
    best_name = "/".join(paths[best])
    return f"{best_name} has the most room, for {free[best]} ({idle[best]} without other Workloads); {text}"


def _exclusions_of(fit: GroupFit) -> NodeExclusions | None:
    """Return which hosts the constraints of the pods exclude; None if the topology does not end at the host name."""
    return fit.flavor.exclusions_for(fit.flavor.constraints_of(fit.capacity.workers.template))


def occupants_of(fit: GroupFit, snapshot: Snapshot) -> list[DomainOccupant]:
    """Return the Workloads with pods in the domain nearest to fitting, the one that frees most room first."""
    tree, state = fit.flavor.tree, snapshot.topology
    amounts, exclusions = pod_amounts(fit.capacity.workers.template), _exclusions_of(fit)
    occupants = []
    for queue in snapshot.queues.values():
        for holder in queue.workloads.values():
            counts: dict[int, int] = {}
            for domain in domains_in(fit.flavor, holder.topology_usage, state.rules):
                leaf = tree.leaf_by_values.get(domain.values, -1)
                if leaf in fit.leaves and (exclusions is None or exclusions.eligible[leaf]):
                    counts[leaf] = counts.get(leaf, 0) + domain.pods
            if not counts:
                continue
            free_before = {leaf: fit.flavor.capacity.count_pods(leaf, amounts) for leaf in counts}
            state.assume(holder.topology_usage, -1)
            freed = sum(fit.flavor.capacity.count_pods(leaf, amounts) - free_before[leaf] for leaf in counts)
            state.assume(holder.topology_usage, 1)
            occupants.append(DomainOccupant(holder.key, queue.name, holder.priority, sum(counts.values()), freed))
    return sorted(occupants, key=lambda each: (-each.freed_count, -each.pod_count, each.key))[:_OCCUPANTS_MAX]


# Parts of the Explanation document.


def _failure_part(failure: TopologyFailure, flavor: str, snapshot: Snapshot) -> DocumentPart:
    topology = snapshot.flavors[flavor].topology
    return {"podSet": failure.pod_set, "flavor": flavor, "topology": topology, "fits": False, "reason": failure.reason}


def _group_part(
    fit: GroupFit, snapshot: Snapshot, user: ExplanationUser, protection_of: Callable[[str], str]
) -> DocumentPart:
    capacity, parameters, tree = fit.capacity, fit.capacity.parameters, fit.flavor.tree
    occupants = occupants_of(fit, snapshot) if capacity.reason else []
    nodes = {node.name for leaf in fit.leaves for node in tree.nodes[leaf]}
    has_slices = parameters.slice_size > 1
    return nonempty_fields(
        podSet=capacity.workers.name,
        leader="" if capacity.leader is None else capacity.leader.name,
        flavor=capacity.workers.flavor,
        topology=fit.flavor.topology,
        request=_request_mode(capacity),
        level=tree.levels[parameters.level],
        sliceLevel=tree.levels[parameters.slice_level] if has_slices else "",
        sliceSize=parameters.slice_size if has_slices else None,
        sliceLayers=[{"level": layer.topology, "size": layer.size} for layer in parameters.layers],
        pods=parameters.pod_count,
        fits=not capacity.reason,
        reason=capacity.reason,
        levels=[_level_part(fit, level) for level in range(len(tree.levels))],
        domain=fit.domain_name,
        occupants=[
            {
                "workload": user.name_of(each.key),
                "clusterQueue": each.queue,
                "priority": each.priority,
                "pods": each.pod_count,
                "frees": each.freed_count,
                **nonempty_fields(stays=protection_of(each.key)),
            }
            for each in occupants[:_OCCUPANTS_SHOWN]
        ],
        occupantsMore=max(0, len(occupants) - _OCCUPANTS_SHOWN) or None,
        otherPods=(snapshot.topology.pod_count_on(nodes) or None) if capacity.reason else None,
    )


def _request_mode(capacity: GroupCapacity) -> str:
    request = capacity.workers.request
    if capacity.workers.is_implied or request is None:
        return "implied"
    if request.required:
        return "required"
    if request.preferred:
        return "preferred"
    return "slices" if request.is_slices_only else "unconstrained"


def _level_part(fit: GroupFit, level: int) -> DocumentPart:
    tree, needed = fit.flavor.tree, fit.needed_count
    free, idle = (pods_by_domain(fit.capacity, level, is_idle=is_idle) for is_idle in (False, True))
    present = tree.present_domains(level)
    best = max(present, key=lambda d: (free[d], -d), default=None)
    return nonempty_fields(
        level=tree.levels[level],
        binds=True if level == fit.level else None,
        domains=len(present),
        fitting=sum(count >= needed for count in free),
        fittingIdle=sum(count >= needed for count in idle),
        largest="" if best is None else "/".join(tree.paths[level][best]),
        free=0 if best is None else _shown_count(free[best]),
        idle=_shown_count(max(idle, default=0)),
        total=_shown_count(sum(free)),
    )


def _shown_count(count: int) -> int:
    return min(count, MAX_COUNT)


def placement_part(view: WorkloadView, snapshot: Snapshot) -> DocumentPart:
    """Return the field `topology` of an admitted Workload: by pod set and level, the domains with their pods.

    Domains of higher levels are missing for nodes that are no longer in the topology.
    """
    parts = []
    for held in view.admitted_pod_sets:
        if held.topology is None:
            continue
        flavors = [flavor for flavor in dict.fromkeys(held.flavors.values()) if flavor in snapshot.topology.flavors]
        built = snapshot.topology.get(flavors[0]) if flavors else None
        counts = {domain.values: domain.pods for domain in held.topology.domains}
        levels = _placed_levels(built, counts) if built is not None else []
        if not levels:
            rows = [
                {"domain": "/".join(values), "pods": pods} for values, pods in list(counts.items())[:_DOMAINS_SHOWN]
            ]
            levels = [{"level": held.topology.levels[-1], "count": len(counts), "domains": rows}]
        parts.append(
            nonempty_fields(
                podSet=held.name,
                flavor=flavors[0] if flavors else "",
                topology="" if built is None else built.topology,
                pods=held.pods,
                levels=levels,
            )
        )
    return {"topology": parts} if parts else {}


def _placed_levels(built: FlavorTopology, counts: Mapping[tuple[str, ...], int]) -> list[DocumentPart]:
    tree = built.tree
    leaf_counts = {tree.leaf_by_values.get(values): pods for values, pods in counts.items()}
    missing_count = leaf_counts.pop(None, 0)
    levels = []
    for level, name in enumerate(tree.levels):
        pods_by_path: dict[str, int] = {}
        for leaf, pods in leaf_counts.items():
            assert leaf is not None
            path = "/".join(tree.paths[level][tree.ancestor(leaf, level)])
            pods_by_path[path] = pods_by_path.get(path, 0) + pods
        rows = [{"domain": path, "pods": pods} for path, pods in sorted(pods_by_path.items())]
        part = {"level": name, "count": len(rows), "domains": rows[:_DOMAINS_SHOWN]}
        levels.append({**part, "missing": missing_count} if missing_count else part)
    return levels


# Changes that would give the pods topology domains: a looser request, or more nodes.


def propose_looser_topology(case: ProposalCase, analysis: TopologyAnalysis, build_view: ViewBuilder) -> Search:
    """Search for the lowest higher level at which the pods could be required, and try a preferred level instead."""
    fit = analysis.binding
    failure = None if fit is None else fit.failure
    if not isinstance(failure, GroupFit) or failure.level is None:
        return
    workers = failure.capacity.workers
    levels, level = failure.flavor.tree.levels, failure.level
    names = [each.name for each in (workers, failure.capacity.leader) if each is not None]
    for higher in range(level - 1, -1, -1):
        pod_sets = _with_request(case, names, {"required": levels[higher]})
        if (yield _changed_workload(case, pod_sets, build_view)):
            text = f"require level {levels[higher]} instead of {levels[level]}"
            yield _request_proposal(case, text, names, pod_sets, {REQUIRED_TOPOLOGY: levels[higher]})
            break
    pod_sets = _with_request(case, names, {"required": None, "preferred": levels[level]})
    if (yield _changed_workload(case, pod_sets, build_view)):
        annotations = {REQUIRED_TOPOLOGY: None, PREFERRED_TOPOLOGY: levels[level]}
        text = f"prefer level {levels[level]} instead of requiring it"
        yield _request_proposal(case, text, names, pod_sets, annotations)


def _request_proposal(
    case: ProposalCase, text: str, names: Sequence[str], pod_sets: Sequence[Obj], annotations: Mapping[str, str | None]
) -> Proposal:
    patches = _request_patches(case, names, pod_sets, annotations)
    pod_set_text = f" for pod set {names[0]}" if len(case.view.pod_sets) > 1 else ""
    return Proposal(TOPOLOGY, f"{text}{pod_set_text}{'' if patches else _NEW_JOB}", patches)


def _with_request(case: ProposalCase, names: Sequence[str], fields: Mapping[str, Any]) -> list[Obj]:
    def changed(pod_set: Mapping[str, Any]) -> Mapping[str, Any]:
        request = {**(pod_set.get("topologyRequest") or {}), **fields}
        return {**pod_set, "topologyRequest": {name: value for name, value in request.items() if value is not None}}

    return [changed(each) if each["name"] in names else each for each in case.workload["spec"]["podSets"]]


def _changed_workload(case: ProposalCase, pod_sets: Sequence[Obj], build_view: ViewBuilder) -> HypotheticalChange:
    obj = with_path(case.workload, ("spec", "podSets"), pod_sets)
    return HypotheticalChange(workload=build_view(obj, case.view))


def _request_patches(
    case: ProposalCase, names: Sequence[str], pod_sets: Sequence[Obj], annotations: Mapping[str, str | None]
) -> Sequence[Patch]:
    """Return the patches of the Workload and of its Job, if any; () for a JobSet, whose templates are fixed."""
    job, patches = case.owner_job, []
    if job is not None and job["kind"] != "Job":
        return ()
    if job is not None:  # a change of the annotations alone does not change the existing Workload
        fields = {"spec": {"template": {"metadata": {"annotations": dict(annotations)}}}}
        patches = [merge_patch("Job", job["metadata"]["name"], fields, job["metadata"].get("namespace", ""))]
    operations = [
        {"op": "replace", "path": f"/spec/podSets/{index}/topologyRequest", "value": pod_set["topologyRequest"]}
        for index, pod_set in enumerate(pod_sets)
        if pod_set["name"] in names
    ]
    return (*patches, json_patch("Workload", case.view.name, operations, case.view.namespace))


def propose_added_nodes(analysis: TopologyAnalysis) -> Search:
    """Search for the smallest number of nodes, like an existing one of the domain nearest to fitting, to add there."""
    fit = analysis.binding
    failure = None if fit is None else fit.failure
    node = _largest_node(failure) if isinstance(failure, GroupFit) else None
    if node is None or not isinstance(failure, GroupFit):
        return
    nodes = list(_copies_of(node))
    pods_per_node = max(1, _idle_pods_on(node, failure))
    missing = failure.needed_count - failure.fitting_count()
    highest = min(_ADDED_NODES_MAX, ceil(max(1, missing) / pods_per_node) + 1)
    if not (yield HypotheticalChange(added_nodes=nodes[:highest])):
        return
    smallest = yield from search_smallest_between(
        lambda count: HypotheticalChange(added_nodes=nodes[:count]), 1, highest
    )
    tree = failure.flavor.tree
    is_single_host = failure.level == len(tree.levels) - 1 and tree.has_hosts
    if failure.level is None or is_single_host:
        where = f"Topology {failure.flavor.topology}"
    else:
        where = f"{tree.levels[failure.level]} {failure.domain_name}"
    text = f"add {count_with_noun(smallest.amount, 'node')} like {node.name} to {where}"
    yield Proposal(NODES, text, (), smallest.is_minimal)


def propose_foreign_ends(analysis: TopologyAnalysis, case: ProposalCase, name_of: Callable[[str], str]) -> Search:
    """Search for the fewest Workloads of other cohort trees whose end would make room in the domains.

    Their end does not wake the pending Workload, because it wakes only the Workloads of their own cohort tree. The
    proposal has no patches for this reason. `name_of` returns the name of a Workload by its key, or a placeholder.
    """
    occupant_keys = [each.key for each in analysis.occupants()]
    keys = [key for key in occupant_keys if key in case.simulation.foreign_usage][:ENDED_WORKLOADS_MAX]
    if not keys or not (yield HypotheticalChange(ended_workloads=keys)):
        return
    smallest = yield from search_smallest_between(
        lambda count: HypotheticalChange(ended_workloads=keys[:count]), 1, len(keys)
    )
    names = ", ".join(dict.fromkeys(map(name_of, keys[: smallest.amount])))
    yield Proposal(END, f"submit it again after the end of {names}", (), smallest.is_minimal)


def _largest_node(fit: GroupFit) -> NodeView | None:
    """Return the node of the domain nearest to fitting with room for the most pods when it is idle."""
    counts, tree = fit.capacity.idle.pods[-1], fit.flavor.tree
    leaves = [leaf for leaf in fit.leaves if counts[leaf]]
    if not leaves:
        return None
    return tree.nodes[max(leaves, key=lambda leaf: (counts[leaf], -leaf))][0]


def _idle_pods_on(node: NodeView, fit: GroupFit) -> int:
    amounts = pod_amounts(fit.capacity.workers.template)
    return min((node.allocatable.get(name, 0) // amount for name, amount in amounts if amount), default=0)


def _copies_of(node: NodeView) -> Iterator[NodeView]:
    for number in range(1, _ADDED_NODES_MAX + 1):
        name = f"{node.name}-added-{number}"
        yield replace(node, name=name, labels={**node.labels, HOSTNAME: name})
