"""The options of `batchyard snapshot`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.commands import forks as of


def snapshot(
    context: typer.Context,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    file: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; `-`: standard output.")
    ] = "-",
    redact: Annotated[
        bool, typer.Option("--redact", help="Hash names, and leave out commands, images and messages.")
    ] = False,
    redact_key: Annotated[
        str, typer.Option(metavar="TEXT", help="With --redact: key of the hashes, to compare snapshots.")
    ] = "",
) -> None:
    """Write the state of a live cluster to a file, for why, eta, whatif, lint, simulate and compare. Read-only."""
    if redact_key and not redact:
        raise typer.BadParameter("--redact-key requires --redact")
    from batchyard.cli import snapshot as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.states import ClusterSource  # noqa: PLC0415 - loads the platform

    where = ClusterSource(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.run(command.SnapshotRequest(where, file, redact, redact_key))
