"""State of all topologies: nodes, pods outside topologies, and the usage of Workloads, for each flavor with a topology.

Flavors whose topology ends at the host name share the usage of hosts, because they may have the same nodes. Sources:
Kueue's pkg/cache/scheduler (tas_cache.go, tas_flavor.go, tas_nodes_cache.go, tas_non_tas_pod_cache.go).
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.api.scheme import NODE, POD
from batchyard.api.views.node import FlavorView, NodeView, PodTemplate, node_view, parse_pod_template
from batchyard.api.views.topology import TopologyAssignment, TopologyDomain
from batchyard.interfaces.client import Reader
from batchyard.topology.class_counts import ClassCountCache
from batchyard.topology.counts import CountCache, CountKey, NodeConstraints, NodeExclusions, pod_amounts
from batchyard.topology.tree import FlavorCapacity, PodAmounts, TopologyTree, has_labels


class FlavorUsage(NamedTuple):
    """Equal pods of a Workload in topology domains of one flavor."""

    flavor: str
    #: Whether the domains are hosts, which other flavors may have too.
    is_host: bool
    #: What one pod uses, including one of the resource `pods`.
    pod: PodAmounts
    domains: tuple[TopologyDomain, ...]


#: The usage of a Workload, or of an assignment.
TopologyUsage: TypeAlias = tuple[FlavorUsage, ...]


def usage_of(flavors: Iterable[str], assignment: TopologyAssignment, template: PodTemplate) -> TopologyUsage:
    """Return the usage of a pod set that has this topology assignment in `flavors`."""
    is_host, amounts = assignment.is_by_host, pod_amounts(template)
    return tuple([FlavorUsage(flavor, is_host, amounts, assignment.domains) for flavor in sorted(set(flavors))])


#: The annotations that mark a pod whose usage belongs to a Workload with topology.
_TOPOLOGY_ANNOTATIONS: Final = (
    well_known.REQUIRED_TOPOLOGY,
    well_known.PREFERRED_TOPOLOGY,
    well_known.UNCONSTRAINED_TOPOLOGY,
    well_known.SLICE_TOPOLOGY,
    well_known.SLICE_LAYERS,
)
_TERMINAL_PHASES: Final = ("Succeeded", "Failed")
#: The maximum numbers of cached counts per flavor, of known constraints, and of templates whose constraints are known.
_COUNT_CACHES_MAX: Final = 512
_CONSTRAINTS_MAX: Final = 256
_TEMPLATES_MAX: Final = 4096


#: The ids of a pod template and its topology request, the number of pods, whether topology is implied, and whether
#: Workloads count.
SearchId: TypeAlias = tuple[int, int, int, bool, bool]


class FlavorTopology:
    """The topology of one flavor: its capacity, and the counts of pods that earlier searches computed."""

    __slots__ = (
        *("_class_caches", "_constraints", "_count_caches", "_exclusions", "_obeys_preferences", "_templates"),
        *("capacity", "flavor", "searches", "topology", "tree"),
    )

    def __init__(
        self, flavor: FlavorView, levels: Sequence[str], nodes: Iterable[NodeView], *, obeys_preferences: bool = False
    ) -> None:
        """Build the tree; with `obeys_preferences`, preferred node affinity orders the domains."""
        self.flavor = flavor
        self._obeys_preferences = obeys_preferences
        self.topology = flavor.topology
        self.tree = TopologyTree(levels, nodes)
        self.capacity = FlavorCapacity(self.tree)
        self._count_caches: dict[CountKey, CountCache] = {}
        self._class_caches: dict[CountKey, ClassCountCache] = {}
        #: What earlier searches derived from their requests, by the ids of the requests; cleared with the counts.
        self.searches: dict[SearchId, object] = {}
        #: The constraints that occurred, numbered; and the number of each.
        self._constraints: list[NodeConstraints] = []
        self._exclusions: dict[int, NodeExclusions] = {}
        #: By the id of a template: the template, and the number of its constraints.
        self._templates: dict[int, tuple[PodTemplate, int]] = {}

    def constraints_of(self, template: PodTemplate) -> int:
        """Return the number of a pod template's constraints on the nodes of this flavor, until the next call."""
        known = self._templates.get(id(template))
        if known is not None and known[0] is template:
            return known[1]
        constraints = NodeConstraints(
            template.node_selector,
            template.affinity,
            (*template.tolerations, *self.flavor.tolerations),
            template.preferred_affinity if self._obeys_preferences else (),
        )
        if constraints in self._constraints:
            number = self._constraints.index(constraints)
        else:
            if len(self._constraints) >= _CONSTRAINTS_MAX:
                self._forget_constraints()
            number = len(self._constraints)
            self._constraints.append(constraints)
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        self._templates[id(template)] = template, number
        return number

    def _forget_constraints(self) -> None:
        """Forget all numbers of constraints, and what was computed for them; node changes keep the tree and these."""
        self._constraints.clear()
        self._exclusions.clear()
        self._templates.clear()
        self._forget_counts()

    def _forget_counts(self) -> None:
        self._count_caches.clear()
        self._class_caches.clear()
        self.searches.clear()

    def exclusions_for(self, constraints: int) -> NodeExclusions | None:
        """Return which hosts pods cannot use; None if the topology does not end at the host name."""
        return self._usable_domains(constraints) if self.tree.has_hosts else None

    def _usable_domains(self, constraints: int) -> NodeExclusions:
        """Return which domains pods cannot use; without hosts, those are the domains without nodes."""
        number = constraints if self.tree.has_hosts else -1
        exclusions = self._exclusions.get(number)
        if exclusions is None:
            exclusions = NodeExclusions(self.tree.nodes, None if number < 0 else self._constraints[number])
            self._exclusions[number] = exclusions
        return exclusions

    def change_node(self, name: str, node: NodeView | None) -> int:
        """Replace, remove (None) or return a node without building the tree anew; return its domain, or -1.

        The result is -1, and nothing is changed, if the tree has to be built anew. The capacity of the node counts, but
        its pods and the usage of a domain that is gone or returns do not.
        """
        tree = self.tree
        leaf = tree.leaf_by_node.get(name, -1)
        old_node = None if leaf < 0 else next(each for each in tree.nodes[leaf] if each.name == name)
        if node is not None and old_node is None and self._insert(node):
            self._forget_counts()
        leaf = tree.replace_node(name, node)
        if leaf >= 0:
            for each, sign in ((old_node, -1), (node, 1)):
                if each is not None:
                    tree.add_capacity(leaf, each, sign)
                    self.capacity.occupy(leaf, tuple(each.allocatable.items()), -sign)
            for exclusions in self._exclusions.values():
                exclusions.update(leaf, tree.nodes[leaf])
        return leaf

    def _insert(self, node: NodeView) -> bool:
        """Insert the domain of a node if it is new; return whether it was."""
        leaf = self.tree.insert_leaf(node)
        if leaf < 0:
            return False
        self.capacity.insert(leaf)
        for exclusions in self._exclusions.values():
            exclusions.insert(leaf)
        return True

    def count_cache(self, key: CountKey) -> CountCache:
        """Return the counts of pods and slices in each domain for a request; call `refresh()` to update them."""
        cache = self._count_caches.get(key)
        if cache is None:
            if len(self._count_caches) >= _COUNT_CACHES_MAX:
                self._forget_counts()
            cache = CountCache(self.capacity, key, self._usable_domains(key.constraints))
            self._count_caches[key] = cache
        return cache

    def class_counts(self, key: CountKey) -> ClassCountCache | None:
        """Return the counts by classes of domains, which are faster; None if they do not suit the request."""
        if key.leader is not None or self._constraints[key.constraints].preferred_affinity:
            return None
        cache = self._class_caches.get(key)
        if cache is None:
            if len(self._class_caches) >= _COUNT_CACHES_MAX:
                self._forget_counts()
            cache = ClassCountCache(self.capacity, key, self._usable_domains(key.constraints))
            self._class_caches[key] = cache
        return cache


