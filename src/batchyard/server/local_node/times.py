"""Conversion between the platform's time and the machine's time, which the programs of the node use.

The platform's time may be ahead: it does not go back when the machine's clock is set back, or after it was accelerated.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND, Duration, Instant

#: The tolerated difference of the clocks.
_DIFFERS: Final = 2 * SECOND
#: Maximum remembered conversions, so that a time keeps its converted value when a clock is set.
_REMEMBERED_MAX: Final = 65_536
_TIMES: Final = ("startedAt", "finishedAt")


class NodeTimes:
    """The difference of both clocks, and the converted times. `clock` returns the platform's time."""

    def __init__(self, clock: Callable[[], Instant], machine_clock: Callable[[], Instant]) -> None:
        self.clock = clock
        self._machine_clock = machine_clock
        self._ahead: Duration = 0
        self._remembered = lru_cache(maxsize=_REMEMBERED_MAX)(self.here)

    def here(self, recorded: Instant) -> Instant:
        """Convert machine time to platform time."""
        return recorded + self._platform_is_ahead()

    def there(self, instant: Instant) -> Instant:
        """Convert platform time to machine time."""
        return instant - self._platform_is_ahead()

    def state(self, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the times of a run's state to platform time."""
        state = {**recorded, **{field: self._remembered(recorded[field]) for field in _TIMES if recorded.get(field)}}
        exceeded = recorded.get("exceeded")
        return {**state, "exceeded": {**exceeded, "at": self._remembered(exceeded["at"])}} if exceeded else state

    def run(self, recorded: Obj) -> Obj:
        """Convert the times of a run to platform time: those of its state and of its stop."""
        run = {**recorded, "status": self.state(recorded["status"])}
        return {**run, "stop": {**run["stop"], "at": self._remembered(run["stop"]["at"])}} if "stop" in run else run

    def stopped_there(self, run: Obj) -> Obj:
        """Convert the time of a run's stop to machine time."""
        return {**run, "stop": {**run["stop"], "at": self.there(run["stop"]["at"])}}

    def _platform_is_ahead(self) -> Duration:
        ahead = self.clock() - self._machine_clock()
        if abs(ahead - self._ahead) > _DIFFERS:
            self._ahead = ahead
        return self._ahead
