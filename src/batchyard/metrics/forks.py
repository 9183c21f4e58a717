"""Questions that forks of the platform answer: how many, how long, what became of them, and what they took."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeVar

from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import Kept
from batchyard.metrics.registry import text_of
from batchyard.shadow.findings import Counts, Parting

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


# --- shadow ---
#
# What a shadow has compared, and what came of it.


#: What is compared.
DECISIONS: Final = ("admission", "preemption", "eviction")


class ShadowFigures:
    """Read when somebody asks."""

    def __init__(self, counts: Callable[[], Counts], waiting: Callable[[], int], reordered: Callable[[], int]) -> None:
        self._counts = counts
        self._waiting = waiting
        self._reordered = reordered

    def texts(self) -> Iterator[str]:
        """All families."""
        counts = self._counts()
        agreed = [((each,), counts.agreed.get(each, 0)) for each in DECISIONS]
        parted = [((each.value,), counts.parted.get(each.value, 0)) for each in Parting if each is not Parting.LATE]
        yield text_of(metric("batchyard_shadow_decisions_total"), agreed)
        yield text_of(metric("batchyard_shadow_divergences_total"), parted)
        yield text_of(metric("batchyard_shadow_late_total"), [((), counts.late)])
        yield text_of(metric("batchyard_shadow_alike_total"), [((), counts.alike)])
        yield text_of(metric("batchyard_shadow_reordered_total"), [((), self._reordered())])
        yield text_of(metric("batchyard_shadow_unseen_total"), [((), counts.unseen)])
        yield text_of(metric("batchyard_shadow_waiting"), [((), self._waiting())])


# --- webhooks ---
#
# What webhooks are asked, by the names of controller-runtime's pkg/webhook/internal/metrics: by path, all answers.


_WEBHOOKS_TOTAL: Final = "controller_runtime_webhook_requests_total"
_WEBHOOKS_TIME: Final = "controller_runtime_webhook_latency_seconds"
_IN_FLIGHT: Final = "controller_runtime_webhook_requests_in_flight"
#: Told from the start, as upstream does: a rate of what was never told is none.
_LIKELY: Final = ("200", "500")
_FAILED: Final = "500"
_Answer = TypeVar("_Answer")


class WebhookFigures:
    """See the module. `clock` tells seconds since whenever."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept = Kept((_WEBHOOKS_TOTAL, _WEBHOOKS_TIME, _IN_FLIGHT))

    def expect(self, paths: Iterable[str]) -> None:
        """These are served."""
        for path in paths:
            self._kept.set(_IN_FLIGHT, (path,), 0)
            for code in _LIKELY:
                self._kept.add(_WEBHOOKS_TOTAL, (path, code), 0)

    async def counted(self, path: str, answer: Awaitable[_Answer], code_of: Callable[[_Answer], int]) -> _Answer:
        """An answer, counted; one that comes to nothing counts as a failure."""
        began, code = self._clock(), _FAILED
        self._kept.add(_IN_FLIGHT, (path,))
        try:
            found = await answer
            code = str(code_of(found))
        finally:
            self._kept.add(_IN_FLIGHT, (path,), -1)
            self._kept.add(_WEBHOOKS_TOTAL, (path, code))
            self._kept.observe(_WEBHOOKS_TIME, (path,), self._clock() - began)
        return found

    def texts(self) -> Iterator[str]:
        """All families."""
        return self._kept.texts()
