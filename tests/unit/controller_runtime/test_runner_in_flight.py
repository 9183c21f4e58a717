"""The runner: keys that are reconciled again while their writes are in flight."""

from collections.abc import Sequence

import pytest

from batchyard.api.errors import ApiError, Conflict
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Reader, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from unit.controller_runtime.test_runner import RunnerBench, ScriptedController, is_touch, job

A = Key("Job.batch", "team", "a")
LATENCY = 5


class CreatingController(ScriptedController):
    """A controller that creates one Job in each of its first reconciles, and logs the results."""

    def __init__(self, names: Sequence[str], in_flight_max: int) -> None:
        super().__init__(script=self.create_next, predicate=is_touch)
        self.names = list(names)
        self.in_flight_max = in_flight_max
        self.results: list[tuple[str, ApiError | None]] = []

    def create_next(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        if not self.names:
            return ReconcileResult()
        result = ReconcileResult(
            requeue_at=now, independent=True, in_flight_max=self.in_flight_max, on_result=self.log_result
        )
        name = self.names.pop(0)
        result.add(Create(job(name)), [EventRecord(A, "Normal", f"Created-{name}", "")])
        return result

    def log_result(self, write: Write, error: ApiError | None) -> bool:
        assert isinstance(write, Create)
        self.results.append((write.obj["metadata"]["name"], error))
        return False


@pytest.mark.parametrize(
    ("in_flight_max", "expected_instants"),
    [(9, [0, 0, 0, 0]), (2, [0, 0, 0, LATENCY]), (1, [0, 0, LATENCY, LATENCY]), (0, [0, LATENCY, 2 * LATENCY])],
)
def test_key_is_reconciled_while_writes_are_in_flight(in_flight_max: int, expected_instants: list[int]) -> None:
    controller = CreatingController("bcd", in_flight_max)
    bench = RunnerBench(controller, latency=LATENCY)
    bench.touch()
    bench.run()
    assert [at for _, at in controller.reconciled][: len(expected_instants)] == expected_instants
    assert [name for name, _ in controller.results] == ["b", "c", "d"]
    assert [reason for _, _, reason in bench.recorded] == ["Created-b", "Created-c", "Created-d"]
    assert bench.runner.is_idle()


def test_rejected_write_in_flight_is_reported_and_key_retried() -> None:
    controller = CreatingController("bcd", 9)
    bench = RunnerBench(controller, errors=[Conflict("first")], latency=LATENCY)
    bench.touch()
    bench.run()
    assert [(name, error is None) for name, error in controller.results] == [("b", False), ("c", True), ("d", True)]
    assert [reason for _, _, reason in bench.recorded] == ["Created-c", "Created-d"]
    assert controller.reconciled[-1][1] >= LATENCY
    assert bench.runner.failing_keys() == []
