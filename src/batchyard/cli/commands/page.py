"""The options of `batchyard page`."""

from pathlib import Path
from typing import Annotated

import typer


def page(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")] = Path(
        ".batchyard"
    ),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser of this desktop.")] = False,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The user of the link, who sees what the user may list; default: the owner."),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group of the user, such as a team; repeatable.")
    ] = None,
    hours: Annotated[int, typer.Option(metavar="N", min=1, max=168, help="Hours of validity.")] = 1,
) -> None:
    """Print a link to the platform's dashboard with a read-only token."""
    if user is not None and not user:  # such as an unset variable in a script: it must not select the owner
        raise typer.BadParameter("--user must not be empty")
    if group and not user:
        raise typer.BadParameter("--group requires --user")
    from batchyard.cli import page as command  # noqa: PLC0415 - loads the platform

    command.page(data_dir, command.PageViewer(user or "", group or (), hours), open_it=open_it)
