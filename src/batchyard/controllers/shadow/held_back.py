"""When another scheduler decided nothing, since it waited for pods of somebody admitted to be ready (blockAdmission).

Its one thread stands still meanwhile, so what ours has decided is not late, and the other has seen nothing new.
Source: waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from batchyard.base.instant import Instant
from batchyard.controllers.admission.pods_ready import PodsReadyGate
from batchyard.core.lifecycle.pods_ready import PodsReadyPolicy
from batchyard.ports.client import WatchEvent

_POLICY: Final = PodsReadyPolicy(without_job=True)
#: So many times are remembered: orders are tried of what happened a moment ago.
_SPANS_MAX: Final = 100


class HeldBack:
    """See the module. Told of all Workloads, of whichever tree."""

    def __init__(self) -> None:
        self._gate = PodsReadyGate(_POLICY)
        #: From when until when nobody was admitted, in order; the last may have no end yet.
        self._spans: deque[tuple[Instant, Instant | None]] = deque(maxlen=_SPANS_MAX)

    def recall(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """All Workloads that there are, as where it begins or a watch had a gap."""
        self._gate = PodsReadyGate(_POLICY)
        self.observe(events, now)

    def observe(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Take note of changes of Workloads."""
        for event in events:
            self._gate.observe(event)
        was_closed = bool(self._spans) and self._spans[-1][1] is None
        if self._gate.is_closed and not was_closed:
            self._spans.append((now, None))
        elif was_closed and not self._gate.is_closed:
            self._spans[-1] = (self._spans[-1][0], now)

    def since(self, first: Instant, now: Instant) -> Instant:
        """From when on what was so first counts: not before the other could decide again; `now` until then."""
        for begin, end in reversed(self._spans):
            if begin <= now:
                return max(first, now if end is None or end > now else end)
        return first
