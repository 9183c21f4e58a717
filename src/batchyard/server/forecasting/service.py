"""Forecast service: predicts when Workloads start, and warns about the effects of a dry-run change."""

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
from batchyard.apiserver.request import AnyResponse, ApiRequest, DeferredResponse, FinalResponse, Response, StatusError
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.subresources.queueing import ForecastRequest, may_see_workloads
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant
from batchyard.client.transport import to_storage_version
from batchyard.metrics.exposition import TextSource
from batchyard.metrics.forks import ANSWERED, FAILED, REJECTED, ForkMetrics
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.http.flow_control import too_many_requests
from batchyard.server.http.forked_writes import ChildProcess, ChildResult
from batchyard.sim.forecasting import calibration

# Queue of questions that take seconds to compute. They are answered one at a time in forks of this process.
#
# A child process (`http/forked_writes.py`) computes one answer as JSON, and is killed at its time limit. The queue is
# bounded. Answers are cached until the next change of an object.


#: The time limit of a child in seconds, and the maximum number of queued questions.
FORECAST_SECONDS_MAX: Final = 30.0
QUEUED_QUESTIONS_MAX: Final = 16
#: The length of the status code at the beginning of a child's result.
_CODE_LENGTH: Final = 3
_TIMEOUT_ERROR: Final = StatusError(
    503,
    "ServiceUnavailable",
    f"the forecast was not computed within {FORECAST_SECONDS_MAX:.0f} seconds",
    {"retryAfterSeconds": 10},
)
ResponseCallback: TypeAlias = Callable[[Response], None]
AnswerFunction: TypeAlias = Callable[[], Any]
"""Computes an answer in a child process. Raises StatusError if there is none."""


@dataclass(slots=True, eq=False)
class _QueuedQuestion:
    question: Hashable
    compute_answer: AnswerFunction
    revision: int
    callbacks: list[ResponseCallback] = field(default_factory=list)


class ForkPool:
    """Computes answers to queued questions, one at a time in a forked child process, and caches the answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, current_revision: Callable[[], int]) -> None:
        self._loop = loop
        self._revision = current_revision
        self._queue: deque[_QueuedQuestion] = deque()
        self._child: ChildProcess | None = None
        #: The cached answers, and their revision.
        self._cached: dict[Hashable, Response] = {}
        self._cached_revision = -1
        self.metrics = ForkMetrics(monotonic_seconds, lambda: len(self._queue))

    def submit_question(self, question: Hashable, compute_answer: AnswerFunction) -> DeferredResponse:
        """Return the deferred answer to a question, from `compute_answer()`. Raises StatusError if the queue is full.

        If an equal question is cached or queued, its answer is used.
        """
        cached_response = self._cached.get(question) if self._cached_revision == self._revision() else None
        if cached_response is not None:
            response = cached_response
            return DeferredResponse(lambda callback: _call_soon(self._loop, callback, response))
        queued_question = self._find_queued_question(question)
        if queued_question is None:
            if len(self._queue) >= QUEUED_QUESTIONS_MAX:
                self.metrics.count_rejection()
                raise too_many_requests()
            queued_question = _QueuedQuestion(question, compute_answer, self._revision())
            self._queue.append(queued_question)
            self._loop.call_soon(self._start_next_question)
        return DeferredResponse(queued_question.callbacks.append)

    def close(self) -> None:
        """Drop the queued forecast queries, and kill the child process that answers a query, if any."""
        self._queue.clear()
        if self._child is not None:
            self._child.kill()

    def _find_queued_question(self, question: Hashable) -> _QueuedQuestion | None:
        return next((queued for queued in self._queue if queued.question == question), None)

    def _start_next_question(self) -> None:
        if self._child is not None or not self._queue:
            return
        queued_question = self._queue.popleft()
        queued_question.revision = self._revision()
        self.metrics.begin()
        self._child = ChildProcess(
            self._loop,
            partial(_encode_answer, queued_question.compute_answer),
            FORECAST_SECONDS_MAX,
            partial(self._process_result, queued_question),
        )

    def _process_result(self, queued_question: _QueuedQuestion, child_result: ChildResult) -> None:
        self._child = None
        response = _decode_output(child_result.output)
        result = ANSWERED if response.code == 200 else REJECTED if len(child_result.output) >= _CODE_LENGTH else FAILED
        self.metrics.end(result, child_result.cpu_seconds, child_result.peak_memory)
        self._cache_response(queued_question, response)
        for callback in queued_question.callbacks:
            callback(response)
        self._loop.call_soon(self._start_next_question)

    def _cache_response(self, queued_question: _QueuedQuestion, response: Response) -> None:
        if response.code != 200:
            return
        if queued_question.revision != self._cached_revision:
            self._cached.clear()
            self._cached_revision = queued_question.revision
        self._cached[queued_question.question] = response


def _decode_output(output: bytes) -> Response:
    """Decode a child process's output, a three-digit status code and a body, as a response; 503 if it has no code."""
    if len(output) < _CODE_LENGTH:
        return _TIMEOUT_ERROR.response()
    return Response(int(output[:_CODE_LENGTH]), output[_CODE_LENGTH:])


