"""Timings of a guide played live: which were missed, by how much, and which differing rows they explain."""

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any, Final, NamedTuple

from batchyard.base.instant import SECOND, Duration, format_age

#: A lateness up to this, in time of the guide, counts as on time.
TOLERANCE: Final = 3 * SECOND
#: The reason of a differing row if no timing was late.
NO_REASON: Final = "no timing was missed, so this is a defect of batchyard; please report it"


class Timing(NamedTuple):
    """The lateness of a Job or a reading of a step, in time of the guide."""

    step: str
    what: str
    name: str
    late: Duration
    #: Whether it happened at all; if not, `late` is how long the guide waited.
    is_reached: bool = True

    def __str__(self) -> str:
        """The step, the subject and the lateness as one sentence."""
        subject = f"step {self.step}: {self.what} {self.name}"
        if not self.is_reached:
            return f"{subject} did not happen within {_age(self.late)} after it was due"
        return f"{subject} was {_age(self.late)} late"

    def document(self) -> Mapping[str, Any]:
        """The timing as a JSON object."""
        late = self.late / SECOND
        return {
            "step": self.step,
            "what": self.what,
            "name": self.name,
            "lateSeconds": late,
            "reached": self.is_reached,
        }


class DifferentRow(NamedTuple):
    """A row that differs from the simulation, with the reason."""

    name: str
    simulated: str
    live: str
    reason: str

    def __str__(self) -> str:
        """The row, both texts and the reason as one line."""
        return f"{self.name}: simulated {self.simulated}, live {self.live}; reason: {self.reason}"

    @property
    def is_explained(self) -> bool:
        """Whether a late timing explains the row."""
        return self.reason != NO_REASON


class Timings:
    """The lateness of each Job and reading of a guide's steps."""

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = steps
        self._noted: list[Timing] = []

    def note(self, timing: Timing) -> None:
        """Record a lateness; timings that were on time are dropped."""
        if timing.late > 0 or not timing.is_reached:
            self._noted.append(timing)

    @property
    def missed(self) -> Sequence[Timing]:
        """The timings that exceed the tolerance or did not happen."""
        return [timing for timing in self._noted if timing.late > TOLERANCE or not timing.is_reached]

    def speed_for(self, speed: float) -> float:
        """The speed at which the same delays are within the tolerance; half of `speed` if no delay is known."""
        latest = max((timing.late for timing in self.missed if timing.is_reached), default=0)
        return speed / 2 if latest == 0 else float(max(1, floor(speed * TOLERANCE / latest)))

    def differences(self, simulated: Mapping[str, str], live: Mapping[str, str]) -> Sequence[DifferentRow]:
        """The rows that differ from the simulation, each with the timing that explains it."""
        names = [name for name in dict.fromkeys((*simulated, *live)) if simulated.get(name) != live.get(name)]
        return [
            DifferentRow(name, simulated.get(name, "nothing"), live.get(name, "nothing"), self._reason(name))
            for name in names
        ]

    def _reason(self, row: str) -> str:
        """The largest lateness of the row's step and the steps before it; of all steps for a row without a step."""
        step, is_of_step, _ = row.partition(": ")
        steps = self._steps[: self._steps.index(step) + 1] if is_of_step else self._steps
        timings = [timing for timing in self._noted if timing.step in steps]
        if not timings:
            return NO_REASON
        latest = max(timings, key=lambda timing: timing.late)
        others = sum(timing.late > TOLERANCE for timing in timings) - 1
        return f"{latest}, and {others} more were late" if others > 0 else str(latest)


def _age(duration: Duration) -> str:
    """Format a duration, which may be shorter than a second."""
    return format_age(duration) if duration >= SECOND else f"{duration / SECOND:.2f}s"
