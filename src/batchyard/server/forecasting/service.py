"""Forecast service: start times of Workloads, and warnings about the effects of a dry-run change."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.auth.authorization import Authorizer
from batchyard.apiserver.request import AnyResponse, ApiRequest, DeferredResponse, Response, StatusError
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.subresources.queueing import ForecastRequest, may_see_workloads
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant
from batchyard.client.transport import received
from batchyard.metrics.exposition import Texts
from batchyard.metrics.forks import ANSWERED, FAILED, REFUSED, ForkMetrics
from batchyard.server.clocks.wall import ticks
from batchyard.server.http.flow_control import too_many
from batchyard.server.http.forked_writes import Child, ChildResult
from batchyard.sim.forecasting.calibration import (
    Calibration,
    ForecastRecord,
    StartOutcome,
    outcome_of,
    remembering,
    settled,
)

# --- fork pool ---
#
# Queue of questions that take seconds, answered one at a time in forks of this process.
#
# A child (`http/forked_writes.py`) computes one answer as JSON, and is killed at its time limit. The queue is bounded.
# Answers are cached until the next change of an object.


#: The time limit of a child in seconds, and the maximum number of queued questions.
WITHIN: Final = 30.0
WAITING_MAX: Final = 16
#: The length of the status code at the beginning of a child's result.
_CODE: Final = 3
_NO_ANSWER: Final = StatusError(
    503, "ServiceUnavailable", f"no answer was found within {WITHIN:.0f} seconds", {"retryAfterSeconds": 10}
)
ResponseCallback: TypeAlias = Callable[[Response], None]
Work: TypeAlias = Callable[[], Any]
"""Computes an answer in a child. Raises Refused if it has none."""


@dataclass(slots=True, eq=False)
class _QueuedQuestion:
    """A queued question, and the callbacks that wait for its answer."""

    question: Hashable
    work: Work
    revision: int
    callback: list[ResponseCallback] = field(default_factory=list)


class ForkPool:
    """The queued questions, the running child, and the cached answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, revision: Callable[[], int]) -> None:
        self._loop = loop
        self._revision = revision
        self._waiting: deque[_QueuedQuestion] = deque()
        self._child: Child | None = None
        #: The cached answers, and their revision.
        self._known: dict[Hashable, Response] = {}
        self._known_at = -1
        self.figures = ForkMetrics(ticks, lambda: len(self._waiting))

    def ask(self, question: Hashable, work: Work) -> DeferredResponse:
        """Return the deferred answer to a question, computed by `work`. Raises Refused if the queue is full."""
        known = self._known.get(question) if self._known_at == self._revision() else None
        if known is not None:
            response = known
            return DeferredResponse(lambda callback: _soon(self._loop, callback, response))
        asked = self._same(question)
        if asked is None:
            if len(self._waiting) >= WAITING_MAX:
                self.figures.turn_away()
                raise too_many()
            asked = _QueuedQuestion(question, work, self._revision())
            self._waiting.append(asked)
            self._loop.call_soon(self._next)
        return DeferredResponse(asked.callback.append)

    def close(self) -> None:
        """Drop the queue, and kill the running child."""
        self._waiting.clear()
        if self._child is not None:
            self._child.kill()

    def _same(self, question: Hashable) -> _QueuedQuestion | None:
        """Return the queued entry of the same question, or None."""
        return next((asked for asked in self._waiting if asked.question == question), None)

    def _next(self) -> None:
        if self._child is not None or not self._waiting:
            return
        asked = self._waiting.popleft()
        asked.revision = self._revision()
        self.figures.begin()
        self._child = Child(self._loop, partial(_worked_out, asked.work), WITHIN, partial(self._answered, asked))

    def _answered(self, asked: _QueuedQuestion, found: ChildResult) -> None:
        """Pass on the result of a child, and cache it."""
        self._child = None
        response = _response(found.sent)
        result = ANSWERED if response.code == 200 else REFUSED if len(found.sent) >= _CODE else FAILED
        self.figures.end(result, found.cpu_seconds, found.memory)
        self._keep(asked, response)
        for callback in asked.callback:
            callback(response)
        self._loop.call_soon(self._next)

    def _keep(self, asked: _QueuedQuestion, response: Response) -> None:
        if response.code != 200:
            return
        if asked.revision != self._known_at:
            self._known.clear()
            self._known_at = asked.revision
        self._known[asked.question] = response


