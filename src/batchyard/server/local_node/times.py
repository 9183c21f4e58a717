"""Times that the programs of the node tell, in the platform's time, and wishes of the platform in the machine's.

Those programs know the machine's clock alone. The platform's time may be ahead of it: it does not go back where the
machine's clock was set back, nor where it ran faster before.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND, Duration, Instant

#: Clocks that differ by less are taken for equal.
_DIFFERS: Final = 2 * SECOND
#: Of so many times it is remembered what they are, so that they stay what they were if a clock is set.
_REMEMBERED_MAX: Final = 65_536
_TIMES: Final = ("startedAt", "finishedAt")


class NodeTimes:
    """See the module. `clock` tells the platform's time."""

    def __init__(self, clock: Callable[[], Instant], machine_clock: Callable[[], Instant]) -> None:
        self.clock = clock
        self._machine_clock = machine_clock
        self._ahead: Duration = 0
        self._remembered = lru_cache(maxsize=_REMEMBERED_MAX)(self.here)

    def here(self, told: Instant) -> Instant:
        """The platform's time when it is that time by the machine's clock, as it is now."""
        return told + self._platform_is_ahead()

    def there(self, instant: Instant) -> Instant:
        """The machine's time when it is that time here."""
        return instant - self._platform_is_ahead()

    def state(self, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state of a run with its times in the platform's."""
        state = {**told, **{field: self._remembered(told[field]) for field in _TIMES if told.get(field)}}
        exceeded = told.get("exceeded")
        return {**state, "exceeded": {**exceeded, "at": self._remembered(exceeded["at"])}} if exceeded else state

    def run(self, told: Obj) -> Obj:
        """A run with its times in the platform's: those of its state, and of the wish that it end."""
        run = {**told, "status": self.state(told["status"])}
        return {**run, "stop": {**run["stop"], "at": self._remembered(run["stop"]["at"])}} if "stop" in run else run

    def stopped_there(self, run: Obj) -> Obj:
        """A run that is to end, with the time of that wish in the machine's."""
        return {**run, "stop": {**run["stop"], "at": self.there(run["stop"]["at"])}}

    def _platform_is_ahead(self) -> Duration:
        ahead = self.clock() - self._machine_clock()
        if abs(ahead - self._ahead) > _DIFFERS:
            self._ahead = ahead
        return self._ahead