@dataclass(frozen=True, slots=True)
class TopologyRules:
    """The rules of topology-aware scheduling that feature gates select; the defaults are Kueue's."""

    #: Places pods without a required or preferred level on the smallest domains first.
    is_profile_mixed: bool = True
    #: Spreads pods with a preferred level evenly over domains.
    is_balanced: bool = False
    #: Orders domains by preferred node affinity.
    obeys_preferences: bool = False
    #: Lets flavors with the same hosts share the usage of hosts.
    shares_hosts: bool = True
    #: Lets a Workload search other domains in the same cycle if an earlier one took its domains.
    recomputes: bool = True
    #: Evicts a Workload without a replacement for its failed node; else the search is repeated.
    fails_fast: bool = True
    #: Keeps the pods of a replaced slice of an elastic job in their domains.
    keeps_slices: bool = False


def _topology_rules(gates: Mapping[str, bool]) -> TopologyRules:
    return TopologyRules(
        is_profile_mixed=gates.get(well_known.TAS_PROFILE_MIXED, True),
        is_balanced=gates.get(well_known.TAS_BALANCED_PLACEMENT, False),
        obeys_preferences=gates.get(well_known.TAS_PREFERRED_AFFINITY, False),
        shares_hosts=gates.get(well_known.TAS_OVERLAPPING_FLAVORS, True),
        recomputes=gates.get(well_known.TAS_RECOMPUTATION, True),
        fails_fast=gates.get(well_known.TAS_FAIL_FAST, True),
        keeps_slices=gates.get(well_known.ELASTIC_TOPOLOGY_GATE, False)
        and gates.get(well_known.ELASTIC_JOBS_GATE, True),
    )


