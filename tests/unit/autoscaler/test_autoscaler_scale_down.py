"""Scale-down taints, drains and deletes unneeded nodes."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import is_true
from batchyard.autoscaler.machines import taint_to_be_deleted
from unit.autoscaler.scaling_make import AutoscalerStage, cluster, pod, pool
from unit.nodes.node_make import running

CANDIDATE, GOING = "DeletionCandidateOfClusterAutoscaler", "ToBeDeletedByClusterAutoscaler"


def taints(world: AutoscalerStage) -> list[str]:
    """The taints that the autoscaler set."""
    nodes = world.client.list(scheme.NODE)
    result = [taint["key"] for node in nodes for taint in node["spec"].get("taints") or ()]
    return sorted(key for key in result if key in {CANDIDATE, GOING})


def with_pods(*pods: Any, pools: Any = None, **autoscaling: Any) -> AutoscalerStage:
    """A cluster in which these pods run."""
    world = AutoscalerStage(cluster(pools or [pool()], autoscaling=autoscaling))
    world.put(*pods)
    world.run(100)
    assert all(world.place(each["metadata"]["name"]) for each in pods)
    return world


def test_scale_down_taints_empty_node_and_deletes_it_after_ten_minutes() -> None:
    world = with_pods(pod("p", cpu="3"))
    world.end("p")
    world.run(119)
    assert taints(world) == [CANDIDATE]
    world.run(699)
    assert len(world.nodes()) == 1
    world.run(720)
    assert (world.nodes(), world.machines()) == ([], [])


def test_scale_down_removes_candidate_taint_of_used_node() -> None:
    world = with_pods(pod("p", cpu="3"))
    world.end("p")
    world.run(300)
    world.put(pod("q", cpu="3"))
    world.run(320)
    assert (taints(world), len(world.nodes())) == ([], 1)
    world.end("q")
    world.run(800)
    assert len(world.nodes()) == 1


def test_unneeded_time_survives_restart_of_autoscaler() -> None:
    world = with_pods(pod("p", cpu="3"))
    world.end("p")
    world.run(600)
    again = world.restarted()
    again.run(690)
    assert len(again.nodes()) == 1
    again.run(720)
    assert again.nodes() == []


def test_scale_down_uses_profile_and_unneeded_time_of_cluster() -> None:
    world = with_pods(pod("p", cpu="3"), profile="optimize-utilization", unneededTime="30s")
    world.end("p")
    world.run(170)
    assert world.nodes() == []


def test_scale_down_waits_after_scale_up() -> None:
    world = with_pods(pod("p", cpu="3"), unneededTime="0s")
    world.end("p")
    world.run(300)
    assert len(world.nodes()) == 1
    world.put(pod("q", cpu="9"))
    world.run(620)
    assert world.nodes() == []


def test_scale_down_evicts_pods_of_deleted_node() -> None:
    world = with_pods(pod("p", cpu="2500m"), pod("q", cpu="2500m"), pod("r", cpu="1"))
    world.end("p" if world.place("r") == world.place("p") else "q")
    world.run(719)
    moved = world.get(scheme.POD, "r")
    assert is_true(moved, "DisruptionTarget")
    assert world.reported("ScaleDown")[-1] == ("r", "deleting pod for node scale down")
    assert GOING in taints(world)
    world.remove("r")
    world.run(740)
    assert len(world.nodes()) == 1


def test_restarted_autoscaler_continues_node_drain() -> None:
    world = with_pods(pod("p", cpu="2500m"), pod("q", cpu="2500m"), pod("r", cpu="1"))
    world.end("p" if world.place("r") == world.place("p") else "q")
    world.run(719)
    again = world.restarted()
    again.remove("r")
    again.run(740)
    assert len(again.nodes()) == 1


def test_scale_down_cancels_drain_of_pod_that_does_not_terminate() -> None:
    world = with_pods(
        pod("p", cpu="2500m"), pod("q", cpu="2500m"), pod("r", cpu="1", terminationGracePeriodSeconds=7200)
    )
    world.end("p" if world.place("r") == world.place("p") else "q")
    world.run(719)
    assert GOING in taints(world)
    world.run(710 + 600 + 30)
    assert GOING not in taints(world)
    assert len(world.nodes()) == 2


def test_scale_down_keeps_node_of_pod_that_is_not_safe_to_evict() -> None:
    safe = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    world = with_pods(pod("p", cpu="2500m"), pod("q", cpu="2500m"), pod("r", cpu="1", annotations=safe))
    world.end("p" if world.place("r") == world.place("p") else "q")
    world.run(3600)
    assert len(world.nodes()) == 2


def test_scale_down_keeps_node_with_disabled_annotation() -> None:
    world = with_pods(pod("p", cpu="3"))
    (name,) = world.nodes()
    node = world.get(scheme.NODE, name, "")
    kept = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
    world.put({**node, "metadata": {**node["metadata"], "annotations": kept}})
    world.end("p")
    world.run(3600)
    assert world.nodes() == [name]


def test_scale_down_keeps_nodes_of_pending_gang() -> None:
    slow = {"min": "12m", "typical": "12m", "max": "12m"}
    world = with_pods(pod("p", cpu="3"), unneededTime="10s")
    world.end("p")
    begin = world.get(scheme.CLUSTER, "batch", "")
    world.put({**begin, "spec": {**begin["spec"], "times": {"drivers": slow, "network": slow}}})
    world.run(110)
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(1200)
    assert (len(world.nodes()), taints(world)) == (2, [])
    world.run(1500)
    assert all(world.place(name) for name in ("g0", "g1"))


def test_scale_down_deletes_slice_after_all_hosts_are_unneeded() -> None:
    slices = [pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)]
    tpu: Any = {"requests": {"google.com/tpu": "4"}}
    world = with_pods(pod("p", **tpu), pod("q", **tpu), pools=slices)
    world.end("p")
    world.run(1200)
    assert len(world.nodes()) == 2
    world.end("q")
    world.run(2000)
    assert world.machines() == []


def budget(allowed: int) -> Any:
    """A budget for the pods of app web that allows this many disruptions."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": make.metadata("b", generation=1),
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed, "observedGeneration": 1},
    }


