"""`batchyard platform`: init, plan, render and guide from one file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchyard.cli.app import app
from batchyard.package_data import find_folder, read_folder

pytestmark = pytest.mark.slow

REFARCH = read_folder("examples/platforms", ".yaml")["refarch.yaml"]


def run(*arguments: str, fails: bool = False) -> tuple[str, str]:
    """Run a command; return its stdout and stderr."""
    done = CliRunner().invoke(app, ["platform", *arguments])
    assert (done.exit_code != 0) is fails, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "platform.yaml"
    path.write_text(REFARCH)
    return path


@pytest.mark.parametrize("example", ["refarch", "multislice", "dws", "hotswap"])
def test_initial_file_can_be_planned_and_rendered(tmp_path: Path, example: str) -> None:
    file = str(tmp_path / "p.yaml")
    run("init", "--example", example, file)
    assert "KIND" in run("plan", file)[0]
    run("render", file, "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "manifests" / "kustomization.yaml").is_file()


def test_init_keeps_existing_file(file: Path) -> None:
    file.write_text("mine")
    assert "already exists" in run("init", str(file), fails=True)[1]
    assert file.read_text() == "mine"


def test_plan_reports_costs_quotas_and_findings(file: Path) -> None:
    document = json.loads(run("plan", str(file), "-o", "json")[0])
    assert len(document["objects"]["ClusterQueue"]) == 12
    assert document["dollarsAnHour"] == {"idle": 5.51826, "full": 143.02645}
    assert {
        "region": "us-central1",
        "metric": "NVIDIA_L4_GPUS",
        "needed": 56,
        "usedBy": ["reserved-np", "ondemand-np"],
    } in document["quotas"]
    rules = [finding["rule"] for finding in document["findings"]]
    assert rules == ["quota-above-capacity", "strict-fifo-blocking", "strict-fifo-blocking"]


def test_finding_is_reported_once_per_class_with_its_line(file: Path) -> None:
    printed = run("plan", str(file))[0]
    line = 1 + REFARCH.splitlines().index("    - name: lp") + 1
    result = (
        f"{file}:{line}: note strict-fifo-blocking: ClusterQueue/cq-team-a-lp, ClusterQueue/cq-team-b-lp and 2 more"
    )
    assert result in printed
    assert "ClusterQueue/cq-team-c-lp, ClusterQueue/cq-team-d-lp" in run("plan", str(file), "-o", "wide")[0]


def test_invalid_platform_file_is_reported(file: Path) -> None:
    file.write_text(REFARCH.replace("nodeCount: 4", "nodeCout: 4"))
    reported = run("plan", str(file), fails=True)[1]
    assert f"{file}:33: spec.cluster.nodePools[1].nodeCout: unknown field; did you mean nodeCount?" in reported


def test_unreadable_platform_file_is_reported(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in run("plan", str(tmp_path / "none.yaml"), fails=True)[1]
    (tmp_path / "raw.yaml").write_bytes(b"\xff\xfe")
    assert "byte 0 is not valid UTF-8" in run("plan", str(tmp_path / "raw.yaml"), fails=True)[1]


def test_render_requires_project(file: Path, tmp_path: Path) -> None:
    file.write_text(REFARCH.replace("    project: my-project\n", ""))
    assert "--project" in run("render", str(file), "--out", str(tmp_path / "out"), fails=True)[1]
    assert not (tmp_path / "out").exists()
    run("render", str(file), "--out", str(tmp_path / "out"), "--project", "other-project")
    team = (tmp_path / "out" / "manifests" / "20-teams" / "team-a.yaml").read_text()
    assert "wi-team-a@other-project.iam.gserviceaccount.com" in team


def test_render_keeps_changed_file_without_overwrite(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("render", str(file), "--out", str(out))
    changed = out / "manifests" / "60-queues.yaml"
    changed.write_text("mine")
    assert "manifests/60-queues.yaml" in run("render", str(file), "--out", str(out), fails=True)[1]
    assert changed.read_text() == "mine"
    run("render", str(file), "--out", str(out), "--overwrite")
    assert changed.read_text() != "mine"


def test_guide_on_rendered_platform_matches_reference_architecture() -> None:
    folder = find_folder("examples/platforms")
    hand = CliRunner().invoke(app, ["guide", "-o", "json"])
    own = CliRunner().invoke(app, ["guide", "--platform", f"{folder}/refarch.yaml", "-o", "json"])
    assert (own.exit_code, own.stdout) == (0, hand.stdout)
    assert own.stderr == hand.stderr
