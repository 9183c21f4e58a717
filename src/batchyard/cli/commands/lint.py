"""The command `batchyard lint`: reports problems of manifests before they are applied."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from batchyard.api.schema.violations import find_nearest_name
from batchyard.base.counts import count_with_noun
from batchyard.cli import output
from batchyard.cli.options import Output, SeverityChoice
from batchyard.cli.output import render_document
from batchyard.lint.findings import LintFinding, Severity
from batchyard.lint.registry import RULES_BY_NAME, LintReport, lint

_SEVERITY_ORDER: Final = tuple(Severity)


@dataclass(frozen=True, slots=True)
class LintRequest:
    """The arguments of `batchyard lint`."""

    paths: Sequence[str]
    output: Output
    severity: SeverityChoice
    rules: Sequence[str]
    strict: bool


def run(request: LintRequest) -> None:
    """Print the lint findings; exit with 1 if there are errors, or with `strict` also if there are warnings.

    Raise BadParameter if a rule is unknown.
    """
    for name in request.rules:
        if name not in RULES_BY_NAME:
            nearest_name = find_nearest_name(name, RULES_BY_NAME)
            remedy = f"did you mean {nearest_name}?" if nearest_name else "see docs/reference/lint.md"
            raise typer.BadParameter(f"--rule {name}: unknown rule; {remedy}")
    report = lint(request.paths, request.rules)
    shown_findings = [
        finding
        for finding in report.findings
        if _SEVERITY_ORDER.index(finding.severity) <= _SEVERITY_ORDER.index(Severity(request.severity))
    ]
    if request.output.is_table:
        output.write("".join(f"{text}\n" for text in map(_format_finding, shown_findings)))
    else:
        output.write(render_document(_report_document(shown_findings, report), request.output))
    output.report_line(summary(report))
    failing_finding_count = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if request.strict else 0)
    if failing_finding_count:
        raise SystemExit(1)


def summary(report: LintReport) -> str:
    """Return a line with the number of linted documents and, if there are findings, their number by severity."""
    document_count = count_with_noun(report.document_count, "document")
    if not report.findings:
        return f"batchyard: no findings in {document_count}"
    count_texts = ", ".join(count_with_noun(report.count(severity), severity.value) for severity in Severity)
    return f"batchyard: {count_texts} in {document_count}"


def _format_finding(finding: LintFinding) -> str:
    return "\n".join(_finding_lines(finding))


def _finding_lines(finding: LintFinding) -> Iterator[str]:
    location = f"{finding.source}:{finding.line}" if finding.line else finding.source
    object_name = "/".join(part for part in (finding.kind, finding.namespace, finding.name) if part)
    object_and_field = " ".join(part for part in (object_name, finding.path) if part)
    yield f"{location}: {finding.severity.value} {finding.rule}{f': {object_and_field}' if object_and_field else ''}"
    yield f"    {finding.problem}"
    if finding.fix:
        yield f"    fix: {finding.fix}"
    yield f"    see: {finding.link}"


def _report_document(findings: Sequence[LintFinding], report: LintReport) -> dict[str, Any]:
    return {
        "apiVersion": "batchyard.dev/v1alpha1",
        "kind": "LintReport",
        "documents": report.document_count,
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "findings": [_finding_fields(finding) for finding in findings],
    }


def _finding_fields(finding: LintFinding) -> Mapping[str, Any]:
    row = {**asdict(finding), "severity": finding.severity.value, "patches": list(finding.patches)}
    return {**{field: value for field, value in row.items() if value not in ("", 0, [])}, "link": finding.link}


def lint_command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ],
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The nodes: pools, limits, reservations.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the findings.")] = Output.TABLE,
    severity: Annotated[
        SeverityChoice, typer.Option(help="The lowest severity to show.", show_default=True)
    ] = SeverityChoice.NOTE,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="NAME", help="Check only this rule; repeatable.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit with 1 if there are only warnings.")] = False,
) -> None:
    """Check manifests before they are applied: problems, their consequences, and fixes."""
    run(LintRequest([*paths, *([str(cluster)] if cluster else ())], output, severity, tuple(rule or ()), strict))
