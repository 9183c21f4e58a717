"""Assignment of topology domains to all pod sets of a Workload, and replacement of a failed node.

The pod sets of a group are placed together: the smaller one is the leader, which has one pod. Each placement uses
capacity that the following ones cannot use. Source: FindTopologyAssignmentsForFlavor in Kueue's
pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.validation.topology import SliceLayer
from batchyard.api.views.node import PodTemplate
from batchyard.api.views.topology import TopologyAssignment, TopologyDomain, TopologyRequest
from batchyard.topology.balanced import BalancedSearch
from batchyard.topology.class_counts import ClassCountCache
from batchyard.topology.counts import CountCache, CountKey, DomainCounts, pod_amounts
from batchyard.topology.placement import (
    DomainSearch,
    NoPlacement,
    PlacedPods,
    PlacementParameters,
    requested_level,
    resolve_parameters,
)
from batchyard.topology.state import FlavorTopology, TopologyState, TopologyUsage, usage_of


class PodSetTopologyRequest(NamedTuple):
    """The pods of one pod set that need topology domains of a flavor."""

    name: str
    flavor: str
    pod_count: int
    template: PodTemplate
    request: TopologyRequest | None
    #: Whether topology is implied by the ClusterQueue, not requested by the pod set.
    is_implied: bool
    #: The pod set group; None without one.
    group: str | None
    #: The existing assignment: with a failed node to replace, or of the slice that the Workload replaces; None for a
    #: new assignment.
    existing: TopologyAssignment | None = None
    #: Why the updates of AdmissionChecks do not suit the pod template; '' if they do.
    invalid_update: str = ""


class TopologyFailure(NamedTuple):
    """The pod set that could not be placed, its flavor and the reason."""

    pod_set: str
    flavor: str
    reason: str


class _KnownSearch(NamedTuple):
    """What the search for the pods of a pod set needs besides the free capacity."""

    template: PodTemplate
    request: TopologyRequest | None
    parameters: PlacementParameters
    key: CountKey
    cache: CountCache | ClassCountCache


_SEARCHES_MAX: Final = 4096
_UNEXPLAINED: Final = "the pods do not fit"
#: The assignments by pod set.
TopologyAssignments: TypeAlias = dict[str, TopologyAssignment]


def assign_domains(
    state: TopologyState,
    requests: Sequence[PodSetTopologyRequest],
    *,
    is_idle: bool = False,
    failed_node: str = "",
    explains: bool = True,
) -> TopologyAssignments | TopologyFailure:
    """Return topology assignments for pod sets of a Workload, or the first failure; flavors are handled by name.

    With `is_idle`, no Workload uses the domains. With `failed_node`, the pods on this node get other domains. Without
    `explains`, a failure has no reason; that saves time.
    """
    if len(requests) == 1 and not failed_node:
        flavor = requests[0].flavor
        placed = _FlavorAssigner(state, state.get(flavor), is_idle, "", explains).place_group(requests)
        return placed if isinstance(placed, TopologyFailure) else placed[0]
    result: TopologyAssignments = {}
    reserved: list[TopologyUsage] = []
    groups = _group_requests(requests)
    try:
        for index, group in enumerate(groups):
            flavor = group[0].flavor
            assigner = _FlavorAssigner(state, state.get(flavor), is_idle, failed_node, explains)
            added = assigner.replace_nodes(group) if failed_node else assigner.place_group(group)
            if isinstance(added, TopologyFailure):
                return added
            assignments, new_domains = added
            result.update(assignments)
            if index + 1 < len(groups):
                for request in group:
                    usage = usage_of([flavor], new_domains[request.name], request.template)
                    state.reserve(usage, 1)
                    reserved.append(usage)
        return result
    finally:
        for usage in reserved:
            state.reserve(usage, -1)


def _group_requests(requests: Sequence[PodSetTopologyRequest]) -> list[list[PodSetTopologyRequest]]:
    """Return the requests by pod set group, the groups of one flavor after those of another, by name."""
    groups: dict[tuple[str, str | int], list[PodSetTopologyRequest]] = {}
    for index, request in enumerate(requests):
        groups.setdefault((request.flavor, index if request.group is None else request.group), []).append(request)
    return sorted(groups.values(), key=lambda group: group[0].flavor)


def _first_pods(assignment: TopologyAssignment, count: int) -> TopologyAssignment:
    """Return the assignment of the first pods; the domains at the end lose pods."""
    domains: list[TopologyDomain] = []
    for domain in assignment.domains:
        if count <= 0:
            break
        domains.append(domain._replace(pods=min(domain.pods, count)))
        count -= domain.pods
    return assignment._replace(domains=tuple(domains))


@dataclass(slots=True)
class _FlavorAssigner:
    """Assigns domains of one flavor."""

    state: TopologyState
    flavor: FlavorTopology | None
    is_idle: bool
    failed_node: str
    explains: bool

    def place_group(
        self, group: Sequence[PodSetTopologyRequest]
    ) -> tuple[TopologyAssignments, TopologyAssignments] | TopologyFailure:
        """Return the assignments of a group's pod sets, twice; or a failure."""
        if len(group) == 1 and group[0].existing is None:
            return self._place_alone(group[0])
        workers, leader = _workers_and_leader(group)
        if workers.existing is not None and _has_domains(self.flavor, workers, leader):
            return self._resize_group(workers, leader, workers.existing)
        placed = self.place(workers, leader)
        if isinstance(placed, str):
            return TopologyFailure(group[0].name, group[0].flavor, placed)
        assignments = {workers.name: self._make_assignment([(each.domain, each.pods) for each in placed])}
        if leader is not None:
            assignments[leader.name] = self._make_assignment([(each.domain, each.leaders) for each in placed])
        return assignments, assignments

    # Slices of elastic jobs. Source: Kueue's pkg/cache/scheduler/tas_elastic_workloads.go.

    def _resize_group(
        self, workers: PodSetTopologyRequest, leader: PodSetTopologyRequest | None, existing: TopologyAssignment
    ) -> tuple[TopologyAssignments, TopologyAssignments] | TopologyFailure:
        """Return the assignments of a group, twice: added pods get further domains, removed pods are the last ones.

        As in Kueue, the existing pods count in addition to the usage of the replaced slice.
        """
        result: TopologyAssignments = {}
        if leader is not None and leader.existing is not None:
            result[leader.name] = leader.existing
        count = sum(domain.pods for domain in existing.domains)
        if workers.pod_count <= count:
            result[workers.name] = _first_pods(existing, workers.pod_count)
            return result, result
        kept = usage_of([workers.flavor], existing, workers.template)
        if leader is not None and leader.existing is not None:
            kept = (*kept, *usage_of([leader.flavor], leader.existing, leader.template))
        self.state.reserve(kept, 1)
        try:
            added = workers._replace(pod_count=workers.pod_count - count, existing=None)
            placed = self.place(added, None if leader is None or leader.existing is not None else leader)
        finally:
            self.state.reserve(kept, -1)
        if isinstance(placed, str):
            return TopologyFailure(workers.name, workers.flavor, placed)
        new_pods = self._make_assignment([(each.domain, each.pods) for each in placed])
        result[workers.name] = self._merge(new_pods, existing.domains)
        if leader is not None and leader.existing is None:
            result[leader.name] = self._make_assignment([(each.domain, each.leaders) for each in placed])
        return result, result

    def replace_nodes(
        self, group: Sequence[PodSetTopologyRequest]
    ) -> tuple[TopologyAssignments, TopologyAssignments] | TopologyFailure:
        """Return the assignments of a group with the failed node replaced, and the replacements; or a failure."""
        assignments: TopologyAssignments = {}
        replacements: TopologyAssignments = {}
        reserved: list[TopologyUsage] = []
        try:
            for request in group:
                replaced = self.replace_node(request)
                if isinstance(replaced, str):
                    return TopologyFailure(request.name, request.flavor, replaced)
                assignments[request.name], replacements[request.name] = replaced
                usage = usage_of([request.flavor], replaced[1], request.template)
                self.state.reserve(usage, 1)
                reserved.append(usage)
            return assignments, replacements
        finally:
            for usage in reserved:
                self.state.reserve(usage, -1)

    def place(
        self, workers: PodSetTopologyRequest, leader: PodSetTopologyRequest | None = None, leaves: range | None = None
    ) -> list[PlacedPods] | str:
        """Return the domains of the lowest level with their pods, or why the pods do not fit.

        With `leaves`, only these domains of the lowest level may be used.
        """
        prepared = self.prepare(workers, leader)
        if isinstance(prepared, str):
            return prepared
        flavor, parameters, key = prepared
        if leaves is not None:
            cache = flavor.count_cache(key)
            return self._search(flavor, cache, key, cache.count_below(leaves), parameters, leaves)
        counts = self._counts_for(flavor, key)
        return self._search(flavor, counts, key, counts.refresh(), parameters, None)

    def _counts_for(self, flavor: FlavorTopology, key: CountKey) -> CountCache | ClassCountCache:
        classes = None if self.state.rules.is_balanced else flavor.class_counts(key)
        return flavor.count_cache(key) if classes is None else classes

    # One pod set without an earlier assignment. Equal requests share the result while nothing changes.

    def _place_alone(
        self, request: PodSetTopologyRequest
    ) -> tuple[TopologyAssignments, TopologyAssignments] | TopologyFailure:
        """Return the assignment of a pod set, twice; or a failure."""
        known = self._known_search(request)
        if isinstance(known, str):
            return TopologyFailure(request.name, request.flavor, known)
        assert self.flavor is not None
        cache, parameters = known.cache, known.parameters
        counts = cache.refresh()
        found = cache.results.get((parameters, self.explains))
        if found is None:
            placed = self._search(self.flavor, cache, known.key, counts, parameters, None)
            found = placed
            if not isinstance(placed, str):
                found = self._make_assignment([(each.domain, each.pods) for each in placed])
            cache.results[parameters, self.explains] = found
        if isinstance(found, str):
            return TopologyFailure(request.name, request.flavor, found)
        assert isinstance(found, TopologyAssignment)
        assignments = {request.name: found}
        return assignments, assignments

    def _known_search(self, request: PodSetTopologyRequest) -> _KnownSearch | str:
        flavor = self.flavor
        if flavor is None or request.invalid_update:
            failure = self.prepare(request, None)
            assert isinstance(failure, str)
            return failure
        search_id = id(request.template), id(request.request), request.pod_count, request.is_implied, self.is_idle
        known = flavor.searches.get(search_id)
        if isinstance(known, _KnownSearch) and known.template is request.template and known.request is request.request:
            return known
        prepared = self.prepare(request, None)
        if isinstance(prepared, str):
            return prepared
        _, parameters, key = prepared
        result = _KnownSearch(request.template, request.request, parameters, key, self._counts_for(flavor, key))
        if len(flavor.searches) >= _SEARCHES_MAX:
            flavor.searches.clear()
        flavor.searches[search_id] = result
        return result

    def prepare(
        self, workers: PodSetTopologyRequest, leader: PodSetTopologyRequest | None
    ) -> tuple[FlavorTopology, PlacementParameters, CountKey] | str:
        """Return the flavor, the parameters of the search and the key of its counts; or why there is no search."""
        flavor = self.flavor
        if flavor is None:
            return f'Flavor "{workers.flavor}" information missing in TAS cache'
        if workers.invalid_update:
            return workers.invalid_update
        levels = flavor.tree.levels
        parameters = resolve_parameters(
            workers.request,
            levels,
            workers.pod_count,
            has_leader=leader is not None,
            is_implied=workers.is_implied,
            is_profile_mixed=self.state.rules.is_profile_mixed,
        )
        if isinstance(parameters, str):
            return parameters
        key = CountKey(
            pod_amounts(workers.template),
            None if leader is None else pod_amounts(leader.template),
            flavor.constraints_of(workers.template),
            parameters.slice_size,
            parameters.slice_level,
            parameters.inner_sizes,
            self.is_idle,
        )
        return flavor, parameters, key

    def _search(
        self,
        flavor: FlavorTopology,
        cache: CountCache | ClassCountCache,
        key: CountKey,
        counts: DomainCounts,
        parameters: PlacementParameters,
        leaves: range | None,
    ) -> list[PlacedPods] | str:
        search = DomainSearch(flavor.tree, counts, parameters, cache if isinstance(cache, ClassCountCache) else None)
        if (
            isinstance(cache, CountCache)
            and self.state.rules.is_balanced
            and not parameters.required
            and not parameters.unconstrained
        ):
            balanced = BalancedSearch(search, partial(cache.sum_up, with_inner=False)).run()
            if balanced is not None:
                return balanced
        placed = search.run()
        if isinstance(placed, NoPlacement):
            if not self.explains:
                return _UNEXPLAINED
            return _FailureText(flavor, search, cache, key, leaves).format(placed)
        return placed

    def _make_assignment(self, counts_by_domain: Sequence[tuple[int, int]]) -> TopologyAssignment:
        assert self.flavor is not None
        tree = self.flavor.tree
        paths = tree.paths[-1]
        domains = [
            TopologyDomain(tree.assignment_values(paths[domain]), count)
            for domain, count in sorted(counts_by_domain)
            if count > 0
        ]
        return TopologyAssignment(tree.assignment_levels, tuple(domains))

    # Replacement of a failed node.

    def replace_node(self, request: PodSetTopologyRequest) -> tuple[TopologyAssignment, TopologyAssignment] | str:
        """Return the assignment with the failed node replaced, and the replacement alone; or why there is none."""
        existing, flavor = request.existing, self.flavor
        assert existing is not None
        if flavor is None:
            return f'Flavor "{request.flavor}" information missing in TAS cache'
        tree = flavor.tree
        remaining = [domain for domain in existing.domains if domain.values[-1] != self.failed_node]
        count = sum(domain.pods for domain in existing.domains if domain.values[-1] == self.failed_node)
        for domain in remaining:
            if domain.values not in tree.leaf_by_values:
                return (
                    "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the "
                    f"stale domain {domain.values[0]}"
                )
        request = request._replace(pod_count=count)
        slices = request.request.slices if request.request is not None else ()
        if any(layer.size <= 0 for layer in slices):
            return "slice topology requested, but slice size not provided"
        leaves = self._replacement_leaves(request, remaining)
        if slices and leaves is not None and count % slices[0].size:
            assert request.request is not None
            whole = next((layer for layer in reversed(slices) if count % layer.size == 0), None)
            new_slices = () if whole is None else (whole,)
            request = request._replace(request=request.request._replace(slices=new_slices))
        placed = self.place(request, None, leaves)
        if isinstance(placed, str):
            return placed
        replacement = self._make_assignment([(each.domain, each.pods) for each in placed])
        if not replacement.domains:
            return f"cannot find replacement assignment for unhealthy node: {self.failed_node}"
        return self._merge(replacement, remaining), replacement

    def _merge(self, replacement: TopologyAssignment, remaining: Sequence[TopologyDomain]) -> TopologyAssignment:
        assert self.flavor is not None
        leaf_by_values = self.flavor.tree.leaf_by_values
        counts: dict[int, int] = {}
        for domain in (*replacement.domains, *remaining):
            leaf = leaf_by_values[domain.values]
            counts[leaf] = counts.get(leaf, 0) + domain.pods
        return self._make_assignment(list(counts.items()))

    def _replacement_leaves(self, request: PodSetTopologyRequest, remaining: Sequence[TopologyDomain]) -> range | None:
        """Return the domains of the lowest level that keep slices and required domains whole; None if all do."""
        assert self.flavor is not None
        tree, topology_request = self.flavor.tree, request.request
        level_name = requested_level(topology_request, tree.levels, is_implied=request.is_implied)
        if not remaining or level_name not in tree.levels:
            return None
        slices = topology_request.slices if topology_request is not None else ()
        if slices and request.pod_count % slices[0].size:
            broken = next(layer for layer in reversed(slices) if request.pod_count % layer.size)
            return _broken_slice_leaves(self.flavor, broken, request.pod_count, remaining)
        if topology_request is None or not topology_request.required:
            return None
        level = tree.levels.index(level_name)
        leaf = tree.leaf_by_values[remaining[0].values]
        return tree.leaves_below(level, tree.ancestor(leaf, level))


