"""The local kubelet: termination of pods."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import with_metadata, with_status
from batchyard.interfaces.containers import SANDBOX
from unit.kubelet.local.fake_machine import UID, ContainerScript, LocalStage, pod, sidecar
from unit.kubelet.local.local_make import container

SLOW = ContainerScript(stopping=1000)


def test_deleted_pod_is_stopped_and_removed() -> None:
    stage = LocalStage(pod(), main=ContainerScript(stopping=3, stopped_code=0))
    stage.delete_pod()
    stage.run(2)
    assert (stage.machine.stops, stage.status["phase"]) == ([("main/0", 30)], "Running")
    assert stage.reported("Killing") == ["Stopping container main"]
    stage.run(4)
    assert stage.is_gone()


def test_pod_that_exits_with_zero_when_stopped_succeeds() -> None:
    stage = LocalStage(pod(restartPolicy="Always"), main=ContainerScript(stopping=3, stopped_code=0))
    stage.put(with_metadata(stage.get(scheme.POD, "pod"), finalizers=["x/y"]))
    stage.delete_pod()
    stage.run(5)
    assert (stage.status["phase"], stage.machine.started) == ("Succeeded", ["sandbox", "main/0"])


def test_pod_is_killed_after_grace_period() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.delete_pod(grace=5)
    stage.run(4)
    assert not stage.is_gone()
    stage.run(6)
    assert stage.is_gone()


def test_sidecars_are_stopped_after_main_containers() -> None:
    stage = LocalStage(
        pod(first=[sidecar("x"), sidecar("y")]),
        main=ContainerScript(stopping=4),
        x=ContainerScript(stopping=1),
        y=ContainerScript(stopping=2),
    )
    stage.delete_pod()
    stage.run(20)
    assert stage.machine.stops[:3] == [("main/0", 30), ("y/0", 26), ("x/0", 24)]
    assert stage.is_gone()


def test_sidecars_get_two_seconds_after_grace_period() -> None:
    stage = LocalStage(pod(first=[sidecar("x"), sidecar("y")]), main=SLOW, x=SLOW, y=SLOW)
    stage.delete_pod(grace=10)
    stage.run(11)
    assert stage.machine.stops == [("main/0", 10), ("x/0", 2), ("y/0", 2)]
    stage.run(13)
    assert stage.is_gone()


def test_grace_period_can_be_shortened() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.delete_pod()
    stage.run(1)
    stage.delete_pod(grace=5)
    assert stage.machine.stops == [("main/0", 30), ("main/0", 5)]
    stage.run(7)
    assert stage.is_gone()


def test_runs_of_force_deleted_pod_are_stopped() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.delete_pod(grace=0)
    assert list(stage.client.list(scheme.POD)) == []
    assert stage.machine.stops == [("main/0", 2)]
    stage.run(3)
    assert stage.is_gone()


def test_pod_of_same_name_does_not_wait_for_deleted_pod() -> None:
    stage = LocalStage(pod(), main=SLOW)
    stage.delete_pod(grace=0)
    again = pod()
    stage.put({**again, "metadata": {**again["metadata"], "uid": "uid-again"}})
    assert stage.status["phase"] == "Running"
    stage.run(3)
    assert (stage.machine.runs(UID), len(stage.machine.runs("uid-again"))) == ([], 2)


def test_pod_deleted_before_its_start_is_removed() -> None:
    stage = LocalStage()
    stage.machine.faults = ["no network"]
    stage.put(pod())
    stage.delete_pod()
    stage.run(1)
    assert stage.is_gone()


def test_ended_pod_is_removed_at_once_with_its_runs() -> None:
    stage = LocalStage(pod(), main=ContainerScript(1))
    stage.run(2)
    assert stage.machine.runs()
    stage.delete_pod()
    assert stage.is_gone()


def test_pod_over_active_deadline_fails() -> None:
    stage = LocalStage(
        pod(activeDeadlineSeconds=5, restartPolicy="OnFailure"), main=ContainerScript(stopping=2, stopped_code=0)
    )
    stage.run(6)
    assert (stage.status["phase"], "reason" in stage.status) == ("Running", False)
    assert stage.condition("Ready") == ("False", "PodFailed", "")
    stage.run(8)
    reported = "Pod was active on the node longer than the specified deadline"
    assert [stage.status[field] for field in ("phase", "reason", "message")] == ["Failed", "DeadlineExceeded", reported]
    assert (stage.reported("DeadlineExceeded"), stage.machine.alive()) == ([reported], [])


@pytest.mark.parametrize("first", [(), (container("a"),)])
def test_active_deadline_applies_while_pod_waits(first: tuple[dict[str, object], ...]) -> None:
    stage = LocalStage(
        pod(activeDeadlineSeconds=5, restartPolicy="OnFailure", first=first),
        a=ContainerScript(1, 1),
        main=ContainerScript(1, 1),
    )
    stage.run(6)
    assert (stage.status["phase"], stage.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_pod_over_empty_dir_limit_is_evicted() -> None:
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    stage = LocalStage(pod(volumes=[scratch]), main=ContainerScript(stopping=1, stopped_code=0))
    stage.run(2)
    assert stage.status["phase"] == "Running"
    stage.machine.set_status(SANDBOX, exceeded={"volume": "scratch", "at": stage.kernel.now()})
    stage.run(6)
    reported = 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '
    assert [stage.status[field] for field in ("phase", "reason", "message")] == ["Failed", "Evicted", reported]
    assert (stage.reported("Evicted"), stage.machine.stops[0]) == ([reported], ("main/0", 2))


def test_runs_of_pod_marked_failed_by_controller_are_stopped() -> None:
    stage = LocalStage(pod(), main=ContainerScript(stopping=3))
    result = stage.get(scheme.POD, "pod")
    stage.put(with_status(result, {**result["status"], "phase": "Failed", "reason": "NodeLost"}))
    assert stage.machine.stops == [("main/0", 30)]
    stage.run(5)
    assert (stage.status["phase"], stage.status["reason"], stage.machine.alive()) == ("Failed", "NodeLost", [])
    assert stage.container()["state"]["terminated"]["finishedAt"] == make.stamp(3)
