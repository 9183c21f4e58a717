"""The options of `batchyard platform create`, `status` and `destroy`, which join the other commands in `app`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batchyard.cli.commands.platform import FILE, app
from batchyard.cli.options import Telling

__all__ = ["app"]

_File: TypeAlias = Annotated[str, typer.Argument(metavar="FILE", help="The platform; - for stdin.")]
_Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The rendered folder, with the journal; by default ./NAME."),
]
_Project: TypeAlias = Annotated[
    str, typer.Option(metavar="ID", help="The Google Cloud project, where the file names none or another.")
]
_Kubeconfig: TypeAlias = Annotated[
    str,
    typer.Option(metavar="FILE", help="On GKE: where credentials go, by default a file of DIR. Else: the cluster."),
]
_Context: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="Which context of the kubeconfig; where the cluster is not made on GKE.")
]
_Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, as programs need it.")]
_DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print every command, and run none.")]
_Skip: TypeAlias = Annotated[
    list[str] | None, typer.Option("--skip", metavar="STEP", help="Leave out a step; may be given several times.")
]
_Telling: TypeAlias = Annotated[Telling, typer.Option("--output", "-o", help="Lines for people, or JSON.")]


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
        typer.Option("--prune", help="Remove what an earlier file had made and this one says no longer, by --yes too."),
    ] = False,
    skip: _Skip = None,
    output: _Telling = Telling.TEXT,
) -> None:
    """Make the platform, on GKE or on a cluster that is there; goes on where an earlier run ended."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.driving import Settings  # noqa: PLC0415 - as above
    from batchyard.cli.platform.target import Wanted  # noqa: PLC0415 - as above

    settings = Settings(skipped=frozenset(skip or ()))
    cluster = Wanted(kubeconfig, context)
    request = drive.Request(file, out, project, cluster, yes, dry_run, prune, output, settings)
    drive.run_create(drive.work_of(request), request)


@app.command()
def status(
    file: _File = FILE,
    out: _Out = None,
    project: _Project = "",
    kubeconfig: _Kubeconfig = "",
    context: _Context = "",
    output: _Telling = Telling.TEXT,
) -> None:
    """Say step by step what is there of the platform; exits with 1 where something is not."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.target import Wanted  # noqa: PLC0415 - as above

    request = drive.Request(file, out, project, Wanted(kubeconfig, context), telling=output)
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
    unprotect: Annotated[
        bool, typer.Option("--unprotect", help="Take the protection from deletion away, where there is one.")
    ] = False,
    skip: _Skip = None,
    output: _Telling = Telling.TEXT,
) -> None:
    """Remove the platform: what runs, then what was made; say what stays."""
    from batchyard.cli.platform import drive  # noqa: PLC0415 - loads the platform
    from batchyard.cli.platform.driving import Settings  # noqa: PLC0415 - as above
    from batchyard.cli.platform.target import Wanted  # noqa: PLC0415 - as above

    settings = Settings(skipped=frozenset(skip or ()))
    cluster = Wanted(kubeconfig, context)
    request = drive.Request(file, out, project, cluster, is_yes=yes, is_dry=dry_run, telling=output, settings=settings)
    drive.run_destroy(drive.work_of(request), request, is_unprotecting=unprotect)
