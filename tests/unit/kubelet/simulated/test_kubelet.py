"""Kubelets: pods that start, run, end, start again and are stopped."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from batchyard.base.instant import SECOND
from batchyard.kubelet.simulated.kubelet import ContainerDelays, Kubelets
from stage import Stage
from unit.kubelet.simulated.kubelet_make import conditions, container, delete, is_gone, pass_time, slow, started, status
from unit.nodes.node_make import node, pod


def fails(code: int = 3, **spec: Any) -> Any:
    return pod(metadata={"annotations": {"batchyard.dev/exit-code": str(code)}}, **spec)


def test_a_bound_pod_runs_at_once_on_a_node_that_is_ready() -> None:
    stage = started(pod())
    assert (status(stage)["phase"], status(stage)["startTime"]) == ("Running", make.stamp())
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp()}}
    assert (container(stage)["ready"], container(stage)["restartCount"]) == (True, 0)
    assert conditions(stage, "Initialized", "Ready", "ContainersReady", "PodScheduled") == [("True", "")] * 4
    assert status(stage)["podIP"].startswith("10.")
    assert status(stage)["hostIP"].startswith("10.128.")


def test_a_pod_that_is_not_bound_waits() -> None:
    assert "status" not in started(pod(node=None)).get(scheme.POD, "pod")


def test_a_pod_waits_for_its_node_to_be_ready() -> None:
    stage = Stage(Kubelets())
    stage.put(pod(), node(ready="False"))
    assert "status" not in stage.get(scheme.POD, "pod")
    stage.put(node())
    assert status(stage)["phase"] == "Running"


def test_containers_are_made_first_where_that_takes_time() -> None:
    stage = started(pod(), pace=slow(4))
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


def test_a_pod_succeeds_when_its_time_is_over() -> None:
    stage = started(pod())
    stage.run(9)
    assert status(stage)["phase"] == "Running"
    stage.run(10)
    assert status(stage)["phase"] == "Succeeded"
    times = {"startedAt": make.stamp(), "finishedAt": make.stamp(10)}
    assert container(stage)["state"] == {"terminated": {"exitCode": 0, "reason": "Completed", **times}}
    assert conditions(stage, "Ready", "ContainersReady") == [("False", "PodCompleted")] * 2
    assert stage.events == []


def test_a_pod_fails_with_the_exit_code_it_is_told() -> None:
    stage = started(fails())
    stage.run(10)
    assert status(stage)["phase"] == "Failed"
    ended = container(stage)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert conditions(stage, "Ready") == [("False", "PodFailed")]


def test_a_pod_that_sleeps_for_ever_never_ends() -> None:
    stage = started(pod(containers=[{"name": "c", "image": "busybox", "command": ["sleep", "infinity"]}]))
    stage.run(10**7)
    assert status(stage)["phase"] == "Running"


def test_containers_that_fail_start_again_after_the_crash_backoff() -> None:
    stage = started(fails(restartPolicy="OnFailure"))
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


def test_containers_in_backoff_tell_why_they_wait_and_how_they_ended() -> None:
    stage = started(fails(restartPolicy="OnFailure"))
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


def test_containers_that_ran_long_start_again_at_once() -> None:
    slept = [{"name": "c", "image": "busybox", "command": ["sleep", "601"]}]
    stage = started(fails(restartPolicy="Always", containers=slept))
    stage.run(601 * 3)
    assert container(stage)["restartCount"] == 3
    assert container(stage)["state"] == {"running": {"startedAt": make.stamp(601 * 3)}}


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("OnFailure", 0, "Succeeded"), ("Always", 0, "Running"), ("Never", 0, "Succeeded"), ("Never", 1, "Failed")],
)
def test_what_ends_follows_from_the_restart_policy(policy: str, code: int, phase: str) -> None:
    stage = started(fails(code, restartPolicy=policy))
    stage.run(10)
    assert status(stage)["phase"] == phase


def test_a_deleted_pod_is_stopped_and_goes() -> None:
    stage = started(with_metadata(pod(), finalizers=["test/keep"]))
    pass_time(stage, 5)
    delete(stage)
    assert status(stage)["phase"] == "Running"
    stage.run(6)
    assert status(stage)["phase"] == "Failed"
    ended = container(stage)["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"]) == (143, make.stamp(6))
    assert stage.get(scheme.POD, "pod")["metadata"]["deletionGracePeriodSeconds"] == 0


def test_a_deleted_pod_without_finalizers_is_gone_when_it_has_stopped() -> None:
    stage = started(pod())
    pass_time(stage, 5)
    delete(stage)
    stage.run(5.9)
    assert not is_gone(stage)
    stage.run(6)
    assert is_gone(stage)


def test_a_pod_that_is_slow_to_stop_is_killed_when_its_grace_is_over() -> None:
    stage = started(with_metadata(pod(), finalizers=["test/keep"]), pace=ContainerDelays(stop_time=60 * SECOND))
    delete(stage, grace=4)
    stage.run(4)
    ended = container(stage)["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"], status(stage)["phase"]) == (137, make.stamp(4), "Failed")


def test_a_pod_without_grace_but_with_finalizers_is_killed_at_once() -> None:
    stage = started(with_metadata(pod(), finalizers=["test/keep"]))
    delete(stage, grace=0)
    assert (status(stage)["phase"], container(stage)["state"]["terminated"]["exitCode"]) == ("Failed", 137)


def test_a_pod_that_ends_while_it_is_stopped_ends_as_it_would_have_and_does_not_start_again() -> None:
    stage = started(with_metadata(pod(restartPolicy="Always"), finalizers=["test/keep"]))
    pass_time(stage, 9.5)
    delete(stage)
    stage.run(30)
    assert (status(stage)["phase"], container(stage)["state"]["terminated"]["exitCode"]) == ("Succeeded", 0)


def test_a_pod_deleted_before_its_containers_were_there_fails_and_goes() -> None:
    stage = started(with_metadata(pod(), finalizers=["test/keep"]), pace=slow(60))
    pass_time(stage, 5)
    delete(stage)
    ended = container(stage)["state"]["terminated"]
    assert (status(stage)["phase"], ended["reason"], ended["exitCode"]) == ("Failed", "ContainerStatusUnknown", 137)


def test_a_pod_deleted_in_backoff_fails_with_its_last_exit_code() -> None:
    stage = started(with_metadata(fails(restartPolicy="OnFailure"), finalizers=["test/keep"]))
    pass_time(stage, 25)
    delete(stage)
    assert (status(stage)["phase"], container(stage)["state"]["terminated"]["exitCode"]) == ("Failed", 3)


def test_a_pod_deleted_before_its_node_was_ready_goes() -> None:
    stage = Stage(Kubelets())
    stage.put(node(ready="False"), pod())
    delete(stage)
    assert is_gone(stage)


def test_a_pod_fails_when_it_was_active_for_too_long() -> None:
    stage = started(pod(activeDeadlineSeconds=5, restartPolicy="OnFailure"))
    stage.run(5.9)
    assert status(stage)["phase"] == "Running"
    stage.run(6)
    words = "Pod was active on the node longer than the specified deadline"
    assert (status(stage)["phase"], status(stage)["reason"]) == ("Failed", "DeadlineExceeded")
    assert status(stage)["message"] == words
    assert [(event.reason, event.message) for event in stage.events] == [("DeadlineExceeded", words)]


def test_a_restart_between_any_two_steps_changes_nothing() -> None:
    stage = started(fails(restartPolicy="OnFailure"), pace=slow(2))
    stage.run(25)
    other = Stage(Kubelets(slow(2)))
    pass_time(other, 25)
    other.put(stage.get(scheme.NODE, "node", ""), stage.get(scheme.POD, "pod"))
    stage.run(100)
    other.run(100)
    assert status(other) == status(stage)


def test_without_nodes_every_pod_runs_at_once() -> None:
    stage = Stage(Kubelets(with_nodes=False))
    stage.put(pod(node=None), pod("gated", node=None, schedulingGates=[{"name": "g"}]))
    stage.run(10)
    assert status(stage)["phase"] == "Succeeded"
    assert "hostIP" not in status(stage)
    assert "status" not in stage.get(scheme.POD, "gated")


def test_without_nodes_a_deleted_pod_with_finalizers_ends_at_once() -> None:
    stage = Stage(Kubelets(with_nodes=False))
    stage.put(with_metadata(pod(node=None), finalizers=["test/keep"]))
    delete(stage)
    assert status(stage)["phase"] == "Failed"


def test_a_pod_that_runs_and_ends_is_looked_at_when_it_comes_runs_and_ends() -> None:
    stage = started(pod())
    stage.run(100)
    assert stage.runner.reconciles == 3
