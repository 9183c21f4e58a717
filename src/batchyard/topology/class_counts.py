"""Counts of pods by classes of equal domains, for pods without a leader and without preferred node affinity.

The counts of a request change by the domains that moved to another class since the last search. A change that does not
change the number of pods that fit leaves the counts and all results as they are. The counts of single domains of the
lowest level are only filled in where a search needs them. Source: fillInCounts in Kueue's
pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from batchyard.topology.counts import ClassCounter, CountKey, DomainCounts, NodeExclusions, sum_up
from batchyard.topology.tree import FlavorCapacity, SiblingGroups, lowest_of

#: The slices and pods that fit in a domain, and its number.
RankedDomain: TypeAlias = tuple[int, int, int]


class SortedDomains:
    """The domains of one level in ascending order of slices, pods and number."""

    __slots__ = ("ranks",)

    def __init__(self, slices: Sequence[int], pods: Sequence[int]) -> None:
        self.ranks: list[RankedDomain] = sorted(zip(slices, pods, range(len(pods)), strict=True))

    def move(self, old_ranks: Sequence[RankedDomain], slices: Sequence[int], pods: Sequence[int]) -> None:
        """Move domains whose counts changed."""
        for old in old_ranks:
            domain = old[2]
            new = slices[domain], pods[domain], domain
            if new != old:
                del self.ranks[bisect_left(self.ranks, old)]
                insort(self.ranks, new)

    def smallest_fit(self, needed: int, excluded: Collection[int] = ()) -> RankedDomain | None:
        """Return the first domain in order with at least `needed` slices."""
        for position in range(bisect_left(self.ranks, (needed,)), len(self.ranks)):
            if self.ranks[position][2] not in excluded:
                return self.ranks[position]
        return None

    def largest(self) -> RankedDomain:
        """Return the last domain in order."""
        return self.ranks[-1]

    def slice_count(self) -> int:
        """Return the slices of all domains together."""
        return sum([rank[0] for rank in self.ranks])

    def smallest_first(self) -> Iterator[RankedDomain]:
        """Yield the domains with room, in order."""
        yield from self.ranks[bisect_left(self.ranks, (1,)) :]

    def largest_first(self) -> Iterator[RankedDomain]:
        """Yield the domains with room by slices in descending order, then by pods and number in ascending order."""
        ranks = self.ranks
        end = len(ranks)
        while end and ranks[end - 1][0]:
            start = bisect_left(ranks, (ranks[end - 1][0],))
            yield from ranks[start:end]
            end = start


class DomainsByClass:
    """The domains of the lowest level in the same order, as sets of domains with equal counts."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[tuple[int, int, int]]) -> None:
        """Store the slices, the pods and the set of domains of each group, sorted, without empty sets."""
        self._groups = groups

    def smallest_fit(self, needed: int, excluded: Collection[int] = ()) -> RankedDomain | None:
        """Return the first domain in order with at least `needed` slices."""
        for position in range(bisect_left(self._groups, (needed,)), len(self._groups)):
            slices, pods, mask = self._groups[position]
            for domain in excluded:
                mask &= ~(1 << domain)
            if mask:
                return slices, pods, lowest_of(mask)
        return None

    def largest(self) -> RankedDomain:
        """Return the last domain in order."""
        slices, pods, mask = self._groups[-1]
        return slices, pods, mask.bit_length() - 1

    def slice_count(self) -> int:
        """Return the slices of all domains together."""
        return sum([slices * mask.bit_count() for slices, _, mask in self._groups if slices])

    def smallest_first(self) -> Iterator[RankedDomain]:
        """Yield the domains with room, in order."""
        for slices, pods, mask in self._groups[bisect_left(self._groups, (1,)) :]:
            for domain in _numbers_in(mask):
                yield slices, pods, domain

    def largest_first(self) -> Iterator[RankedDomain]:
        """Yield the domains with room by slices in descending order, then by pods and number in ascending order."""
        end = len(self._groups)
        while end and self._groups[end - 1][0]:
            start = bisect_left(self._groups, (self._groups[end - 1][0],))
            for slices, pods, mask in self._groups[start:end]:
                for domain in _numbers_in(mask):
                    yield slices, pods, domain
            end = start


#: The domains of a level in ascending order of slices, pods and number.
DomainRanking: TypeAlias = SortedDomains | DomainsByClass


def _numbers_in(mask: int) -> Iterator[int]:
    """Yield the numbers in a set of domains, in ascending order."""
    digits = bin(mask)[:1:-1]
    position = digits.find("1")
    while position >= 0:
        yield position
        position = digits.find("1", position + 1)


#: The resource that leaves no room for a pod in each child of a domain, '' if there is room; empty if all have room.
GroupLimits: TypeAlias = tuple[str, ...]
#: The pods and slices that a domain of a group adds to the counts, and the limits of its children.
GroupCounts: TypeAlias = tuple[int, int, GroupLimits]
_NO_LIMITS: Final[GroupLimits] = ()