def _broken_slice_leaves(
    flavor: FlavorTopology, layer: SliceLayer, missing_count: int, remaining: Sequence[TopologyDomain]
) -> range | None:
    tree = flavor.tree
    if layer.topology not in tree.levels:
        return None
    level = tree.levels.index(layer.topology)
    counts: dict[int, int] = {}
    for domain in remaining:
        ancestor = tree.ancestor(tree.leaf_by_values[domain.values], level)
        counts[ancestor] = counts.get(ancestor, 0) + domain.pods
    for ancestor, count in sorted(counts.items()):
        if (count + missing_count) % layer.size == 0:
            return tree.leaves_below(level, ancestor)
    return None


def _has_domains(
    flavor: FlavorTopology | None, workers: PodSetTopologyRequest, leader: PodSetTopologyRequest | None
) -> bool:
    """Return whether all domains of the existing assignments of a group still exist."""
    if flavor is None:
        return False
    assignments = [request.existing for request in (workers, leader) if request is not None]
    domains = [domain for each in assignments if each is not None for domain in each.domains]
    return all(domain.values in flavor.tree.leaf_by_values for domain in domains)


# The capacity for the pods of a Workload at each level, for explanations.


class GroupCapacity(NamedTuple):
    """How many pods and slices of a pod set (or a group of two) fit in each domain, and whether all of them fit."""

    workers: PodSetTopologyRequest
    leader: PodSetTopologyRequest | None
    flavor: FlavorTopology
    parameters: PlacementParameters
    #: The counts at present, and if no Workload used the domains.
    free: DomainCounts
    idle: DomainCounts
    #: Why the pods do not fit; '' if they do.
    reason: str


