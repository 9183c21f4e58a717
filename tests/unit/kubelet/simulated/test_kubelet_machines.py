"""Simulated kubelets whose machines crash, recover or stop."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import find_condition, with_metadata
from batchyard.base.instant import SECOND
from batchyard.kubelet.simulated.kubelet import ContainerDelays
from stage import Stage, condition_state
from unit.kubelet.simulated.kubelet_make import container, delete, is_gone, kubelet_stage, pass_time, slow, status
from unit.nodes.node_make import instance, node, pod

MESSAGE = "Pod was terminated in response to imminent node shutdown."


def crashed_and_back(stage: Stage, crashed: float, back: float) -> None:
    pass_time(stage, crashed)
    stage.put(instance(phase="Crashed", since=crashed))
    pass_time(stage, back)
    stage.put(instance(since=back))


def notice_to_stop(stage: Stage, at: float, stop_at: float) -> None:
    pass_time(stage, at)
    stage.put(instance(phase="Stopping", since=at, stop_at=stop_at))


def test_pods_on_crashed_machine_do_not_change() -> None:
    stage = kubelet_stage(instance(), pod())
    pass_time(stage, 5)
    stage.put(instance(phase="Crashed", since=5))
    before = stage.get(scheme.POD, "pod")
    delete(stage)
    pass_time(stage, 100)
    assert status(stage) == before["status"]
    assert not is_gone(stage)


def test_pods_do_not_start_before_machine_runs() -> None:
    stage = kubelet_stage(instance(phase="Crashed"), pod())
    assert "status" not in stage.get(scheme.POD, "pod")
    stage.put(instance(phase="Booting"))
    assert "status" not in stage.get(scheme.POD, "pod")
    stage.put(instance(phase="Running"))
    assert status(stage)["phase"] == "Running"


def test_pod_of_deleted_node_does_not_change() -> None:
    stage = kubelet_stage(instance(), pod())
    pass_time(stage, 5)
    stage.delete(scheme.NODE, "node", "")
    pass_time(stage, 60)
    assert status(stage)["phase"] == "Running"


def test_pods_of_recovered_machine_fail() -> None:
    stage = kubelet_stage(instance(), pod())
    crashed_and_back(stage, 5, 65)
    assert status(stage)["phase"] == "Failed"
    assert container(stage)["state"]["terminated"] == {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
    }


def test_pods_of_recovered_machine_restart_if_policy_allows() -> None:
    stage = kubelet_stage(instance(), pod(restartPolicy="OnFailure"))
    crashed_and_back(stage, 5, 65)
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(65)}}
    assert container(stage)["restartCount"] == 1
    assert container(stage)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    stage.run(75)
    assert status(stage)["phase"] == "Succeeded"


def test_pod_deleted_during_crash_is_removed_after_recovery() -> None:
    stage = kubelet_stage(instance(), pod(restartPolicy="Always"))
    pass_time(stage, 5)
    stage.put(instance(phase="Crashed", since=5))
    delete(stage)
    crashed_and_back(stage, 50, 65)
    assert is_gone(stage)


def test_containers_in_creation_are_created_again_after_recovery() -> None:
    stage = kubelet_stage(instance(), pod(), pace=slow(10))
    crashed_and_back(stage, 5, 65)
    stage.run(74)
    assert status(stage)["phase"] == "Pending"
    stage.run(75)
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(75)}}


def test_recreated_node_fails_pods_of_previous_node() -> None:
    stage = kubelet_stage(pod())
    pass_time(stage, 5)
    stage.delete(scheme.NODE, "node", "")
    stage.put(with_metadata(node(), creationTimestamp=make.stamp(5.5), uid="another"))
    assert status(stage)["phase"] == "Failed"


def test_pods_are_terminated_when_machine_stops() -> None:
    stage = kubelet_stage(instance(), pod(restartPolicy="OnFailure"))
    notice_to_stop(stage, 5, 35)
    stage.run(6)
    assert (status(stage)["phase"], status(stage)["reason"], status(stage)["message"]) == (
        "Failed",
        "Terminated",
        MESSAGE,
    )
    assert condition_state(stage.get(scheme.POD, "pod"), "DisruptionTarget") == (
        "True",
        "TerminationByKubelet",
        MESSAGE,
    )
    assert container(stage)["state"]["terminated"]["exitCode"] == 143


@pytest.mark.parametrize(
    ("spec", "at", "code"),
    [
        ({}, 30, 137),
        ({"terminationGracePeriodSeconds": 10}, 15, 137),
        ({"terminationGracePeriodSeconds": 60}, 30, 137),
        ({"priority": 2_000_000_000}, 35, 137),
    ],
)
def test_grace_period_is_25_seconds_and_critical_pods_stop_last(spec: Any, at: float, code: int) -> None:
    forever = [{"name": "c", "image": "busybox", "command": ["sleep", "infinity"]}]
    stage = kubelet_stage(instance(), pod(containers=forever, **spec), pace=ContainerDelays(stop_time=3600 * SECOND))
    notice_to_stop(stage, 5, 35.5)
    stage.run(at - 0.1)
    assert status(stage)["phase"] == "Running"
    stage.run(at)
    assert (status(stage)["reason"], container(stage)["state"]["terminated"]["exitCode"]) == ("Terminated", code)


def test_pods_are_terminated_when_machine_is_deleted() -> None:
    stage = kubelet_stage(with_metadata(instance(), finalizers=["cloud.batchyard.dev/instance"]), pod())
    pass_time(stage, 5)
    stage.delete(scheme.INSTANCE, "node", "")
    stage.run(6)
    assert (status(stage)["phase"], status(stage)["reason"]) == ("Failed", "Terminated")


def test_pod_that_succeeds_during_shutdown_is_not_disrupted() -> None:
    stage = kubelet_stage(instance(), pod())
    notice_to_stop(stage, 9.5, 39.5)
    stage.run(20)
    assert status(stage)["phase"] == "Succeeded"
    assert find_condition(stage.get(scheme.POD, "pod"), "DisruptionTarget") is None


def test_pod_bound_during_shutdown_is_rejected() -> None:
    stage = kubelet_stage(instance(phase="Stopping", stop_at=30))
    stage.put(pod())
    words = "Pod was rejected as the node is shutting down."
    assert (status(stage)["phase"], status(stage)["reason"]) == ("Failed", "NodeShutdown")
    assert status(stage)["message"] == f"Pod was rejected: {words}"
    assert [(e.type, e.reason, e.message) for e in stage.events] == [("Warning", "NodeShutdown", words)]


def test_nothing_is_written_after_machine_stopped() -> None:
    stage = kubelet_stage(instance(), pod(), pace=ContainerDelays(stop_time=3600 * SECOND))
    notice_to_stop(stage, 5, 8)
    pass_time(stage, 60)
    assert status(stage)["phase"] == "Running"


def test_pods_of_other_nodes_do_not_change() -> None:
    stage = kubelet_stage(instance(), node("other"), pod("elsewhere", node="other"))
    notice_to_stop(stage, 5, 35)
    pass_time(stage, 9)
    assert status(stage, "elsewhere")["phase"] == "Running"
