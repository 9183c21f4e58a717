"""`batchyard simulate --trace` as a command."""

import json
from pathlib import Path

import pytest

from batchyard.cli.output import fraction_done
from batchyard.cli.simulation_output import REMARKS_SHOWN_MAX
from batchyard.sim.simulate import SimulationOptions
from batchyard.sim.trace_report import TraceRun
from batchyard.sim.traces import read_trace
from unit.cli.conftest import Batchyard
from unit.sim.trace_make import PODS, write_trace


def test_trace_report_is_printed_as_tables(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", "--trace", write_trace(tmp_path))
    assert done.returncode == 0
    titles = [line.removeprefix("# ") for line in done.stdout.splitlines() if line.startswith("# ")]
    assert titles == [
        "pods",
        "waits of pods scheduled in both, from creation to binding",
        "reasons of pods that were never scheduled",
        "requested share of the allocatable resources",
        "free GPU share that a typical pod cannot use",
        "over time",
    ]
    assert "longer here, by" in done.stdout
    assert "1      node(s) didn't match Pod's node affinity/selector" in done.stdout


def test_trace_report_is_printed_as_json_and_yaml(batchyard: Batchyard, tmp_path: Path) -> None:
    write_trace(tmp_path)
    report = json.loads(batchyard("simulate", "--trace", tmp_path, "-o", "json").stdout)
    assert report["pods"]["placedHere"] == 4
    reported = ["duration", "fragmentation", "load", "pods", "points", "trace", "unplaced", "usage", "waits"]
    assert sorted(report) == reported
    assert "placedHere: 4" in batchyard("simulate", "--trace", tmp_path, "-o", "yaml").stdout


def test_load_option_applies_to_traces_only(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", "--trace", write_trace(tmp_path), "--load", "10")
    assert done.stdout.startswith("# pods, 10 times the arrival rate\n")
    assert "--load is for traces" in batchyard("simulate", "--load", "10", tmp_path).stderr
    assert "'0' is not a valid load" in batchyard("simulate", "--trace", tmp_path, "--load", "0").stderr


def test_manifests_run_on_nodes_of_trace(batchyard: Batchyard, tmp_path: Path) -> None:
    write_trace(tmp_path)
    done = batchyard("simulate", "examples/first-steps", "--trace", tmp_path)
    assert done.returncode == 0
    assert "train-a" in done.stdout
    assert "t4 " not in done.stdout
    objects = json.loads(batchyard("simulate", "examples/first-steps", "--trace", tmp_path, "-o", "json").stdout)
    assert len(objects["objects"]["Job.batch"]) == 3


@pytest.mark.parametrize("form", ["table", "json"])
def test_event_log_replaces_tables_on_stdout(batchyard: Batchyard, tmp_path: Path, form: str) -> None:
    arguments = ("-o", "json") if form == "json" else ()
    done = batchyard("simulate", "--trace", write_trace(tmp_path), "--events", "-", *arguments)
    assert done.returncode == (2 if arguments else 0)
    assert "# pods" not in done.stdout


def test_invalid_trace_exits_with_1(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", "--trace", write_trace(tmp_path, PODS[:1] * (REMARKS_SHOWN_MAX + 3)))
    assert (done.returncode, done.stdout) == (1, "")
    *_, more, last = done.stderr.splitlines()
    assert (more, last) == ("and 2 more", f"batchyard: {REMARKS_SHOWN_MAX + 2} faults; nothing was run")


def test_progress_follows_time_without_quota(tmp_path: Path) -> None:
    simulation = TraceRun(read_trace(write_trace(tmp_path)), SimulationOptions()).simulation
    seen = [fraction_done(simulation)]
    while simulation.advance(3):
        seen.append(fraction_done(simulation))
    assert seen == sorted(seen)
    assert (seen[0], max(seen)) == (0, 0.99)


def test_fill_prints_allocation_by_requested_gpus(batchyard: Batchyard, tmp_path: Path) -> None:
    write_trace(tmp_path)
    done = batchyard("simulate", "--trace", tmp_path, "--fill", "100", "--gpu-placement", "fgd", "--seed", "3")
    title, header, *rows = done.stdout.splitlines()
    assert title.endswith("on 2 nodes with 3 GPUs, fgd, seed 3")
    assert header.split() == ["REQUESTED", "ALLOCATED", "FRAGMENTED", "UNPLACED", "PODS"]
    assert rows[0].split()[:2] == ["0.000%", "0.000%"]
    report = json.loads(batchyard("simulate", "--trace", tmp_path, "--fill", "100", "-o", "json").stdout)
    assert (report["policy"], report["gpus"], report["points"][0]["unplacedPods"]) == ("", 3, 0)


def test_replay_accepts_placement_policy(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", "--trace", write_trace(tmp_path), "--gpu-placement", "best-fit", "-o", "json")
    assert json.loads(done.stdout)["pods"]["placedHere"] == 4


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--fill", "100", "examples/first-steps"), "--fill is for traces: add --trace DIR, or remove --fill"),
        (("--gpu-placement", "fgd", "examples/first-steps"), "add --trace DIR, or remove --gpu-placement"),
        (("--trace", "T", "--fill", "100", "examples/first-steps"), "remove PATH"),
        (("--trace", "T", "--fill", "100", "--load", "2"), "remove --load"),
    ],
)
def test_fill_options_need_trace_alone(batchyard: Batchyard, arguments: tuple[str, ...], remedy: str) -> None:
    done = batchyard("simulate", *arguments)
    assert done.returncode == 2
    assert remedy in " ".join(done.stderr.split())


def test_fill_of_trace_without_gpus_fails(batchyard: Batchyard, tmp_path: Path) -> None:
    done = batchyard("simulate", "--trace", write_trace(tmp_path, PODS[3:4]), "--fill", "100")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no pods that request GPUs" in done.stderr
