"""Selection of preemption victims for a pod."""

from typing import Any

import make
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, find_node
from batchyard.placement.preemption import PodPreemption, PreemptionFailure, find_preemption, importance_key
from unit.placement.placement_make import HOST, cluster, node, pod, pod_term, required, view


def preempt(nodes: ClusterSnapshot, pending: Any) -> PodPreemption | PreemptionFailure:
    """The preemption result of a pod that fits no node."""
    placement = find_node(view(pending), nodes)
    assert isinstance(placement, Unschedulable)
    return find_preemption(view(pending), nodes, placement.obstacles)


def victims(nodes: ClusterSnapshot, pending: Any) -> tuple[str, list[str]]:
    """The chosen node and its victims."""
    result = preempt(nodes, pending)
    assert isinstance(result, PodPreemption), result
    return result.node, [victim.name for victim in result.victims]


def message(nodes: ClusterSnapshot, pending: Any) -> str:
    """The message of a failed preemption."""
    result = preempt(nodes, pending)
    assert isinstance(result, PreemptionFailure), result
    return result.message


def pod_on(name: str, node_name: str = "n", priority: int = 0, **fields: Any) -> Any:
    """A Pod on a node."""
    return pod(name, nodeName=node_name, priority=priority, **fields)


def running_since(seconds: float) -> Any:
    """The status of a pod that runs since this time."""
    return {"phase": "Running", "startTime": make.stamp(seconds)}


def test_preemption_selects_pod_of_lower_priority() -> None:
    nodes = cluster(node(), pod_on("low", cpu="4"))
    assert victims(nodes, pod("p", priority=1)) == ("n", ["low"])


def test_preemption_keeps_pod_of_equal_priority() -> None:
    nodes = cluster(node(), pod_on("equal", cpu="4", priority=1))
    assert message(nodes, pod("p", priority=1)) == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_preemption_keeps_equal_beside_pod_of_lower_priority() -> None:
    nodes = cluster(node(), pod_on("equal", cpu="2", priority=1), pod_on("low", cpu="2"))
    assert victims(nodes, pod("p", cpu="2", priority=1)) == ("n", ["low"])


def test_preemption_selects_fewest_pods_of_lowest_priority() -> None:
    nodes = cluster(
        node(), pod_on("a", priority=3), pod_on("b", priority=1), pod_on("c", priority=2), pod_on("d", priority=9)
    )
    assert victims(nodes, pod("p", cpu="2", priority=5)) == ("n", ["c", "b"])


def test_preemption_selects_latest_started_of_equal_pods() -> None:
    nodes = cluster(node(cpu="2"), pod_on("old", status=running_since(1)), pod_on("new", status=running_since(5)))
    assert victims(nodes, pod("p", priority=1)) == ("n", ["new"])
    assert importance_key(view(pod_on("x"))) > importance_key(view(pod_on("new", status=running_since(5))))


def test_preemption_keeps_pod_that_frees_no_required_resource() -> None:
    nodes = cluster(node(gpu="1"), pod_on("gpu", gpu="1", priority=1), pod_on("cpu"))
    assert victims(nodes, pod("p", gpu="1", cpu="0", priority=5)) == ("n", ["gpu"])


def test_preemption_prefers_node_with_lowest_maximum_victim_priority() -> None:
    nodes = cluster(
        node("a"), node("b"), pod_on("x", "a", 3, cpu="4"), pod_on("y", "b", 2, cpu="2"), pod_on("z", "b", 2, cpu="2")
    )
    assert victims(nodes, pod("p", cpu="4", priority=5)) == ("b", ["y", "z"])


def test_preemption_compares_sum_of_victim_priorities_next() -> None:
    nodes = cluster(
        node("a"), node("b"), pod_on("x", "a", 2, cpu="2"), pod_on("y", "a", 1, cpu="2"), pod_on("z", "b", 2, cpu="4")
    )
    assert victims(nodes, pod("p", cpu="4", priority=5)) == ("b", ["z"])
    nodes = cluster(
        node("a"), node("b"), pod_on("x", "a", 2, cpu="4"), pod_on("y", "b", 2, cpu="2"), pod_on("z", "b", -1, cpu="2")
    )
    assert victims(nodes, pod("p", cpu="4", priority=5)) == ("a", ["x"])


def test_preemption_compares_victim_start_time_next() -> None:
    nodes = cluster(
        node("a"),
        node("b"),
        pod_on("x", "a", cpu="4", status=running_since(1)),
        pod_on("y", "b", cpu="4", status=running_since(2)),
    )
    assert victims(nodes, pod("p", priority=1)) == ("b", ["y"])


def test_preemption_compares_node_name_last() -> None:
    nodes = cluster(node("b"), node("a"), pod_on("x", "a", cpu="4"), pod_on("y", "b", cpu="4"))
    assert victims(nodes, pod("p", priority=1)) == ("a", ["x"])


