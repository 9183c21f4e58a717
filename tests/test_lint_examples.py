"""What is found in the examples, and in the manifests of the documents that batchyard grew from."""

from collections import Counter
from pathlib import Path

import pytest

from batchyard.api.manifests import read_manifests
from batchyard.apiserver.patch import merged
from batchyard.lint.findings import Severity
from batchyard.lint.registry import LintReport, lint
from batchyard.sim.scenario import read_sources

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"

#: What examples show on purpose: the reference architecture promises more GPUs than it has reserved.
ON_PURPOSE = {"refarch": {"quota-above-capacity": 1}}
#: Situations to ask why about, each a platform of its own: in some nothing is wrong, one only has to wait.
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


def counted(report: LintReport, *, notes: bool = False) -> dict[str, int]:
    """How often each rule had something to say; notes only where they are wanted."""
    return dict(Counter(f.rule for f in report.findings if notes or f.severity is not Severity.NOTE))


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_wrong_with_an_example_but_what_it_shows_on_purpose(folder: str) -> None:
    assert counted(lint([str(EXAMPLES / folder)])) == ON_PURPOSE.get(folder, {})


@pytest.mark.parametrize("path", sorted((EXAMPLES / "why").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_wrong_with_a_situation_is_told_beforehand(path: Path) -> None:
    assert counted(lint([str(path)])) == SITUATIONS.get(path.stem, {})


def test_the_reserved_gpus_of_the_reference_architecture_are_promised_twice() -> None:
    finding = next(f for f in lint([str(EXAMPLES / "refarch")]).findings if f.rule == "quota-above-capacity")
    assert "may use 16 nvidia.com/gpu of flavor gpu-l4-reserved" in finding.problem
    assert "its machines have 8 (reserved-np: 4 nodes)" in finding.problem


def test_with_its_patches_nothing_is_wrong_with_the_reference_architecture() -> None:
    objects = [manifest.obj for manifest in read_manifests(read_sources([EXAMPLES / "refarch"], [])).objects]
    patches = [patch for finding in lint(objects).findings for patch in finding.patches]
    for patch in patches:
        whose = (patch["kind"], patch["metadata"]["name"])
        objects = [merged(o, patch) if (o["kind"], o["metadata"].get("name")) == whose else o for o in objects]
    assert len(patches) == 4
    assert counted(lint(objects)) == {}


SEEDS = [
    pytest.param(
        ["refarch"],
        "refarch",
        {"quota-above-capacity": 1, "deprecated-version": 34, "not-a-manifest": 2},
        id="refarch",
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
def test_every_trap_of_the_seeds_is_found(folders: list[str], cluster: str, expected: dict[str, int]) -> None:
    paths = [str(SHARED / folder) for folder in folders] + [str(EXAMPLES / cluster / "cluster.yaml")]
    assert counted(lint(paths), notes=True) == expected


@needs_shared
def test_jobs_of_a_queue_that_covers_only_gpus_are_told_what_it_leaves_out(tmp_path: Path) -> None:
    """The queue is that of the reference architecture, in the namespace of the Jobs."""
    queue = tmp_path / "queue.yaml"
    text = (SHARED / "refarch" / "dws" / "kueue-dws-config.yaml").read_text()
    queue.write_text(text.replace('namespace: "team-a"', "namespace: default"))
    findings = lint([str(queue), str(SHARED / "dws")]).findings
    reported = {finding.problem for finding in findings if finding.rule == "uncovered-resource"}
    assert len(reported) == 1
    assert "covers only nvidia.com/gpu: it is never admitted" in reported.pop()


@needs_shared
def test_the_mended_manifests_of_the_swap_have_nothing_wrong() -> None:
    paths = [path for path in sorted((SHARED / "hotswap").glob("*.yaml")) if path.name != "kueue-as-printed.yaml"]
    report = lint([*map(str, paths), str(EXAMPLES / "hotswap" / "cluster.yaml")])
    assert counted(report) == {}
