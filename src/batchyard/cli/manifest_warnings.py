"""Warnings about manifests on standard error: the first ten, and one line for all deprecated API versions.

The option `--verbose` of the commands that read manifests lists everything.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import typer

from batchyard.api.manifests import is_deprecation
from batchyard.cli import output

#: The number of warnings that are printed without `--verbose`.
WARNINGS_SHOWN_MAX: Final = 10


class _Verbosity:
    """The value of `--verbose` for the running command, which its option callback sets."""

    is_verbose = False


def remember_verbosity(is_verbose: bool) -> bool:
    """Remember the value of `--verbose` for the warnings of this command line, and return it."""
    _Verbosity.is_verbose = is_verbose
    return is_verbose


Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", callback=remember_verbosity, help="List all warnings about manifests.")
]


def print_warnings(warnings: Sequence[str]) -> None:
    """Print the warnings about manifests on standard error: with `--verbose` all, else the first ones and counts."""
    for line in warning_lines(warnings, is_verbose=_Verbosity.is_verbose):
        output.report_line(line)


def warning_lines(warnings: Sequence[str], *, is_verbose: bool) -> Sequence[str]:
    """Return the lines to print: all warnings if `is_verbose`, else the first ones, and counts of the omitted ones."""
    if is_verbose:
        return [f"warning: {warning}" for warning in warnings]
    other_warnings = [warning for warning in warnings if not is_deprecation(warning)]
    lines = [f"warning: {warning}" for warning in other_warnings[:WARNINGS_SHOWN_MAX]]
    if len(other_warnings) > WARNINGS_SHOWN_MAX:
        lines.append(f"warning: and {len(other_warnings) - WARNINGS_SHOWN_MAX} more; --verbose lists them")
    deprecated_count = len(warnings) - len(other_warnings)
    if deprecated_count == 1:
        lines.append("warning: 1 object uses a deprecated version; --verbose names it")
    elif deprecated_count:
        lines.append(f"warning: {deprecated_count:,} objects use deprecated versions; --verbose lists them")
    return lines
