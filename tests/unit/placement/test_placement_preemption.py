"""Who must leave so that a pod fits."""

from typing import Any

import make
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, find_node
from batchyard.placement.preemption import PodPreemption, PreemptionFailure, find_preemption, importance
from unit.placement.placement_make import HOST, cluster, node, pod, pod_term, required, view


def preempt(nodes: ClusterSnapshot, asked: Any) -> PodPreemption | PreemptionFailure:
    """What becomes of a pod that fits nowhere."""
    placement = find_node(view(asked), nodes)
    assert isinstance(placement, Unschedulable)
    return find_preemption(view(asked), nodes, placement.obstacles)


def victims(nodes: ClusterSnapshot, asked: Any) -> tuple[str, list[str]]:
    """Which node is chosen, and who must leave it."""
    found = preempt(nodes, asked)
    assert isinstance(found, PodPreemption), found
    return found.node, [victim.name for victim in found.victims]


def message(nodes: ClusterSnapshot, asked: Any) -> str:
    """Why nobody leaves."""
    found = preempt(nodes, asked)
    assert isinstance(found, PreemptionFailure), found
    return found.message


def on(name: str, node_name: str = "n", priority: int = 0, **fields: Any) -> Any:
    """A Pod on a node."""
    return pod(name, nodeName=node_name, priority=priority, **fields)


def started(seconds: float) -> Any:
    """The status of a pod that runs since then."""
    return {"phase": "Running", "startTime": make.stamp(seconds)}


def test_a_pod_of_lower_priority_leaves() -> None:
    nodes = cluster(node(), on("low", cpu="4"))
    assert victims(nodes, pod("p", priority=1)) == ("n", ["low"])


def test_equals_do_not_leave() -> None:
    nodes = cluster(node(), on("equal", cpu="4", priority=1))
    assert message(nodes, pod("p", priority=1)) == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_an_equal_beside_one_of_lower_priority_stays() -> None:
    nodes = cluster(node(), on("equal", cpu="2", priority=1), on("low", cpu="2"))
    assert victims(nodes, pod("p", cpu="2", priority=1)) == ("n", ["low"])


def test_only_as_many_leave_as_must_the_least_important() -> None:
    nodes = cluster(node(), on("a", priority=3), on("b", priority=1), on("c", priority=2), on("d", priority=9))
    assert victims(nodes, pod("p", cpu="2", priority=5)) == ("n", ["c", "b"])


def test_of_equals_the_one_that_started_last_leaves() -> None:
    nodes = cluster(node(cpu="2"), on("old", status=started(1)), on("new", status=started(5)))
    assert victims(nodes, pod("p", priority=1)) == ("n", ["new"])
    assert importance(view(on("x"))) > importance(view(on("new", status=started(5))))


def test_who_takes_nothing_that_is_needed_stays() -> None:
    nodes = cluster(node(gpu="1"), on("gpu", gpu="1", priority=1), on("cpu"))
    assert victims(nodes, pod("p", gpu="1", cpu="0", priority=5)) == ("n", ["gpu"])


def test_the_node_whose_most_important_victim_is_least_important_is_chosen() -> None:
    nodes = cluster(node("a"), node("b"), on("x", "a", 3, cpu="4"), on("y", "b", 2, cpu="2"), on("z", "b", 2, cpu="2"))
    assert victims(nodes, pod("p", cpu="4", priority=5)) == ("b", ["y", "z"])


def test_then_the_sum_of_priorities_counts_and_with_it_the_number() -> None:
    nodes = cluster(node("a"), node("b"), on("x", "a", 2, cpu="2"), on("y", "a", 1, cpu="2"), on("z", "b", 2, cpu="4"))
    assert victims(nodes, pod("p", cpu="4", priority=5)) == ("b", ["z"])
    nodes = cluster(node("a"), node("b"), on("x", "a", 2, cpu="4"), on("y", "b", 2, cpu="2"), on("z", "b", -1, cpu="2"))
    assert victims(nodes, pod("p", cpu="4", priority=5)) == ("a", ["x"])


def test_then_the_node_is_chosen_whose_victims_started_last() -> None:
    nodes = cluster(
        node("a"), node("b"), on("x", "a", cpu="4", status=started(1)), on("y", "b", cpu="4", status=started(2))
    )
    assert victims(nodes, pod("p", priority=1)) == ("b", ["y"])


