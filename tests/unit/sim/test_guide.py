"""The guide, played on our examples and on the reference architecture."""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from batchyard.api import scheme
from batchyard.api.meta import is_true, label
from batchyard.base.instant import SECOND, Duration
from batchyard.cli.commands.guide import guide_rows
from batchyard.sim.guide import (
    FIRST_STEP_AT,
    Guide,
    GuideObservation,
    GuideRow,
    examples_folder,
    find_unfinished_jobs,
    guide_steps,
    guide_steps_up_to,
)
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.world import World

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "refarch"
REFARCH = ROOT.parent / "shared" / "refarch"

EXTRA = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: brief
  namespace: implied
  annotations: {batchyard.dev/submit-at: 1h, batchyard.dev/delete-at: 10s}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: old}
"""
WARNING = ":9 ResourceFlavor/old: This version is deprecated. Use v1beta2 instead."

needs_refarch = pytest.mark.skipif(not REFARCH.is_dir(), reason="the reference architecture is not available")
folders = pytest.mark.parametrize(
    "folder", [EXAMPLE, pytest.param(REFARCH, marks=needs_refarch)], ids=["example", "reference"]
)


@cache
def play_guide(folder: Path) -> tuple[Guide, dict[str, GuideObservation]]:
    """The whole guide, and the observation after each step."""
    guide = Guide(folder, guide_steps_up_to())
    return guide, {seen.step.name: seen for seen in guide.play()}


@folders
def test_rows_decided_by_quota_match_guide(folder: Path) -> None:
    _, steps = play_guide(folder)
    assert [(name, seen.queues_with_wrong_rows) for name, seen in steps.items() if seen.queues_with_wrong_rows] == []
    for team in "abcd":
        assert steps["low-priority"].rows[f"cq-team-{team}-lp"] == GuideRow(0, 4)
        assert steps["high-priority"].rows[f"cq-team-{team}-hp"] == GuideRow(2, 2)


@folders
def test_all_work_of_guide_completes(folder: Path) -> None:
    guide, steps = play_guide(folder)
    assert guide.unfinished_jobs() == []
    assert all(is_true(job, "Complete") for job in guide.objects(scheme.JOB))
    assert set(steps["all-completed"].rows.values()) == {GuideRow()}
    assert guide.world.rejected_writes == []


def test_failed_job_is_finished_without_completion_time() -> None:
    running = {"status": {"active": 1}}
    failed, completed = (
        {"status": {"conditions": [{"type": end, "status": "True"}]}} for end in ("Failed", "Complete")
    )
    assert find_unfinished_jobs([running, failed, completed]) == [running]


@folders
def test_guide_platform_has_twelve_queues(folder: Path) -> None:
    _, steps = play_guide(folder)
    assert [len(seen.rows) for seen in steps.values()] == [12, 12, 12, 12, 13, 13]


@folders
def test_cluster_scales_up_and_down_as_in_guide(folder: Path) -> None:
    guide, steps = play_guide(folder)
    counts = {name: sum(seen.pools.values()) for name, seen in steps.items()}
    assert guide.initial_node_counts == {"default-pool": 6, "reserved-np": 4}
    assert (counts["low-priority"], counts["high-priority"], counts["all-completed"]) == (34, 42, 10)
    for name in ("low-priority", "high-priority", "all-completed"):
        assert steps[name].pools == steps[name].step.nodes


@folders
def test_each_compact_job_gets_own_node_pool(folder: Path) -> None:
    _, steps = play_guide(folder)
    nodes = steps["compact-placement"].nodes
    pools = [pool for node in nodes if (pool := label(node, "cloud.google.com/gke-placement-group"))]
    assert sorted(pools) == sorted(2 * [f"team-{team}-0-compact" for team in "abcd"])
    assert steps["compact-placement"].pools["auto-provisioned-compact"] == 8


def test_two_jobs_wait_when_reserved_nodes_are_fewer_than_quota() -> None:
    guide = Guide(EXAMPLE, guide_steps_up_to("low-priority"))
    guide.world.run_until(FIRST_STEP_AT + 30 * SECOND)
    selector = ("resource-type", "reservation")
    pods = [pod for pod in guide.world.objects(scheme.POD) if selector in pod["spec"]["nodeSelector"].items()]
    assert [pod["status"]["phase"] for pod in pods].count("Running") == 4
    reported = {c["message"] for pod in pods for c in pod["status"]["conditions"] if c.get("reason") == "Unschedulable"}
    assert len(reported) == 1
    assert "4 Insufficient nvidia.com/gpu" in reported.pop()


def test_example_runtimes_match_second_step_of_guide() -> None:
    _, steps = play_guide(EXAMPLE)
    seen = steps["high-priority"]
    assert all(row == seen.step.published_row(queue) for queue, row in seen.rows.items())


def test_steps_start_at_spacing_of_guide() -> None:
    assert [(step.name, step.starts_after) for step in guide_steps()] == [
        ("low-priority", "0s"),
        ("high-priority", "4m30s"),
        ("compact-placement", "15m50s"),
        ("jobset", "31m30s"),
        ("dws", "42m40s"),
        ("all-completed", "58m"),
    ]


@pytest.mark.parametrize(("seed", "late"), [(1, 0), (2, 3 * SECOND)], ids=["seed", "delay"])
@folders
def test_guide_rows_do_not_depend_on_seed_or_delay(folder: Path, seed: int, late: Duration) -> None:
    guide, steps = play_guide(folder)
    other = Guide(folder, guide_steps_up_to())
    scenario = other.world.scenario
    moved = [step._replace(at=step.at + late if step.at else 0) for step in scenario.steps]
    other.world = World(replace(scenario, steps=moved), seed=seed)
    assert guide_rows(list(other.play()), other) == guide_rows(list(steps.values()), guide)


def test_step_is_played_with_previous_steps() -> None:
    assert [step.name for step in guide_steps_up_to("compact-placement")] == [
        "low-priority",
        "high-priority",
        "compact-placement",
    ]
    assert guide_steps_up_to() == guide_steps()


def test_teams_submit_jobs_half_second_apart_within_step() -> None:
    guide = Guide(EXAMPLE, guide_steps_up_to("low-priority"))
    applied = [
        ((step.at - FIRST_STEP_AT) / SECOND, obj["metadata"]["name"])
        for step in guide.world.scenario.steps
        for obj in step.apply
        if obj["kind"] == "Job"
    ]
    assert [at for at, _ in applied[:6]] == [0, 0.5, 1, 1.5, 3, 3.5]
    assert [name for _, name in applied[3:5]] == ["team-d-low-priority-job-0", "team-a-low-priority-job-1"]


def test_guide_folder_is_read_like_simulate_folder(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "platform" / "teams" / "extra.yaml").write_text(EXTRA, "utf-8")
    guide = Guide(tmp_path, guide_steps_up_to("low-priority"))
    assert [warning.partition("extra.yaml")[2] for warning in guide.warnings] == [WARNING]
    guide.world.run_until(0)
    names = [obj["metadata"]["name"] for obj in guide.world.objects(scheme.NAMESPACE)]
    assert "implied" in names
    assert len(guide.world.objects(scheme.CONFIG_MAP)) == 1
    guide.world.run_until(10 * SECOND)
    assert list(guide.world.objects(scheme.CONFIG_MAP)) == []


def test_example_folder_is_found() -> None:
    assert examples_folder() == EXAMPLE


def test_folder_of_another_layout_is_rejected_with_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(InvalidScenario) as reported:
        Guide(tmp_path, guide_steps_up_to("low-priority"))
    missing = [str(fault).partition(": ")[0].removeprefix(f"{tmp_path}/") for fault in reported.value.faults]
    assert missing == ["platform/teams", "platform/priorityclass", "platform/kueue", "low_priority/workloads"]


@needs_refarch
def test_step_figures_match_guide() -> None:

    theirs = yaml.safe_load((REFARCH / "guide.yaml").read_text("utf-8"))["steps"]
    assert [(step.name, step.cluster_queues) for step in guide_steps()] == [
        (step["name"], step["clusterQueues"]) for step in theirs
    ]
    assert [step.nodes for step in guide_steps()] == [step.get("nodes") for step in theirs]
    exact = [list(step.exact_rows) or ("every row" if step.every_row_is_exact else None) for step in guide_steps()]
    assert exact == [step.get("exactRows") for step in theirs]


def test_exact_rows_include_absent_rows() -> None:
    for step in guide_steps():
        assert list(GuideObservation(step, 0, [], 0, []).queues_with_exact_rows) == list(step.exact_rows)
