"""Placement of pods in topology domains: chooses the fewest or best fitting domains, level by level.

The pods of a pod set are counted in slices, which a domain of the slice level must contain whole. If a leader belongs
to the pods, one domain must also have room for the leader. The search starts at the requested level; a preferred level
that does not suffice is left for the next higher one. Then the domains are narrowed down to the lowest level. Domains
are chosen by best fit (the largest first, the last one as small as possible), or the smallest first if any placement is
acceptable (`smallest_first`). Source: Kueue's pkg/cache/scheduler/tas_flavor_snapshot.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import NamedTuple

from batchyard.api.validation.topology import SliceLayer
from batchyard.api.views.topology import TopologyRequest
from batchyard.topology.class_counts import ClassCountCache, DomainRanking
from batchyard.topology.counts import DomainCounts
from batchyard.topology.tree import TopologyTree


class PlacementParameters(NamedTuple):
    """The parameters of a search for domains, resolved for the levels of a topology."""

    pod_count: int
    #: 1 if a leader must be placed too, else 0.
    leader_count: int
    #: The requested level.
    level: int
    slice_size: int
    slice_level: int
    #: By level: the size of inner slices; 0 if there are none.
    inner_sizes: tuple[int, ...]
    required: bool
    unconstrained: bool
    #: Whether the smallest domains are used first; else best fit.
    smallest_first: bool
    #: The slice layers if there are several.
    layers: tuple[SliceLayer, ...] = ()

    @property
    def slice_count(self) -> int:
        """The number of slices."""
        return self.pod_count // self.slice_size


def requested_level(request: TopologyRequest | None, levels: Sequence[str], *, is_implied: bool) -> str | None:
    """Return the level at which the search starts; None if the pod set does not specify one."""
    if request is not None:
        if request.required or request.preferred:
            return request.required or request.preferred
        if request.is_slices_only:
            return levels[0]
        if request.unconstrained:
            return levels[-1]
    return levels[-1] if is_implied else None


def has_levels(request: TopologyRequest, levels: Sequence[str]) -> bool:
    """Return whether a topology has the requested level and the levels of all slices."""
    level = requested_level(request, levels, is_implied=False)
    return level in levels and all(layer.topology in levels for layer in request.slices)


def resolve_parameters(
    request: TopologyRequest | None,
    levels: Sequence[str],
    count: int,
    *,
    has_leader: bool,
    is_implied: bool,
    is_profile_mixed: bool,
) -> PlacementParameters | str:
    """Return the parameters of a search; or the reason why the request does not suit the levels of the topology.

    With `is_profile_mixed`, pods without a required or preferred level use the smallest domains first.
    """
    slices = () if request is None else request.slices
    slice_size = slices[0].size if slices else 1
    if slice_size <= 0:
        return "slice topology requested, but slice size not provided"
    level_name = requested_level(request, levels, is_implied=is_implied)
    if level_name is None:
        return "topology level not specified"
    if level_name not in levels:
        return f"no requested topology level: {level_name}"
    slice_level_name = slices[0].topology if slices else levels[-1]
    if slice_level_name not in levels:
        return f"no requested topology level for slices: {slice_level_name}"
    level, slice_level = levels.index(level_name), levels.index(slice_level_name)
    if level > slice_level:
        return f"podset slice topology {slice_level_name} is above the podset topology {level_name}"
    inner_sizes = _inner_slice_sizes(slices, levels, slice_level)
    if isinstance(inner_sizes, str):
        return inner_sizes
    unconstrained = is_implied or (request is not None and (bool(request.unconstrained) or request.is_slices_only))
    required = request is not None and bool(request.required)
    return PlacementParameters(
        count,
        int(has_leader),
        level,
        slice_size,
        slice_level,
        inner_sizes,
        required,
        unconstrained,
        unconstrained and is_profile_mixed,
        slices if len(slices) > 1 else (),
    )


def _inner_slice_sizes(slices: Sequence[SliceLayer], levels: Sequence[str], slice_level: int) -> tuple[int, ...] | str:
    sizes = [0] * len(levels)
    last_level = slice_level
    for outer, layer in pairwise(slices):
        if layer.topology not in levels:
            return f"no requested topology level for additional slice layer: {layer.topology}"
        level = levels.index(layer.topology)
        if level <= last_level:
            return (
                f"additional slice layer topology {layer.topology} must be at a lower level than {levels[last_level]}"
            )
        if layer.size <= 0 or outer.size % layer.size:
            return f"additional slice layer size {layer.size} must evenly divide parent layer size {outer.size}"
        sizes[last_level + 1 : level + 1] = [layer.size] * (level - last_level)
        last_level = level
    return tuple(sizes)


class PlacedPods(NamedTuple):
    """A domain with the pods and leaders that are placed in it."""

    domain: int
    pods: int
    leaders: int


class NoPlacement(NamedTuple):
    """The result of a failed search: how many slices (or leaders) fit."""

    fitting: int
    #: Whether the topology has no domains at all.
    has_no_domains: bool = False
    #: The level at which the search ended.
    level: int = 0


@dataclass(slots=True)
class DomainSearch:
    """A search for domains for the pods of one pod set, and possibly the leader of its group."""

    tree: TopologyTree
    counts: DomainCounts
    parameters: PlacementParameters
    #: The counts by classes of domains; None if every domain is counted, as with a leader.
    cache: ClassCountCache | None = None

    def run(self) -> list[PlacedPods] | NoPlacement:
        """Return the domains of the lowest level, with their pods and leaders."""
        found = self._find_domains(self.parameters.level)
        if isinstance(found, NoPlacement):
            return found
        return self.descend(*found, is_balanced=False)

    def descend(self, level: int, domains: Sequence[int], *, is_balanced: bool) -> list[PlacedPods]:
        """Narrow down the chosen domains of a level to domains of the lowest level.

        Above the slice level, the domains below all chosen ones compete for all slices, unless `is_balanced`.
        """
        parameters, tree = self.parameters, self.tree
        count, leaders, size = parameters.pod_count, parameters.leader_count, parameters.slice_size
        lowest = len(tree.levels) - 1
        self.fill(level, domains)
        placed = self._assign(level, domains, count, leaders, size, by_slices=True)
        while level < min(lowest, parameters.slice_level) and not is_balanced:
            first_child = tree.first_child[level]
            below = [
                child for each in placed for child in range(first_child[each.domain], first_child[each.domain + 1])
            ]
            level += 1
            self.fill(level, below)
            placed = self._assign(level, self.ranked(level, below), count, leaders, size, by_slices=True)
        while level < lowest:
            placed = self._descend_by_parent(level, placed)
            level += 1
        return placed

    def _descend_by_parent(self, level: int, placed: Sequence[PlacedPods]) -> list[PlacedPods]:
        parameters, first_child = self.parameters, self.tree.first_child[level]
        size = parameters.slice_size
        if level >= parameters.slice_level:
            size = parameters.inner_sizes[level + 1] or 1
        counts = self.counts
        if size > 1:
            # The counts of slices are those of the outermost slices; here the slices of this level are placed.
            pods, pods_l = counts.pods[level + 1], counts.pods_with_leader[level + 1]
            slices, slices_l = list(counts.slices), list(counts.slices_with_leader)
            slices[level + 1], slices_l[level + 1] = [0] * len(pods), [0] * len(pods_l)
            counts = replace(counts, slices=slices, slices_with_leader=slices_l)
        search = DomainSearch(self.tree, counts, parameters)
        result: list[PlacedPods] = []
        for each in placed:
            children = range(first_child[each.domain], first_child[each.domain + 1])
            self.fill(level + 1, children)
            if size > 1:
                for child in children:
                    slices[level + 1][child] = pods[child] // size
                    slices_l[level + 1][child] = pods_l[child] // size
            below = self.ranked(level + 1, children)
            result += search._assign(level + 1, below, each.pods, each.leaders, size, by_slices=size > 1)
        return result

    def fill(self, level: int, domains: Sequence[int]) -> None:
        """Count the domains of a level, if they are counted only on demand."""
        if self.cache is not None:
            self.cache.fill(level, domains)

    # The order of domains: by slices, then fewer pods, then by path.

    def ranked(self, level: int, domains: Sequence[int]) -> list[int]:
        """Return domains of a level in the order in which pods without a leader are placed."""
        pods, slices = self.counts.pods[level], self.counts.slices[level]
        sign = 1 if self.parameters.smallest_first else -1
        if self.counts.scores:
            scores = self.counts.scores[level]
            return sorted(domains, key=lambda d: (-scores[d], sign * slices[d], pods[d], d))
        return sorted(domains, key=lambda d: (sign * slices[d], pods[d], d))

    def ranked_with_leader(self, level: int, domains: Sequence[int]) -> list[int]:
        """Return domains of a level in the order in which pods with a leader are placed."""
        counts = self.counts
        pods, slices = counts.pods_with_leader[level], counts.slices_with_leader[level]
        leaders = counts.leaders[level]
        sign = 1 if self.parameters.smallest_first else -1
        if counts.scores:
            scores = counts.scores[level]
            return sorted(domains, key=lambda d: (-leaders[d], -scores[d], sign * slices[d], pods[d], d))
        return sorted(domains, key=lambda d: (-leaders[d], sign * slices[d], pods[d], d))

    def _fitting_domain(self, level: int) -> int | None:
        """Return the smallest domain of a level that holds all slices and the leader; None if there is none."""
        parameters, counts = self.parameters, self.counts
        pods, slices, leaders = counts.pods_with_leader[level], counts.slices_with_leader[level], counts.leaders[level]
        slice_count, leader_count = parameters.slice_count, parameters.leader_count
        if self.cache is not None:
            fitting_domain = self.cache.ranking(level).smallest_fit(slice_count)
            return None if fitting_domain is None else fitting_domain[2]
        if counts.scores:
            return self._preferred_domain(level)
        best, best_slices, best_pods = -1, 0, 0
        for domain, fitting in enumerate(slices):
            if fitting < slice_count or leaders[domain] < leader_count:
                continue
            if best < 0 or fitting < best_slices or (fitting == best_slices and pods[domain] < best_pods):
                best, best_slices, best_pods = domain, fitting, pods[domain]
        return None if best < 0 else best

    def _preferred_domain(self, level: int) -> int | None:
        """Return the domain of a level that holds all pods, by preferred node affinity; None if there is none.

        As in Kueue, the next level is tried, unless this one is required, if the most preferred domain is too small.
        """
        parameters, counts = self.parameters, self.counts
        slices, leaders = counts.slices_with_leader[level], counts.leaders[level]
        needed, leader_count = parameters.slice_count, parameters.leader_count
        ranked = self.ranked_with_leader(level, range(len(slices)))
        for position, domain in enumerate(ranked):
            if slices[domain] >= needed and leaders[domain] >= leader_count:
                if parameters.smallest_first:
                    return domain
                candidates = _best_scored(counts, level, ranked[position:])
                return _best_fit(candidates, slices, needed, leaders, leader_count)
            if not parameters.smallest_first and not parameters.required:
                break
        return None

    # The choice of the level and its domains.

    def _find_domains(self, level: int) -> tuple[int, list[int]] | NoPlacement:
        parameters = self.parameters
        if not self.tree.present_count:
            return NoPlacement(0, True, level)
        domain = self._fitting_domain(level)
        if domain is not None:
            return level, [domain]
        if parameters.required:
            return NoPlacement(self._largest_fit(level), level=level)
        if level > 0 and not parameters.unconstrained:
            return self._find_domains(level - 1)
        return self._find_several(level)

    def _largest_fit(self, level: int) -> int:
        """Return how many slices the first domain in order holds, for the message; the last one's pods in turn."""
        if self.cache is not None:
            largest_slices, largest_pods, _ = self.cache.ranking(level).largest()
            return largest_pods if self.parameters.smallest_first else largest_slices
        ranked = self.ranked_with_leader(level, self.tree.present_domains(level))
        if self.parameters.smallest_first:
            return self.counts.pods[level][ranked[-1]]
        return self.counts.slices[level][ranked[0]]

    def _find_several(self, level: int) -> tuple[int, list[int]] | NoPlacement:
        """Return domains of a level that hold the slices together, those with leaders first."""
        if self.cache is not None:
            return self._find_several_ranked(level, self.cache.ranking(level))
        parameters, counts = self.parameters, self.counts
        slices, slices_l, leaders = counts.slices[level], counts.slices_with_leader[level], counts.leaders[level]
        remaining, remaining_leaders = parameters.slice_count, parameters.leader_count
        result: list[int] = []
        domains: Sequence[int] = range(len(slices))
        if remaining_leaders:
            ranked = self._leader_first(
                level, self.ranked_with_leader(level, domains), parameters.pod_count, 1, parameters.slice_size, True
            )
            position = 0
            while remaining_leaders > 0 and position < len(ranked) and leaders[ranked[position]] > 0:
                domain = ranked[position]
                if not parameters.smallest_first and slices_l[domain] >= remaining:
                    candidates = _best_scored(self.counts, level, ranked[position:])
                    domain = _best_fit(candidates, slices_l, remaining, leaders, remaining_leaders)
                result.append(domain)
                remaining_leaders -= leaders[domain]
                remaining -= slices_l[domain]
                position += 1
            if remaining_leaders > 0:
                return NoPlacement(parameters.leader_count - remaining_leaders, level=level)
            domains = ranked[position:]
        ranked = self.ranked(level, domains)
        for position, each in enumerate(ranked):
            if remaining <= 0:
                break
            domain = each
            if not parameters.smallest_first and slices[domain] >= remaining:
                domain = _best_fit(_best_scored(self.counts, level, ranked[position:]), slices, remaining, leaders, 0)
            result.append(domain)
            remaining -= slices[domain]
        if remaining > 0:
            return NoPlacement(parameters.slice_count - remaining, level=level)
        return level, result

    def _find_several_ranked(self, level: int, ranking: DomainRanking) -> tuple[int, list[int]] | NoPlacement:
        """Return domains of a level that hold the slices together, without a leader and without empty domains."""
        remaining = self.parameters.slice_count
        fitting_count = ranking.slice_count()
        if fitting_count < remaining:
            return NoPlacement(fitting_count, level=level)
        result: list[int] = []
        if self.parameters.smallest_first:
            for fitting, _, domain in ranking.smallest_first():
                if remaining <= 0:
                    break
                result.append(domain)
                remaining -= fitting
            return level, result
        used: set[int] = set()
        for fitting, _, domain in ranking.largest_first():
            if remaining <= 0:
                break
            chosen, taken = domain, fitting
            if fitting >= remaining:
                best = ranking.smallest_fit(remaining, used)
                assert best is not None
                taken, _, chosen = best
            used.add(chosen)
            result.append(chosen)
            remaining -= taken
        return level, result

    def _leader_first(
        self, level: int, domains: Sequence[int], count: int, leader_count: int, size: int, by_slices: bool
    ) -> Sequence[int]:
        """Move the first domain that can host the leader, so that the rest still fits, to the front."""
        if not leader_count or len(domains) < 2:
            return domains
        counts = self.counts
        fitting = counts.slices[level] if by_slices else counts.pods[level]
        with_leader = counts.slices_with_leader[level] if by_slices else counts.pods_with_leader[level]
        needed = count // size if by_slices else count
        slack = sum([fitting[domain] for domain in domains]) - needed
        leaders = counts.leaders[level]
        for domain in domains:
            if leaders[domain] >= leader_count and fitting[domain] - with_leader[domain] <= slack:
                return [domain, *(each for each in domains if each != domain)]
        return domains

    # The pods of each chosen domain.

    def _assign(
        self, level: int, domains: Sequence[int], count: int, leader_count: int, size: int, *, by_slices: bool
    ) -> list[PlacedPods]:
        """Return how many pods and leaders each domain gets, in the order of `domains`; unneeded ones are left out."""
        counts, smallest_first = self.counts, self.parameters.smallest_first
        domains = self._leader_first(level, domains, count, leader_count, size, by_slices)
        fitting = counts.slices[level] if by_slices else counts.pods[level]
        with_leader = counts.slices_with_leader[level] if by_slices else counts.pods_with_leader[level]
        leaders = counts.leaders[level]
        unit, lowest = size if by_slices else 1, len(self.tree.levels) - 1
        remaining = count // size if by_slices else count
        result: list[PlacedPods] = []
        for position, each in enumerate(domains):
            domain = each
            if leader_count > 0:
                if not smallest_first and with_leader[domain] >= remaining and leaders[domain] >= leader_count:
                    candidates = _best_scored(self.counts, level, domains[position:])
                    domain = _best_fit(candidates, with_leader, remaining, leaders, leader_count)
                taken = with_leader[domain]
                if taken >= remaining and leaders[domain] >= leader_count:
                    return [*result, PlacedPods(domain, remaining * unit, leader_count)]
                taken, taken_leaders = min(taken, remaining), min(leaders[domain], leader_count)
                result.append(PlacedPods(domain, taken * unit, taken_leaders))
                leader_count -= taken_leaders
                remaining -= taken
                continue
            if not smallest_first and fitting[domain] >= remaining:
                domain = _best_fit(_best_scored(self.counts, level, domains[position:]), fitting, remaining, leaders, 0)
            taken = fitting[domain]
            if taken >= remaining:
                return [*result, PlacedPods(domain, remaining * unit, 0)]
            if taken or level < lowest:
                # The domains below an unused one still compete for the leader.
                result.append(PlacedPods(domain, taken * unit, 0))
            remaining -= taken
        return []


def _best_scored(counts: DomainCounts, level: int, domains: Sequence[int]) -> Sequence[int]:
    """Return the first domains of a list with equal scores: the score is more important than the best fit."""
    if not counts.scores:
        return domains
    scores = counts.scores[level]
    return list(takewhile(lambda domain: scores[domain] == scores[domains[0]], domains))


def _best_fit(
    domains: Sequence[int], fitting: Sequence[int], needed: int, leaders: Sequence[int], leader_count: int
) -> int:
    """Return the first domain with the smallest count that is at least `needed`; the first one if none is."""
    best, best_fit = domains[0], -1
    for domain in domains:
        count = fitting[domain]
        if count >= needed and leaders[domain] >= leader_count and (best_fit < 0 or count < best_fit):
            best, best_fit = domain, count
    return best
