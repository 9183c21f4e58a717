"""An archive of a real platform restores what kubectl saw, after kills, and from a server of the S3 API."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from batchyard.api.times import format_time
from batchyard.server.archive.restoration import describe_archive
from batchyard.server.archive.storage import open_storage
from batchyard.server.clocks.wall import wall_clock
from e2e_platform.platform_process import UpProcess
from e2e_platform.upload_gate import upload_gate
from fuzz.standby_pair import wait_until

#: A real server of the S3 API: pip install 'moto[s3,server]'.
SERVER = shutil.which("moto_server")
needs_s3_server = pytest.mark.skipif(SERVER is None, reason="not installed: pip install 'moto[s3,server]'")
S3_PORT = 5741
S3_URL = f"http://127.0.0.1:{S3_PORT}"
S3_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": S3_URL,
    "AWS_ALLOW_HTTP": "true",
}
State = Mapping[str, str]


def batchyard(*arguments: str, code: int = 0) -> str:
    """The output of a command."""
    command = [sys.executable, "-m", "batchyard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def state_of(platform: UpProcess) -> tuple[int, State]:
    """The revision of a list of the ConfigMaps, and the data of those that the test creates."""
    document = json.loads(platform.kubectl("get", "--raw", "/api/v1/namespaces/default/configmaps"))
    items = {item["metadata"]["name"]: json.dumps(item.get("data")) for item in document["items"]}
    items.pop("kube-root-ca.crt")  # a restored platform has its own certificate authority
    return int(document["metadata"]["resourceVersion"]), items


def restored_state(folder: Path, url: str, *target: str) -> State:
    """The ConfigMaps of a platform that is restored into a new folder."""
    batchyard("restore", url, "--data-dir", str(folder), *target)
    with UpProcess(folder) as platform:
        return state_of(platform)[1]


def change(platform: UpProcess, number: int) -> None:
    """Create a ConfigMap, change another one, and delete some."""
    documents = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": str(number)}}
        for name in (f"c{number}", "changed")
    ]
    platform.kubectl("apply", "-f", "-", sent=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    if number % 3 == 2:
        platform.kubectl("delete", "configmap", f"c{number - 1}", "--wait=false")


def archived_revision(url: str) -> int:
    """The newest restorable revision of an archive; 0 without one."""
    spans = describe_archive(open_storage(url))["restorable"]
    return int(spans[0]["toRevision"]) if spans else 0


def wait_until_archived(url: str, revision: int) -> None:
    wait_until(lambda: archived_revision(url) >= revision, f"revision {revision} is archived")


def killed_history(folder: Path, url: str) -> list[tuple[int, str, State]]:
    """Change a platform, archive it and kill it; return the revision, the time and the state after each change."""
    history = []
    with UpProcess(folder, "--archive", url) as platform:
        for number in range(4):
            change(platform, number)
            revision, state = state_of(platform)
            history.append((revision, format_time(wall_clock()), state))
        wait_until_archived(url, revision)
        platform.kubectl("delete", "configmap", "--all", "-n", "default")
        platform.kill()
    return history


@pytest.mark.slow
def test_killed_platform_is_restored_at_revision_and_time(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    history = killed_history(tmp_path / "data", url)
    revision, _, state = history[2]
    assert restored_state(tmp_path / "revision", url, "--to-revision", str(revision)) == state
    _, time, state = history[1]
    assert restored_state(tmp_path / "time", url, "--to-time", time) == state


def archiver_of(platform: UpProcess) -> int:
    """The pid of the archiver process."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (path / "cmdline").read_bytes(), (path / "status").read_text("utf-8")
        except OSError:
            continue
        if b"archive.archiver" in command and f"PPid:\t{platform.process.pid}\n" in status:
            return int(path.name)
    return 0


@pytest.mark.slow
def test_kills_of_platform_and_archiver_leave_no_gap(tmp_path: Path) -> None:
    url, states = str(tmp_path / "archive"), {}
    for number in range(4):
        with UpProcess(tmp_path / "data", "--archive", url) as platform:
            change(platform, number)
            revision, states[number] = state_of(platform)
            if number % 2:
                wait_until(lambda: archiver_of(platform) > 0, "the archiver runs")
                os.kill(archiver_of(platform), signal.SIGKILL)
                wait_until_archived(url, revision)
            platform.kill()
    with UpProcess(tmp_path / "data", "--archive", url) as platform:
        platform.end()
    document = describe_archive(open_storage(url))
    assert len(document["restorable"]) == 1
    assert [epoch["continues"]["epoch"] for epoch in document["epochs"][1:]] == [1, 2, 3, 4, 5, 6]
    assert restored_state(tmp_path / "new", url) == states[3]


