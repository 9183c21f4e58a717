"""The options that `whatif` and `eta` share: which state, how far, and how it is told."""

from typing import Annotated, TypeAlias

import typer

from batchyard.base.instant import Duration, parse_duration
from batchyard.cli import options
from batchyard.cli.submit import options as of_submit


def duration(text: str | int) -> Duration:
    """A length of time as it is written."""
    try:
        return text if isinstance(text, int) else parse_duration(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


cluster = of_submit.cluster
Kubeconfig: TypeAlias = of_submit.Kubeconfig
Context: TypeAlias = of_submit.Context
DataDir: TypeAlias = of_submit.DataDir
Until: TypeAlias = Annotated[
    Duration | None,
    typer.Option(parser=duration, metavar="DURATION", help="How far to look, such as 2h; a day if nobody says."),
]
StateFile: TypeAlias = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="A file of objects instead of a cluster.")
]
FairSharing: TypeAlias = Annotated[
    bool, typer.Option("--fair-sharing", help="The cluster's queues share fairly, as its Kueue is told to.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Fixes whatever is drawn.")]
Output: TypeAlias = Annotated[options.Output, typer.Option("--output", "-o", help="How to print it.")]
