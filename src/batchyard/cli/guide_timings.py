"""The timings of a guide that is played live: which were missed, by how much, and which rows differ for it."""

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any, Final, NamedTuple

from batchyard.base.instant import SECOND, Duration, format_age

#: A Job or a look that is late by no more, in time of the guide, counts as in time.
TOLERANCE: Final = 3 * SECOND
#: The reason of a row that differs although nothing at all was late.
NO_REASON: Final = "no timing was missed, so this is a defect of batchyard; please report it"


class Timing(NamedTuple):
    """How late a Job or a look of a step was, in time of the guide."""

    step: str
    what: str
    name: str
    late: Duration
    #: Whether it came at all; if not, `late` is how long it was waited for.
    is_reached: bool = True

    def __str__(self) -> str:
        """The step, the subject and the lateness as one sentence."""
        subject = f"step {self.step}: {self.what} {self.name}"
        if not self.is_reached:
            return f"{subject} had not come {_age(self.late)} after it was due"
        return f"{subject} was {_age(self.late)} late"

    def document(self) -> Mapping[str, Any]:
        """The same for programs."""
        late = self.late / SECOND
        return {
            "step": self.step,
            "what": self.what,
            "name": self.name,
            "lateSeconds": late,
            "reached": self.is_reached,
        }


class DifferentRow(NamedTuple):
    """A row that is not as simulated, and the reason."""

    name: str
    simulated: str
    live: str
    reason: str

    def __str__(self) -> str:
        """The row, both texts and the reason as one line."""
        return f"{self.name}: simulated {self.simulated}, live {self.live}; reason: {self.reason}"

    @property
    def is_explained(self) -> bool:
        """Whether a late timing is the reason."""
        return self.reason != NO_REASON


class Timings:
    """The lateness of each Job and look of the steps of a guide."""

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = steps
        self._noted: list[Timing] = []

    def note(self, timing: Timing) -> None:
        """Note how late something was; what was in time is not kept."""
        if timing.late > 0 or not timing.is_reached:
            self._noted.append(timing)

    @property
    def missed(self) -> Sequence[Timing]:
        """What was late by more than the tolerance, or did not come at all."""
        return [timing for timing in self._noted if timing.late > TOLERANCE or not timing.is_reached]

    def speed_for(self, speed: float) -> float:
        """The speed at which the same delays of the machine are within the tolerance; half of it if none is known."""
        latest = max((timing.late for timing in self.missed if timing.is_reached), default=0)
        return speed / 2 if latest == 0 else float(max(1, floor(speed * TOLERANCE / latest)))

    def differences(self, simulated: Mapping[str, str], live: Mapping[str, str]) -> Sequence[DifferentRow]:
        """The rows that are not as simulated, each with the timing that explains it."""
        names = [name for name in dict.fromkeys((*simulated, *live)) if simulated.get(name) != live.get(name)]
        return [
            DifferentRow(name, simulated.get(name, "nothing"), live.get(name, "nothing"), self._reason(name))
            for name in names
        ]

    def _reason(self, row: str) -> str:
        """The latest timing of the row's step and of the steps before it; a row of no step has all of them."""
        step, is_of_step, _ = row.partition(": ")
        steps = self._steps[: self._steps.index(step) + 1] if is_of_step else self._steps
        timings = [timing for timing in self._noted if timing.step in steps]
        if not timings:
            return NO_REASON
        latest = max(timings, key=lambda timing: timing.late)
        others = sum(timing.late > TOLERANCE for timing in timings) - 1
        return f"{latest}, and {others} more were late" if others > 0 else str(latest)


def _age(duration: Duration) -> str:
    """A duration that may be shorter than a second."""
    return format_age(duration) if duration >= SECOND else f"{duration / SECOND:.2f}s"
