"""Calibration loop: makes periodic forecasts, and corrects later ones by the actual outcomes.

For a day after a user requested a forecast, the platform periodically forecasts the starts of some pending Workloads,
in a fork. Outcomes are checked once a minute and update the calibration. The calibration is kept in a small file that
nothing depends on, so an unreadable file is replaced.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.request import Response, StatusError
from batchyard.apiserver.responses import DeferredResponse
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant
from batchyard.sim.forecasting.calibration import (
    Calibration,
    ForecastRecord,
    StartOutcome,
    outcome_of,
    remembering,
    settled,
)

_LOG: Final = logging.getLogger("batchyard")
#: How long forecasts for calibration continue after the last request of a user.
IN_USE: Final[Duration] = 24 * HOUR
EVERY: Final[Duration] = 30 * MINUTE
#: The interval between checks, in real time.
_TICK: Final = 60.0  # seconds
Clock: TypeAlias = Callable[[], Instant]


class CalibrationObjects(Protocol):
    """The stored objects."""

    def get(self, key: Key) -> Obj | None:
        """Return an object, or None."""


class CalibrationLoop:
    """The calibration, its file, and the times of the last request and the last forecasts."""

    def __init__(
        self, path: Path, objects: CalibrationObjects, clock: Clock, ask: Callable[[], DeferredResponse]
    ) -> None:
        """`ask` returns the deferred forecasts as JSON. It may raise Refused."""
        self._path = path
        self._objects = objects
        self._clock = clock
        self._ask = ask
        self.calibration = _read(path)
        self._used: Instant | None = None
        self._sampled: Instant | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check every minute from now on."""
        self._timer = loop.call_later(_TICK, self._tick, loop)

    def used(self) -> None:
        """Record that a user requested a forecast."""
        self._used = self._clock()
        self.look()

    def look(self) -> None:
        """Check the outcomes of forecasts, and make new ones if they are due."""
        now = self._clock()
        known = settled(self.calibration, now, self._fate)
        if known != self.calibration:
            self._keep(known)
        if self._used is None or now - self._used > IN_USE:
            return
        if self._sampled is None or now - self._sampled >= EVERY:
            self._sampled = now
            try:
                self._ask().then(self._remember)
            except StatusError:
                _LOG.debug("no forecast for calibration: too many requests")

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self.begin(loop)

    def _fate(self, sample: ForecastRecord) -> StartOutcome:
        namespace, name = sample.workload.split("/", 1)
        return outcome_of(self._objects.get(Key(scheme.WORKLOAD, namespace, name)), sample.uid)

    def _remember(self, answer: Response) -> None:
        if answer.code == 200:
            self._keep(remembering(self.calibration, msgspec.json.decode(answer.body, type=list[ForecastRecord])))

    def _keep(self, known: Calibration) -> None:
        self.calibration = known
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            beside.write_bytes(msgspec.json.encode(known))
            beside.replace(self._path)
        except OSError as error:
            _LOG.warning("%s: cannot write the calibration of forecasts: %s", self._path, error)


def _read(path: Path) -> Calibration:
    """Read the calibration; an empty one if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return Calibration()
    except (OSError, msgspec.MsgspecError) as error:
        _LOG.error("%s: cannot read the calibration of forecasts; starting over: %s", path, error)
        return Calibration()
