"""Each rule reports its bad case; valid and fixed objects have no findings."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard import simulate
from batchyard.api import well_known
from batchyard.apiserver.patch import apply_merge_patch
from batchyard.lint.findings import RULES_DOCUMENT, Severity
from batchyard.lint.registry import RULES, RULES_BY_NAME, lint

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLATFORMS = yaml.safe_load((HERE / "lint_platforms.yaml").read_text())
CASES = yaml.safe_load((HERE / "lint_cases.yaml").read_text())
#: Rules about files rather than objects: a missing file, invalid YAML.
FILE_RULES = ("unreadable-file", "invalid-yaml")

Obj = dict[str, Any]


def with_changes(objects: list[Obj], changes: list[Obj]) -> list[Obj]:
    """The objects with the changes merged into them, or added to them."""
    done = list(objects)
    for change in changes:
        again = {field: value for field, value in change.items() if field != "again"}
        at = next((i for i, obj in enumerate(done) if identity(obj) == identity(change) and again == change), None)
        if at is None:
            done.append(again)
        else:
            done[at] = apply_merge_patch(done[at], change)
    return done


def with_fixes(objects: list[Obj], rule: str) -> list[Obj]:
    """The objects once the patches of the rule's findings are applied."""
    patches = [dict(patch) for finding in lint(objects).findings if finding.rule == rule for patch in finding.patches]
    if rule in {"unknown-field", "missing-field", "invalid-value", "unknown-kind"}:  # each is the whole object
        objects = [obj for obj in objects if identity(obj) not in [identity(patch) for patch in patches]]
    return with_changes(objects, patches)


def identity(obj: Obj) -> tuple[str, str]:
    return obj.get("kind", ""), obj.get("metadata", {}).get("name", "")


def finding_rules(objects: list[Obj]) -> list[str]:
    return sorted(finding.rule for finding in lint(objects).findings)


def case_id(case: Obj) -> str:
    return str(case["rule"])


@pytest.mark.parametrize("name", PLATFORMS)
def test_valid_platform_has_no_findings(name: str) -> None:
    assert lint(PLATFORMS[name]).findings == []


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_lint_reports_expected_findings_only_in_bad_case(case: Obj) -> None:
    objects = with_changes(PLATFORMS[case.get("platform", "plain")], case["bad"])
    report = lint(objects)
    assert sorted(f.rule for f in report.findings) == sorted([case["rule"], *case.get("also", ())])
    first = next(finding for finding in report.findings if finding.rule == case["rule"])
    assert first.severity == case.get("severity", RULES_BY_NAME[case["rule"]].severity)
    assert first.problem
    assert first.fix
    assert case["rule"] not in finding_rules(with_fixes(objects, case["rule"])) or not first.patches


@pytest.mark.parametrize("case", [case for case in CASES if "good" in case], ids=case_id)
def test_good_case_has_no_findings(case: Obj) -> None:
    assert lint(with_changes(PLATFORMS[case.get("platform", "plain")], case["good"])).findings == []


def test_every_rule_has_case() -> None:
    assert {case["rule"] for case in CASES} == {rule.name for rule in RULES} - set(FILE_RULES)


def test_findings_contain_document_and_line(tmp_path: Path) -> None:
    file = tmp_path / "queue.yaml"
    lines = ["# A queue.", "---", "apiVersion: v1", "kind: Namespace", "metadata:", "  name: team", "---"]
    lines += ["apiVersion: kueue.x-k8s.io/v1beta2", "kind: ClusterQueue", "metadata:", "  name: cq", "spec:"]
    lines += ["  queueingStrategy: StrictFIFO", "  preemption:", "    reclaimOutOfCohort: {}"]
    file.write_text("\n".join(lines))
    places = {finding.rule: (finding.document, finding.line) for finding in lint([str(file)]).findings}
    assert places["unknown-field"] == (2, 15)
    assert places["null-namespace-selector"] == (2, 12)
    assert places["queue-without-local-queue"] == (2, 11)


def test_unreadable_file_does_not_hide_other_findings(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    selectorless = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "cq"},
        "spec": {},
    }
    file.write_text(f"spec:\n  a: 1\n preemption:\n---\n{yaml.safe_dump(selectorless)}")
    report = lint([str(tmp_path / "gone.yaml"), str(file)])
    assert [(f.rule, f.line) for f in report.findings if f.severity is Severity.ERROR] == [
        ("unreadable-file", 0),
        ("invalid-yaml", 3),
        ("null-namespace-selector", 9),
    ]