@pytest.mark.slow
def test_two_platforms_do_not_share_an_archive(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    with UpProcess(tmp_path / "one", "--archive", url):
        printed = batchyard("up", "--data-dir", str(tmp_path / "two"), "--archive", url, code=1)
    assert "this archive belongs to another platform" in printed


@pytest.fixture
def s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of a real S3 API server."""
    assert SERVER is not None, "tests of S3 are skipped without a server"
    for name, value in S3_VARIABLES.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "s3.log").open("wb") as log:
        command = [SERVER, "-H", "127.0.0.1", "-p", str(S3_PORT)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(has_bucket, "the S3 server answers")
            yield "s3://bucket"
        finally:
            process.kill()
            process.wait()


def has_bucket() -> bool:
    """Create the bucket; return whether the server answered."""
    try:
        with urlopen(Request(f"{S3_URL}/bucket", method="PUT"), timeout=30) as response:
            return bool(response.status == 200)
    except OSError:  # it does not listen yet, or loads its modules
        return False


@needs_s3_server
@pytest.mark.slow
def test_s3_archive_restores_killed_platform(tmp_path: Path, s3_server: str) -> None:
    url = f"{s3_server}/production"
    revision, time, state = killed_history(tmp_path / "data", url)[3]
    assert restored_state(tmp_path / "revision", url, "--to-revision", str(revision)) == state
    assert restored_state(tmp_path / "time", url, "--to-time", time) == state


@needs_s3_server
@pytest.mark.slow
def test_s3_backup_is_restored_and_never_overwritten(tmp_path: Path, s3_server: str) -> None:
    url = f"{s3_server}/backups/monday.backup"
    with UpProcess(tmp_path / "data") as platform:
        change(platform, 0)
        _, state = state_of(platform)
        batchyard("backup", url, "--data-dir", str(tmp_path / "data"))
        printed = batchyard("backup", url, "--data-dir", str(tmp_path / "data"), code=1)
    assert "already exists and is not overwritten" in printed
    assert restored_state(tmp_path / "new", url) == state


@needs_s3_server
@pytest.mark.slow
def test_storage_that_comes_back_gets_all_changes(
    tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{s3_server}/late"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with UpProcess(tmp_path / "data", "--archive", url) as platform:
        change(platform, 0)
        metrics = platform.kubectl("get", "--raw", "/metrics")
        platform.kill()
    assert "batchyard_archive_failures_total 0\n" not in metrics
    monkeypatch.setenv("AWS_ENDPOINT_URL", S3_URL)
    with UpProcess(tmp_path / "data", "--archive", url) as platform:
        wait_until_archived(url, state_of(platform)[0])


@needs_s3_server
@pytest.mark.slow
@pytest.mark.parametrize("passed", [False, True], ids=["the upload is lost", "the server stores the upload"])
def test_kill_during_an_upload_leaves_no_gap(
    tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch, *, passed: bool
) -> None:
    url = f"{s3_server}/killed"
    with upload_gate(S3_PORT) as (endpoint, gate):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with UpProcess(tmp_path / "data", "--archive", url) as platform:
            change(platform, 0)
            wait_until_archived(url, state_of(platform)[0])
            gate.arm()
            change(platform, 1)
            revision, state = state_of(platform)
            assert gate.holds.wait(60)
            os.kill(archiver_of(platform), signal.SIGKILL)
            platform.kill()
        gate.end(passed=passed)
    monkeypatch.setenv("AWS_ENDPOINT_URL", S3_URL)
    with UpProcess(tmp_path / "data", "--archive", url) as platform:
        wait_until_archived(url, state_of(platform)[0])
    assert len(describe_archive(open_storage(url))["restorable"]) == 1
    assert restored_state(tmp_path / "new", url, "--to-revision", str(revision)) == state
