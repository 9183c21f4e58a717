"""The command `batchyard page`: prints a link to the dashboard, which for https contains a token."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from batchyard.apiserver.auth.tokens import sign_dashboard_token
from batchyard.apiserver.dashboard import DASHBOARD_FILES_PATH
from batchyard.apiserver.request import MASTERS_GROUP, UserInfo
from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.cli.background import require_running_platform
from batchyard.cli.options import DATA_DIR
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import ADMIN_USER, CredentialsError, SigningKey


class PageViewer(NamedTuple):
    """The user of a dashboard link: name ('' for the platform's owner) and groups; and the link's hours of validity."""

    name: str
    groups: Sequence[str]
    hours: int
    #: Whether the user may perform actions; without them the link is read-only.
    permits_actions: bool = False


def print_link(folder: Path, viewer: PageViewer, *, opens_browser: bool) -> None:
    """Print the link to the dashboard; with `opens_browser`, open the link in a browser instead if possible."""
    platform_process = require_running_platform(folder)
    page_url = f"{platform_process.url}{DASHBOARD_FILES_PATH}/"
    if platform_process.url.startswith("https:"):
        name, groups = (viewer.name, viewer.groups) if viewer.name else (ADMIN_USER, (MASTERS_GROUP,))
        now = wall_clock()
        try:
            key = SigningKey(folder)
        except CredentialsError as error:
            output.fail(f"batchyard: {error}")
        user, expires_at = UserInfo(name, tuple(groups)), now + viewer.hours * HOUR
        page_url += f"#token={sign_dashboard_token(key, user, now, expires_at, permits_actions=viewer.permits_actions)}"
        permission = "with actions" if viewer.permits_actions else "read-only"
        message = f"the link is valid for {viewer.hours} h as {name}, {permission}; treat it like a password"
        output.report_line(f"batchyard: {message}")
    elif viewer.name:
        output.fail(
            "batchyard: remove --user: with --insecure-loopback, every user of this machine has the owner's permissions"
        )
    if opens_browser and webbrowser.open(page_url):
        return
    output.write(f"{page_url}\n")


def page(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data directory.")] = DATA_DIR,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser of this desktop.")] = False,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="The user whose permissions the link has; default: the owner.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group of the user, such as a team; repeatable.")
    ] = None,
    hours: Annotated[int, typer.Option(metavar="N", min=1, max=168, help="Hours of validity.")] = 1,
    actions: Annotated[
        bool, typer.Option("--actions", help="Allow the user to change Workloads and queues; default: read-only.")
    ] = False,
) -> None:
    """Print a link to the platform's dashboard, with a token for one user."""
    if user is not None and not user:  # such as an unset variable in a script: it must not select the owner
        raise typer.BadParameter("--user must not be empty: set a name, or remove the option to use the owner")
    if group and not user:
        raise typer.BadParameter("--group requires --user: add --user NAME, or remove --group")

    print_link(data_dir, PageViewer(user or "", group or (), hours, actions), opens_browser=open_it)
