"""The options of `batchyard cost`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from batchyard.cli.submit import options as of


class By(StrEnum):
    """What a row is about."""

    TEAM = "team"
    QUEUE = "queue"
    CLUSTERQUEUE = "clusterqueue"
    WORKLOAD = "workload"
    FLAVOR = "flavor"
    POOL = "pool"
    USE = "use"


class Form(StrEnum):
    """How a report is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def cost(
    context: typer.Context,
    by: Annotated[By, typer.Option(help="What a row is about.")] = By.TEAM,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="From then on: a time, or how long ago, as 24h or 7d.")
    ] = "24h",
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help="The same as --since.", show_default=False)] = "",
    end: Annotated[str, typer.Option("--to", metavar="WHEN", help="Before then: a time, or how long ago.")] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="Of this team alone; by default of all one may see.")
    ] = "",
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TABLE,
) -> None:
    """Say what machines cost, for whom, and what of it was lost or lay idle."""
    from batchyard.cli import cost as command  # noqa: PLC0415 - loads what talks to servers
    from batchyard.cli.reaching import Target  # noqa: PLC0415 - as above

    target = Target(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.cost(target, command.Asked(by, begin or since, end, namespace), output)
