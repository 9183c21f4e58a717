"""The states of a key: waiting once, under way, wanted again, to be woken."""

from collections.abc import Iterable

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.controller_runtime.runner import ControllerQueue, DelayedRequeue, WorkQueue
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

A, B = Key("Job.batch", "team", "a"), Key("Job.batch", "team", "b")


class Named:
    """A controller that does nothing."""

    def __init__(self, name: str, rank: int = 0, kinds: tuple[str, ...] | None = None) -> None:
        self.name = name
        self.rank = rank
        self.kinds = kinds

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        return ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        return ReconcileResult()


def one_lane() -> tuple[WorkQueue, ControllerQueue]:
    queue = WorkQueue([Named("only")])
    return queue, queue.lanes[0]


def take(lane: ControllerQueue) -> Key:
    """What the runner does to look at the next key."""
    taken, key = lane.line.popleft()
    assert taken is lane
    del lane.states[key]
    return key


def test_a_key_waits_once_and_in_order_of_arrival() -> None:
    queue, lane = one_lane()
    for key in (B, A, B):
        lane.add(key)
    queue.validate()
    assert [take(lane), take(lane)] == [B, A]
    assert not queue


def test_a_key_under_way_is_not_in_the_line() -> None:
    queue, lane = one_lane()
    lane.add(A)
    lane.mark_submitted(take(lane))
    lane.add(A)
    lane.add(A)
    queue.validate()
    assert not queue
    assert lane.land(A)


def test_a_key_that_nobody_wanted_meanwhile_just_lands() -> None:
    _, lane = one_lane()
    lane.add(A)
    lane.mark_submitted(take(lane))
    assert not lane.land(A)


def test_a_wake_up_that_was_replaced_wakes_nobody() -> None:
    _, lane = one_lane()
    lane.wake_ups[A] = DelayedRequeue(10, 1)
    assert not lane.wake(A, 20)
    assert lane.wake(A, 10)
    assert not lane.wake(A, 10)
    assert take(lane) == A


def test_waking_early_takes_only_keys_that_wait_for_nothing_else() -> None:
    _, lane = one_lane()
    failing, moving = Key("Job.batch", "team", "failing"), Key("Job.batch", "team", "moving")
    lane.wake_ups = {
        B: DelayedRequeue(20, 1),
        A: DelayedRequeue(10, 2),
        failing: DelayedRequeue(5, 3),
        moving: DelayedRequeue(5, 4),
    }
    lane.failures[failing] = 1
    lane.mark_submitted(moving)
    assert lane.wake_early() == [2, 1]
    assert [take(lane), take(lane)] == [A, B]
    assert lane.due == {A: 10, B: 20}
    assert lane.wake_ups == {failing: DelayedRequeue(5, 3), moving: DelayedRequeue(5, 4)}


def test_lines_are_by_rank_the_lowest_first() -> None:
    queue = WorkQueue([Named("high", 10), Named("low", -1), Named("middle"), Named("also-low", -1)])
    assert [lane.controller.name for lane in queue.lanes] == ["high", "low", "middle", "also-low"]
    by_line = [[lane.controller.name for lane in queue.lanes if lane.line is line] for line in queue.lines]
    assert by_line == [["low", "also-low"], ["middle"], ["high"]]


def test_lanes_of_a_kind_are_those_that_ask_for_it_or_for_all() -> None:
    queue = WorkQueue([Named("jobs", kinds=("Job.batch",)), Named("all"), Named("pods", kinds=("Pod",))])
    assert [lane.controller.name for lane in queue.lanes_for("Job.batch")] == ["jobs", "all"]
    assert [lane.controller.name for lane in queue.lanes_for("Secret")] == ["all"]