def with_guarded_pod() -> AutoscalerStage:
    """Two nodes, of which one runs only a pod that an exhausted budget protects."""
    guarded = pod("r", cpu="1", labels={"app": "web"})
    world = with_pods(pod("p", cpu="2500m"), pod("q", cpu="2500m"), guarded)
    world.put(budget(0), {**world.get(scheme.POD, "r"), "status": running()})
    world.end(next(name for name in ("p", "q") if world.place(name) == world.place("r")))
    world.run(1500)
    assert len(world.nodes()) == 2
    return world


def test_scale_down_keeps_node_while_disruption_budget_is_exhausted() -> None:
    world = with_guarded_pod()
    world.put(budget(1))
    world.run(2800)
    assert len(world.nodes()) == 1
    assert world.get(scheme.POD_DISRUPTION_BUDGET, "b")["status"]["disruptionsAllowed"] == 0


def test_scale_down_deletes_node_after_its_disruption_budget_is_deleted() -> None:
    world = with_guarded_pod()
    world.delete(scheme.POD_DISRUPTION_BUDGET, "b")
    world.run(2800)
    assert len(world.nodes()) == 1


def test_drain_evicts_guarded_pod_once_its_disruption_budget_allows_it() -> None:
    world = with_guarded_pod()
    node = world.get(scheme.NODE, world.place("r"), "")
    world.put(taint_to_be_deleted(node, world.kernel.now()))
    world.run(1530)
    assert "deletionTimestamp" not in world.get(scheme.POD, "r")["metadata"]
    world.put(budget(1))
    world.run(1540)
    assert is_true(world.get(scheme.POD, "r"), "DisruptionTarget")
    assert world.get(scheme.POD_DISRUPTION_BUDGET, "b")["status"]["disruptionsAllowed"] == 0
