"""Pods that are processes of this machine, as kubectl sees them."""

import json
import shutil
from pathlib import Path

import pytest

from batchyard.cli.commands.down import stop_platform
from batchyard.server.local_node.orphans import OrphanedPods
from e2e_local_pods.node import PATIENCE, local_platform, programs_of, script, terminated_state, wait_for
from e2e_platform.platform_process import UpProcess
from integration_shim.machine import until

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def test_machine_is_registered_as_node_with_its_capacity(platform: UpProcess) -> None:
    nodes = json.loads(platform.kubectl("get", "nodes", "-o", "json"))["items"]
    assert len(nodes) == 1
    assert int(nodes[0]["status"]["capacity"]["cpu"]) >= 1
    assert nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("batchyard://")


def test_pod_succeeds_and_keeps_its_log(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("good", "echo one; echo two >&2"))
    wait_for(platform, "good", "Succeeded")
    assert sorted(platform.kubectl("logs", "good").splitlines()) == ["one", "two"]
    assert (terminated_state(platform, "good")["exitCode"], terminated_state(platform, "good")["reason"]) == (
        0,
        "Completed",
    )


def test_last_log_line_without_newline_is_returned_unchanged(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("open", "echo one; printf two"))
    wait_for(platform, "open", "Succeeded")
    assert platform.kubectl("logs", "open") == platform.kubectl("logs", "-f", "open") == "one\ntwo"


def test_pod_status_reports_exit_code(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("bad", "exit 7"))
    wait_for(platform, "bad", "Failed")
    assert (terminated_state(platform, "bad")["exitCode"], terminated_state(platform, "bad")["reason"]) == (7, "Error")


def test_logs_follow_until_pod_ends(platform: UpProcess) -> None:
    reported = "for i in 1 2 3; do echo $i; sleep 0.3; done"
    platform.kubectl("create", "-f", "-", sent=script("told", reported))
    platform.kubectl("wait", "pod/told", "--for=condition=ContainersReady", PATIENCE)
    assert platform.kubectl("logs", "-f", "told").split() == ["1", "2", "3"]


def test_job_completes(platform: UpProcess) -> None:
    platform.kubectl("create", "job", "sums", "--image=machine", "--", "sh", "-c", "echo $((6 * 7))")
    platform.kubectl("wait", "job/sums", "--for=condition=Complete", PATIENCE)
    assert platform.kubectl("logs", "job/sums") == "42\n"


def test_simulator_checkpoint_annotation_does_not_delay_pod_deletion(platform: UpProcess) -> None:
    words = ["create", "job", "saver", "--image=machine", "--dry-run=client", "-o", "json", "--", "sleep", "60"]
    job = json.loads(platform.kubectl(*words))
    job["metadata"]["annotations"] = {"batchyard.dev/checkpoint-every": "1s"}
    platform.kubectl("create", "-f", "-", sent=json.dumps(job))
    platform.kubectl("wait", "job/saver", "--for=jsonpath={.status.ready}=1", PATIENCE)
    (pod,) = platform.kubectl("get", "pod", "-o", "name", "-l", "job-name=saver").split()
    platform.kubectl("patch", "job", "saver", "-p", '{"spec":{"suspend":true}}')
    platform.kubectl("wait", pod, "--for=delete", PATIENCE)
    platform.kubectl("delete", "job", "saver", PATIENCE)


def test_deleted_pod_may_handle_sigterm(platform: UpProcess) -> None:
    text = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    platform.kubectl("create", "-f", "-", sent=script("kind", text, terminationGracePeriodSeconds=30))
    wait_for(platform, "kind", "Running")
    platform.kubectl("delete", "pod", "kind", PATIENCE)
    assert "not found" in platform.kubectl("get", "pod", "kind", fails=True)


def test_image_without_environment_is_reported_as_pull_error(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("strange", "true", container={"image": "nobody/knows:1"}))
    waiting = "{.status.containerStatuses[0].state.waiting.%s}"
    platform.kubectl("wait", "pod/strange", f"--for=jsonpath={waiting % 'reason'}=ErrImagePull", PATIENCE)
    reported = platform.kubectl("get", "pod", "strange", "-o", f"jsonpath={waiting % 'message'}")
    assert "--image 'nobody/knows:1=DIRECTORY'" in reported
    platform.kubectl("delete", "pod", "strange", PATIENCE)


def test_pod_survives_kill_of_platform(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, text = tmp_path_factory.mktemp("killed"), "echo begun; sleep 3; echo done; exit 5"
    with local_platform(folder) as platform:
        platform.kubectl("create", "-f", "-", sent=script("long", text))
        wait_for(platform, "long", "Running")
        platform.kill()
        assert programs_of(folder)
        with local_platform(folder) as again:
            wait_for(again, "long", "Failed")
            assert again.kubectl("logs", "long").split() == ["begun", "done"]
            assert terminated_state(again, "long")["exitCode"] == 5
            assert (
                again.kubectl("get", "pod", "long", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"
            )


def test_stop_ends_pods_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with local_platform(tmp_path) as platform:
        platform.kubectl("create", "-f", "-", sent=script("long", "sleep 600"))
        wait_for(platform, "long", "Running")
        stop_platform(tmp_path, end_pods=False)
        assert "1 pod of this machine keeps running: `batchyard up` adopts them" in capsys.readouterr().err
        assert OrphanedPods(tmp_path).running_pod_uids()
        stop_platform(tmp_path, end_pods=True)
        assert "ending 1 pod" in capsys.readouterr().err
        until(lambda: not programs_of(tmp_path), "the end of all programs")
        with pytest.raises(SystemExit):
            stop_platform(tmp_path, end_pods=True)


def test_stop_with_end_pods_ends_adopted_pods(tmp_path: Path) -> None:
    with local_platform(tmp_path) as platform:
        platform.kubectl("create", "-f", "-", sent=script("long", "sleep 600"))
        wait_for(platform, "long", "Running")
        stop_platform(tmp_path, end_pods=False)
        with local_platform(tmp_path) as again:
            wait_for(again, "long", "Running")
            stop_platform(tmp_path, end_pods=True)
            assert OrphanedPods(tmp_path).running_pod_uids() == []
            until(lambda: not programs_of(tmp_path), "the end of all programs")


def test_image_option_replaces_that_of_earlier_start(tmp_path: Path) -> None:
    seen = ("get", "cluster", "local", "-o", "jsonpath={.spec.local.images[*].match}")
    for options, images in ((("--image", "a=/"), "machine a"), (("--image", "b=/"), "machine b")):
        with local_platform(tmp_path, *options) as platform:
            assert platform.kubectl(*seen) == images
            platform.end()
    with UpProcess(tmp_path) as again:
        assert again.kubectl(*seen) == "machine b"
        again.end()
