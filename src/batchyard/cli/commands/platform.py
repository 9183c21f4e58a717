"""The options of `batchyard platform` and its commands."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.cli.options import Output

FILE = "platform.yaml"

app = typer.Typer(
    name="platform",
    help="One file for a whole platform: plan, price and lint it, then create it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_Project: TypeAlias = Annotated[str, typer.Option(metavar="ID", help="The Google Cloud project; overrides the file.")]


class Example(StrEnum):
    """The example platforms."""

    REFARCH = "refarch"
    MULTISLICE = "multislice"
    DWS = "dws"
    HOTSWAP = "hotswap"


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")] = Path(FILE),
    example: Annotated[
        Example, typer.Option(help="The reference architecture, slices of TPUs, queued GPUs, or TPUs with Hotswap.")
    ] = Example.REFARCH,
) -> None:
    """Write a commented example platform.yaml."""
    from batchyard.cli.platform.init import run  # noqa: PLC0415 - loads the platform

    run(example.value, file)


@app.command()
def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")] = FILE,
    project: _Project = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    guide: Annotated[
        bool, typer.Option("--guide", help="Also simulate the reference architecture's guide on it.")
    ] = False,
) -> None:
    """Show what would be created: objects, machines, costs, required quotas and lint findings."""
    from batchyard.cli.platform.plan import run  # noqa: PLC0415 - loads the platform

    run(file, project, output, guide=guide)


@app.command()
def render(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to; other files are kept.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")] = FILE,
    project: _Project = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that were written or changed otherwise.")
    ] = False,
) -> None:
    """Write all files: Terraform, manifests, and the cluster file of the embedded platform."""
    from batchyard.cli.platform.render import run  # noqa: PLC0415 - loads the platform

    run(file, out, project, overwrite=overwrite)
