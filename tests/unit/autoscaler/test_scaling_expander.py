"""The expanders select a scale-up option."""

from typing import Any

import pytest

from batchyard.autoscaler.expander import ScaleUpOption, best_option
from batchyard.autoscaler.node_groups import NodeGroup, settings_of
from batchyard.autoscaler.scale_up import pack
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make_core import A, cluster, groups, pool, views

SMALL, LARGE, GPU = (
    groups(pool(machine.replace("-", ""), machine, zones=[A]))[0]
    for machine in ("e2-standard-4", "e2-standard-16", "g2-standard-16")
)


def option(group: NodeGroup, **pods: Any) -> ScaleUpOption:
    packed = pack(views("a", "b", tolerations=[{"operator": "Exists"}], **pods), group, 10, ClusterSnapshot())
    return ScaleUpOption([group], packed.nodes, packed.unplaced_pods)


def best(options: list[ScaleUpOption], **autoscaling: Any) -> NodeGroup:
    return best_option(options, settings_of(cluster(autoscaling=autoscaling))).group


def test_least_waste_expander_selects_best_utilized_group() -> None:
    options = [option(LARGE, cpu="1500m"), option(SMALL, cpu="1500m")]
    assert best(options) is SMALL


def test_price_expander_selects_cheapest_group() -> None:
    assert best([option(GPU, cpu="3"), option(LARGE, cpu="3")], expander="price") is LARGE


def test_most_pods_expander_selects_group_for_most_pods() -> None:
    options = [ScaleUpOption([SMALL], [views("a")], views("b")), option(LARGE)]
    assert best(options, expander="most-pods") is LARGE


@pytest.mark.parametrize(("priorities", "expected"), [(["g2.*", ".*"], GPU), (["^e2standard16$", ".*"], LARGE)])
def test_priority_expander_matches_group_names(priorities: list[str], expected: NodeGroup) -> None:
    options = [option(SMALL), option(LARGE), option(GPU)]
    assert best(options, expander="priority", priorities=priorities) is expected


def test_priority_expander_sorts_unmatched_groups_last() -> None:
    assert best([option(SMALL), option(LARGE)], expander="priority", priorities=["16"]) is LARGE


def test_expander_selects_first_of_equal_options() -> None:
    twin = groups(pool("twin", zones=[A]))[0]
    assert best([option(twin), option(SMALL)]) is twin


def test_price_expander_doubles_cost_of_new_pool() -> None:
    there, new = option(LARGE, cpu="3"), option(SMALL, cpu="3")
    dear = ScaleUpOption(new.groups, new.nodes, new.unplaced_pods, is_new_pool=True)
    assert best([there, new], expander="price") is SMALL
    assert best([there, dear], expander="price") is LARGE
