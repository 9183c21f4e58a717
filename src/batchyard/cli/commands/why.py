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
        typer.Argument(metavar="KIND/NAME", help="About what: workload/x, job/x, jobset/x, pod/x, clusterqueue/x."),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="Where it is; by default as the kubeconfig says.")
    ] = "",
    paths: Annotated[
        list[str] | None,
        typer.Option("-f", "--filename", metavar="PATH", help="Ask a simulation of these manifests; repeatable."),
    ] = None,
    at: Annotated[
        Duration | None,
        typer.Option(parser=_moment, metavar="DURATION", help="With -f: after this virtual time; by default its end."),
    ] = None,
    seed: Annotated[int, typer.Option(help="With -f: fixes whatever is drawn, such as uids.")] = 0,
    kubeconfig: of.Kubeconfig = "",
    kube_context: of.Context = "",
    data_dir: of.DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Say why something waits, who holds what it lacks, and the smallest change that would admit it."""
    if at is not None and not paths:
        raise typer.BadParameter("--at is a moment of a simulation: give manifests with -f")
    from batchyard.cli import why as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli.reaching import Target  # noqa: PLC0415 - as above

    subject = command.Subject.read(about, namespace)
    if subject is None:
        raise typer.BadParameter(f"{about!r}: write it as {command.FORMS}")
    if paths:
        command.of_simulation(subject, command.Simulated(paths, at, seed), output)
    else:
        target = Target(of.cluster(context, kubeconfig, data_dir), kube_context, data_dir or Path(".batchyard"))
        command.of_cluster(subject, target, output)
