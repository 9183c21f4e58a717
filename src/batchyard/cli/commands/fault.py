"""The options of `batchyard fault`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="fault", help="Inject faults into a running platform.", no_args_is_help=True)


@app.callback()
def fault() -> None:
    """Inject faults into a running platform."""


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.")],
    crash: Annotated[bool, typer.Option("--crash", help="Crash its simulated machine until it is repaired.")] = False,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Reclaim its Spot machine, with 30 seconds of notice.")
    ] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Cordon it and evict its pods.")] = False,
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")] = Path(
        ".batchyard"
    ),
) -> None:
    """Crash, reclaim or drain a node of a running platform, as its owner."""
    if crash + reclaim + drain != 1:
        raise typer.BadParameter("give one of --crash, --reclaim and --drain")
    from batchyard.cli import fault as command  # noqa: PLC0415 - loads the platform

    if drain:
        command.drain_node(data_dir, name)
    else:
        command.break_machine(data_dir, name, is_reclaimed=reclaim)
