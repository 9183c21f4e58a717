"""Simulated kubelets: pods that start, run, end, restart and are stopped."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from batchyard.base.instant import SECOND
from batchyard.kubelet.simulated.kubelet import ContainerDelays, SimulatedKubelets
from stage import Stage
from unit.kubelet.simulated.kubelet_make import (
    conditions,
    container,
    delete,
    is_gone,
    kubelet_stage,
    pass_time,
    slow,
    status,
)
from unit.nodes.node_make import node, pod


def fails(code: int = 3, **spec: Any) -> Any:
    return pod(metadata={"annotations": {"batchyard.dev/exit-code": str(code)}}, **spec)


def test_bound_pod_starts_at_once_on_ready_node() -> None:
    stage = kubelet_stage(pod())
    assert (status(stage)["phase"], status(stage)["startTime"]) == ("Running", make.stamp())
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp()}}
    assert (container(stage)["ready"], container(stage)["restartCount"]) == (True, 0)
    assert conditions(stage, "Initialized", "Ready", "ContainersReady", "PodScheduled") == [("True", "")] * 4
    assert status(stage)["podIP"].startswith("10.")
    assert status(stage)["hostIP"].startswith("10.128.")


def test_unbound_pod_gets_no_status() -> None:
    assert "status" not in kubelet_stage(pod(node=None)).get(scheme.POD, "pod")


def test_pod_waits_for_ready_node() -> None:
    stage = Stage(SimulatedKubelets())
    stage.put(pod(), node(ready="False"))
    assert "status" not in stage.get(scheme.POD, "pod")
    stage.put(node())
    assert status(stage)["phase"] == "Running"


def test_container_is_in_creating_state_during_start_delay() -> None:
    stage = kubelet_stage(pod(), pace=slow(4))
    assert status(stage)["phase"] == "Pending"
    assert container(stage)["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert conditions(stage, "PodScheduled", "Initialized", "Ready") == [
        ("True", ""),
        ("True", ""),
        ("False", "ContainersNotReady"),
    ]
    stage.run(4)
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(4)}}
    assert status(stage)["startTime"] == make.stamp()


def test_pod_succeeds_after_its_runtime() -> None:
    stage = kubelet_stage(pod())
    stage.run(9)
    assert status(stage)["phase"] == "Running"
    stage.run(10)
    assert status(stage)["phase"] == "Succeeded"
    times = {"startedAt": make.stamp(), "finishedAt": make.stamp(10)}
    assert container(stage)["state"] == {"terminated": {"exitCode": 0, "reason": "Completed", **times}}
    assert conditions(stage, "Ready", "ContainersReady") == [("False", "PodCompleted")] * 2
    assert stage.events == []


def test_pod_fails_with_exit_code_of_annotation() -> None:
    stage = kubelet_stage(fails())
    stage.run(10)
    assert status(stage)["phase"] == "Failed"
    ended = container(stage)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert conditions(stage, "Ready") == [("False", "PodFailed")]


def test_pod_with_infinite_sleep_never_ends() -> None:
    stage = kubelet_stage(pod(containers=[{"name": "c", "image": "busybox", "command": ["sleep", "infinity"]}]))
    stage.run(10**7)
    assert status(stage)["phase"] == "Running"


def test_failed_container_is_restarted_with_crash_backoff() -> None:
    stage = kubelet_stage(fails(restartPolicy="OnFailure"))
    starts = []
    for second in range(1200):
        pass_time(stage, second)
        running = container(stage)["state"].get("running")
        if running and running["startedAt"] == make.stamp(second):
            starts.append(second)
    # 10 s of work each time; at once, then after 10, 20, 40, 80, 160, 300 s
    assert starts == [0, 10, 30, 60, 110, 200, 370, 680, 990]
    assert container(stage)["restartCount"] == 8
    assert status(stage)["phase"] == "Running"


def test_container_in_backoff_reports_reason_and_last_state() -> None:
    stage = kubelet_stage(fails(restartPolicy="OnFailure"))
    stage.run(20)
    message = "back-off 10s restarting failed container=c pod=pod_team(uid-pod)"
    assert container(stage)["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    assert container(stage)["lastState"]["terminated"]["exitCode"] == 3
    assert conditions(stage, "Ready", "Initialized") == [("False", "ContainersNotReady"), ("True", "")]
    (event,) = stage.events
    assert (event.reason, event.message) == (
        "BackOff",
        "Back-off restarting failed container c in pod pod_team(uid-pod)",
    )


def test_container_that_ran_long_restarts_without_backoff() -> None:
    slept = [{"name": "c", "image": "busybox", "command": ["sleep", "601"]}]
    stage = kubelet_stage(fails(restartPolicy="Always", containers=slept))
    stage.run(601 * 3)
    assert container(stage)["restartCount"] == 3
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(601 * 3)}}


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("OnFailure", 0, "Succeeded"), ("Always", 0, "Running"), ("Never", 0, "Succeeded"), ("Never", 1, "Failed")],
)
def test_phase_after_exit_follows_restart_policy(policy: str, code: int, phase: str) -> None:
    stage = kubelet_stage(fails(code, restartPolicy=policy))
    stage.run(10)
    assert status(stage)["phase"] == phase


def test_deleted_pod_with_finalizer_is_stopped_and_fails() -> None:
    stage = kubelet_stage(with_metadata(pod(), finalizers=["test/keep"]))
    pass_time(stage, 5)
    delete(stage)
    assert status(stage)["phase"] == "Running"
    stage.run(6)
    assert status(stage)["phase"] == "Failed"
    ended = container(stage)["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"]) == (143, make.stamp(6))
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


def test_deleted_pod_without_finalizers_is_removed_when_stopped() -> None:
    stage = kubelet_stage(pod())
    pass_time(stage, 5)
    delete(stage)
    stage.run(5.9)
    assert not is_gone(stage)
    stage.run(6)
    assert is_gone(stage)


def test_pod_that_stops_slowly_is_killed_after_grace_period() -> None:
    stage = kubelet_stage(with_metadata(pod(), finalizers=["test/keep"]), pace=ContainerDelays(stop_time=60 * SECOND))
    delete(stage, grace=4)
    stage.run(4)
    ended = container(stage)["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"], status(stage)["phase"]) == (137, make.stamp(4), "Failed")


def test_pod_with_finalizer_and_zero_grace_period_is_killed_at_once() -> None:
    stage = kubelet_stage(with_metadata(pod(), finalizers=["test/keep"]))
    delete(stage, grace=0)
    assert (status(stage)["phase"], container(stage)["state"]["terminated"]["exitCode"]) == ("Failed", 137)


def test_pod_that_succeeds_while_terminating_is_not_restarted() -> None:
    stage = kubelet_stage(with_metadata(pod(restartPolicy="Always"), finalizers=["test/keep"]))
    pass_time(stage, 9.5)
    delete(stage)
    stage.run(30)
    assert (status(stage)["phase"], container(stage)["state"]["terminated"]["exitCode"]) == ("Succeeded", 0)


def test_pod_deleted_during_start_delay_fails() -> None:
    stage = kubelet_stage(with_metadata(pod(), finalizers=["test/keep"]), pace=slow(60))
    pass_time(stage, 5)
    delete(stage)
    ended = container(stage)["state"]["terminated"]
    assert (status(stage)["phase"], ended["reason"], ended["exitCode"]) == ("Failed", "ContainerStatusUnknown", 137)


def test_pod_deleted_in_backoff_fails_with_last_exit_code() -> None:
    stage = kubelet_stage(with_metadata(fails(restartPolicy="OnFailure"), finalizers=["test/keep"]))
    pass_time(stage, 25)
    delete(stage)
    assert (status(stage)["phase"], container(stage)["state"]["terminated"]["exitCode"]) == ("Failed", 3)


def test_pod_deleted_before_node_is_ready_is_removed() -> None:
    stage = Stage(SimulatedKubelets())
    stage.put(node(ready="False"), pod())
    delete(stage)
    assert is_gone(stage)


def test_pod_over_active_deadline_fails() -> None:
    stage = kubelet_stage(pod(activeDeadlineSeconds=5, restartPolicy="OnFailure"))
    stage.run(5.9)
    assert status(stage)["phase"] == "Running"
    stage.run(6)
    words = "Pod was active on the node longer than the specified deadline"
    assert (status(stage)["phase"], status(stage)["reason"]) == ("Failed", "DeadlineExceeded")
    assert status(stage)["message"] == words
    assert [(event.reason, event.message) for event in stage.events] == [("DeadlineExceeded", words)]


def test_restart_of_kubelet_does_not_change_final_status() -> None:
    stage = kubelet_stage(fails(restartPolicy="OnFailure"), pace=slow(2))
    stage.run(25)
    other = Stage(SimulatedKubelets(slow(2)))
    pass_time(other, 25)
    other.put(stage.get(scheme.NODE, "node", ""), stage.get(scheme.POD, "pod"))
    stage.run(100)
    other.run(100)
    assert status(other) == status(stage)


def test_pods_run_at_once_without_nodes() -> None:
    stage = Stage(SimulatedKubelets(with_nodes=False))
    stage.put(pod(node=None), pod("gated", node=None, schedulingGates=[{"name": "g"}]))
    stage.run(10)
    assert status(stage)["phase"] == "Succeeded"
    assert "hostIP" not in status(stage)
    assert "status" not in stage.get(scheme.POD, "gated")


def test_deleted_pod_with_finalizer_fails_at_once_without_nodes() -> None:
    stage = Stage(SimulatedKubelets(with_nodes=False))
    stage.put(with_metadata(pod(node=None), finalizers=["test/keep"]))
    delete(stage)
    assert status(stage)["phase"] == "Failed"


def test_pod_is_reconciled_at_its_start_and_at_its_end_only() -> None:
    stage = kubelet_stage(pod())
    stage.run(100)
    assert stage.runner.reconciles == 2
