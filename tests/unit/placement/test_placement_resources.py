"""Free resources of a node, its shortages, and its resource score."""

from typing import Any

import pytest

from batchyard.placement.node_filters import AutoscalingProfile, find_shortage, has_room, resource_score
from batchyard.placement.node_info import NodeInfo
from unit.placement.placement_make import cluster, node, pod, view

EMPTY: Any = {"containers": [{"name": "c"}]}


def only(*objects: Any) -> NodeInfo:
    """The only node of a cluster."""
    (result,) = cluster(*objects)
    return result


def short(pending: Any, *objects: Any) -> tuple[tuple[str, ...], bool] | None:
    """The short resources of a node, and whether preemption may free them."""
    result = find_shortage(view(pending).shape, only(*objects))
    assert (result is None) == has_room(view(pending).shape, only(*objects))
    return None if result is None else (result.reasons, result.is_resolvable)


def score(pending: Any, *objects: Any, profile: AutoscalingProfile = AutoscalingProfile.BALANCED) -> int:
    """The score of a node for a pod."""
    return resource_score(profile, view(pending).shape, only(*objects))


def test_find_shortage_accepts_exact_fit() -> None:
    assert short(pod(cpu="4", memory="16Gi"), node()) is None


def test_find_shortage_reports_all_short_resources() -> None:
    taken = pod("t", cpu="3", memory="10Gi", nodeName="n")
    assert short(pod(cpu="2", memory="8Gi"), node(), taken) == (("Insufficient cpu", "Insufficient memory"), True)


def test_shortage_above_allocatable_is_not_preemptible() -> None:
    assert short(pod(cpu="5"), node()) == (("Insufficient cpu",), False)
    assert short(pod(gpu="1"), node()) == (("Insufficient nvidia.com/gpu",), False)


def test_find_shortage_reports_too_many_pods() -> None:
    taken = pod("t", nodeName="n")
    assert short(pod(cpu="0", memory="0"), node(pods="1"), taken) == (("Too many pods",), True)


def test_overcommitted_node_accepts_pod_without_requests() -> None:
    taken = pod("t", cpu="8", nodeName="n")
    assert only(node(), taken).free_amounts["cpu"] == -4000
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
def test_host_port_conflicts_by_ip_and_protocol(ours: Any, theirs: Any, is_free: bool) -> None:
    result = short(pod(ports=[ours]), node(), pod("t", ports=[theirs], nodeName="n"))
    assert result == (None if is_free else ((PORT,), True))


def test_removed_pod_releases_host_port() -> None:
    nodes = cluster(node(), pod("t", ports=[{"hostPort": 80}], nodeName="n"))
    nodes.remove_pod("uid-t")
    (of,) = nodes
    assert has_room(view(pod(ports=[{"hostPort": 80}])).shape, of)


def test_host_port_stays_used_until_last_of_its_pods_is_removed() -> None:
    ports = [{"hostPort": 80}]
    nodes = cluster(node(), *[pod(name, ports=ports, nodeName="n") for name in "tu"])
    (of,) = nodes
    nodes.remove_pod("uid-t")
    assert not has_room(view(pod(ports=ports)).shape, of)
    nodes.remove_pod("uid-u")
    assert has_room(view(pod(ports=ports)).shape, of)


def test_resource_score_of_balanced_profile() -> None:
    # cpu 2/4 and memory 4/16 would be used: (50 + 75) // 2, and half of the difference of 0.25.
    assert score(pod(cpu="1", memory="2Gi"), node(), pod("t", cpu="1", memory="2Gi", nodeName="n")) == 62 + 87


def test_resource_score_of_optimize_utilization_profile() -> None:
    pending, taken = pod(cpu="1", memory="2Gi"), pod("t", cpu="1", memory="2Gi", nodeName="n")
    assert score(pending, node(), taken, profile=AutoscalingProfile.OPTIMIZE_UTILIZATION) == 37 + 87


def test_resource_score_without_requests_skips_balance() -> None:
    pending = pod(cpu="0", memory="0", **EMPTY)
    # 100m of 4 cpus and 200Mi of 16Gi are assumed: 97 and 98.
    assert score(pending, node()) == (97 + 98) // 2


def test_resource_score_assumes_requests_of_best_effort_pods() -> None:
    taken = pod("t", nodeName="n", **EMPTY)
    assert only(node(), taken).free_amounts["cpu"] == 4000
    assert score(pod(), node(), taken) < score(pod(), node())


def test_resource_score_handles_overcommitted_and_zero_capacity_nodes() -> None:
    assert score(pod(cpu="0", memory="0"), node(), pod("t", cpu="8", memory="32Gi", nodeName="n")) == 0
    assert score(pod(cpu="0", memory="0"), node(cpu="0", memory="0")) == 0
    assert score(pod(cpu="1", memory="0"), node(memory="0")) == 75 + 100
