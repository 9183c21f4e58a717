"""All commands about forecasts, explanations and configurations accept the file of a snapshot."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batchyard.cli.app import app
from batchyard.sim.state import State
from batchyard.sim.state_document import document_of
from unit.sim.forks_make import queue, state, workload

Batchyard = Callable[..., str]


@pytest.fixture
def batchyard(capsys: pytest.CaptureFixture[str]) -> Batchyard:
    """Return a function that runs the command in this process and returns its output."""

    def run(*arguments: object) -> str:
        with suppress(SystemExit):
            app(list(map(str, arguments)), standalone_mode=False)
        return capsys.readouterr().out

    return run


def write_snapshot(folder: Path, found: State, name: str = "state.yaml") -> Path:
    """Write a snapshot as `batchyard snapshot` does."""
    document = document_of(found)
    items = ",\n".join(json.dumps(item) for item in document["items"])
    head = '{"apiVersion":"v1","kind":"List","items":['
    path = folder / name
    path.write_text(f'{head}\n{items}\n],"metadata":{json.dumps(document["metadata"])}}}\n', "utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A snapshot with a Workload that runs for 20 s more, a pending one and a finished one."""
    return write_snapshot(
        tmp_path, state([*queue(1), workload("z", 5), workload("a", 30, 1), workload("b", 30, 2)], 15)
    )


def test_state_without_flavors_is_called_incomplete(
    capsys: pytest.CaptureFixture[str], batchyard: Batchyard, tmp_path: Path
) -> None:
    """The objects that `simulate -o json` prints contain no flavors."""
    (tmp_path / "run.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": queue(1)}), "utf-8")
    output = tmp_path / "output.json"
    output.write_text(batchyard("simulate", tmp_path / "run.yaml", "-o", "json"), "utf-8")
    with suppress(SystemExit):
        app(["eta", "--all", "-f", str(output)], standalone_mode=False)
    assert f"{output}: the state is incomplete: ResourceFlavor f not found" in capsys.readouterr().err


def test_why_explains_workload_of_snapshot(batchyard: Batchyard, file: Path) -> None:
    reported = json.loads(batchyard("why", "workload/b", "-f", file, "-o", "json"))
    assert reported["binding"]["limit"] == "nominal"
    assert "team/a" in json.dumps(reported)


def test_why_explains_workload_at_later_time(batchyard: Batchyard, file: Path) -> None:
    assert json.loads(batchyard("why", "workload/b", "-f", file, "--at", "25s", "-o", "json"))["state"] == "Running"


def test_eta_accepts_state_under_both_options(batchyard: Batchyard, file: Path) -> None:
    reported = [
        batchyard("eta", "workload/b", "-n", "team", option, file, "-o", "json") for option in ("-f", "--state")
    ]
    assert reported[0] == reported[1]
    assert json.loads(reported[0])["waitSeconds"]["p50"] == 20


def test_simulate_continues_snapshot_with_added_manifests(batchyard: Batchyard, file: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(json.dumps(workload("c", 10, 1)), "utf-8")
    batchyard("simulate", file, more, "--events", tmp_path / "log")
    events = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    starts = [(event["workload"], event["time"]) for event in events if event["event"] == "QuotaReserved"]
    assert starts == [("team/b", 20), ("team/c", 50)]


def test_report_of_snapshot_contains_finished_workload(batchyard: Batchyard, file: Path, tmp_path: Path) -> None:
    batchyard("simulate", file, "--report", tmp_path / "report.html")
    assert '"z"' in (tmp_path / "report.html").read_text("utf-8")


def test_lint_reports_line_of_finding_in_snapshot(batchyard: Batchyard, tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, state([*queue(1), workload("a", 5), workload("b", 30, cpus=3)], 3))
    (result,) = json.loads(batchyard("lint", path, "-o", "json"))["findings"]
    assert (result["rule"], result["name"]) == ("exceeds-quota", "b")
    assert '"b"' in path.read_text("utf-8").splitlines()[result["line"] - 1]


def test_compare_accepts_snapshots_as_configuration_and_load(batchyard: Batchyard, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "more.yaml"
    other.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": queue(2)}), "utf-8")
    reported: dict[str, Any] = json.loads(batchyard("compare", file, other, "--trace", file, "-o", "json"))
    (team,) = reported["figures"]["team"]
    assert (team["a"]["maxWait"], team["b"]["maxWait"]) == (33, 3)
