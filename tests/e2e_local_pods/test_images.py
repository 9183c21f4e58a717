"""Pods of images that an engine has or pulls, as kubectl sees them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from e2e_local_pods.node import PATIENCE, local_platform, script, terminated_state, wait_for
from e2e_platform.platform_process import UpProcess
from integration_shim.engine_image import SAYS, busybox_image
from integration_shim.image_engines import docker, engine_with_image

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
MISSING = "localhost:1/no/such:1"


class EngineOption(NamedTuple):
    """The `--without` option that selects an engine, and an image of that engine."""

    without: str
    image: str


@pytest.fixture(scope="module", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineOption]:
    """An engine that runs images itself, and an engine that only pulls them."""
    if request.param == "podman":
        with busybox_image(*SAYS) as name:
            yield EngineOption("docker", name)
    else:
        with ExitStack() as stack:
            variables = stack.enter_context(docker())
            stack.enter_context(patch.dict(os.environ, variables))
            yield EngineOption("podman", stack.enter_context(engine_with_image("docker", variables, None)).image)


@pytest.fixture(scope="module")
def image(engine: EngineOption) -> str:
    """The name of an image that the engine has."""
    return engine.image


@pytest.fixture(scope="module")
def platform(engine: EngineOption, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform for the tests of this module."""
    with local_platform(tmp_path_factory.mktemp("platform"), without=engine.without) as started:
        yield started


def events_of(platform: UpProcess, name: str) -> list[tuple[str, str]]:
    """Reasons and messages of the events of a pod."""
    request = ("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "json")
    return [(event["reason"], event["message"]) for event in json.loads(platform.kubectl(*request))["items"]]


def pod(name: str, image: str, **fields: Any) -> str:
    """The manifest of a pod with one container that runs the command of its image."""
    created = json.loads(script(name, "true", container={"image": image, **fields}))
    if "command" not in fields:
        del created["spec"]["containers"][0]["command"]
    return json.dumps(created)


def wait_for_waiting_reason(platform: UpProcess, name: str, reason: str) -> str:
    """Wait until the container waits with a reason; return the message."""
    waiting = "{.status.containerStatuses[0].state.waiting.%s}"
    platform.kubectl("wait", f"pod/{name}", f"--for=jsonpath={waiting % 'reason'}={reason}", PATIENCE)
    return platform.kubectl("get", "pod", name, "-o", f"jsonpath={waiting % 'message'}")


def test_container_runs_command_and_user_of_its_image(platform: UpProcess, image: str) -> None:
    platform.kubectl("create", "-f", "-", sent=pod("own", image))
    wait_for(platform, "own", "Succeeded")
    assert platform.kubectl("logs", "own").splitlines() == ["from the image", "1234", "/srv"]
    status = json.loads(platform.kubectl("get", "pod", "own", "-o", "jsonpath={.status.containerStatuses[0]}"))
    assert (status["image"], "sha256:" in status["imageID"]) == (image, True)
    reasons = [reason for reason, _ in events_of(platform, "own")]
    assert reasons == ["Scheduled", "Pulled", "Created", "Started"]
    assert ("Pulled", f'Container image "{image}" already present on machine') in events_of(platform, "own")


def test_status_reports_engine_that_pulls_and_engine_that_runs_images(
    platform: UpProcess, engine: EngineOption
) -> None:
    request = [sys.executable, "-m", "batchyard", "status", "--data-dir", str(platform.kubeconfig.parent)]
    reported = subprocess.run(request, capture_output=True, text=True, check=True).stdout
    ways = {"docker": r"podman \S+ pulls(, bubblewrap| and) runs", "podman": r"docker \S+ pulls, bubblewrap runs"}
    assert re.search(rf"^images +{ways[engine.without]} images without --image$", reported, re.MULTILINE)


def test_arguments_are_passed_to_entrypoint_of_image(platform: UpProcess, image: str) -> None:
    variables = [{"name": "WHO", "value": "pod"}]
    stated = pod("arguments", image, args=["echo $(WHO) $WHO; pwd"], workingDir="/made/for/it", env=variables)
    platform.kubectl("create", "-f", "-", sent=stated)
    wait_for(platform, "arguments", "Succeeded")
    assert platform.kubectl("logs", "arguments").splitlines() == ["pod pod", "/made/for/it"]


def test_server_of_image_is_probed_accepts_exec_and_reads_its_token(platform: UpProcess, image: str) -> None:
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    command = ["sh", "-c", "echo page > /tmp/index.html; exec busybox httpd -f -p 8000 -h /tmp"]
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    user = {"runAsUser": 1000, "runAsGroup": 3000}
    stated = pod("server", image, command=command, readinessProbe=probe, securityContext=user)
    platform.kubectl("create", "-f", "-", sent=stated)
    platform.kubectl("wait", "pod/server", "--for=condition=Ready", PATIENCE)
    request = f"id -u; echo $WHO; test -s {token} && echo reads; cat > /tmp/got; cat /tmp/got"
    reported = platform.kubectl("exec", "-i", "server", "--", "sh", "-c", request, sent="sent")
    assert reported.splitlines() == ["1000", "image", "reads", "sent"]
    platform.kubectl("delete", "pod", "server", "--grace-period=1", PATIENCE)


def test_failed_image_pull_is_retried_with_back_off(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=pod("far", MISSING, command=["true"]))
    reported = wait_for_waiting_reason(platform, "far", "ImagePullBackOff")
    assert reported.startswith(f'Back-off pulling image "{MISSING}": ErrImagePull: ')
    happened = [row for row in events_of(platform, "far") if row[0] != "Scheduled"]
    assert [reason for reason, _ in happened] == ["Pulling", "Failed", "Failed", "BackOff", "Failed"]
    assert happened[0] == ("Pulling", f'Pulling image "{MISSING}"')
    assert happened[1][1].startswith(f'Failed to pull image "{MISSING}": ')
    platform.kubectl("delete", "pod", "far", PATIENCE)


def test_missing_image_with_pull_policy_never_is_reported(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=pod("never", MISSING, imagePullPolicy="Never", command=["true"]))
    reported = wait_for_waiting_reason(platform, "never", "ErrImageNeverPull")
    assert reported == f'Container image "{MISSING}" is not present with pull policy of Never'
    platform.kubectl("delete", "pod", "never", PATIENCE)


def test_container_of_image_survives_kill_of_platform(tmp_path: Path, engine: EngineOption) -> None:
    image = engine.image
    with local_platform(tmp_path, without=engine.without) as before:
        command = ["sh", "-c", "echo begun; sleep 2; echo done; exit 5"]
        before.kubectl("create", "-f", "-", sent=pod("long", image, command=command))
        wait_for(before, "long", "Running")
        before.kill()
        with local_platform(tmp_path, without=engine.without) as again:
            wait_for(again, "long", "Failed")
            assert terminated_state(again, "long")["exitCode"] == 5
            assert again.kubectl("logs", "long").split() == ["begun", "done"]
