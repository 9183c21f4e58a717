"""Telling the platform what becomes of a run: written at once, announced as soon as the platform can take it."""

import signal
from functools import partial

from batchyard.node import clock
from batchyard.node.loop import Loop
from batchyard.node.run import Run

#: How long the platform may be too busy to hear of a change.
_ANNOUNCE_SECONDS = 1.0
_ANNOUNCE_AGAIN_SECONDS = 0.02
_WARNINGS_MAX = 16


class Teller:
    """Writes a run's state and announces it; the keeper never waits for the platform."""

    def __init__(self, run: Run, loop: Loop) -> None:
        self._run = run
        self._loop = loop
        self._warned = 0
        self._warnings: list[dict[str, object]] = []

    def tell(self, **changes: object) -> None:
        """Write changes of the state, and announce them."""
        self.write(**changes)
        self._announce(clock.monotonic() + _ANNOUNCE_SECONDS)

    def tell_last(self, **changes: object) -> None:
        """The same where nothing comes after it."""
        self.write(**changes)
        self._run.announce(_ANNOUNCE_SECONDS)

    def warn(self, reason: str, message: str) -> None:
        """Tell what a kubelet would record as an event of the container."""
        self._warned += 1
        warning: dict[str, object] = {"n": self._warned, "reason": reason, "message": message}
        self._warnings = [*self._warnings, warning][-_WARNINGS_MAX:]
        self.tell(warnings=self._warnings)

    def write(self, **changes: object) -> None:
        """Write the state; while there is no room for it, wait: what happened must not be forgotten."""
        while not self._run.write(**changes) and not self._run.is_gone():
            signal.sigtimedwait([], 1.0)

    def _announce(self, end: float) -> None:
        if not self._run.announce() and clock.monotonic() < end:
            self._loop.after(_ANNOUNCE_AGAIN_SECONDS, partial(self._announce, end))
