"""The options of `batchyard lint`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.options import Output, Severities


def lint(
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
    from batchyard.cli.lint import LintRequest, run  # noqa: PLC0415 - loads the platform

    run(LintRequest([*paths, *([str(cluster)] if cluster else ())], output, severity, tuple(rule or ()), strict))
