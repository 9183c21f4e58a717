"""The runner: keys whose reconcile is settled, because its requeue time holds for the status that it writes."""

from batchyard.api.errors import Conflict
from batchyard.api.meta import Key, with_status
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Reader, UpdateStatus
from batchyard.interfaces.controller import ReconcileResult
from unit.controller_runtime.test_runner import START, RunnerBench, ScriptedController, is_creation_of_a, job

ENDS_AT = START + 50


def start(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
    """Write a status and requeue the key for the end, until the end."""
    obj = reader.get(key)
    assert obj is not None
    if "status" in obj:
        return ReconcileResult(requeue_at=ENDS_AT if now < ENDS_AT else None)
    return ReconcileResult([UpdateStatus(with_status(obj, {"active": 1}))], requeue_at=ENDS_AT, is_settled=True)


def test_settled_write_does_not_reconcile_its_key_again() -> None:
    controller = ScriptedController(script=start, predicate=is_creation_of_a)
    RunnerBench(controller).run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 50)]


def test_change_by_another_writer_reconciles_a_settled_key() -> None:
    controller = ScriptedController(script=start, predicate=is_creation_of_a)
    bench = RunnerBench(controller)
    bench.kernel.call_at(START + 20, lambda: bench.submit(UpdateStatus(with_status(job(), {"active": 1}))))
    bench.kernel.call_at(START + 30, lambda: bench.submit(UpdateStatus(with_status(job(), {"active": 0}))))
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 30), ("a", 50)]  # the first write changes nothing


def test_rejected_settled_write_is_retried() -> None:
    controller = ScriptedController(script=start, predicate=is_creation_of_a)
    bench = RunnerBench(controller, errors=[Conflict("changed")], latency=5)
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 5), ("a", 50)]
