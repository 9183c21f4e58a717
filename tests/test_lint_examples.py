"""Lint findings in the examples and in the manifests of the source documents."""

from collections import Counter
from pathlib import Path

import pytest

from batchyard.api.manifests import read_manifests
from batchyard.apiserver.patch import apply_merge_patch
from batchyard.lint.findings import Severity
from batchyard.lint.registry import LintReport, lint
from batchyard.sim.scenario import read_sources

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"

#: Intended findings: the quota of the reference architecture exceeds its reserved GPUs.
ON_PURPOSE = {"refarch": {"quota-above-capacity": 1}}
#: The situations of examples/why, each with its own platform: in some, lint finds no problem.
SITUATIONS = {
    "affinity": {"no-matching-flavor": 1},
    "head-of-line": {"strict-fifo-blocking": 1},
    "maximum": {"exceeds-quota": 1},
    "quota-above-hardware": {"quota-above-capacity": 2},
    "stock-out": {"quota-above-capacity": 1},
    "taint": {"untolerated-flavor": 1, "no-matching-flavor": 1},
}
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.name != "why" and any(path.glob("*.yaml")))

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the manifests are not beside us")


def finding_counts(report: LintReport, *, notes: bool = False) -> dict[str, int]:
    """The number of findings of each rule; notes on request only."""
    return dict(Counter(f.rule for f in report.findings if notes or f.severity is not Severity.NOTE))


@pytest.mark.parametrize("folder", FOLDERS)
def test_example_has_only_intended_findings(folder: str) -> None:
    assert finding_counts(lint([str(EXAMPLES / folder)])) == ON_PURPOSE.get(folder, {})


@pytest.mark.parametrize("path", sorted((EXAMPLES / "why").glob("*.yaml")), ids=lambda path: path.stem)
def test_lint_reports_problem_of_situation(path: Path) -> None:
    assert finding_counts(lint([str(path)])) == SITUATIONS.get(path.stem, {})


def test_lint_reports_reserved_gpus_above_capacity() -> None:
    finding = next(f for f in lint([str(EXAMPLES / "refarch")]).findings if f.rule == "quota-above-capacity")
    assert "may use 16 nvidia.com/gpu of flavor gpu-l4-reserved" in finding.problem
    assert "its machines have 8 (reserved-np: 4 nodes)" in finding.problem


def test_patched_reference_architecture_has_no_findings() -> None:
    objects = [manifest.obj for manifest in read_manifests(read_sources([EXAMPLES / "refarch"], [])).objects]
    patches = [patch for finding in lint(objects).findings for patch in finding.patches]
    for patch in patches:
        whose = (patch["kind"], patch["metadata"]["name"])
        objects = [
            apply_merge_patch(o, patch) if (o["kind"], o["metadata"].get("name")) == whose else o for o in objects
        ]
    assert len(patches) == 4
    assert finding_counts(lint(objects)) == {}


SEEDS = [
    pytest.param(
        ["refarch"], "refarch", {"quota-above-capacity": 1, "deprecated-version": 34, "not-a-manifest": 2}, id="refarch"
    ),
    pytest.param(
        ["multislice"],
        "multislice",
        {"deprecated-version": 6, "defined-twice": 7, "reclaim-without-cohort": 1},
        id="multislice",
    ),
    pytest.param(
        ["hotswap"],
        "hotswap",
        {
            "unknown-field": 1,
            "missing-field": 1,
            "null-namespace-selector": 1,
            "priority-without-preemption": 1,
            "deprecated-version": 4,
            "defined-twice": 1,
        },
        id="hotswap",
    ),
    pytest.param(["dws"], "dws", {"unknown-local-queue": 2}, id="dws"),
]


@needs_shared
@pytest.mark.parametrize(("folders", "cluster", "expected"), SEEDS)
def test_lint_finds_every_problem_of_seed_manifests(folders: list[str], cluster: str, expected: dict[str, int]) -> None:
    paths = [str(SHARED / folder) for folder in folders] + [str(EXAMPLES / cluster / "cluster.yaml")]
    assert finding_counts(lint(paths), notes=True) == expected


@needs_shared
def test_lint_reports_resources_that_queue_does_not_cover(tmp_path: Path) -> None:
    """The queue is that of the reference architecture, in the namespace of the Jobs."""
    queue = tmp_path / "queue.yaml"
    text = (SHARED / "refarch" / "dws" / "kueue-dws-config.yaml").read_text()
    queue.write_text(text.replace('namespace: "team-a"', "namespace: default"))
    findings = lint([str(queue), str(SHARED / "dws")]).findings
    reported = {finding.problem for finding in findings if finding.rule == "uncovered-resource"}
    assert len(reported) == 1
    assert "covers only nvidia.com/gpu: it is never admitted" in reported.pop()


@needs_shared
def test_corrected_hotswap_manifests_have_no_findings() -> None:
    paths = [path for path in sorted((SHARED / "hotswap").glob("*.yaml")) if path.name != "kueue-as-printed.yaml"]
    report = lint([*map(str, paths), str(EXAMPLES / "hotswap" / "cluster.yaml")])
    assert finding_counts(report) == {}
