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
        typer.Argument(metavar="PATH", help="Manifests of a scenario to change, instead of a cluster."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="Manifests to apply, as kubectl does; repeatable."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND/NAME", help="An object to delete; or KIND/NAMESPACE/NAME; repeatable."),
    ] = None,
    at: Annotated[
        Duration,
        typer.Option(
            parser=of.duration,
            metavar="DURATION",
            help="The virtual time of the change, in a scenario.",
            show_default="0s",
        ),
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
    """Compare two runs of the same state, with and without a change. Nothing is changed."""
    if not change and not delete:
        raise typer.BadParameter("give a change with -f FILE, or an object to delete with --delete KIND/NAME")
    if paths and state is not None:
        raise typer.BadParameter("PATH and --state are two states: leave out one")
    if at and not paths:
        raise typer.BadParameter("--at is for scenarios: a state starts at its own time")
    from batchyard.cli import whatif as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.states import ClusterSource  # noqa: PLC0415 - loads the platform

    where = ClusterSource(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.run(
        command.WhatifRequest(
            paths or [], change or [], delete or [], at, until, state, where, fair_sharing, seed, output
        )
    )
