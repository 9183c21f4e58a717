"""The expanders: which of the options is taken."""

from typing import Any

import pytest

from batchyard.autoscaler.expander import ScaleUpOption, best_option
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.scale_up import pack
from batchyard.autoscaler.settings import settings_of
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make_core import A, cluster, groups, pool, views

SMALL, LARGE, GPU = (
    groups(pool(machine.replace("-", ""), machine, zones=[A]))[0]
    for machine in ("e2-standard-4", "e2-standard-16", "g2-standard-16")
)


def option(group: NodeGroup, **pods: Any) -> ScaleUpOption:
    packed = pack(views("a", "b", tolerations=[{"operator": "Exists"}], **pods), group, 10, ClusterSnapshot())
    return ScaleUpOption([group], packed.nodes, packed.left)


def best(options: list[ScaleUpOption], **autoscaling: Any) -> NodeGroup:
    return best_option(options, settings_of(cluster(autoscaling=autoscaling))).group


def test_least_waste_takes_what_is_used_best() -> None:
    options = [option(LARGE, cpu="1500m"), option(SMALL, cpu="1500m")]
    assert best(options) is SMALL


def test_price_takes_what_costs_least_for_what_is_asked() -> None:
    assert best([option(GPU, cpu="3"), option(LARGE, cpu="3")], expander="price") is LARGE


def test_most_pods_takes_what_helps_most() -> None:
    options = [ScaleUpOption([SMALL], [views("a")], views("b")), option(LARGE)]
    assert best(options, expander="most-pods") is LARGE


@pytest.mark.parametrize(("priorities", "expected"), [(["g2.*", ".*"], GPU), (["^e2standard16$", ".*"], LARGE)])
def test_priority_goes_by_names(priorities: list[str], expected: NodeGroup) -> None:
    options = [option(SMALL), option(LARGE), option(GPU)]
    assert best(options, expander="priority", priorities=priorities) is expected


def test_pools_that_no_pattern_names_come_last() -> None:
    assert best([option(SMALL), option(LARGE)], expander="priority", priorities=["16"]) is LARGE


def test_the_first_of_equals_is_taken() -> None:
    twin = groups(pool("twin", zones=[A]))[0]
    assert best([option(twin), option(SMALL)]) is twin


def test_a_pool_that_is_yet_to_be_made_counts_double() -> None:
    there, new = option(LARGE, cpu="3"), option(SMALL, cpu="3")
    dear = ScaleUpOption(new.groups, new.nodes, new.left, is_new_pool=True)
    assert best([there, new], expander="price") is SMALL
    assert best([there, dear], expander="price") is LARGE
