"""The runner pauses for an object that a controller writes without end."""

from batchyard.api.meta import Key
from batchyard.base.instant import SECOND, Instant
from batchyard.controller_runtime.kernel import WRITES_PER_SECOND_MAX
from batchyard.controller_runtime.runner import WRITE_LOOP_PAUSE
from batchyard.interfaces.client import Create, Reader
from batchyard.interfaces.controller import ReconcileResult
from unit.controller_runtime.test_runner import RunnerBench, ScriptedController, count_to, job

ENDLESS = 1_000_000


def test_controller_that_writes_without_end_pauses() -> None:
    bench = RunnerBench(ScriptedController(script=count_to(ENDLESS)))
    bench.run(Create(job()), seconds=1)
    assert bench.spec() == {"count": WRITES_PER_SECOND_MAX}
    assert bench.recorded == [(0, "scripted", "WriteLoop")]
    bench.run(seconds=WRITE_LOOP_PAUSE / SECOND)
    assert bench.spec() == {"count": 2 * WRITES_PER_SECOND_MAX}


def test_other_objects_continue() -> None:
    bench = RunnerBench(ScriptedController(script=count_to(ENDLESS)))
    bench.run(Create(job()), seconds=1)
    bench.run(Create(job("b", count=ENDLESS - 3)), seconds=2)
    assert bench.spec("b") == {"count": ENDLESS}


def test_writes_at_a_lower_rate_are_not_delayed() -> None:
    bench = RunnerBench(ScriptedController(script=count_to(2 * WRITES_PER_SECOND_MAX)), latency=SECOND // 400)
    bench.run(Create(job()))
    assert bench.spec() == {"count": 2 * WRITES_PER_SECOND_MAX}
    assert bench.recorded == []


def test_key_for_all_work_of_a_controller_is_not_limited() -> None:
    rest = [ReconcileResult([Create(job(f"j{number}"))]) for number in range(WRITES_PER_SECOND_MAX + 1)]

    def script(_key: Key, _reader: Reader, _now: Instant) -> ReconcileResult:
        return rest.pop() if rest else ReconcileResult()

    bench = RunnerBench(ScriptedController(script=script, also=(Key("Cycle", "", "cycle"),), kinds=("Job.batch",)))
    bench.runner.meter = None
    bench.run(Create(job()), seconds=1)
    assert rest == []
    assert bench.recorded == []
