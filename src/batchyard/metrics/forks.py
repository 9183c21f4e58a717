"""Questions that forks of the platform answer: how many, how long, what became of them, and what they took."""

from collections.abc import Callable, Iterator
from typing import Final

from batchyard.metrics.families import text_of
from batchyard.metrics.kept import Kept
from batchyard.metrics.names import metric

#: What becomes of a question: it is answered, has no answer, its fork gave none, or too many waited.
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
FAILED: Final = "failed"
TURNED_AWAY: Final = "turnedaway"
RESULTS: Final = (ANSWERED, REFUSED, FAILED, TURNED_AWAY)
_TOTAL: Final = "batchyard_fork_questions_total"
_TIME: Final = "batchyard_fork_duration_seconds"
_CPU: Final = "batchyard_fork_cpu_seconds_total"


class ForkFigures:
    """See the module. `clock` tells seconds since whenever."""

    def __init__(self, clock: Callable[[], float], waiting: Callable[[], int]) -> None:
        self._clock = clock
        self._waiting = waiting
        self._kept = Kept((_TOTAL, _CPU, _TIME))
        for result in RESULTS:
            self._kept.add(_TOTAL, (result,), 0)
        self._kept.add(_CPU, (), 0)
        self._began = 0.0
        #: The most memory of the last one, in bytes; 0 before there was one.
        self._memory = 0

    def turn_away(self) -> None:
        """Too many wait."""
        self._kept.add(_TOTAL, (TURNED_AWAY,))

    def begin(self) -> None:
        """A fork begins."""
        self._began = self._clock()

    def end(self, result: str, cpu_seconds: float, memory: int) -> None:
        """It has ended."""
        self._kept.add(_TOTAL, (result,))
        self._kept.add(_CPU, (), cpu_seconds)
        self._kept.observe(_TIME, (), self._clock() - self._began)
        self._memory = memory

    def texts(self) -> Iterator[str]:
        """All families."""
        yield from self._kept.texts()
        yield text_of(metric("batchyard_fork_waiting"), [((), self._waiting())])
        yield text_of(metric("batchyard_fork_memory_bytes"), [((), self._memory)] if self._memory else [])
