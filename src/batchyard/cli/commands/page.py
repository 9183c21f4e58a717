"""The options of `batchyard page`."""

from pathlib import Path
from typing import Annotated

import typer


def page(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Where all is kept.")] = Path(
        ".batchyard"
    ),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser of this desktop.")] = False,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For whom the link is: he sees what he may list; by default the owner."),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group that the user is in, such as a team; repeatable.")
    ] = None,
    hours: Annotated[int, typer.Option(metavar="N", min=1, max=168, help="For how long the link is good.")] = 1,
) -> None:
    """Print a link to the platform's page, with a token in it that may look and do nothing else."""
    if user is not None and not user:  # such as a variable of a script that is not set: nobody meant the owner by it
        raise typer.BadParameter("--user has no name")
    if group and not user:
        raise typer.BadParameter("--group is of a user: name one with --user")
    from batchyard.cli import page as command  # noqa: PLC0415 - loads the platform

    command.page(data_dir, command.Looker(user or "", group or (), hours), open_it=open_it)
