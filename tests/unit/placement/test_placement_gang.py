"""Gangs: pods that are placed together or not at all."""

from typing import Any

import pytest

import make
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gang import (
    GangPlacement,
    GangPreemption,
    GangUnschedulable,
    may_have_room,
    place_gang,
    preempt_for_gang,
)
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.preemption import PreemptionFailure
from unit.placement.placement_make import HOST, cluster, member, node, pod, pod_term, required, view


def gang(count: int, cpu: str = "2", **fields: Any) -> list[Any]:
    """The Pods of a gang."""
    return [member(f"m{i}", cpu=cpu, **fields) for i in range(count)]


def gang_nodes(nodes: ClusterSnapshot, pods: list[Any]) -> dict[str, str] | str:
    """The nodes of a gang, by pod name; or the pod without a node."""
    result = place_gang([view(p) for p in pods], nodes, AutoscalingProfile.BALANCED)
    if isinstance(result, GangUnschedulable):
        return result.pod.name
    return {p["metadata"]["name"]: result.nodes[p["metadata"]["uid"]] for p in pods}


def gang_victims(nodes: ClusterSnapshot, pods: list[Any]) -> Any:
    """The victims with their preemptors in the gang; or the failure message."""
    result = preempt_for_gang([view(p) for p in pods], nodes, AutoscalingProfile.BALANCED)
    if isinstance(result, PreemptionFailure):
        return result.message
    return sorted((victim.name, preemptor.name) for victim, preemptor in result.victims)


def test_place_gang_returns_nodes_of_all_pods() -> None:
    assert gang_nodes(cluster(node("a"), node("b")), gang(4)) == {"m0": "a", "m1": "b", "m2": "a", "m3": "b"}


def test_unschedulable_gang_uses_no_capacity() -> None:
    nodes = cluster(node("a"), node("b"))
    assert gang_nodes(nodes, gang(5)) == "m4"
    assert [n.free_amounts["cpu"] for n in nodes] == [4000, 4000]


def test_unschedulable_gang_reports_obstacle_after_placing_other_members() -> None:
    result = place_gang([view(p) for p in gang(3)], cluster(node("a")), AutoscalingProfile.BALANCED)
    assert isinstance(result, GangUnschedulable)
    assert result.fit_error.message() == "0/1 nodes are available: 1 Insufficient cpu."


def test_place_gang_places_largest_pods_first() -> None:
    nodes = cluster(node("a"), node("b"))
    small = [member("a1", cpu="2"), member("a2", cpu="2")]
    assert gang_nodes(nodes, [*small, member("z", cpu="4")]) == {"a1": "b", "a2": "b", "z": "a"}


def test_place_gang_orders_scarce_resources_before_cpu() -> None:
    nodes = cluster(node("a", gpu="1", cpu="4"), node("b"))
    assert gang_nodes(nodes, [member("cpu", cpu="4"), member("gpu", cpu="1", gpu="1")]) == {"cpu": "b", "gpu": "a"}


def test_place_gang_places_affinity_target_before_dependent_pod() -> None:
    nodes = cluster(node("a"), node("b"))
    keen = member("big", cpu="3", affinity=required("podAffinity", pod_term(HOST)))
    assert gang_nodes(nodes, [keen, member("other", cpu="1", labels={"app": "a"})]) == {"big": "a", "other": "a"}
    assert gang_nodes(nodes, [keen]) == "big"


def test_place_gang_uses_its_own_nominations() -> None:
    nodes = cluster(node("a"), node("b"))
    pods = gang(2, "4")
    for obj, name in zip(pods, "ab", strict=True):
        nodes.nominate(view(obj), name)
    assert gang_nodes(nodes, pods) == {"m0": "a", "m1": "b"}
    assert nodes.nominated_node_of("uid-m0") == "a"


def test_gang_preemption_finds_victims_for_complete_gang_only() -> None:
    low = [pod(f"low{i}", cpu="4", nodeName=name) for i, name in enumerate("ab")]
    nodes = cluster(node("a"), node("b"), *low)
    assert gang_victims(nodes, gang(2, "4", priority=1)) == [("low0", "m0"), ("low1", "m1")]
    assert gang_victims(nodes, gang(3, "4", priority=1)) == (
        "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
    )


