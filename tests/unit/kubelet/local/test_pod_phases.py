"""The local kubelet: pods that start, run, end and restart."""

from itertools import pairwise

import pytest

import make
from batchyard.api import scheme
from unit.kubelet.local.fake_machine import FOREVER, UID, ContainerScript, LocalStage, pod
from unit.kubelet.local.local_make import container

CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def test_bound_pod_runs() -> None:
    stage = LocalStage(pod())
    assert (stage.status["phase"], stage.status["startTime"]) == ("Running", make.stamp())
    assert stage.container()["state"] == {"running": {"startedAt": make.stamp()}}
    marks = [stage.container()[mark] for mark in ("ready", "started", "restartCount")]
    assert (marks, stage.container()["containerID"]) == ([True, True, 0], f"batchyard://{UID}/main/0")
    assert [stage.condition(kind) for kind in CONDITIONS] == [("True", "", "")] * 5
    assert stage.reasons() == ["Pulled", "Created", "Started"]


def test_pod_succeeds_when_containers_exit_with_zero() -> None:
    stage = LocalStage(pod(), main=ContainerScript(5))
    stage.run(9)
    assert stage.status["phase"] == "Succeeded"
    ended = stage.container()["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["finishedAt"]) == (0, "Completed", make.stamp(5))
    completed = ("False", "PodCompleted", "")
    reported = [("False", "", ""), ("True", "PodCompleted", ""), completed, completed, ("True", "", "")]
    assert [stage.condition(kind) for kind in CONDITIONS] == reported
    assert stage.machine.alive() == []


def test_pod_fails_when_container_fails() -> None:
    stage = LocalStage(pod(container("a"), container("b")), a=ContainerScript(1, 3), b=ContainerScript(2))
    stage.run(1)
    assert stage.status["phase"] == "Running"
    assert stage.condition("Ready") == ("False", "ContainersNotReady", "containers with unready status: [a]")
    stage.run(9)
    assert (stage.status["phase"], stage.condition("Ready")) == ("Failed", ("False", "PodFailed", ""))
    assert [status["state"]["terminated"]["exitCode"] for status in stage.status["containerStatuses"]] == [3, 0]


def test_pod_is_pending_until_containers_start() -> None:
    stage = LocalStage()
    stage.machine.faults = ["no network"] * 2
    stage.put(pod())
    assert (stage.status["phase"], stage.container()["state"]) == (
        "Pending",
        {"waiting": {"reason": "ContainerCreating"}},
    )
    assert [stage.condition(kind)[0] for kind in CONDITIONS] == ["False", "True", "False", "False", "True"]
    assert stage.condition("Ready")[1:] == ("ContainersNotReady", "containers with unready status: [main]")
    stage.run(20)
    assert stage.status["phase"] == "Running"
    assert stage.reported("FailedCreatePodSandBox") == ["Failed to create pod sandbox: no network"] * 2


def test_container_statuses_are_sorted_by_name() -> None:
    stage = LocalStage(pod(container("b"), container("a")))
    assert [status["name"] for status in stage.status["containerStatuses"]] == ["a", "b"]


def test_restarts_are_delayed_by_exponential_backoff() -> None:
    stage = LocalStage(pod(restartPolicy="Always"), main=ContainerScript(1, 0))
    stage.run(1100)
    begun = stage.machine.times[1:]
    waits = [after - before - 1 for before, after in pairwise(begun)]
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert stage.status["phase"] == "Running"


def test_container_in_backoff_reports_crash_loop() -> None:
    stage = LocalStage(pod(restartPolicy="OnFailure"), main=ContainerScript(1, 7))
    stage.run(5)
    waiting, name = stage.container()["state"]["waiting"], f"pod_team({UID})"
    assert waiting["reason"] == "CrashLoopBackOff"
    assert waiting["message"] == f"back-off 10s restarting failed container=main pod={name}"
    assert stage.container()["lastState"]["terminated"]["exitCode"] == 7
    assert (stage.container()["restartCount"], stage.status["phase"]) == (1, "Running")
    assert stage.reported("BackOff") == [f"Back-off restarting failed container main in pod {name}"]
    stage.run(12)
    assert (stage.container()["restartCount"], "running" in stage.container()["state"]) == (2, True)
    assert stage.container()["lastState"]["terminated"]["containerID"].endswith("/main/1")


def test_container_that_ran_long_restarts_without_backoff() -> None:
    scripts = {"main/0": ContainerScript(1), "main/1": ContainerScript(601), "main": FOREVER}
    stage = LocalStage(pod(restartPolicy="Always"), **scripts)
    stage.run(602)
    assert stage.machine.started[-1] == "main/2"


def test_on_failure_policy_restarts_only_failed_containers() -> None:
    stage = LocalStage(
        pod(restartPolicy="OnFailure"), **{"main/0": ContainerScript(1, 1), "main/1": ContainerScript(1, 0)}
    )
    stage.run(30)
    assert (stage.status["phase"], stage.container()["restartCount"]) == ("Succeeded", 1)
    assert len(stage.machine.runs()) == 3  # the sandbox, and two runs whose logs are kept


def test_last_two_runs_of_container_are_kept() -> None:
    stage = LocalStage(pod(restartPolicy="Always"), main=ContainerScript(1, 1))
    stage.run(60)
    assert [run["metadata"]["name"] for run in stage.machine.runs()][1:] == ["main/2", "main/3"]


@pytest.mark.parametrize(("policy", "phase"), [("Never", "Failed"), ("Always", "Running")])
def test_command_that_cannot_start_fails_container(policy: str, phase: str) -> None:
    stage = LocalStage(pod(restartPolicy=policy))
    stage.machine.script = lambda *_: ContainerScript(
        0, 128, status={"reason": "StartError", "message": "no such file"}
    )
    stage.put(pod(name="other", restartPolicy=policy))
    stage.run(5)
    other = stage.get("Pod", "other")["status"]
    ended = other["containerStatuses"][0]["lastState" if policy == "Always" else "state"]["terminated"]
    assert (other["phase"], ended["exitCode"], ended["reason"]) == (phase, 128, "StartError")
    assert stage.reported("Failed")[0] == "Error: no such file"
    assert stage.machine.started.count("main/2") == 0


def test_start_error_is_followed_by_backoff() -> None:
    stage = LocalStage()
    stage.machine.script = lambda *_: ContainerScript(0, 128, status={"reason": "StartError", "startedAt": None})
    stage.put(pod(restartPolicy="Always"))
    stage.run(9)
    assert stage.machine.started == ["sandbox", "main/0", "main/1"]


def test_ephemeral_container_starts_in_a_running_pod_and_only_once() -> None:
    stage = LocalStage(pod(), debugger=ContainerScript(5, 3))
    running = stage.get(scheme.POD, "pod")
    stage.put({**running, "spec": {**running["spec"], "ephemeralContainers": [container("debugger")]}})
    (status,) = stage.status["ephemeralContainerStatuses"]
    assert ("running" in status["state"], status["ready"]) == (True, False)
    assert stage.condition("Ready") == ("True", "", "")
    stage.run(60)
    (status,) = stage.status["ephemeralContainerStatuses"]
    assert (status["state"]["terminated"]["exitCode"], status["restartCount"]) == (3, 0)
    assert stage.status["phase"] == "Running"


def test_ephemeral_container_does_not_keep_its_pod_running() -> None:
    stage = LocalStage(pod(ephemeralContainers=[container("debugger")]), main=ContainerScript(5))
    stage.run(60)
    assert stage.status["phase"] == "Succeeded"
    assert "terminated" in stage.status["ephemeralContainerStatuses"][0]["state"]
    assert stage.machine.alive() == []
