"""`batchyard guide`: its output in each format."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchyard.cli.options import GuideStepName
from batchyard.sim.guide import guide_steps_up_to

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
REFARCH = ROOT.parent / "shared" / "refarch"

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]


def test_demo_completes_all_jobs(batchyard: Batchyard) -> None:
    done = batchyard("guide", "--verbose")
    assert done.returncode == 0
    assert "22 of 22 rows that quota alone decides (exact) agree with the guide" in done.stderr
    assert "66 of 66 Jobs are complete; nodes after each step: 34, 42, 24, 42, 17, 10" in done.stderr
    jobs = done.stdout.partition("NAMESPACE")[2].splitlines()[1:]
    assert len(jobs) == 66
    assert all(" Complete " in line for line in jobs)


def test_story_has_a_paragraph_for_each_step(batchyard: Batchyard) -> None:
    done = batchyard("guide")
    assert done.returncode == 0
    paragraphs = done.stdout.split("\n\n")
    steps = [paragraph for paragraph in paragraphs if paragraph[:1].isdigit()]
    assert [step.splitlines()[0].split()[0] for step in steps] == [f"{number}." for number in range(1, 7)]
    assert all(part in step for step in steps for part in ("   Why it matters: ", "   Shown by: "))
    evidence = [" ".join(step.partition("Shown by: ")[2].split()) for step in steps]
    assert evidence[0] == "16 Workloads have quota; 34 nodes (+24 spot-np)."
    assert evidence[1].startswith("20 Workloads have quota, 9 wait, 2 were preempted; 42 nodes")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.endswith("`batchyard down` stops it\n")
    assert "22 of 22 rows" in done.stderr


def test_story_ends_at_the_selected_step(batchyard: Batchyard) -> None:
    story = batchyard("guide", "--step", "low-priority").stdout
    assert ("1. Idle nodes are lent" in story, "\n2. " in story) == (True, False)


def test_verbose_prints_the_tables_of_wide_output(batchyard: Batchyard) -> None:
    verbose, wide = (batchyard("guide", "--step", "low-priority", *words) for words in (["-v"], ["-o", "wide"]))
    assert verbose.stdout == wide.stdout


def test_each_table_shows_values_of_guide(batchyard: Batchyard) -> None:
    lines = batchyard("guide", "--step", "low-priority", "-v").stdout.splitlines()
    assert lines[1].split("   ")[-3:] == ["GUIDE PENDING", "GUIDE ADMITTED", "AGREES"]
    row = next(line for line in lines if line.startswith("cq-team-b-lp"))
    assert row.split() == ["cq-team-b-lp", "team-a-b", "StrictFIFO", "0", "4", "0", "4", "yes,", "exact"]


def test_json_has_shape_of_guide_figures(batchyard: Batchyard) -> None:
    document = json.loads(batchyard("guide", "--output", "json").stdout)
    names = ["low-priority", "high-priority", "compact-placement", "jobset", "dws", "all-completed"]
    assert [step["name"] for step in document["steps"]] == names
    assert document["steps"][1]["clusterQueues"]["cq-team-a-hp"] == {"pending": 2, "admitted": 2}
    assert document["initialNodes"] == {"default-pool": 6, "reserved-np": 4}
    assert document["steps"][1]["nodes"] == {"default-pool": 6, "ondemand-np": 8, "reserved-np": 4, "spot-np": 24}
    job = document["jobs"][0]
    assert (job["namespace"], job["name"], job["completions"]) == ("team-a", "finetune-gemma-2xa100", "1/1")
    assert sorted(job) == ["ageAtEnd", "completions", "duration", "name", "namespace"]


def test_single_step_shows_state_at_its_time(batchyard: Batchyard) -> None:
    document = json.loads(batchyard("guide", "--step", "high-priority", "--output", "json").stdout)
    assert [step["name"] for step in document["steps"]] == ["high-priority"]
    assert len(document["jobs"]) == 32
    lines = batchyard("guide", "--step", "high-priority", "-v").stdout.splitlines()
    titles = ["# high-priority: queues after 6m17s", "# high-priority: nodes after 10m"]
    assert [line for line in lines if line.startswith("#")] == titles
    assert len([line for line in lines if "-job-" in line]) == 32


def test_unknown_step_is_rejected(batchyard: Batchyard) -> None:
    done = batchyard("guide", "--step", "lunch", "--output", "json")
    assert (done.returncode, done.stdout) == (2, "")
    reported = "".join(done.stderr.split())
    assert "'lunch'isnotoneof" + ",".join(f"'{step}'" for step in GuideStepName) in reported


def test_nodes_are_counted_by_pool_beside_guide_values(batchyard: Batchyard) -> None:
    lines = batchyard("guide", "--step", "low-priority", "-v").stdout.splitlines()
    assert next(line for line in lines if line.startswith("spot-np")).split() == ["spot-np", "24", "24", "yes"]
    assert next(line for line in lines if line.startswith("all ")).split() == ["all", "34", "34", "yes"]
    assert len([line for line in lines if line.startswith("gke-gke-batch-refarch-")]) == 34


def test_selectable_steps_are_played_steps() -> None:
    assert [*GuideStepName, "all-completed"] == [step.name for step in guide_steps_up_to()]


def test_unknown_folder_layout_is_reported(batchyard: Batchyard, tmp_path: Path) -> None:
    (tmp_path / "platform" / "kueue").mkdir(parents=True)
    done = batchyard("guide", "--manifests", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{tmp_path}/platform/teams: the folder does not exist; use a folder like")
    assert f"{tmp_path}/platform/kueue: the folder contains no manifests; use a folder like" in done.stderr


@pytest.mark.parametrize(("name", "problem"), [("none", "the folder does not exist"), ("file", "this is not a folder")])
def test_missing_folder_is_reported_once(batchyard: Batchyard, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    done = batchyard("guide", "--manifests", tmp_path / name)
    assert (done.returncode, done.stdout) == (1, "")
    fault, *rest = done.stderr.splitlines()
    assert fault.startswith(f"{tmp_path}/{name}: {problem}; use a folder like examples/refarch")
    assert rest == ["batchyard: the guide was not run; fix these manifests first"]


@pytest.mark.skipif(not REFARCH.is_dir(), reason="the reference architecture is not beside us")
def test_manifests_of_reference_architecture_agree(batchyard: Batchyard) -> None:
    done = batchyard("guide", "--manifests", REFARCH)
    assert done.returncode == 0
    assert "22 of 22 rows" in done.stderr


def test_simulation_loads_no_platform_server_and_no_dashboard() -> None:
    program = "import sys; import batchyard.cli.commands.guide; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unneeded = ("aiohttp", "batchyard.server", "batchyard.dashboard", "batchyard.provision", "batchyard.lint")
    assert [name for name in done.stdout.split() if name.startswith(unneeded)] == []
