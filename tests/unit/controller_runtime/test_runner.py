"""The runner: order of reconciles, retries, and mutual exclusion per key."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from batchyard.api.errors import ApiError, Conflict, Forbidden, NotFound, NoValidResponse
from batchyard.api.meta import Key, Obj, with_path
from batchyard.base.instant import MILLISECOND, SECOND, Instant
from batchyard.base.primitives import InvariantError
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner, retry_backoff
from batchyard.interfaces.client import (
    Create,
    Delete,
    EventType,
    Listener,
    ObjectClient,
    Reader,
    Update,
    WatchEvent,
    Write,
    WriteResult,
)
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.store.memory import Store

START: Instant = 1_767_225_600_000_000
A = Key("Job.batch", "team", "a")
Script = Callable[[Key, Reader, Instant], ReconcileResult]


def nothing(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
    """A script that returns no writes."""
    return ReconcileResult()


def is_not_deletion(event: WatchEvent) -> bool:
    """Select all events except deletions."""
    return event.type is not EventType.DELETED


def is_creation_of_a(event: WatchEvent) -> bool:
    """Select only the creation of A."""
    return event.type is EventType.ADDED and event.key == A


def is_touch(event: WatchEvent) -> bool:
    """Select only events sent by `touch`."""
    return event.revision == 0


@dataclass
class ScriptedController:
    """A controller with results given by the test; it records keys and instants of its reconciles."""

    name: str = "scripted"
    script: Script = nothing
    rank: int = 0
    kinds: tuple[str, ...] | None = None
    also: tuple[Key, ...] = ()
    predicate: Callable[[WatchEvent], bool] = is_not_deletion
    reconciled: list[tuple[str, Instant]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        return (event.key, *self.also) if self.predicate(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        self.reconciled.append((key.name, now - START))
        self.log.append(self.name)
        return self.script(key, reader, now)


class DelayedClient:
    """A client with delayed writes; the first writes fail with the given errors."""

    def __init__(self, client: LocalClient, kernel: VirtualEventLoop, errors: list[ApiError], latency: int) -> None:
        self._client = client
        self._kernel = kernel
        self._latency = latency
        self.errors = errors
        self.get, self.list, self.owned_by = client.get, client.list, client.owned_by

    def subscribe(self, listener: Listener) -> None:
        self._client.subscribe(listener)

    def is_settled(self) -> bool:
        return self._client.is_settled()

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        arrival = self._kernel.now() + self._latency
        if self.errors:
            error = self.errors.pop(0)
            self._kernel.call_at(arrival, lambda: done(WriteResult(None, error, writes[0])))
        else:
            self._kernel.call_at(arrival, lambda: self._client.submit(writes, done))


@dataclass
class SlowPace:
    """A pace with a fixed pause after each turn."""

    rest: int
    next: Instant = START

    def next_turn(self) -> Instant:
        return self.next

    def run_reconcile(self, reconcile: Callable[[], None]) -> None:
        self.next += self.rest
        reconcile()


class RunnerBench:
    """A runner with its kernel and client, and the events recorded."""

    def __init__(
        self, *own: ScriptedController, errors: Sequence[ApiError] = (), latency: int = 0, rest: int = 0
    ) -> None:
        self.kernel = VirtualEventLoop(START, work_per_instant_max=10_000)
        self.store = Store(detect_mutation=True)
        local = LocalClient(self.store, self.kernel)
        is_near = not errors and not latency
        self.client: ObjectClient = local if is_near else DelayedClient(local, self.kernel, list(errors), latency)
        self.local = local
        self.recorded: list[tuple[Instant, str, str]] = []
        self.runner = Runner(self.kernel, self.client, own, self._record, SlowPace(rest) if rest else None)

    def _record(self, now: Instant, controller: str, record: EventRecord) -> None:
        self.recorded.append((now - START, controller, record.reason))

    def submit(self, write: Write) -> None:
        self.local.submit([write], assert_succeeded)

    def run(self, write: Write | None = None, *, seconds: float | None = None) -> None:
        if write is not None:
            self.submit(write)
        self.kernel.run(None if seconds is None else START + int(seconds * SECOND))
        self.runner.validate()
        self.store.check_unchanged()

    def touch(self, key: Key = A) -> None:
        """Send a change event of an object, which may be missing."""
        self.runner.observe([WatchEvent(EventType.MODIFIED, key, job(key.name), job(key.name), 0)])

    def spec(self, name: str = "a") -> Any:
        obj = self.client.get(key(name))
        return None if obj is None else obj["spec"]


def assert_succeeded(result: WriteResult) -> None:
    assert result.error is None, result.error


def key(name: str) -> Key:
    return Key("Job.batch", "team", name)


def job(name: str = "a", **spec: Any) -> Obj:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def count_to(limit: int) -> Script:
    """A script that increments a counter in the object, one write at a time."""

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        obj = reader.get(key)
        assert obj is not None
        count = obj["spec"].get("count", 0)
        return ReconcileResult([Update(with_path(obj, ("spec", "count"), count + 1))] if count < limit else [])

    return script


def in_turn(*outcomes: ReconcileResult) -> Script:
    """A script that returns one result after another."""
    left = list(outcomes)

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return left.pop(0)

    return script


def always(*writes: Write, events: Sequence[EventRecord] = ()) -> Script:
    """A script that returns the same result every time."""

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return ReconcileResult([*writes], [*events])

    return script


def requeueing(wanted: Mapping[int, int]) -> Script:
    """A script that requests a requeue at some instants; both instants count from the start."""

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        when = wanted.get(now - START)
        return ReconcileResult(requeue_at=None if when is None else START + when)

    return script


def record_of(reason: str) -> EventRecord:
    return EventRecord(A, "Normal", reason, "")


def test_change_triggers_reconcile_and_its_writes_trigger_next() -> None:
    controller = ScriptedController(script=count_to(3))
    bench = RunnerBench(controller)
    bench.run(Create(job()))
    assert bench.spec() == {"count": 3}
    assert controller.reconciled == [("a", 0)] * 4
    assert bench.runner.is_idle()
    assert bench.runner.reconciles == 4


def test_simultaneous_changes_trigger_single_reconcile() -> None:
    controller = ScriptedController()
    bench = RunnerBench(controller)
    bench.submit(Create(job()))
    for count in range(5):
        bench.submit(Update(job(count=count)))
    bench.run()
    assert controller.reconciled == [("a", 0)]


def test_keys_of_same_rank_are_reconciled_in_order_of_arrival() -> None:
    log: list[str] = []
    first, second = ScriptedController("first", log=log), ScriptedController("second", log=log)
    bench = RunnerBench(first, second)
    for name in ("b", "a"):
        bench.submit(Create(job(name)))
    bench.run()
    assert log == ["first", "second"] * 2
    assert [name for name, _ in first.reconciled] == ["b", "a"]


def test_controllers_receive_events_of_their_kinds_only() -> None:
    jobs, pods = ScriptedController("jobs", kinds=("Job.batch",)), ScriptedController("pods", kinds=("Pod",))
    RunnerBench(jobs, pods).run(Create(job()))
    assert len(jobs.reconciled) == 1
    assert pods.reconciled == []


def test_key_is_not_reconciled_while_its_writes_are_pending() -> None:
    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        assert bench.client.is_settled(), "its own write was not delivered yet"
        bench.kernel.call_soon(bench.touch)
        return count_to(3)(key, reader, now) if len(controller.reconciled) < 10 else ReconcileResult()

    controller = ScriptedController(script=script, predicate=is_touch)
    bench = RunnerBench(controller)
    bench.submit(Create(job()))
    bench.kernel.call_at(START + 1, bench.touch)
    bench.kernel.run(steps_max=100)
    assert bench.spec() == {"count": 3}


def test_change_during_pending_writes_is_reconciled_afterwards() -> None:
    seen: list[int] = []

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        obj = reader.get(key)
        assert obj is not None
        seen.append(obj["spec"].get("foreign", 0))
        if len(seen) > 1:
            return ReconcileResult()
        bench.kernel.call_soon(lambda: bench.submit(Update(job(foreign=1))))
        return ReconcileResult([Update(with_path(obj, ("spec", "own"), 1))])

    bench = RunnerBench(ScriptedController(script=script))
    bench.run(Create(job()))
    assert seen[-1] == 1


def test_write_without_change_triggers_no_reconcile() -> None:
    controller = ScriptedController(script=always(Update(job())))
    RunnerBench(controller).run(Create(job()))
    assert len(controller.reconciled) == 1


def test_higher_rank_waits_until_lower_ranks_are_idle() -> None:
    log: list[str] = []
    high = ScriptedController("high", rank=10, log=log)
    bench = RunnerBench(high, ScriptedController("low", script=count_to(3), log=log))
    bench.submit(Create(job("b")))
    bench.run(Create(job("a")))
    assert log == ["low"] * 8 + ["high"] * 2


def test_higher_rank_does_not_wait_for_slow_writes() -> None:
    low, high = ScriptedController("low", script=count_to(1)), ScriptedController("high", rank=10)
    RunnerBench(low, high, latency=5).run(Create(job()))
    assert low.reconciled == [("a", 0), ("a", 5)]
    assert high.reconciled == [("a", 0), ("a", 5)]


def test_lower_ranks_run_after_write_of_higher_rank() -> None:
    log: list[str] = []
    low = ScriptedController("low", log=log)
    bench = RunnerBench(low, ScriptedController("high", script=count_to(1), rank=10, log=log))
    bench.submit(Create(job("a")))
    bench.run(Create(job("b")))
    assert log == ["low", "low", "high", "low", "high", "low", "high", "high"]


def test_higher_rank_is_limited_by_pace() -> None:
    low, high = ScriptedController("low"), ScriptedController("high", rank=10)
    bench = RunnerBench(low, high, rest=100)
    bench.run(Create(job("a")))
    for name, at in (("b0", 20), ("b1", 30), ("b2", 250)):
        bench.kernel.call_at(START + at, partial(bench.submit, Create(job(name))))
    bench.run()
    assert low.reconciled == [("a", 0), ("b0", 20), ("b1", 30), ("b2", 250)]
    assert high.reconciled == [("a", 0), ("b0", 100), ("b1", 200), ("b2", 300)]


def test_ranks_are_reconciled_in_ascending_order() -> None:
    log: list[str] = []
    ranks = {"low": 0, "middle": 5, "high": 10}
    RunnerBench(*[ScriptedController(name, rank=rank, log=log) for name, rank in reversed(ranks.items())]).run(
        Create(job())
    )
    assert log == ["low", "middle", "high"]


def test_higher_rank_waits_for_results_of_other_writes() -> None:
    refused: list[WriteResult] = []
    settled_at_reconcile: list[bool] = []

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        settled_at_reconcile.append(bench.client.is_settled())
        return ReconcileResult()

    bench = RunnerBench(ScriptedController("low"), ScriptedController("high", script, rank=10))
    bench.submit(Create(job()))
    bench.kernel.call_soon(lambda: bench.local.submit([Create(job())], refused.append))
    bench.run()
    assert settled_at_reconcile == [True]
    assert isinstance(refused[0].error, Conflict)


def test_writes_of_result_are_applied_in_order() -> None:
    reported: list[str] = []
    bench = RunnerBench(
        ScriptedController(script=always(Create(job("b")), Create(job("c")), Delete(key("b"))), predicate=is_touch)
    )
    bench.client.subscribe(lambda events: reported.extend(f"{e.type} {e.key.name}" for e in events))
    bench.touch()
    bench.run()
    assert reported == ["ADDED b", "ADDED c", "DELETED b"]


def test_events_are_recorded_after_writes_succeed() -> None:
    script = always(Update(job(done=1)), events=[record_of("Done"), record_of("Dusted")])
    bench = RunnerBench(ScriptedController(script=script, predicate=is_touch), errors=[NoValidResponse("lost")])
    bench.touch()
    bench.run(Create(job()))
    assert bench.recorded == [(MILLISECOND, "scripted", "Done"), (MILLISECOND, "scripted", "Dusted")]


def test_events_without_writes_are_recorded_immediately() -> None:
    bench = RunnerBench(ScriptedController(script=always(events=[record_of("Seen")])))
    bench.run(Create(job()))
    assert bench.recorded == [(0, "scripted", "Seen")]


@pytest.mark.parametrize("error", [Conflict("changed"), NotFound("gone")])
def test_conflict_or_not_found_is_retried_immediately(error: ApiError) -> None:
    controller = ScriptedController(script=count_to(1))
    bench = RunnerBench(controller, errors=[error] * 3)
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0)] * 5
    assert bench.spec() == {"count": 1}
    assert bench.runner.failing_keys() == []


def test_writes_of_result_stop_at_first_error() -> None:
    writes = (Create(job("b")), Create(job("b")), Create(job("c")))
    bench = RunnerBench(
        ScriptedController(script=in_turn(ReconcileResult([*writes]), ReconcileResult()), predicate=is_touch)
    )
    bench.touch()
    bench.run()
    assert [obj["metadata"]["name"] for obj in bench.client.list(A.kind)] == ["b"]


def test_independent_writes_continue_after_error() -> None:
    writes = (Create(job("b")), Create(job("b")), Create(job("c")))
    bench = RunnerBench(
        ScriptedController(
            script=in_turn(ReconcileResult([*writes], independent=True), ReconcileResult()), predicate=is_touch
        )
    )
    bench.touch()
    bench.run()
    assert [obj["metadata"]["name"] for obj in bench.client.list(A.kind)] == ["b", "c"]


def test_first_error_of_independent_writes_determines_retry() -> None:
    outcome = ReconcileResult([Create(job("b")), Create(job("c"))], independent=True)
    controller = ScriptedController(script=in_turn(outcome, ReconcileResult()), predicate=is_touch)
    bench = RunnerBench(controller, errors=[NoValidResponse("lost"), Conflict("second")])
    bench.touch()
    bench.run(seconds=MILLISECOND / SECOND)
    assert controller.reconciled == [("a", 0), ("a", MILLISECOND)]


def test_immediate_retries_are_limited() -> None:
    controller = ScriptedController(script=count_to(1))
    bench = RunnerBench(controller, errors=[Conflict("always")] * 12)
    bench.run(Create(job()))
    expected = [("a", 0), ("a", retry_backoff(11)), ("a", retry_backoff(11) + retry_backoff(12))]
    assert controller.reconciled[10:13] == expected
    assert bench.spec() == {"count": 1}


def test_other_errors_are_retried_with_backoff() -> None:
    controller = ScriptedController(script=count_to(1))
    bench = RunnerBench(controller, errors=[NoValidResponse("lost")] * 4)
    bench.run(Create(job()), seconds=0)
    assert bench.runner.failing_keys() == [("scripted", A, 1)]
    assert bench.runner.is_idle()
    bench.run()
    waits = [0, 1, 3, 7, 15, 15]
    assert controller.reconciled == [("a", wait * MILLISECOND) for wait in waits]
    assert bench.runner.failing_keys() == []


def test_forbidden_write_is_retried_only_after_change() -> None:
    def make_b(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        is_there = reader.get(Key(A.kind, A.namespace, "b")) is not None
        return ReconcileResult() if is_there else ReconcileResult([Create(job("b"))], [record_of("Made")])

    controller = ScriptedController(script=make_b)
    bench = RunnerBench(controller, errors=[Forbidden("not yet")])
    bench.run(Create(job()))
    assert len(controller.reconciled) == 1
    assert bench.recorded == []
    bench.run(Update(job(parallelism=2)))
    assert bench.client.get(Key(A.kind, A.namespace, "b")) is not None
    assert [reason for _, _, reason in bench.recorded] == ["Made"]


def test_backoff_doubles_from_millisecond_to_half_minute() -> None:
    assert [retry_backoff(n) // MILLISECOND for n in (1, 2, 3, 11)] == [1, 2, 4, 1024]
    assert retry_backoff(15) == 16384 * MILLISECOND
    assert retry_backoff(16) == retry_backoff(1_000) == 30 * SECOND


def test_partly_applied_writes_do_not_bypass_backoff() -> None:
    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        obj = reader.get(key)
        assert obj is not None
        flipped = with_path(obj, ("spec", "flip"), not obj["spec"].get("flip"))
        return ReconcileResult([Update(flipped), Create({**job(), "metadata": {"name": "", "namespace": "team"}})])

    controller = ScriptedController(script=script)
    bench = RunnerBench(controller)
    bench.run(Create(job()), seconds=60)
    assert 5 < len(controller.reconciled) < 25


def test_key_is_reconciled_at_requeue_time() -> None:
    controller = ScriptedController(script=requeueing({0: 50}))
    RunnerBench(controller).run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 50)]


def test_reconcile_without_requeue_cancels_earlier_requeue() -> None:
    controller = ScriptedController(script=requeueing({0: 50}))
    bench = RunnerBench(controller)
    bench.kernel.call_at(START + 20, lambda: bench.submit(Update(job(x=1))))
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 20)]
    assert bench.kernel.now() == START + 20


def test_last_requested_requeue_time_applies() -> None:
    controller = ScriptedController(script=requeueing({0: 50, 20: 30, 25: 90}))
    bench = RunnerBench(controller)
    for when in (20, 25):
        bench.kernel.call_at(START + when, lambda when=when: bench.submit(Update(job(x=when))))  # type: ignore[misc]
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 20), ("a", 25), ("a", 90)]


@pytest.mark.parametrize(("requested", "woken"), [(None, 50), (30, 30), (90, 50)])
def test_reconcile_with_writes_can_only_advance_requeue(requested: int | None, woken: int) -> None:
    later = None if requested is None else START + requested
    script = in_turn(
        ReconcileResult(requeue_at=START + 50), ReconcileResult([Create(job("b"))], requeue_at=later), ReconcileResult()
    )
    controller = ScriptedController(script=script, predicate=is_creation_of_a)
    bench = RunnerBench(controller)
    bench.kernel.call_at(START + 20, lambda: bench.submit(Update(job(x=1))))
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 20), ("a", woken)]


def test_delayed_key_is_reconciled_after_its_object_changes() -> None:
    controller = ScriptedController(script=requeueing({0: 50}), predicate=is_creation_of_a)
    bench = RunnerBench(controller)
    bench.kernel.call_at(START + 20, lambda: bench.submit(Update(job(x=1))))
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0), ("a", 20)]
    assert bench.kernel.now() == START + 20


@pytest.mark.parametrize(
    "last", [ReconcileResult(), ReconcileResult([Create(job("b"))]), ReconcileResult(requeue_at=START + 70)]
)
def test_requeue_of_deleted_object_is_cancelled_unless_requested_again(last: ReconcileResult) -> None:
    controller = ScriptedController(
        script=in_turn(ReconcileResult(requeue_at=START + 50), last, ReconcileResult()), predicate=lambda e: e.key == A
    )
    bench = RunnerBench(controller)
    bench.kernel.call_at(START + 20, lambda: bench.submit(Delete(A)))
    bench.run(Create(job()))
    assert bench.kernel.now() == (last.requeue_at or START + 20)


def test_stopped_runner_schedules_nothing() -> None:
    bench = RunnerBench(ScriptedController(script=requeueing({0: 50})))
    bench.run(Create(job()), seconds=0)
    bench.runner.stop()
    assert bench.kernel.next_instant() is None


def test_key_without_requeue_is_not_reconciled_after_ignored_change() -> None:
    controller = ScriptedController(predicate=is_creation_of_a)
    bench = RunnerBench(controller)
    bench.run(Create(job()))
    bench.run(Update(job(x=1)))
    assert controller.reconciled == [("a", 0)]


def test_change_does_not_bypass_backoff() -> None:
    controller = ScriptedController(
        script=always(Create({**job(), "metadata": {"namespace": "team"}})), predicate=is_creation_of_a
    )
    bench = RunnerBench(controller)
    bench.run(Create(job()), seconds=0.01)
    reconciled = len(controller.reconciled)
    bench.submit(Update(job(x=1)))
    bench.kernel.run(bench.kernel.now())
    assert len(controller.reconciled) == reconciled


def test_immediate_requeue_uses_kernel() -> None:
    left = [3]

    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        left[0] -= 1
        return ReconcileResult(requeue_at=now if left[0] else None)

    controller = ScriptedController(script=script)
    bench = RunnerBench(controller)
    bench.run(Create(job()))
    assert controller.reconciled == [("a", 0)] * 3
    assert bench.kernel.steps == 6


def test_flush_delayed_reconciles_keys_as_of_their_requeue_time() -> None:
    def batch(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return ReconcileResult() if now >= START + SECOND else ReconcileResult(requeue_at=START + SECOND)

    flushed, other = ScriptedController("flushed", script=batch), ScriptedController("other", script=batch)
    bench = RunnerBench(flushed, other)
    bench.run(Create(job()), seconds=0.5)
    bench.runner.flush_delayed(["flushed"])
    bench.run(seconds=0.5)
    assert flushed.reconciled == [("a", 0), ("a", SECOND)]
    assert other.reconciled == [("a", 0)]
    assert bench.kernel.now() == START
    bench.run()
    assert len(flushed.reconciled) == 2
    assert len(other.reconciled) == 2


def test_flush_delayed_rejects_unknown_controller() -> None:
    with pytest.raises(InvariantError, match="'nobody'"):
        RunnerBench(ScriptedController()).runner.flush_delayed(["nobody"])


def test_key_of_missing_object_is_reconciled() -> None:
    controller = ScriptedController(kinds=("Job.batch",))
    bench = RunnerBench(controller)
    bench.touch(key("never"))
    bench.run()
    assert controller.reconciled == [("never", 0)]