def capacities_of(
    state: TopologyState, requests: Sequence[PodSetTopologyRequest]
) -> list[GroupCapacity | TopologyFailure]:
    """Return the capacity for each group of pod sets, up to the first one that does not fit.

    The pods of a group reduce the capacity for the next ones. A TopologyFailure stands for a group whose request does
    not suit the levels of the topology.
    """
    result: list[GroupCapacity | TopologyFailure] = []
    reserved: list[TopologyUsage] = []
    try:
        for group in _group_requests(requests):
            flavor = state.get(group[0].flavor)
            assigner = _FlavorAssigner(state, flavor, is_idle=False, failed_node="", explains=True)
            workers, leader = _workers_and_leader(group)
            prepared = assigner.prepare(workers, leader)
            if isinstance(prepared, str):
                return [*result, TopologyFailure(group[0].name, group[0].flavor, prepared)]
            built, parameters, key = prepared
            free = built.count_cache(key).refresh().copy()
            idle = built.count_cache(key._replace(is_idle=True)).refresh().copy()
            placed = assigner.place_group(group)
            reason = placed.reason if isinstance(placed, TopologyFailure) else ""
            result.append(GroupCapacity(workers, leader, built, parameters, free, idle, reason))
            if isinstance(placed, TopologyFailure):
                return result
            for request in group:
                usage = usage_of([request.flavor], placed[1][request.name], request.template)
                state.reserve(usage, 1)
                reserved.append(usage)
        return result
    finally:
        for usage in reserved:
            state.reserve(usage, -1)


