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
        typer.Option(metavar="FILE", help="The nodes there are: pools, limits, reservations."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the findings.")] = Output.TABLE,
    severity: Annotated[
        Severities, typer.Option(help="Show nothing that is less severe.", show_default=True)
    ] = Severities.NOTE,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="NAME", help="Look only for this; may be given several times.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
) -> None:
    """Tell what is wrong with manifests before they are applied, what comes of it, and how to mend it."""
    from batchyard.cli.lint import Request, run  # noqa: PLC0415 - loads the platform

    run(Request([*paths, *([str(cluster)] if cluster else ())], output, severity, tuple(rule or ()), strict))