class TopologyState:
    """Topologies, flavors, nodes, other pods and usage; the trees of flavors are built when they are needed."""

    def __init__(self) -> None:
        #: Whether topology-aware scheduling is enabled.
        self.is_enabled = False
        #: The levels of each Topology.
        self.topologies: dict[str, tuple[str, ...]] = {}
        #: The flavors that have a Topology.
        self.flavors: dict[str, FlavorView] = {}
        #: The nodes that are ready and not cordoned.
        self.nodes: dict[str, NodeView] = {}
        #: Whether Nodes and Pods must be listed, because their events were ignored while no flavor had a topology.
        self.needs_listing = False
        #: The rules that feature gates select.
        self.rules = TopologyRules()
        #: The changes of `assume_at`, each with its position and sign.
        self.assumed: list[tuple[int, TopologyUsage, int]] = []
        #: The node and usage of each pod outside topologies, by namespace and name.
        self._pods: dict[str, tuple[str, PodAmounts]] = {}
        #: The number of such pods by node, and by what they use.
        self._pods_by_node: dict[str, dict[PodAmounts, int]] = {}
        #: The usage of Workloads by flavor ('' if flavors with hosts share it) and domain, and the amounts of one pod.
        self._usage: dict[tuple[str, tuple[str, ...]], dict[PodAmounts, int]] = {}
        self._built: dict[str, FlavorTopology] = {}

    def enable(self, gates: Mapping[str, bool]) -> None:
        """Enable topology-aware scheduling, with these feature gates; call this before the first flavor is added.

        Otherwise a flavor with a Topology is like one without, because Nodes and Pods are not observed.
        """
        self.is_enabled = gates.get(well_known.TOPOLOGY_AWARE_SCHEDULING, True)
        self.rules = _topology_rules(gates)

    # Topologies and flavors.

    def put_topology(self, name: str, levels: Sequence[str]) -> bool:
        """Add a Topology or change its levels; return whether something changed."""
        if self.topologies.get(name) == tuple(levels):
            return False
        self.topologies[name] = tuple(levels)
        self._forget_trees(flavor.name for flavor in self.flavors.values() if flavor.topology == name)
        return True

    def remove_topology(self, name: str) -> None:
        """Remove a Topology."""
        if self.topologies.pop(name, None) is not None:
            self._forget_trees(flavor.name for flavor in self.flavors.values() if flavor.topology == name)

    def put_flavor(self, flavor: FlavorView) -> None:
        """Add or change a ResourceFlavor; one without a Topology is removed."""
        if not flavor.topology or not self.is_enabled:
            self.remove_flavor(flavor.name)
            return
        self.needs_listing |= not self.flavors
        self.flavors[flavor.name] = flavor
        self._forget_trees((flavor.name,))

    def remove_flavor(self, name: str) -> None:
        """Remove a ResourceFlavor."""
        if self.flavors.pop(name, None) is not None:
            self._forget_trees((name,))

    def get(self, name: str) -> FlavorTopology | None:
        """Return the topology of a flavor; None if the flavor has none, or if its Topology does not exist."""
        built = self._built.get(name)
        if built is None:
            flavor = self.flavors.get(name)
            levels = None if flavor is None else self.topologies.get(flavor.topology)
            if flavor is None or levels is None:
                return None
            built = self._built[name] = self._build(flavor, levels)
        return built

    def build(self) -> None:
        """Build the trees of all flavors; call this before tentative changes, which apply only to built trees."""
        for name in self.flavors:
            self.get(name)

    def _build(self, flavor: FlavorView, levels: Sequence[str]) -> FlavorTopology:
        nodes = (self.nodes[name] for name in sorted(self.nodes))
        nodes = (node for node in nodes if has_labels(node.labels, flavor.labels, levels))
        built = FlavorTopology(flavor, levels, nodes, obeys_preferences=self.rules.obeys_preferences)
        tree, capacity = built.tree, built.capacity
        for node_name, pods in self._pods_by_node.items():
            leaf = tree.leaf_by_node.get(node_name)
            if leaf is not None:
                for amounts, count in pods.items():
                    capacity.occupy(leaf, amounts, count)
        owner = "" if tree.has_hosts and self.rules.shares_hosts else flavor.name
        _add_usage(built, {values: counts for (each, values), counts in self._usage.items() if each == owner})
        return built

    def _forget_trees(self, names: Iterable[str]) -> None:
        for name in names:
            self._built.pop(name, None)

    # Nodes and pods.

    def list_nodes(self, reader: Reader) -> None:
        """Read all Nodes and Pods, because their events are ignored while no flavor has a Topology."""
        self.needs_listing = False
        self.nodes, self._pods, self._pods_by_node = {}, {}, {}
        self._forget_trees(self.flavors)
        for node in reader.list(NODE):
            self.observe_node(node, None, is_deleted=False)
        for pod in reader.list(POD):
            self.observe_pod(pod, is_deleted=False)

    def observe_node(self, obj: Obj, old: Obj | None, *, is_deleted: bool) -> bool:
        """Update a Node; return whether flavors may admit other Workloads than before.

        The result is False if the change does not matter for scheduling, or if no flavor matches the node.
        """
        view = node_view(obj)
        old_view = self.nodes.pop(view.name, None)
        if not is_deleted and view.ready and not view.unschedulable:
            self.nodes[view.name] = view
        # Without `old`, the flavors that have the known node lose it.
        views = [view] if old is None else [node_view(old), view]
        views += [] if old_view is None else [old_view]
        matching = [
            name
            for name, flavor in self.flavors.items()
            if any(_has_node(self.topologies, flavor, each) for each in views)
        ]
        new_view = self.nodes.get(view.name)
        if old_view != new_view:
            self._forget_trees([each for each in matching if not self._change_node(each, view.name, new_view)])
        return bool(matching) and (old is None or is_deleted or _scheduling_fields(old) != _scheduling_fields(obj))

    def _change_node(self, flavor: str, name: str, node: NodeView | None) -> bool:
        """Change a node in the built tree of a flavor; return whether that was possible."""
        built = self._built.get(flavor)
        if built is None or self.rules.is_balanced:
            # Balanced placement also considers domains without room, so domains without nodes must not remain.
            return False
        tree = built.tree
        if node is not None and not _has_node(self.topologies, built.flavor, node):
            node = None
        old_leaf = tree.leaf_by_node.get(name, -1)
        if old_leaf < 0 and node is None:
            return True
        old_present_count = tree.present_count
        leaf = built.change_node(name, node)
        if leaf < 0:
            return False
        if old_leaf < 0 or node is None:
            for amounts, count in self._pods_by_node.get(name, {}).items():
                built.capacity.occupy(leaf, amounts, count if old_leaf < 0 else -count)
        sign = tree.present_count - old_present_count
        if sign:
            values = tree.assignment_values(tree.paths[-1][leaf])
            owner = "" if tree.has_hosts and self.rules.shares_hosts else flavor
            for amounts, count in self._usage.get((owner, values), {}).items():
                built.capacity.use(leaf, amounts, sign * count)
        return True

    def replace_nodes(self, removed: Iterable[str], added: Iterable[NodeView]) -> None:
        """Remove and add usable nodes by name, for a simulated change; the trees are built again."""
        for name in removed:
            self.nodes.pop(name, None)
        for node in added:
            self.nodes[node.name] = node
        self._forget_trees(self.flavors)

    def pod_count_on(self, nodes: Container[str]) -> int:
        """Return the number of pods outside topologies on some nodes."""
        return sum(node in nodes for node, _ in self._pods.values())

    def copy(self) -> "TopologyState":
        """Return a copy without trees and tentative changes; changes of the copy do not affect the original."""
        result = TopologyState()
        result.is_enabled, result.topologies, result.flavors = self.is_enabled, {**self.topologies}, {**self.flavors}
        result.nodes, result.rules, result._pods = {**self.nodes}, self.rules, {**self._pods}
        result._pods_by_node = {node: {**pod_counts} for node, pod_counts in self._pods_by_node.items()}
        result._usage = {domain: {**pod_counts} for domain, pod_counts in self._usage.items()}
        return result

    def observe_pod(self, obj: Obj, *, is_deleted: bool) -> str:
        """Update a Pod; return the name of the node on which it frees capacity, '' if none."""
        metadata = obj["metadata"]
        key = f"{metadata.get('namespace', '')}/{metadata['name']}"
        old_use = self._pods.pop(key, None)
        node = (obj.get("spec") or {}).get("nodeName") or ""
        new_use = None
        if not is_deleted and node and is_outside_topologies(obj):
            new_use = node, pod_amounts(parse_pod_template(obj["spec"]))
            self._pods[key] = new_use
        if new_use == old_use:
            return ""
        for use, count in ((old_use, -1), (new_use, 1)):
            if use is not None:
                _add_count(self._pods_by_node, use[0], use[1], count)
                _occupy(self._built.values(), *use, count)
        if old_use is None:
            return ""
        old_node, old_amounts = old_use
        is_freeing = new_use is None or new_use[0] != old_node or _is_any_lower(new_use[1], old_amounts)
        return old_node if is_freeing else ""

    def flavors_of_node(self, node: str) -> list[str]:
        """Return the names of the flavors to which a usable node belongs."""
        view = self.nodes.get(node)
        return (
            []
            if view is None
            else [name for name, each in self.flavors.items() if _has_node(self.topologies, each, view)]
        )

    # Usage of Workloads.

    def add_usage(self, usage: TopologyUsage, sign: int = 1) -> None:
        """Count the usage of a Workload (sign 1), or stop counting it (-1)."""
        for flavor, is_host, amounts, domains in usage:
            owner = "" if is_host and self.rules.shares_hosts else flavor
            for values, count in domains:
                _add_count(self._usage, (owner, values), amounts, sign * count)
        self.assume(usage, sign)

    def assume(self, usage: TopologyUsage, sign: int) -> None:
        """Change the free capacity for a while: by the usage of a Workload (sign 1), or without it (-1)."""
        for flavor, is_host, amounts, domains in usage:
            for built in self._affected(flavor, is_host=is_host):
                leaf_by_values = built.tree.leaf_by_values
                leaf_counts: list[tuple[int, int]] = []
                for values, count in domains:
                    leaf = leaf_by_values.get(values, -1)
                    if leaf >= 0:
                        leaf_counts.append((leaf, sign * count))
                built.capacity.free.subtract(amounts, leaf_counts)

    def assume_at(self, position: int, usage: TopologyUsage, sign: int) -> None:
        """Change the free capacity until `undo_after`; `position` counts the changes of quota before this one."""
        self.assumed.append((position, usage, sign))
        self.assume(usage, sign)

    def undo_after(self, position: int) -> None:
        """Undo the changes of `assume_at` with a greater position."""
        # A change follows a change of quota in the same block, so it is older only if both are.
        while self.assumed and self.assumed[-1][0] > position:
            _, usage, sign = self.assumed.pop()
            self.assume(usage, -sign)

    def reserve(self, usage: TopologyUsage, sign: int) -> None:
        """Change the free capacity and the idle capacity for a while, for the next pod sets of a Workload."""
        for flavor, is_host, amounts, domains in usage:
            for built in self._affected(flavor, is_host=is_host):
                for values, count in domains:
                    leaf = built.tree.leaf_by_values.get(values)
                    if leaf is not None:
                        built.capacity.occupy(leaf, amounts, sign * count)

    def _affected(self, flavor: str, *, is_host: bool) -> list[FlavorTopology]:
        if is_host and self.rules.shares_hosts:
            return [built for built in self._built.values() if built.tree.has_hosts]
        own = self._built.get(flavor)
        return [] if own is None or own.tree.has_hosts is not is_host else [own]

    def fits(self, usage: TopologyUsage) -> bool:
        """Return whether each domain has room for its pods; the resource `pods` is not compared, as in Kueue."""
        for flavor, _, amounts, domains in usage:
            built = self.get(flavor)
            if built is None:
                return False
            compared = tuple([each for each in amounts if each[0] != "pods"])
            for values, count in domains:
                leaf = built.tree.leaf_by_values.get(values, -1)
                if leaf < 0 or built.capacity.count_pods(leaf, compared) < count:
                    return False
        return True


