"""The health of nodes."""

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import with_path
from batchyard.api.views import pods
from batchyard.nodes import conditions
from batchyard.nodes.health import NodeHealth
from stage import Stage, condition_state
from unit.nodes.node_make import lease, node, pod, running, taint

HEALTHY = node("healthy")


def health_stage(*objects: make.Obj) -> Stage:
    stage = Stage(NodeHealth())
    stage.put(*objects)
    return stage


def taints(stage: Stage, name: str = "node") -> list[tuple[str, str]]:
    result = conditions.taints_of(stage.get(scheme.NODE, name, ""))
    return [(t["key"].rpartition("/")[2], t["effect"]) for t in result]


def noexecute_nodes(stage: Stage) -> list[str]:
    """The nodes that have a NoExecute taint."""
    return [n["metadata"]["name"] for n in stage.client.list(scheme.NODE) if conditions.has_unready_taint(n)]


def unready(count: int, zone: str = "a") -> list[make.Obj]:
    return [node(f"{zone}{n:02}", ready="False", zone=zone) for n in range(count)]


def ready(count: int, zone: str = "a") -> list[make.Obj]:
    return [node(f"ready-{zone}{n:02}", zone=zone) for n in range(count)]


def test_node_without_heartbeats_for_50_seconds_becomes_unknown() -> None:
    stage = health_stage(HEALTHY, node(), lease(renewed=make.at(10)))
    stage.run(59)
    assert conditions.readiness(stage.get(scheme.NODE, "node", "")) == "True"
    stage.run(60)
    silent = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    assert condition_state(stage.get(scheme.NODE, "node", ""), "Ready") == silent
    assert taints(stage) == [("unreachable", "NoSchedule"), ("unreachable", "NoExecute")]
    (event,) = stage.events
    assert (event.reason, event.message) == ("NodeNotReady", "Node node status is now: NodeNotReady")


def test_node_whose_heartbeats_resume_in_time_stays_ready() -> None:
    stage = health_stage(HEALTHY, node(), lease(renewed=make.NOW))
    stage.kernel.call_at(make.at(49), lambda: None)
    stage.run(49)
    stage.put(lease())
    stage.run(1000)
    assert conditions.readiness(stage.get(scheme.NODE, "node", "")) == "True"
    assert taints(stage) == []


def test_node_without_status_becomes_unknown_after_one_minute() -> None:
    stage = health_stage(HEALTHY, node(ready=""))
    stage.run(60)
    never = ("Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.")
    assert condition_state(stage.get(scheme.NODE, "node", ""), "Ready") == never
    assert stage.events == []


def test_pods_of_unreachable_node_are_marked_not_ready() -> None:
    stage = health_stage(HEALTHY, node(), pod(status=running()), pod("other", node="healthy", status=running()))
    stage.put(lease(renewed=make.NOW))
    stage.run(50)
    assert not pods.is_ready(stage.get(scheme.POD, "pod"))
    assert pods.is_ready(stage.get(scheme.POD, "other"))
    assert stage.get(scheme.POD, "pod")["status"]["phase"] == "Running"
    reported = [(event.type, event.message) for event in stage.events if event.regarding.kind == scheme.POD]
    assert reported == [("Warning", "Node is not ready")]


def test_pods_left_ready_by_restart_are_marked_not_ready() -> None:
    stage = health_stage(HEALTHY, pod(status=running()), node(ready="Unknown"))
    assert not pods.is_ready(stage.get(scheme.POD, "pod"))


def test_not_ready_node_is_tainted_until_it_is_ready() -> None:
    stage = health_stage(HEALTHY, node(ready="False"))
    assert taints(stage) == [("not-ready", "NoSchedule"), ("not-ready", "NoExecute")]
    stage.put(with_path(stage.get(scheme.NODE, "node", ""), ("status",), node()["status"]))
    assert taints(stage) == []


def test_cordoned_node_gets_unschedulable_taint() -> None:
    stage = health_stage(node(spec={"unschedulable": True}))
    assert taints(stage) == [("unschedulable", "NoSchedule")]


def test_health_controller_taints_one_node_per_zone_every_ten_seconds() -> None:
    stage = health_stage(*ready(5), *unready(3), *ready(1, "b"), *unready(1, "b"))
    assert noexecute_nodes(stage) == ["a00", "b00"]
    stage.run(10)
    assert noexecute_nodes(stage) == ["a00", "a01", "b00"]
    stage.run(20)
    assert noexecute_nodes(stage) == ["a00", "a01", "a02", "b00"]


def test_restart_does_not_speed_up_next_eviction() -> None:
    stage = health_stage(*ready(5), *unready(3))
    stage.run(10)
    again = Stage(NodeHealth())
    again.kernel.call_at(make.at(15), lambda: None)
    again.run(15)
    again.put(*stage.client.list(scheme.NODE))
    assert noexecute_nodes(again) == ["a00", "a01"]
    again.run(20)
    assert noexecute_nodes(again) == ["a00", "a01", "a02"]


def test_small_partially_disrupted_zone_evicts_from_no_node() -> None:
    stage = health_stage(*ready(1), *ready(1, "b"), *unready(3))
    stage.run(1000)
    before = noexecute_nodes(stage)
    stage.put(*ready(3))
    assert len(noexecute_nodes(stage)) == len(before) + 1


def test_no_node_gets_noexecute_taint_when_whole_cluster_is_lost() -> None:
    stage = health_stage(node("a"), node("b", ready="False"))
    assert noexecute_nodes(stage) == ["b"]
    stage.put(with_path(stage.get(scheme.NODE, "a", ""), ("status",), node(ready="False")["status"]))
    assert noexecute_nodes(stage) == []
    assert taints(stage, "b") == [("not-ready", "NoSchedule")]


def test_foreign_taints_stay() -> None:
    stage = health_stage(HEALTHY, node(ready="False", taints=[taint("google.com/tpu", "NoSchedule", None)]))
    assert ("tpu", "NoSchedule") in taints(stage)


def test_noexecute_taint_of_user_gets_time_added() -> None:
    stage = health_stage(node(taints=[taint(well_known.OUT_OF_SERVICE, since=None)]))
    assert stage.get(scheme.NODE, "node", "")["spec"]["taints"] == [taint(well_known.OUT_OF_SERVICE)]


def test_healthy_nodes_cause_no_reconciles() -> None:
    stage = health_stage(node(), lease())
    stage.run(3600)
    assert stage.runner.reconciles == 1
