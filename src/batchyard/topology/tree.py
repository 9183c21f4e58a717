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
        "absent",
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
        #: The domains of the lowest level whose nodes are all gone, by path; they keep their numbers, without capacity.
        self.absent: dict[Path, int] = {}
        self.capacity: dict[str, list[int]] = {}
        for leaf, leaf_nodes in enumerate(self.nodes):
            for node in leaf_nodes:
                self.add_capacity(leaf, node, 1)

    @property
    def present_count(self) -> int:
        """The number of domains of the lowest level that have nodes."""
        return self.leaf_count - len(self.absent)

    def add_capacity(self, leaf: int, node: NodeView, sign: int) -> None:
        """Add the resources of a node (sign 1) to a domain of the lowest level, or remove them (-1)."""
        for resource, amount in node.allocatable.items():
            amounts = self.capacity.get(resource)
            if amounts is None:
                amounts = self.capacity[resource] = [0] * self.leaf_count
            amounts[leaf] += sign * amount

    def path_of(self, node: NodeView) -> Path:
        """Return the values of a node's labels, from the highest level to the lowest."""
        return tuple([node.labels[level] for level in self.levels])

    def replace_node(self, name: str, node: NodeView | None) -> int:
        """Replace, remove (None) or return a node to its domain, and return the domain of the lowest level.

        The result is -1, and nothing is changed, if that is impossible without new numbers: if the node has another
        path than before, if its domain is new, or if several nodes have its host name.
        """
        leaf = self.leaf_by_node.get(name, -1)
        path = None if node is None else self.path_of(node)
        if leaf < 0:
            return -1 if node is None or path is None else self._return_node(node, path)
        nodes = self.nodes[leaf]
        if (self.has_hosts and len(nodes) > 1) or path not in (None, self.paths[-1][leaf]):
            return -1
        position = next(index for index, each in enumerate(nodes) if each.name == name)
        if node is not None:
            nodes[position] = node
            return leaf
        del nodes[position], self.leaf_by_node[name]
        if not nodes:
            own_path = self.paths[-1][leaf]
            self.absent[own_path] = leaf
            del self.leaf_by_values[self.assignment_values(own_path)]
        return leaf

    def _return_node(self, node: NodeView, path: Path) -> int:
        leaf = self.absent.get(path, -1)
        values = self.assignment_values(path)
        if leaf < 0:
            # Nodes with the same host name form one domain, so a second one may change the path.
            leaf = -1 if self.has_hosts else self.leaf_by_values.get(values, -1)
        elif values in self.leaf_by_values:
            return -1
        if leaf >= 0:
            self.absent.pop(path, None)
            self.nodes[leaf].append(node)
            self.leaf_by_node[node.name] = leaf
            self.leaf_by_values[values] = leaf
        return leaf

    def is_present(self, level: int, domain: int) -> bool:
        """Return whether a domain of a level has nodes."""
        return not self.absent or any(self.nodes[leaf] for leaf in self.leaves_below(level, domain))

    def present_domains(self, level: int) -> Sequence[int]:
        """Return the domains of a level that have nodes, in ascending order."""
        domains = range(len(self.paths[level]))
        return [domain for domain in domains if self.is_present(level, domain)] if self.absent else domains

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
#: The changes after which readers start over, as a multiple of the domains.
_CHANGES_PER_LEAF: Final = 2
#: The classes after which classes are numbered anew, as a multiple of the domains.
_CLASSES_PER_LEAF: Final = 2


class LeafClasses:
    """The domains of the lowest level by their free amounts: domains with equal amounts form one class.

    Requests need one count of pods per class instead of one per domain. A set of domains is an integer whose bit N
    stands for domain N.
    """

    __slots__ = ("_by_amounts", "_columns", "_names", "amounts", "ids", "masks", "numbering", "sizes", "used")

    def __init__(self) -> None:
        #: The class of each domain.
        self.ids: list[int] = []
        #: The amounts of each class, in the order of `column_of`.
        self.amounts: list[tuple[int, ...]] = []
        #: The domains of each class, as bits; and their number.
        self.masks: list[int] = []
        self.sizes: list[int] = []
        #: The classes with domains.
        self.used: set[int] = set()
        #: Incremented when all classes get other numbers.
        self.numbering = 0
        self._by_amounts: dict[tuple[int, ...], int] = {}
        self._names: dict[str, int] = {}
        self._columns: list[list[int]] = []

    def column_of(self, resource: str) -> int:
        """Return the position of a resource in the amounts of classes; -1 if no domain has it."""
        return self._names.get(resource, -1)

    def rebuild(self, table: Mapping[str, list[int]], leaf_count: int) -> None:
        """Number the classes of all domains anew."""
        self._names = {resource: column for column, resource in enumerate(table)}
        self._columns = list(table.values())
        self.numbering += 1
        by_amounts: dict[tuple[int, ...], int] = {}
        members: list[list[int]] = []
        self.ids = []
        rows = zip(*self._columns, strict=True) if self._columns else [()] * leaf_count
        for leaf, amounts in enumerate(rows):
            number = by_amounts.setdefault(amounts, len(members))
            if number == len(members):
                members.append([])
            members[number].append(leaf)
            self.ids.append(number)
        self._by_amounts = by_amounts
        self.amounts = list(by_amounts)
        self.sizes = [len(leaves) for leaves in members]
        self.masks = [mask_of(leaves, leaf_count) for leaves in members]
        self.used = set(range(len(members)))

    def update(self, table: Mapping[str, list[int]], leaves: Iterable[int]) -> None:
        """Move domains whose free amounts changed to their new classes."""
        leaf_count = len(self.ids)
        if len(table) != len(self._columns) or len(self.amounts) > _CLASSES_PER_LEAF * leaf_count + 1024:
            self.rebuild(table, leaf_count)
            return
        ids, masks, sizes, by_amounts = self.ids, self.masks, self.sizes, self._by_amounts
        columns = self._columns
        for leaf in leaves:
            amounts = tuple([column[leaf] for column in columns])
            number = by_amounts.get(amounts, -1)
            if number < 0:
                number = by_amounts[amounts] = len(masks)
                self.amounts.append(amounts)
                masks.append(0)
                sizes.append(0)
            old = ids[leaf]
            if number == old:
                continue
            bit = 1 << leaf
            masks[old] ^= bit
            masks[number] |= bit
            sizes[old] -= 1
            if not sizes[old]:
                self.used.discard(old)
            if not sizes[number]:
                self.used.add(number)
            sizes[number] += 1
            ids[leaf] = number


