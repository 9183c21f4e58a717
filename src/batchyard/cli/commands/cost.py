"""The options of `batchyard cost`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.submit import options as of


class CostGrouping(StrEnum):
    """The grouping of the rows."""

    TEAM = "team"
    QUEUE = "queue"
    CLUSTERQUEUE = "clusterqueue"
    WORKLOAD = "workload"
    FLAVOR = "flavor"
    POOL = "pool"
    USE = "use"


class CostFormat(StrEnum):
    """Output formats of the report."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def cost(
    context: typer.Context,
    by: Annotated[CostGrouping, typer.Option(help="The grouping of the rows.")] = CostGrouping.TEAM,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Begin: a time, or a duration ago such as 24h or 7d.")
    ] = "24h",
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help="The same as --since.", show_default=False)] = "",
    end: Annotated[str, typer.Option("--to", metavar="WHEN", help="End: a time, or a duration ago.")] = "",
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NS", help="Only this namespace; default: all that you may list."),
    ] = "",
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    output: Annotated[CostFormat, typer.Option("--output", "-o", help="How to print it.")] = CostFormat.TABLE,
) -> None:
    """Show the costs of machines, for whom, and the lost and idle part."""
    from batchyard.cli import cost as command  # noqa: PLC0415 - loads the HTTP client
    from batchyard.cli.reaching import ClusterTarget  # noqa: PLC0415 - loads the HTTP client

    target = ClusterTarget(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.cost(target, command.CostQuery(by, begin or since, end, namespace), output)
