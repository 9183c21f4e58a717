"""What happens while steps are driven, as values; whoever shows it takes them one by one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from batchyard.provision.steps.model import Step


class Kind(StrEnum):
    """What happened to a step."""

    BEGUN = "begun"
    #: It was done before.
    PASSED = "passed"
    #: There is nothing to do it to.
    SKIPPED = "skipped"
    WAITING = "waiting"
    RETRIED = "retried"
    DONE = "done"
    #: It failed, and one goes on without it.
    UNMET = "unmet"
    FAILED = "failed"
    #: The user does not want it.
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to a step: its number from 1, of how many, what is seen or said, after how long."""

    kind: Kind
    step: Step
    number: int
    total: int
    what: str = ""
    seconds: float = 0.0
    #: The last lines of a failing command, and the file that holds all of it.
    tail: tuple[str, ...] = ()
    log: str = ""


class Display(Protocol):
    """Shows what happens."""

    def show(self, happening: Happening) -> None:
        """Something has happened."""

    def tick(self, line: str, seconds: float) -> None:
        """A command runs: the last line it wrote, and for how long it has been running."""

    def tell(self, line: str) -> None:
        """A line about the run."""

    def quiet(self) -> None:
        """Somebody else is about to use the terminal, or all is over."""


class Asking(Protocol):
    """Asks the user."""

    def agrees(self, question: str, destroys: bool) -> bool:
        """Whether the user wants it."""


def duration_text(seconds: float) -> str:
    """How long something took, as people say it: 8s, 2m10s, 1h04m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