def mask_of(leaves: Iterable[int], leaf_count: int) -> int:
    """Return a set of domains as an integer with one bit per domain."""
    bits = bytearray((leaf_count + 8) >> 3)
    for leaf in leaves:
        bits[leaf >> 3] |= 1 << (leaf & 7)
    return int.from_bytes(bits, "little")


def lowest_of(mask: int) -> int:
    """Return the lowest number in a set of domains, which must not be empty."""
    return (mask & -mask).bit_length() - 1


class CapacityTable:
    """The free amounts of the domains of the lowest level, by resource, and a log of the domains that changed."""

    __slots__ = ("_class_version", "_classes", "_leaf_count", "amounts", "change_base", "changes")

    def __init__(self, amounts: Mapping[str, Sequence[int]], leaf_count: int) -> None:
        self.amounts = {resource: list(column) for resource, column in amounts.items()}
        #: The domains that changed, in order; a reader updates what it derived from them.
        self.changes: list[int] = []
        #: The number of changes that are no longer in `changes`.
        self.change_base = 0
        self._leaf_count = leaf_count
        self._classes = LeafClasses()
        self._class_version = -1

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return self.change_base + len(self.changes)

    def changed_since(self, version: int) -> Sequence[int] | None:
        """Return the domains that changed after a version, each once and in order; None if all may have changed."""
        if version < self.change_base:
            return None
        changed = self.changes[version - self.change_base :]
        return sorted(set(changed)) if len(changed) > 1 else changed

    def subtract(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of `count` pods (negative: of pods that are gone) in a domain."""
        table = self.amounts
        for resource, amount in amounts:
            column = table.get(resource)
            if column is None:
                column = table[resource] = [0] * self._leaf_count
            column[leaf] -= amount * count
        changes = self.changes
        changes.append(leaf)
        if len(changes) > _CHANGES_PER_LEAF * self._leaf_count + 1024:
            self.change_base += len(changes)
            self.changes = []

    def classes(self) -> LeafClasses:
        """Return the classes of domains with equal amounts, for the current amounts."""
        version = self.version
        if self._class_version != version:
            changed = self.changed_since(self._class_version)
            if changed is None:
                self._classes.rebuild(self.amounts, self._leaf_count)
            else:
                self._classes.update(self.amounts, changed)
            self._class_version = version
        return self._classes


class FlavorCapacity:
    """The topology tree of a ResourceFlavor, and what is free in each domain of the lowest level.

    `free` is the capacity without the usage of other pods and of Workloads, `idle` the capacity without the usage of
    other pods only.
    """

    __slots__ = ("free", "idle", "tree")

    def __init__(self, tree: TopologyTree) -> None:
        self.tree = tree
        self.free = CapacityTable(tree.capacity, tree.leaf_count)
        self.idle = CapacityTable(tree.capacity, tree.leaf_count)

    def table(self, *, is_idle: bool) -> CapacityTable:
        """Return the free amounts; with `is_idle`, those without any Workload."""
        return self.idle if is_idle else self.free

    def use(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of Workloads: `count` pods (negative: pods that are gone), each with `amounts`."""
        self.free.subtract(leaf, amounts, count)

    def occupy(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of other pods, or of pod sets of the same Workload, as `use()` does."""
        self.idle.subtract(leaf, amounts, count)
        self.free.subtract(leaf, amounts, count)

    def count_pods(self, leaf: int, amounts: PodAmounts, *, is_idle: bool = False) -> int:
        """Return how many pods fit in a domain of the lowest level; with `is_idle`, if no Workload uses it."""
        table = self.idle.amounts if is_idle else self.free.amounts
        count = MAX_COUNT
        for resource, amount in amounts:
            if amount:
                free_amounts = table.get(resource)
                fitting = free_amounts[leaf] // amount if free_amounts is not None else 0
                if fitting < count:
                    count = fitting
        return max(0, count)


#: The maximum number of pods in a domain.
MAX_COUNT: Final = 2**31 - 1


def has_labels(labels: Mapping[str, str], required: Mapping[str, str], levels: Sequence[str]) -> bool:
    """Return whether a node belongs to a flavor: it has the flavor's labels, and a label for each level."""
    return all(labels.get(key) == value for key, value in required.items()) and all(level in labels for level in levels)