def _encode_answer(compute_answer: AnswerFunction) -> bytes:
    try:
        return b"200" + msgspec.json.encode(compute_answer())
    except StatusError as rejection:
        response = rejection.response()
        return b"%d" % response.code + msgspec.json.encode(response.body)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: ResponseCallback, response: Response) -> None:
    loop.call_soon(callback, response)


# Calibration loop: makes periodic forecasts, and compares them with the actual start times to correct later forecasts.
#
# For a day after a user requested a forecast, the platform periodically forecasts the starts of some pending Workloads,
# in a fork. The actual start times are checked once a minute and update the calibration. The calibration is stored in a
# small file; an unreadable file is replaced by an empty calibration.


_LOG: Final = logging.getLogger("batchyard")
#: How long forecasts for calibration continue after the last request of a user.
CALIBRATION_USE_PERIOD: Final[Duration] = 24 * HOUR
CALIBRATION_INTERVAL: Final[Duration] = 30 * MINUTE
#: The interval between checks, in real time.
_CHECK_INTERVAL: Final = 60.0  # seconds
Clock: TypeAlias = Callable[[], Instant]


class CalibrationObjects(Protocol):
    """Read access to the stored objects, to compare forecasts with actual start times."""

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with this key, or None."""


class CalibrationLoop:
    """Periodically compares forecasts with the actual start times, and stores the resulting corrections in a file."""

    def __init__(
        self, path: Path, objects: CalibrationObjects, clock: Clock, request_records: Callable[[], DeferredResponse]
    ) -> None:
        """Read the calibration from its file.

        `request_records` requests forecasts of pending Workloads, and returns their records later, as JSON. It may
        raise StatusError.
        """
        self._path = path
        self._objects = objects
        self._clock = clock
        self._request_records = request_records
        self.calibration = _read_calibration(path)
        self._used_at: Instant | None = None
        self._samples_requested_at: Instant | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to compare forecasts with actual start times, once a minute."""
        self._timer = loop.call_later(_CHECK_INTERVAL, self._check_periodically, loop)

    def record_use(self) -> None:
        """Record that a user requested a forecast: the calibration continues for one more day. Check forecasts now."""
        self._used_at = self._clock()
        self.check_forecasts()

    def check_forecasts(self) -> None:
        """Compare due forecasts with actual start times.

        For a day after `record_use`, also request new forecasts, at most once every CALIBRATION_INTERVAL.
        """
        now = self._clock()
        new_calibration = calibration.apply_outcomes(self.calibration, now, self._actual_outcome)
        if new_calibration != self.calibration:
            self._store(new_calibration)
        if self._used_at is None or now - self._used_at > CALIBRATION_USE_PERIOD:
            return
        if self._samples_requested_at is None or now - self._samples_requested_at >= CALIBRATION_INTERVAL:
            self._samples_requested_at = now
            try:
                self._request_records().then(self._store_forecast_response)
            except StatusError:
                _LOG.debug("the forecast for the calibration is skipped, because too many requests are queued")

    def close(self) -> None:
        """Stop the periodic comparison of forecasts with actual start times."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_periodically(self, loop: asyncio.AbstractEventLoop) -> None:
        self.check_forecasts()
        self.begin(loop)

    def _actual_outcome(self, forecast_record: calibration.ForecastRecord) -> calibration.StartOutcome:
        namespace, name = forecast_record.workload.split("/", 1)
        return calibration.outcome_of(self._objects.get(Key(scheme.WORKLOAD, namespace, name)), forecast_record.uid)

    def _store_forecast_response(self, response: FinalResponse) -> None:
        if isinstance(response, Response) and response.code == 200:
            self._store(
                calibration.add_forecasts(
                    self.calibration, msgspec.json.decode(response.body, type=list[calibration.ForecastRecord])
                )
            )

    def _store(self, new_calibration: calibration.Calibration) -> None:
        self.calibration = new_calibration
        temporary_path = self._path.with_name(f"{self._path.name}.new")
        try:
            temporary_path.write_bytes(msgspec.json.encode(new_calibration))
            temporary_path.replace(self._path)
        except OSError as error:
            problem = f"{self._path}: cannot write the calibration of forecasts: {error.strerror or error}"
            _LOG.warning("%s; check its permissions and the free disk space", problem)


def _read_calibration(path: Path) -> calibration.Calibration:
    try:
        return msgspec.json.decode(path.read_bytes(), type=calibration.Calibration)
    except FileNotFoundError:
        return calibration.Calibration()
    except (OSError, msgspec.MsgspecError) as error:
        reason = getattr(error, "strerror", None) or error
        _LOG.error("%s: cannot read the calibration of forecasts (%s); starting with an empty one", path, reason)
        return calibration.Calibration()


ObjectLister: TypeAlias = Callable[[str], Iterable[Obj]]
VisibilityCheck: TypeAlias = Callable[[str], bool]


class ForecastFunctions(NamedTuple):
    """The functions that compute forecasts and warnings from the stored objects and the current time.

    `VisibilityCheck` filters the Workloads that a result may name.
    """

    #: Forecasts when a Workload starts, given its key, a seed and a calibration.
    forecast: Callable[[ObjectLister, Instant, Key, int, VisibilityCheck, calibration.Calibration], Mapping[str, Any]]
    #: Makes forecasts for calibration.
    sample: Callable[[ObjectLister, Instant, calibration.Calibration], Sequence[calibration.ForecastRecord]]
    #: Returns warnings about the effects of a changed object.
    warn: Callable[[ObjectLister, Instant, Obj, VisibilityCheck], Sequence[str]]


class ForecastObjects(Protocol):
    """Read access to the stored objects, for computing forecasts."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with this key, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind in a namespace (None: in all), sorted by namespace and name."""


