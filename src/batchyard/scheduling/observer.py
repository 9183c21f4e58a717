"""Who watches scheduling cycles: what was decided and how long it took, told to nobody who decides."""

from collections.abc import Sequence
from typing import Protocol

from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Decision


class CycleWatch(Protocol):
    """Is told of every cycle; in virtual time none looks at a clock."""

    def begin(self) -> None:
        """There are heads, and a cycle begins."""

    def decide(self) -> None:
        """All is decided, and will be written."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """It is over."""


class Unwatched:
    """Nobody watches."""

    def begin(self) -> None:
        """Take no note."""

    def decide(self) -> None:
        """Take no note."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Take no note."""
