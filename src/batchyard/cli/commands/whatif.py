"""The options of `batchyard whatif`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.base.instant import Duration
from batchyard.cli.commands import forks as of
from batchyard.cli.options import Output


def whatif(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="A scenario to change, instead of a cluster: its manifests."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="Manifests to apply, as kubectl does; repeatable."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND/NAME", help="What to delete; KIND/NAMESPACE/NAME where it has one; repeatable."),
    ] = None,
    at: Annotated[
        Duration, typer.Option(parser=of.duration, metavar="DURATION", help="When, in a scenario.", show_default="0s")
    ] = 0,
    until: of.Until = None,
    state: of.StateFile = None,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    fair_sharing: of.FairSharing = False,
    seed: of.Seed = 0,
    output: of.Output = Output.TABLE,
) -> None:
    """Tell what a change would do: two runs of one state, one with it. Nothing is changed."""
    if not change and not delete:
        raise typer.BadParameter("say what to change with -f FILE, or what to delete with --delete KIND/NAME")
    if paths and state is not None:
        raise typer.BadParameter("PATH and --state are two beginnings: leave out one")
    if at and not paths:
        raise typer.BadParameter("--at is of scenarios: a state goes on from its own instant")
    from batchyard.cli import whatif as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.states import Where  # noqa: PLC0415 - loads the platform

    where = Where(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.run(
        command.Request(paths or [], change or [], delete or [], at, until, state, where, fair_sharing, seed, output)
    )
