"""`batchyard lint`: prints the problems of manifests before they are applied."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from batchyard.api.schema.violations import nearest
from batchyard.cli import output
from batchyard.cli.options import Output, Severities
from batchyard.cli.output import render_json, render_yaml
from batchyard.lint.findings import LintFinding, Severity
from batchyard.lint.registry import BY_NAME, LintReport, lint

_ORDER: Final = tuple(Severity)


@dataclass(frozen=True, slots=True)
class LintRequest:
    """The arguments of the command."""

    paths: Sequence[str]
    output: Output
    severity: Severities
    rules: Sequence[str]
    strict: bool


def run(request: LintRequest) -> None:
    """Print the findings; ends the command with 1 for errors, with `strict` also for warnings."""
    for name in request.rules:
        if name not in BY_NAME:
            close = nearest(name, BY_NAME)
            output.fail(f"batchyard: unknown rule {name}; {f'did you mean {close}?' if close else 'see docs/lint.md'}")
    report = lint(request.paths, request.rules)
    shown = [f for f in report.findings if _ORDER.index(f.severity) <= _ORDER.index(Severity(request.severity))]
    match request.output:
        case Output.JSON:
            output.write(render_json(_document(shown, report)))
        case Output.YAML:
            output.write(render_yaml(_document(shown, report)))
        case Output.TABLE | Output.WIDE:
            output.write("".join(f"{text}\n" for text in map(_format_finding, shown)))
    output.report_line(summary(report))
    wrong = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if request.strict else 0)
    if wrong:
        raise SystemExit(1)


def summary(report: LintReport) -> str:
    """The numbers of documents and findings, in one line."""
    read = _counted(report.documents, "document")
    if not report.findings:
        return f"batchyard: no findings in {read}"
    counts = ", ".join(_counted(report.count(severity), severity.value) for severity in Severity)
    return f"batchyard: {counts} in {read}"


def _format_finding(finding: LintFinding) -> str:
    """A finding as text: a line with the place, then the problem, fix and link."""
    return "\n".join(_lines(finding))


def _lines(finding: LintFinding) -> Iterator[str]:
    place = f"{finding.source}:{finding.line}" if finding.line else finding.source
    who = "/".join(part for part in (finding.kind, finding.namespace, finding.name) if part)
    where = " ".join(part for part in (who, finding.path) if part)
    yield f"{place}: {finding.severity.value} {finding.rule}{f': {where}' if where else ''}"
    yield f"    {finding.problem}"
    if finding.fix:
        yield f"    fix: {finding.fix}"
    yield f"    see: {finding.link}"


def _document(findings: Sequence[LintFinding], report: LintReport) -> dict[str, Any]:
    """The report as a document."""
    return {
        "apiVersion": "batchyard.dev/v1alpha1",
        "kind": "LintReport",
        "documents": report.documents,
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "findings": [_row(finding) for finding in findings],
    }


def _row(finding: LintFinding) -> Mapping[str, Any]:
    row = {**asdict(finding), "severity": finding.severity.value, "patches": list(finding.patches)}
    return {**{field: value for field, value in row.items() if value not in ("", 0, [])}, "link": finding.link}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


# --- lint ---
#
# The options of `batchyard lint`.


def lint_command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ],
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The nodes: pools, limits, reservations."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the findings.")] = Output.TABLE,
    severity: Annotated[
        Severities, typer.Option(help="The lowest severity to show.", show_default=True)
    ] = Severities.NOTE,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="NAME", help="Check only this rule; repeatable.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 also for warnings.")] = False,
) -> None:
    """Check manifests before they are applied: problems, their consequences, and fixes."""
    run(LintRequest([*paths, *([str(cluster)] if cluster else ())], output, severity, tuple(rule or ()), strict))
