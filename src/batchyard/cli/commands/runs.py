"""What options of runs say alike: how fast time runs, and where the page of a run is written."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

#: Beyond this a second of the clock holds more than the platform can do in it.
SPEED_MAX = 3600

Report: TypeAlias = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a page of the whole run as one HTML file.")
]


def speed(text: str | float) -> float:
    """A factor that somebody wrote: 60x, or 60; BadParameter if it is none."""
    try:
        factor = float(str(text).removesuffix("x"))
    except ValueError:
        factor = 0.0
    if text == "max":
        told = "time that others live in cannot run as fast as it may"
        raise typer.BadParameter(f"{told}: say a factor, at most {SPEED_MAX}x; `batchyard simulate` knows no clock")
    if not 0 < factor <= SPEED_MAX:
        raise typer.BadParameter(f"{text!r} is no speed; write it as 1x or 60x, at most {SPEED_MAX}x")
    return factor
