"""`batchyard page`: a link to the dashboard with a read-only token."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from batchyard.apiserver.auth.authentication import MASTERS
from batchyard.apiserver.auth.tokens import page_token
from batchyard.apiserver.dashboard import FILES
from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.cli.up import process_of
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import ADMIN, CredentialsError, SigningKey


class PageViewer(NamedTuple):
    """The user of the link; '' for the owner."""

    name: str
    groups: Sequence[str]
    hours: int


def page(folder: Path, looker: PageViewer, *, open_it: bool) -> None:
    """Print the link, or open it in a browser."""
    running = process_of(folder)
    link = f"{running.url}{FILES}/"
    if running.url.startswith("https:"):
        name, groups = (looker.name, looker.groups) if looker.name else (ADMIN, (MASTERS,))
        now = wall_clock()
        try:
            key = SigningKey(folder)
        except CredentialsError as error:
            output.fail(f"batchyard: {error}")
        link += f"#token={page_token(key, name, groups, now, now + looker.hours * HOUR)}"
        message = f"valid for {looker.hours} h as {name}, read-only; treat the link like a password"
        output.report_line(f"batchyard: {message}")
    elif looker.name:
        output.fail(
            "batchyard: the platform runs with --insecure-loopback, where all users of this machine are its owner"
        )
    if open_it and webbrowser.open(link):
        return
    output.write(f"{link}\n")
