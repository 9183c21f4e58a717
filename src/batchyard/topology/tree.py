"""Topology trees: the domains of a Topology's levels that the nodes of a ResourceFlavor form, and their free capacity.

The domains of a level are numbered in the order of their paths, so that the domains below one domain have consecutive
numbers, and a number breaks ties as a path does. Capacity is a list of amounts per resource, indexed by the domain of
the lowest level. Sources: Kueue's pkg/cache/scheduler (tas_topology_tree.go, tas_flavor_snapshot.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from batchyard.api.views.node import NodeView
from batchyard.api.well_known import HOSTNAME

#: The values of a domain's labels, from the highest level to its own.
Path: TypeAlias = tuple[str, ...]
PODS: Final = "pods"


class TopologyTree:
    """The domains that nodes form at each level of a topology, with the allocatable resources of the lowest level."""

    __slots__ = (
        "capacity",
        "first_child",
        "has_hosts",
        "leaf_by_node",
        "leaf_by_values",
        "leaf_count",
        "levels",
        "nodes",
        "parents",
        "paths",
    )

    def __init__(self, levels: Sequence[str], nodes: Iterable[NodeView]) -> None:
        """Build the tree; every node must have a label for each of the levels."""
        self.levels = tuple(levels)
        #: Whether the domains of the lowest level are single hosts.
        self.has_hosts = self.levels[-1:] == (HOSTNAME,)
        members: dict[Path, list[NodeView]] = {}
        path_by_host: dict[str, Path] = {}
        for node in nodes:
            path = tuple([node.labels[level] for level in self.levels])
            if self.has_hosts:
                # Nodes with the same host name form one domain, which has the path of the first one.
                path = path_by_host.setdefault(path[-1], path)
            members.setdefault(path, []).append(node)
        #: The paths of the domains, by level.
        self.paths: list[list[Path]] = []
        #: The number of each domain's parent in the next higher level, by level.
        self.parents: list[list[int]] = []
        #: For each domain, the number of its first child in the next lower level; then the number of all children.
        self.first_child: list[list[int]] = []
        self._number_domains(sorted(members))
        leaf_paths = self.paths[-1] if self.paths else []
        self.leaf_count = len(leaf_paths)
        #: The nodes of each domain of the lowest level.
        self.nodes = [members[path] for path in leaf_paths]
        self.leaf_by_node = {node.name: leaf for leaf, each in enumerate(self.nodes) for node in each}
        #: The domain of the lowest level by its values in a topology assignment.
        self.leaf_by_values = {self.assignment_values(path): leaf for leaf, path in enumerate(leaf_paths)}
        self.capacity: dict[str, list[int]] = {}
        for leaf, leaf_nodes in enumerate(self.nodes):
            for node in leaf_nodes:
                for resource, amount in node.allocatable.items():
                    amounts = self.capacity.get(resource)
                    if amounts is None:
                        amounts = self.capacity[resource] = [0] * self.leaf_count
                    amounts[leaf] += amount

    @property
    def assignment_levels(self) -> tuple[str, ...]:
        """The levels of topology assignments: only the host name if the lowest level is that, else all levels."""
        return self.levels[-1:] if self.has_hosts else self.levels

    def assignment_values(self, path: Path) -> Path:
        """Return the values of a domain of the lowest level in topology assignments."""
        return path[-1:] if self.has_hosts else path

    def leaves_below(self, level: int, domain: int) -> range:
        """Return the numbers of the domains of the lowest level in a domain of a level."""
        start, end = domain, domain + 1
        for each in range(level, len(self.levels) - 1):
            start, end = self.first_child[each][start], self.first_child[each][end]
        return range(start, end)

    def ancestor(self, leaf: int, level: int) -> int:
        """Return the domain of a level that contains a domain of the lowest level."""
        domain = leaf
        for each in range(len(self.levels) - 1, level, -1):
            domain = self.parents[each][domain]
        return domain

    def _number_domains(self, leaf_paths: Sequence[Path]) -> None:
        for depth in range(1, len(self.levels) + 1):
            paths: list[Path] = []
            parents: list[int] = []
            above = self.paths[-1] if depth > 1 else []
            first_child: list[int] = []
            parent = -1
            for path in leaf_paths:
                own_path = path[:depth]
                if paths and paths[-1] == own_path:
                    continue
                if above and (parent < 0 or above[parent] != own_path[:-1]):
                    parent += 1
                    first_child.append(len(paths))
                paths.append(own_path)
                parents.append(parent)
            if depth > 1:
                self.first_child.append([*first_child, len(paths)])
            self.paths.append(paths)
            self.parents.append(parents)


#: The resources that one pod uses, including one of the resource `pods`.
PodAmounts: TypeAlias = tuple[tuple[str, int], ...]
#: The changes after which counts are computed anew instead of updated, as a multiple of the domains.
_CHANGES_PER_LEAF: Final = 2


class FlavorCapacity:
    """The topology tree of a ResourceFlavor, and what is free in each domain of the lowest level.

    `free` is the capacity without the usage of other pods and of Workloads, `idle` the capacity without the usage of
    other pods only. `changes` lists the domains whose free capacity changed, so that counts of pods can be updated.
    """

    __slots__ = ("change_base", "changes", "free", "idle", "idle_version", "tree")

    def __init__(self, tree: TopologyTree) -> None:
        self.tree = tree
        self.free = {resource: list(amounts) for resource, amounts in tree.capacity.items()}
        self.idle = {resource: list(amounts) for resource, amounts in tree.capacity.items()}
        self.changes: list[int] = []
        #: The number of changes that are no longer in `changes`.
        self.change_base = 0
        #: Incremented with each change of `idle`.
        self.idle_version = 0

    @property
    def version(self) -> int:
        """The number of changes of `free` so far."""
        return self.change_base + len(self.changes)

    def use(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of Workloads: `count` pods (negative: pods that are gone), each with `amounts`."""
        self._subtract(self.free, leaf, amounts, count)
        self.changes.append(leaf)
        if len(self.changes) > _CHANGES_PER_LEAF * self.tree.leaf_count + 1024:
            self.change_base += len(self.changes)
            self.changes = []

    def occupy(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of other pods, or of pod sets of the same Workload, as `use()` does."""
        self._subtract(self.idle, leaf, amounts, count)
        self.idle_version += 1
        self.use(leaf, amounts, count)

    def count_pods(self, leaf: int, amounts: PodAmounts, *, is_idle: bool = False) -> int:
        """Return how many pods fit in a domain of the lowest level; with `is_idle`, if no Workload uses it."""
        table = self.idle if is_idle else self.free
        count = MAX_COUNT
        for resource, amount in amounts:
            if amount:
                free_amounts = table.get(resource)
                fitting = free_amounts[leaf] // amount if free_amounts is not None else 0
                if fitting < count:
                    count = fitting
        return max(0, count)

    def _subtract(self, table: dict[str, list[int]], leaf: int, amounts: PodAmounts, count: int) -> None:
        for resource, amount in amounts:
            free_amounts = table.get(resource)
            if free_amounts is None:
                free_amounts = table[resource] = [0] * self.tree.leaf_count
            free_amounts[leaf] -= amount * count


#: The maximum number of pods in a domain.
MAX_COUNT: Final = 2**31 - 1


def has_labels(labels: Mapping[str, str], required: Mapping[str, str], levels: Sequence[str]) -> bool:
    """Return whether a node belongs to a flavor: it has the flavor's labels, and a label for each level."""
    return all(labels.get(key) == value for key, value in required.items()) and all(level in labels for level in levels)
