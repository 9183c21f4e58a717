"""Counts by classes of domains are the counts of every domain, whatever changes in between."""

from typing import Any

import pytest

from batchyard.api.views.node import NodeView, Taint
from batchyard.base.primitives import draw_integer
from batchyard.topology.assigner import assign_domains
from batchyard.topology.class_counts import ClassCountCache, DomainRanking, RankedDomain
from batchyard.topology.counts import CountCache, CountKey, NodeConstraints, NodeExclusions
from batchyard.topology.state import TopologyUsage, usage_of
from batchyard.topology.tree import FlavorCapacity, TopologyTree
from racks import LEVELS, node, request, state, template

GONE = Taint("gone", "3", "NoExecute")
POD = (("cpu", 1000), ("pods", 1))
NO_HOST = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}}
        ]
    }
}
#: The size of slices, their level, and the sizes of inner slices.
SLICES = [(1, 2, (0, 0, 0)), (2, 2, (0, 0, 0)), (2, 1, (0, 0, 0)), (4, 1, (0, 0, 2)), (4, 0, (0, 2, 2))]


class CountsBench:
    """Twelve hosts in racks, one of which may be large, with random changes of nodes and usage."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.used: dict[int, int] = {}
        hosts = 12 + 70 * (seed % 4 == 3)  # a domain with more than 64 children belongs to no group
        self.nodes = [self.draw_node(host, 0) for host in range(hosts)]
        self.capacity = FlavorCapacity(TopologyTree(LEVELS, self.nodes))
        self.exclusions = NodeExclusions(self.capacity.tree.nodes, NodeConstraints((), None, ()))

    def draw(self, stop: int, *names: object) -> int:
        return draw_integer(self.seed, *map(str, names)) % stop

    def draw_node(self, host: int, step: int) -> NodeView:
        rack = host % 3 if host < 12 else 5
        is_tainted = self.seed % 2 == 1 and self.draw(4, "taint", host, step) == 0
        cpu = self.draw(5, "cpu", host)
        return node(f"b{rack % 2}/r{rack}/h{host}", cpu, taints=[GONE] * is_tainted)

    def change(self, step: int) -> None:
        for number in range(self.draw(6, "changes", step)):
            leaf = self.draw(self.capacity.tree.leaf_count, "leaf", step, number)
            sign = -1 if self.used.get(leaf) and self.draw(2, "sign", step, number) else 1
            self.used[leaf] = self.used.get(leaf, 0) + sign
            self.capacity.use(leaf, POD, sign)
        if self.draw(2, "node", step):
            leaf = self.draw(self.capacity.tree.leaf_count, "node leaf", step)
            path = self.capacity.tree.paths[-1][leaf]
            known = next(each for each in self.nodes if each.name == path[-1])
            is_lost = bool(self.capacity.tree.nodes[leaf]) and self.draw(2, "lost", step) == 0
            self.replace(leaf, known, None if is_lost else self.draw_node(int(path[-1][1:]), step))

    def replace(self, leaf: int, known: NodeView, new: NodeView | None) -> None:
        tree = self.capacity.tree
        was_present = bool(tree.nodes[leaf])
        tree.replace_node(known.name, new)
        if was_present is (new is None):
            sign = -1 if was_present else 1
            tree.add_capacity(leaf, known, sign)
            self.capacity.occupy(leaf, tuple(known.allocatable.items()), -sign)
        self.exclusions.update(leaf, tree.nodes[leaf])


def check_ranking(ranking: DomainRanking, expected: list[RankedDomain]) -> None:
    """Check all methods of a ranking against the sorted list."""
    with_room = [each for each in expected if each[0]]
    assert ranking.largest() == expected[-1]
    assert ranking.slice_count() == sum(each[0] for each in expected)
    assert [*ranking.smallest_first()] == with_room
    assert [*ranking.largest_first()] == sorted(with_room, key=lambda each: -each[0])
    for needed in range(1, 8):
        fitting = [each for each in expected if each[0] >= needed]
        assert ranking.smallest_fit(needed) == (fitting[0] if fitting else None)
        excluded = {each[2] for each in fitting[:1]}
        assert ranking.smallest_fit(needed, excluded) == (fitting[1] if len(fitting) > 1 else None)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("slices", SLICES)
def test_counts_are_those_of_every_domain(seed: int, slices: tuple[int, int, tuple[int, ...]]) -> None:
    bench = CountsBench(seed)
    key = CountKey(POD, None, 0, *slices, is_idle=False)
    cache = ClassCountCache(bench.capacity, key, bench.exclusions)
    for step in range(12):
        bench.change(step)
        dense = CountCache(bench.capacity, key, bench.exclusions)
        counts = cache.refresh()
        cache.fill(2, range(bench.capacity.tree.leaf_count))
        assert (counts.pods, counts.slices) == (dense.counts.pods, dense.counts.slices)
        assert cache.limiting_resources() == dense.limiting_resources(None)
        for level in range(slices[1] + 1):
            domains = range(len(counts.pods[level]))
            expected = sorted(zip(counts.slices[level], counts.pods[level], domains, strict=True))
            check_ranking(cache.ranking(level), expected)


def test_results_remain_if_no_count_changes() -> None:
    capacity = FlavorCapacity(TopologyTree(LEVELS, [node("b/r/h1", cpu=4), node("b/r/h2", cpu=1)]))
    exclusions = NodeExclusions(capacity.tree.nodes, None)
    cache = ClassCountCache(capacity, CountKey(POD, None, 0, 1, 2, (0, 0, 0), is_idle=False), exclusions)
    cache.results["search"] = "result"
    capacity.use(0, (("cpu", 500),), 0)
    capacity.use(1, (("cpu", 500), ("pods", 1)), -1)
    cache.refresh()
    assert cache.results == {"search": "result"}
    capacity.use(1, POD, 1)
    cache.refresh()
    assert cache.results == {}


def requests_of(seed: int) -> list[dict[str, Any]]:
    """Topology requests of all sorts."""
    slices = {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2}
    layers = [{"topology": "rack", "size": 4}, {"topology": LEVELS[2], "size": 2}]
    fields: list[dict[str, Any]] = [{"required": "rack"}, {"preferred": "rack"}, {"unconstrained": True}]
    fields += [{"preferred": "block", **slices}, {"required": "block", **slices}, slices, {"preferred": LEVELS[2]}]
    fields += [{"preferred": "block", "podsetSliceRequiredTopologyConstraints": layers}]
    return fields[seed % 8 :] + fields[: seed % 8]


@pytest.mark.parametrize("seed", range(40))
def test_placements_are_those_of_a_search_that_counts_every_domain(seed: int) -> None:
    bench = CountsBench(seed)
    topology = state(*bench.nodes)
    used: list[TopologyUsage] = []
    for step, fields in enumerate(requests_of(seed)):
        cpu = 1 + bench.draw(2, "size", step)
        pods = request(2 * (1 + bench.draw(6, "pods", step)), cpu=cpu, **fields)
        found = assign_domains(topology, [pods])
        counted = state(*bench.nodes, TASRespectNodeAffinityPreferred=True)
        for each in used:
            counted.add_usage(each)
        # With preferred affinity, every domain is counted; no host matches, so all have the same score.
        assert assign_domains(counted, [pods._replace(template=template(cpu, affinity=NO_HOST))]) == found
        assert assign_domains(topology, [pods]) == found
        if isinstance(found, dict):
            used.append(usage_of(["tas"], found["main"], pods.template))
            topology.add_usage(used[-1])
