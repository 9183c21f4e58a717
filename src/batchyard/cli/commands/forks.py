"""The options that `whatif` and `eta` share: the state, the horizon, and the output."""

from typing import Annotated, TypeAlias

import typer

from batchyard.base.instant import Duration, parse_duration
from batchyard.cli import options
from batchyard.cli.submit import options as of_submit


def duration(text: str | int) -> Duration:
    """Parse a duration."""
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
    typer.Option(parser=duration, metavar="DURATION", help="The horizon, such as 2h; default: a day."),
]
StateFile: TypeAlias = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="A state file instead of a cluster.")
]
FairSharing: TypeAlias = Annotated[
    bool, typer.Option("--fair-sharing", help="Use fair sharing, if the cluster's Kueue does.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of all random values.")]
Output: TypeAlias = Annotated[options.Output, typer.Option("--output", "-o", help="How to print it.")]
