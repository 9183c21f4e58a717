"""When controllers above the lowest rank may look: at once, or where they have a pace as often as that says."""

from batchyard.base.instant import Instant
from batchyard.ports.kernel import Kernel, Pace, Work


class Turns:
    """See the module."""

    def __init__(self, kernel: Kernel, pace: Pace | None) -> None:
        self._kernel = kernel
        self._pace = pace
        self._is_awaited = False

    @property
    def is_awaited(self) -> bool:
        """Whether the next turn is yet to come, and the kernel knows of it."""
        return self._is_awaited

    def has_come(self, now: Instant, then: Work) -> bool:
        """Whether it is their turn; otherwise that work, which asks again, is done when it may be."""
        turn = now if self._pace is None else self._pace.next_turn()
        if turn <= now:
            return True
        if not self._is_awaited:
            self._is_awaited = True
            self._kernel.call_at(turn, lambda: self._come(then))
        return False

    def take(self, look: Work) -> None:
        """Take the turn: look."""
        if self._pace is None:
            look()
        else:
            self._pace.take(look)

    def _come(self, then: Work) -> None:
        self._is_awaited = False
        then()
