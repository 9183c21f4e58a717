"""Progress output of steps: permanent lines and a status line on a terminal, lines only elsewhere, or JSON lines."""

import json
import sys
from typing import TYPE_CHECKING, Final

from batchyard.cli import output
from batchyard.cli.options import ProgressFormat
from batchyard.cli.platform.happenings import Display, ProgressEvent, ProgressKind, duration_text

if TYPE_CHECKING:
    from rich.status import Status

_MARKS: Final = {
    ProgressKind.PASSED: "ok",
    ProgressKind.SKIPPED: "not needed",
    ProgressKind.DONE: "done",
    ProgressKind.UNMET: "failed, optional",
    ProgressKind.REFUSED: "declined",
    ProgressKind.FAILED: "FAILED",
    ProgressKind.INTERRUPTED: "interrupted",
    ProgressKind.RETRIED: "retry",
    ProgressKind.WAITING: "waiting",
    ProgressKind.BEGUN: "...",
}
_COLORS: Final = {
    ProgressKind.PASSED: "dim",
    ProgressKind.SKIPPED: "dim",
    ProgressKind.DONE: "green",
    ProgressKind.UNMET: "yellow",
    ProgressKind.FAILED: "bold red",
    ProgressKind.INTERRUPTED: "yellow",
    ProgressKind.RETRIED: "yellow",
}
#: Kinds that are soon followed by a result.
_PASSING: Final = frozenset({ProgressKind.BEGUN, ProgressKind.WAITING})


def display_for(reporting: ProgressFormat) -> Display:
    """The display that suits the output option and standard error."""
    if reporting is ProgressFormat.JSON:
        return JsonDisplay()
    return TerminalDisplay() if sys.stderr.isatty() else LineDisplay()


def line_of(happening: ProgressEvent) -> str:
    """A progress event as a line: `[12/31] terraform-apply: done (8m40s)`."""
    step = happening.step
    head = f"[{happening.number:>{len(str(happening.total))}}/{happening.total}] {step.name}: "
    if happening.kind is ProgressKind.BEGUN:
        return head + step.purpose + (f" ({happening.what})" if happening.what else "")
    mark = "already done" if happening.kind is ProgressKind.PASSED and step.commands else _MARKS[happening.kind]
    message = mark + (f": {happening.what}" if happening.what else "")
    is_long = (
        happening.kind in (ProgressKind.DONE, ProgressKind.FAILED, ProgressKind.INTERRUPTED, ProgressKind.UNMET)
        and happening.seconds >= 1
    )
    return head + message + (f" ({duration_text(happening.seconds)})" if is_long else "")


def lines_of_failure(happening: ProgressEvent) -> list[str]:
    """The last output of a failed command, its log file, and the remedy."""
    lines = [f"    {line}" for line in happening.tail]
    if happening.log:
        lines.append(f"  full log: {happening.log}")
    if happening.step.remedy:
        lines.append(f"  remedy: {happening.step.remedy}")
    return lines


class LineDisplay:
    """Prints one line per event."""

    def show(self, happening: ProgressEvent) -> None:
        """Print an event; a failure also with its details."""
        output.report_line(line_of(happening))
        if happening.kind is ProgressKind.FAILED:
            for line in lines_of_failure(happening):
                output.report_line(line)

    def tick(self, line: str, seconds: float) -> None:
        """Ignore a tick: it would fill a file."""

    def report(self, line: str) -> None:
        """Print a line."""
        output.report_line(line)

    def quiet(self) -> None:
        """Do nothing: there is no status line."""


class TerminalDisplay:
    """Prints lines, and below them a status line while a command runs."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to load

        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._now = ""

    def show(self, happening: ProgressEvent) -> None:
        """Print a finished event; show one that has just begun in the status line."""
        if happening.kind in _PASSING:
            self._now = line_of(happening)
            self._moves(self._now)
            return
        self.quiet()
        self._write(line_of(happening), _COLORS.get(happening.kind, ""))
        if happening.kind is ProgressKind.FAILED:
            for line in lines_of_failure(happening):
                self._write(line, "")

    def tick(self, line: str, seconds: float) -> None:
        """Show the last line of a command and its run time in the status line."""
        if seconds < 1:
            return
        self._moves(f"{self._now}  {duration_text(seconds)}  {line}")

    def report(self, line: str) -> None:
        """Print a line."""
        self.quiet()
        self._write(line, "")

    def quiet(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _moves(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - slow to load

        shown = Text(text, overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    def _write(self, line: str, style: str) -> None:
        self._console.print(line, style=style or None, markup=False, soft_wrap=True)


class JsonDisplay:
    """Prints events as JSON lines on standard output, and lines about the run on standard error."""

    def show(self, happening: ProgressEvent) -> None:
        """Print an event."""
        fields: dict[str, object] = {"event": happening.kind.value, "step": happening.step.name}
        fields |= {"number": happening.number, "total": happening.total, "what": happening.what}
        fields["seconds"] = round(happening.seconds, 1)
        if happening.kind is ProgressKind.FAILED:
            fields |= {"tail": list(happening.tail), "log": happening.log, "remedy": happening.step.remedy}
        output.write(json.dumps(fields) + "\n")

    def tick(self, line: str, seconds: float) -> None:
        """Ignore a tick: programs get completed events only."""

    def report(self, line: str) -> None:
        """Print a line to standard error."""
        output.report_line(line)

    def quiet(self) -> None:
        """Do nothing: there is no status line."""
