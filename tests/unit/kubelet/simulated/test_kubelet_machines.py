"""Kubelets whose machines are lost, come back, or go off."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import find_condition, with_metadata
from batchyard.base.instant import SECOND
from batchyard.kubelet.simulated.kubelet import ContainerDelays
from stage import Stage, stated
from unit.kubelet.simulated.kubelet_make import container, delete, is_gone, pass_time, slow, started, status
from unit.nodes.node_make import instance, node, pod

MESSAGE = "Pod was terminated in response to imminent node shutdown."


def crashed_and_back(stage: Stage, crashed: float, back: float) -> None:
    pass_time(stage, crashed)
    stage.put(instance(phase="Crashed", since=crashed))
    pass_time(stage, back)
    stage.put(instance(since=back))


def told_to_stop(stage: Stage, at: float, stop_at: float) -> None:
    pass_time(stage, at)
    stage.put(instance(phase="Stopping", since=at, stop_at=stop_at))


def test_on_a_machine_that_is_lost_nothing_goes_on() -> None:
    stage = started(instance(), pod())
    pass_time(stage, 5)
    stage.put(instance(phase="Crashed", since=5))
    before = stage.get(scheme.POD, "pod")
    delete(stage)
    pass_time(stage, 100)
    assert status(stage) == before["status"]
    assert not is_gone(stage)


def test_nothing_starts_on_a_machine_that_is_lost_or_not_there_yet() -> None:
    stage = started(instance(phase="Crashed"), pod())
    assert "status" not in stage.get(scheme.POD, "pod")
    stage.put(instance(phase="Booting"))
    assert "status" not in stage.get(scheme.POD, "pod")
    stage.put(instance(phase="Running"))
    assert status(stage)["phase"] == "Running"


def test_a_pod_whose_node_is_gone_does_not_go_on() -> None:
    stage = started(instance(), pod())
    pass_time(stage, 5)
    stage.delete(scheme.NODE, "node", "")
    pass_time(stage, 60)
    assert status(stage)["phase"] == "Running"


def test_pods_of_a_machine_that_is_back_were_lost_and_fail() -> None:
    stage = started(instance(), pod())
    crashed_and_back(stage, 5, 65)
    assert status(stage)["phase"] == "Failed"
    assert container(stage)["state"]["terminated"] == {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
    }


def test_pods_of_a_machine_that_is_back_start_again_if_their_policy_lets_them() -> None:
    stage = started(instance(), pod(restartPolicy="OnFailure"))
    crashed_and_back(stage, 5, 65)
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(65)}}
    assert container(stage)["restartCount"] == 1
    assert container(stage)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    stage.run(75)
    assert status(stage)["phase"] == "Succeeded"


def test_a_pod_deleted_meanwhile_goes_when_its_machine_is_back() -> None:
    stage = started(instance(), pod(restartPolicy="Always"))
    pass_time(stage, 5)
    stage.put(instance(phase="Crashed", since=5))
    delete(stage)
    crashed_and_back(stage, 50, 65)
    assert is_gone(stage)


def test_containers_that_were_being_made_are_made_anew() -> None:
    stage = started(instance(), pod(), pace=slow(10))
    crashed_and_back(stage, 5, 65)
    stage.run(74)
    assert status(stage)["phase"] == "Pending"
    stage.run(75)
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(75)}}


def test_a_node_of_the_same_name_that_came_later_knows_nothing_of_earlier_pods() -> None:
    stage = started(pod())
    pass_time(stage, 5)
    stage.delete(scheme.NODE, "node", "")
    stage.put(with_metadata(node(), creationTimestamp=make.stamp(5.5), uid="another"))
    assert status(stage)["phase"] == "Failed"


def test_pods_are_terminated_when_their_machine_goes_off() -> None:
    stage = started(instance(), pod(restartPolicy="OnFailure"))
    told_to_stop(stage, 5, 35)
    stage.run(6)
    assert (status(stage)["phase"], status(stage)["reason"], status(stage)["message"]) == (
        "Failed",
        "Terminated",
        MESSAGE,
    )
    assert stated(stage.get(scheme.POD, "pod"), "DisruptionTarget") == ("True", "TerminationByKubelet", MESSAGE)
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
def test_pods_get_25_seconds_and_critical_ones_the_last_five(spec: Any, at: float, code: int) -> None:
    forever = [{"name": "c", "image": "busybox", "command": ["sleep", "infinity"]}]
    stage = started(instance(), pod(containers=forever, **spec), pace=ContainerDelays(stop_time=3600 * SECOND))
    told_to_stop(stage, 5, 35.5)
    stage.run(at - 0.1)
    assert status(stage)["phase"] == "Running"
    stage.run(at)
    assert (status(stage)["reason"], container(stage)["state"]["terminated"]["exitCode"]) == ("Terminated", code)


def test_pods_are_terminated_when_their_machine_is_given_back() -> None:
    stage = started(with_metadata(instance(), finalizers=["cloud.batchyard.dev/instance"]), pod())
    pass_time(stage, 5)
    stage.delete(scheme.INSTANCE, "node", "")
    stage.run(6)
    assert (status(stage)["phase"], status(stage)["reason"]) == ("Failed", "Terminated")


def test_a_pod_that_ends_in_time_was_not_disrupted() -> None:
    stage = started(instance(), pod())
    told_to_stop(stage, 9.5, 39.5)
    stage.run(20)
    assert status(stage)["phase"] == "Succeeded"
    assert find_condition(stage.get(scheme.POD, "pod"), "DisruptionTarget") is None


def test_a_pod_that_comes_too_late_is_rejected() -> None:
    stage = started(instance(phase="Stopping", stop_at=30))
    stage.put(pod())
    words = "Pod was rejected as the node is shutting down."
    assert (status(stage)["phase"], status(stage)["reason"]) == ("Failed", "NodeShutdown")
    assert status(stage)["message"] == f"Pod was rejected: {words}"
    assert [(e.type, e.reason, e.message) for e in stage.events] == [("Warning", "NodeShutdown", words)]


def test_nothing_is_written_once_the_machine_is_off() -> None:
    stage = started(instance(), pod(), pace=ContainerDelays(stop_time=3600 * SECOND))
    told_to_stop(stage, 5, 8)
    pass_time(stage, 60)
    assert status(stage)["phase"] == "Running"


def test_pods_of_other_nodes_are_left_alone() -> None:
    stage = started(instance(), node("other"), pod("elsewhere", node="other"))
    told_to_stop(stage, 5, 35)
    pass_time(stage, 9)
    assert status(stage, "elsewhere")["phase"] == "Running"
