"""Commands read what `kubectl get --output yaml` prints: lists of stored objects, with status, uids and times."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND
from batchyard.cli.app import app
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.state_document import document_of
from batchyard.sim.world import World
from unit.sim.forks_make import queue


class Output(NamedTuple):
    """The output of a command."""

    out: str
    err: str


Batchyard = Callable[..., Output]
#: The latest timestamp in the dump: `first` has ended after 5 s, and `second` has started.
MOMENT = "2026-01-01T00:00:06Z"


@pytest.fixture
def batchyard(capsys: pytest.CaptureFixture[str]) -> Batchyard:
    """Return a function that runs the command in this process and returns its output."""

    def run(*arguments: object) -> Output:
        with suppress(SystemExit):
            app(list(map(str, arguments)), standalone_mode=False)
        return Output(*capsys.readouterr())

    return run


def job(name: str, runs: int, at: int = 0, **requests: str) -> dict[str, Any]:
    """A Job of the queue `lq` in namespace `team` that is created after `at` seconds and runs for `runs` seconds."""
    container = {"name": "c", "image": "i", "resources": {"requests": requests or {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    annotations = {"batchyard.dev/submit-at": f"{at}s", "batchyard.dev/runtime": f"{runs}s"}
    metadata = {"name": name, "namespace": "team", "labels": labels, "annotations": annotations}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def stored_objects(*jobs: Obj, seconds: int = 20) -> list[Obj]:
    """The objects of a platform with a quota of 1 cpu after this many seconds."""
    world = World(scenario_of([*queue(1), *jobs]))
    world.run_until(seconds * SECOND)
    items: list[Obj] = document_of(world.state())["items"]
    return items


def as_kubectl(objects: list[Obj]) -> str:
    """The objects as `kubectl get --output yaml` prints them."""
    return yaml.safe_dump({"apiVersion": "v1", "items": objects, "kind": "List", "metadata": {"resourceVersion": ""}})


JOBS = (job("first", 5), job("second", 600, 1), job("third", 60, 2))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of a platform with an ended Job, a running one and a pending one."""
    path = tmp_path / "dump.yaml"
    path.write_text(as_kubectl(stored_objects(*JOBS)), "utf-8")
    return path


def test_why_answers_for_moment_of_dump_and_states_it(batchyard: Batchyard, dump: Path) -> None:
    done = batchyard("why", "job/third", "-n", "team", "-f", dump, "-o", "json")
    answer = json.loads(done.out)
    assert (answer["state"], answer["binding"]["limit"]) == ("Pending", "nominal")
    assert f"{dump}: state as of {MOMENT}, the latest timestamp in it" in done.err


def test_why_with_a_change_answers_for_moment_of_dump(batchyard: Batchyard, dump: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(json.dumps(job("fourth", 60)), "utf-8")
    answers = [
        json.loads(batchyard("why", "job/fourth", "-n", "team", "-f", dump, "-f", more, *at, "-o", "json").out)["state"]
        for at in ((), ("--at", "2h"))
    ]
    assert answers == ["Pending", "Finished"]


def test_simulation_of_dump_starts_at_its_moment(batchyard: Batchyard, dump: Path, tmp_path: Path) -> None:
    done = batchyard("simulate", dump, "--until", "60s", "--events", tmp_path / "log")
    assert "rejected" not in done.err
    assert "<invalid>" not in done.out
    rows = [line.split() for line in done.out.splitlines() if line.startswith("team ")]
    assert {row[1]: row[-1] for row in rows if "/1" in row[3]} == {"first": "66s", "second": "65s", "third": "64s"}


def test_numbers_of_a_continued_simulation_agree(batchyard: Batchyard, dump: Path) -> None:
    done = batchyard("simulate", dump, "--until", "60s")
    assert "0 of 2 Workloads finished within 1m, 1 still with quota, 1 pending." in done.out
    assert "longest 1m4s" in done.out
    assert "Workloads: 0 finished, 1 finished before, 1 admitted, 1 pending" in done.err


def test_dump_in_several_files_is_one_state(batchyard: Batchyard, tmp_path: Path) -> None:
    objects = stored_objects(*JOBS)
    for kind in {obj["kind"] for obj in objects}:
        text = json.dumps(
            {"kind": "List", "apiVersion": "v1", "items": [obj for obj in objects if obj["kind"] == kind]}
        )
        (tmp_path / f"{kind}.json").write_text(text, "utf-8")
    answer = json.loads(batchyard("why", "job/third", "-n", "team", "-f", tmp_path, "-o", "json").out)
    assert answer["state"] == "Pending"


def test_eta_of_dump_counts_from_its_moment(batchyard: Batchyard, dump: Path) -> None:
    answer = json.loads(batchyard("eta", "job/third", "-n", "team", "-f", dump, "-o", "json").out)
    assert set(answer["waitSeconds"].values()) == {599}


def test_lint_of_dump_reports_fault_once_where_the_job_starts(batchyard: Batchyard, tmp_path: Path) -> None:
    path = tmp_path / "dump.yaml"
    path.write_text(as_kubectl(stored_objects(*JOBS, job("large", 60, cpu="3"))), "utf-8")
    (finding,) = json.loads(batchyard("lint", path, "-o", "json").out)["findings"]
    assert (finding["rule"], finding["kind"], finding["name"]) == ("exceeds-quota", "Job", "large")
    lines = path.read_text("utf-8").splitlines()[finding["line"] - 1 :]
    assert next(line.split()[1] for line in lines if line.strip().startswith("name: l")) == "large"


def test_lint_of_exported_files_reports_fault_once(batchyard: Batchyard, tmp_path: Path) -> None:
    for number, obj in enumerate(stored_objects(job("large", 60, cpu="3"))):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(obj), "utf-8")
    (finding,) = json.loads(batchyard("lint", tmp_path, "-o", "json").out)["findings"]
    assert (finding["rule"], finding["kind"], finding["name"]) == ("exceeds-quota", "Job", "large")


def test_exported_files_run_as_their_manifests(batchyard: Batchyard, tmp_path: Path) -> None:
    for number, obj in enumerate(stored_objects(*JOBS)):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(obj), "utf-8")
    done = batchyard("simulate", tmp_path)
    assert "rejected" not in done.err
    assert "All 3 Workloads finished, the last after 11m5s." in done.out


def test_comparison_runs_the_jobs_of_a_dump_again(batchyard: Batchyard, dump: Path) -> None:
    figures = json.loads(batchyard("compare", dump, dump, "--trace", dump, "-o", "json").out)["figures"]
    (team,) = figures["team"]
    assert team["a"]["maxWait"] == 603


def test_whatif_error_names_state_option_for_dump(batchyard: Batchyard, dump: Path) -> None:
    done = batchyard("whatif", dump, "-f", dump)
    assert done.err == f"batchyard: {dump} is the state of a cluster: use --state for it\n"


def test_namespaces_of_a_dump_without_namespaces_exist(batchyard: Batchyard, tmp_path: Path) -> None:
    path = tmp_path / "dump.yaml"
    path.write_text(as_kubectl([obj for obj in stored_objects(*JOBS) if obj["kind"] != "Namespace"]), "utf-8")
    assert json.loads(batchyard("lint", path, "-o", "json").out)["findings"] == []
    assert "Both Workloads finished" in batchyard("simulate", path).out, "no Namespace is reported as missing"
