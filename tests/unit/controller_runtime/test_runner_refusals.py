"""The runner retries writes that the API server rejects repeatedly."""

import pytest

from batchyard.api.errors import ApiError, InvalidObject, TemporarilyForbidden
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Create, Reader
from batchyard.interfaces.controller import ReconcileResult
from unit.controller_runtime.test_runner import RunnerBench, ScriptedController, count_to, is_touch, job, key


@pytest.mark.parametrize("error", [InvalidObject([]), TemporarilyForbidden("no right")])
def test_rejected_write_is_retried_with_backoff_and_reported(error: ApiError) -> None:
    controller = ScriptedController(script=count_to(1))
    bench = RunnerBench(controller, errors=[error] * 4)
    bench.run(Create(job()))
    assert controller.reconciled == [("a", wait * SECOND) for wait in (0, 1, 3, 7, 15, 15)]
    assert bench.recorded == [(at * SECOND, "scripted", "WriteRefused") for at in (1, 3, 7)]


def test_rejected_independent_write_is_retried_with_limited_backoff() -> None:
    def script(_key: Key, reader: Reader, _now: Instant) -> ReconcileResult:
        return ReconcileResult([] if reader.get(key("b")) else [Create(job("b")), Create(job("c"))], independent=True)

    controller = ScriptedController(script=script, predicate=is_touch)
    bench = RunnerBench(controller, errors=[InvalidObject([])] * 12)
    bench.touch()
    bench.run()
    assert controller.reconciled == [("a", second * SECOND) for second in (0, 1, 3, 7, 15, 23, 31)]
