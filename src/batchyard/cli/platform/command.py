"""The Typer commands of `batchyard platform` and their options; a command's implementation is imported when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.cli.help import HELP_SETTINGS, HelpCommand, HelpGroup
from batchyard.cli.options import Output, ProgressFormat

_FILE = "platform.yaml"

app = typer.Typer(
    name="platform",
    cls=HelpGroup,
    help="Describe a whole platform in one file: plan, price and lint it, then create it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=HELP_SETTINGS,
)


_Project: TypeAlias = Annotated[str, typer.Option(metavar="ID", help="The Google Cloud project; overrides the file.")]


class Example(StrEnum):
    """The names of the example platform files that `batchyard platform init` can write."""

    REFARCH = "refarch"
    MULTISLICE = "multislice"
    DWS = "dws"
    HOTSWAP = "hotswap"


@app.command(cls=HelpCommand)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")] = Path(_FILE),
    example: Annotated[
        Example, typer.Option(help="The reference architecture, slices of TPUs, queued GPUs, or TPUs with Hotswap.")
    ] = Example.REFARCH,
) -> None:
    """Write a commented example platform.yaml."""
    from batchyard.cli.platform.render import write_example  # noqa: PLC0415 - loads the platform

    write_example(example.value, file)


@app.command(cls=HelpCommand)
def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")] = _FILE,
    project: _Project = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    guide: Annotated[
        bool, typer.Option("--guide", help="Also simulate the reference architecture's guide on it.")
    ] = False,
) -> None:
    """Show what would be created, and its costs. Also lists required quotas and lint findings."""
    from batchyard.cli.platform import plan as command  # noqa: PLC0415 - loads the platform

    command.run(file, project, output, guide=guide)


@app.command(cls=HelpCommand)
def render(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to; other files are kept.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")] = _FILE,
    project: _Project = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also replace files that you wrote or changed.")
    ] = False,
) -> None:
    """Write all files of the platform to a folder.

    The files are Terraform, manifests, and the cluster file of `up`.
    """
    from batchyard.cli.platform import render as command  # noqa: PLC0415 - loads the platform

    command.run(file, out, project, overwrite=overwrite)


_File: TypeAlias = Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")]
_Out: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The rendered folder with the journal; default: ./NAME.")
]

_Kubeconfig: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="On GKE: the file for credentials, by default in DIR; else: the cluster.")
]
_Context: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The context of the kubeconfig; not for GKE.")]
_Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print every command without running it.")]
_Skip: TypeAlias = Annotated[list[str] | None, typer.Option("--skip", metavar="STEP", help="Skip a step; repeatable.")]
_ProgressFormat: TypeAlias = Annotated[ProgressFormat, typer.Option("--output", "-o", help="Text or JSON lines.")]


@app.command(cls=HelpCommand)
def create(
    file: _File = _FILE,
    out: _Out = None,
    project: _Project = "",
    kubeconfig: _Kubeconfig = "",
    context: _Context = "",
    yes: _Yes = False,
    dry_run: _DryRun = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove objects that the file no longer contains, also with --yes.")
    ] = False,
    skip: _Skip = None,
    output: _ProgressFormat = ProgressFormat.TEXT,
) -> None:
    """Create the platform, or resume an unfinished run."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.step_runner import StepRunnerSettings  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import ClusterOptions  # noqa: PLC0415 - loads the platform

    settings = StepRunnerSettings(skipped_steps=frozenset(skip or ()))
    cluster = ClusterOptions(kubeconfig, context)
    request = drive.PlatformRequest(file, out, project, cluster, yes, dry_run, prune, output, settings)
    drive.run_create(drive.render_requested_platform(request), request)


@app.command(cls=HelpCommand)
def status(
    file: _File = _FILE,
    out: _Out = None,
    project: _Project = "",
    kubeconfig: _Kubeconfig = "",
    context: _Context = "",
    output: _ProgressFormat = ProgressFormat.TEXT,
) -> None:
    """Show the state of the platform step by step. Exits with 1 if something is missing."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import ClusterOptions  # noqa: PLC0415 - loads the platform

    request = drive.PlatformRequest(file, out, project, ClusterOptions(kubeconfig, context), progress_format=output)
    drive.run_status(drive.render_requested_platform(request), request)


@app.command(cls=HelpCommand)
def destroy(
    file: _File = _FILE,
    out: _Out = None,
    project: _Project = "",
    kubeconfig: _Kubeconfig = "",
    context: _Context = "",
    yes: _Yes = False,
    dry_run: _DryRun = False,
    unprotect: Annotated[bool, typer.Option("--unprotect", help="Remove deletion protection, if set.")] = False,
    skip: _Skip = None,
    output: _ProgressFormat = ProgressFormat.TEXT,
) -> None:
    """Destroy the platform and list what remains. Destroys the workloads first, then the resources."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.step_runner import StepRunnerSettings  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import ClusterOptions  # noqa: PLC0415 - loads the platform

    settings = StepRunnerSettings(skipped_steps=frozenset(skip or ()))
    cluster = ClusterOptions(kubeconfig, context)
    request = drive.PlatformRequest(
        file, out, project, cluster, is_confirmed=yes, is_dry_run=dry_run, progress_format=output, settings=settings
    )
    drive.run_destroy(drive.render_requested_platform(request), request, is_unprotecting=unprotect)
