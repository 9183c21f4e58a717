"""Full and read-only disks: a clear error and no damage. Needs permission to mount."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.kill_rounds import PlainHttpClient, ask
from e2e_platform.platform_process import UpProcess

PLAIN = "--insecure-loopback"
MAPS = "/api/v1/namespaces/default/configmaps"
GENEROUS = "size=64m"


def mount(*arguments: str) -> bool:
    """Whether the mount succeeds."""
    return subprocess.run(["mount", "-t", "tmpfs", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None or not mount("-o", GENEROUS, "none", str(place)):
        pytest.skip("nothing may be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def stored_names(url: str) -> list[str]:
    return [item["metadata"]["name"] for item in ask(url, "GET", MAPS)[1]["items"]]


def config_map(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"m{number:04}"}, "data": {"a": "x" * 20_000}}


def refusal(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and stderr of a platform that does not start."""
    command = [sys.executable, "-m", "batchyard", "up", "--data-dir", str(folder), PLAIN, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stderr


def test_platform_ends_on_full_disk_and_keeps_acknowledged_writes(disk: Path) -> None:
    answered = []
    with UpProcess(disk / "data", PLAIN) as running, PlainHttpClient(running.url) as client:
        assert mount("-o", "remount,size=4m", str(disk))
        for number in range(1000):
            code, answer = client.ask("POST", MAPS, config_map(number))
            if code != 201:
                break
            answered.append(answer["metadata"]["name"])
        assert (code, answer["reason"]) == (500, "InternalError")
        assert running.process.wait(20) == 1
        assert running.process.stderr is not None
        assert "free disk space and start again" in running.process.stderr.read()
    assert mount("-o", f"remount,{GENEROUS}", str(disk))
    with UpProcess(disk / "data", PLAIN) as again:
        assert stored_names(again.url) == answered
    assert answered


def test_read_only_disk_is_reported_and_stays_unchanged(disk: Path) -> None:
    with UpProcess(disk / "data", PLAIN) as running:
        ask(running.url, "POST", MAPS, config_map(1))
        running.kill()
    assert mount("-o", "remount,ro", str(disk))
    code, reported = refusal(disk / "data")
    assert (code, "Traceback" in reported) == (1, False)
    assert "Read-only file system" in reported
    code, reported = refusal(disk / "other")
    assert (code, "Traceback" in reported, "Read-only file system" in reported) == (1, False, True)
    assert mount("-o", "remount,rw", str(disk))
    with UpProcess(disk / "data", PLAIN) as again:
        assert stored_names(again.url) == ["m0001"]


def test_detached_platform_without_space_for_its_log_is_reported(disk: Path) -> None:
    assert mount("-o", "remount,size=64k", str(disk))
    code, reported = refusal(disk / "data", "--detach")
    assert (code, "Traceback" in reported) == (1, False)
    assert f"{disk / 'data' / 'up.log'} contains no error; check the free disk space" in reported
