"""The options of `batchyard compare`."""

from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from batchyard.base.instant import Duration
from batchyard.cli.commands import forks as of
from batchyard.cli.options import Output


def _load(text: str) -> Fraction:
    from batchyard.sim.traces import load_of  # noqa: PLC0415 - loads the platform

    try:
        return load_of(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A configuration: a file of manifests, or a folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The configuration to compare it with.")],
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="The load of both: manifests, or a folder of a trace (CSV); repeatable."),
    ] = None,
    cluster_a: Annotated[Path | None, typer.Option(metavar="FILE", help="The nodes of A.")] = None,
    cluster_b: Annotated[Path | None, typer.Option(metavar="FILE", help="The nodes of B.")] = None,
    load: Annotated[
        Fraction | None,
        typer.Option(parser=_load, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=of.duration, metavar="DURATION", help="Stop both after this virtual time, such as 2h."),
    ] = None,
    seed: of.Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds to run both with, from --seed on.")] = 1,
    output: of.Output = Output.TABLE,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML report.")] = None,
) -> None:
    """Compare two configurations on the same load: waits, utilisation, fairness, preemptions, costs."""
    from batchyard.cli import compare as command  # noqa: PLC0415 - loads the platform
    from batchyard.sim.compare.comparison import ComparisonSettings  # noqa: PLC0415 - loads the platform

    settings = ComparisonSettings(until, seed, seeds)
    command.run(command.CompareRequest(a, b, (cluster_a, cluster_b), trace or [], load, settings, output, html))