def test_lint_runs_selected_rules_only() -> None:
    objects = with_changes(PLATFORMS["plain"], [{"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {"x": 1}}])
    assert lint(objects, ["null-namespace-selector"]).findings == []
    assert [finding.rule for finding in lint(objects, ["unknown-field"]).findings] == ["unknown-field"]


@pytest.mark.parametrize("name", ["shares", "reclaim"])
def test_preemption_loop_finding_is_confirmed_by_simulation(name: str) -> None:
    text = (HERE.parent / "sim" / ("livelock.yaml" if name == "shares" else "livelock_reclaim.yaml")).read_text()
    assert "preemption-loop" in [finding.rule for finding in lint([text]).findings]
    assert simulate(text, until="1m").loops


def test_undefined_namespace_is_a_note_if_the_manifests_define_none() -> None:
    objects = [obj for obj in PLATFORMS["plain"] if obj["kind"] != "Namespace"]
    (finding,) = lint(objects).findings
    assert (finding.rule, finding.severity) == ("unknown-namespace", Severity.NOTE)


def test_documentation_lists_every_rule_with_severity_and_summary() -> None:
    text = (ROOT / RULES_DOCUMENT).read_text()
    sections = re.findall(r"^### (\S+)\n\n(\w+): ((?:.+\n)+)", text.replace("`", ""), re.MULTILINE)
    assert [(name, severity) for name, severity, _ in sections] == [(rule.name, rule.severity.value) for rule in RULES]
    assert [
        rule.name
        for rule, (_, _, stated) in zip(RULES, sections, strict=True)
        if not " ".join(stated.split()).startswith(rule.summary.replace("`", ""))
    ] == []


def test_node_condition_taint_is_not_reported_as_undeclared() -> None:
    key = "node.kubernetes.io/not-ready"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"pool": "a"}}}
    node |= {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}, "status": {"allocatable": {"cpu": "9"}}}
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "f"}}
    flavor |= {"spec": {"nodeLabels": {"pool": "a"}}}
    assert "undeclared-taint" not in finding_rules([node, flavor])
    node["spec"] = {"taints": [{"key": "mine", "effect": "NoSchedule"}]}
    assert "undeclared-taint" in finding_rules([node, flavor])


def how_to_texts(name: str) -> list[str]:
    """Return the manifests with a title in a how-to guide."""
    text = (ROOT / "docs" / "how-to" / name).read_text("utf-8")
    return re.findall(r'^```yaml title="[^"]*"\n(.*?)^```', text, re.MULTILINE | re.DOTALL)


def test_machines_of_a_reservation_have_labels_for_their_location() -> None:
    texts = how_to_texts("blocks-of-gpus.md")
    assert lint(["---\n".join(texts)]).findings == []
    unreserved = ["---\n".join(texts).replace(", reservation: h100", "")]
    assert [each.rule for each in lint(unreserved).findings] == ["level-without-nodes", "level-without-nodes"]


@pytest.mark.parametrize(
    ("pods", "text"), [(3, "1 pod is in no slice and gets no"), (5, "2 pods are in no slice and get no")]
)
def test_pods_outside_slices_are_counted(pods: int, text: str) -> None:
    annotations = {well_known.SLICE_TOPOLOGY: "rack", well_known.SLICE_SIZE: str(pods - int(text[0]))}
    template = {"metadata": {"annotations": annotations}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    objects = with_changes(PLATFORMS["racks"], [{"kind": "Job", "metadata": {"name": "first"}, "spec": spec}])
    assert text in next(each.problem for each in lint(objects).findings if each.rule == "uneven-slices")


@pytest.mark.parametrize(
    ("topology", "text"),
    [("racks", "the job is never admitted: "), (None, "the job is admitted and its pods stay Pending: ")],
)
def test_job_that_topology_aware_scheduling_never_admits_is_not_called_admitted(
    topology: str | None, text: str
) -> None:
    containers = [{"name": "main", "image": "i", "resources": {"requests": {"cpu": 6}}}]
    spec = {"parallelism": 1, "completions": 1, "template": {"spec": {"containers": containers}}}
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": {"topologyName": topology}}
    job = {"kind": "Job", "metadata": {"name": "first"}, "spec": spec}
    findings = lint(with_changes(PLATFORMS["racks"], [flavor, job])).findings
    (problem,) = [each.problem for each in findings if each.rule == "pod-larger-than-node"]
    assert problem.startswith(text)
