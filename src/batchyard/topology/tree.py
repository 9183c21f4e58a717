"""Topology trees: the domains of a Topology's levels that the nodes of a ResourceFlavor form, and their free capacity.

The domains of a level are numbered in the order of their paths, so that the domains below one domain have consecutive
numbers, and a number breaks ties as a path does. Capacity is a list of amounts per resource, indexed by the domain of
the lowest level. Sources: Kueue's pkg/cache/scheduler (tas_topology_tree.go, tas_flavor_snapshot.go).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

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

    def insert_leaf(self, node: NodeView) -> int:
        """Insert the domain of a node of the lowest level, still without nodes; return its number.

        The numbers of the domains after it, and after those above it, increase by one. The result is -1, and nothing is
        changed, if the domain exists, if another domain has the same host name, or if the tree should be built anew,
        because it is empty or many of its domains have no nodes.
        """
        path, values = self.path_of(node), self.assignment_values(self.path_of(node))
        if values in self.leaf_by_values or path in self.absent or not self.leaf_count:
            return -1
        if len(self.absent) > self.leaf_count // 4:
            return -1
        parent = leaf = -1
        for level, paths in enumerate(self.paths):
            own_path = path[: level + 1]
            leaf = bisect_left(paths, own_path)
            if leaf == len(paths) or paths[leaf] != own_path:
                self._insert_domain(level, leaf, own_path, parent)
            parent = leaf
        self.leaf_count += 1
        self.nodes.insert(leaf, [])
        for column in self.capacity.values():
            column.insert(leaf, 0)
        _shift_numbers(self.leaf_by_node, leaf)
        _shift_numbers(self.leaf_by_values, leaf)
        _shift_numbers(self.absent, leaf)
        self.absent[path] = leaf
        return leaf

    def _insert_domain(self, level: int, number: int, path: Path, parent: int) -> None:
        self.paths[level].insert(number, path)
        self.parents[level].insert(number, parent)
        if level:
            starts = self.first_child[level - 1]
            starts[parent + 1 :] = [start + 1 for start in starts[parent + 1 :]]
        if level < len(self.levels) - 1:
            self.first_child[level].insert(number, self.first_child[level][number])
            below = self.parents[level + 1]
            below[:] = [each + 1 if each >= number else each for each in below]

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


_Name = TypeVar("_Name")


def _shift_numbers(numbers: dict[_Name, int], first: int) -> None:
    """Increase the numbers from `first` on by one."""
    for key, number in numbers.items():
        if number >= first:
            numbers[key] = number + 1


#: The resources that one pod uses, including one of the resource `pods`.
PodAmounts: TypeAlias = tuple[tuple[str, int], ...]
#: The changes after which readers start over, as a multiple of the domains.
_CHANGES_PER_LEAF: Final = 2
#: The most children of a domain that belongs to a group.
_GROUP_CHILDREN_MAX: Final = 64
#: The classes after which classes are numbered anew, as a multiple of the domains.
_CLASSES_PER_LEAF: Final = 2

#: A domain of the lowest level whose class changed, and its old class.
ClassChange: TypeAlias = tuple[int, int]


class LeafClasses:
    """The domains of the lowest level by their free amounts: domains with equal amounts form one class.

    Negative amounts are equal to 0, because no pod fits in either. Requests need one count of pods per class instead of
    one per domain. A set of domains is an integer whose bit N stands for domain N.
    """

    __slots__ = (
        "_by_amounts",
        "_columns",
        "_groups",
        "_names",
        "amounts",
        "ids",
        "masks",
        "numbering",
        "sizes",
        "used",
    )

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
        for leaf, row in enumerate(rows):
            amounts = row if not row or min(row) >= 0 else _without_debts(row)
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

    def insert(self, leaf: int) -> None:
        """Insert a domain without amounts; the numbers of the domains after it increase by one."""
        amounts = (0,) * len(self._columns)
        number = self._by_amounts.setdefault(amounts, len(self.masks))
        if number == len(self.masks):
            self.amounts.append(amounts)
            self.masks.append(0)
            self.sizes.append(0)
        before = (1 << leaf) - 1
        for each in sorted(self.used):
            mask = self.masks[each]
            self.masks[each] = (mask & before) | ((mask >> leaf) << (leaf + 1))
        self.masks[number] |= 1 << leaf
        self.sizes[number] += 1
        self.used.add(number)
        self.ids.insert(leaf, number)

    def update(self, table: Mapping[str, list[int]], leaves: Iterable[int]) -> list[ClassChange] | None:
        """Move domains whose free amounts changed to their new classes.

        Returns the domains that moved, each with its old class; None if all classes got new numbers.
        """
        leaf_count = len(self.ids)
        if len(table) != len(self._columns) or len(self.amounts) > _CLASSES_PER_LEAF * leaf_count + 1024:
            self.rebuild(table, leaf_count)
            return None
        ids, masks, sizes, by_amounts = self.ids, self.masks, self.sizes, self._by_amounts
        columns = self._columns
        changes: list[ClassChange] = []
        for leaf in leaves:
            amounts = tuple([column[leaf] for column in columns])
            number = by_amounts.get(amounts, -1)
            if number < 0:
                if min(amounts) < 0:
                    amounts = _without_debts(amounts)
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
            changes.append((leaf, old))
        return changes


def _without_debts(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """Return amounts of which the negative ones are 0: no pod fits in either, for the same reason."""
    return tuple([max(amount, 0) for amount in amounts])


def mask_of(leaves: Iterable[int], leaf_count: int) -> int:
    """Return a set of domains as an integer with one bit per domain."""
    bits = bytearray((leaf_count + 8) >> 3)
    for leaf in leaves:
        bits[leaf >> 3] |= 1 << (leaf & 7)
    return int.from_bytes(bits, "little")


def lowest_of(mask: int) -> int:
    """Return the lowest number in a set of domains, which must not be empty."""
    return (mask & -mask).bit_length() - 1


class SiblingGroups:
    """The domains above the lowest level by the classes of their children: domains with equal children form a group."""

    __slots__ = ("_by_classes", "_first_child", "_parents", "changes", "classes", "ids", "numbering", "version")

    def __init__(self, first_child: Sequence[int], parents: Sequence[int]) -> None:
        """Store the tree: the first child of each domain above the lowest level, and the parent of each child."""
        self._first_child = first_child
        self._parents = parents
        #: The group of each domain; and by group, the classes of the children in order.
        self.ids: list[int] = []
        self.classes: list[tuple[int, ...]] = []
        #: The domains that moved to another group, each with its old group; and the number of such moves so far.
        self.changes: list[ClassChange] = []
        self.version = 0
        #: Incremented when all groups get other numbers.
        self.numbering = 0
        self._by_classes: dict[tuple[int, ...], int] = {}

    def rebuild(self, classes: Sequence[int]) -> None:
        """Number the groups anew, given the class of each child."""
        self.numbering += 1
        self._by_classes = {}
        numbers = self._by_classes
        self.ids = [
            numbers.setdefault(tuple(classes[start:end]), len(numbers)) for start, end in pairwise(self._first_child)
        ]
        self.classes = list(numbers)
        self.changes = []

    def update(self, classes: Sequence[int], children: Sequence[ClassChange]) -> None:
        """Move the domains whose children have other classes than before."""
        if max(len(self.changes), len(self.classes)) > _CHANGES_PER_LEAF * len(self.ids) + 1024:
            self.rebuild(classes)
            return
        first_child, ids, parents = self._first_child, self.ids, self._parents
        for domain in dict.fromkeys(parents[child] for child, _ in children):
            own_classes = tuple(classes[first_child[domain] : first_child[domain + 1]])
            number = self._by_classes.setdefault(own_classes, len(self.classes))
            if number == len(self.classes):
                self.classes.append(own_classes)
            self.changes.append((domain, ids[domain]))
            ids[domain] = number
            self.version += 1

    def changed_since(self, version: int) -> dict[int, int]:
        """Return the old group of each domain that moved after a version, if the numbers are still the same."""
        return dict(reversed(self.changes[len(self.changes) - (self.version - version) :]))


class CapacityTable:
    """The free amounts of the domains of the lowest level, by resource, and a log of the domains that changed."""

    __slots__ = (
        *("_classes", "_is_classified", "_leaf_count", "_unclassified", "amounts", "change_base", "changes", "groups"),
    )

    def __init__(
        self, amounts: Mapping[str, Sequence[int]], leaf_count: int, groups: SiblingGroups | None = None
    ) -> None:
        self.amounts = {resource: list(column) for resource, column in amounts.items()}
        #: The domains whose class changed, in order, with the old class; a reader updates what it derived from them.
        self.changes: list[ClassChange] = []
        #: The number of changes that are no longer in `changes`.
        self.change_base = 0
        self._leaf_count = leaf_count
        self._classes = LeafClasses()
        #: The groups of domains above the lowest level; None if there are none, or if they would be large.
        self.groups = groups
        #: Whether the domains have classes; and those whose amounts changed since they got them.
        self._is_classified = False
        self._unclassified: list[int] = []

    @property
    def version(self) -> int:
        """The number of changes so far; call `classes()` before."""
        return self.change_base + len(self.changes)

    def changed_since(self, version: int) -> dict[int, int] | None:
        """Return the old class of each domain that changed after a version; None if all may have changed."""
        if version < self.change_base:
            return None
        return dict(reversed(self.changes[version - self.change_base :]))

    def subtract(self, amounts: PodAmounts, leaf_counts: Sequence[tuple[int, int]]) -> None:
        """Subtract the usage of pods (negative counts: of pods that are gone), given their number in each domain."""
        for resource, amount in amounts:
            column = self.amounts.get(resource)
            if column is None:
                column = self.amounts[resource] = [0] * self._leaf_count
            last_count = used = 0
            for leaf, count in leaf_counts:
                if count != last_count:
                    last_count, used = count, amount * count
                column[leaf] -= used
        if self._is_classified:
            self._unclassified += [leaf for leaf, _ in leaf_counts]
            if len(self._unclassified) > _CHANGES_PER_LEAF * self._leaf_count + 1024:
                self._is_classified = False

    def classes(self) -> LeafClasses:
        """Return the classes of domains with equal amounts, for the current amounts."""
        if not self._is_classified:
            self._is_classified = True
            self._unclassified = []
            self._classes.rebuild(self.amounts, self._leaf_count)
            self._forget_changes()
        elif self._unclassified:
            changes = self._classes.update(self.amounts, sorted(set(self._unclassified)))
            self._unclassified = []
            if changes is None or len(self.changes) > _CHANGES_PER_LEAF * self._leaf_count + 1024:
                self._forget_changes()
            else:
                self.changes += changes
                if changes and self.groups is not None:
                    self.groups.update(self._classes.ids, changes)
        return self._classes

    def insert(self, leaf: int) -> None:
        """Insert a domain without amounts; the numbers of the domains after it increase by one."""
        classes = self.classes() if self._is_classified else None
        for column in self.amounts.values():
            column.insert(leaf, 0)
        self._leaf_count += 1
        if classes is not None:
            classes.insert(leaf)
            self._forget_changes()

    def _forget_changes(self) -> None:
        """Let readers start over."""
        if self.groups is not None:
            self.groups.rebuild(self._classes.ids)
        self.change_base += len(self.changes) + 1
        self.changes = []


def _sibling_groups(tree: TopologyTree) -> SiblingGroups | None:
    if len(tree.levels) < 2 or not tree.leaf_count:
        return None
    first_child = tree.first_child[-1]
    largest = max(end - start for start, end in pairwise(first_child))
    return SiblingGroups(first_child, tree.parents[-1]) if largest <= _GROUP_CHILDREN_MAX else None


class FlavorCapacity:
    """The topology tree of a ResourceFlavor, and what is free in each domain of the lowest level.

    `free` is the capacity without the usage of other pods and of Workloads, `idle` the capacity without the usage of
    other pods only.
    """

    __slots__ = ("free", "idle", "scratch_pods", "scratch_slices", "tree", "zeros")

    def __init__(self, tree: TopologyTree) -> None:
        self.tree = tree
        self.free = CapacityTable(tree.capacity, tree.leaf_count, _sibling_groups(tree))
        self.idle = CapacityTable(tree.capacity, tree.leaf_count, _sibling_groups(tree))
        self._set_lists()

    def insert(self, leaf: int) -> None:
        """Insert a domain that the tree got; see `TopologyTree.insert_leaf`."""
        self.free.insert(leaf)
        self.idle.insert(leaf)
        self._set_lists()

    def _set_lists(self) -> None:
        #: Lists that searches share for the pods and slices in domains of the lowest level; and zeros, by level.
        self.scratch_pods, self.scratch_slices = [0] * self.tree.leaf_count, [0] * self.tree.leaf_count
        self.zeros = [[0] * len(paths) for paths in self.tree.paths]

    def table(self, *, is_idle: bool) -> CapacityTable:
        """Return the free amounts; with `is_idle`, those without any Workload."""
        return self.idle if is_idle else self.free

    def use(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of Workloads: `count` pods (negative: pods that are gone), each with `amounts`."""
        self.free.subtract(amounts, [(leaf, count)])

    def occupy(self, leaf: int, amounts: PodAmounts, count: int) -> None:
        """Subtract the usage of other pods, or of pod sets of the same Workload, as `use()` does."""
        self.idle.subtract(amounts, [(leaf, count)])
        self.free.subtract(amounts, [(leaf, count)])

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
