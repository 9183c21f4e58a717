"""The options of `batchyard why`."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.base.instant import Duration
from batchyard.cli.options import Output
from batchyard.cli.submit import options as of


def _moment(text: str) -> Duration:
    from batchyard.sim.scenario import run_length  # noqa: PLC0415 - loads the platform

    try:
        return run_length(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def why(
    context: typer.Context,
    about: Annotated[
        str,
        typer.Argument(metavar="KIND/NAME", help="workload/x, job/x, jobset/x, pod/x or clusterqueue/x."),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace; default: the kubeconfig's.")
    ] = "",
    paths: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filename", metavar="PATH", help="Simulate these manifests instead of asking a cluster; repeatable."
        ),
    ] = None,
    at: Annotated[
        Duration | None,
        typer.Option(parser=_moment, metavar="DURATION", help="With -f: at this virtual time; default: the end."),
    ] = None,
    seed: Annotated[int, typer.Option(help="With -f: seed of all random values, such as uids.")] = 0,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show why a Workload or pod waits, what holds the missing quota, and the smallest change that would admit it."""
    if at is not None and not paths:
        raise typer.BadParameter("--at requires a simulation: give manifests with -f")
    from batchyard.cli import why as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.reaching import ClusterTarget  # noqa: PLC0415 - as above

    subject = command.Subject.read(about, namespace)
    if subject is None:
        raise typer.BadParameter(f"{about!r}: use {command.FORMS}")
    if paths:
        command.of_simulation(subject, command.Simulated(paths, at, seed), output)
    else:
        target = ClusterTarget(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
        command.of_cluster(subject, target, output)
