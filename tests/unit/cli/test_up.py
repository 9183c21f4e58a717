"""Arguments that `up` rejects before it runs anything."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchyard.cli.app import app

EXAMPLES = Path(__file__).parents[3] / "examples"


def output_of_failure(*arguments: str) -> str:
    """Run a failing command, and return its output."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in {1, 2}, done.output
    return " ".join(done.output.split())


def test_file_as_data_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        assert "this is a file, not a folder; set a folder with --data-dir" in output_of_failure(
            "up", "--data-dir", str(tmp_path / path)
        )


def test_folder_with_foreign_files_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    assert "other users can read this folder, and it contains files of other programs" in output_of_failure(
        "up", "--data-dir", str(tmp_path)
    )
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_commands_without_running_platform_are_rejected(tmp_path: Path) -> None:
    for command in ("status", "down"):
        assert f"no platform runs in {tmp_path}" in output_of_failure(command, "--data-dir", str(tmp_path))
    assert "does not exist; set the data directory" in output_of_failure(
        "backup", str(tmp_path / "b"), "--data-dir", str(tmp_path)
    )


def test_damaged_journal_is_reported_with_path_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("text " * 1000, "utf-8")
    reported = output_of_failure("up", "--data-dir", str(tmp_path))
    assert f"{tmp_path / 'journal.db'} is damaged: file is not a database (page at offset 0)" in reported


def test_local_image_option_requires_local_cluster(tmp_path: Path) -> None:
    up = ("up", "--data-dir", str(tmp_path / "new"))
    assert "require this machine as a node: add --cluster local" in output_of_failure(*up, "--image", "a=/")
    simulated = str(EXAMPLES / "refarch" / "cluster.yaml")
    assert "add spec.local to the Cluster" in output_of_failure(*up, "--cluster", simulated, "--image", "a=/")
    assert not (tmp_path / "new").exists()


def test_missing_host_path_is_rejected(tmp_path: Path) -> None:
    missing = tmp_path / "existing" / "missing"
    missing.parent.mkdir()
    up = ("up", "--data-dir", str(tmp_path / "new"), "--cluster", "local", "--host-path", str(missing.parent))
    reported = output_of_failure(*up, "--host-path", str(missing))
    assert f"--host-path {missing}: {missing}: No such file or directory; create the folder" in reported
    assert not (tmp_path / "new").exists()


def test_invalid_image_option_is_rejected(tmp_path: Path) -> None:
    up = ("up", "--data-dir", str(tmp_path / "new"), "--cluster", "local", "--image")
    assert "--image a: use NAME=DIRECTORY" in output_of_failure(*up, "a")
    assert f"{tmp_path / 'none'} is not a folder; use a virtualenv" in output_of_failure(*up, f"a={tmp_path / 'none'}")


def test_local_cluster_rejects_speed_option(tmp_path: Path) -> None:
    reported = output_of_failure("up", "--data-dir", str(tmp_path / "new"), "--cluster", "local", "--speed", "60x")
    assert "--speed must be 1x if this machine is a node" in reported


def test_failed_start_of_spawner_is_reported_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "node" / "spawner").mkdir(parents=True)  # the spawner cannot create its socket
    up = (sys.executable, "-m", "batchyard", "up", "--data-dir", str(tmp_path), "--cluster", "local", "--port", "0")
    ended = subprocess.run(up, check=False, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 1
    log = tmp_path / "node" / "spawner.log"
    assert f"did not start; read the cause in {log}, correct it, and start the platform again" in ended.stderr
    assert "spawner" in log.read_text("utf-8")


def test_speed_above_limit_is_rejected() -> None:
    assert "use at most 3600x" in output_of_failure("up", "--speed", "max")


def test_unreadable_cluster_file_is_reported(tmp_path: Path) -> None:
    up = ("up", "--data-dir", str(tmp_path / "new"), "--cluster")
    assert f"{tmp_path / 'none'}: No such file or directory; set --cluster to a readable file" in output_of_failure(
        *up, str(tmp_path / "none")
    )
    assert f"{tmp_path}: Is a directory; set --cluster to a readable file" in output_of_failure(*up, str(tmp_path))


def test_concurrent_detached_start_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (tmp_path / "up.log").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        reported = output_of_failure("up", "--data-dir", str(tmp_path), "--detach")
    assert f"{tmp_path}: another `batchyard up --detach` is starting a platform; wait for it" in reported
    (tmp_path / "up.log").unlink()
    (tmp_path / "up.log").mkdir()
    reported = output_of_failure("up", "--data-dir", str(tmp_path), "--detach")
    assert f"{tmp_path / 'up.log'}: Is a directory; check the path, its permissions" in reported


@pytest.mark.parametrize("address", ["192.0.2.1", "300.1.1.1", "127.0.0.1:80"])
def test_foreign_listen_address_is_rejected(tmp_path: Path, address: str) -> None:
    reported = output_of_failure("up", "--data-dir", str(tmp_path), "--listen", address)
    assert f"{address} is not an address of this machine; set another address with --listen" in reported


def test_invalid_backup_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text " * 1000, "utf-8")
    reported = output_of_failure("restore", str(tmp_path / "text"), "--data-dir", str(tmp_path / "new"))
    assert f"{tmp_path / 'text'} is not a backup; pass a file that `batchyard backup` wrote" in reported


def test_backup_to_missing_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    reported = output_of_failure("backup", str(tmp_path / "none/kept"), "--data-dir", str(tmp_path))
    assert f"{tmp_path / 'none/kept'}: the folder {tmp_path / 'none'} does not exist" in reported


def test_page_rejects_empty_user(tmp_path: Path) -> None:
    assert "--user must not be empty" in output_of_failure("page", "--user", "", "--data-dir", str(tmp_path))


def test_invalid_collector_url_is_rejected(tmp_path: Path) -> None:
    for url in ("nonsense", "ftp://x", "http://", "http://[", "localhost:4318"):
        assert "is not a collector URL; use a form such as http://" in output_of_failure(
            "up", "--otlp", url, "--data-dir", str(tmp_path)
        )
