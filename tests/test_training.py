"""The trainer of examples/training: stopped or killed at any step, it ends with the result of an uninterrupted run.

PyTorch is not in the project's own environment. `make torch` creates another one, which these tests use if it exists.
"""

import importlib.util
import os
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Self

import pytest

ROOT = Path(__file__).parent.parent
TRAINING = ROOT / "examples" / "training"
TORCHRUN = ROOT / ".torch" / "bin" / "torchrun"
_ENDS_WITHIN = 120
#: With three ranks, unlike with two, sums depend on the order of the ranks.
_RANKS = 3

needs_torch = pytest.mark.skipif(not TORCHRUN.exists(), reason="PyTorch is not installed: run make torch")


def load_example_module(name: str) -> ModuleType:
    """A module of the example."""
    spec = importlib.util.spec_from_file_location(name, TRAINING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checkpoints = load_example_module("checkpoints")


class Trainer:
    """torchrun with its ranks."""

    def __init__(self, *options: str) -> None:
        command = [str(TORCHRUN), "--standalone", "--nproc_per_node", str(_RANKS), str(TRAINING / "train.py")]
        self.process = subprocess.Popen(
            [*command, "--steps", "30", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait_for(self, beginning: str) -> str:
        """The next line with this beginning."""
        assert self.process.stdout is not None
        return next(line for line in self.process.stdout if line.startswith(beginning))

    def end(self) -> tuple[int, list[str]]:
        """Wait for its end; its exit code and its output."""
        printed, _ = self.process.communicate(timeout=_ENDS_WITHIN)
        return self.process.returncode, printed.splitlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # it ends its ranks, and kills those that do not end
            self.process.wait(_ENDS_WITHIN)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def worker(self) -> int:
        """The process of its last rank."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()[-1])


@cache
def uninterrupted_result() -> str:
    """The last line of an uninterrupted training."""
    with Trainer() as trainer:
        code, printed = trainer.end()
    assert code == 0
    return printed[-1]


@needs_torch
def test_stopped_training_resumes_with_identical_result(tmp_path: Path) -> None:
    where = ("--checkpoints", str(tmp_path))
    with Trainer(*where, "--seconds-per-step", "60") as stopped:
        stopped.wait_for("step 0 ")
        stopped.process.send_signal(signal.SIGTERM)  # which also cuts the long step short
        _, printed = stopped.end()
    assert printed[-1].startswith("stopped: step 1 ")
    with Trainer(*where) as resumed:
        code, printed = resumed.end()
    assert (code, printed[0]) == (0, "resumed from step 1")
    assert printed[-1] == uninterrupted_result()


@needs_torch
def test_killed_training_resumes_from_last_valid_checkpoint(tmp_path: Path) -> None:
    where = ("--checkpoints", str(tmp_path), "--checkpoint-every", "4")
    with Trainer(*where, "--seconds-per-step", "0.1") as killed:
        killed.wait_for("step 9 ")
        os.kill(killed.worker(), signal.SIGKILL)
        assert killed.end()[0] == 1
    before, newest = sorted(tmp_path.glob("step-*"))
    os.truncate(newest, newest.stat().st_size // 2)
    with Trainer(*where) as resumed:
        code, printed = resumed.end()
    assert printed[:2] == [f"{newest.name} is torn: passed over", f"resumed from step {int(before.stem[5:])}"]
    assert (code, printed[-1]) == (0, uninterrupted_result())


@needs_torch
def test_stopped_rank_exits_with_code_143(tmp_path: Path) -> None:
    alone = [str(TORCHRUN.parent / "python"), str(TRAINING / "train.py"), "--seconds-per-step", "60"]
    with subprocess.Popen([*alone, "--checkpoints", str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("step 0 "))
        process.terminate()
        assert process.wait(_ENDS_WITHIN) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.checkpoint"]


def test_newest_checkpoint_is_found_and_two_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "where it is missing"
    for step in (9, 10, 100):
        checkpoints.save(folder, step, b"after %d" % step)
    assert checkpoints.newest(folder, _fail_on_line) == (100, b"after 100")
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "tear",
    [
        pytest.param(lambda content: content[:-1], id="the end is missing"),
        pytest.param(lambda _: b"", id="nothing was written"),
        pytest.param(lambda content: content[:-1] + b"\0", id="a bit is wrong"),
    ],
)
def test_torn_checkpoint_is_skipped_and_reported(tmp_path: Path, tear: Callable[[bytes], bytes]) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, step, b"after %d" % step)
    torn = max(tmp_path.iterdir())
    torn.write_bytes(tear(torn.read_bytes()))
    reported: list[str] = []
    assert checkpoints.newest(tmp_path, reported.append) == (1, b"after 1")
    assert reported == [f"{torn.name} is torn: passed over"]


def test_folder_without_complete_checkpoint_returns_none(tmp_path: Path) -> None:
    (tmp_path / ".step-000000003.checkpoint").write_bytes(b"of a process that was killed as it wrote")
    assert checkpoints.newest(tmp_path, _fail_on_line) is None
    assert list(tmp_path.iterdir()) == []


def _fail_on_line(line: str) -> None:
    raise AssertionError(line)