class ForecastEngine:
    """The forecast service: computes forecasts in forked child processes, and corrects them by past start times."""

    def __init__(
        self,
        functions: ForecastFunctions,
        objects: ForecastObjects,
        clock: Callable[[], Instant],
        loop: asyncio.AbstractEventLoop,
        calibration_file: Path,
    ) -> None:
        """Start to calibrate forecasts; the calibration is stored in `calibration_file`."""
        self._functions = functions
        self._objects = objects
        self._clock = clock
        self._fork_pool = ForkPool(loop, lambda: objects.revision)
        self._calibration_loop = CalibrationLoop(calibration_file, objects, clock, self._request_samples)
        self._calibration_loop.begin(loop)
        #: Decides which Workloads a user may see. The platform sets it before it serves requests.
        self.authorizer: Authorizer | None = None

    def request_forecast(self, forecast_request: ForecastRequest) -> DeferredResponse:
        """Return the deferred forecast of a Workload's start. Raises StatusError if the queue is full."""
        deferred_forecast = self._fork_pool.submit_question(forecast_request, partial(self._forecast, forecast_request))
        self._calibration_loop.record_use()
        return deferred_forecast

    def with_effect_warnings(self, request: ApiRequest, path: ResourcePath, response: Response) -> AnyResponse:
        """Return the response to a dry-run change, with warnings about its effects if they can be computed."""
        changed_object = to_storage_version(path.served_kind, path.version, response.body)
        question = (request.user, msgspec.json.encode(changed_object))
        try:
            warnings = self._fork_pool.submit_question(
                question, partial(self._compute_warnings, changed_object, request)
            )
        except StatusError:
            return response
        return DeferredResponse(
            lambda respond: warnings.then(lambda warning_response: respond(_with_warnings(response, warning_response)))
        )

    @property
    def texts(self) -> TextSource:
        """The function that yields the metrics of the forecast computations, as Prometheus text."""
        return self._fork_pool.metrics.texts

    def close(self) -> None:
        """Stop the calibration, drop queued forecasts, and kill the running child process."""
        self._calibration_loop.close()
        self._fork_pool.close()

    def _forecast(self, forecast_request: ForecastRequest) -> Mapping[str, Any]:
        compute, may_see = self._functions.forecast, self._visibility_check(forecast_request)
        known_calibration = self._calibration_loop.calibration
        return compute(
            self._objects.list,
            self._clock(),
            forecast_request.subject,
            forecast_request.seed,
            may_see,
            known_calibration,
        )

    def _request_samples(self) -> DeferredResponse:
        return self._fork_pool.submit_question(("samples", self._clock()), self._sample_forecasts)

    def _sample_forecasts(self) -> Sequence[calibration.ForecastRecord]:
        return self._functions.sample(self._objects.list, self._clock(), self._calibration_loop.calibration)

    def _compute_warnings(self, changed_object: Obj, request: ApiRequest) -> Sequence[str]:
        return self._functions.warn(self._objects.list, self._clock(), changed_object, self._visibility_check(request))

    def _visibility_check(self, request: ForecastRequest | ApiRequest) -> VisibilityCheck:
        assert self.authorizer is not None, "ForecastEngine.authorizer must be set before requests are served"
        return partial(may_see_workloads, self.authorizer, request.user)


def _with_warnings(dry_run_response: Response, warning_response: FinalResponse) -> Response:
    if not isinstance(warning_response, Response) or warning_response.code != 200:
        return dry_run_response
    return dry_run_response._replace(warnings=(*dry_run_response.warnings, *msgspec.json.decode(warning_response.body)))
