"""The options of `batchyard guide`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.commands.runs import Report
from batchyard.cli.commands.runs import speed as factor
from batchyard.cli.options import GuideStepName, Output


def guide(
    manifests: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder with the reference architecture's layout; default: our example."),
    ] = None,
    platform: Annotated[
        str, typer.Option(metavar="FILE", help="A platform.yaml to use instead of the folder's platform.")
    ] = "",
    step: Annotated[
        GuideStepName | None, typer.Option(help="Play up to this step and show the state after it.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    live: Annotated[
        bool, typer.Option("--live", help="Play it on a running platform by kubectl; report differences.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option(parser=factor, metavar="FACTOR", show_default="60x", help="With --live: the speed of time."),
    ] = 60.0,
    report: Report = None,
) -> None:
    """Play the reference architecture's guide; print its queues after each step beside the published figures.

    Exits with 1 if a row that quota alone decides differs, a Job does not end, or a live row differs without a reason.
    """
    if live and report is not None:
        raise typer.BadParameter("--report is for simulations: leave out --live, whose platform has a dashboard")
    from batchyard.cli.platform.guide import run  # noqa: PLC0415 - loads the platform

    run(platform, manifests, step, output, speed if live else None, report)
