"""Observer of scheduling cycles, for metrics of decisions and durations. It does not affect decisions."""

from collections.abc import Sequence
from typing import Protocol

from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Decision


class CycleObserver(Protocol):
    """Notified of every cycle. In virtual time, no implementation reads a clock."""

    def begin(self) -> None:
        """A cycle begins."""

    def decide(self) -> None:
        """The decisions are made; writing them begins."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """The cycle ends."""


class NoCycleObserver:
    """Ignores all cycles."""

    def begin(self) -> None:
        """Do nothing."""

    def decide(self) -> None:
        """Do nothing."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Do nothing."""
