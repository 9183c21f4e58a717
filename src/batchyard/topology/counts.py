"""Counts of the pods and slices that fit in each topology domain: the first phase of the placement algorithm.

Counts are computed for the domains of the lowest level, and summed up level by level. Equal requests share their
counts. After a change of the free capacity, only the changed domains and those above them are counted again. Source:
fillInCounts in Kueue's pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.meta import Requirement
from batchyard.api.views.node import NodeView, PodTemplate, Requests, Taint, Toleration, WeightedNodeTerm
from batchyard.topology.tree import MAX_COUNT, PODS, FlavorCapacity, LeafClasses, PodAmounts, lowest_of, mask_of

_SCHEDULING_EFFECTS: Final = ("NoSchedule", "NoExecute")


class NodeConstraints(NamedTuple):
    """The constraints of a pod template on nodes, including the tolerations that the flavor adds."""

    node_selector: tuple[tuple[str, str], ...]
    affinity: tuple[tuple[Requirement, ...], ...] | None
    tolerations: tuple[Toleration, ...]
    #: Preferred node affinity; empty unless the feature gate TASRespectNodeAffinityPreferred is enabled.
    preferred_affinity: tuple[WeightedNodeTerm, ...] = ()


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether a toleration covers a taint, with the operators Lt and Gt for integers."""
    if toleration.operator not in {"Lt", "Gt"}:
        return toleration.tolerates(taint)
    if (toleration.effect and toleration.effect != taint.effect) or (toleration.key and toleration.key != taint.key):
        return False
    try:
        own_value, taint_value = int(toleration.value), int(taint.value)
    except ValueError:
        return False
    return taint_value < own_value if toleration.operator == "Lt" else taint_value > own_value


