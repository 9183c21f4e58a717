"""Counts of the pods and slices that fit in each topology domain: the first phase of the placement algorithm.

Counts are computed for the domains of the lowest level, and summed up level by level. Equal requests share their
counts. After a change of the free capacity, only the changed domains and those above them are counted again. Source:
fillInCounts in Kueue's pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from batchyard.api.meta import Requirement
from batchyard.api.views.node import NodeView, PodTemplate, Requests, Taint, Toleration, WeightedNodeTerm
from batchyard.topology.tree import MAX_COUNT, PODS, CapacityTable, FlavorCapacity, LeafClasses, PodAmounts, mask_of

_SCHEDULING_EFFECTS: Final = ("NoSchedule", "NoExecute")
#: The updates of nodes after which counts start over.
_UPDATES_MAX: Final = 4096


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
    Without constraints (None), only domains without nodes are excluded.
    """

    __slots__ = (
        *("_constraints", "_reasons", "changes", "counts", "eligible", "excluded_count", "mask", "scores", "version"),
    )

    def __init__(self, nodes: Sequence[Sequence[NodeView]], constraints: NodeConstraints | None) -> None:
        self._constraints = constraints
        #: The updated hosts, in order, each with whether it could be used before; and the number of updates so far.
        self.changes: list[tuple[int, bool]] = []
        self.version = 0
        self._reasons = [self._reason_of(leaf_nodes) for leaf_nodes in nodes]
        #: Whether pods can use each host; and these hosts as a set of bits.
        self.eligible = [not reason for reason in self._reasons]
        self.mask = mask_of([leaf for leaf, eligible in enumerate(self.eligible) if eligible], len(nodes))
        self.excluded_count = self.eligible.count(False)
        #: The number of excluded hosts by reason: a node selector, node affinity, or an untolerated taint.
        self.counts = Counter(self._reasons)
        #: The sum of the weights of the preferred terms that each host matches; empty without preferred terms.
        prefers = constraints is not None and bool(constraints.preferred_affinity)
        self.scores = [self._score_of(each) for each in nodes] if prefers else []

    @property
    def excludes_only_absent(self) -> bool:
        """Whether all excluded hosts have no nodes, so that they have no room anyway."""
        return not self.excluded_count or self.counts[_ABSENT] == self.excluded_count

    def changed_since(self, version: int) -> dict[int, bool] | None:
        """Return the hosts updated after a version, and whether each could be used; None if all may have changed."""
        start = len(self.changes) - (self.version - version)
        return dict(reversed(self.changes[start:])) if start >= 0 else None

    def insert(self, leaf: int) -> None:
        """Insert a host without nodes; the numbers of the hosts after it increase by one."""
        self._reasons.insert(leaf, _ABSENT)
        self.counts[_ABSENT] += 1
        self.eligible.insert(leaf, False)
        self.excluded_count += 1
        self.mask = (self.mask & ((1 << leaf) - 1)) | ((self.mask >> leaf) << (leaf + 1))
        if self.scores:
            self.scores.insert(leaf, 0)
        self.changes = []
        self.version += 1

    def update(self, leaf: int, nodes: Sequence[NodeView]) -> None:
        """Check a host whose nodes changed again."""
        if len(self.changes) >= _UPDATES_MAX:
            self.changes = []
        self.changes.append((leaf, self.eligible[leaf]))
        self.version += 1
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
        if self._constraints is None:
            return ""
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
        if self._constraints is None or self._reason_of(nodes):
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


class ClassCounter:
    """How many pods of a CountKey fit in a domain of each class; computed when a class is first needed."""

    __slots__ = ("_numbering", "_requests", "limits", "pods", "table")

    def __init__(self, table: CapacityTable, pod: PodAmounts) -> None:
        self.table = table
        #: How many pods fit in a domain of each class, if it is not excluded; -1 if not counted yet.
        self.pods: list[int] = []
        #: The resource that leaves no room for a pod in domains of each class; '' if there is room.
        self.limits: list[str] = []
        #: The column of each requested resource in the amounts of classes, the amount, and the resource.
        self._requests: list[tuple[int, int, str]] = [(-1, amount, resource) for resource, amount in pod if amount]
        self._numbering = -1

    def classes(self) -> LeafClasses:
        """Return the present classes, for which `pods` and `limits` then have elements."""
        classes = self.table.classes()
        if self._numbering != classes.numbering:
            self._numbering = classes.numbering
            self.pods, self.limits = [], []
            self._requests = [(classes.column_of(resource), amount, resource) for _, amount, resource in self._requests]
        missing_count = len(classes.amounts) - len(self.pods)
        if missing_count:
            self.pods += [-1] * missing_count
            self.limits += [""] * missing_count
        return classes

    def count_used(self) -> LeafClasses:
        """Return the present classes after counting those that have domains."""
        classes = self.classes()
        for number in classes.used:
            if self.pods[number] < 0:
                self.count(classes, number)
        return classes

    def count(self, classes: LeafClasses, number: int) -> int:
        """Count the pods that fit in a domain of a class, and find the resource that leaves no room for one."""
        amounts, count, limit = classes.amounts[number], MAX_COUNT, ""
        for column, amount, resource in self._requests:
            fitting = amounts[column] // amount if column >= 0 else 0
            if fitting < count:
                count = fitting
            if fitting <= 0 and not limit:
                # All counts are at least 0, so the first resource by name without room is the limit.
                limit = resource
        count = max(count, 0)
        self.pods[number], self.limits[number] = count, limit
        return count