def domains_in(built: FlavorTopology, usage: TopologyUsage, rules: TopologyRules) -> Iterator[TopologyDomain]:
    """Yield the domains of a Workload's usage that are domains of a flavor, if they exist."""
    for flavor, is_host, _, domains in usage:
        if built.tree.has_hosts if is_host and rules.shares_hosts else flavor == built.flavor.name:
            yield from domains


_Owner = TypeVar("_Owner")


def _has_node(topologies: Mapping[str, Sequence[str]], flavor: FlavorView, node: NodeView) -> bool:
    levels = topologies.get(flavor.topology)
    return levels is not None and has_labels(node.labels, flavor.labels, levels)


def _occupy(flavors: Iterable[FlavorTopology], node: str, amounts: PodAmounts, count: int) -> None:
    for flavor in flavors:
        leaf = flavor.tree.leaf_by_node.get(node)
        if leaf is not None:
            flavor.capacity.occupy(leaf, amounts, count)


def _add_usage(flavor: FlavorTopology, usage: Mapping[tuple[str, ...], Mapping[PodAmounts, int]]) -> None:
    for values, pod_counts in usage.items():
        leaf = flavor.tree.leaf_by_values.get(values)
        if leaf is not None:
            for amounts, count in pod_counts.items():
                flavor.capacity.use(leaf, amounts, count)


