"""The options of `batchyard guide`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.commands.runs import Report
from batchyard.cli.commands.runs import speed as factor
from batchyard.cli.options import Output, Step


def guide(
    manifests: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder laid out as the reference architecture; by default our example."),
    ] = None,
    platform: Annotated[
        str, typer.Option(metavar="FILE", help="A platform.yaml to play it on, in place of the folder's platform.")
    ] = "",
    step: Annotated[Step | None, typer.Option(help="Play up to this step, and show how things stand then.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    live: Annotated[
        bool, typer.Option("--live", help="Play it with kubectl against a platform that runs; tell what is different.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option(parser=factor, metavar="FACTOR", show_default="60x", help="With --live: how fast time runs."),
    ] = 60.0,
    report: Report = None,
) -> None:
    """Play the reference architecture's guide; print its queues after each step beside what the guide saw.

    Exits with 1 if a row that quota alone decides differs, if a Job never ends, or if a live row differs for no reason.
    """
    if live and report is not None:
        raise typer.BadParameter("--report is of a simulation: leave out --live, whose platform has a page of its own")
    from batchyard.cli.platform.guide import run  # noqa: PLC0415 - loads the platform

    run(platform, manifests, step, output, speed if live else None, report)