class ClassCountCache:
    """The counts for one CountKey without a leader, updated when the free capacity or the nodes of a flavor change."""

    __slots__ = (
        *("_capacity", "_counter", "_exclusion_version", "_exclusions", "_group_numbering", "_group_version"),
        *("_groups", "_key", "_limits", "_ranked", "_uses_groups", "_version", "counts", "results"),
    )

    def __init__(self, capacity: FlavorCapacity, key: CountKey, exclusions: NodeExclusions) -> None:
        """Count for the current capacity."""
        self._capacity = capacity
        self._key = key
        self._exclusions = exclusions
        self._counter = ClassCounter(capacity.table(is_idle=key.is_idle), key.pod)
        #: The results of searches with the present counts, by parameters of the searches.
        self.results: dict[object, object] = {}
        #: The counts by group of domains above the lowest level; None if not counted yet.
        self._groups: list[GroupCounts | None] = []
        self._group_numbering = self._group_version = -1
        #: The number of domains of the lowest level by limiting resource; None if they are not counted yet.
        self._limits: dict[str, int] | None = None
        #: Whether changes of groups suffice, because no domain with room is excluded.
        self._uses_groups = False
        self._recount()

    def refresh(self) -> DomainCounts:
        """Return the counts for the current free capacity; `results` is emptied if something changed.

        The counts of the lowest level are only valid for domains after `fill` of them.
        """
        table, exclusions = self._counter.table, self._exclusions
        table.classes()
        if self._version != table.version or self._exclusion_version != exclusions.version:
            groups, uses_groups = table.groups, exclusions.excludes_only_absent
            if groups is None or not (uses_groups or self._uses_groups):
                self._update_domains()
            elif groups.numbering != self._group_numbering or uses_groups is not self._uses_groups:
                self._recount()
            else:
                self._counter.classes()
                self._update_groups(groups, is_changed=self._exclusion_version != exclusions.version)
        return self.counts

    def fill(self, level: int, domains: Sequence[int]) -> None:
        """Set the counts of some domains if the level is the lowest one; those of higher levels are always valid."""
        counts = self.counts
        if level < len(counts.pods) - 1:
            return
        ids, class_pods, exclusions = self._counter.count_used().ids, self._counter.pods, self._exclusions
        pods, slices = counts.pods[level], counts.slices[level]
        eligible = exclusions.eligible if exclusions.excluded_count else None
        for domain in domains:
            pods[domain] = class_pods[ids[domain]] if eligible is None or eligible[domain] else 0
        if slices is not pods and level == self._key.slice_level:
            size = self._key.slice_size
            for domain in domains:
                slices[domain] = pods[domain] // size

    def limiting_resources(self) -> dict[str, int]:
        """Return the resources that leave no room for a pod, with the numbers of such domains of the lowest level.

        Excluded domains and those without nodes do not count.
        """
        if self._limits is None:
            self._limits = _count_limits(self._counter, self._excluded())
        return {resource: count for resource, count in self._limits.items() if resource and count}

    def ranking(self, level: int) -> DomainRanking:
        """Return the domains of a level, the smallest first."""
        ranked = self._ranked[level]
        if ranked is None:
            if level == len(self.counts.pods) - 1 == self._key.slice_level:
                ranked = DomainsByClass(
                    _leaf_groups(self._counter, self._exclusions, self._excluded_mask(), self._key.slice_size)
                )
            else:
                ranked = SortedDomains(self.counts.slices[level], self.counts.pods[level])
            self._ranked[level] = ranked
        return ranked

    # Counts of all domains above the lowest level.

    def _recount(self) -> None:
        key, capacity = self._key, self._capacity
        tree, lowest = capacity.tree, len(capacity.tree.levels) - 1
        sizes = [len(paths) for paths in tree.paths[:-1]]
        pods = [*([0] * size for size in sizes), capacity.scratch_pods]
        slices = pods
        if key.slice_size > 1 or key.slice_level < lowest:
            leaf_slices = capacity.scratch_slices if key.slice_level == lowest else capacity.zeros[-1]
            slices = [*([0] * size for size in sizes), leaf_slices]
        self.counts = DomainCounts(pods, slices, capacity.zeros, pods, slices, [])
        #: By level: the domains sorted by the slices and pods that fit, and by number; None if not needed yet.
        self._ranked: list[DomainRanking | None] = [None] * (lowest + 1)
        self._limits = None
        self._uses_groups = self._exclusions.excludes_only_absent
        if lowest:
            self._count_parents()
            for level in range(lowest - 2, -1, -1):
                sum_up(self.counts, key, tree.first_child[level], level, range(sizes[level]))
        self._remember_versions()

    def _remember_versions(self) -> None:
        self._version, self._exclusion_version = self._counter.table.version, self._exclusions.version
        self.results = {}

    def _excluded(self) -> Iterator[int]:
        if self._exclusions.excluded_count:
            yield from _numbers_in(self._excluded_mask())

    def _excluded_mask(self) -> int:
        return ((1 << self._capacity.tree.leaf_count) - 1) ^ self._exclusions.mask

    def _count_parents(self) -> None:
        """Count the level above the lowest one; domains in the same group are counted once."""
        classes, tree, groups = self._counter.count_used(), self._capacity.tree, self._counter.table.groups
        level = len(tree.levels) - 2
        if groups is None:
            shares = [_leaf_shares(self._key, count) for count in self._counter.pods]
            own_shares = [shares[number] for number in classes.ids]
            children = [own_shares[start:end] for start, end in pairwise(tree.first_child[level])]
            pods = [sum([own_pods for own_pods, _ in each]) for each in children]
            slices = [sum([own_slices for _, own_slices in each]) for each in children]
        else:
            self._group_numbering, self._group_version = groups.numbering, groups.version
            self._groups = [None] * len(groups.classes)
            for number in dict.fromkeys(groups.ids):
                self._count_group(groups, number)
            counts = [each for each in (self._groups[number] for number in groups.ids) if each is not None]
            pods, slices = [each[0] for each in counts], [each[1] for each in counts]
        for leaf in self._excluded():
            parent, (own_pods, own_slices) = (
                tree.parents[-1][leaf],
                _leaf_shares(self._key, self._counter.pods[classes.ids[leaf]]),
            )
            pods[parent] -= own_pods
            slices[parent] -= own_slices
        self.counts.pods[level][:] = pods
        if self.counts.slices is not self.counts.pods:
            size = self._key.slice_size
            self.counts.slices[level][:] = (
                [count // size for count in pods] if level == self._key.slice_level else slices
            )

    def _count_group(self, groups: SiblingGroups, number: int) -> GroupCounts:
        """Return the pods and slices in a domain of a group, and the resource that limits each child."""
        known = self._groups[number]
        if known is None:
            classes, key, counter = groups.classes[number], self._key, self._counter
            class_pods, class_limits = counter.pods, counter.limits
            counts = [class_pods[each] for each in classes]
            smallest = min(counts)
            if smallest < 0:
                present = counter.classes()
                counts = [
                    class_pods[each] if class_pods[each] >= 0 else counter.count(present, each) for each in classes
                ]
                smallest = min(counts)
            slices = 0
            if key.slice_level == len(key.inner_sizes) - 1:
                size = key.slice_size
                slices = sum(counts) if size == 1 else sum([count // size for count in counts])
            inner_size = key.inner_sizes[-1]
            pods = sum([count // inner_size * inner_size for count in counts]) if inner_size else sum(counts)
            limits = _NO_LIMITS if smallest else tuple([class_limits[each] for each in classes])
            known = self._groups[number] = pods, slices, limits
        return known

    # Changes.

    def _update_groups(self, groups: SiblingGroups, *, is_changed: bool) -> None:
        """Count the domains above those that moved to other groups; excluded domains must have no room."""
        if is_changed:
            self._limits = None
        added: dict[int, tuple[int, int]] = {}
        ids = groups.ids
        missing_count = len(groups.classes) - len(self._groups)
        if missing_count:
            self._groups += [None] * missing_count
        counts = self._groups
        for domain, old_number in groups.changed_since(self._group_version).items():
            number = ids[domain]
            if number == old_number:
                continue
            pods, slices, own_limits = counts[number] or self._count_group(groups, number)
            old_pods, old_slices, old_limits = counts[old_number] or self._count_group(groups, old_number)
            if own_limits != old_limits:
                is_changed = True
                self._limits = None
            if pods != old_pods or slices != old_slices:
                added[domain] = pods - old_pods, slices - old_slices
            elif not is_changed and pods:
                is_changed = _has_other_counts(self._counter.pods, groups.classes[number], groups.classes[old_number])
        self._group_version = groups.version
        self._apply(added, is_changed=is_changed)

    def _apply(self, added: Mapping[int, tuple[int, int]], *, is_changed: bool) -> None:
        """Add pods and slices to domains above the lowest level, and to those above them."""
        self._version, self._exclusion_version = self._counter.table.version, self._exclusions.version
        if added or is_changed:
            self.results = {}
            self._ranked[-1] = None
        if added:
            for level in range(len(self._ranked) - 2, -1, -1):
                added = self._add(level, added)

    def _update_domains(self) -> None:
        """Count the domains above those that moved to other classes, or whose nodes changed."""
        changes = self._counter.table.changed_since(self._version)
        updates = self._exclusions.changed_since(self._exclusion_version)
        if changes is None or updates is None:
            self._recount()
            return
        counter, eligible = self._counter, self._exclusions.eligible
        classes = counter.classes()
        ids, class_pods, class_limits = classes.ids, counter.pods, counter.limits
        parents = self._capacity.tree.parents[-1]
        is_changed = bool(updates)
        #: The pods and slices by which the changed domains add to their parents, by parent.
        added: dict[int, tuple[int, int]] = {}
        for leaf in changes if not updates else {**changes, **updates}:
            number = ids[leaf]
            old_number = changes.get(leaf, number)
            is_usable = eligible[leaf]
            was_usable = updates.get(leaf, is_usable)
            if not (is_usable or was_usable):
                continue
            count = class_pods[number]
            if count < 0:
                count = counter.count(classes, number)
            old_count, limit, old_limit = class_pods[old_number], class_limits[number], class_limits[old_number]
            if count == old_count and limit == old_limit and is_usable is was_usable:
                continue
            is_changed = True
            self._limits = None
            count, old_count = count if is_usable else 0, old_count if was_usable else 0
            if count != old_count:
                pods, slices = _leaf_shares(self._key, count)
                old_pods, old_slices = _leaf_shares(self._key, old_count)
                added_pods, added_slices = added.get(parents[leaf], (0, 0))
                added[parents[leaf]] = added_pods + pods - old_pods, added_slices + slices - old_slices
        groups = counter.table.groups
        if groups is not None:
            self._group_version = groups.version
        self._apply(added, is_changed=is_changed)

    def _add(self, level: int, added: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Add pods and slices to domains of a level; return what they add to their parents."""
        counts, key = self.counts, self._key
        pods, slices, parents = counts.pods[level], counts.slices[level], self._capacity.tree.parents[level]
        has_equal_slices, is_slice_level = counts.slices is counts.pods, level == key.slice_level
        inner_size = key.inner_sizes[level]
        old_ranks: list[RankedDomain] = []
        result: dict[int, tuple[int, int]] = {}
        for domain, (added_pods, added_slices) in added.items():
            old_pods, old_slices = pods[domain], slices[domain]
            own_pods = old_pods + added_pods
            own_slices = own_pods // key.slice_size if is_slice_level else old_slices + added_slices
            if own_pods == old_pods and (has_equal_slices or own_slices == old_slices):
                continue
            old_ranks.append((old_slices, old_pods, domain))
            pods[domain] = own_pods
            if not has_equal_slices:
                slices[domain] = own_slices
            more_pods = (
                own_pods // inner_size * inner_size - old_pods // inner_size * inner_size if inner_size else added_pods
            )
            parent = parents[domain]
            parent_pods, parent_slices = result.get(parent, (0, 0))
            result[parent] = parent_pods + more_pods, parent_slices + own_slices - old_slices
        ranked = self._ranked[level]
        if ranked is not None:
            assert isinstance(ranked, SortedDomains)
            ranked.move(old_ranks, slices, pods)
        return result


def _leaf_groups(
    counter: ClassCounter, exclusions: NodeExclusions, excluded_mask: int, slice_size: int
) -> list[tuple[int, int, int]]:
    """Return the slices, the pods and the set of domains of the lowest level with equal counts, sorted."""
    classes, class_pods = counter.count_used(), counter.pods
    masks: dict[int, int] = {}
    for number in classes.used:
        count = class_pods[number]
        masks[count] = masks.get(count, 0) | classes.masks[number]
    if exclusions.excluded_count:
        masks = {count: mask & exclusions.mask for count, mask in masks.items()}
        masks[0] = masks.get(0, 0) | excluded_mask
    return sorted([(count // slice_size, count, mask) for count, mask in masks.items() if mask])


def _count_limits(counter: ClassCounter, excluded: Iterator[int]) -> dict[str, int]:
    """Return the numbers of domains of the lowest level, without the excluded ones, by limiting resource."""
    classes, limits = counter.count_used(), counter.limits
    result: dict[str, int] = {}
    for number in classes.used:
        limit = limits[number]
        result[limit] = result.get(limit, 0) + classes.sizes[number]
    for leaf in excluded:
        result[limits[classes.ids[leaf]]] -= 1
    return result


def _leaf_shares(key: CountKey, count: int) -> tuple[int, int]:
    """Return the pods and slices that a domain of the lowest level adds to its parent if `count` pods fit."""
    inner_size = key.inner_sizes[-1]
    pods = count // inner_size * inner_size if inner_size else count
    return pods, count // key.slice_size if key.slice_level == len(key.inner_sizes) - 1 else 0


def _has_other_counts(pods: Sequence[int], classes: Sequence[int], old_classes: Sequence[int]) -> bool:
    return any(pods[new] != pods[old] for new, old in zip(classes, old_classes, strict=True))
