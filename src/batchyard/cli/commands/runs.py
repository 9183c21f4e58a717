"""Options that several commands share: the speed of time, and the report of a run."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

#: The highest speed: beyond it, the platform cannot do the work of a second of real time.
SPEED_MAX = 3600

Report: TypeAlias = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report of the run.")
]


def speed(text: str | float) -> float:
    """Parse a factor, 60x or 60; BadParameter if malformed."""
    try:
        factor = float(str(text).removesuffix("x"))
    except ValueError:
        factor = 0.0
    if text == "max":
        message = "a platform needs a fixed speed"
        raise typer.BadParameter(
            f"{message}: give a factor, at most {SPEED_MAX}x; `batchyard simulate` runs as fast as it can"
        )
    if not 0 < factor <= SPEED_MAX:
        raise typer.BadParameter(f"{text!r} is not a speed; use 1x or 60x, at most {SPEED_MAX}x")
    return factor
