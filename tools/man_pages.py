"""Writes a manual page for each command to deploy/man. Wheels contain the pages; a test fails if a page is out of date.

    python tools/man_pages.py [FOLDER]

With FOLDER, the script writes the pages to that folder instead. `man -l FOLDER/NAME.1` shows a page.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperGroup

from batchyard.cli.app import COMMANDS, command_contexts
from batchyard.cli.examples import EXAMPLES
from batchyard.cli.help import argument_usage, command_name, first_sentence, help_row, parameter_groups

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "man"
EXIT_CODES = (("0", "success"), ("1", "invalid input or failed run"), ("2", "wrong usage"))


def main() -> None:
    """Write all pages, and delete the pages of removed commands."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("batchyard*.1"):
        path.unlink()
    for name, text in pages():
        (folder / f"{name}.1").write_text(text, "utf-8")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page: one of `batchyard`, and one of each command."""
    yield "batchyard", "\n".join([title_line("batchyard"), *overview_lines(), ""])
    for context in command_contexts():
        name = page_name(command_name(context))
        yield name, "\n".join([title_line(name), *command_lines(context), ""])


def title_line(name: str) -> str:
    """Return the first line of a page, with the date of the newest release in CHANGELOG.md."""
    dates = re.search(r"^## \S+ - (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    date = dates[1] if dates else ""
    return f'.TH "{escape(name.upper())}" 1 "{date}" batchyard "User Commands"'


def page_name(command: str) -> str:
    """Return the name of a command's page, such as `batchyard-platform-plan`."""
    return "-".join(["batchyard", *command.split()])


def overview_lines() -> Iterator[str]:
    """Yield the lines of the page of `batchyard`: its commands by group."""
    yield from heading_lines("batchyard", "a multi-tenant batch platform")
    yield from (".SH SYNOPSIS", r".B batchyard", r"\fICOMMAND\fR [\fIOPTIONS\fR]")
    yield from (".SH DESCRIPTION", "Decides which workload runs where and when, in simulation and for real.")
    group = ""
    for name, entry in COMMANDS.items():
        if entry.group != group:
            group = entry.group
            yield f".SH {escape(group.upper())} COMMANDS"
        yield from (".TP", rf".BR {escape(page_name(name))} (1)", escape(entry.summary))
    yield from exit_lines()


def command_lines(context: Any) -> Iterator[str]:
    """Yield the lines of the page of a command."""
    command, name = context.command, command_name(context)
    help_text = command.help or ""
    yield from heading_lines(page_name(name), first_sentence(help_text.partition("\n\n")[0]).rstrip("."))
    parameters = command.get_params(context)
    arguments = [argument_usage(each) for each in parameters if isinstance(each, TyperArgument)]
    words = "SUBCOMMAND [ARGS]..." if isinstance(command, TyperGroup) else " ".join(arguments)
    yield from (
        ".SH SYNOPSIS",
        f".B batchyard {escape(name)}",
        escape(f"[OPTIONS] {words}".rstrip()),
        ".SH DESCRIPTION",
    )
    yield "\n.PP\n".join(escape(" ".join(paragraph.split())) for paragraph in help_text.split("\n\n"))
    if isinstance(command, TyperGroup):
        yield ".SH SUBCOMMANDS"
        for subcommand in command.list_commands(context):
            yield from (".TP", rf".BR {escape(page_name(f'{name} {subcommand}'))} (1)")
            yield escape(first_sentence(command.commands[subcommand].help or ""))
    for group, members in parameter_groups(parameters).items():
        yield f".SH {escape(group.upper())}"
        for parameter in members:
            label, text = help_row(parameter, context)
            yield from (".TP", rf"\fB{escape(label)}\fR", escape(" ".join(text.split())))
    yield from (".SH EXAMPLES", ".EX", *(escape(line) for each in EXAMPLES[name] for line in each.splitlines()), ".EE")
    yield from exit_lines()


def heading_lines(name: str, summary: str) -> Iterator[str]:
    """Yield the section NAME, which contains the line that `man -k` prints."""
    yield ".SH NAME"
    yield rf"{escape(name)} \- {escape(summary)}"


def exit_lines() -> Iterator[str]:
    """Yield the section about exit codes, which is the same for all commands."""
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES:
        yield from (".TP", rf".B {code}", meaning)


def escape(text: str) -> str:
    """Escape a text for roff: backslashes and dashes are literal, and the text does not begin with a roff request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped[:1] in {".", "'"} else escaped


if __name__ == "__main__":
    main()
