"""The same comparison with several seeds: means, and the interval in which the difference is with 95 % certainty.

Both configurations get the same seeds, so differences are taken seed by seed; the interval is Student's t of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from batchyard.sim.configurations.sections import Both, Figure

#: The 97.5 % quantiles of Student's t by degrees of freedom, from 1 on; the normal distribution's beyond.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL: Final = 1.960


@dataclass(frozen=True, slots=True)
class Repeated:
    """A figure over several seeds."""

    figure: Figure
    means: tuple[float, float]
    #: Of the differences: their mean, and how far the interval goes to either side.
    difference: float
    margin: float
    seeds: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval leaves out that there is no difference."""
        return abs(self.difference) > self.margin


def repeated(figure: Figure, values: Sequence[Both]) -> Repeated | None:
    """A figure of all seeds, two at least; None unless all have it."""
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if len(known) < len(values) or len(known) < 2:
        return None
    count = len(known)
    changes = [b - a for a, b in known]
    mean = sum(changes) / count
    spread = sqrt(sum((change - mean) ** 2 for change in changes) / (count - 1))
    factor = _T[count - 2] if count - 2 < len(_T) else _NORMAL
    means = sum(a for a, _ in known) / count, sum(b for _, b in known) / count
    return Repeated(figure, means, mean, factor * spread / sqrt(count), count)