def _add_count(counts: dict[_Owner, dict[PodAmounts, int]], owner: _Owner, amounts: PodAmounts, count: int) -> None:
    """Add pods of an owner that use these amounts; counts of 0 are removed."""
    own_counts = counts.setdefault(owner, {})
    own_counts[amounts] = own_counts.get(amounts, 0) + count
    if not own_counts[amounts]:
        del own_counts[amounts]
        if not own_counts:
            del counts[owner]


def _scheduling_fields(node: Obj) -> tuple[object, ...]:
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return (
        metadata.get("labels") or {},
        metadata.get("annotations") or {},
        spec.get("taints") or [],
        bool(spec.get("unschedulable")),
        status.get("allocatable") or {},
        conditions,
    )


def is_topology_pod(pod: Obj) -> bool:
    """Return whether a pod is placed by topology-aware scheduling: it has an annotation with a topology request."""
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return any(name in annotations for name in _TOPOLOGY_ANNOTATIONS)


def is_outside_topologies(pod: Obj) -> bool:
    """Return whether a pod on a node uses capacity of its own: it is not placed by topologies, and has not ended."""
    return not is_topology_pod(pod) and (pod.get("status") or {}).get("phase") not in _TERMINAL_PHASES


def _is_any_lower(amounts: PodAmounts, old_amounts: PodAmounts) -> bool:
    new_amounts = dict(amounts)
    return any(new_amounts.get(resource, 0) < amount for resource, amount in old_amounts)
