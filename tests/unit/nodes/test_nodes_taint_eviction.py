"""Eviction of pods by NoExecute taints."""

from typing import Any

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, find_condition, with_metadata, with_path
from batchyard.nodes.health import TaintEviction
from stage import Stage, condition_state
from unit.nodes.node_make import node, pod, running, taint, toleration

TAINT = taint(well_known.UNREACHABLE, since=10)


def eviction_stage(*objects: Any) -> Stage:
    stage = Stage(TaintEviction())
    stage.kernel.call_at(make.at(10), lambda: None)
    stage.run(10)
    stage.put(*objects)
    return stage


def terminating(stage: Stage, name: str = "pod") -> bool:
    result = stage.client.get(Key(scheme.POD, "team", name))
    return result is not None and "deletionTimestamp" in result["metadata"]


def tolerant(seconds: int | None, name: str = "pod") -> Any:
    return pod(name, status=running(), tolerations=[toleration(well_known.UNREACHABLE, seconds)])


def test_pod_without_toleration_is_deleted_at_once_with_condition_and_event() -> None:
    stage = eviction_stage(pod(status=running()), node(taints=[TAINT]))
    assert terminating(stage)
    why = ("True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    assert condition_state(stage.get(scheme.POD, "pod"), "DisruptionTarget") == why
    (event,) = stage.events
    assert (event.reason, event.message) == ("TaintManagerEviction", "Marking for deletion Pod team/pod")


def test_pod_is_deleted_when_its_toleration_seconds_end() -> None:
    stage = eviction_stage(tolerant(300), tolerant(None, "patient"), node(taints=[TAINT]))
    stage.run(309)
    assert not terminating(stage)
    stage.run(310)
    assert terminating(stage)
    stage.run(10**6)
    assert not terminating(stage, "patient")


def test_pod_stays_when_its_node_recovers_in_time() -> None:
    stage = eviction_stage(tolerant(300), node(taints=[TAINT]))
    stage.kernel.call_at(make.at(200), lambda: None)
    stage.run(200)
    stage.put(with_path(stage.get(scheme.NODE, "node", ""), ("spec", "taints"), None))
    stage.run(1000)
    assert not terminating(stage)
    assert find_condition(stage.get(scheme.POD, "pod"), "DisruptionTarget") is None


def test_noschedule_taint_does_not_evict_pods() -> None:
    stage = eviction_stage(pod(status=running()), node(taints=[taint(well_known.UNREACHABLE, "NoSchedule")]))
    assert not terminating(stage)


def test_pod_bound_later_to_tainted_node_is_evicted() -> None:
    stage = eviction_stage(node(taints=[TAINT]), pod(node=None))
    stage.put(with_path(stage.get(scheme.POD, "pod"), ("spec", "nodeName"), "node"))
    assert terminating(stage)


def test_terminating_pod_is_not_deleted_again() -> None:
    gone = with_metadata(pod(status=running()), finalizers=["test/keep"])
    stage = Stage(TaintEviction())
    stage.put(gone)
    stage.delete(scheme.POD, "pod")
    stage.put(node(taints=[TAINT]))
    assert stage.events == []


def test_pods_on_nodes_without_taints_cause_no_reconciles() -> None:
    stage = eviction_stage(node(), pod(status=running()))
    assert stage.runner.reconciles == 0