def test_then_the_first_node_by_name_is_chosen() -> None:
    nodes = cluster(node("b"), node("a"), on("x", "a", cpu="4"), on("y", "b", cpu="4"))
    assert victims(nodes, pod("p", priority=1)) == ("a", ["x"])


def test_pods_that_must_not_preempt_do_not() -> None:
    nodes = cluster(node(), on("low", cpu="4"))
    asked = pod("p", priority=1, preemptionPolicy="Never")
    assert message(nodes, asked) == "preemption: not eligible due to preemptionPolicy=Never."


def test_why_nobody_leaves_is_told_by_node() -> None:
    taints = [{"key": "t", "effect": "NoSchedule"}]
    nodes = cluster(
        node("a"),
        node("b", taints=taints),
        node("c"),
        node("d"),
        on("x", "a", cpu="4", priority=9),
        on("y", "c", cpu="3", priority=9),
        on("z", "c", priority=0),
        on("v", "d", cpu="4", priority=9),
    )
    assert message(nodes, pod("p", cpu="2", priority=5)) == (
        "preemption: 0/4 nodes are available: 1 Insufficient cpu, 1 Preemption is not helpful for scheduling, "
        "2 No preemption victims found for incoming pod."
    )


def test_a_node_that_takes_no_pods_at_all_has_no_victims() -> None:
    assert message(cluster(node(pods="0")), pod("p", priority=1)) == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_while_victims_are_on_their_way_nobody_else_is_asked() -> None:
    disruption = make.condition("DisruptionTarget", reason="PreemptionByScheduler")
    leaving = on("x", "a", cpu="4", status={"conditions": [disruption]}, deleted=make.stamp(30))
    nodes = cluster(node("a"), node("b"), leaving, on("y", "b", cpu="4"))
    nodes.nominate(view(pod("p", priority=1)), "a")
    found = preempt(nodes, pod("p", priority=1))
    assert found == (
        "preemption: not eligible due to a terminating pod on the nominated node.",
        True,
    )


def test_others_are_asked_when_the_nominated_node_can_help_no_more() -> None:
    disruption = make.condition("DisruptionTarget", reason="PreemptionByScheduler")
    leaving = on("x", "a", cpu="4", status={"conditions": [disruption]}, deleted=make.stamp(30))
    nodes = cluster(node("a", unschedulable=True), node("b"), leaving, on("y", "b", cpu="4"))
    nodes.nominate(view(pod("p", priority=1)), "a")
    assert victims(nodes, pod("p", priority=1)) == ("b", ["y"])


def test_room_that_is_held_for_equals_is_not_won_by_preemption() -> None:
    nodes = cluster(node(), on("low", cpu="4"))
    nodes.nominate(view(pod("n", cpu="4", priority=5)), "n")
    assert message(nodes, pod("p", priority=5)) == "preemption: 0/1 nodes are available: 1 Insufficient cpu."


def test_those_whom_a_pod_wants_far_may_leave() -> None:
    far = required("podAntiAffinity", pod_term(HOST))
    nodes = cluster(node(), on("a", labels={"app": "a"}), on("b", labels={"app": "b"}))
    assert victims(nodes, pod("p", priority=1, affinity=far)) == ("n", ["a"])


def test_those_who_want_a_pod_far_may_leave() -> None:
    far = required("podAntiAffinity", pod_term(HOST))
    nodes = cluster(node(), on("a", affinity=far), on("b"))
    assert victims(nodes, pod("p", priority=1, labels={"app": "a"})) == ("n", ["a"])


def test_those_who_hold_a_port_may_leave() -> None:
    ports = [{"hostPort": 80}]
    nodes = cluster(node(), on("a", ports=ports), on("b"))
    assert victims(nodes, pod("p", priority=1, ports=ports)) == ("n", ["a"])


def test_looking_for_victims_leaves_everything_as_it_was() -> None:
    far = required("podAntiAffinity", pod_term(HOST))
    nodes = cluster(node(), on("a", labels={"app": "a"}), on("b", cpu="3"))
    victims(nodes, pod("p", priority=1, affinity=far))
    assert [sorted(n.pods) for n in nodes] == [["uid-a", "uid-b"]]
    assert nodes.place_of("uid-p") == ""
