"""What `up` refuses before anything runs, and says why."""

import fcntl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchyard.cli.app import app

EXAMPLES = Path(__file__).parents[3] / "examples"


def told_of(*arguments: str) -> str:
    """What a command that fails says."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in {1, 2}, done.output
    return " ".join(done.output.split())


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        assert "this is a file; name a folder with --data-dir" in told_of("up", "--data-dir", str(tmp_path / path))


def test_a_folder_with_other_things_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    assert "other users can read it, and it holds files of other programs" in told_of("up", "--data-dir", str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_runs_nowhere_is_told(tmp_path: Path) -> None:
    for command in ("status", "down"):
        assert f"no platform runs in {tmp_path}" in told_of(command, "--data-dir", str(tmp_path))
    assert "there is no such journal" in told_of("backup", str(tmp_path / "b"), "--data-dir", str(tmp_path))


def test_a_damaged_journal_is_told_with_its_place_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("text " * 1000, "utf-8")
    reported = told_of("up", "--data-dir", str(tmp_path))
    assert f"{tmp_path / 'journal.db'} is damaged: file is not a database; restore a backup" in reported


def test_what_is_said_of_pods_of_this_machine_is_told_where_it_is_none(tmp_path: Path) -> None:
    up = ("up", "--data-dir", str(tmp_path / "new"))
    assert "are for pods of this machine: add --cluster local" in told_of(*up, "--image", "a=/")
    simulated = str(EXAMPLES / "refarch" / "cluster.yaml")
    assert "which is not a node of this Cluster" in told_of(*up, "--cluster", simulated, "--image", "a=/")
    assert not (tmp_path / "new").exists()


def test_what_stands_for_no_image_is_told(tmp_path: Path) -> None:
    up = ("up", "--data-dir", str(tmp_path / "new"), "--cluster", "local", "--image")
    assert "--image a: use NAME=DIRECTORY" in told_of(*up, "a")
    assert f"{tmp_path / 'none'} is not a folder; give a virtualenv" in told_of(*up, f"a={tmp_path / 'none'}")


def test_processes_of_this_machine_run_in_real_time(tmp_path: Path) -> None:
    reported = told_of("up", "--data-dir", str(tmp_path / "new"), "--cluster", "local", "--speed", "60x")
    assert "real processes cannot be sped up: leave out --speed" in reported


def test_time_that_others_live_in_has_a_greatest_speed() -> None:
    assert "give a factor, at most 3600x" in told_of("up", "--speed", "max")


def test_what_is_no_file_of_a_cluster_is_told(tmp_path: Path) -> None:
    up = ("up", "--data-dir", str(tmp_path / "new"), "--cluster")
    assert f"{tmp_path / 'none'}: No such file or directory; give a file" in told_of(*up, str(tmp_path / "none"))
    assert f"{tmp_path}: Is a directory; give a file" in told_of(*up, str(tmp_path))


def test_two_that_start_in_the_background_are_told_apart(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (tmp_path / "up.log").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        reported = told_of("up", "--data-dir", str(tmp_path), "--detach")
    assert f"{tmp_path}: another `batchyard up --detach` is starting it; wait for that one" in reported
    (tmp_path / "up.log").unlink()
    (tmp_path / "up.log").mkdir()
    reported = told_of("up", "--data-dir", str(tmp_path), "--detach")
    assert f"{tmp_path / 'up.log'}: Is a directory; check its permissions" in reported


@pytest.mark.parametrize("address", ["192.0.2.1", "300.1.1.1", "127.0.0.1:80"])
def test_what_is_no_address_of_this_machine_is_told(tmp_path: Path, address: str) -> None:
    reported = told_of("up", "--data-dir", str(tmp_path), "--listen", address)
    assert f"{address} is no address of this machine; name one with --listen" in reported


def test_what_is_no_backup_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text " * 1000, "utf-8")
    reported = told_of("restore", str(tmp_path / "text"), "--data-dir", str(tmp_path / "new"))
    assert f"{tmp_path / 'text'} is no backup; name a file that `batchyard backup` wrote" in reported


def test_a_backup_into_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    reported = told_of("backup", str(tmp_path / "none/kept"), "--data-dir", str(tmp_path))
    assert f"{tmp_path / 'none/kept'}: there is no folder {tmp_path / 'none'}" in reported


def test_a_link_for_somebody_without_a_name_is_not_one_for_the_owner(tmp_path: Path) -> None:
    assert "--user must not be empty" in told_of("page", "--user", "", "--data-dir", str(tmp_path))


def test_what_is_no_collector_is_told_before_anything_runs(tmp_path: Path) -> None:
    for url in ("nonsense", "ftp://x", "http://", "http://[", "localhost:4318"):
        assert "is not a collector URL; use a form such as http://" in told_of(
            "up", "--otlp", url, "--data-dir", str(tmp_path)
        )
