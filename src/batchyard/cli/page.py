"""`batchyard page`: a link to the page, with a token that is good for looking."""

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


class Looker(NamedTuple):
    """For whom a link is; without a name for the owner."""

    name: str
    groups: Sequence[str]
    hours: int


def page(folder: Path, looker: Looker, *, open_it: bool) -> None:
    """Print the link, or open it."""
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
        told = f"good for {looker.hours} h, as {name}, to look and do nothing else; hand it over like a password"
        output.tell(f"batchyard: {told}")
    elif looker.name:
        output.fail("batchyard: it runs with --insecure-loopback, where everybody on this machine is its owner")
    if open_it and webbrowser.open(link):
        return
    output.write(f"{link}\n")
