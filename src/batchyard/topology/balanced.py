"""Balanced placement: spreads the pods of a preferred level evenly over the fewest domains of one domain above.

The threshold is the smallest number of slices that each used domain gets. The search maximizes it, then uses the fewest
domains, then those with the least capacity. If no balanced placement exists, the ordinary algorithm applies. Source:
Kueue's pkg/cache/scheduler/tas_balanced_placement.go, feature gate TASBalancedPlacement.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from batchyard.topology.counts import DomainCounts
from batchyard.topology.placement import DomainSearch, PlacedPods

#: Sets the counts of domains of a level from those of their children: (counts, level, domains).
SumUp: TypeAlias = Callable[[DomainCounts, int, Sequence[int]], None]


class _GreedyResult(NamedTuple):
    domain_count: int
    last_with_leader: int | None
    last: int | None


@dataclass(slots=True)
class BalancedSearch:
    """A search for a balanced placement; `sum_up` ignores the sizes of inner slices."""

    search: DomainSearch
    sum_up: SumUp

    def run(self) -> list[PlacedPods] | None:
        """Return the domains of the lowest level with their pods; None if no balanced placement exists."""
        best = self._best_siblings()
        if best is None:
            return None
        threshold, siblings, counts = best
        parameters = self.search.parameters
        level = parameters.level
        domains: Sequence[int] = siblings
        if level < parameters.slice_level:
            chosen = self._optimal_subset(counts, level, siblings, is_by_entropy=True)
            if chosen is None:
                return None
            domains = self._children(level, chosen)
            level += 1
        placed = self._place_slices(counts, level, domains, threshold)
        if placed is None:
            return None
        return replace(self.search, counts=counts).descend(level, placed, is_balanced=True)

    def _children(self, level: int, domains: Sequence[int]) -> list[int]:
        first_child = self.search.tree.first_child[level]
        return [child for domain in domains for child in range(first_child[domain], first_child[domain + 1])]

    def _sibling_sets(self) -> list[Sequence[int]]:
        tree, level = self.search.tree, self.search.parameters.level
        if level == 0:
            return [range(len(tree.paths[0]))]
        return [self._children(level - 1, [domain]) for domain in range(len(tree.paths[level - 1]))]

    def _best_siblings(self) -> tuple[int, Sequence[int], DomainCounts] | None:
        """Return the best threshold, the domains of the requested level to use, and the pruned counts."""
        parameters = self.search.parameters
        level = parameters.level
        best_threshold, best_count = 0, 0
        best: tuple[int, Sequence[int], DomainCounts] | None = None
        for siblings in self._sibling_sets():
            is_above_slices = level < parameters.slice_level
            greedy_level, domains = (
                (level + 1, self._children(level, siblings)) if is_above_slices else (level, siblings)
            )
            greedy = self._greedy(self.search.counts, greedy_level, domains)
            if greedy is None or not greedy.domain_count:
                continue
            threshold, reserving_threshold = self._thresholds(greedy, greedy_level)
            if threshold < best_threshold:
                continue
            counts = self._pruned_counts(siblings, threshold)
            pruned = self._greedy(counts, level, siblings)
            if pruned is None and 0 < reserving_threshold < threshold and reserving_threshold >= best_threshold:
                threshold = reserving_threshold
                counts = self._pruned_counts(siblings, threshold)
                pruned = self._greedy(counts, level, siblings)
            if pruned is None:
                continue
            if threshold > best_threshold or (threshold == best_threshold and pruned.domain_count < best_count):
                best_threshold, best_count = threshold, pruned.domain_count
                best = threshold, siblings, counts
        return best if best_threshold > 0 else None

    def _thresholds(self, greedy: _GreedyResult, level: int) -> tuple[int, int]:
        """Return the threshold of a greedy assignment, and the one that reserves room for the leader."""
        counts = self.search.counts
        threshold = self.search.parameters.slice_count // greedy.domain_count
        if greedy.last_with_leader is not None:
            threshold = min(threshold, counts.slices_with_leader[level][greedy.last_with_leader])
        if greedy.last is None:
            return threshold, threshold
        threshold = min(threshold, counts.slices[level][greedy.last])
        if not self.search.parameters.leader_count:
            return threshold, threshold
        return threshold, min(threshold, counts.slices_with_leader[level][greedy.last])

    def _greedy(self, counts: DomainCounts, level: int, domains: Sequence[int]) -> _GreedyResult | None:
        """Return how many domains a greedy assignment uses, and its last ones; None if the slices do not fit."""
        search = replace(self.search, counts=counts)
        remaining, remaining_leaders = search.parameters.slice_count, search.parameters.leader_count
        used = 0
        last_with_leader: int | None = None
        last: int | None = None
        if remaining_leaders:
            ranked = search.ranked_with_leader(level, domains)
            while remaining_leaders > 0 and used < len(ranked) and counts.leaders[level][ranked[used]] > 0:
                last_with_leader = ranked[used]
                remaining_leaders -= counts.leaders[level][last_with_leader]
                remaining -= counts.slices_with_leader[level][last_with_leader]
                used += 1
            if remaining_leaders > 0:
                return None
            domains = ranked[used:]
        for domain in search.ranked(level, domains):
            if remaining <= 0 or counts.slices[level][domain] <= 0:
                break
            used += 1
            last = domain
            remaining -= counts.slices[level][domain]
        return None if remaining > 0 else _GreedyResult(used, last_with_leader, last)

    # Pruning of domains that hold fewer slices than the threshold.

    def _pruned_counts(self, siblings: Sequence[int], threshold: int) -> DomainCounts:
        counts, level = self.search.counts.copy(), self.search.parameters.level
        if not self.search.parameters.leader_count:
            counts.pods_with_leader, counts.slices_with_leader = counts.pods, counts.slices
        if level + 1 < len(self.search.tree.levels):
            for child in self._children(level, siblings):
                self._prune(counts, level + 1, child, threshold)
        for inner_level in range(len(self.search.tree.levels) - 2, level - 1, -1):
            below: Sequence[int] = siblings
            for each in range(level, inner_level):
                below = self._children(each, below)
            self.sum_up(counts, inner_level, below)
        for domain in siblings:
            self._prune(counts, level, domain, threshold)
        return counts

    def _prune(self, counts: DomainCounts, level: int, domain: int, threshold: int) -> None:
        if counts.slices[level][domain] < threshold:
            self._clear(counts, level, domain, only_leader=False)
        elif counts.leaders[level][domain] > 0 and counts.slices_with_leader[level][domain] < threshold:
            self._clear(counts, level, domain, only_leader=True)

    def _clear(self, counts: DomainCounts, level: int, domain: int, *, only_leader: bool) -> None:
        domains: Sequence[int] = [domain]
        for each in range(level, len(self.search.tree.levels)):
            tables = [counts.pods_with_leader[each], counts.slices_with_leader[each], counts.leaders[each]]
            if not only_leader:
                tables += [counts.pods[each], counts.slices[each]]
            for table in tables:
                for cleared in domains:
                    table[cleared] = 0
            if each + 1 < len(self.search.tree.levels):
                domains = self._children(each, domains)

    # The choice of a subset of domains, and the slices of each.

    def _optimal_subset(
        self, counts: DomainCounts, level: int, domains: Sequence[int], *, is_by_entropy: bool
    ) -> list[int] | None:
        """Return the domains with the least capacity among the smallest subsets that hold all slices; None if none."""
        greedy = self._greedy(counts, level, domains)
        if greedy is None:
            return None
        parameters = self.search.parameters
        ordered = sorted(domains)
        if is_by_entropy:
            ordered.sort(
                key=lambda d: (
                    -counts.leaders[level][d],
                    -counts.slices_with_leader[level][d],
                    -self._entropy(counts, level, d),
                )
            )
        pods, pods_l = counts.pods[level], counts.pods_with_leader[level]
        #: By number of domains: the chosen domains by (leaders left, pods left).
        states: list[dict[tuple[int, int], list[int]]] = [{} for _ in range(greedy.domain_count + 1)]
        states[0][parameters.leader_count, parameters.slice_count * parameters.slice_size] = []
        for domain in ordered:
            for used in range(greedy.domain_count, 0, -1):
                for (leaders_left, pods_left), chosen in sorted(states[used - 1].items()):
                    if leaders_left <= 0 and pods_left <= 0:
                        continue
                    leaders = counts.leaders[level][domain]
                    if leaders_left > 0 and leaders > 0:
                        state = leaders_left - leaders, pods_left - pods_l[domain]
                        states[used].setdefault(state, [*chosen, domain])
                    if counts.slices[level][domain] > 0:
                        states[used].setdefault((leaders_left, pods_left - pods[domain]), [*chosen, domain])
        complete = {left: chosen for (leaders, left), chosen in states[-1].items() if leaders == 0 and left <= 0}
        return complete[max(complete)] if complete else None

    def _entropy(self, counts: DomainCounts, level: int, domain: int) -> float:
        if level + 1 >= len(self.search.tree.levels):
            return 0.0
        pods = [counts.pods[level + 1][child] for child in self._children(level, [domain])]
        total = float(sum(pods))
        entropy = 0.0
        for count in pods:
            if count > 0:
                share = count / total
                entropy += -share * math.log2(share)
        return entropy

    def _place_slices(
        self, counts: DomainCounts, level: int, domains: Sequence[int], threshold: int
    ) -> list[int] | None:
        """Choose domains, set their counts to what each gets, and return them in order; None if it is impossible."""
        parameters = self.search.parameters
        chosen = self._optimal_subset(counts, level, domains, is_by_entropy=False)
        if chosen is None or parameters.slice_count < len(chosen) * threshold:
            return None
        ranked = replace(self.search, counts=counts).ranked_with_leader(level, chosen)
        extra = parameters.slice_count - len(ranked) * threshold
        leaders_left, size = parameters.leader_count, parameters.slice_size
        slices, slices_l = counts.slices[level], counts.slices_with_leader[level]
        for domain in ranked:
            taken = leaders = 0
            if leaders_left > 0:
                taken, leaders = min(slices_l[domain] - threshold, extra), 1
                leaders_left -= 1
            elif extra > 0:
                taken = min(slices[domain] - threshold, extra)
            counts.leaders[level][domain] = leaders
            slices[domain] = slices_l[domain] = threshold + taken
            counts.pods[level][domain] = (threshold + taken) * size
            counts.pods_with_leader[level][domain] = (threshold + taken) * size - leaders
            extra -= taken
        return None if extra > 0 or leaders_left > 0 else ranked
