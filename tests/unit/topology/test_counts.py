"""How many pods fit in each domain, and which nodes are excluded."""

import pytest

from batchyard.api.views.node import Taint, Toleration
from batchyard.base.primitives import draw_integer
from batchyard.topology.counts import CountCache, CountKey, tolerates
from batchyard.topology.tree import FlavorCapacity, TopologyTree
from racks import LEVELS, node, place, request, state, template

GONE = Taint("gone", "3", "NoExecute")
POD = (("cpu", 1000), ("pods", 1))


def test_scarcest_resource_limits_the_pods() -> None:
    assert place(state(node("b/r/h", cpu=4, pods=2)), request(3, required="rack")) == (
        'topology "racks" allows to fit only 2 out of 3 pod(s)'
    )


def test_excluded_nodes_are_counted_by_reason() -> None:
    topology = state(
        node("b/r/h1", taints=[GONE]), node("b/r/h2", cpu=0), node("b/r/h3", pods=0), node("b/r/h4", disk="ssd")
    )
    pods = request(1, required="rack")._replace(template=template(nodeSelector={"disk": "hdd"}))
    assert place(topology, pods) == (
        'topology "racks" doesn\'t allow to fit any of 1 pod(s). '
        'Total nodes: 4; excluded: nodeSelector: 3, taint "gone=3:NoExecute": 1'
    )
    assert place(topology, request(9, required="rack")) == (
        'topology "racks" allows to fit only 4 out of 9 pod(s). '
        'Total nodes: 4; excluded: resource "cpu": 1, resource "pods": 1, taint "gone=3:NoExecute": 1'
    )


def test_required_affinity_excludes_nodes() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    selector = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pods = request(1, unconstrained=True)._replace(template=template(affinity={"nodeAffinity": selector}))
    assert place(state(node("b/r/h1"), node("b/r/h2", disk="ssd")), pods) == "h2:1"


def test_taints_and_selectors_do_not_matter_without_hosts() -> None:
    topology = state(node("b/r/h1", taints=[GONE]), levels=("block", "rack"))
    assert place(topology, request(1, required="rack")) == "r:1"


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration("gone", "Exists", "", ""), True),
        (Toleration("gone", "Equal", "4", ""), False),
        (Toleration("gone", "Lt", "4", ""), True),
        (Toleration("gone", "Gt", "4", ""), False),
        (Toleration("gone", "Gt", "2", "NoSchedule"), False),
        (Toleration("gone", "Gt", "two", ""), False),
    ],
)
def test_tolerations_compare_values(toleration: Toleration, expected: bool) -> None:
    assert tolerates(toleration, GONE) is expected


@pytest.mark.parametrize("seed", range(20))
def test_updated_counts_are_those_of_a_new_count(seed: int) -> None:
    def draw(stop: int, *names: object) -> int:
        return draw_integer(seed, *map(str, names)) % stop

    nodes = [node(f"b{i % 2}/r{i % 5}/h{i}", cpu=draw(9, "cpu", i)) for i in range(12)]
    capacity = FlavorCapacity(TopologyTree(LEVELS, nodes))
    leader = POD if draw(2, "leader") else None
    key = CountKey(POD, leader, 0, 2, 1, (0, 0, 2 * draw(2, "inner")), is_idle=False)
    cache = CountCache(capacity, key, None)
    for step in range(10):
        for change in range(draw(4, "changes", step)):
            capacity.use(draw(12, "leaf", step, change), POD, 1 - 2 * draw(2, "sign", step, change))
        fresh = CountCache(capacity, key, None)
        assert cache.refresh() == fresh.counts
        assert cache.limiting_resources(None) == fresh.limiting_resources(None)


def test_limiting_resources_follow_the_free_capacity() -> None:
    capacity = FlavorCapacity(TopologyTree(LEVELS, [node("b/r/h1", cpu=1), node("b/r/h2", cpu=0)]))
    capacity.use(0, POD, 1)
    cache = CountCache(capacity, CountKey(POD, None, 2, 1, 2, (0, 0, 0), is_idle=False), None)
    capacity.use(0, POD, -1)
    assert cache.limiting_resources(None) == {"cpu": 1}
