"""The options of `batchyard platform create`, `status` and `destroy`, registered in the same `app`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.cli.commands.platform import FILE, app
from batchyard.cli.options import ProgressFormat

__all__ = ["app"]

_File: TypeAlias = Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")]
_Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The rendered folder with the journal; default: ./NAME."),
]
_Project: TypeAlias = Annotated[str, typer.Option(metavar="ID", help="The Google Cloud project; overrides the file.")]
_Kubeconfig: TypeAlias = Annotated[
    str,
    typer.Option(metavar="FILE", help="On GKE: where to write credentials, by default in DIR. Else: the cluster."),
]
_Context: TypeAlias = Annotated[str, typer.Option(metavar="NAME", help="The context of the kubeconfig; not for GKE.")]
_Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print every command without running it.")]
_Skip: TypeAlias = Annotated[list[str] | None, typer.Option("--skip", metavar="STEP", help="Skip a step; repeatable.")]
_ProgressFormat: TypeAlias = Annotated[ProgressFormat, typer.Option("--output", "-o", help="Text or JSON lines.")]


@app.command()
def create(
    file: _File = FILE,
    out: _Out = None,
    project: _Project = "",
    kubeconfig: _Kubeconfig = "",
    context: _Context = "",
    yes: _Yes = False,
    dry_run: _DryRun = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove objects that the file no longer contains, also with --yes."),
    ] = False,
    skip: _Skip = None,
    output: _ProgressFormat = ProgressFormat.TEXT,
) -> None:
    """Create the platform on GKE or on an existing cluster; resumes an unfinished run."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.driving import StepRunnerSettings  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import ClusterOptions  # noqa: PLC0415 - loads the platform

    settings = StepRunnerSettings(skipped=frozenset(skip or ()))
    cluster = ClusterOptions(kubeconfig, context)
    request = drive.PlatformRequest(file, out, project, cluster, yes, dry_run, prune, output, settings)
    drive.run_create(drive.work_of(request), request)


@app.command()
def status(
    file: _File = FILE,
    out: _Out = None,
    project: _Project = "",
    kubeconfig: _Kubeconfig = "",
    context: _Context = "",
    output: _ProgressFormat = ProgressFormat.TEXT,
) -> None:
    """Show the state of the platform step by step; exits with 1 if something is missing."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import ClusterOptions  # noqa: PLC0415 - loads the platform

    request = drive.PlatformRequest(file, out, project, ClusterOptions(kubeconfig, context), reporting=output)
    drive.run_status(drive.work_of(request), request)


@app.command()
def destroy(
    file: _File = FILE,
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
    """Destroy the platform: first the workloads, then the resources; list what remains."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.driving import StepRunnerSettings  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import ClusterOptions  # noqa: PLC0415 - loads the platform

    settings = StepRunnerSettings(skipped=frozenset(skip or ()))
    cluster = ClusterOptions(kubeconfig, context)
    request = drive.PlatformRequest(
        file, out, project, cluster, is_yes=yes, is_dry=dry_run, reporting=output, settings=settings
    )
    drive.run_destroy(drive.work_of(request), request, is_unprotecting=unprotect)
