"""The kubelet of this machine: the files of pods that run are brought up to date."""

from batchyard.api import scheme
from unit.kubelet.local.local_make import config_map
from unit.kubelet.local.pretended import LocalStage, Script, pod

TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}}]}}
CONFIG = {"name": "c", "configMap": {"name": "settings"}}


def test_a_token_is_written_anew_when_four_fifths_of_its_time_are_over() -> None:
    stage = LocalStage(pod(volumes=[TOKEN]))
    stage.run(799)
    assert stage.machine.written == []
    stage.run(800)
    assert [list(files["t"]) for files in stage.machine.written] == [["token"]]
    stage.run(1601)
    assert len(stage.machine.written) == 2


def test_a_config_map_that_changes_is_seen_within_a_minute() -> None:
    stage = LocalStage(config_map("settings", a="1"), pod(volumes=[CONFIG]))
    stage.put(config_map("settings", a="2"))
    stage.run(60)
    assert stage.machine.written[0]["c"]["a"].content == b"2"


def test_files_stay_whose_config_map_is_gone() -> None:
    stage = LocalStage(config_map("settings", a="1"), pod(volumes=[CONFIG]))
    stage.delete(scheme.CONFIG_MAP, "settings")
    stage.run(130)
    assert (stage.machine.written, stage.status["phase"]) == ([], "Running")


def test_nobody_writes_files_of_a_pod_that_does_not_run() -> None:
    stage = LocalStage(config_map("settings", a="1"), pod(volumes=[CONFIG]), main=Script(5))
    stage.pass_time(200)
    assert stage.machine.written == []


def test_a_platform_that_begins_again_writes_what_was_due_meanwhile() -> None:
    stage = LocalStage(pod(volumes=[TOKEN]))
    stage.runner.stop()
    stage.pass_time(900)
    stage.restart()
    assert len(stage.machine.written) == 1
