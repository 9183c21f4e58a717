"""`whatif` and `eta` as commands: their output and their errors."""

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


class CliResult(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


Batchyard = Callable[..., CliResult]


@pytest.fixture
def batchyard(capsys: pytest.CaptureFixture[str]) -> Batchyard:
    """Return a function that runs the command in this process."""

    def run(*arguments: object) -> CliResult:
        code = 0
        try:
            app(list(map(str, arguments)), standalone_mode=False)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except typer.BadParameter:
            code = 2
        out, err = capsys.readouterr()
        return CliResult(code, out, err)

    return run


def write_json(folder: Path, value: object, name: str = "file.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value), "utf-8")
    return path


def state_at_ten_seconds(folder: Path) -> Path:
    return write_json(folder, document_of(state(THERE, 10)), "state.json")


def test_whatif_begins_with_summary_line(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("whatif", "--state", state_at_ten_seconds(tmp_path), "-f", write_json(tmp_path, queue(2)[1]))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "1 Workload starts sooner"
    assert lines[3].split() == ["team/b", "team/lq", "20s", "sooner", "20s", "at", "once", "50s", "30s"]


def test_whatif_json_contains_same_summary(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("whatif", "--state", state_at_ten_seconds(tmp_path), "--delete", "workload/team/a", "-o", "json")
    reported = json.loads(done.stdout)
    assert (reported["kind"], reported["summary"], reported["seconds"]) == (
        "Comparison",
        "1 Workload is gone, 1 starts sooner",
        86400,
    )


def test_whatif_of_scenario_begins_at_given_time(batchyard: Batchyard, tmp_path: Path) -> None:
    platform = write_json(tmp_path, {"apiVersion": "v1", "kind": "List", "items": THERE}, "platform.json")
    done = batchyard("whatif", platform, "--at", "10s", "-f", write_json(tmp_path, queue(2)[1]))
    assert done.stdout.startswith("1 Workload starts sooner\n")


def test_rejected_change_is_reported_and_fails(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("whatif", "--state", state_at_ten_seconds(tmp_path), "--delete", "workload/team/x")
    assert done.returncode == 1
    assert done.stderr.startswith("--delete: workload x not found in namespace team; existing: a, b\n")
    wrong = batchyard("whatif", "--state", state_at_ten_seconds(tmp_path), "--delete", "wardrobe/x")
    assert wrong.stderr.startswith("--delete: 'wardrobe' is not a known kind; use a kind such as node, job")


def test_eta_reports_single_workload_and_all(batchyard: Batchyard, tmp_path: Path) -> None:
    one = batchyard("eta", "workload/b", "-n", "team", "--state", state_at_ten_seconds(tmp_path))
    assert one.stdout.splitlines()[1].split()[-7:] == ["20s", "20s", "20s", "100%", "of", "forks", "manifest"]
    every = batchyard("eta", "--all", "--state", state_at_ten_seconds(tmp_path), "-o", "json")
    assert [item["waitSeconds"]["p50"] for item in json.loads(every.stdout)["items"]] == [20]


def test_eta_of_unknown_object_fails(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("eta", "job/x", "--state", state_at_ten_seconds(tmp_path))
    assert (done.returncode, done.stderr) == (
        1,
        "batchyard: job x not found in namespace default; no job found: check the namespace, and the cluster or file\n",
    )
    assert batchyard("eta", "pod/x", "--state", state_at_ten_seconds(tmp_path)).returncode == 2
    assert batchyard("eta").returncode == 2
    assert batchyard("whatif").returncode == 2


def test_missing_platform_is_reported_with_remedy(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("eta", "--all", "--data-dir", tmp_path / "none")
    assert done.returncode == 1
    assert "start a platform with `batchyard up`" in done.stderr


def test_workload_of_unknown_run_time_is_reported(batchyard: Batchyard, tmp_path: Path) -> None:
    there = document_of(state([*queue(1), workload("a"), workload("b", 5, 1)], 10))
    done = batchyard("whatif", "--state", write_json(tmp_path, there, "s"), "-f", write_json(tmp_path, queue(2)[1]))
    assert done.stderr == "batchyard: run time of team/a is unknown: they keep running in both runs\n"
    assert done.stdout.startswith("1 Workload starts only with the change\n")


def test_unread_kinds_are_reported_with_consequence(batchyard: Batchyard, tmp_path: Path) -> None:
    taken = document_of(replace(state(THERE, 10), unread_kinds=("Node",)))
    done = batchyard("eta", "workload/b", "-n", "team", "--state", write_json(tmp_path, taken))
    assert done.stderr == "batchyard: no permission to list nodes: only quota is considered, no machines\n"
