"""The states of a key: queued, with pending writes, requested again, delayed."""

from collections.abc import Iterable

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.controller_runtime.kernel import ControllerQueue, DelayedRequeue, WorkQueue
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


def one_queue() -> tuple[WorkQueue, ControllerQueue]:
    work_queue = WorkQueue([NamedController("only")])
    return work_queue, work_queue.queues[0]


def take(queue: ControllerQueue) -> Key:
    """Take the next key like the runner."""
    taken, key = queue.rank_queue.popleft()
    assert taken is queue
    del queue.states[key]
    return key


def test_queue_returns_each_key_once_in_order_of_arrival() -> None:
    work_queue, queue = one_queue()
    for key in (B, A, B):
        queue.add(key)
    work_queue.validate()
    assert [take(queue), take(queue)] == [B, A]
    assert not work_queue


def test_key_with_pending_writes_is_not_queued() -> None:
    work_queue, queue = one_queue()
    queue.add(A)
    queue.mark_submitted(take(queue))
    queue.add(A)
    queue.add(A)
    work_queue.validate()
    assert not work_queue
    assert queue.complete_writes(A)


def test_key_without_new_request_is_not_requeued_after_writes() -> None:
    _, queue = one_queue()
    queue.add(A)
    queue.mark_submitted(take(queue))
    assert not queue.complete_writes(A)


def test_replaced_requeue_is_ignored() -> None:
    _, queue = one_queue()
    queue.delayed_requeues[A] = DelayedRequeue(10, 1)
    assert not queue.process_requeue(A, 20)
    assert queue.process_requeue(A, 10)
    assert not queue.process_requeue(A, 10)
    assert take(queue) == A


def test_requeue_early_skips_failing_keys_and_keys_with_pending_writes() -> None:
    _, queue = one_queue()
    failing, moving = Key("Job.batch", "team", "failing"), Key("Job.batch", "team", "moving")
    queue.delayed_requeues = {
        B: DelayedRequeue(20, 1),
        A: DelayedRequeue(10, 2),
        failing: DelayedRequeue(5, 3),
        moving: DelayedRequeue(5, 4),
    }
    queue.failures[failing] = 1
    queue.mark_submitted(moving)
    assert queue.requeue_early() == [2, 1]
    assert [take(queue), take(queue)] == [A, B]
    assert queue.early_due_times == {A: 10, B: 20}
    assert queue.delayed_requeues == {failing: DelayedRequeue(5, 3), moving: DelayedRequeue(5, 4)}


def test_rank_queues_are_sorted_by_rank() -> None:
    work_queue = WorkQueue(
        [
            NamedController("high", 10),
            NamedController("low", -1),
            NamedController("middle"),
            NamedController("also-low", -1),
        ]
    )
    assert [queue.controller.name for queue in work_queue.queues] == ["high", "low", "middle", "also-low"]
    by_rank = [
        [q.controller.name for q in work_queue.queues if q.rank_queue is rank] for rank in work_queue.rank_queues
    ]
    assert by_rank == [["low", "also-low"], ["middle"], ["high"]]


def test_queues_for_kind_returns_queues_of_kind_and_of_all_kinds() -> None:
    work_queue = WorkQueue(
        [NamedController("jobs", kinds=("Job.batch",)), NamedController("all"), NamedController("pods", kinds=("Pod",))]
    )
    assert [queue.controller.name for queue in work_queue.queues_for_kind("Job.batch")] == ["jobs", "all"]
    assert [queue.controller.name for queue in work_queue.queues_for_kind("Secret")] == ["all"]


def test_key_is_queued_while_few_writes_are_in_flight() -> None:
    work_queue, queue = one_queue()
    queue.add(A)
    take(queue)
    queue.mark_in_flight(A, 2, in_flight_max=2)
    queue.add(A)
    work_queue.validate()
    assert take(queue) == A
    assert [queue.complete_in_flight(A, in_flight_max=2) for _ in range(2)] == [False, True]
    assert queue.in_flight == {}


def test_key_is_not_queued_while_many_writes_are_in_flight() -> None:
    work_queue, queue = one_queue()
    queue.add(A)
    take(queue)
    queue.mark_in_flight(A, 3, in_flight_max=1)
    queue.add(A)
    assert not work_queue
    assert [queue.complete_in_flight(A, in_flight_max=1) for _ in range(3)] == [False, True, True]
    queue.add(A)
    work_queue.validate()
    assert take(queue) == A


def test_key_is_queued_after_last_result_of_writes_in_flight() -> None:
    _, queue = one_queue()
    queue.add(A)
    take(queue)
    queue.mark_in_flight(A, 2, in_flight_max=1)
    assert [queue.complete_in_flight(A, in_flight_max=1) for _ in range(2)] == [False, True]
    assert A not in queue.states
