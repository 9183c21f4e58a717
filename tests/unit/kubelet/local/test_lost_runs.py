"""The local kubelet: lost runs, creation errors, and a restarted platform."""

import pytest

from batchyard.api import scheme
from unit.kubelet.local.fake_machine import ContainerScript, LocalStage, pod, sidecar
from unit.kubelet.local.local_make import config_map, container

SLOW = ContainerScript(stopping=1000)


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_pod_with_lost_sandbox_is_recreated(policy: str) -> None:
    stage = LocalStage(pod(first=[container("a")], restartPolicy=policy), a=ContainerScript(1))
    stage.run(2)
    stage.machine.lose("sandbox")
    stage.settle()
    assert stage.reported("SandboxChanged") == ["Pod sandbox changed, it will be killed and re-created."]
    assert (stage.machine.started[3:], stage.status["phase"]) == (["sandbox", "a/1"], "Pending")
    stage.run(4)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["main/1"], "Running")
    assert (stage.container()["restartCount"], stage.container("a")["restartCount"]) == (1, 1)


def test_pod_with_restart_policy_never_fails_without_sandbox() -> None:
    stage = LocalStage(pod(container("main"), container("other", image="nobody/knows")))
    assert stage.status["phase"] == "Pending"
    stage.machine.lose("sandbox")
    stage.settle()
    assert (stage.status["phase"], stage.machine.started) == ("Failed", ["sandbox", "main/0"])
    assert stage.container()["state"]["terminated"]["exitCode"] == 143
    assert stage.container("other")["state"]["terminated"]["reason"] == "ContainerStatusUnknown"


def test_completed_pod_needs_no_new_sandbox() -> None:
    stage = LocalStage(
        pod(first=[sidecar()], restartPolicy="OnFailure"), main=ContainerScript(1), side=ContainerScript(stopping=5)
    )
    stage.run(2)
    stage.machine.lose("sandbox")
    stage.run(8)
    assert (stage.status["phase"], stage.machine.started.count("sandbox")) == ("Succeeded", 1)


@pytest.mark.parametrize(("policy", "phase"), [("Never", "Failed"), ("OnFailure", "Running")])
def test_lost_container_has_unknown_status(policy: str, phase: str) -> None:
    stage = LocalStage(pod(restartPolicy=policy))
    stage.machine.lose("main/0")
    stage.settle()
    state = stage.container()["state" if policy == "Never" else "lastState"]
    reported = "The container could not be located when the pod was terminated"
    assert state == {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": reported}}
    assert (stage.status["phase"], stage.container()["restartCount"]) == (phase, int(policy != "Never"))


def test_restart_count_continues_after_machine_lost_all_runs() -> None:
    stage = LocalStage(pod(restartPolicy="Always"), main=ContainerScript(1, 1))
    stage.run(20)
    count = stage.container()["restartCount"]
    stage.machine.forget()
    stage.restart()
    stage.run(25)
    assert stage.container()["restartCount"] > count
    assert stage.status["phase"] == "Running"


@pytest.mark.parametrize("seconds", [0, 2, 4, 7])
def test_restart_of_platform_changes_nothing(seconds: int) -> None:
    stage = LocalStage(pod(first=[sidecar(), container("a")]), a=ContainerScript(3), main=ContainerScript(3, 9))
    stage.run(seconds)
    before, started, reported = stage.get(scheme.POD, "pod"), list(stage.machine.started), list(stage.events)
    stage.restart()
    assert (stage.get(scheme.POD, "pod"), stage.machine.started, stage.events) == (before, started, reported)


def test_restarted_platform_continues_stopping_pod() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.delete_pod()
    stage.run(10)
    stage.restart()
    assert stage.machine.stops == [("main/0", 30)]
    stage.run(31)
    assert stage.is_gone()


def test_runs_of_pod_deleted_while_platform_was_down_are_removed() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.runner.stop()
    stage.delete_pod(grace=0)
    assert stage.machine.alive() == ["sandbox", "main/0"]
    stage.restart()
    stage.run(3)
    assert stage.is_gone()


def test_container_starts_when_missing_config_map_appears() -> None:
    source = {"configMapKeyRef": {"name": "settings", "key": "a"}}
    stage = LocalStage(pod(container(env=[{"name": "A", "valueFrom": source}])))
    waiting = {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
    assert (stage.container()["state"], stage.status["phase"]) == ({"waiting": waiting}, "Pending")
    assert stage.reported("Failed") == ['Error: configmap "settings" not found']
    stage.run(3)
    stage.put(config_map("settings", a="1"))
    assert stage.status["phase"] == "Running"


def test_volume_is_created_when_missing_config_map_appears() -> None:
    volume = {"name": "v", "configMap": {"name": "settings"}}
    stage = LocalStage(pod(volumes=[volume]))
    assert (stage.machine.started, stage.container()["state"]["waiting"]["reason"]) == ([], "ContainerCreating")
    assert stage.reported("FailedMount") == ['MountVolume.SetUp failed for volume "v" : configmap "settings" not found']
    stage.put(config_map("settings", a="1"))
    assert stage.status["phase"] == "Running"


def test_container_restarts_although_its_volume_source_is_gone() -> None:
    volume = {"name": "v", "configMap": {"name": "settings"}}
    mounts = [{"name": "v", "mountPath": "/v", "readOnly": True}]
    again = pod(container(volumeMounts=mounts), volumes=[volume], restartPolicy="Always")
    stage = LocalStage(config_map("settings", a="1"), again, **{"main/0": ContainerScript(2)})
    stage.delete(scheme.CONFIG_MAP, "settings")
    stage.run(3)
    assert stage.container()["restartCount"] == 1
    assert stage.container()["volumeMounts"] == [{**mounts[0], "recursiveReadOnly": "Disabled"}]


def test_image_without_row_or_engine_is_reported() -> None:
    stage = LocalStage(pod(container(image="nobody/knows")))
    assert stage.container()["state"]["waiting"]["reason"] == "ErrImagePull"
    stage.run(25)
    why, error = stage.reported("Failed")
    assert why.startswith('Failed to pull image "nobody/knows": no container engine can pull image "nobody/knows"')
    assert (error, stage.machine.alive()) == ("Error: ErrImagePull", ["sandbox"])


def test_invalid_image_name_is_reported() -> None:
    stage = LocalStage(pod(container(image="Nobody")))
    assert stage.container()["state"]["waiting"]["reason"] == "InvalidImageName"
    assert (len(stage.reported("InspectFailed")), stage.reported("Failed")) == (1, ["Error: InvalidImageName"])


def test_pod_that_does_not_fit_fails() -> None:
    stage = LocalStage(pod(container(resources={"requests": {"cpu": "9"}})))
    assert (stage.status["phase"], stage.status["reason"]) == ("Failed", "OutOfcpu")
    reported = "Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 4000"
    assert (stage.status["message"], stage.reported("OutOfcpu")) == (f"Pod was rejected: {reported}", [reported])
    assert stage.condition("Ready") == stage.condition("ContainersReady") == ("False", "PodFailed", "")
    assert stage.machine.started == []
    stage.delete_pod()
    assert stage.is_gone()


def test_pod_of_another_node_is_ignored() -> None:
    stage = LocalStage(pod(nodeName="elsewhere"))
    assert "status" not in stage.get(scheme.POD, "pod")
