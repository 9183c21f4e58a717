"""The health of nodes."""

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import with_path
from batchyard.api.views import pods
from batchyard.nodes import conditions
from batchyard.nodes.health import NodeHealth
from stage import Stage, stated
from unit.nodes.node_make import lease, node, pod, running, taint

HEALTHY = node("healthy")


def started(*objects: make.Obj) -> Stage:
    stage = Stage(NodeHealth())
    stage.put(*objects)
    return stage


def taints(stage: Stage, name: str = "node") -> list[tuple[str, str]]:
    found = conditions.taints_of(stage.get(scheme.NODE, name, ""))
    return [(t["key"].rpartition("/")[2], t["effect"]) for t in found]


def given_up(stage: Stage) -> list[str]:
    """The nodes that have a taint that drives pods out."""
    return [n["metadata"]["name"] for n in stage.client.list(scheme.NODE) if conditions.has_execution_taint(n)]


def unready(count: int, zone: str = "a") -> list[make.Obj]:
    return [node(f"{zone}{n:02}", ready="False", zone=zone) for n in range(count)]


def ready(count: int, zone: str = "a") -> list[make.Obj]:
    return [node(f"ready-{zone}{n:02}", zone=zone) for n in range(count)]


def test_a_node_that_is_not_heard_of_for_50_seconds_is_unknown() -> None:
    stage = started(HEALTHY, node(), lease(renewed=make.at(10)))
    stage.run(59)
    assert conditions.readiness(stage.get(scheme.NODE, "node", "")) == "True"
    stage.run(60)
    silent = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    assert stated(stage.get(scheme.NODE, "node", ""), "Ready") == silent
    assert taints(stage) == [("unreachable", "NoSchedule"), ("unreachable", "NoExecute")]
    (event,) = stage.events
    assert (event.reason, event.message) == ("NodeNotReady", "Node node status is now: NodeNotReady")


def test_a_node_that_beats_again_in_time_is_left_alone() -> None:
    stage = started(HEALTHY, node(), lease(renewed=make.NOW))
    stage.kernel.call_at(make.at(49), lambda: None)
    stage.run(49)
    stage.put(lease())
    stage.run(1000)
    assert conditions.readiness(stage.get(scheme.NODE, "node", "")) == "True"
    assert taints(stage) == []


def test_a_node_that_never_spoke_is_unknown_after_a_minute() -> None:
    stage = started(HEALTHY, node(ready=""))
    stage.run(60)
    never = ("Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.")
    assert stated(stage.get(scheme.NODE, "node", ""), "Ready") == never
    assert stage.events == []


def test_pods_of_a_node_that_is_not_heard_of_are_not_ready() -> None:
    stage = started(HEALTHY, node(), pod(status=running()), pod("other", node="healthy", status=running()))
    stage.put(lease(renewed=make.NOW))
    stage.run(50)
    assert not pods.is_ready(stage.get(scheme.POD, "pod"))
    assert pods.is_ready(stage.get(scheme.POD, "other"))
    assert stage.get(scheme.POD, "pod")["status"]["phase"] == "Running"
    reported = [(event.type, event.message) for event in stage.events if event.regarding.kind == scheme.POD]
    assert reported == [("Warning", "Node is not ready")]


def test_pods_that_a_restart_left_ready_are_told_afterwards() -> None:
    stage = started(HEALTHY, pod(status=running()), node(ready="Unknown"))
    assert not pods.is_ready(stage.get(scheme.POD, "pod"))


def test_a_node_that_is_not_ready_is_tainted_until_it_is() -> None:
    stage = started(HEALTHY, node(ready="False"))
    assert taints(stage) == [("not-ready", "NoSchedule"), ("not-ready", "NoExecute")]
    stage.put(with_path(stage.get(scheme.NODE, "node", ""), ("status",), node()["status"]))
    assert taints(stage) == []


def test_a_cordoned_node_is_tainted_so() -> None:
    stage = started(node(spec={"unschedulable": True}))
    assert taints(stage) == [("unschedulable", "NoSchedule")]


def test_of_a_zone_one_node_is_given_up_every_ten_seconds() -> None:
    stage = started(*ready(5), *unready(3), *ready(1, "b"), *unready(1, "b"))
    assert given_up(stage) == ["a00", "b00"]
    stage.run(10)
    assert given_up(stage) == ["a00", "a01", "b00"]
    stage.run(20)
    assert given_up(stage) == ["a00", "a01", "a02", "b00"]


def test_a_restart_does_not_hasten_the_next_node() -> None:
    stage = started(*ready(5), *unready(3))
    stage.run(10)
    again = Stage(NodeHealth())
    again.kernel.call_at(make.at(15), lambda: None)
    again.run(15)
    again.put(*stage.client.list(scheme.NODE))
    assert given_up(again) == ["a00", "a01"]
    again.run(20)
    assert given_up(again) == ["a00", "a01", "a02"]


def test_a_small_zone_that_is_mostly_lost_gives_up_no_node() -> None:
    stage = started(*ready(1), *ready(1, "b"), *unready(3))
    stage.run(1000)
    before = given_up(stage)
    stage.put(*ready(3))
    assert len(given_up(stage)) == len(before) + 1


def test_nobody_is_given_up_where_every_node_of_the_cluster_is_lost() -> None:
    stage = started(node("a"), node("b", ready="False"))
    assert given_up(stage) == ["b"]
    stage.put(with_path(stage.get(scheme.NODE, "a", ""), ("status",), node(ready="False")["status"]))
    assert given_up(stage) == []
    assert taints(stage, "b") == [("not-ready", "NoSchedule")]


def test_taints_of_others_stay() -> None:
    stage = started(HEALTHY, node(ready="False", taints=[taint("google.com/tpu", "NoSchedule", None)]))
    assert ("tpu", "NoSchedule") in taints(stage)


def test_a_taint_that_drives_pods_out_is_stamped() -> None:
    stage = started(node(taints=[taint(well_known.OUT_OF_SERVICE, since=None)]))
    assert stage.get(scheme.NODE, "node", "")["spec"]["taints"] == [taint(well_known.OUT_OF_SERVICE)]


def test_healthy_nodes_cost_nothing() -> None:
    stage = started(node(), lease())
    stage.run(3600)
    assert stage.runner.reconciles == 1
