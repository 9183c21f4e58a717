"""Metrics of controllers (controller-runtime's names) and of API requests (k8s.io/apiserver's names)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from batchyard.apiserver.auth.authorization import verb_of
from batchyard.apiserver.request import DeferredResponse, Response
from batchyard.apiserver.server import AuditedRequest
from batchyard.controller_runtime.runner import Runner
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import MetricGroup
from batchyard.metrics.registry import Labels, gauge_text

_RECONCILE_TIME: Final = "controller_runtime_reconcile_time_seconds"
_WORK_DURATION: Final = "workqueue_work_duration_seconds"
_CONSTANT_GAUGES: Final = (
    ("controller_runtime_max_concurrent_reconciles", 1),
    ("controller_runtime_active_workers", 0),
)


class ControllerMetrics:
    """Metrics of controllers and their work queues; the function `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.begin = clock
        self._clock = clock
        self._group = MetricGroup((_RECONCILE_TIME, _WORK_DURATION))

    def end(self, controller: str, started_at: float) -> None:
        """Record the duration of a reconciliation that began at `started_at` (monotonic seconds)."""
        duration = self._clock() - started_at
        self._group.observe(_RECONCILE_TIME, (controller,), duration)
        self._group.observe(_WORK_DURATION, (controller, controller), duration)

    def texts(self, runner: Runner) -> Iterator[str]:
        """Yield the exposition text of all metrics of the runner's controllers and work queues."""
        queues = runner.queue_stats()
        yield _workqueue_text("workqueue_depth", ((queue.name, queue.queued_count) for queue in queues))
        yield _workqueue_text("workqueue_adds_total", ((queue.name, queue.adds) for queue in queues))
        yield _workqueue_text("workqueue_retries_total", ((queue.name, queue.retries) for queue in queues))
        reconcile_counts: list[tuple[Labels, int]] = []
        for queue in queues:
            counts_by_result = {"success": queue.succeeded, "requeue_after": queue.delayed, "error": queue.errors}
            reconcile_counts += [((queue.name, result), count) for result, count in counts_by_result.items()]
        yield gauge_text(metric("controller_runtime_reconcile_total"), reconcile_counts)
        errors = metric("controller_runtime_reconcile_errors_total")
        yield gauge_text(errors, (((queue.name,), queue.errors) for queue in queues))
        for name in ("workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"):
            yield _workqueue_text(name, ((queue.name, 0) for queue in queues))
        for name, value in _CONSTANT_GAUGES:
            yield gauge_text(metric(name), (((queue.name,), value) for queue in queues))
        yield from self._group.texts()
        failing_key_counts: dict[str, int] = {}
        for controller, _, _ in runner.failing_keys():
            failing_key_counts[controller] = failing_key_counts.get(controller, 0) + 1
        samples = (((queue.name,), failing_key_counts.get(queue.name, 0)) for queue in queues)
        yield gauge_text(metric("batchyard_failing_keys"), samples)


def _workqueue_text(name: str, values: Iterable[tuple[str, int]]) -> str:
    """Return the text of a work queue metric; its labels `name` and `controller` are both the controller's name."""
    return gauge_text(metric(name), [((controller, controller), value) for controller, value in values])


# Source of the names: k8s.io/apiserver, pkg/endpoints/metrics.


_REQUESTS_TOTAL: Final = "apiserver_request_total"
_REQUESTS_TIME: Final = "apiserver_request_duration_seconds"
_APPLY_MEDIA_TYPE: Final = "application/apply-patch+yaml"
_VERB_LABELS: Final = {
    **{verb: verb.upper() for verb in ("get", "list", "watch", "patch", "delete", "deletecollection", "head")},
    "create": "POST",
    "update": "PUT",
    "post": "POST",
    "put": "PUT",
}


class RequestMetrics:
    """Metrics of requests to the API server: counts and durations; the function `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.begin = clock
        self._clock = clock
        self._group = MetricGroup((_REQUESTS_TOTAL, _REQUESTS_TIME))
        #: The labels of the last answered request.
        self._labels: Labels = ()
        #: Yields the exposition text of further metrics, such as those of admission webhooks.
        self.webhook_texts: Callable[[], Iterable[str]] = tuple

    def count_response(self, request: AuditedRequest) -> None:
        """Store the labels of an answered API request, and count it, unless its response is deferred.

        The caller must count a deferred response with `count` when its status code is known.
        """
        self._labels = _request_labels(request)
        if not isinstance(request.response, DeferredResponse):
            self.count(self._labels, request.response.code if isinstance(request.response, Response) else 200)

    def count(self, labels: Labels, status_code: int) -> None:
        """Count an API request with these labels that was answered with this status code."""
        self._group.add(_REQUESTS_TOTAL, (*labels, str(status_code)))

    @property
    def latest_labels(self) -> Labels:
        """The label values of the last answered API request; empty before the first one."""
        return self._labels

    def record_duration(self, labels: Labels, started_at: float) -> None:
        """Record the time from `started_at` (monotonic seconds) until the changes of an API request are durable."""
        self._group.observe(_REQUESTS_TIME, labels, self._clock() - started_at)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of API requests."""
        yield from self._group.texts()
        yield from self.webhook_texts()


def _request_labels(audited_request: AuditedRequest) -> Labels:
    """Return the label values of an API request; unknown verbs and resources get fixed values, to limit the series."""
    request, path = audited_request.effective_request, audited_request.path
    verb = verb_of(request, path)
    verb_label = _VERB_LABELS.get(verb, "OTHER")
    if verb_label == "PATCH" and request.headers.get("content-type") == _APPLY_MEDIA_TYPE:
        verb_label = "APPLY"
    dry_run = "All" if request.query.get("dryRun") == "All" else ""
    if not path or (path.subresource and path.handlers is None and path.subresource not in path.resource.subresources):
        return verb_label, dry_run, "", "", "", "", "", "apiserver"
    scope = "resource" if path.name or verb == "create" else ("namespace" if path.namespace else "cluster")
    return (
        verb_label,
        dry_run,
        path.served_kind.group,
        path.version,
        path.served_kind.plural,
        path.subresource,
        scope,
        "apiserver",
    )
