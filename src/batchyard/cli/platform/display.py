"""How what happens is shown: lines that stay and one that moves at a terminal, lines alone elsewhere, or JSON lines."""

import json
import sys
from typing import TYPE_CHECKING, Final

from batchyard.cli import output
from batchyard.cli.options import Telling
from batchyard.cli.platform.happenings import Display, Happening, Kind, duration_text

if TYPE_CHECKING:
    from rich.status import Status

_MARKS: Final = {
    Kind.PASSED: "ok",
    Kind.SKIPPED: "not needed",
    Kind.DONE: "done",
    Kind.UNMET: "gone on",
    Kind.REFUSED: "not wanted",
    Kind.FAILED: "FAILED",
    Kind.INTERRUPTED: "interrupted",
    Kind.RETRIED: "once more",
    Kind.WAITING: "waiting",
    Kind.BEGUN: "...",
}
_COLORS: Final = {
    Kind.PASSED: "dim",
    Kind.SKIPPED: "dim",
    Kind.DONE: "green",
    Kind.UNMET: "yellow",
    Kind.FAILED: "bold red",
    Kind.INTERRUPTED: "yellow",
    Kind.RETRIED: "yellow",
}
#: What is soon followed by how it came out.
_PASSING: Final = frozenset({Kind.BEGUN, Kind.WAITING})


def display_for(telling: Telling) -> Display:
    """The display that fits where one writes to."""
    if telling is Telling.JSON:
        return JsonLines()
    return Moving() if sys.stderr.isatty() else Lines()


def line_of(happening: Happening) -> str:
    """A happening as a line: `[12/31] terraform-apply: done (8m40s)`."""
    step = happening.step
    head = f"[{happening.number:>{len(str(happening.total))}}/{happening.total}] {step.name}: "
    if happening.kind is Kind.BEGUN:
        return head + step.tells + (f" ({happening.what})" if happening.what else "")
    mark = "passed over" if happening.kind is Kind.PASSED and step.commands else _MARKS[happening.kind]
    said = mark + (f": {happening.what}" if happening.what else "")
    is_long = happening.kind in (Kind.DONE, Kind.FAILED, Kind.INTERRUPTED, Kind.UNMET) and happening.seconds >= 1
    return head + said + (f" ({duration_text(happening.seconds)})" if is_long else "")


def lines_of_failure(happening: Happening) -> list[str]:
    """What a failing command wrote last, where all of it is, and what to do."""
    lines = [f"    {line}" for line in happening.tail]
    if happening.log:
        lines.append(f"  all of it: {happening.log}")
    if happening.step.remedy:
        lines.append(f"  what to do: {happening.step.remedy}")
    return lines


class Lines:
    """A line for each thing that happens."""

    def show(self, happening: Happening) -> None:
        """Write it."""
        output.tell(line_of(happening))
        if happening.kind is Kind.FAILED:
            for line in lines_of_failure(happening):
                output.tell(line)

    def tick(self, line: str, seconds: float) -> None:
        """Nothing: what passes is not for a file."""

    def tell(self, line: str) -> None:
        """Write it."""
        output.tell(line)

    def quiet(self) -> None:
        """Nothing moves here."""


class Moving:
    """Lines that stay, and below them one that moves while a command runs."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - takes long to load

        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._now = ""

    def show(self, happening: Happening) -> None:
        """Write what is over; what has begun moves until it is."""
        if happening.kind in _PASSING:
            self._now = line_of(happening)
            self._moves(self._now)
            return
        self.quiet()
        self._write(line_of(happening), _COLORS.get(happening.kind, ""))
        if happening.kind is Kind.FAILED:
            for line in lines_of_failure(happening):
                self._write(line, "")

    def tick(self, line: str, seconds: float) -> None:
        """Show the last line that a command wrote, and for how long it runs."""
        if seconds < 1:
            return
        self._moves(f"{self._now}  {duration_text(seconds)}  {line}")

    def tell(self, line: str) -> None:
        """Write it."""
        self.quiet()
        self._write(line, "")

    def quiet(self) -> None:
        """Nothing moves any more."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _moves(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - as above

        shown = Text(text, overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    def _write(self, line: str, style: str) -> None:
        self._console.print(line, style=style or None, markup=False, soft_wrap=True)


class JsonLines:
    """A JSON object a line on standard output, for programs; lines about the run on standard error."""

    def show(self, happening: Happening) -> None:
        """Write it."""
        fields: dict[str, object] = {"event": happening.kind.value, "step": happening.step.name}
        fields |= {"number": happening.number, "total": happening.total, "what": happening.what}
        fields["seconds"] = round(happening.seconds, 1)
        if happening.kind is Kind.FAILED:
            fields |= {"tail": list(happening.tail), "log": happening.log, "remedy": happening.step.remedy}
        output.write(json.dumps(fields) + "\n")

    def tick(self, line: str, seconds: float) -> None:
        """Nothing: programs are told what has happened."""

    def tell(self, line: str) -> None:
        """Write it where people read."""
        output.tell(line)

    def quiet(self) -> None:
        """Nothing moves here."""