def _response(answer: bytes) -> Response:
    """Decode the result of a child: a three-digit status code and a body; empty if it was killed or failed."""
    if len(answer) < _CODE:
        return _NO_ANSWER.response()
    return Response(int(answer[:_CODE]), answer[_CODE:])


def _worked_out(work: Work) -> bytes:
    try:
        return b"200" + msgspec.json.encode(work())
    except StatusError as refused:
        response = refused.response()
        return b"%d" % response.code + msgspec.json.encode(response.body)


def _soon(loop: asyncio.AbstractEventLoop, callback: ResponseCallback, response: Response) -> None:
    loop.call_soon(callback, response)


# --- calibration loop ---
#
# Calibration loop: makes periodic forecasts, and corrects later ones by the actual outcomes.
#
# For a day after a user requested a forecast, the platform periodically forecasts the starts of some pending Workloads,
# in a fork. Outcomes are checked once a minute and update the calibration. The calibration is kept in a small file that
# nothing depends on, so an unreadable file is replaced.


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


Listed: TypeAlias = Callable[[str], Iterable[Obj]]
MaySee: TypeAlias = Callable[[str], bool]


class ForecastFunctions(NamedTuple):
    """The forecast functions. Each gets a lister of objects, the time, and a filter of Workloads that may be named."""

    #: Forecasts the start of a subject, by a seed and a calibration.
    forecast: Callable[[Listed, Instant, Key, int, MaySee, Calibration], Mapping[str, Any]]
    #: Makes forecasts for calibration.
    sample: Callable[[Listed, Instant, Calibration], Sequence[ForecastRecord]]
    #: Returns warnings about the effects of a changed object.
    warn: Callable[[Listed, Instant, Obj, MaySee], Sequence[str]]


class ForecastObjects(Protocol):
    """The stored objects."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def get(self, key: Key) -> Obj | None:
        """Return an object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""


class ForecastEngine:
    """The fork pool, and the calibration of the forecasts."""

    def __init__(
        self,
        foresight: ForecastFunctions,
        objects: ForecastObjects,
        clock: Callable[[], Instant],
        loop: asyncio.AbstractEventLoop,
        kept: Path,
    ) -> None:
        """`kept` is the file of the calibration."""
        self._foresight = foresight
        self._objects = objects
        self._clock = clock
        self._forks = ForkPool(loop, lambda: objects.revision)
        self._learning = CalibrationLoop(kept, objects, clock, self._sampled)
        self._learning.begin(loop)
        #: Decides which Workloads a user may see. It is set before requests are served.
        self.authorizer: Authorizer | None = None

    def ask(self, question: ForecastRequest) -> DeferredResponse:
        """Return the deferred forecast of a start."""
        later = self._forks.ask(question, partial(self._forecast, question))
        self._learning.used()
        return later

    def foreseen(self, request: ApiRequest, path: ResourcePath, answer: Response) -> AnyResponse:
        """Return the response to a dry run with warnings about the change; without them if the queue is full."""
        changed = received(path.info, path.version, answer.body)
        question = (request.user, msgspec.json.encode(changed))
        try:
            later = self._forks.ask(question, partial(self._warn, changed, request))
        except StatusError:
            return answer
        return DeferredResponse(lambda respond: later.then(lambda found: respond(_warned(answer, found))))

    @property
    def texts(self) -> Texts:
        """Return a function that yields the metrics of the fork pool."""
        return self._forks.figures.texts

    def close(self) -> None:
        """Stop the calibration and the fork pool."""
        self._learning.close()
        self._forks.close()

    def _forecast(self, question: ForecastRequest) -> Mapping[str, Any]:
        compute, may_see = self._foresight.forecast, self._may_see(question)
        known = self._learning.calibration
        return compute(self._objects.list, self._clock(), question.subject, question.seed, may_see, known)

    def _sampled(self) -> DeferredResponse:
        return self._forks.ask(("samples", self._clock()), self._sample)

    def _sample(self) -> Sequence[ForecastRecord]:
        return self._foresight.sample(self._objects.list, self._clock(), self._learning.calibration)

    def _warn(self, changed: Obj, request: ApiRequest) -> Sequence[str]:
        return self._foresight.warn(self._objects.list, self._clock(), changed, self._may_see(request))

    def _may_see(self, asked: ForecastRequest | ApiRequest) -> MaySee:
        assert self.authorizer is not None, "the authorizer is set before requests are served"
        return partial(may_see_workloads, self.authorizer, asked.user)


def _warned(answer: Response, found: Response) -> Response:
    if found.code != 200:
        return answer
    return answer._replace(warnings=(*answer.warnings, *msgspec.json.decode(found.body)))
