"""The file of a snapshot is taken by all commands that look ahead, back, or at a configuration."""

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
    """What the command prints, in this process."""

    def run(*arguments: object) -> str:
        with suppress(SystemExit):
            app(list(map(str, arguments)), standalone_mode=False)
        return capsys.readouterr().out

    return run


def written(folder: Path, found: State, name: str = "state.yaml") -> Path:
    """A snapshot as `batchyard snapshot` writes it."""
    document = document_of(found)
    items = ",\n".join(json.dumps(item) for item in document["items"])
    head = '{"apiVersion":"v1","kind":"List","items":['
    path = folder / name
    path.write_text(f'{head}\n{items}\n],"metadata":{json.dumps(document["metadata"])}}}\n', "utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One runs for twenty seconds more, one waits, one has ended."""
    return written(tmp_path, state([*queue(1), workload("z", 5), workload("a", 30, 1), workload("b", 30, 2)], 15))


def test_why_tells_of_a_state_as_it_is(batchyard: Batchyard, file: Path) -> None:
    reported = json.loads(batchyard("why", "workload/b", "-f", file, "-o", "json"))
    assert reported["binding"]["limit"] == "nominal"
    assert "team/a" in json.dumps(reported)


def test_why_may_be_asked_at_a_later_moment(batchyard: Batchyard, file: Path) -> None:
    assert json.loads(batchyard("why", "workload/b", "-f", file, "--at", "25s", "-o", "json"))["state"] == "Running"


def test_eta_takes_it_by_either_name(batchyard: Batchyard, file: Path) -> None:
    reported = [
        batchyard("eta", "workload/b", "-n", "team", option, file, "-o", "json") for option in ("-f", "--state")
    ]
    assert reported[0] == reported[1]
    assert json.loads(reported[0])["waitSeconds"]["p50"] == 20


def test_simulate_goes_on_from_it_with_what_comes_besides(batchyard: Batchyard, file: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(json.dumps(workload("c", 10, 1)), "utf-8")
    batchyard("simulate", file, more, "--events", tmp_path / "log")
    events = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    starts = [(event["workload"], event["time"]) for event in events if event["event"] == "QuotaReserved"]
    assert starts == [("team/b", 20), ("team/c", 50)]


def test_the_report_of_it_shows_what_was_there(batchyard: Batchyard, file: Path, tmp_path: Path) -> None:
    batchyard("simulate", file, "--report", tmp_path / "report.html")
    assert '"z"' in (tmp_path / "report.html").read_text("utf-8")


def test_lint_finds_what_is_wrong_in_its_place(batchyard: Batchyard, tmp_path: Path) -> None:
    path = written(tmp_path, state([*queue(1), workload("a", 5), workload("b", 30, cpus=3)], 3))
    (found,) = json.loads(batchyard("lint", path, "-o", "json"))["findings"]
    assert (found["rule"], found["name"]) == ("exceeds-quota", "b")
    assert '"b"' in path.read_text("utf-8").splitlines()[found["line"] - 1]


def test_compare_takes_the_configuration_of_one_and_the_work_of_another(
    batchyard: Batchyard, file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "more.yaml"
    other.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": queue(2)}), "utf-8")
    reported: dict[str, Any] = json.loads(batchyard("compare", file, other, "--trace", file, "-o", "json"))
    (team,) = reported["figures"]["team"]
    assert (team["a"]["maxWait"], team["b"]["maxWait"]) == (33, 3)
