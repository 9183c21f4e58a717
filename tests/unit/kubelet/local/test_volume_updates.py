"""The local kubelet: updates of the files of running pods."""

from batchyard.api import scheme
from unit.kubelet.local.fake_machine import ContainerScript, LocalStage, pod
from unit.kubelet.local.local_make import config_map

TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}}]}}
CONFIG = {"name": "c", "configMap": {"name": "settings"}}


def test_token_is_refreshed_after_four_fifths_of_its_lifetime() -> None:
    stage = LocalStage(pod(volumes=[TOKEN]))
    stage.run(799)
    assert stage.machine.written == []
    stage.run(800)
    assert [list(files["t"]) for files in stage.machine.written] == [["token"]]
    stage.run(1601)
    assert len(stage.machine.written) == 2


def test_changed_config_map_is_written_within_one_minute() -> None:
    stage = LocalStage(config_map("settings", a="1"), pod(volumes=[CONFIG]))
    stage.put(config_map("settings", a="2"))
    stage.run(60)
    assert stage.machine.written[0]["c"]["a"].content == b"2"


def test_files_stay_when_config_map_is_deleted() -> None:
    stage = LocalStage(config_map("settings", a="1"), pod(volumes=[CONFIG]))
    stage.delete(scheme.CONFIG_MAP, "settings")
    stage.run(130)
    assert (stage.machine.written, stage.status["phase"]) == ([], "Running")


def test_files_of_ended_pod_are_not_written() -> None:
    stage = LocalStage(config_map("settings", a="1"), pod(volumes=[CONFIG]), main=ContainerScript(5))
    stage.pass_time(200)
    assert stage.machine.written == []


def test_restarted_platform_writes_overdue_files() -> None:
    stage = LocalStage(pod(volumes=[TOKEN]))
    stage.runner.stop()
    stage.pass_time(900)
    stage.restart()
    assert len(stage.machine.written) == 1
