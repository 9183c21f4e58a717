"""What webhooks are asked, by the names of controller-runtime's pkg/webhook/internal/metrics: by path, all answers."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeVar

from batchyard.metrics.kept import Kept

_TOTAL: Final = "controller_runtime_webhook_requests_total"
_TIME: Final = "controller_runtime_webhook_latency_seconds"
_IN_FLIGHT: Final = "controller_runtime_webhook_requests_in_flight"
#: Told from the start, as upstream does: a rate of what was never told is none.
_LIKELY: Final = ("200", "500")
_FAILED: Final = "500"
_Answer = TypeVar("_Answer")


class WebhookFigures:
    """See the module. `clock` tells seconds since whenever."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept = Kept((_TOTAL, _TIME, _IN_FLIGHT))

    def expect(self, paths: Iterable[str]) -> None:
        """These are served."""
        for path in paths:
            self._kept.set(_IN_FLIGHT, (path,), 0)
            for code in _LIKELY:
                self._kept.add(_TOTAL, (path, code), 0)

    async def counted(self, path: str, answer: Awaitable[_Answer], code_of: Callable[[_Answer], int]) -> _Answer:
        """An answer, counted; one that comes to nothing counts as a failure."""
        began, code = self._clock(), _FAILED
        self._kept.add(_IN_FLIGHT, (path,))
        try:
            found = await answer
            code = str(code_of(found))
        finally:
            self._kept.add(_IN_FLIGHT, (path,), -1)
            self._kept.add(_TOTAL, (path, code))
            self._kept.observe(_TIME, (path,), self._clock() - began)
        return found

    def texts(self) -> Iterator[str]:
        """All families."""
        return self._kept.texts()
