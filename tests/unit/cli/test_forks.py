"""`whatif` and `eta` as commands: what goes where, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from batchyard.cli.app import app
from batchyard.sim.state_document import document_of
from unit.sim.forks_make import queue, state, workload

THERE = [*queue(1), workload("a", 30), workload("b", 30, 1)]


class Done(NamedTuple):
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


Batchyard = Callable[..., Done]


@pytest.fixture
def batchyard(capsys: pytest.CaptureFixture[str]) -> Batchyard:
    """The command, in this process."""

    def run(*arguments: object) -> Done:
        code = 0
        try:
            app(list(map(str, arguments)), standalone_mode=False)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except typer.BadParameter:
            code = 2
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def written(folder: Path, value: object, name: str = "file.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value), "utf-8")
    return path


def at_ten(folder: Path) -> Path:
    return written(folder, document_of(state(THERE, 10)), "state.json")


def test_whatif_begins_with_a_line_that_says_all(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("whatif", "--state", at_ten(tmp_path), "-f", written(tmp_path, queue(2)[1]))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "1 start sooner"
    assert lines[3].split() == ["team/b", "team/lq", "20s", "sooner", "20s", "at", "once", "50s", "30s"]


def test_whatif_tells_programs_the_same(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("whatif", "--state", at_ten(tmp_path), "--delete", "workload/team/a", "-o", "json")
    reported = json.loads(done.stdout)
    assert (reported["kind"], reported["summary"], reported["seconds"]) == (
        "Comparison",
        "1 gone, 1 start sooner",
        86400,
    )


def test_whatif_of_a_scenario_begins_at_its_moment(batchyard: Batchyard, tmp_path: Path) -> None:
    platform = written(tmp_path, {"apiVersion": "v1", "kind": "List", "items": THERE}, "platform.json")
    done = batchyard("whatif", platform, "--at", "10s", "-f", written(tmp_path, queue(2)[1]))
    assert done.stdout.startswith("1 start sooner\n")


def test_what_is_refused_is_said_and_fails(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("whatif", "--state", at_ten(tmp_path), "--delete", "workload/team/x")
    assert done.returncode == 1
    assert done.stderr.startswith("refused: delete Workload.kueue.x-k8s.io team/x: NotFound")
    wrong = batchyard("whatif", "--state", at_ten(tmp_path), "--delete", "wardrobe/x")
    assert wrong.stderr.startswith("--delete: 'wardrobe' is not a known kind; use a kind such as node\n")


def test_eta_tells_one_and_all(batchyard: Batchyard, tmp_path: Path) -> None:
    one = batchyard("eta", "workload/b", "-n", "team", "--state", at_ten(tmp_path))
    assert one.stdout.splitlines()[1].split()[-7:] == ["20s", "20s", "20s", "100%", "of", "forks", "manifest"]
    every = batchyard("eta", "--all", "--state", at_ten(tmp_path), "-o", "json")
    assert [item["waitSeconds"]["p50"] for item in json.loads(every.stdout)["items"]] == [20]


def test_eta_of_nobody_fails(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("eta", "job/x", "--state", at_ten(tmp_path))
    assert (done.returncode, done.stderr) == (1, "batchyard: not found: job default/x\n")
    assert batchyard("eta", "pod/x", "--state", at_ten(tmp_path)).returncode == 1
    assert batchyard("eta").returncode == 2
    assert batchyard("whatif").returncode == 2


def test_without_a_platform_it_is_said_what_to_do(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("eta", "--all", "--data-dir", tmp_path / "none")
    assert done.returncode == 1
    assert "start a platform with `batchyard up`" in done.stderr


def test_of_whom_nobody_knows_how_long_he_runs_is_named(batchyard: Batchyard, tmp_path: Path) -> None:
    there = document_of(state([*queue(1), workload("a"), workload("b", 5, 1)], 10))
    done = batchyard("whatif", "--state", written(tmp_path, there, "s"), "-f", written(tmp_path, queue(2)[1]))
    assert done.stderr == "batchyard: run time of team/a is unknown: they keep running in both runs\n"
    assert done.stdout.startswith("1 start that would not\n")


def test_what_could_not_be_read_is_told_with_what_it_costs(batchyard: Batchyard, tmp_path: Path) -> None:
    taken = document_of(replace(state(THERE, 10), unread=("Node",)))
    done = batchyard("eta", "workload/b", "-n", "team", "--state", written(tmp_path, taken))
    assert done.stderr == "batchyard: not known here: nodes: only quota is considered, no machines\n"
