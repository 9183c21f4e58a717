"""`batchyard lint`: its output and its exit codes."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from batchyard.cli.app import app

ROOT = Path(__file__).parents[3]
SOUND = str(ROOT / "examples" / "first-steps")
QUEUE = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: cq}\nspec: {%s}\n"
STRICT = "namespaceSelector: {}, fairSharing: {weight: '0'}"


def lint(*arguments: str, text: str = "") -> tuple[int, str, str]:
    """Run lint; return its exit code, stdout and stderr."""
    result = CliRunner().invoke(app, ["lint", *arguments], input=text)
    return result.exit_code, result.stdout, result.stderr


def test_clean_lint_reports_number_of_documents() -> None:
    assert lint(SOUND) == (0, "", "batchyard: no findings in 7 documents\n")


def test_finding_reports_place_problem_and_fix() -> None:
    code, reported, summary = lint("-", "--severity", "error", text=QUEUE % "queueingStrategy: StrictFIFO")
    assert code == 1
    assert reported.splitlines() == [
        "<stdin>:4: error null-namespace-selector: ClusterQueue/cq spec.namespaceSelector",
        "    namespaceSelector is missing, so the queue selects no namespace and never admits a Workload",
        "    fix: set `namespaceSelector: {}` for all namespaces, or select the labels of the allowed namespaces",
        "    see: docs/reference/lint.md#null-namespace-selector",
    ]
    assert summary == "batchyard: 1 error, 0 warnings, 1 note in 1 document\n"


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 1)])
def test_strict_lint_fails_on_warnings(options: tuple[str, ...], code: int) -> None:
    assert lint("-", *options, text=QUEUE % STRICT)[0] == code


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_json_and_yaml_contain_complete_findings(form: str, read: object) -> None:
    assert callable(read)
    _, reported, _ = lint("-", "-o", form, "--rule", "null-namespace-selector", text=QUEUE % "")
    report = read(reported)
    assert report["counts"] == {"error": 1, "warning": 0, "note": 0}
    (finding,) = report["findings"]
    assert finding["patches"] == [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": "cq"},
            "spec": {"namespaceSelector": {}},
        }
    ]
    assert (finding["rule"], finding["line"]) == ("null-namespace-selector", 4)


def test_unknown_rule_is_reported_with_suggestion() -> None:
    code, _, stated = lint(SOUND, "--rule", "null-namespace-selectr")
    assert code == 2
    assert "--rule null-namespace-selectr: unknown rule; did you mean null-namespace-selector?" in stated


def test_lint_checks_machines_of_cluster() -> None:
    cluster = str(ROOT / "examples" / "refarch" / "cluster.yaml")
    code, reported, _ = lint(
        str(ROOT / "examples" / "refarch" / "platform"), "--cluster", cluster, "--severity", "error"
    )
    assert (code, "quota-above-capacity" in reported) == (1, True)
