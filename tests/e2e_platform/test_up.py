"""`up`, `status`, `down` and `backup` with a running platform, and disk errors."""

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchyard.cli.background import UpOptions
from batchyard.cli.commands.backup import RestoreTarget, restore_backup, write_backup
from batchyard.cli.commands.down import stop_platform
from batchyard.cli.commands.status import print_status
from batchyard.cli.commands.up import start
from batchyard.cli.options import Output
from batchyard.server.platform.data_dir import PlatformOptions, running_process_in
from e2e_platform.kill_rounds import PlainHttpClient, ask
from e2e_platform.platform_process import UpProcess

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PLAIN = "--insecure-loopback"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform for the tests of this module."""
    folder = tmp_path_factory.mktemp("platform")
    folder.chmod(0o755)
    with UpProcess(folder, "--speed", "60x") as started:
        yield started


def folder_of(platform: UpProcess) -> Path:
    return platform.kubeconfig.parent


def config_map(name: str, size: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"x": "y" * size}}


def test_data_directory_and_files_are_private(platform: UpProcess) -> None:
    folder = folder_of(platform)
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in folder.rglob("*") if file.is_file()}
    assert {"journal.db", "journal.db-wal", "journal.mark", "kubeconfig", "server.pem", "up.json"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert {entry.stat().st_mode & 0o777 for entry in folder.iterdir() if entry.is_dir()} == {0o700}


def test_second_platform_in_same_folder_is_rejected_with_pid_of_first(
    platform: UpProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        start(UpOptions(PlatformOptions(folder_of(platform)), None, 1.0), detach=True)
    assert (
        f"a platform already runs in {folder_of(platform)}, pid {platform.process.pid}, {platform.url}"
        in capsys.readouterr().err
    )


def test_port_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match="1"):
            start(UpOptions(PlatformOptions(tmp_path, port), None, 1.0), detach=False)
    assert f"127.0.0.1, port {port}: Address already in use; set another" in capsys.readouterr().err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no socket here listens for IPv6 and IPv4 at once")
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::1"])
def test_kubeconfig_reaches_platform_at_any_listen_address(tmp_path: Path, address: str) -> None:
    with UpProcess(tmp_path, "--listen", address) as running:
        assert "default" in running.kubectl("get", "namespaces", "-o", "name")


def test_status_reports_health_and_counts(platform: UpProcess, capsys: pytest.CaptureFixture[str]) -> None:
    print_status(folder_of(platform), Output.JSON)
    reported = json.loads(capsys.readouterr().out)
    assert (reported["health"], reported["speed"], reported["sync"]) == ("ok", 60.0, "full")
    assert reported["revision"] >= reported["objects"]["Namespace"] == 4
    assert reported["workloads"] == {"pending": 0, "admitted": 0, "all": 0}
    print_status(folder_of(platform), Output.TABLE)
    assert f"{platform.url}  pid {platform.process.pid}" in capsys.readouterr().out


def test_backup_of_running_platform_restores_in_another_folder(platform: UpProcess, tmp_path: Path) -> None:
    write_backup(str(tmp_path / "kept"), folder_of(platform))
    restore_backup(str(tmp_path / "kept"), tmp_path / "new", RestoreTarget())
    with UpProcess(tmp_path / "new", PLAIN) as restored:
        assert len(ask(restored.url, "GET", "/api/v1/namespaces")[1]["items"]) == 4
        code, answer = ask(restored.url, "GET", f"{CONFIG_MAPS}?watch=1&resourceVersion=900")
    assert (code, answer["reason"]) == (410, "Expired")


def test_detached_platform_runs_until_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "batchyard", "up", "--data-dir", str(tmp_path), PLAIN, "--detach"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    running = running_process_in(tmp_path)
    assert running is not None
    with PlainHttpClient(running.url) as client:
        events = client.lines(f"{CONFIG_MAPS}?watch=1")
        assert ask(running.url, "POST", CONFIG_MAPS, config_map("a"))[0] == 201
        assert next(events)["type"] == "ADDED"
        stop_platform(tmp_path, end_pods=False)
        assert list(events) == []
    assert f"{running.url} has ended; its data is kept" in capsys.readouterr().err
    assert running_process_in(tmp_path) is None


def test_platform_ends_on_write_error_and_keeps_acknowledged_writes(tmp_path: Path) -> None:
    with UpProcess(tmp_path, PLAIN) as running:
        assert ask(running.url, "POST", CONFIG_MAPS, config_map("a"))[0] == 201
        most = (tmp_path / "journal.db-wal").stat().st_size + 20_000
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (most, most))
        code, answer = ask(running.url, "POST", CONFIG_MAPS, config_map("b", 100_000))
        assert (code, answer["reason"]) == (500, "InternalError")
        assert running.process.wait(20) == 1
        assert running.process.stderr is not None
        assert "the disk cannot read or write the file; check the disk" in running.process.stderr.read()
    with UpProcess(tmp_path, PLAIN) as again:
        items = ask(again.url, "GET", CONFIG_MAPS)[1]["items"]
    assert [item["metadata"]["name"] for item in items] == ["a"]


def test_platform_survives_exhausted_file_descriptors(platform: UpProcess, capsys: pytest.CaptureFixture[str]) -> None:
    pid = platform.process.pid
    taken = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + 3, taken + 200))
    crowd = [socket.create_connection(("127.0.0.1", int(platform.url.rpartition(":")[2]))) for _ in range(20)]
    for connection in crowd:
        connection.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + 200, taken + 200))
    assert before[0] > 20
    print_status(folder_of(platform), Output.JSON)
    assert json.loads(capsys.readouterr().out)["health"] == "ok"


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """Restore the default SIGHUP handler for child processes, because the tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_sighup")
def test_platform_ends_cleanly_on_sighup(tmp_path: Path) -> None:
    with UpProcess(tmp_path, PLAIN) as running:
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(20) == 0
        assert running.process.stderr is not None
        assert "ended; its data is kept" in running.process.stderr.read()


def test_platform_ends_at_once_on_second_interrupt(tmp_path: Path) -> None:
    with UpProcess(tmp_path, PLAIN) as running:
        place = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        with socket.create_connection(place) as slow:
            slow.sendall(f"POST {CONFIG_MAPS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n".encode())
            assert ask(running.url, "GET", "/version")[0] == 200
            running.process.send_signal(signal.SIGINT)
            while running_process_in(tmp_path) is not None and not _refuses(place):
                pass
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(5) == -signal.SIGINT


def _refuses(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # accepted by a listener that closed before a request
        return False
    return False
