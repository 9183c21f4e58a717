"""Counts of the pods and slices that fit in each topology domain: the first phase of the placement algorithm.

Counts are computed for the domains of the lowest level, and summed up level by level. Equal requests share their
counts. After a change of the free capacity, only the changed domains and those above them are counted again. Source:
fillInCounts in Kueue's pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.meta import Requirement
from batchyard.api.views.node import NodeView, PodTemplate, Taint, Toleration
from batchyard.topology.tree import MAX_COUNT, PODS, FlavorCapacity, PodAmounts

_SCHEDULING_EFFECTS: Final = ("NoSchedule", "NoExecute")


class NodeConstraints(NamedTuple):
    """The constraints of a pod template on nodes, including the tolerations that the flavor adds."""

    node_selector: tuple[tuple[str, str], ...]
    affinity: tuple[tuple[Requirement, ...], ...] | None
    tolerations: tuple[Toleration, ...]


class NodeExclusions(NamedTuple):
    """The hosts that pods cannot use, by number, and how many hosts each kind of constraint excludes."""

    eligible: Sequence[bool]
    node_selector: int
    affinity: int
    #: The number of excluded hosts by untolerated taint.
    taints: tuple[tuple[str, int], ...]


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


def find_exclusions(nodes: Sequence[Sequence[NodeView]], constraints: NodeConstraints) -> NodeExclusions:
    """Return which hosts pods cannot use because of taints, node selectors or required node affinity, in this order.

    If several nodes have the same host name, the first one decides.
    """
    node_selector, affinity, tolerations = constraints
    eligible = [True] * len(nodes)
    selector_count = affinity_count = 0
    taint_counts: dict[str, int] = {}
    for leaf, leaf_nodes in enumerate(nodes):
        node = leaf_nodes[0]
        taint = untolerated_taint(node, tolerations) if node.taints else None
        if taint is not None:
            name = _format_taint(taint)
            taint_counts[name] = taint_counts.get(name, 0) + 1
        elif any(node.labels.get(key) != value for key, value in node_selector):
            selector_count += 1
        elif affinity is not None and not _matches_affinity(node, affinity):
            affinity_count += 1
        else:
            continue
        eligible[leaf] = False
    return NodeExclusions(eligible, selector_count, affinity_count, tuple(sorted(taint_counts.items())))


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

    def copy(self) -> "DomainCounts":
        """Return a deep copy, which may be changed."""
        return DomainCounts(
            *(
                [list(counts) for counts in levels]
                for levels in (self.pods, self.slices, self.leaders, self.pods_with_leader, self.slices_with_leader)
            )
        )


#: The slices and pods that fit in a domain, and its number.
RankedDomain: TypeAlias = tuple[int, int, int]


class CountCache:
    """The counts for one CountKey, updated when the free capacity of the flavor has changed."""

    __slots__ = (
        "_capacity",
        "_exclusions",
        "_idle_version",
        "_key",
        "_limiting",
        "_ranked",
        "_version",
        "counts",
        "results",
    )

    def __init__(self, capacity: FlavorCapacity, key: CountKey, exclusions: NodeExclusions | None) -> None:
        """Count for the current capacity; `exclusions` is None if the lowest level is not the host name."""
        self._capacity = capacity
        self._key = key
        self._exclusions = exclusions
        #: The results of searches with the present counts, by parameters of the searches.
        self.results: dict[object, object] = {}
        self._recount()

    def refresh(self) -> DomainCounts:
        """Return the counts for the current free capacity; `results` is emptied if something changed."""
        capacity = self._capacity
        if self._key.is_idle:
            if self._idle_version != capacity.idle_version:
                self._recount()
        elif self._version < capacity.change_base:
            self._recount()
        elif self._version < capacity.change_base + len(capacity.changes):
            changed_leaves = capacity.changes[self._version - capacity.change_base :]
            self._update(sorted(set(changed_leaves)) if len(changed_leaves) > 1 else changed_leaves)
        return self.counts

    def _recount(self) -> None:
        self.counts = self.count_below(range(self._capacity.tree.leaf_count))
        self._version, self._idle_version = self._capacity.version, self._capacity.idle_version
        self.results = {}
        #: By level: the domains sorted by the slices and pods that fit, and by number; None if not needed yet.
        self._ranked: list[list[RankedDomain] | None] = [None] * len(self.counts.pods)
        #: The resource that limits each domain without room for a pod; '' for others. None if not needed yet.
        self._limiting: list[str] | None = None

    def ranked_domains(self, level: int) -> list[RankedDomain]:
        """Return the domains of a level, the smallest first; the counts must be those without a leader."""
        ranked = self._ranked[level]
        if ranked is None:
            slices, pods = self.counts.slices[level], self.counts.pods[level]
            ranked = self._ranked[level] = sorted(zip(slices, pods, range(len(pods)), strict=True))
        return ranked

    def limiting_resources(self) -> list[str]:
        """Return for each domain of the lowest level the resource that leaves no room for a pod; '' for others."""
        self.refresh()  # a search below some domains does not need the counts of this cache
        if self._limiting is None:
            self._limiting = [""] * self._capacity.tree.leaf_count
            self._find_limits(range(self._capacity.tree.leaf_count))
        return self._limiting

    def _find_limits(self, leaves: Sequence[int]) -> None:
        assert self._limiting is not None
        pods, eligible = self.counts.pods[-1], None if self._exclusions is None else self._exclusions.eligible
        table = self._capacity.idle if self._key.is_idle else self._capacity.free
        requests = [(table.get(resource), amount, resource) for resource, amount in self._key.pod if amount]
        for leaf in leaves:
            limiting = ""
            if not pods[leaf] and (eligible is None or eligible[leaf]):
                # All counts are at least 0, so the first resource by name without room is the limit.
                limiting = next(name for free, amount, name in requests if free is None or free[leaf] < amount)
            self._limiting[leaf] = limiting

    def count_below(self, leaves: Sequence[int]) -> DomainCounts:
        """Return the counts if only the domains `leaves` of the lowest level may be used."""
        tree = self._capacity.tree
        sizes = [len(paths) for paths in tree.paths]
        zeros = [[0] * size for size in sizes]
        pods, slices, leaders = zeros, [[0] * size for size in sizes], [[0] * size for size in sizes]
        pods_with_leader, slices_with_leader = pods, slices
        if self._key.leader is not None:
            pods_with_leader, slices_with_leader = [[0] * size for size in sizes], [[0] * size for size in sizes]
        counts = DomainCounts(pods, slices, leaders, pods_with_leader, slices_with_leader)
        self._fill_leaves(counts, leaves)
        for level in range(len(sizes) - 2, -1, -1):
            self.sum_up(counts, level, range(sizes[level]))
        return counts

    def _update(self, leaves: Sequence[int]) -> None:
        """Count changed domains of the lowest level and those above them again."""
        self._version, self._idle_version = self._capacity.version, self._capacity.idle_version
        self.results = {}
        tree, lowest = self._capacity.tree, len(self._capacity.tree.levels) - 1
        old_ranks = self._ranks(lowest, leaves)
        self._fill_leaves(self.counts, leaves)
        self._move(lowest, old_ranks)
        if self._limiting is not None:
            self._find_limits(leaves)
        domains = leaves
        for level in range(lowest - 1, -1, -1):
            parents = tree.parents[level + 1]
            domains = sorted({parents[domain] for domain in domains})
            old_ranks = self._ranks(level, domains)
            self.sum_up(self.counts, level, domains)
            self._move(level, old_ranks)

    def _ranks(self, level: int, domains: Sequence[int]) -> Sequence[RankedDomain]:
        if self._ranked[level] is None:
            return ()
        slices, pods = self.counts.slices[level], self.counts.pods[level]
        return [(slices[domain], pods[domain], domain) for domain in domains]

    def _move(self, level: int, old_ranks: Sequence[RankedDomain]) -> None:
        ranked = self._ranked[level]
        if ranked is None:
            return
        slices, pods = self.counts.slices[level], self.counts.pods[level]
        for old in old_ranks:
            domain = old[2]
            new = slices[domain], pods[domain], domain
            if new != old:
                del ranked[bisect_left(ranked, old)]
                insort(ranked, new)

    def _fill_leaves(self, counts: DomainCounts, leaves: Sequence[int]) -> None:
        key, capacity = self._key, self._capacity
        eligible = None if self._exclusions is None else self._exclusions.eligible
        pods, table = counts.pods[-1], capacity.idle if key.is_idle else capacity.free
        requests = [(table.get(resource) or [0] * len(pods), amount) for resource, amount in key.pod if amount]
        for leaf in leaves:
            count = 0
            if eligible is None or eligible[leaf]:
                count = MAX_COUNT
                for free_amounts, amount in requests:
                    fitting = free_amounts[leaf] // amount
                    if fitting < count:
                        count = fitting
                if count < 0:
                    count = 0
            pods[leaf] = count
        if key.leader is not None:
            self._fill_leader(counts, leaves)
        if key.slice_level == len(counts.pods) - 1:
            self._fill_slices(counts, leaves)

    def _fill_leader(self, counts: DomainCounts, leaves: Sequence[int]) -> None:
        key, capacity = self._key, self._capacity
        assert key.leader is not None
        table = capacity.idle if key.is_idle else capacity.free
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
            self._sum_up_with_leader(counts, level, domains, with_inner=with_inner)
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
            slices[domain] = pod_count // size if level == slice_level else sum(child_slices[start:end])

    def _sum_up_with_leader(
        self, counts: DomainCounts, level: int, domains: Sequence[int], *, with_inner: bool
    ) -> None:
        first_child, key = self._capacity.tree.first_child[level], self._key
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


def largest_first(ranked: Sequence[RankedDomain]) -> Iterator[RankedDomain]:
    """Yield domains sorted by slices in descending order, then by pods and number in ascending order."""
    end = len(ranked)
    while end:
        start = bisect_left(ranked, (ranked[end - 1][0],))
        yield from ranked[start:end]
        end = start


_amounts_by_template: dict[int, tuple[PodTemplate, PodAmounts]] = {}
_AMOUNTS_MAX: Final = 4096


def pod_amounts(template: PodTemplate) -> PodAmounts:
    """Return what one pod of a template uses in a topology domain: its requests, and one of the resource `pods`."""
    known = _amounts_by_template.get(id(template))
    if known is not None and known[0] is template:
        return known[1]
    amounts = dict(template.requests)
    amounts[PODS] = amounts.get(PODS, 0) + 1
    result = tuple(sorted(amounts.items()))
    if len(_amounts_by_template) >= _AMOUNTS_MAX:
        _amounts_by_template.clear()
    _amounts_by_template[id(template)] = template, result
    return result
