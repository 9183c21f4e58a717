"""The options of `batchyard decisions`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.options import Output
from batchyard.cli.submit import options as of


def decisions(
    context: typer.Context,
    about: Annotated[
        str, typer.Argument(metavar="KIND/NAME", help="The object, such as job/train; default: all.")
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace; default: the kubeconfig's.")
    ] = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Begin: a time such as 2026-01-31T12:00:00Z, or 2h for 2 hours ago.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="WHEN", help="End: a time, or a duration ago.")] = "",
    reason: Annotated[str, typer.Option(metavar="REASON", help="Only this reason, such as Preempted.")] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="The number of latest decisions to show.")
    ] = 500,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print them.")] = Output.TABLE,
) -> None:
    """List decisions with their times and details."""
    from batchyard.cli import decisions as command  # noqa: PLC0415 - loads the HTTP client
    from batchyard.cli.reaching import ClusterTarget  # noqa: PLC0415 - loads the HTTP client

    target = ClusterTarget(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    asked = command.DecisionQuery(about, "" if all_namespaces else namespace, since, until, reason, limit)
    command.decisions(target, asked._replace(is_everywhere=all_namespaces), output)
