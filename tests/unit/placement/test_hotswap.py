"""Hotswap deletes gang pods on lost nodes at once, so that their gang restarts."""

from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, with_path
from batchyard.placement.hotswap import Hotswap
from stage import Stage, condition_state
from unit.nodes.node_make import node, pod, running, taint

POD = Key(scheme.POD, "team", "pod")


def member(
    name: str = "pod", *, node: str | None = "node", phase: str = "Running", placed: float = 0, **metadata: Any
) -> Any:
    """A pod of a gang, placed this many seconds after the start; it has the finalizer of Jobs."""
    marks = {"annotations": {well_known.WORKLOAD: "job-a"}, "finalizers": [well_known.JOB_TRACKING]}
    return pod(name, node=node, status={**running(placed), "phase": phase}, metadata={**marks, **metadata})


def hotswap_stage(*objects: Any) -> Stage:
    stage = Stage(Hotswap())
    stage.put(*objects)
    return stage


def lose_node(stage: Stage, name: str = "node") -> None:
    stage.put(node(name, ready="Unknown"))


def phase(stage: Stage, name: str = "pod") -> Any:
    return stage.get(scheme.POD, name)["status"]["phase"]


def is_running(stage: Stage, name: str = "pod") -> bool:
    obj = stage.get(scheme.POD, name)
    return obj["status"]["phase"] == "Running" and "deletionTimestamp" not in obj["metadata"]


def test_hotswap_fails_and_deletes_gang_pods_of_unknown_node() -> None:
    stage = hotswap_stage(node(), member())
    assert is_running(stage)
    lose_node(stage)
    assert phase(stage) == "Failed"
    reported = ("True", "DeletionByHotswap", "Hotswap: node is lost")
    assert condition_state(stage.get(scheme.POD, "pod"), "DisruptionTarget") == reported
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0
    assert [(e.regarding, e.reason) for e in stage.events] == [(POD, "NodeLost")]


def test_hotswap_removes_gang_pods_without_finalizer() -> None:
    stage = hotswap_stage(node(), member(finalizers=None))
    lose_node(stage)
    assert stage.client.get(POD) is None


def test_hotswap_fails_gang_pods_of_deleted_node() -> None:
    stage = hotswap_stage(node(), member(placed=-20))
    stage.delete(scheme.NODE, "node", "")
    assert phase(stage) == "Failed"


def test_hotswap_fails_gang_pods_of_ready_node_with_unreachable_taint() -> None:
    stage = hotswap_stage(node(), member())
    stage.put(node(taints=[taint(well_known.UNREACHABLE, "NoSchedule")]))
    assert phase(stage) == "Failed"


@pytest.mark.parametrize("lost", [{"ready": "Unknown"}, {"taints": [taint(well_known.UNREACHABLE)]}])
def test_hotswap_keeps_pod_bound_to_lost_node_if_node_recovers_in_time(lost: Any) -> None:
    stage = hotswap_stage(node(**lost), member(placed=5))
    stage.run(14)
    assert is_running(stage)
    stage.put(node())
    stage.run(60)
    assert is_running(stage)


def test_hotswap_fails_pod_bound_to_lost_node_after_grace_period() -> None:
    stage = hotswap_stage(node(ready="Unknown"), member(placed=5))
    stage.run(16)
    assert phase(stage) == "Failed"


def test_hotswap_keeps_pod_observed_before_its_node() -> None:
    stage = hotswap_stage(member())
    stage.run(9)
    assert is_running(stage)
    stage.put(node())
    stage.run(60)
    assert is_running(stage)


def test_hotswap_keeps_gang_pods_of_not_ready_node() -> None:
    stage = hotswap_stage(node(), member())
    stage.put(node(ready="False", taints=[taint(well_known.NOT_READY)]))
    assert is_running(stage)


def test_hotswap_keeps_pods_on_other_nodes_and_pods_without_gang() -> None:
    stage = hotswap_stage(node(), node("other"), member("elsewhere", node="other"), pod("alone", status=running()))
    lose_node(stage)
    assert is_running(stage, "elsewhere")
    assert is_running(stage, "alone")


def test_hotswap_fails_terminating_pod_of_lost_node_without_grace() -> None:
    stage = hotswap_stage(node(), member())
    stage.delete(scheme.POD, "pod")
    assert phase(stage) == "Running"
    lose_node(stage)
    assert phase(stage) == "Failed"
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
def test_hotswap_deletes_finished_terminating_pod_of_lost_node_without_grace(ended: str) -> None:
    stage = hotswap_stage(node(), member())
    stage.delete(scheme.POD, "pod")
    stage.put(with_path(stage.get(scheme.POD, "pod"), ("status", "phase"), ended))
    lose_node(stage)
    assert phase(stage) == ended
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
def test_hotswap_keeps_finished_pods_of_lost_node(ended: str) -> None:
    stage = hotswap_stage(node(), member(phase=ended))
    lose_node(stage)
    assert phase(stage) == ended
    assert "deletionTimestamp" not in stage.get(scheme.POD, "pod")["metadata"]


def test_hotswap_fails_pod_bound_after_node_loss() -> None:
    stage = hotswap_stage(node(ready="Unknown"), member(node=None))
    assert is_running(stage)
    stage.put(member())
    assert phase(stage) == "Failed"


def test_hotswap_deletes_pods_failed_before_restart() -> None:
    failed = member(phase="Failed")
    failed["status"]["conditions"] = [make.condition("DisruptionTarget", reason="DeletionByHotswap")]
    stage = hotswap_stage(node(ready="Unknown"), failed)
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


def test_hotswap_does_not_reconcile_pods_on_ready_nodes() -> None:
    stage = hotswap_stage(node(), member(), member("second"))
    assert stage.runner.reconciles == 0
