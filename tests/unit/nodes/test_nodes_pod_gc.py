"""Garbage collection of pods that no kubelet will terminate."""

from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, find_condition, with_metadata
from batchyard.nodes.pods import FailureRecovery, PodGarbageCollector
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS
from stage import Stage, condition_state
from unit.nodes.node_make import node, pod, running, taint


def gc_stage(*objects: Any) -> Stage:
    stage = Stage(PodGarbageCollector())
    stage.put(*objects)
    return stage


def with_finalizer(obj: Any) -> Any:
    """An object that a finalizer keeps."""
    return with_metadata(obj, finalizers=["test/keep"])


def is_gone(stage: Stage) -> bool:
    return stage.client.get(Key(scheme.POD, "team", "pod")) is None


def phase(stage: Stage) -> Any:
    return stage.get(scheme.POD, "pod").get("status", {}).get("phase")


def test_pod_fails_and_is_deleted_40_seconds_after_its_node() -> None:
    stage = gc_stage(node(), with_finalizer(pod(status=running())))
    stage.delete(scheme.NODE, "node", "")
    stage.run(39)
    assert phase(stage) == "Running"
    stage.run(40)
    assert phase(stage) == "Failed"
    assert condition_state(stage.get(scheme.POD, "pod"), "DisruptionTarget")[1:] == (
        "DeletionByPodGC",
        "PodGC: node no longer exists",
    )
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


def test_ended_pod_without_finalizers_is_deleted_after_its_node() -> None:
    stage = gc_stage(node(), pod(status={"phase": "Succeeded"}))
    stage.delete(scheme.NODE, "node", "")
    stage.run(40)
    assert is_gone(stage)


def test_pod_stays_running_when_its_node_appears_in_time() -> None:
    stage = gc_stage(pod(status=running()))
    stage.kernel.call_at(make.at(30), lambda: None)
    stage.run(30)
    stage.put(node())
    stage.run(1000)
    assert phase(stage) == "Running"


def test_terminating_pod_on_unreachable_node_is_deleted_only_with_node() -> None:
    stage = gc_stage(node(ready="Unknown"), pod(status=running()))
    stage.delete(scheme.POD, "pod")
    stage.run(10**6)
    assert phase(stage) == "Running"
    stage.delete(scheme.NODE, "node", "")
    stage.run(10**6 + 100)
    assert is_gone(stage)


def test_out_of_service_taint_fails_only_terminating_pods() -> None:
    stage = gc_stage(node(ready="Unknown"), with_finalizer(pod(status=running())), pod("other", status=running()))
    stage.delete(scheme.POD, "pod")
    tainted = {**stage.get(scheme.NODE, "node", ""), "spec": {"taints": [taint(well_known.OUT_OF_SERVICE)]}}
    stage.put(tainted)
    assert phase(stage) == "Failed"
    assert find_condition(stage.get(scheme.POD, "pod"), "DisruptionTarget") is None
    assert stage.get(scheme.POD, "other")["status"]["phase"] == "Running"


def test_out_of_service_taint_on_ready_node_does_not_fail_pods() -> None:
    stage = gc_stage(node(taints=[taint(well_known.OUT_OF_SERVICE)]), with_finalizer(pod(status=running())))
    stage.delete(scheme.POD, "pod")
    assert phase(stage) == "Running"


def test_deleted_unscheduled_pod_fails() -> None:
    stage = gc_stage(with_finalizer(pod(node=None)))
    stage.delete(scheme.POD, "pod")
    assert phase(stage) == "Failed"


def test_ended_pod_held_by_finalizers_is_not_reconciled_again() -> None:
    stage = gc_stage(with_finalizer(pod(node=None, status={"phase": "Failed"})))
    stage.delete(scheme.POD, "pod")
    stage.run(1000)
    assert not is_gone(stage)
    assert stage.runner.reconciles == 1


def test_pods_on_existing_nodes_cause_no_reconciles() -> None:
    stage = gc_stage(node(), pod(status=running()), pod("waiting", node=None))
    assert stage.runner.reconciles == 0


def test_excess_ended_pods_are_deleted_evicted_first_then_oldest() -> None:
    stage = Stage(PodGarbageCollector(ended_pods_max=2))
    ended = {"phase": "Succeeded"}
    evicted = {"phase": "Failed", "reason": "Evicted"}
    stage.put(node())
    for number, status in enumerate((ended, ended, evicted, ended, {"phase": "Running"})):
        stage.put(pod(f"p{number}", status=status, metadata={"creationTimestamp": make.stamp(number)}))
    stage.run(1)
    assert [result["metadata"]["name"] for result in stage.client.list(scheme.POD)] == ["p1", "p3", "p4"]


# --- FailureRecoveryPolicy ---

_LOST = taint(well_known.UNREACHABLE)


def opted_in_pod(value: str = "true", **status: Any) -> Any:
    """A pod with the opt-in annotation and a finalizer, so that it can be read after its deletion."""
    obj = with_finalizer(pod(status={**running(), **status}))
    return with_metadata(obj, annotations={well_known.SAFE_TO_FORCEFULLY_DELETE: value})


def recovery_stage(*objects: Any) -> Stage:
    stage = Stage(FailureRecovery())
    stage.put(*objects)
    return stage


def grace(stage: Stage) -> Any:
    return stage.get(scheme.POD, "pod")["metadata"].get("deletionGracePeriodSeconds")


def test_terminating_pod_on_unreachable_node_is_forced_after_a_minute() -> None:
    stage = recovery_stage(node(taints=[_LOST]), opted_in_pod())
    stage.delete(scheme.POD, "pod")
    stage.run(89)
    assert (phase(stage), grace(stage)) == ("Running", 30)
    stage.run(91)
    assert (phase(stage), grace(stage)) == ("Failed", 0)
    condition = find_condition(stage.get(scheme.POD, "pod"), "KueueFailureRecovery")
    message = (
        "Pod forcefully terminated after 1m0.00000003s grace period due to unreachable node `node` "
        "(triggered by `kueue.x-k8s.io/safe-to-forcefully-delete` annotation)"
    )
    assert condition is not None
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "True",
        "KueueForcefullyDeleted",
        message,
    )
    assert stage.reasons() == ["KueueForcefullyDeleted"]


def test_terminating_pod_is_forced_when_its_node_becomes_unreachable() -> None:
    stage = recovery_stage(node(), opted_in_pod())
    stage.delete(scheme.POD, "pod")
    stage.run(200)
    assert phase(stage) == "Running"
    stage.put(node(taints=[_LOST]))
    stage.run(201)
    assert phase(stage) == "Failed"


@pytest.mark.parametrize(
    "obj", [opted_in_pod("false"), with_metadata(opted_in_pod(), annotations=None)], ids=["false", "none"]
)
def test_pod_without_opt_in_is_not_forced(obj: Any) -> None:
    stage = recovery_stage(node(taints=[_LOST]), obj)
    stage.delete(scheme.POD, "pod")
    stage.run(1000)
    assert phase(stage) == "Running"


def test_ended_pod_is_forced_but_keeps_its_phase() -> None:
    stage = recovery_stage(node(taints=[_LOST]), opted_in_pod(phase="Succeeded"))
    stage.delete(scheme.POD, "pod")
    stage.run(1000)
    assert (phase(stage), stage.reasons()) == ("Succeeded", ["KueueForcefullyDeleted"])


@pytest.mark.parametrize("is_on", [False, True])
def test_gate_enables_failure_recovery(*, is_on: bool) -> None:
    assert SIMULATION_SETTINGS.with_gates({"FailureRecoveryPolicy": is_on}).recovers_failures is is_on
