"""The pods of gangs on nodes that are lost go at once, so that their gang starts anew."""

from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, with_path
from batchyard.placement.hotswap import Hotswap
from stage import Stage, stated
from unit.nodes.node_make import node, pod, running, taint

POD = Key(scheme.POD, "team", "pod")


def member(
    name: str = "pod", *, node: str | None = "node", phase: str = "Running", placed: float = 0, **metadata: Any
) -> Any:
    """A pod of a gang, placed so many seconds after the beginning; the finalizer of Jobs keeps it."""
    marks = {"annotations": {well_known.WORKLOAD: "job-a"}, "finalizers": [well_known.JOB_TRACKING]}
    return pod(name, node=node, status={**running(placed), "phase": phase}, metadata={**marks, **metadata})


def started(*objects: Any) -> Stage:
    stage = Stage(Hotswap())
    stage.put(*objects)
    return stage


def lose(stage: Stage, name: str = "node") -> None:
    stage.put(node(name, ready="Unknown"))


def phase(stage: Stage, name: str = "pod") -> Any:
    return stage.get(scheme.POD, name)["status"]["phase"]


def is_left_alone(stage: Stage, name: str = "pod") -> bool:
    obj = stage.get(scheme.POD, name)
    return obj["status"]["phase"] == "Running" and "deletionTimestamp" not in obj["metadata"]


def test_the_pods_of_a_gang_fail_and_go_when_their_node_is_not_heard_of() -> None:
    stage = started(node(), member())
    assert is_left_alone(stage)
    lose(stage)
    assert phase(stage) == "Failed"
    reported = ("True", "DeletionByHotswap", "Hotswap: node is lost")
    assert stated(stage.get(scheme.POD, "pod"), "DisruptionTarget") == reported
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0
    assert [(e.regarding, e.reason) for e in stage.events] == [(POD, "NodeLost")]


def test_they_go_for_good_if_no_finalizer_keeps_them() -> None:
    stage = started(node(), member(finalizers=None))
    lose(stage)
    assert stage.client.get(POD) is None


def test_a_node_that_is_gone_is_lost() -> None:
    stage = started(node(), member(placed=-20))
    stage.delete(scheme.NODE, "node", "")
    assert phase(stage) == "Failed"


def test_an_unreachable_node_is_lost_whatever_it_said_last() -> None:
    stage = started(node(), member())
    stage.put(node(taints=[taint(well_known.UNREACHABLE, "NoSchedule")]))
    assert phase(stage) == "Failed"


@pytest.mark.parametrize("lost", [{"ready": "Unknown"}, {"taints": [taint(well_known.UNREACHABLE)]}])
def test_a_pod_that_was_placed_after_its_node_was_lost_waits_for_news_of_the_node(lost: Any) -> None:
    stage = started(node(**lost), member(placed=5))
    stage.run(14)
    assert is_left_alone(stage)
    stage.put(node())
    stage.run(60)
    assert is_left_alone(stage)


def test_a_pod_that_was_placed_on_a_lost_node_goes_when_there_is_no_news() -> None:
    stage = started(node(ready="Unknown"), member(placed=5))
    stage.run(16)
    assert phase(stage) == "Failed"


def test_a_pod_may_be_heard_of_before_its_node() -> None:
    stage = started(member())
    stage.run(9)
    assert is_left_alone(stage)
    stage.put(node())
    stage.run(60)
    assert is_left_alone(stage)


def test_a_node_that_is_not_ready_and_says_so_is_not_lost() -> None:
    stage = started(node(), member())
    stage.put(node(ready="False", taints=[taint(well_known.NOT_READY)]))
    assert is_left_alone(stage)


def test_pods_elsewhere_and_pods_of_no_gang_stay() -> None:
    stage = started(node(), node("other"), member("elsewhere", node="other"), pod("alone", status=running()))
    lose(stage)
    assert is_left_alone(stage, "elsewhere")
    assert is_left_alone(stage, "alone")


def test_a_pod_that_stops_already_need_not_be_waited_for() -> None:
    stage = started(node(), member())
    stage.delete(scheme.POD, "pod")
    assert phase(stage) == "Running"
    lose(stage)
    assert phase(stage) == "Failed"
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
def test_a_pod_that_stopped_and_was_to_go_does_not_wait_for_its_kubelet(ended: str) -> None:
    stage = started(node(), member())
    stage.delete(scheme.POD, "pod")
    stage.put(with_path(stage.get(scheme.POD, "pod"), ("status", "phase"), ended))
    lose(stage)
    assert phase(stage) == ended
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
def test_pods_that_have_ended_stay_as_they_are(ended: str) -> None:
    stage = started(node(), member(phase=ended))
    lose(stage)
    assert phase(stage) == ended
    assert "deletionTimestamp" not in stage.get(scheme.POD, "pod")["metadata"]


def test_a_pod_that_comes_late_to_a_lost_node_goes_too() -> None:
    stage = started(node(ready="Unknown"), member(node=None))
    assert is_left_alone(stage)
    stage.put(member())
    assert phase(stage) == "Failed"


def test_what_was_failed_before_a_crash_is_deleted_after_it() -> None:
    failed = member(phase="Failed")
    failed["status"]["conditions"] = [make.condition("DisruptionTarget", reason="DeletionByHotswap")]
    stage = started(node(ready="Unknown"), failed)
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


def test_pods_on_nodes_that_are_well_cost_nothing() -> None:
    stage = started(node(), member(), member("second"))
    assert stage.runner.reconciles == 0
