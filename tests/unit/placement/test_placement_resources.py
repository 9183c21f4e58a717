"""Room on a node, what it is short of, and how it scores by its resources."""

from typing import Any

import pytest

from batchyard.placement.node_filters import AutoscalingProfile, find_shortage, has_room, resource_score
from batchyard.placement.node_info import NodeInfo
from unit.placement.placement_make import cluster, node, pod, view

EMPTY: Any = {"containers": [{"name": "c"}]}


def only(*objects: Any) -> NodeInfo:
    """The only node of a cluster."""
    (found,) = cluster(*objects)
    return found


def short(asked: Any, *objects: Any) -> tuple[tuple[str, ...], bool] | None:
    """What a node is short of, and whether it might yield."""
    found = find_shortage(view(asked).shape, only(*objects))
    assert (found is None) == has_room(view(asked).shape, only(*objects))
    return None if found is None else (found.reasons, found.may_yield)


def score(asked: Any, *objects: Any, profile: AutoscalingProfile = AutoscalingProfile.BALANCED) -> int:
    """How a node scores for a pod."""
    return resource_score(view(asked).shape, only(*objects), profile)


def test_a_pod_fits_exactly() -> None:
    assert short(pod(cpu="4", memory="16Gi"), node()) is None


def test_everything_that_is_short_is_told() -> None:
    taken = pod("t", cpu="3", memory="10Gi", nodeName="n")
    assert short(pod(cpu="2", memory="8Gi"), node(), taken) == (("Insufficient cpu", "Insufficient memory"), True)


def test_what_the_node_never_has_nobody_can_yield() -> None:
    assert short(pod(cpu="5"), node()) == (("Insufficient cpu",), False)
    assert short(pod(gpu="1"), node()) == (("Insufficient nvidia.com/gpu",), False)


def test_a_node_takes_so_many_pods_only() -> None:
    taken = pod("t", nodeName="n")
    assert short(pod(cpu="0", memory="0"), node(pods="1"), taken) == (("Too many pods",), True)


def test_more_may_be_taken_than_there_is() -> None:
    taken = pod("t", cpu="8", nodeName="n")
    assert only(node(), taken).left["cpu"] == -4000
    assert short(pod(cpu="0"), node(), taken) is None


PORT = "node(s) didn't have free ports for the requested pod ports"


@pytest.mark.parametrize(
    ("ours", "theirs", "is_free"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 80, "hostIP": "10.0.0.2"}, False),
    ],
)
def test_a_port_of_the_host_is_taken_once(ours: Any, theirs: Any, is_free: bool) -> None:
    found = short(pod(ports=[ours]), node(), pod("t", ports=[theirs], nodeName="n"))
    assert found == (None if is_free else ((PORT,), True))


def test_a_port_is_free_again_when_its_pod_has_gone() -> None:
    nodes = cluster(node(), pod("t", ports=[{"hostPort": 80}], nodeName="n"))
    nodes.remove_pod("uid-t")
    (of,) = nodes
    assert has_room(view(pod(ports=[{"hostPort": 80}])).shape, of)


def test_the_emptier_node_scores_higher() -> None:
    # cpu 2/4 and memory 4/16 would be taken: (50 + 75) // 2, and a difference of 0.25 halved.
    assert score(pod(cpu="1", memory="2Gi"), node(), pod("t", cpu="1", memory="2Gi", nodeName="n")) == 62 + 87


def test_the_fuller_node_scores_higher_where_utilization_is_optimized() -> None:
    asked, taken = pod(cpu="1", memory="2Gi"), pod("t", cpu="1", memory="2Gi", nodeName="n")
    assert score(asked, node(), taken, profile=AutoscalingProfile.OPTIMIZE_UTILIZATION) == 37 + 87


def test_what_requests_nothing_is_not_drawn_to_balanced_nodes() -> None:
    asked = pod(cpu="0", memory="0", **EMPTY)
    # 100m of 4 cpus and 200Mi of 16Gi are assumed: 97 and 98.
    assert score(asked, node()) == (97 + 98) // 2


def test_what_pods_take_without_asking_counts_in_scores() -> None:
    taken = pod("t", nodeName="n", **EMPTY)
    assert only(node(), taken).left["cpu"] == 4000
    assert score(pod(), node(), taken) < score(pod(), node())


def test_overfull_and_bare_nodes_have_scores_too() -> None:
    assert score(pod(cpu="0", memory="0"), node(), pod("t", cpu="8", memory="32Gi", nodeName="n")) == 0
    assert score(pod(cpu="0", memory="0"), node(cpu="0", memory="0")) == 0
    assert score(pod(cpu="1", memory="0"), node(memory="0")) == 75 + 100
