"""The runner: who is looked at when, what is retried, and what is never done twice at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from batchyard.api.errors import ApiError, Conflict, Forbidden, NotFound, Unanswered
from batchyard.api.meta import Key, Obj, with_path
from batchyard.base import InvariantError
from batchyard.base.instant import MILLISECOND, SECOND, Instant
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
Look = Callable[[Key, Reader, Instant], ReconcileResult]


def nothing(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
    """A look that wants nothing."""
    return ReconcileResult()


def unless_it_goes(event: WatchEvent) -> bool:
    """What a controller hears of that does not mind when objects go."""
    return event.type is not EventType.DELETED


def when_a_comes(event: WatchEvent) -> bool:
    """What a controller hears of that minds nothing but that."""
    return event.type is EventType.ADDED and event.key == A


def when_touched(event: WatchEvent) -> bool:
    """What a controller hears of that minds only what a test tells it."""
    return event.revision == 0


@dataclass
class Scripted:
    """A controller whose looks are given by the test; it writes down when it looked at what."""

    name: str = "scripted"
    look: Look = nothing
    rank: int = 0
    kinds: tuple[str, ...] | None = None
    also: tuple[Key, ...] = ()
    minds: Callable[[WatchEvent], bool] = unless_it_goes
    looks: list[tuple[str, Instant]] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        return (event.key, *self.also) if self.minds(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        self.looks.append((key.name, now - START))
        self.diary.append(self.name)
        return self.look(key, reader, now)


class Distant:
    """A client whose writes arrive after a while, and some of the first are refused."""

    def __init__(self, client: LocalClient, kernel: VirtualEventLoop, errors: list[ApiError], latency: int) -> None:
        self._client = client
        self._kernel = kernel
        self._latency = latency
        self.errors = errors
        self.get, self.list, self.owned_by = client.get, client.list, client.owned_by

    def subscribe(self, listener: Listener) -> None:
        self._client.subscribe(listener)

    def settled(self) -> bool:
        return self._client.settled()

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        arrival = self._kernel.now() + self._latency
        if self.errors:
            error = self.errors.pop(0)
            self._kernel.call_at(arrival, lambda: done(WriteResult(None, error, writes[0])))
        else:
            self._kernel.call_at(arrival, lambda: self._client.submit(writes, done))


@dataclass
class Slow:
    """After each turn comes a rest of so long."""

    rest: int
    next: Instant = START

    def next_turn(self) -> Instant:
        return self.next

    def take(self, turn: Callable[[], None]) -> None:
        self.next += self.rest
        turn()


class Yard:
    """A runner with its kernel and client, and the events recorded."""

    def __init__(self, *own: Scripted, errors: Sequence[ApiError] = (), latency: int = 0, rest: int = 0) -> None:
        self.kernel = VirtualEventLoop(START, work_per_instant_max=10_000)
        self.store = Store(detect_mutation=True)
        local = LocalClient(self.store, self.kernel)
        is_near = not errors and not latency
        self.client: ObjectClient = local if is_near else Distant(local, self.kernel, list(errors), latency)
        self.local = local
        self.recorded: list[tuple[Instant, str, str]] = []
        self.runner = Runner(self.kernel, self.client, own, self._record, Slow(rest) if rest else None)

    def _record(self, now: Instant, controller: str, record: EventRecord) -> None:
        self.recorded.append((now - START, controller, record.reason))

    def submit(self, write: Write) -> None:
        self.local.submit([write], must_succeed)

    def run(self, write: Write | None = None, *, seconds: float | None = None) -> None:
        if write is not None:
            self.submit(write)
        self.kernel.run(None if seconds is None else START + int(seconds * SECOND))
        self.runner.validate()
        self.store.check_unchanged()

    def touch(self, key: Key = A) -> None:
        """The runner hears of a change of an object, which need not be there."""
        self.runner.observe([WatchEvent(EventType.MODIFIED, key, job(key.name), job(key.name), 0)])

    def spec(self, name: str = "a") -> Any:
        obj = self.client.get(key(name))
        return None if obj is None else obj["spec"]


def must_succeed(result: WriteResult) -> None:
    assert result.error is None, result.error


def key(name: str) -> Key:
    return Key("Job.batch", "team", name)


def job(name: str = "a", **spec: Any) -> Obj:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def count_to(limit: int) -> Look:
    """A look that counts in the object, one write at a time."""

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        obj = reader.get(key)
        assert obj is not None
        count = obj["spec"].get("count", 0)
        return ReconcileResult([Update(with_path(obj, ("spec", "count"), count + 1))] if count < limit else [])

    return look


def in_turn(*outcomes: ReconcileResult) -> Look:
    """A look that wants one thing after another."""
    left = list(outcomes)

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return left.pop(0)

    return look


def always(*writes: Write, events: Sequence[EventRecord] = ()) -> Look:
    """A look that wants the same every time."""

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return ReconcileResult([*writes], [*events])

    return look


def waking(wanted: Mapping[int, int]) -> Look:
    """A look that at some instants asks for another one, both counted from the start."""

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        when = wanted.get(now - START)
        return ReconcileResult(requeue_at=None if when is None else START + when)

    return look


def record_of(reason: str) -> EventRecord:
    return EventRecord(A, "Normal", reason, "")


def test_a_change_leads_to_a_look_and_its_writes_to_the_next() -> None:
    controller = Scripted(look=count_to(3))
    yard = Yard(controller)
    yard.run(Create(job()))
    assert yard.spec() == {"count": 3}
    assert controller.looks == [("a", 0)] * 4
    assert yard.runner.is_idle()
    assert yard.runner.reconciles == 4


def test_many_changes_of_one_instant_are_one_look() -> None:
    controller = Scripted()
    yard = Yard(controller)
    yard.submit(Create(job()))
    for count in range(5):
        yard.submit(Update(job(count=count)))
    yard.run()
    assert controller.looks == [("a", 0)]


def test_keys_of_one_rank_are_taken_in_order_of_arrival() -> None:
    diary: list[str] = []
    first, second = Scripted("first", diary=diary), Scripted("second", diary=diary)
    yard = Yard(first, second)
    for name in ("b", "a"):
        yard.submit(Create(job(name)))
    yard.run()
    assert diary == ["first", "second"] * 2
    assert [name for name, _ in first.looks] == ["b", "a"]


def test_controllers_hear_only_of_the_kinds_they_ask_for() -> None:
    jobs, pods = Scripted("jobs", kinds=("Job.batch",)), Scripted("pods", kinds=("Pod",))
    Yard(jobs, pods).run(Create(job()))
    assert len(jobs.looks) == 1
    assert pods.looks == []


def test_a_key_is_not_looked_at_while_its_writes_are_under_way() -> None:
    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        assert yard.client.settled(), "its own write was not delivered yet"
        yard.kernel.call_soon(yard.touch)
        return count_to(3)(key, reader, now) if len(controller.looks) < 10 else ReconcileResult()

    controller = Scripted(look=look, minds=when_touched)
    yard = Yard(controller)
    yard.submit(Create(job()))
    yard.kernel.call_at(START + 1, yard.touch)
    yard.kernel.run(steps_max=100)
    assert yard.spec() == {"count": 3}


def test_a_change_while_writes_are_under_way_is_looked_at_afterwards() -> None:
    seen: list[int] = []

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        obj = reader.get(key)
        assert obj is not None
        seen.append(obj["spec"].get("foreign", 0))
        if len(seen) > 1:
            return ReconcileResult()
        yard.kernel.call_soon(lambda: yard.submit(Update(job(foreign=1))))
        return ReconcileResult([Update(with_path(obj, ("spec", "own"), 1))])

    yard = Yard(Scripted(look=look))
    yard.run(Create(job()))
    assert seen[-1] == 1


def test_a_write_that_changes_nothing_leads_to_no_further_look() -> None:
    controller = Scripted(look=always(Update(job())))
    Yard(controller).run(Create(job()))
    assert len(controller.looks) == 1


def test_a_higher_rank_waits_until_all_has_settled() -> None:
    diary: list[str] = []
    high = Scripted("high", rank=10, diary=diary)
    yard = Yard(high, Scripted("low", look=count_to(3), diary=diary))
    yard.submit(Create(job("b")))
    yard.run(Create(job("a")))
    assert diary == ["low"] * 8 + ["high"] * 2


def test_a_higher_rank_does_not_wait_for_writes_that_take_their_time() -> None:
    low, high = Scripted("low", look=count_to(1)), Scripted("high", rank=10)
    Yard(low, high, latency=5).run(Create(job()))
    assert low.looks == [("a", 0), ("a", 5)]
    assert high.looks == [("a", 0), ("a", 5)]


def test_a_higher_rank_that_writes_lets_the_lower_ones_go_first() -> None:
    diary: list[str] = []
    low = Scripted("low", diary=diary)
    yard = Yard(low, Scripted("high", look=count_to(1), rank=10, diary=diary))
    yard.submit(Create(job("a")))
    yard.run(Create(job("b")))
    assert diary == ["low", "low", "high", "low", "high", "low", "high", "high"]


def test_higher_ranks_look_no_more_often_than_their_pace_says() -> None:
    low, high = Scripted("low"), Scripted("high", rank=10)
    yard = Yard(low, high, rest=100)
    yard.run(Create(job("a")))
    for name, at in (("b0", 20), ("b1", 30), ("b2", 250)):
        yard.kernel.call_at(START + at, partial(yard.submit, Create(job(name))))
    yard.run()
    assert low.looks == [("a", 0), ("b0", 20), ("b1", 30), ("b2", 250)]
    assert high.looks == [("a", 0), ("b0", 100), ("b1", 200), ("b2", 300)]


def test_a_middle_rank_goes_before_a_higher_one() -> None:
    diary: list[str] = []
    ranks = {"low": 0, "middle": 5, "high": 10}
    Yard(*[Scripted(name, rank=rank, diary=diary) for name, rank in reversed(ranks.items())]).run(Create(job()))
    assert diary == ["low", "middle", "high"]


def test_a_higher_rank_waits_for_the_results_of_others() -> None:
    refused: list[WriteResult] = []
    told_at_look: list[bool] = []

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        told_at_look.append(yard.client.settled())
        return ReconcileResult()

    yard = Yard(Scripted("low"), Scripted("high", look, rank=10))
    yard.submit(Create(job()))
    yard.kernel.call_soon(lambda: yard.local.submit([Create(job())], refused.append))
    yard.run()
    assert told_at_look == [True]
    assert isinstance(refused[0].error, Conflict)


def test_all_writes_of_an_outcome_are_done_in_order() -> None:
    reported: list[str] = []
    yard = Yard(Scripted(look=always(Create(job("b")), Create(job("c")), Delete(key("b"))), minds=when_touched))
    yard.client.subscribe(lambda events: reported.extend(f"{e.type} {e.key.name}" for e in events))
    yard.touch()
    yard.run()
    assert reported == ["ADDED b", "ADDED c", "DELETED b"]


def test_events_are_recorded_when_the_writes_have_succeeded() -> None:
    look = always(Update(job(done=1)), events=[record_of("Done"), record_of("Dusted")])
    yard = Yard(Scripted(look=look, minds=when_touched), errors=[Unanswered("lost")])
    yard.touch()
    yard.run(Create(job()))
    assert yard.recorded == [(MILLISECOND, "scripted", "Done"), (MILLISECOND, "scripted", "Dusted")]


def test_events_without_writes_are_recorded_at_once() -> None:
    yard = Yard(Scripted(look=always(events=[record_of("Seen")])))
    yard.run(Create(job()))
    assert yard.recorded == [(0, "scripted", "Seen")]


@pytest.mark.parametrize("error", [Conflict("changed"), NotFound("gone")])
def test_who_was_too_slow_looks_again_at_once(error: ApiError) -> None:
    controller = Scripted(look=count_to(1))
    yard = Yard(controller, errors=[error] * 3)
    yard.run(Create(job()))
    assert controller.looks == [("a", 0)] * 5
    assert yard.spec() == {"count": 1}
    assert yard.runner.failing() == []


def test_the_writes_of_an_outcome_end_with_the_first_that_is_refused() -> None:
    writes = (Create(job("b")), Create(job("b")), Create(job("c")))
    yard = Yard(Scripted(look=in_turn(ReconcileResult([*writes]), ReconcileResult()), minds=when_touched))
    yard.touch()
    yard.run()
    assert [obj["metadata"]["name"] for obj in yard.client.list(A.kind)] == ["b"]


def test_independent_writes_are_all_tried() -> None:
    writes = (Create(job("b")), Create(job("b")), Create(job("c")))
    yard = Yard(
        Scripted(look=in_turn(ReconcileResult([*writes], independent=True), ReconcileResult()), minds=when_touched)
    )
    yard.touch()
    yard.run()
    assert [obj["metadata"]["name"] for obj in yard.client.list(A.kind)] == ["b", "c"]


def test_the_first_error_of_independent_writes_decides() -> None:
    outcome = ReconcileResult([Create(job("b")), Create(job("c"))], independent=True)
    controller = Scripted(look=in_turn(outcome, ReconcileResult()), minds=when_touched)
    yard = Yard(controller, errors=[Unanswered("lost"), Conflict("second")])
    yard.touch()
    yard.run(seconds=MILLISECOND / SECOND)
    assert controller.looks == [("a", 0), ("a", MILLISECOND)]


def test_looking_again_at_once_is_bounded() -> None:
    controller = Scripted(look=count_to(1))
    yard = Yard(controller, errors=[Conflict("always")] * 12)
    yard.run(Create(job()))
    assert controller.looks[10:13] == [("a", 0), ("a", retry_backoff(11)), ("a", retry_backoff(11) + retry_backoff(12))]
    assert yard.spec() == {"count": 1}


def test_other_errors_are_retried_later_and_later() -> None:
    controller = Scripted(look=count_to(1))
    yard = Yard(controller, errors=[Unanswered("lost")] * 4)
    yard.run(Create(job()), seconds=0)
    assert yard.runner.failing() == [("scripted", A, 1)]
    assert yard.runner.is_idle()
    yard.run()
    waits = [0, 1, 3, 7, 15, 15]
    assert controller.looks == [("a", wait * MILLISECOND) for wait in waits]
    assert yard.runner.failing() == []


def test_what_is_forbidden_is_tried_again_only_when_something_changes() -> None:
    def make_b(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        is_there = reader.get(Key(A.kind, A.namespace, "b")) is not None
        return ReconcileResult() if is_there else ReconcileResult([Create(job("b"))], [record_of("Made")])

    controller = Scripted(look=make_b)
    yard = Yard(controller, errors=[Forbidden("not yet")])
    yard.run(Create(job()))
    assert len(controller.looks) == 1
    assert yard.recorded == []
    yard.run(Update(job(parallelism=2)))
    assert yard.client.get(Key(A.kind, A.namespace, "b")) is not None
    assert [reason for _, _, reason in yard.recorded] == ["Made"]


def test_backoff_doubles_from_a_millisecond_to_half_a_minute() -> None:
    assert [retry_backoff(n) // MILLISECOND for n in (1, 2, 3, 11)] == [1, 2, 4, 1024]
    assert retry_backoff(15) == 16384 * MILLISECOND
    assert retry_backoff(16) == retry_backoff(1_000) == 30 * SECOND


def test_half_done_writes_do_not_hasten_a_retry() -> None:
    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        obj = reader.get(key)
        assert obj is not None
        flipped = with_path(obj, ("spec", "flip"), not obj["spec"].get("flip"))
        return ReconcileResult([Update(flipped), Create({**job(), "metadata": {"name": "", "namespace": "team"}})])

    controller = Scripted(look=look)
    yard = Yard(controller)
    yard.run(Create(job()), seconds=60)
    assert 5 < len(controller.looks) < 25


def test_a_key_is_looked_at_when_it_asked_to_be() -> None:
    controller = Scripted(look=waking({0: 50}))
    Yard(controller).run(Create(job()))
    assert controller.looks == [("a", 0), ("a", 50)]


def test_a_look_that_asks_for_nothing_forgets_the_wake_up_and_no_time_passes() -> None:
    controller = Scripted(look=waking({0: 50}))
    yard = Yard(controller)
    yard.kernel.call_at(START + 20, lambda: yard.submit(Update(job(x=1))))
    yard.run(Create(job()))
    assert controller.looks == [("a", 0), ("a", 20)]
    assert yard.kernel.now() == START + 20


def test_the_last_wake_up_that_was_asked_for_counts() -> None:
    controller = Scripted(look=waking({0: 50, 20: 30, 25: 90}))
    yard = Yard(controller)
    for when in (20, 25):
        yard.kernel.call_at(START + when, lambda when=when: yard.submit(Update(job(x=when))))  # type: ignore[misc]
    yard.run(Create(job()))
    assert controller.looks == [("a", 0), ("a", 20), ("a", 25), ("a", 90)]


@pytest.mark.parametrize(("asked", "woken"), [(None, 50), (30, 30), (90, 50)])
def test_a_look_that_writes_can_only_hasten_the_wake_up(asked: int | None, woken: int) -> None:
    later = None if asked is None else START + asked
    look = in_turn(
        ReconcileResult(requeue_at=START + 50), ReconcileResult([Create(job("b"))], requeue_at=later), ReconcileResult()
    )
    controller = Scripted(look=look, minds=when_a_comes)
    yard = Yard(controller)
    yard.kernel.call_at(START + 20, lambda: yard.submit(Update(job(x=1))))
    yard.run(Create(job()))
    assert controller.looks == [("a", 0), ("a", 20), ("a", woken)]


def test_who_waits_is_looked_at_when_its_object_changes() -> None:
    controller = Scripted(look=waking({0: 50}), minds=when_a_comes)
    yard = Yard(controller)
    yard.kernel.call_at(START + 20, lambda: yard.submit(Update(job(x=1))))
    yard.run(Create(job()))
    assert controller.looks == [("a", 0), ("a", 20)]
    assert yard.kernel.now() == START + 20


@pytest.mark.parametrize(
    "last", [ReconcileResult(), ReconcileResult([Create(job("b"))]), ReconcileResult(requeue_at=START + 70)]
)
def test_nobody_waits_for_what_is_gone_unless_it_asks_again(last: ReconcileResult) -> None:
    controller = Scripted(
        look=in_turn(ReconcileResult(requeue_at=START + 50), last, ReconcileResult()), minds=lambda e: e.key == A
    )
    yard = Yard(controller)
    yard.kernel.call_at(START + 20, lambda: yard.submit(Delete(A)))
    yard.run(Create(job()))
    assert yard.kernel.now() == (last.requeue_at or START + 20)


def test_for_a_runner_that_was_stopped_no_time_passes() -> None:
    yard = Yard(Scripted(look=waking({0: 50})))
    yard.run(Create(job()), seconds=0)
    yard.runner.stop()
    assert yard.kernel.next_instant() is None


def test_who_waits_for_nothing_is_not_looked_at_when_its_object_changes() -> None:
    controller = Scripted(minds=when_a_comes)
    yard = Yard(controller)
    yard.run(Create(job()))
    yard.run(Update(job(x=1)))
    assert controller.looks == [("a", 0)]


def test_a_change_does_not_hasten_a_retry() -> None:
    controller = Scripted(look=always(Create({**job(), "metadata": {"namespace": "team"}})), minds=when_a_comes)
    yard = Yard(controller)
    yard.run(Create(job()), seconds=0.01)
    looks = len(controller.looks)
    yard.submit(Update(job(x=1)))
    yard.kernel.run(yard.kernel.now())
    assert len(controller.looks) == looks


def test_asking_for_a_look_now_goes_through_the_kernel() -> None:
    left = [3]

    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        left[0] -= 1
        return ReconcileResult(requeue_at=now if left[0] else None)

    controller = Scripted(look=look)
    yard = Yard(controller)
    yard.run(Create(job()))
    assert controller.looks == [("a", 0)] * 3
    assert yard.kernel.steps == 6


def test_delayed_keys_can_be_flushed_as_if_their_time_had_come() -> None:
    def batch(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return ReconcileResult() if now >= START + SECOND else ReconcileResult(requeue_at=START + SECOND)

    flushed, other = Scripted("flushed", look=batch), Scripted("other", look=batch)
    yard = Yard(flushed, other)
    yard.run(Create(job()), seconds=0.5)
    yard.runner.flush_delayed(["flushed"])
    yard.run(seconds=0.5)
    assert flushed.looks == [("a", 0), ("a", SECOND)]
    assert other.looks == [("a", 0)]
    assert yard.kernel.now() == START
    yard.run()
    assert len(flushed.looks) == 2
    assert len(other.looks) == 2


def test_flushing_an_unknown_controller_is_a_defect() -> None:
    with pytest.raises(InvariantError, match="'nobody'"):
        Yard(Scripted()).runner.flush_delayed(["nobody"])


def test_two_controllers_of_one_name_are_a_defect() -> None:
    with pytest.raises(InvariantError, match="different names"):
        Yard(Scripted(), Scripted())


def test_a_defect_of_a_controller_passes_with_a_note_of_who_and_what() -> None:
    def look(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        Yard(Scripted(look=look)).run(Create(job()))
    assert caught.value.__notes__ == [f'while scripted reconciled Job.batch "team/a" at instant {START}']


def test_a_deleted_object_is_looked_at_if_somebody_asks() -> None:
    controller = Scripted(kinds=("Job.batch",))
    yard = Yard(controller)
    yard.touch(key("never"))
    yard.run()
    assert controller.looks == [("never", 0)]