def test_gang_preemption_selects_no_victim_for_pods_that_fit() -> None:
    nodes = cluster(node("a"), node("b"), pod("low", cpu="4", nodeName="b"))
    pods = gang(2, "4", priority=1)
    result = preempt_for_gang([view(p) for p in pods], nodes, AutoscalingProfile.BALANCED)
    assert isinstance(result, GangPreemption)
    assert result.nodes == {"uid-m0": "a", "uid-m1": "b"}
    assert gang_victims(nodes, pods) == [("low", "m1")]


def test_gang_preemption_waits_for_terminating_victims() -> None:
    status = {"conditions": [make.condition("DisruptionTarget", reason="PreemptionByScheduler")]}
    leaving = pod("low", cpu="4", nodeName="a", status=status, deleted=make.stamp(30))
    nodes = cluster(node("a"), node("b"), leaving, pod("other", cpu="4", nodeName="b"))
    pods = gang(2, "4", priority=1)
    nodes.nominate(view(pods[0]), "a")
    message = "preemption: not eligible due to a terminating pod on the nominated node."
    assert gang_victims(nodes, pods) == message


def has_room(nodes: ClusterSnapshot, pods: list[Any]) -> bool:
    """Whether the gang may fit, by the quick check."""
    return may_have_room([view(p) for p in pods], nodes, AutoscalingProfile.BALANCED)


def test_may_have_room_counts_free_capacity() -> None:
    nodes = cluster(node("a"), node("b"))
    assert has_room(nodes, gang(4))
    assert not has_room(nodes, gang(5))
    assert not has_room(nodes, [*gang(4), member("x", cpu="9")])


def test_may_have_room_counts_preemptible_capacity() -> None:
    nodes = cluster(node("a"), node("b"), pod("low", cpu="4", nodeName="a"))
    assert not has_room(nodes, gang(4))
    assert has_room(nodes, gang(4, priority=1))
    assert not has_room(nodes, gang(4, priority=1, preemptionPolicy="Never"))


def test_may_have_room_excludes_nominations_of_other_pods() -> None:
    nodes = cluster(node("a"), node("b"))
    nodes.nominate(view(pod("n", cpu="1")), "a")
    assert not has_room(nodes, gang(4))
    nodes.withdraw_nomination("uid-n")
    nodes.nominate(view(gang(4)[0]), "a")
    assert has_room(nodes, gang(4))


def gang_beside_leader(**fields: Any) -> list[Any]:
    """The Pods of a gang: a leader of priority 9 that may preempt, and a pod that must run on the leader's node."""
    beside = member("m", cpu="2", affinity=required("podAffinity", pod_term(HOST)), **fields)
    return [beside, member("leader", cpu="2", labels={"app": "a"}, priority=9)]


@pytest.mark.parametrize("fields", [{}, {"priority": 9, "preemptionPolicy": "Never"}])
def test_may_have_room_counts_preemption_by_affinity_target(fields: dict[str, Any]) -> None:
    nodes = cluster(node("a"), pod("victim", cpu="4", nodeName="a", priority=5))
    pods = gang_beside_leader(**fields)
    assert gang_victims(nodes, pods) == [("victim", "leader")]
    assert has_room(nodes, pods)


def test_may_have_room_counts_no_preemption_that_cannot_come_first() -> None:
    victim = pod("victim", cpu="4", nodeName="a", priority=5)
    beside, leader = gang_beside_leader()
    assert not has_room(cluster(node("a"), {**victim, "spec": {**victim["spec"], "priority": 9}}), [beside, leader])
    assert not has_room(cluster(node("a"), victim), [beside, {**leader, "spec": {**leader["spec"], "priority": 5}}])
    independent = member("m", cpu="2")
    assert gang_victims(cluster(node("a"), victim), [independent, leader]) == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )
    assert not has_room(cluster(node("a"), victim), [independent, leader])


def test_place_gang_accepts_single_pod() -> None:
    result = place_gang([view(member("m"))], cluster(node()), AutoscalingProfile.BALANCED)
    assert result == GangPlacement({"uid-m": "n"})
