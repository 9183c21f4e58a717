"""The kubelet of this machine: init containers, sidecars, and what probes say."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import with_status
from unit.kubelet.local.local_make import container
from unit.kubelet.local.pretended import LocalStage, Script, pod, sidecar

FIRSTS = [container("a"), container("b")]
STARTUP: dict[str, Any] = {"startupProbe": {"exec": {"command": ["x"]}}}


def test_init_containers_run_one_after_the_other() -> None:
    stage = LocalStage(pod(first=FIRSTS), a=Script(3), b=Script(4))
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


def test_a_pod_fails_whose_init_container_fails_for_good() -> None:
    stage = LocalStage(pod(first=FIRSTS), a=Script(3, 2))
    stage.run(9)
    assert (stage.status["phase"], stage.machine.started) == ("Failed", ["sandbox", "a/0"])
    assert stage.container("a")["state"]["terminated"]["exitCode"] == 2
    assert "waiting" in stage.container("b")["state"]
    assert "waiting" in stage.container()["state"]  # it never came to that


def test_an_init_container_that_failed_starts_again() -> None:
    stage = LocalStage(pod(first=FIRSTS, restartPolicy="Always"), **{"a/0": Script(1, 2), "a/1": Script(1, 2)})
    stage.run(5)
    assert (stage.status["phase"], stage.container("a")["state"]["waiting"]["reason"]) == (
        "Pending",
        "CrashLoopBackOff",
    )
    stage.run(13)
    assert (stage.container("a")["restartCount"], stage.machine.alive()[1:]) == (2, ["a/2"])


def test_sidecars_start_before_and_stay_beside() -> None:
    stage = LocalStage(pod(first=[sidecar(), container("b")]), b=Script(3))
    assert stage.machine.alive()[1:] == ["side/0", "b/0"]
    stage.run(4)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["side/0", "main/0"], "Running")
    assert (stage.container("side")["ready"], stage.container("side")["started"]) == (True, True)


def test_a_startup_probe_of_a_sidecar_holds_back_what_comes_after() -> None:
    stage = LocalStage(pod(first=[sidecar(**STARTUP)]), side=Script(started=5, ready=5))
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["side/0"], "Pending")
    assert stage.container("side")["started"] is False
    stage.run(5)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["side/0", "main/0"], "Running")


def test_sidecars_end_after_the_main_containers_the_last_one_first() -> None:
    stage = LocalStage(
        pod(first=[sidecar("x"), sidecar("y")]), main=Script(5, 3), x=Script(stopping=1), y=Script(stopping=2)
    )
    stage.run(5)
    assert (stage.machine.stops, stage.status["phase"]) == ([("y/0", 30)], "Running")
    stage.run(9)
    assert stage.machine.stops[:2] == [("y/0", 30), ("x/0", 28)]
    assert (stage.status["phase"], stage.container("x")["state"]["terminated"]["exitCode"]) == ("Failed", 143)


def test_a_pod_succeeds_whatever_its_sidecars_ended_with() -> None:
    stage = LocalStage(pod(first=[sidecar()]), main=Script(5))
    stage.run(9)
    assert stage.status["phase"] == "Succeeded"


def test_a_sidecar_starts_again_whatever_the_policy_says() -> None:
    stage = LocalStage(pod(first=[sidecar()]), **{"side/0": Script(2)})
    stage.run(3)
    assert (stage.container("side")["restartCount"], stage.machine.alive()[1:]) == (1, ["main/0", "side/1"])
    assert (stage.status["phase"], stage.condition("Initialized")) == ("Running", ("True", "", ""))


def test_a_sidecar_that_is_down_does_not_hold_back_the_init_container_after_it() -> None:
    scripts = {"side/0": Script(1), "side/1": Script(1), "b/0": Script(4, 1), "b/1": Script(1)}
    stage = LocalStage(pod(first=[sidecar(), container("b")], restartPolicy="OnFailure"), **scripts)
    stage.run(4)
    assert stage.machine.started == ["sandbox", "side/0", "b/0", "side/1", "b/1"]


def test_who_fails_its_liveness_probe_starts_again_with_the_grace_of_the_probe() -> None:
    probe: dict[str, Any] = {"livenessProbe": {"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 7}}
    stage = LocalStage(pod(container(**probe), restartPolicy="Always"), main=Script(stopping=3))
    stage.machine.says("main/0", failed={"probe": "liveness", "message": "no answer"})
    stage.run(2)
    assert (stage.machine.stops, stage.status["phase"]) == ([("main/0", 7)], "Running")
    assert stage.reported("Killing") == ["Container main failed liveness probe, will be restarted"]
    stage.run(3)
    assert (stage.container()["restartCount"], stage.machine.alive()[1:]) == (1, ["main/1"])


@pytest.mark.parametrize(
    ("policy", "alive", "phase"), [("OnFailure", ["main/1"], "Running"), ("Never", [], "Succeeded")]
)
def test_who_ends_well_when_its_probe_has_failed(policy: str, alive: list[str], phase: str) -> None:
    stage = LocalStage(pod(restartPolicy=policy), main=Script(stopped_code=0))
    stage.machine.says("main/0", failed={"probe": "startup", "message": "no answer"})
    stage.run(2)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (alive, phase)
    end = ", will be restarted" if alive else ""
    assert stage.reported("Killing") == [f"Container main failed startup probe{end}"]


def test_who_fails_its_post_start_hook_is_killed() -> None:
    stage = LocalStage(pod())
    stage.machine.says("main/0", failed={"hook": "postStart", "message": "exit 1"})
    stage.run(2)
    assert (stage.reported("Killing"), stage.status["phase"]) == (["FailedPostStartHook"], "Failed")


def test_a_pod_is_ready_when_its_containers_are_by_their_probes() -> None:
    stage = LocalStage(pod(), main=Script(ready=4))
    assert (stage.status["phase"], stage.condition("Ready")[0]) == ("Running", "False")
    stage.run(4)
    assert stage.condition("Ready") == stage.condition("ContainersReady") == ("True", "", "")


def test_what_probes_warn_of_is_told_once() -> None:
    stage = LocalStage(pod())
    first = {"n": 1, "reason": "Unhealthy", "message": "Readiness probe failed: no"}
    stage.machine.says("main/0", warnings=[first], ready=False)
    stage.machine.says("main/0", warnings=[first, {**first, "n": 2}])
    stage.settle()
    stage.restart()
    assert stage.reported("Unhealthy") == ["Readiness probe failed: no"] * 2


def test_a_readiness_gate_of_others_has_a_say() -> None:
    stage = LocalStage(pod(readinessGates=[{"conditionType": "x/open"}]))
    reported = 'corresponding condition of pod readiness gate "x/open" does not exist.'
    assert stage.condition("Ready") == ("False", "ReadinessGatesNotReady", reported)
    assert stage.condition("ContainersReady")[0] == "True"
    for status, why in (("False", 'the status of pod readiness gate "x/open" is not "True", but False'), ("True", "")):
        found = stage.get(scheme.POD, "pod")
        others = [c for c in found["status"]["conditions"] if c["type"] != "x/open"]
        gate = {"type": "x/open", "status": status, "lastTransitionTime": None}
        stage.put(with_status(found, {**found["status"], "conditions": [*others, gate]}))
        assert stage.condition("Ready")[::2] == ("False" if why else "True", why)
