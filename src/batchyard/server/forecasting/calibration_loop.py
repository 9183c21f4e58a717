"""What a platform that runs learns from its own forecasts: it asks itself now and then, and sees what comes of it.

Once somebody has asked when something starts, the platform forecasts the starts of a few of those who wait, every so
often for a day, in a fork as any question. What became of them is looked up once a minute, and corrects what is told
next (core/calibration). All of it is kept in one small file; nothing rests on it, so that one that cannot be read is
begun anew.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.request import Refused, Response
from batchyard.apiserver.responses import Later
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant
from batchyard.sim.forecasting.calibration import Calibration, Fate, Sample, fate_of, remembering, settled

_LOG: Final = logging.getLogger("batchyard")
#: For so long after somebody asked.
IN_USE: Final[Duration] = 24 * HOUR
EVERY: Final[Duration] = 30 * MINUTE
#: Between looks, by the clock on the wall.
_TICK: Final = 60.0  # seconds
Clock: TypeAlias = Callable[[], Instant]


class Objects(Protocol):
    """Where the objects are."""

    def get(self, key: Key) -> Obj | None:
        """An object, if it is there."""


class Calibrating:
    """See the module."""

    def __init__(self, path: Path, objects: Objects, clock: Clock, ask: Callable[[], Later]) -> None:
        """`ask` has samples worked out, as JSON; it may refuse."""
        self._path = path
        self._objects = objects
        self._clock = clock
        self._ask = ask
        self.calibration = _read(path)
        self._used: Instant | None = None
        self._sampled: Instant | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look every minute from now on."""
        self._timer = loop.call_later(_TICK, self._tick, loop)

    def used(self) -> None:
        """Somebody asked."""
        self._used = self._clock()
        self.look()

    def look(self) -> None:
        """See what became of what was foretold, and foretell anew if it is time."""
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
            except Refused:
                _LOG.debug("no forecast to learn from: too many ask")

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self.begin(loop)

    def _fate(self, sample: Sample) -> Fate:
        namespace, name = sample.workload.split("/", 1)
        return fate_of(self._objects.get(Key(scheme.WORKLOAD, namespace, name)), sample.uid)

    def _remember(self, answer: Response) -> None:
        if answer.code == 200:
            self._keep(remembering(self.calibration, msgspec.json.decode(answer.body, type=list[Sample])))

    def _keep(self, known: Calibration) -> None:
        self.calibration = known
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            beside.write_bytes(msgspec.json.encode(known))
            beside.replace(self._path)
        except OSError as error:
            _LOG.warning("%s: what became of forecasts is not kept: %s", self._path, error)


def _read(path: Path) -> Calibration:
    """What was kept; nothing where there is no such file, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return Calibration()
    except (OSError, msgspec.MsgspecError) as error:
        _LOG.error("%s: what became of forecasts is forgotten: %s", path, error)
        return Calibration()
