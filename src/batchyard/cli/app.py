"""The commands and their options. A command's work is imported when it is called: help and usage errors are quick."""

from pathlib import Path
from typing import Annotated

import typer

from batchyard.base.instant import Duration
from batchyard.cli.options import OnLoop, Output, Step

app = typer.Typer(
    name="batchyard",
    help="A multi-tenant batch platform: decides which workload runs where and when.",
    epilog="Exit codes: 0 done, 1 the input or the run failed, 2 wrong usage.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _run_length(text: str) -> Duration:
    from batchyard.sim.scenario import run_length  # noqa: PLC0415 - loads the platform

    try:
        return run_length(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only here

        typer.echo(f"batchyard {version('batchyard')}")
        raise typer.Exit


@app.callback()
def batchyard(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A multi-tenant batch platform: decides which workload runs where and when."""


@app.command()
def simulate(  # noqa: PLR0913, PLR0917 - each parameter is an option of the command
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The nodes there are: pools, limits, capacity, prices."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Replay a trace of a cluster, its nodes and pods as CSV; print a report."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=_run_length, metavar="DURATION", help="Stop after this virtual time, such as 2h or 90s."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes whatever is drawn, such as uids.")] = 0,
    events: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the event log as JSON lines; - for stdout, instead of the tables."),
    ] = None,
    on_loop: Annotated[
        OnLoop, typer.Option(help="When Workloads preempt each other for ever: leave them and go on, or end.")
    ] = OnLoop.CONTINUE,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="How to print the objects.")] = None,
) -> None:
    """Run manifests in virtual time; print the queues, Workloads and Jobs as they stand at the end."""
    if events == "-" and output is not None:
        raise typer.BadParameter("with --events - the event log takes standard output: leave out --output")
    if not paths and trace is None:
        raise typer.BadParameter("Missing argument 'PATH...'; give manifests, a trace with --trace DIR, or both")
    from batchyard.cli import simulate as command  # noqa: PLC0415 - loads the platform
    from batchyard.cli import trace as replay  # noqa: PLC0415 - loads the platform

    request = command.Request(paths or [], cluster, until, seed, events, on_loop, output or Output.TABLE)
    if trace is None:
        command.run(request)
    else:
        replay.run(trace, request)


@app.command()
def guide(
    manifests: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder laid out as the reference architecture; by default our example."),
    ] = None,
    step: Annotated[Step | None, typer.Option(help="Play up to this step, and show how things stand then.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Play the reference architecture's guide; print its queues after each step beside what the guide saw."""
    from batchyard.cli.guide import run  # noqa: PLC0415 - loads the platform

    run(manifests, step, output)
