"""Controller metrics, by controller-runtime's names."""

from collections.abc import Callable, Iterator
from typing import Final

from batchyard.controller_runtime.runner import Runner
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import MetricGroup
from batchyard.metrics.registry import text_of

_TIME: Final = "controller_runtime_reconcile_time_seconds"
_WORK: Final = "workqueue_work_duration_seconds"
_AT_REST: Final = (
    ("controller_runtime_max_concurrent_reconciles", 1),
    ("controller_runtime_active_workers", 0),
)


class ControllerMetrics:
    """Durations of reconciliations; `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.begin = clock
        self._clock = clock
        self._kept = MetricGroup((_TIME, _WORK))

    def end(self, controller: str, began: float) -> None:
        """Observe the duration of a reconciliation."""
        took = self._clock() - began
        self._kept.observe(_TIME, (controller,), took)
        self._kept.observe(_WORK, (controller, controller), took)

    def texts(self, runner: Runner) -> Iterator[str]:
        """Yield all families."""
        loads = runner.loads()
        for name, field in (
            ("workqueue_depth", "waiting"),
            ("workqueue_adds_total", "adds"),
            ("workqueue_retries_total", "retries"),
        ):
            yield text_of(metric(name), (((load.name, load.name), getattr(load, field)) for load in loads))
        results = {"success": "succeeded", "requeue_after": "delayed", "error": "errors"}
        yield text_of(
            metric("controller_runtime_reconcile_total"),
            (((load.name, result), getattr(load, field)) for load in loads for result, field in results.items()),
        )
        errors = metric("controller_runtime_reconcile_errors_total")
        yield text_of(errors, (((load.name,), load.errors) for load in loads))
        for name in ("workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"):
            yield text_of(metric(name), (((load.name, load.name), 0) for load in loads))
        for name, value in _AT_REST:
            yield text_of(metric(name), (((load.name,), value) for load in loads))
        yield from self._kept.texts()
        failing: dict[str, int] = {}
        for controller, _, _ in runner.failing():
            failing[controller] = failing.get(controller, 0) + 1
        rows = (((load.name,), failing.get(load.name, 0)) for load in loads)
        yield text_of(metric("batchyard_failing_keys"), rows)
