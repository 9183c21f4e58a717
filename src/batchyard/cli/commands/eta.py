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
    all_: Annotated[bool, typer.Option("--all", help="All Workloads that wait.")] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="Where it is.")] = "",
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="With --all: those of this LocalQueue.")] = "",
    forks: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many forks are made at most.")] = 40,
    until: of.Until = None,
    arrivals: Annotated[
        bool, typer.Option("--arrivals/--no-arrivals", help="Whether others come as they came lately.")
    ] = True,
    state: Annotated[
        str | None,
        typer.Option("--state", "-f", "--filename", metavar="FILE", help="A file of objects instead of a cluster."),
    ] = None,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    fair_sharing: of.FairSharing = False,
    seed: of.Seed = 0,
    output: of.Output = Output.TABLE,
) -> None:
    """Tell when Workloads start, with an interval, from many simulated futures of the present state."""
    if bool(subject) == all_:
        raise typer.BadParameter("name one as KIND/NAME, or say --all")
    if queue and not all_:
        raise typer.BadParameter("--queue goes with --all")
    from batchyard.cli import eta as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.states import Where  # noqa: PLC0415 - loads the platform
    from batchyard.sim.forecast import HORIZON, Asked  # noqa: PLC0415 - loads the platform

    horizon: Duration = HORIZON if until is None else until
    asked = Asked(seed, forks, fair_sharing, horizon, expects_arrivals=arrivals)
    where = Where(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
    command.run(command.Request(subject, namespace, queue, state, where, asked, output))
