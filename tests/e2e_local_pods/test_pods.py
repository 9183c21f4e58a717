"""Pods that are processes of this machine, as kubectl sees them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchyard.cli.commands.down import stop
from batchyard.server.local_node.orphans import OrphanedPods
from e2e_local_pods.node import PATIENCE, ended, local_platform, programs_of, script, wait_for
from e2e_platform.running import Running
from integration_shim.machine import until

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One platform for the tests of this module."""
    with local_platform(tmp_path_factory.mktemp("platform")) as started:
        yield started


def test_this_machine_is_a_node_with_what_it_has(platform: Running) -> None:
    nodes = json.loads(platform.kubectl("get", "nodes", "-o", "json"))["items"]
    assert len(nodes) == 1
    assert int(nodes[0]["status"]["capacity"]["cpu"]) >= 1
    assert nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("batchyard://")


def test_a_pod_runs_to_its_end_and_its_log_is_kept(platform: Running) -> None:
    platform.kubectl("create", "-f", "-", sent=script("good", "echo one; echo two >&2"))
    wait_for(platform, "good", "Succeeded")
    assert sorted(platform.kubectl("logs", "good").splitlines()) == ["one", "two"]
    assert (ended(platform, "good")["exitCode"], ended(platform, "good")["reason"]) == (0, "Completed")


def test_a_last_line_that_is_not_ended_is_told_as_it_is(platform: Running) -> None:
    platform.kubectl("create", "-f", "-", sent=script("open", "echo one; printf two"))
    wait_for(platform, "open", "Succeeded")
    assert platform.kubectl("logs", "open") == platform.kubectl("logs", "-f", "open") == "one\ntwo"


def test_the_exit_code_of_a_pod_is_told(platform: Running) -> None:
    platform.kubectl("create", "-f", "-", sent=script("bad", "exit 7"))
    wait_for(platform, "bad", "Failed")
    assert (ended(platform, "bad")["exitCode"], ended(platform, "bad")["reason"]) == (7, "Error")


def test_a_log_is_followed_to_its_end(platform: Running) -> None:
    reported = "for i in 1 2 3; do echo $i; sleep 0.3; done"
    platform.kubectl("create", "-f", "-", sent=script("told", reported))
    platform.kubectl("wait", "pod/told", "--for=condition=ContainersReady", PATIENCE)
    assert platform.kubectl("logs", "-f", "told").split() == ["1", "2", "3"]


def test_a_job_completes(platform: Running) -> None:
    platform.kubectl("create", "job", "sums", "--image=machine", "--", "sh", "-c", "echo $((6 * 7))")
    platform.kubectl("wait", "job/sums", "--for=condition=Complete", PATIENCE)
    assert platform.kubectl("logs", "job/sums") == "42\n"


def test_what_is_said_to_the_simulator_of_saved_work_keeps_no_pod(platform: Running) -> None:
    words = ["create", "job", "saver", "--image=machine", "--dry-run=client", "-o", "json", "--", "sleep", "60"]
    job = json.loads(platform.kubectl(*words))
    job["metadata"]["annotations"] = {"batchyard.dev/checkpoint-every": "1s"}
    platform.kubectl("create", "-f", "-", sent=json.dumps(job))
    platform.kubectl("wait", "job/saver", "--for=jsonpath={.status.ready}=1", PATIENCE)
    (pod,) = platform.kubectl("get", "pod", "-o", "name", "-l", "job-name=saver").split()
    platform.kubectl("patch", "job", "saver", "-p", '{"spec":{"suspend":true}}')
    platform.kubectl("wait", pod, "--for=delete", PATIENCE)
    platform.kubectl("delete", "job", "saver", PATIENCE)


def test_who_is_deleted_may_end_well(platform: Running) -> None:
    text = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    platform.kubectl("create", "-f", "-", sent=script("kind", text, terminationGracePeriodSeconds=30))
    wait_for(platform, "kind", "Running")
    platform.kubectl("delete", "pod", "kind", PATIENCE)
    assert "not found" in platform.kubectl("get", "pod", "kind", fails=True)


def test_an_image_that_nothing_stands_for_is_said(platform: Running) -> None:
    platform.kubectl("create", "-f", "-", sent=script("strange", "true", container={"image": "nobody/knows:1"}))
    waiting = "{.status.containerStatuses[0].state.waiting.%s}"
    platform.kubectl("wait", "pod/strange", f"--for=jsonpath={waiting % 'reason'}=ErrImagePull", PATIENCE)
    reported = platform.kubectl("get", "pod", "strange", "-o", f"jsonpath={waiting % 'message'}")
    assert "--image 'nobody/knows:1=DIRECTORY'" in reported
    platform.kubectl("delete", "pod", "strange", PATIENCE)


def test_what_runs_outlives_the_platform(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, text = tmp_path_factory.mktemp("killed"), "echo begun; sleep 3; echo done; exit 5"
    with local_platform(folder) as platform:
        platform.kubectl("create", "-f", "-", sent=script("long", text))
        wait_for(platform, "long", "Running")
        platform.kill()
        assert programs_of(folder)
        with local_platform(folder) as again:
            wait_for(again, "long", "Failed")
            assert again.kubectl("logs", "long").split() == ["begun", "done"]
            assert ended(again, "long")["exitCode"] == 5
            assert (
                again.kubectl("get", "pod", "long", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"
            )


def test_pods_end_with_their_platform_only_where_that_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_platform(tmp_path) as platform:
        platform.kubectl("create", "-f", "-", sent=script("long", "sleep 600"))
        wait_for(platform, "long", "Running")
        stop(tmp_path, end_pods=False)
        assert "1 pod of this machine still run: `batchyard up` adopts them" in capsys.readouterr().err
        assert OrphanedPods(tmp_path).pods()
        stop(tmp_path, end_pods=True)
        assert "ending 1 pod" in capsys.readouterr().err
        until(lambda: not programs_of(tmp_path), "the end of all programs")
        with pytest.raises(SystemExit):
            stop(tmp_path, end_pods=True)


def test_pods_end_with_a_platform_that_is_told_to_end_them(tmp_path: Path) -> None:
    with local_platform(tmp_path) as platform:
        platform.kubectl("create", "-f", "-", sent=script("long", "sleep 600"))
        wait_for(platform, "long", "Running")
        stop(tmp_path, end_pods=False)
        with local_platform(tmp_path) as again:
            wait_for(again, "long", "Running")
            stop(tmp_path, end_pods=True)
            assert OrphanedPods(tmp_path).pods() == []
            until(lambda: not programs_of(tmp_path), "the end of all programs")


def test_what_stands_for_images_is_what_was_said_last(tmp_path: Path) -> None:
    seen = ("get", "cluster", "local", "-o", "jsonpath={.spec.local.images[*].match}")
    for options, images in ((("--image", "a=/"), "machine a"), (("--image", "b=/"), "machine b")):
        with local_platform(tmp_path, *options) as platform:
            assert platform.kubectl(*seen) == images
            platform.end()
    with Running(tmp_path) as again:
        assert again.kubectl(*seen) == "machine b"
        again.end()