def untolerated_taint(node: NodeView, tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint of a node that keeps pods with these tolerations away; None if there is none."""
    for taint in node.taints:
        if taint.effect in _SCHEDULING_EFFECTS and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None


class NodeExclusions:
    """The hosts that pods with some constraints cannot use, and how many hosts each kind of constraint excludes.

    If several nodes have the same host name, the first one decides. A host without nodes is excluded for no reason.
    """

    __slots__ = ("_constraints", "_reasons", "counts", "eligible", "excluded_count", "mask", "scores")

    def __init__(self, nodes: Sequence[Sequence[NodeView]], constraints: NodeConstraints) -> None:
        self._constraints = constraints
        self._reasons = [self._reason_of(leaf_nodes) for leaf_nodes in nodes]
        #: Whether pods can use each host; and these hosts as a set of bits.
        self.eligible = [not reason for reason in self._reasons]
        self.mask = mask_of([leaf for leaf, eligible in enumerate(self.eligible) if eligible], len(nodes))
        self.excluded_count = self.eligible.count(False)
        #: The number of excluded hosts by reason: a node selector, node affinity, or an untolerated taint.
        self.counts = Counter(self._reasons)
        #: The sum of the weights of the preferred terms that each host matches; empty without preferred terms.
        self.scores = [self._score_of(each) for each in nodes] if constraints.preferred_affinity else []

    def update(self, leaf: int, nodes: Sequence[NodeView]) -> None:
        """Check a host whose nodes changed again."""
        old_reason, reason = self._reasons[leaf], self._reason_of(nodes)
        self._reasons[leaf] = reason
        self.counts[old_reason] -= 1
        self.counts[reason] += 1
        if self.scores:
            self.scores[leaf] = self._score_of(nodes)
        if bool(old_reason) != bool(reason):
            self.eligible[leaf] = not reason
            self.mask ^= 1 << leaf
            self.excluded_count += 1 if reason else -1

    def texts(self) -> list[str]:
        """Return each reason that excludes hosts with their number, as in Kueue's messages."""
        return [f"{reason}: {count}" for reason, count in self.counts.items() if count and reason not in _NO_REASONS]

    def _reason_of(self, nodes: Sequence[NodeView]) -> str:
        if not nodes:
            return _ABSENT
        node = nodes[0]
        node_selector, affinity, tolerations, _ = self._constraints
        taint = untolerated_taint(node, tolerations) if node.taints else None
        if taint is not None:
            return f'taint "{_format_taint(taint)}"'
        if any(node.labels.get(key) != value for key, value in node_selector):
            return "nodeSelector"
        if affinity is not None and not _matches_affinity(node, affinity):
            return "affinity"
        return ""

    def _score_of(self, nodes: Sequence[NodeView]) -> int:
        if self._reason_of(nodes):
            return 0
        labels, fields = nodes[0].labels, {"metadata.name": nodes[0].name}
        return sum(
            term.weight
            for term in self._constraints.preferred_affinity
            if all(each.matches(labels) for each in term.labels) and all(each.matches(fields) for each in term.fields)
        )


_ABSENT: Final = "absent"
_NO_REASONS: Final = frozenset({"", _ABSENT})


def _format_taint(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _matches_affinity(node: NodeView, affinity: Sequence[Sequence[Requirement]]) -> bool:
    # An empty term matches no node.
    return any(term and all(r.matches(node.labels) for r in term) for term in affinity)


class CountKey(NamedTuple):
    """What counts of pods depend on, besides the free capacity."""

    pod: PodAmounts
    #: What the leader of the pod set group uses; None without a leader.
    leader: PodAmounts | None
    #: The number of the constraints on nodes.
    constraints: int
    #: The size of slices, and their level.
    slice_size: int
    slice_level: int
    #: By level: the size of inner slices, in whose multiples domains of the level are counted; else 0.
    inner_sizes: tuple[int, ...]
    #: Whether the usage of Workloads does not count.
    is_idle: bool


@dataclass(slots=True)
class DomainCounts:
    """How many pods, slices and leaders fit in each domain of each level; all lists are indexed by level and domain.

    Without a leader, the lists of counts beside a leader are the same as the lists without.
    """

    pods: list[list[int]]
    slices: list[list[int]]
    leaders: list[list[int]]
    #: The counts if the leader is in the domain too.
    pods_with_leader: list[list[int]]
    slices_with_leader: list[list[int]]
    #: The sum of the scores of the hosts in each domain by preferred node affinity; empty without scores.
    scores: list[list[int]]

    def copy(self) -> "DomainCounts":
        """Return a deep copy, which may be changed."""
        tables = (self.pods, self.slices, self.leaders, self.pods_with_leader, self.slices_with_leader, self.scores)
        return DomainCounts(*([list(counts) for counts in levels] for levels in tables))


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


class CountCache:
    """The counts for one CountKey, updated when the free capacity of the flavor has changed."""

    __slots__ = (
        "_capacity",
        "_class_counts",
        "_class_limits",
        "_class_requests",
        "_exclusions",
        "_has_equal_slices",
        "_key",
        "_numbering",
        "_ranked",
        "_table",
        "_version",
        "counts",
        "results",
    )

    def __init__(self, capacity: FlavorCapacity, key: CountKey, exclusions: NodeExclusions | None) -> None:
        """Count for the current capacity; `exclusions` is None if the lowest level is not the host name."""
        self._capacity = capacity
        self._table = capacity.table(is_idle=key.is_idle)
        self._key = key
        self._exclusions = exclusions
        #: Whether each slice is one pod, so that the counts of slices are those of pods.
        self._has_equal_slices = (
            key.leader is None and key.slice_size == 1 and key.slice_level == len(capacity.tree.levels) - 1
        )
        #: How many pods fit in a domain of each class, if it is not excluded; -1 if not counted yet.
        self._class_counts: list[int] = []
        #: The resource that leaves no room for a pod in domains of each class; '' if there is room.
        self._class_limits: list[str] = []
        #: The column of each requested resource in the amounts of classes, the amount, and the resource.
        self._class_requests: list[tuple[int, int, str]] = []
        self._numbering = -1
        #: The results of searches with the present counts, by parameters of the searches.
        self.results: dict[object, object] = {}
        self._recount()

    def refresh(self) -> DomainCounts:
        """Return the counts for the current free capacity; `results` is emptied if something changed."""
        if self._version != self._table.version:
            changed_leaves = self._table.changed_since(self._version)
            if changed_leaves is None:
                self._recount()
            else:
                self._update(changed_leaves)
        return self.counts

    def _recount(self) -> None:
        self.counts = self.count_below(range(self._capacity.tree.leaf_count))
        self._version = self._table.version
        self.results = {}
        #: By level: the domains sorted by the slices and pods that fit, and by number; None if not needed yet.
        self._ranked: list[DomainRanking | None] = [None] * len(self.counts.pods)

    def ranking(self, level: int) -> DomainRanking:
        """Return the domains of a level, the smallest first; the counts must be those without a leader."""
        ranked = self._ranked[level]
        if ranked is None:
            if level == len(self.counts.pods) - 1 == self._key.slice_level:
                ranked = DomainsByClass(self._leaf_groups())
            else:
                ranked = SortedDomains(self.counts.slices[level], self.counts.pods[level])
            self._ranked[level] = ranked
        return ranked

    def _leaf_groups(self) -> list[tuple[int, int, int]]:
        """Return the slices, the pods and the set of domains of the lowest level with equal counts, sorted."""
        classes, class_counts = self._counted_classes()
        leaf_count = self._capacity.tree.leaf_count
        eligible = (1 << leaf_count) - 1
        if self._exclusions is not None and self._exclusions.excluded_count:
            eligible = self._exclusions.mask
        masks: dict[int, int] = {}
        for number in classes.used:
            count = class_counts[number]
            if count < 0:
                count = self._count_class(classes, number)
            masks[count] = masks.get(count, 0) | classes.masks[number]
        excluded = ((1 << leaf_count) - 1) ^ eligible
        if excluded:
            masks = {count: mask & eligible for count, mask in masks.items()}
            masks[0] = masks.get(0, 0) | excluded
        slice_size = self._key.slice_size
        return sorted([(count // slice_size, count, mask) for count, mask in masks.items() if mask])

    def _counted_classes(self) -> tuple[LeafClasses, list[int]]:
        """Return the classes of domains, and how many pods fit in a domain of each; -1 if it was not counted yet."""
        classes = self._table.classes()
        if self._numbering != classes.numbering:
            self._numbering = classes.numbering
            self._class_counts, self._class_limits = [], []
            self._class_requests = [
                (classes.column_of(resource), amount, resource) for resource, amount in self._key.pod if amount
            ]
        missing_count = len(classes.amounts) - len(self._class_counts)
        if missing_count:
            self._class_counts += [-1] * missing_count
            self._class_limits += [""] * missing_count
        return classes, self._class_counts

    def _count_class(self, classes: LeafClasses, number: int) -> int:
        """Count the pods that fit in a domain of a class, and find the resource that leaves no room for one."""
        amounts, count, limit = classes.amounts[number], MAX_COUNT, ""
        for column, amount, resource in self._class_requests:
            fitting = amounts[column] // amount if column >= 0 else 0
            if fitting < count:
                count = fitting
            if fitting <= 0 and not limit:
                # All counts are at least 0, so the first resource by name without room is the limit.
                limit = resource
        count = max(count, 0)
        self._class_counts[number], self._class_limits[number] = count, limit
        return count

    def limiting_resources(self, leaves: range | None) -> dict[str, int]:
        """Return the resources that leave no room for a pod, with the numbers of such domains of the lowest level.

        With `leaves`, only these domains count. Excluded domains and those without nodes do not count.
        """
        classes, class_counts = self._counted_classes()
        tree = self._capacity.tree
        allowed = -1
        if leaves is not None:
            allowed = ((1 << len(leaves)) - 1) << leaves.start
        if self._exclusions is not None and self._exclusions.excluded_count:
            allowed &= self._exclusions.mask
        elif tree.absent:
            allowed &= ~mask_of(tree.absent.values(), tree.leaf_count)
        result: dict[str, int] = {}
        limits = self._class_limits
        for number in classes.used:
            count = class_counts[number]
            if count < 0:
                count = self._count_class(classes, number)
            if not count:
                size = classes.sizes[number] if allowed == -1 else (classes.masks[number] & allowed).bit_count()
                if size:
                    limit = limits[number]
                    result[limit] = result.get(limit, 0) + size
        return result

    def count_below(self, leaves: Sequence[int]) -> DomainCounts:
        """Return the counts if only the domains `leaves` of the lowest level may be used."""
        tree = self._capacity.tree
        sizes = [len(paths) for paths in tree.paths]
        pods, leaders = [[0] * size for size in sizes], [[0] * size for size in sizes]
        slices = pods if self._has_equal_slices else [[0] * size for size in sizes]
        pods_with_leader, slices_with_leader = pods, slices
        if self._key.leader is not None:
            pods_with_leader, slices_with_leader = [[0] * size for size in sizes], [[0] * size for size in sizes]
        counts = DomainCounts(pods, slices, leaders, pods_with_leader, slices_with_leader, self._scores())
        self._fill_leaves(counts, leaves)
        for level in range(len(sizes) - 2, -1, -1):
            self.sum_up(counts, level, range(sizes[level]))
        return counts

    def _scores(self) -> list[list[int]]:
        """Return the scores of the domains of each level; empty without preferred node affinity."""
        if self._exclusions is None or not self._exclusions.scores:
            return []
        scores = [list(self._exclusions.scores)]
        for first_child in reversed(self._capacity.tree.first_child):
            scores.insert(0, [sum(scores[0][start:end]) for start, end in pairwise(first_child)])
        return scores

    def _update(self, leaves: Sequence[int]) -> None:
        """Count changed domains of the lowest level and those above them again."""
        self._version = self._table.version
        self.results = {}
        if self.counts.scores:
            self.counts.scores = self._scores()
        tree, lowest = self._capacity.tree, len(self._capacity.tree.levels) - 1
        self._fill_leaves(self.counts, leaves)
        self._ranked[lowest] = None
        domains = leaves
        for level in range(lowest - 1, -1, -1):
            parents = tree.parents[level + 1]
            domains = sorted({parents[domain] for domain in domains})
            ranked = self._ranked[level]
            if ranked is None:
                self.sum_up(self.counts, level, domains)
                continue
            assert isinstance(ranked, SortedDomains)
            slices, pods = self.counts.slices[level], self.counts.pods[level]
            old_ranks = [(slices[domain], pods[domain], domain) for domain in domains]
            self.sum_up(self.counts, level, domains)
            ranked.move(old_ranks, slices, pods)

    def _fill_leaves(self, counts: DomainCounts, leaves: Sequence[int]) -> None:
        key, capacity = self._key, self._capacity
        classes, class_counts = self._counted_classes()
        ids, pods = classes.ids, counts.pods[-1]
        exclusions = self._exclusions
        eligible = exclusions.eligible if exclusions is not None and exclusions.excluded_count else None
        if len(leaves) == capacity.tree.leaf_count:
            for number in classes.used:
                if class_counts[number] < 0:
                    self._count_class(classes, number)
            pods[:] = [class_counts[number] for number in ids]
        else:
            for leaf in leaves:
                count = class_counts[ids[leaf]]
                pods[leaf] = count if count >= 0 else self._count_class(classes, ids[leaf])
        if eligible is not None:
            for leaf in leaves:
                if not eligible[leaf]:
                    pods[leaf] = 0
        if key.leader is not None:
            self._fill_leader(counts, leaves)
        if key.slice_level == len(counts.pods) - 1 and not self._has_equal_slices:
            self._fill_slices(counts, leaves)

    def _fill_leader(self, counts: DomainCounts, leaves: Sequence[int]) -> None:
        key, capacity = self._key, self._capacity
        assert key.leader is not None
        table = self._table.amounts
        leader_amounts = dict(key.leader)
        pods, pods_with_leader, leaders = counts.pods[-1], counts.pods_with_leader[-1], counts.leaders[-1]
        eligible = None if self._exclusions is None else self._exclusions.eligible
        for leaf in leaves:
            can_lead = (eligible is None or eligible[leaf]) and (
                capacity.count_pods(leaf, key.leader, is_idle=key.is_idle) > 0
            )
            leaders[leaf] = 1 if can_lead else 0
            pods_with_leader[leaf] = pods[leaf]
            if can_lead:
                count = MAX_COUNT
                for resource, amount in key.pod:
                    if amount:
                        free_amounts = table.get(resource)
                        free_amount = 0 if free_amounts is None else free_amounts[leaf]
                        count = min(count, (free_amount - leader_amounts.get(resource, 0)) // amount)
                pods_with_leader[leaf] = max(0, count)

    def _fill_slices(self, counts: DomainCounts, leaves: Sequence[int]) -> None:
        size, pods, slices = self._key.slice_size, counts.pods[-1], counts.slices[-1]
        for leaf in leaves:
            slices[leaf] = pods[leaf] // size
        if self._key.leader is not None:
            pods_with_leader, slices_with_leader = counts.pods_with_leader[-1], counts.slices_with_leader[-1]
            for leaf in leaves:
                slices_with_leader[leaf] = pods_with_leader[leaf] // size

    def sum_up(self, counts: DomainCounts, level: int, domains: Sequence[int], *, with_inner: bool = True) -> None:
        """Set the counts of domains of a level from the counts of their children."""
        if self._key.leader is not None:
            children = self._capacity.tree.first_child[level]
            _sum_up_with_leader(counts, self._key, children, level, domains, with_inner=with_inner)
            return
        first_child, slice_level, size = (
            self._capacity.tree.first_child[level],
            self._key.slice_level,
            self._key.slice_size,
        )
        inner_size = self._key.inner_sizes[level + 1] if with_inner else 0
        child_pods, child_slices = counts.pods[level + 1], counts.slices[level + 1]
        pods, slices = counts.pods[level], counts.slices[level]
        for domain in domains:
            start, end = first_child[domain], first_child[domain + 1]
            if inner_size:
                pod_count = sum([count // inner_size * inner_size for count in child_pods[start:end]])
            else:
                pod_count = sum(child_pods[start:end])
            pods[domain] = pod_count
            if slices is not pods:
                slices[domain] = pod_count // size if level == slice_level else sum(child_slices[start:end])


def _sum_up_with_leader(
    counts: DomainCounts,
    key: CountKey,
    first_child: Sequence[int],
    level: int,
    domains: Sequence[int],
    *,
    with_inner: bool,
) -> None:
    inner_size = (key.inner_sizes[level + 1] if with_inner else 0) or 1
    child_pods, child_pods_l = counts.pods[level + 1], counts.pods_with_leader[level + 1]
    child_slices, child_slices_l = counts.slices[level + 1], counts.slices_with_leader[level + 1]
    child_leaders = counts.leaders[level + 1]
    for domain in domains:
        pod_count = slice_count = leader_count = 0
        pod_loss = slice_loss = MAX_COUNT
        for child in range(first_child[domain], first_child[domain + 1]):
            own_pods = child_pods[child] // inner_size * inner_size
            pod_count += own_pods
            slice_count += child_slices[child]
            if child_leaders[child]:
                leader_count = 1
                pod_loss = min(pod_loss, own_pods - child_pods_l[child] // inner_size * inner_size)
                slice_loss = min(slice_loss, child_slices[child] - child_slices_l[child])
        pod_count_l = pod_count - pod_loss if leader_count else 0
        slice_count_l = slice_count - slice_loss if leader_count else 0
        if level == key.slice_level:
            slice_count, slice_count_l = pod_count // key.slice_size, pod_count_l // key.slice_size
        counts.pods[level][domain], counts.pods_with_leader[level][domain] = pod_count, pod_count_l
        counts.slices[level][domain], counts.slices_with_leader[level][domain] = slice_count, slice_count_l
        counts.leaders[level][domain] = leader_count


def placed_requests(template: PodTemplate) -> Requests:
    """Return the requests of one pod before exclusions and transformations of resources, which nodes do not see."""
    return template.requests if template.placed_requests is None else template.placed_requests


_amounts_by_template: dict[int, tuple[PodTemplate, PodAmounts]] = {}
_AMOUNTS_MAX: Final = 4096


def pod_amounts(template: PodTemplate) -> PodAmounts:
    """Return what one pod of a template uses in a topology domain: its requests, and one of the resource `pods`."""
    known = _amounts_by_template.get(id(template))
    if known is not None and known[0] is template:
        return known[1]
    amounts = dict(placed_requests(template))
    amounts[PODS] = amounts.get(PODS, 0) + 1
    result = tuple(sorted(amounts.items()))
    if len(_amounts_by_template) >= _AMOUNTS_MAX:
        _amounts_by_template.clear()
    _amounts_by_template[id(template)] = template, result
    return result
