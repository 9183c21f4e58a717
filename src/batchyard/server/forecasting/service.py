"""Forecast service: start times of Workloads, and warnings about the effects of a dry-run change."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.apiserver.auth.authorization import Authorizer
from batchyard.apiserver.request import ApiRequest, Response, StatusError
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.responses import AnyResponse, DeferredResponse
from batchyard.apiserver.subresources.forecasts import ForecastRequest, may_see_workloads
from batchyard.base.instant import Instant
from batchyard.client.resource_paths import received
from batchyard.metrics.exposition import Texts
from batchyard.server.forecasting.calibration_loop import CalibrationLoop
from batchyard.server.forecasting.fork_pool import ForkPool
from batchyard.sim.forecasting.calibration import Calibration, ForecastRecord

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
