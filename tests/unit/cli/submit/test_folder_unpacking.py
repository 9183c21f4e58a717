"""Unpacking of a folder in a container: the shell of this machine runs the script."""

import base64
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.cli.submit import manifests
from batchyard.cli.submit.manifests import (
    JobRequest,
    archive_config_maps,
    job_manifest,
    job_name_prefix,
    pack,
    unpack_script,
    with_job_owner,
)

REQUEST = JobRequest(["python", "train.py"], "train", "jobs", "python:3.12-slim")
SHELL = shutil.which("sh") or "/bin/sh"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with several parts of an archive, and an empty folder for the unpacked files."""
    monkeypatch.setattr(manifests, "PART_SIZE", 50)
    work = tmp_path / "folder"
    work.mkdir()
    (work / "train.sh").write_text('echo "trained $1"; exit 3')
    (tmp_path / "parts").mkdir()
    (tmp_path / "work").mkdir()
    parts = archive_config_maps(REQUEST, pack(work).content)
    assert len(parts) > 1
    for part in parts:
        for key, value in part["binaryData"].items():
            (tmp_path / "parts" / key).write_bytes(base64.b64decode(value))
    return tmp_path


def start_unpacking(shipped: Path, *argv: str, path: str = os.environ["PATH"]) -> "subprocess.Popen[str]":
    script = unpack_script(str(shipped / "parts"), str(shipped / "work"))
    return subprocess.Popen(
        [SHELL, "-c", script, "batchyard-submit", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )


def path_with(folder: Path, **programs: str) -> str:
    """Return a PATH with only these programs."""
    folder.mkdir()
    for name, target in programs.items():
        (folder / name).symlink_to(target)
    return str(folder)


def test_command_runs_in_folder_and_exit_code_is_kept(shipped: Path) -> None:
    reported, _ = (process := start_unpacking(shipped, "sh", "train.sh", "two words")).communicate()
    assert (process.returncode, reported) == (3, "trained two words\n")


@pytest.mark.parametrize("python", ["python3", "python"])
def test_python_unpacks_without_tar(shipped: Path, python: str) -> None:
    path = path_with(shipped / "bin", cat=shutil.which("cat") or "", **{python: sys.executable})
    reported, _ = (process := start_unpacking(shipped, SHELL, "train.sh", "x", path=path)).communicate()
    assert (process.returncode, reported) == (3, "trained x\n")


def test_missing_unpacking_tools_are_reported(shipped: Path) -> None:
    _, reported = (process := start_unpacking(shipped, "true", path=path_with(shipped / "bin"))).communicate()
    assert process.returncode == 126
    assert reported == "batchyard submit: the image has neither tar and gzip nor Python to unpack the folder with\n"


def test_damaged_archive_runs_nothing(shipped: Path) -> None:
    max((shipped / "parts").iterdir()).unlink()
    reported, _ = (process := start_unpacking(shipped, "echo", "ran")).communicate()
    assert (process.returncode, reported) == (126, "")


def test_missing_command_exits_with_127(shipped: Path) -> None:
    _, reported = (process := start_unpacking(shipped, "nosuch")).communicate()
    assert process.returncode == 127
    assert "nosuch" in reported


def test_signals_reach_command(shipped: Path) -> None:
    with start_unpacking(
        shipped, sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_all_parts_are_mounted_together_and_owned_by_job() -> None:
    archive = bytes(2 * manifests.PART_SIZE + 1)
    parts, job = archive_config_maps(REQUEST, archive), job_manifest(REQUEST, archive)
    named = [part["metadata"]["name"] for part in parts]
    volume = job["spec"]["template"]["spec"]["volumes"][0]
    assert [each["configMap"]["name"] for each in volume["projected"]["sources"]] == named
    assert len(named) == 3
    created = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "u"}}
    (owner,) = with_job_owner(parts[0], created)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", "u")


@pytest.mark.parametrize(
    ("argv", "stem"),
    [
        (["python", "-u", "src/train_it.py", "x.py"], "train-it"),
        (["/usr/bin/Nvidia-SMI"], "nvidia-smi"),
        (["bash", "./Run.SH.sh"], "run-sh"),
        (["..."], "job"),
    ],
)
def test_job_name_derives_from_command(argv: list[str], stem: str) -> None:
    assert job_name_prefix(argv) == stem
