"""Pods of this machine while the time of the platform is ahead of its clock, as with `--speed 60x`."""

import json
import shutil
from collections.abc import Iterator

import pytest

from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND
from batchyard.server.clocks.wall import wall_clock
from e2e_local_pods.node import PATIENCE, local_platform, script, wait_for
from e2e_platform.clock_skew import PROGRAM
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


class HourAheadPlatform(UpProcess):
    """A platform with a clock that is an hour ahead."""

    program = (PROGRAM, str(HOUR // SECOND))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with objects created ahead of the time of the machine."""
    folder = tmp_path_factory.mktemp("platform")
    with HourAheadPlatform(folder) as before:
        before.kubectl("create", "namespace", "later")
        before.end()
    with local_platform(folder) as started:
        yield started


def test_container_ignoring_sigterm_is_killed_after_grace_period(platform: UpProcess) -> None:
    text = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    platform.kubectl("create", "-f", "-", sent=script("deaf", text, terminationGracePeriodSeconds=3))
    wait_for(platform, "deaf", "Running")
    assert platform.kubectl("logs", "deaf", "--since=30s") == "ready\n"
    platform.kubectl("delete", "pod", "deaf", "--timeout=20s")


def test_failing_container_backs_off_with_times_after_pod_creation(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("crash", "exit 1", restartPolicy="Always"))
    waiting = "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff"
    platform.kubectl("wait", "pod/crash", waiting, PATIENCE)
    pod = json.loads(platform.kubectl("get", "pod", "crash", "-o", "json"))
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] <= 2
    began, ended = (parse_time(status["lastState"]["terminated"][field]) for field in ("startedAt", "finishedAt"))
    assert parse_time(pod["metadata"]["creationTimestamp"]) <= began <= ended
    assert ended > wall_clock() + HOUR - MINUTE
