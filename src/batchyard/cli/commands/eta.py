"""The options of `batchyard eta`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.base.instant import Duration
from batchyard.cli.commands import forks as of
from batchyard.cli.options import Output


def eta(
    context: typer.Context,
    subject: Annotated[
        str, typer.Argument(metavar="[KIND/NAME]", help="workload/NAME, job/NAME or jobset/NAME.", show_default=False)
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="All pending Workloads.")] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace.")] = "",
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="With --all: only this LocalQueue.")] = "",
    forks: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="The most forks to run.")] = 40,
    until: of.Until = None,
    arrivals: Annotated[
        bool, typer.Option("--arrivals/--no-arrivals", help="Simulate arrivals at the recent rate.")
    ] = True,
    state: Annotated[
        str | None,
        typer.Option("--state", "-f", "--filename", metavar="FILE", help="A state file instead of a cluster."),
    ] = None,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    fair_sharing: of.FairSharing = False,
    seed: of.Seed = 0,
    output: of.Output = Output.TABLE,
) -> None:
    """Forecast the start of Workloads, with an interval, from many simulated forks of the current state."""
    if bool(subject) == all_:
        raise typer.BadParameter("give one KIND/NAME, or use --all")
    if queue and not all_:
        raise typer.BadParameter("--queue requires --all")
    from batchyard.cli import eta as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.states import ClusterSource  # noqa: PLC0415 - loads the platform
    from batchyard.sim.forecast import HORIZON, ForecastOptions  # noqa: PLC0415 - loads the platform

    horizon: Duration = HORIZON if until is None else until
    asked = ForecastOptions(seed, forks, fair_sharing, horizon, expects_arrivals=arrivals)
    where = ClusterSource(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.run(command.EtaRequest(subject, namespace, queue, state, where, asked, output))
