"""Progress events of the steps, and the interfaces of the display and the confirmation."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from batchyard.provision.steps.model import PlatformStep


class ProgressKind(StrEnum):
    """What happened to a step."""

    BEGUN = "begun"
    #: Already done before this run.
    PASSED = "passed"
    #: Not applicable, or skipped by option.
    SKIPPED = "skipped"
    WAITING = "waiting"
    RETRIED = "retried"
    DONE = "done"
    #: An optional step failed; the run continues.
    UNMET = "unmet"
    FAILED = "failed"
    #: The user declined it.
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """An event of a step: its number (from 1), the number of steps, a detail, and the seconds since its start."""

    kind: ProgressKind
    step: PlatformStep
    number: int
    total: int
    what: str = ""
    seconds: float = 0.0
    #: The last output lines of a failed command, and its log file.
    tail: tuple[str, ...] = ()
    log: str = ""


class Display(Protocol):
    """Shows progress events."""

    def show(self, happening: ProgressEvent) -> None:
        """Show an event."""

    def tick(self, line: str, seconds: float) -> None:
        """Update the progress of a running command: its last output line and its run time."""

    def report(self, line: str) -> None:
        """Print a line about the run."""

    def quiet(self) -> None:
        """Remove the status line: the terminal is used otherwise, or the run is over."""


class Confirmation(Protocol):
    """Asks the user for confirmation."""

    def agrees(self, question: str, destroys: bool) -> bool:
        """Whether the user agrees."""


def duration_text(seconds: float) -> str:
    """Format a duration: 8s, 2m10s, 1h04m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