class CountCache:
    """The counts for one CountKey, updated when the free capacity of the flavor has changed."""

    __slots__ = (
        "_capacity",
        "_counter",
        "_exclusion_version",
        "_exclusions",
        "_has_equal_slices",
        "_key",
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
        self._counter = ClassCounter(self._table, key.pod)
        #: The results of searches with the present counts, by parameters of the searches.
        self.results: dict[object, object] = {}
        self._recount()

    def refresh(self) -> DomainCounts:
        """Return the counts for the current free capacity; `results` is emptied if something changed."""
        self._table.classes()
        exclusions = self._exclusions
        if self._version != self._table.version or (
            exclusions is not None and exclusions.version != self._exclusion_version
        ):
            changes = self._table.changed_since(self._version)
            updates = {} if exclusions is None else exclusions.changed_since(self._exclusion_version)
            if changes is None or updates is None:
                self._recount()
            else:
                self._update(sorted({*changes, *updates}))
        return self.counts

    def _recount(self) -> None:
        self.counts = self.count_below(range(self._capacity.tree.leaf_count))
        self._remember_versions()

    def _remember_versions(self) -> None:
        self._version = self._table.version
        self._exclusion_version = 0 if self._exclusions is None else self._exclusions.version
        self.results = {}

    def limiting_resources(self, leaves: range | None) -> dict[str, int]:
        """Return the resources that leave no room for a pod, with the numbers of such domains of the lowest level.

        With `leaves`, only these domains count. Excluded domains and those without nodes do not count.
        """
        classes = self._counter.count_used()
        tree = self._capacity.tree
        allowed = -1
        if leaves is not None:
            allowed = ((1 << len(leaves)) - 1) << leaves.start
        if self._exclusions is not None and self._exclusions.excluded_count:
            allowed &= self._exclusions.mask
        elif tree.absent:
            allowed &= ~mask_of(tree.absent.values(), tree.leaf_count)
        result: dict[str, int] = {}
        limits = self._counter.limits
        for number in classes.used:
            if limits[number]:
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
        self._remember_versions()
        if self.counts.scores:
            self.counts.scores = self._scores()
        tree, lowest = self._capacity.tree, len(self._capacity.tree.levels) - 1
        self._fill_leaves(self.counts, leaves)
        domains = leaves
        for level in range(lowest - 1, -1, -1):
            parents = tree.parents[level + 1]
            domains = sorted({parents[domain] for domain in domains})
            self.sum_up(self.counts, level, domains)

    def _fill_leaves(self, counts: DomainCounts, leaves: Sequence[int]) -> None:
        key, capacity = self._key, self._capacity
        ids, pods = self._counter.count_used().ids, counts.pods[-1]
        class_pods = self._counter.pods
        exclusions = self._exclusions
        eligible = exclusions.eligible if exclusions is not None and exclusions.excluded_count else None
        if len(leaves) == capacity.tree.leaf_count:
            pods[:] = [class_pods[number] for number in ids]
        else:
            for leaf in leaves:
                pods[leaf] = class_pods[ids[leaf]]
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
        sum_up(counts, self._key, self._capacity.tree.first_child[level], level, domains, with_inner=with_inner)


def sum_up(
    counts: DomainCounts,
    key: CountKey,
    first_child: Sequence[int],
    level: int,
    domains: Sequence[int],
    *,
    with_inner: bool = True,
) -> None:
    """Set the counts of domains of a level from the counts of their children."""
    if key.leader is not None:
        _sum_up_with_leader(counts, key, first_child, level, domains, with_inner=with_inner)
        return
    inner_size = key.inner_sizes[level + 1] if with_inner else 0
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
            slices[domain] = pod_count // key.slice_size if level == key.slice_level else sum(child_slices[start:end])


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
#: Equal amounts are one object, so that they are compared fast.
_shared_amounts: dict[PodAmounts, PodAmounts] = {}
_AMOUNTS_MAX: Final = 4096


def pod_amounts(template: PodTemplate) -> PodAmounts:
    """Return what one pod of a template uses in a topology domain: its requests, and one of the resource `pods`."""
    known = _amounts_by_template.get(id(template))
    if known is not None and known[0] is template:
        return known[1]
    amounts = dict(placed_requests(template))
    amounts[PODS] = amounts.get(PODS, 0) + 1
    result = tuple(sorted(amounts.items()))
    result = _shared_amounts.setdefault(result, result)
    if len(_amounts_by_template) >= _AMOUNTS_MAX:
        _amounts_by_template.clear()
        _shared_amounts.clear()
    _amounts_by_template[id(template)] = template, result
    return result
