"""The options of `batchyard fault`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="fault", help="Break parts of a platform that runs.", no_args_is_help=True)


@app.callback()
def fault() -> None:
    """Break parts of a platform that runs."""


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.")],
    crash: Annotated[bool, typer.Option("--crash", help="Its simulated machine is lost until it is repaired.")] = False,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="The cloud takes its Spot machine back, with 30 seconds of notice.")
    ] = False,
    drain: Annotated[bool, typer.Option("--drain", help="It is cordoned and its pods are evicted.")] = False,
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Where all is kept.")] = Path(
        ".batchyard"
    ),
) -> None:
    """Crash, reclaim or drain a node of a platform that runs, as its owner."""
    if crash + reclaim + drain != 1:
        raise typer.BadParameter("give one of --crash, --reclaim and --drain")
    from batchyard.cli import fault as command  # noqa: PLC0415 - loads the platform

    if drain:
        command.drain_node(data_dir, name)
    else:
        command.break_machine(data_dir, name, is_reclaimed=reclaim)