def test_preemption_compares_first_hundred_nodes_with_victims() -> None:
    priorities = {50: -1, 100: -9}
    names = [f"n{number:03}" for number in range(101)]
    low = [pod_on(f"low-{name}", name, priorities.get(i, 0), cpu="4") for i, name in enumerate(names)]
    nodes = cluster(*map(node, names), *low)
    assert victims(nodes, pod("p", priority=1)) == ("n050", ["low-n050"])
    nodes.remove_node("n000")
    assert victims(nodes, pod("p", priority=1)) == ("n100", ["low-n100"])


def test_preemption_rejects_preemption_policy_never() -> None:
    nodes = cluster(node(), pod_on("low", cpu="4"))
    pending = pod("p", priority=1, preemptionPolicy="Never")
    assert message(nodes, pending) == "preemption: not eligible due to preemptionPolicy=Never."


def test_preemption_failure_counts_reasons_by_node() -> None:
    taints = [{"key": "t", "effect": "NoSchedule"}]
    nodes = cluster(
        node("a"),
        node("b", taints=taints),
        node("c"),
        node("d"),
        pod_on("x", "a", cpu="4", priority=9),
        pod_on("y", "c", cpu="3", priority=9),
        pod_on("z", "c", priority=0),
        pod_on("v", "d", cpu="4", priority=9),
    )
    assert message(nodes, pod("p", cpu="2", priority=5)) == (
        "preemption: 0/4 nodes are available: 1 Insufficient cpu, 1 Preemption is not helpful for scheduling, "
        "2 No preemption victims found for incoming pod."
    )


def test_preemption_finds_no_victims_on_node_without_pod_capacity() -> None:
    assert message(cluster(node(pods="0")), pod("p", priority=1)) == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_preemption_waits_for_terminating_victims() -> None:
    disruption = make.condition("DisruptionTarget", reason="PreemptionByScheduler")
    leaving = pod_on("x", "a", cpu="4", status={"conditions": [disruption]}, deleted=make.stamp(30))
    nodes = cluster(node("a"), node("b"), leaving, pod_on("y", "b", cpu="4"))
    nodes.nominate(view(pod("p", priority=1)), "a")
    result = preempt(nodes, pod("p", priority=1))
    assert result == ("preemption: not eligible due to a terminating pod on the nominated node.", True)


def test_preemption_selects_another_node_if_nominated_node_is_cordoned() -> None:
    disruption = make.condition("DisruptionTarget", reason="PreemptionByScheduler")
    leaving = pod_on("x", "a", cpu="4", status={"conditions": [disruption]}, deleted=make.stamp(30))
    nodes = cluster(node("a", unschedulable=True), node("b"), leaving, pod_on("y", "b", cpu="4"))
    nodes.nominate(view(pod("p", priority=1)), "a")
    assert victims(nodes, pod("p", priority=1)) == ("b", ["y"])


def test_preemption_respects_nomination_of_equal_priority() -> None:
    nodes = cluster(node(), pod_on("low", cpu="4"))
    nodes.nominate(view(pod("n", cpu="4", priority=5)), "n")
    assert message(nodes, pod("p", priority=5)) == "preemption: 0/1 nodes are available: 1 Insufficient cpu."


def test_preemption_selects_pod_matching_anti_affinity() -> None:
    far = required("podAntiAffinity", pod_term(HOST))
    nodes = cluster(node(), pod_on("a", labels={"app": "a"}), pod_on("b", labels={"app": "b"}))
    assert victims(nodes, pod("p", priority=1, affinity=far)) == ("n", ["a"])


def test_preemption_selects_pod_with_anti_affinity_to_preemptor() -> None:
    far = required("podAntiAffinity", pod_term(HOST))
    nodes = cluster(node(), pod_on("a", affinity=far), pod_on("b"))
    assert victims(nodes, pod("p", priority=1, labels={"app": "a"})) == ("n", ["a"])


def test_preemption_selects_pod_with_conflicting_host_port() -> None:
    ports = [{"hostPort": 80}]
    nodes = cluster(node(), pod_on("a", ports=ports), pod_on("b"))
    assert victims(nodes, pod("p", priority=1, ports=ports)) == ("n", ["a"])


def test_find_preemption_leaves_snapshot_unchanged() -> None:
    far = required("podAntiAffinity", pod_term(HOST))
    nodes = cluster(node(), pod_on("a", labels={"app": "a"}), pod_on("b", cpu="3"))
    victims(nodes, pod("p", priority=1, affinity=far))
    assert [sorted(n.pods) for n in nodes] == [["uid-a", "uid-b"]]
    assert nodes.node_name_of("uid-p") == ""
