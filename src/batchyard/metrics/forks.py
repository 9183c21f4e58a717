"""Metrics of processes forked for forecasts, of shadow mode (a comparison with a running Kueue), and of webhooks."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import MetricGroup
from batchyard.metrics.registry import gauge_text
from batchyard.shadow.findings import ComparisonCounts, DivergenceType

#: The results of a query: answered, rejected, failed in the fork, or not accepted because too many were waiting.
ANSWERED: Final = "answered"
REJECTED: Final = "refused"
FAILED: Final = "failed"
NOT_ACCEPTED: Final = "turnedaway"
RESULTS: Final = (ANSWERED, REJECTED, FAILED, NOT_ACCEPTED)
_QUESTIONS_TOTAL: Final = "batchyard_fork_questions_total"
_FORK_DURATION: Final = "batchyard_fork_duration_seconds"
_FORK_CPU: Final = "batchyard_fork_cpu_seconds_total"


class ForkMetrics:
    """Metrics of processes that the server forks to answer forecast queries; `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], waiting_count: Callable[[], int]) -> None:
        self._clock = clock
        self._waiting_count = waiting_count
        self._group = MetricGroup((_QUESTIONS_TOTAL, _FORK_CPU, _FORK_DURATION))
        for result in RESULTS:
            self._group.add(_QUESTIONS_TOTAL, (result,), 0)
        self._group.add(_FORK_CPU, (), 0)
        self._started_at = 0.0
        #: The peak memory of the last fork, in bytes; 0 before the first one.
        self._memory = 0

    def count_rejection(self) -> None:
        """Count a forecast query that the server rejects because too many queries already wait for a forked process."""
        self._group.add(_QUESTIONS_TOTAL, (NOT_ACCEPTED,))

    def begin(self) -> None:
        """Record the start time of the forked process that answers a query."""
        self._started_at = self._clock()

    def end(self, result: str, cpu_seconds: float, peak_memory_bytes: int) -> None:
        """Record the end of a forked process: the query's result, the CPU time, and the peak memory in bytes."""
        self._group.add(_QUESTIONS_TOTAL, (result,))
        self._group.add(_FORK_CPU, (), cpu_seconds)
        self._group.observe(_FORK_DURATION, (), self._clock() - self._started_at)
        self._memory = peak_memory_bytes

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of forked query processes."""
        yield from self._group.texts()
        yield gauge_text(metric("batchyard_fork_waiting"), [((), self._waiting_count())])
        yield gauge_text(metric("batchyard_fork_memory_bytes"), [((), self._memory)] if self._memory else [])


#: The kinds of decisions for which shadow mode compares Kueue with batchyard.
DECISION_KINDS: Final = ("admission", "preemption", "eviction")


class ShadowMetrics:
    """Metrics of shadow mode: how often batchyard would have decided like a running Kueue; computed at each scrape."""

    def __init__(
        self,
        counts: Callable[[], ComparisonCounts],
        waiting_count: Callable[[], int],
        vanished_divergence_count: Callable[[], int],
    ) -> None:
        self._counts = counts
        self._waiting_count = waiting_count
        self._vanished_divergence_count = vanished_divergence_count

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of shadow mode."""
        comparison_counts = self._counts()
        agreement_samples = [((kind,), comparison_counts.agreements.get(kind, 0)) for kind in DECISION_KINDS]
        kinds = [kind for kind in DivergenceType if kind is not DivergenceType.LATE]
        divergence_samples = [((kind.value,), comparison_counts.divergences.get(kind.value, 0)) for kind in kinds]
        yield gauge_text(metric("batchyard_shadow_decisions_total"), agreement_samples)
        yield gauge_text(metric("batchyard_shadow_divergences_total"), divergence_samples)
        yield gauge_text(metric("batchyard_shadow_late_total"), [((), comparison_counts.late_count)])
        yield gauge_text(metric("batchyard_shadow_alike_total"), [((), comparison_counts.alike_count)])
        yield gauge_text(metric("batchyard_shadow_reordered_total"), [((), self._vanished_divergence_count())])
        yield gauge_text(metric("batchyard_shadow_unseen_total"), [((), comparison_counts.unseen_count)])
        yield gauge_text(metric("batchyard_shadow_waiting"), [((), self._waiting_count())])


# Source of the names: controller-runtime, pkg/webhook/internal/metrics.


_WEBHOOKS_TOTAL: Final = "controller_runtime_webhook_requests_total"
_WEBHOOKS_TIME: Final = "controller_runtime_webhook_latency_seconds"
_WEBHOOKS_IN_FLIGHT: Final = "controller_runtime_webhook_requests_in_flight"
#: Status codes whose counters start at zero, as in controller-runtime, so that the first increase shows in a rate.
_LIKELY_STATUS_CODES: Final = ("200", "500")
_FAILED_STATUS_CODE: Final = "500"
_Answer = TypeVar("_Answer")


class WebhookMetrics:
    """Counts and durations of admission webhook requests by URL path; `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._group = MetricGroup((_WEBHOOKS_TOTAL, _WEBHOOKS_TIME, _WEBHOOKS_IN_FLIGHT))

    def expect(self, paths: Iterable[str]) -> None:
        """Start the in-flight and request counts of these URL paths at 0, so that the first request shows in a rate.

        Request counts start only for the likely status codes, 200 and 500.
        """
        for path in paths:
            self._group.set(_WEBHOOKS_IN_FLIGHT, (path,), 0)
            for code in _LIKELY_STATUS_CODES:
                self._group.add(_WEBHOOKS_TOTAL, (path, code), 0)

    async def count_response(self, path: str, future: Awaitable[_Answer], code_of: Callable[[_Answer], int]) -> _Answer:
        """Await the response of a webhook, count it, and return it; an exception is raised and counts as status 500."""
        started_at, status_code = self._clock(), _FAILED_STATUS_CODE
        self._group.add(_WEBHOOKS_IN_FLIGHT, (path,))
        try:
            response = await future
            status_code = str(code_of(response))
        finally:
            self._group.add(_WEBHOOKS_IN_FLIGHT, (path,), -1)
            self._group.add(_WEBHOOKS_TOTAL, (path, status_code))
            self._group.observe(_WEBHOOKS_TIME, (path,), self._clock() - started_at)
        return response

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of webhook requests."""
        return self._group.texts()


# Metrics of the webhooks that an embedded platform calls. Source: k8s.io/apiserver, pkg/admission/metrics/metrics.go.


_ADMISSION_DURATION: Final = "apiserver_admission_webhook_admission_duration_seconds"
_ADMISSION_REQUESTS: Final = "apiserver_admission_webhook_request_total"
_ADMISSION_REJECTIONS: Final = "apiserver_admission_webhook_rejection_count"
_ADMISSION_FAIL_OPEN: Final = "apiserver_admission_webhook_fail_open_count"
_CONDITION_ERRORS: Final = "apiserver_admission_match_condition_evaluation_errors_total"
_CONDITION_EXCLUSIONS: Final = "apiserver_admission_match_condition_exclusions_total"
#: Larger status codes are counted as this one, to bound the number of series.
_STATUS_CODE_MAX: Final = 600


class CalledWebhook(Protocol):
    """The webhook that a metric is about."""

    @property
    def name(self) -> str:
        """The name of the webhook."""

    @property
    def type(self) -> str:
        """`admit` for a mutating webhook, else `validating`."""


class AdmissionWebhookMetrics:
    """Counts and durations of the calls to admission webhooks, rejections, and match conditions."""

    def __init__(self) -> None:
        counters = (_ADMISSION_REQUESTS, _ADMISSION_REJECTIONS, _ADMISSION_FAIL_OPEN)
        self._group = MetricGroup((_ADMISSION_DURATION, *counters, _CONDITION_ERRORS, _CONDITION_EXCLUSIONS))

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of admission webhooks."""
        return self._group.texts()

    def count_call(self, webhook: CalledWebhook, operation: str, code: int, seconds: float, *, rejected: bool) -> None:
        """Count a call with its status code and its duration, and whether it rejected the request."""
        labels, rejected_text = (webhook.name, webhook.type, operation), str(rejected).lower()
        self._group.add(_ADMISSION_REQUESTS, (*labels, str(min(code, _STATUS_CODE_MAX)), rejected_text))
        self._group.observe(_ADMISSION_DURATION, (*labels, rejected_text), seconds)

    def count_rejection(self, webhook: CalledWebhook, operation: str, error_type: str, code: int) -> None:
        """Count a rejected request by the type of error."""
        labels = (webhook.name, webhook.type, operation, error_type, str(min(code, _STATUS_CODE_MAX)))
        self._group.add(_ADMISSION_REJECTIONS, labels)

    def count_fail_open(self, webhook: CalledWebhook) -> None:
        """Count a failed call that the failure policy Ignore ignores."""
        self._group.add(_ADMISSION_FAIL_OPEN, (webhook.name, webhook.type))

    def count_condition(self, webhook: CalledWebhook, operation: str, is_error: bool) -> None:
        """Count a match condition that failed (`is_error`), or that excluded a request."""
        name = _CONDITION_ERRORS if is_error else _CONDITION_EXCLUSIONS
        self._group.add(name, (webhook.name, "webhook", webhook.type, operation))


# Metrics of conversion webhooks. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/conversion/metrics.go.


_CONVERSION_DURATION: Final = "apiserver_crd_conversion_webhook_duration_seconds"
_CONVERSION_REQUESTS: Final = "apiserver_conversion_webhook_request_total"
_CONVERSION_REQUEST_DURATION: Final = "apiserver_conversion_webhook_duration_seconds"


class ConversionWebhookMetrics:
    """Counts and durations of the calls to conversion webhooks."""

    def __init__(self) -> None:
        self._group = MetricGroup((_CONVERSION_DURATION, _CONVERSION_REQUESTS, _CONVERSION_REQUEST_DURATION))

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of conversion webhooks."""
        return self._group.texts()

    def count_conversion(self, definition: str, versions: tuple[str, str], failure_type: str, seconds: float) -> None:
        """Count a call for a definition, from one version to another; `failure_type` is '' if it succeeded."""
        result = ("failure" if failure_type else "success", failure_type)
        self._group.observe(_CONVERSION_DURATION, (definition, *versions, str(not failure_type).lower()), seconds)
        self._group.add(_CONVERSION_REQUESTS, result)
        self._group.observe(_CONVERSION_REQUEST_DURATION, result, seconds)
