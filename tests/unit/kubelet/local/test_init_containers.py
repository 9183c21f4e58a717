"""The local kubelet: init containers, sidecars and probes."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import with_status
from unit.kubelet.local.fake_machine import ContainerScript, LocalStage, pod, sidecar
from unit.kubelet.local.local_make import container

FIRSTS = [container("a"), container("b")]
STARTUP: dict[str, Any] = {"startupProbe": {"exec": {"command": ["x"]}}}


def test_init_containers_run_in_order() -> None:
    stage = LocalStage(pod(first=FIRSTS), a=ContainerScript(3), b=ContainerScript(4))
    assert (stage.machine.started, stage.status["phase"]) == (["sandbox", "a/0"], "Pending")
    assert stage.container()["state"] == {"waiting": {"reason": "PodInitializing"}}
    reported = "containers with incomplete status: [a b]"
    assert stage.condition("Initialized") == ("False", "ContainersNotInitialized", reported)
    assert (stage.container("a")["ready"], stage.container("a")["started"]) == (False, True)
    stage.run(3)
    assert (stage.machine.alive()[1:], stage.container("a")["ready"]) == (["b/0"], True)
    assert stage.condition("Initialized")[2] == "containers with incomplete status: [b]"
    stage.run(7)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["main/0"], "Running")
    assert stage.condition("Initialized") == ("True", "", "")


def test_pod_fails_when_init_container_fails() -> None:
    stage = LocalStage(pod(first=FIRSTS), a=ContainerScript(3, 2))
    stage.run(9)
    assert (stage.status["phase"], stage.machine.started) == ("Failed", ["sandbox", "a/0"])
    assert stage.container("a")["state"]["terminated"]["exitCode"] == 2
    assert "waiting" in stage.container("b")["state"]
    assert "waiting" in stage.container()["state"]  # the container never started


def test_failed_init_container_is_restarted() -> None:
    stage = LocalStage(
        pod(first=FIRSTS, restartPolicy="Always"), **{"a/0": ContainerScript(1, 2), "a/1": ContainerScript(1, 2)}
    )
    stage.run(5)
    assert (stage.status["phase"], stage.container("a")["state"]["waiting"]["reason"]) == (
        "Pending",
        "CrashLoopBackOff",
    )
    stage.run(13)
    assert (stage.container("a")["restartCount"], stage.machine.alive()[1:]) == (2, ["a/2"])


def test_sidecar_starts_before_and_runs_beside_main_container() -> None:
    stage = LocalStage(pod(first=[sidecar(), container("b")]), b=ContainerScript(3))
    assert stage.machine.alive()[1:] == ["side/0", "b/0"]
    stage.run(4)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["side/0", "main/0"], "Running")
    assert (stage.container("side")["ready"], stage.container("side")["started"]) == (True, True)


def test_startup_probe_of_sidecar_delays_next_container() -> None:
    stage = LocalStage(pod(first=[sidecar(**STARTUP)]), side=ContainerScript(started=5, ready=5))
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["side/0"], "Pending")
    assert stage.container("side")["started"] is False
    stage.run(5)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["side/0", "main/0"], "Running")


def test_sidecars_are_stopped_in_reverse_order_after_main_containers() -> None:
    stage = LocalStage(
        pod(first=[sidecar("x"), sidecar("y")]),
        main=ContainerScript(5, 3),
        x=ContainerScript(stopping=1),
        y=ContainerScript(stopping=2),
    )
    stage.run(5)
    assert (stage.machine.stops, stage.status["phase"]) == ([("y/0", 30)], "Running")
    stage.run(9)
    assert stage.machine.stops[:2] == [("y/0", 30), ("x/0", 28)]
    assert (stage.status["phase"], stage.container("x")["state"]["terminated"]["exitCode"]) == ("Failed", 143)


def test_pod_succeeds_regardless_of_sidecar_exit_code() -> None:
    stage = LocalStage(pod(first=[sidecar()]), main=ContainerScript(5))
    stage.run(9)
    assert stage.status["phase"] == "Succeeded"


def test_sidecar_is_restarted_regardless_of_restart_policy() -> None:
    stage = LocalStage(pod(first=[sidecar()]), **{"side/0": ContainerScript(2)})
    stage.run(3)
    assert (stage.container("side")["restartCount"], stage.machine.alive()[1:]) == (1, ["main/0", "side/1"])
    assert (stage.status["phase"], stage.condition("Initialized")) == ("Running", ("True", "", ""))


def test_stopped_sidecar_does_not_delay_next_init_container() -> None:
    scripts = {
        "side/0": ContainerScript(1),
        "side/1": ContainerScript(1),
        "b/0": ContainerScript(4, 1),
        "b/1": ContainerScript(1),
    }
    stage = LocalStage(pod(first=[sidecar(), container("b")], restartPolicy="OnFailure"), **scripts)
    stage.run(4)
    assert stage.machine.started == ["sandbox", "side/0", "b/0", "side/1", "b/1"]


def test_failed_liveness_probe_restarts_container_with_grace_of_probe() -> None:
    probe: dict[str, Any] = {"livenessProbe": {"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 7}}
    stage = LocalStage(pod(container(**probe), restartPolicy="Always"), main=ContainerScript(stopping=3))
    stage.machine.set_status("main/0", failed={"probe": "liveness", "message": "no answer"})
    stage.run(2)
    assert (stage.machine.stops, stage.status["phase"]) == ([("main/0", 7)], "Running")
    assert stage.reported("Killing") == ["Container main failed liveness probe, will be restarted"]
    stage.run(3)
    assert (stage.container()["restartCount"], stage.machine.alive()[1:]) == (1, ["main/1"])


@pytest.mark.parametrize(
    ("policy", "alive", "phase"), [("OnFailure", ["main/1"], "Running"), ("Never", [], "Succeeded")]
)
def test_container_that_exits_zero_after_failed_probe_follows_restart_policy(
    policy: str, alive: list[str], phase: str
) -> None:
    stage = LocalStage(pod(restartPolicy=policy), main=ContainerScript(stopped_code=0))
    stage.machine.set_status("main/0", failed={"probe": "startup", "message": "no answer"})
    stage.run(2)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (alive, phase)
    end = ", will be restarted" if alive else ""
    assert stage.reported("Killing") == [f"Container main failed startup probe{end}"]


def test_failed_post_start_hook_kills_container() -> None:
    stage = LocalStage(pod())
    stage.machine.set_status("main/0", failed={"hook": "postStart", "message": "exit 1"})
    stage.run(2)
    assert (stage.reported("Killing"), stage.status["phase"]) == (["FailedPostStartHook"], "Failed")


def test_pod_is_ready_when_readiness_probes_succeed() -> None:
    stage = LocalStage(pod(), main=ContainerScript(ready=4))
    assert (stage.status["phase"], stage.condition("Ready")[0]) == ("Running", "False")
    stage.run(4)
    assert stage.condition("Ready") == stage.condition("ContainersReady") == ("True", "", "")


def test_probe_warnings_are_reported_once() -> None:
    stage = LocalStage(pod())
    first = {"n": 1, "reason": "Unhealthy", "message": "Readiness probe failed: no"}
    stage.machine.set_status("main/0", warnings=[first], ready=False)
    stage.machine.set_status("main/0", warnings=[first, {**first, "n": 2}])
    stage.settle()
    stage.restart()
    assert stage.reported("Unhealthy") == ["Readiness probe failed: no"] * 2


def test_readiness_gate_delays_ready_condition() -> None:
    stage = LocalStage(pod(readinessGates=[{"conditionType": "x/open"}]))
    reported = 'corresponding condition of pod readiness gate "x/open" does not exist.'
    assert stage.condition("Ready") == ("False", "ReadinessGatesNotReady", reported)
    assert stage.condition("ContainersReady")[0] == "True"
    for status, why in (("False", 'the status of pod readiness gate "x/open" is not "True", but False'), ("True", "")):
        result = stage.get(scheme.POD, "pod")
        others = [c for c in result["status"]["conditions"] if c["type"] != "x/open"]
        gate = {"type": "x/open", "status": status, "lastTransitionTime": None}
        stage.put(with_status(result, {**result["status"], "conditions": [*others, gate]}))
        assert stage.condition("Ready")[::2] == ("False" if why else "True", why)
