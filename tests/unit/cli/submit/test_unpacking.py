"""How a shipped folder comes out in a container: the script is run here, by the shell of this machine."""

import base64
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.cli.submit import manifests
from batchyard.cli.submit.manifests import JobRequest, job_of, owned, pack, parts_of, stem_of, unpacking

ASKED = JobRequest(["python", "train.py"], "train", "jobs", "python:3.12-slim")
SHELL = shutil.which("sh") or "/bin/sh"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the parts of an archive, several of them, and an empty one to unpack them into."""
    monkeypatch.setattr(manifests, "PART", 50)
    work = tmp_path / "folder"
    work.mkdir()
    (work / "train.sh").write_text('echo "trained $1"; exit 3')
    (tmp_path / "parts").mkdir()
    (tmp_path / "work").mkdir()
    parts = parts_of(ASKED, pack(work).content)
    assert len(parts) > 1
    for part in parts:
        for key, value in part["binaryData"].items():
            (tmp_path / "parts" / key).write_bytes(base64.b64decode(value))
    return tmp_path


def started(shipped: Path, *argv: str, path: str = os.environ["PATH"]) -> "subprocess.Popen[str]":
    script = unpacking(str(shipped / "parts"), str(shipped / "work"))
    return subprocess.Popen(
        [SHELL, "-c", script, "batchyard-submit", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )


def having(folder: Path, **programs: str) -> str:
    """A PATH with these programs alone."""
    folder.mkdir()
    for name, target in programs.items():
        (folder / name).symlink_to(target)
    return str(folder)


def test_the_command_runs_in_the_folder_and_its_exit_code_is_the_containers(shipped: Path) -> None:
    reported, _ = (process := started(shipped, "sh", "train.sh", "two words")).communicate()
    assert (process.returncode, reported) == (3, "trained two words\n")


@pytest.mark.parametrize("python", ["python3", "python"])
def test_where_there_is_no_tar_python_unpacks(shipped: Path, python: str) -> None:
    path = having(shipped / "bin", cat=shutil.which("cat") or "", **{python: sys.executable})
    reported, _ = (process := started(shipped, SHELL, "train.sh", "x", path=path)).communicate()
    assert (process.returncode, reported) == (3, "trained x\n")


def test_where_nothing_can_unpack_that_is_said(shipped: Path) -> None:
    _, reported = (process := started(shipped, "true", path=having(shipped / "bin"))).communicate()
    assert process.returncode == 126
    assert reported == "batchyard submit: the image has neither tar and gzip nor Python to unpack the folder with\n"


def test_an_archive_that_is_torn_runs_nothing(shipped: Path) -> None:
    max((shipped / "parts").iterdir()).unlink()
    reported, _ = (process := started(shipped, "echo", "ran")).communicate()
    assert (process.returncode, reported) == (126, "")


def test_a_command_that_is_not_there_is_said_as_shells_say_it(shipped: Path) -> None:
    _, reported = (process := started(shipped, "nosuch")).communicate()
    assert process.returncode == 127
    assert "nosuch" in reported


def test_signals_reach_the_command_itself(shipped: Path) -> None:
    with started(shipped, sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_all_parts_are_mounted_in_one_folder_and_belong_to_the_job() -> None:
    archive = bytes(2 * manifests.PART + 1)
    parts, job = parts_of(ASKED, archive), job_of(ASKED, archive)
    named = [part["metadata"]["name"] for part in parts]
    volume = job["spec"]["template"]["spec"]["volumes"][0]
    assert [each["configMap"]["name"] for each in volume["projected"]["sources"]] == named
    assert len(named) == 3
    (owner,) = owned(parts[0], {"metadata": {"name": "train", "uid": "u"}})["metadata"]["ownerReferences"]
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
def test_a_job_is_called_after_its_command(argv: list[str], stem: str) -> None:
    assert stem_of(argv) == stem
