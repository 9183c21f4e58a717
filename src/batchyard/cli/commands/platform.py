"""The options of `batchyard platform` and its commands."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.cli.options import Output

FILE = "platform.yaml"

app = typer.Typer(
    name="platform",
    help="One file for a whole platform: planned, priced and linted before anything is made; then made of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_Project: TypeAlias = Annotated[
    str, typer.Option(metavar="ID", help="The Google Cloud project, where the file names none or another.")
]


class Example(StrEnum):
    """What there are examples of."""

    REFARCH = "refarch"
    MULTISLICE = "multislice"
    DWS = "dws"
    HOTSWAP = "hotswap"


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; it must not be there.")] = Path(FILE),
    example: Annotated[
        Example, typer.Option(help="The reference architecture, slices of TPUs, queued GPUs, or TPUs with Hotswap.")
    ] = Example.REFARCH,
) -> None:
    """Write a platform.yaml to begin with, commented."""
    from batchyard.cli.platform.init import run  # noqa: PLC0415 - loads the platform

    run(example.value, file)


@app.command()
def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")] = FILE,
    project: _Project = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    guide: Annotated[
        bool, typer.Option("--guide", help="Play the reference architecture's guide on it besides, simulated.")
    ] = False,
) -> None:
    """Show what would be made of it: objects, machines, costs, quotas needed, and what lint finds."""
    from batchyard.cli.platform.plan import run  # noqa: PLC0415 - loads the platform

    run(file, project, output, guide=guide)


@app.command()
def render(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; what is there of others stays.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")] = FILE,
    project: _Project = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that somebody else wrote or changed.")
    ] = False,
) -> None:
    """Write everything: Terraform, manifests, and the cluster file of the embedded platform."""
    from batchyard.cli.platform.render import run  # noqa: PLC0415 - loads the platform

    run(file, out, project, overwrite=overwrite)