def _workers_and_leader(
    group: Sequence[PodSetTopologyRequest],
) -> tuple[PodSetTopologyRequest, PodSetTopologyRequest | None]:
    workers, leader = group[0], None
    if len(group) > 1:
        leader = group[1]
        if leader.pod_count > workers.pod_count:
            workers, leader = leader, workers
    return workers, leader


# Why pods do not fit, with the number of nodes that each constraint excludes.


@dataclass(slots=True)
class _FailureText:
    flavor: FlavorTopology
    search: DomainSearch
    cache: CountCache | ClassCountCache
    key: CountKey
    leaves: range | None

    def format(self, failure: NoPlacement) -> str:
        """Return Kueue's message about a failed search."""
        parameters, tree = self.search.parameters, self.flavor.tree
        if failure.has_no_domains:
            return f"no topology domains at level: {tree.levels[failure.level]}"
        if parameters.layers:
            return self._layers_text(failure.level) + self._exclusions_text()
        unit = "pod" if parameters.slice_size == 1 else "slice"
        topology, total = self.flavor.topology, parameters.slice_count
        if failure.fitting == 0:
            text = f'topology "{topology}" doesn\'t allow to fit any of {total} {unit}(s)'
        else:
            text = f'topology "{topology}" allows to fit only {failure.fitting} out of {total} {unit}(s)'
        return text + self._exclusions_text()

    def _layers_text(self, level: int) -> str:
        tree, parameters, counts = self.flavor.tree, self.search.parameters, self.search.counts
        slices = counts.slices[level]
        best = max(tree.present_domains(level), key=lambda d: (slices[d], -d))
        texts = [f'topology "{self.flavor.topology}" doesn\'t allow to fit']
        for layer in parameters.layers:
            layer_level = tree.levels.index(layer.topology)
            domains = range(best, best + 1)
            for each in range(level, layer_level):
                domains = range(tree.first_child[each][domains.start], tree.first_child[each][domains.stop])
            self.search.fill(layer_level, domains)
            fitting = sum(counts.pods[layer_level][domain] // layer.size for domain in domains)
            texts.append(f"{fitting}/{parameters.pod_count // layer.size} slice(s) fit on level {layer.topology}")
        return "; ".join(texts)

    def _exclusions_text(self) -> str:
        tree, exclusions = self.flavor.tree, self.flavor.exclusions_for(self.key.constraints)
        reasons = exclusions.texts() if exclusions is not None else []
        if self.leaves is not None:
            eligible = exclusions.eligible if exclusions is not None else None
            outside = [
                leaf
                for leaf in range(tree.leaf_count)
                if leaf not in self.leaves and tree.nodes[leaf] and (eligible is None or eligible[leaf])
            ]
            if outside:
                reasons.append(f"topologyDomain: {len(outside)}")
        if isinstance(self.cache, ClassCountCache):
            limits = self.cache.limiting_resources()
        else:
            limits = self.cache.limiting_resources(self.leaves)
        reasons += [f'resource "{name}": {count}' for name, count in limits.items()]
        if not reasons:
            return ""
        return f". Total nodes: {tree.present_count}; excluded: {', '.join(sorted(reasons))}"
