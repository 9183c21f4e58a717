"""The kubelet of this machine: what is lost, what cannot be made, and a platform that begins again."""

import pytest

from batchyard.api import scheme
from unit.kubelet.local.local_make import config_map, container
from unit.kubelet.local.pretended import LocalStage, Script, pod, sidecar

SLOW = Script(stopping=1000)


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_pod_that_lost_its_sandbox_begins_anew(policy: str) -> None:
    stage = LocalStage(pod(first=[container("a")], restartPolicy=policy), a=Script(1))
    stage.run(2)
    stage.machine.lose("sandbox")
    stage.settle()
    assert stage.reported("SandboxChanged") == ["Pod sandbox changed, it will be killed and re-created."]
    assert (stage.machine.started[3:], stage.status["phase"]) == (["sandbox", "a/1"], "Pending")
    stage.run(4)
    assert (stage.machine.alive()[1:], stage.status["phase"]) == (["main/1"], "Running")
    assert (stage.container()["restartCount"], stage.container("a")["restartCount"]) == (1, 1)


def test_a_pod_that_runs_once_fails_without_its_sandbox() -> None:
    stage = LocalStage(pod(container("main"), container("other", image="nobody/knows")))
    assert stage.status["phase"] == "Pending"
    stage.machine.lose("sandbox")
    stage.settle()
    assert (stage.status["phase"], stage.machine.started) == ("Failed", ["sandbox", "main/0"])
    assert stage.container()["state"]["terminated"]["exitCode"] == 143
    assert stage.container("other")["state"]["terminated"]["reason"] == "ContainerStatusUnknown"


def test_what_has_done_its_work_needs_no_other_sandbox() -> None:
    stage = LocalStage(pod(first=[sidecar()], restartPolicy="OnFailure"), main=Script(1), side=Script(stopping=5))
    stage.run(2)
    stage.machine.lose("sandbox")
    stage.run(8)
    assert (stage.status["phase"], stage.machine.started.count("sandbox")) == ("Succeeded", 1)


@pytest.mark.parametrize(("policy", "phase"), [("Never", "Failed"), ("OnFailure", "Running")])
def test_of_a_lost_container_nobody_knows_how_it_ended(policy: str, phase: str) -> None:
    stage = LocalStage(pod(restartPolicy=policy))
    stage.machine.lose("main/0")
    stage.settle()
    state = stage.container()["state" if policy == "Never" else "lastState"]
    reported = "The container could not be located when the pod was terminated"
    assert state == {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": reported}}
    assert (stage.status["phase"], stage.container()["restartCount"]) == (phase, int(policy != "Never"))


def test_restarts_are_counted_on_where_the_machine_forgot_all_runs() -> None:
    stage = LocalStage(pod(restartPolicy="Always"), main=Script(1, 1))
    stage.run(20)
    count = stage.container()["restartCount"]
    stage.machine.forget()
    stage.restart()
    stage.run(25)
    assert stage.container()["restartCount"] > count
    assert stage.status["phase"] == "Running"


@pytest.mark.parametrize("seconds", [0, 2, 4, 7])
def test_a_platform_that_begins_again_changes_nothing(seconds: int) -> None:
    stage = LocalStage(pod(first=[sidecar(), container("a")]), a=Script(3), main=Script(3, 9))
    stage.run(seconds)
    before, started, reported = stage.get(scheme.POD, "pod"), list(stage.machine.started), list(stage.events)
    stage.restart()
    assert (stage.get(scheme.POD, "pod"), stage.machine.started, stage.events) == (before, started, reported)


def test_a_platform_that_begins_again_goes_on_stopping() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.delete_pod()
    stage.run(10)
    stage.restart()
    assert stage.machine.stops == [("main/0", 30)]
    stage.run(31)
    assert stage.is_gone()


def test_what_pods_left_goes_that_went_while_the_platform_was_down() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.runner.stop()
    stage.delete_pod(grace=0)
    assert stage.machine.alive() == ["sandbox", "main/0"]
    stage.restart()
    stage.run(3)
    assert stage.is_gone()


def test_a_config_map_that_comes_later_lets_a_container_start() -> None:
    source = {"configMapKeyRef": {"name": "settings", "key": "a"}}
    stage = LocalStage(pod(container(env=[{"name": "A", "valueFrom": source}])))
    waiting = {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
    assert (stage.container()["state"], stage.status["phase"]) == ({"waiting": waiting}, "Pending")
    assert stage.reported("Failed") == ['Error: configmap "settings" not found']
    stage.run(3)
    stage.put(config_map("settings", a="1"))
    assert stage.status["phase"] == "Running"


def test_a_config_map_that_comes_later_lets_a_volume_be_made() -> None:
    volume = {"name": "v", "configMap": {"name": "settings"}}
    stage = LocalStage(pod(volumes=[volume]))
    assert (stage.machine.started, stage.container()["state"]["waiting"]["reason"]) == ([], "ContainerCreating")
    assert stage.reported("FailedMount") == ['MountVolume.SetUp failed for volume "v" : configmap "settings" not found']
    stage.put(config_map("settings", a="1"))
    assert stage.status["phase"] == "Running"


def test_a_container_starts_again_whose_volume_could_not_be_made_now() -> None:
    volume = {"name": "v", "configMap": {"name": "settings"}}
    mounts = [{"name": "v", "mountPath": "/v", "readOnly": True}]
    again = pod(container(volumeMounts=mounts), volumes=[volume], restartPolicy="Always")
    stage = LocalStage(config_map("settings", a="1"), again, **{"main/0": Script(2)})
    stage.delete(scheme.CONFIG_MAP, "settings")
    stage.run(3)
    assert stage.container()["restartCount"] == 1
    assert stage.container()["volumeMounts"] == [{**mounts[0], "recursiveReadOnly": "Disabled"}]


def test_an_image_that_nothing_stands_for() -> None:
    stage = LocalStage(pod(container(image="nobody/knows")))
    assert stage.container()["state"]["waiting"]["reason"] == "ErrImagePull"
    stage.run(25)
    why, error = stage.reported("Failed")
    assert why.startswith('Failed to pull image "nobody/knows": no container engine can pull image "nobody/knows"')
    assert (error, stage.machine.alive()) == ("Error: ErrImagePull", ["sandbox"])


def test_a_name_that_no_image_can_have() -> None:
    stage = LocalStage(pod(container(image="Nobody")))
    assert stage.container()["state"]["waiting"]["reason"] == "InvalidImageName"
    assert (len(stage.reported("InspectFailed")), stage.reported("Failed")) == (1, ["Error: InvalidImageName"])


def test_a_pod_that_the_node_does_not_take_fails() -> None:
    stage = LocalStage(pod(container(resources={"requests": {"cpu": "9"}})))
    assert (stage.status["phase"], stage.status["reason"]) == ("Failed", "OutOfcpu")
    reported = "Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 4000"
    assert (stage.status["message"], stage.reported("OutOfcpu")) == (f"Pod was rejected: {reported}", [reported])
    assert stage.condition("Ready") == stage.condition("ContainersReady") == ("False", "PodFailed", "")
    assert stage.machine.started == []
    stage.delete_pod()
    assert stage.is_gone()


def test_a_pod_of_another_node_is_left_alone() -> None:
    stage = LocalStage(pod(nodeName="elsewhere"))
    assert "status" not in stage.get(scheme.POD, "pod")
