"""The states of a key: queued, with pending writes, requested again, delayed."""

from collections.abc import Iterable

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.controller_runtime.runner import ControllerQueue, DelayedRequeue, WorkQueue
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

A, B = Key("Job.batch", "team", "a"), Key("Job.batch", "team", "b")


class NamedController:
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
    queue = WorkQueue([NamedController("only")])
    return queue, queue.lanes[0]


def take(lane: ControllerQueue) -> Key:
    """Take the next key like the runner."""
    taken, key = lane.line.popleft()
    assert taken is lane
    del lane.states[key]
    return key


def test_queue_returns_each_key_once_in_order_of_arrival() -> None:
    queue, lane = one_lane()
    for key in (B, A, B):
        lane.add(key)
    queue.validate()
    assert [take(lane), take(lane)] == [B, A]
    assert not queue


def test_key_with_pending_writes_is_not_queued() -> None:
    queue, lane = one_lane()
    lane.add(A)
    lane.mark_submitted(take(lane))
    lane.add(A)
    lane.add(A)
    queue.validate()
    assert not queue
    assert lane.land(A)


def test_key_without_new_request_is_not_requeued_after_writes() -> None:
    _, lane = one_lane()
    lane.add(A)
    lane.mark_submitted(take(lane))
    assert not lane.land(A)


def test_replaced_wake_up_is_ignored() -> None:
    _, lane = one_lane()
    lane.wake_ups[A] = DelayedRequeue(10, 1)
    assert not lane.wake(A, 20)
    assert lane.wake(A, 10)
    assert not lane.wake(A, 10)
    assert take(lane) == A


def test_wake_early_skips_failing_keys_and_keys_with_pending_writes() -> None:
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


def test_lines_are_sorted_by_rank() -> None:
    queue = WorkQueue(
        [
            NamedController("high", 10),
            NamedController("low", -1),
            NamedController("middle"),
            NamedController("also-low", -1),
        ]
    )
    assert [lane.controller.name for lane in queue.lanes] == ["high", "low", "middle", "also-low"]
    by_line = [[lane.controller.name for lane in queue.lanes if lane.line is line] for line in queue.lines]
    assert by_line == [["low", "also-low"], ["middle"], ["high"]]


def test_lanes_for_returns_lanes_of_kind_and_of_all_kinds() -> None:
    queue = WorkQueue(
        [NamedController("jobs", kinds=("Job.batch",)), NamedController("all"), NamedController("pods", kinds=("Pod",))]
    )
    assert [lane.controller.name for lane in queue.lanes_for("Job.batch")] == ["jobs", "all"]
    assert [lane.controller.name for lane in queue.lanes_for("Secret")] == ["all"]
