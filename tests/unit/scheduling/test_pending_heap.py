"""Pending Workloads of a ClusterQueue: order, inadmissible Workloads, and their reactivation."""

import pickle
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.flavor_assigner import LastAssignment
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.pending_heap import is_held_back
from batchyard.scheduling.queue_manager import PendingQueue
from yard import workload

NO_FIT, NO_CANDIDATES = RequeueReason.NO_FIT, RequeueReason.PREEMPTION_NO_CANDIDATES
GENERIC, MISMATCH = RequeueReason.GENERIC, RequeueReason.NAMESPACE_MISMATCH
SKIPPED, PREEMPTING = RequeueReason.FAILED_AFTER_NOMINATION, RequeueReason.PENDING_PREEMPTION


def backoff(name: str, seconds: float, **fields: Any) -> Obj:
    """A Workload with a backoff until this many seconds after the start."""
    return workload(name, status={"requeueState": {"requeueAt": make.stamp(seconds)}}, **fields)


def blocked(name: str, **fields: Any) -> Obj:
    """A Workload with Requeued=False."""
    return workload(name, conditions=[make.condition("Requeued", status=False)], **fields)


def waiting(*objects: Obj, strict: bool = False) -> PendingQueue:
    """A queue with these pending Workloads."""
    queue = PendingQueue("cq")
    queue.strict_fifo = strict
    for obj in objects:
        queue.put(workload_view(obj), make.NOW)
    return queue


def put(queue: PendingQueue, obj: Obj, seconds: float = 0) -> bool:
    return queue.put(workload_view(obj), make.at(seconds))


def all_namespaces(namespace: str) -> bool:
    return True


def reactivate(queue: PendingQueue, seconds: float = 0) -> bool:
    return queue.reactivate(all_namespaces, make.at(seconds))


def pop(queue: PendingQueue) -> Head:
    """Remove and return the head."""
    head = queue.head()
    assert head is not None
    queue.remove(head.workload.key, forget_preemptor=False)
    return head


def pop_all(queue: PendingQueue) -> list[str]:
    """Remove all heads; return their names in order."""
    names = []
    while queue.has_heads():
        names.append(pop(queue).workload.name)
    return names


def requeue(queue: PendingQueue, reason: RequeueReason, seconds: float = 0) -> bool:
    """Requeue the head for a reason; return whether it became inadmissible."""
    head = queue.head()
    assert head is not None
    return queue.requeue(head, None, reason, make.at(seconds))


def names(views: list[WorkloadView]) -> list[str]:
    return [view.name for view in views]


# Order.


def test_queue_is_sorted_by_priority_age_and_uid() -> None:
    queue = waiting(workload("d"), workload("c"), workload("b", created=-5), workload("a", priority=9, created=5))
    assert names(queue.views()) == ["a", "b", "c", "d"]
    assert pop_all(queue) == ["a", "b", "c", "d"]


def test_order_does_not_depend_on_shape_or_namespace() -> None:
    objs = [workload("a", 1), workload("b", 2, created=1), workload("c", 1, created=2), workload("d", 2, created=3)]
    other = with_metadata(workload("e", 1, created=1.5), namespace="other")
    assert pop_all(waiting(*objs, other)) == ["a", "b", "e", "c", "d"]


def test_pods_ready_timeout_resets_queue_position() -> None:
    late = make.condition("Evicted", reason="PodsReadyTimeout", since=50)
    kept = make.condition("Evicted", reason="Preempted", since=50)
    queue = waiting(
        workload("a", conditions=[late]), workload("b", created=20), workload("c", conditions=[kept], created=10)
    )
    assert pop_all(queue) == ["c", "b", "a"]


def test_empty_queue_has_no_head() -> None:
    queue = waiting()
    assert (queue.head(), queue.has_heads(), len(queue)) == (None, False, 0)


def test_head_stays_until_removal() -> None:
    queue = waiting(workload("a"))
    assert queue.head() == queue.head()
    assert (pop(queue).workload.name, len(queue), queue.get("team/a")) == ("a", 0, None)
    assert queue.counts_by_local_queue == {"team/cq": 0}


def test_pickled_queue_keeps_order() -> None:
    copied = pickle.loads(pickle.dumps(waiting(workload("b"), workload("a"))))
    assert pop_all(copied) == ["a", "b"]


def test_pending_workloads_are_counted_by_local_queue() -> None:
    queue = waiting(
        workload("a", queue="x"), workload("b", queue="y"), workload("c", queue="x"), blocked("d", queue="y")
    )
    assert queue.counts_by_local_queue == {"team/x": 2, "team/y": 2}
    queue.remove("team/d")
    assert queue.counts_by_local_queue == {"team/x": 2, "team/y": 1}


# Requeue.


@pytest.mark.parametrize(
    ("reason", "parked", "strictly_parked"),
    [
        (GENERIC, True, False),
        (NO_FIT, True, False),
        (NO_CANDIDATES, True, False),
        (MISMATCH, True, True),
        (SKIPPED, False, False),
        (PREEMPTING, False, False),
    ],
)
def test_requeue_reason_decides_inadmissibility(reason: RequeueReason, *, parked: bool, strictly_parked: bool) -> None:
    assert requeue(waiting(workload("a")), reason) is parked
    assert requeue(waiting(workload("a"), strict=True), reason) is strictly_parked


def test_workload_with_untried_flavors_stays_in_heap() -> None:
    queue = waiting(workload("a"))
    head = pop(queue)
    last = LastAssignment(({"cpu": 0},), 1, 1, head.workload.shape)
    assert not queue.requeue(head, last, NO_FIT, make.NOW)
    assert pop(queue).last_assignment is last


def test_workload_without_untried_flavors_is_inadmissible() -> None:
    queue = waiting(workload("a"))
    head = pop(queue)
    assert queue.requeue(head, None, NO_FIT, make.NOW)
    assert not queue.has_heads()


def test_inadmissible_workloads_count_as_pending() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, NO_FIT)
    assert (names(queue.views()), len(queue), queue.has_heads()) == (["a", "b"], 2, True)
    result = queue.get("team/a")
    assert result is not None
    assert result.view.name == "a"


# Inadmissible Workloads of one shape.


@pytest.mark.parametrize("reason", [NO_FIT, NO_CANDIDATES])
def test_inadmissible_head_parks_all_workloads_of_its_shape(reason: RequeueReason) -> None:
    queue = waiting(workload("a"), workload("b", created=1), workload("c", 2, created=2), workload("d", created=3))
    assert requeue(queue, reason)
    assert pop_all(queue) == ["c"]


def test_new_workload_of_inadmissible_shape_is_parked_at_once() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    assert (put(queue, workload("b")), put(queue, workload("c", 2))) == (False, True)
    assert pop_all(queue) == ["c"]


def test_inadmissible_shape_applies_to_every_namespace() -> None:
    queue = waiting(workload("a"), with_metadata(workload("b", created=1), namespace="other"))
    requeue(queue, NO_FIT)
    assert not queue.has_heads()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(workload("b", priority=1), id="priority"),
        pytest.param(workload("b", 2), id="requests"),
        pytest.param(workload("b", pod_sets=[make.pod_set(count=2)]), id="count"),
        pytest.param(workload("b", pod_sets=[make.pod_set(minCount=1)]), id="minCount"),
        pytest.param(workload("b", pod_sets=[make.pod_set("other")]), id="name of the pod set"),
    ],
)
def test_workload_of_other_shape_is_not_parked(other: Obj) -> None:
    queue = waiting(workload("a", priority=0))
    requeue(queue, NO_FIT)
    assert put(queue, other)


def test_generic_requeue_parks_only_head() -> None:
    queue = waiting(workload("a"), workload("b", created=1))
    requeue(queue, GENERIC)
    assert pop_all(queue) == ["b"]


def test_strict_fifo_parks_no_workload_of_same_shape() -> None:
    queue = waiting(workload("a"), workload("b", created=1), strict=True)
    requeue(queue, NO_FIT)
    assert put(queue, workload("c", created=2))
    assert pop_all(queue) == ["a", "b", "c"]


# Reactivation.


def test_reactivated_workloads_keep_order() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abcde")))
    requeue(queue, NO_FIT)
    assert not queue.has_heads()
    assert reactivate(queue)
    assert pop_all(queue) == ["a", "b", "c", "d", "e"]


def test_reactivated_workloads_are_merged_into_heap_in_order() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abcde")))
    for _ in range(3):
        requeue(queue, GENERIC)
    assert reactivate(queue)
    assert pop_all(queue) == ["a", "b", "c", "d", "e"]


def test_reactivation_without_inadmissible_workloads_returns_false() -> None:
    assert not reactivate(waiting(workload("a")))


def test_reactivation_is_limited_to_matching_namespaces() -> None:
    queue = waiting(workload("a"), with_metadata(workload("b", created=1), namespace="other"))
    requeue(queue, NO_FIT)
    assert queue.reactivate(lambda namespace: namespace == "other", make.NOW)
    assert pop_all(queue) == ["b"]


def test_reactivation_clears_inadmissible_shapes() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    queue.reactivate(lambda _: False, make.NOW)
    assert put(queue, workload("b"))
    assert pop_all(queue) == ["b"]


def test_repeated_parking_and_reactivation_keeps_all_workloads() -> None:
    queue = waiting(*(workload(f"w{n}", 1 + n % 3, created=n) for n in range(12)))
    for _ in range(4):
        while queue.has_heads():
            requeue(queue, NO_FIT)
        reactivate(queue)
    assert pop_all(queue) == [f"w{n}" for n in range(12)]


# The preemptor.


def test_preemptor_stays_head_of_queue() -> None:
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    put(queue, workload("b", priority=9))
    assert names(queue.views()) == ["a", "b"]
    assert pop_all(queue) == ["a", "b"]


def test_preemptor_does_not_stay_head_with_strict_fifo() -> None:
    queue = waiting(workload("a"), strict=True)
    requeue(queue, PREEMPTING)
    put(queue, workload("b", priority=9))
    assert pop_all(queue) == ["b", "a"]


def test_preemptor_keeps_position_across_requeues() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, PREEMPTING)
    requeue(queue, NO_FIT)
    put(queue, workload("c", 3, priority=9))
    assert pop_all(queue) == ["c", "b"]
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    requeue(queue, NO_FIT)
    put(queue, workload("c", 3, priority=9))
    reactivate(queue)
    assert pop_all(queue) == ["a", "c"]


def test_next_preemptor_replaces_sticky_head() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, PREEMPTING)
    head = pop(queue)
    requeue(queue, PREEMPTING)
    queue.requeue(head, None, SKIPPED, make.NOW)
    assert pop_all(queue) == ["b", "a"]


def test_removed_preemptor_loses_position() -> None:
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    assert queue.remove("team/a")
    put(queue, workload("b", priority=9))
    put(queue, workload("a"))
    assert pop_all(queue) == ["b", "a"]


def test_updated_preemptor_keeps_position() -> None:
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    put(queue, workload("a", 2))
    put(queue, workload("b", priority=9))
    assert pop_all(queue) == ["a", "b"]


# Backoffs.


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (workload(), False),
        (backoff("a", 1), True),
        (backoff("a", 0), False),
        (blocked("a"), True),
        (workload("a", conditions=[make.condition("Requeued")]), False),
    ],
)
def test_is_held_back_detects_backoff_and_requeued_condition(obj: Obj, *, expected: bool) -> None:
    assert is_held_back(workload_view(obj), make.NOW) is expected


def test_held_back_workload_is_not_head_until_release() -> None:
    queue = waiting(backoff("a", 10), blocked("b"))
    assert (queue.has_heads(), len(queue), queue.next_release()) == (False, 2, make.at(10))
    assert not reactivate(queue, 9)
    assert reactivate(queue, 10)
    assert (pop_all(queue), queue.next_release()) == (["a"], None)


def test_next_release_is_earliest_backoff() -> None:
    queue = waiting(backoff("a", 30), backoff("b", 10), backoff("c", 20))
    assert queue.next_release() == make.at(10)
    queue.remove("team/b")
    assert queue.next_release() == make.at(20)


def test_workload_with_requeued_false_returns_only_after_update() -> None:
    queue = waiting(blocked("a"))
    assert (queue.next_release(), reactivate(queue, 1000)) == (None, False)
    assert put(queue, workload("a", conditions=[make.condition("Requeued")]))
    assert pop_all(queue) == ["a"]


def test_held_back_workload_stays_in_unmatched_namespace() -> None:
    queue = waiting(backoff("a", 10))
    assert not queue.reactivate(lambda _: False, make.at(20))
    assert reactivate(queue, 20)


def test_requeued_head_with_backoff_is_held_back() -> None:
    queue = waiting(workload("a"))
    head = pop(queue)
    later = Head(workload_view(backoff("a", 10)), head.queue)
    assert queue.requeue(later, None, SKIPPED, make.NOW)
    assert (queue.has_heads(), queue.next_release()) == (False, make.at(10))


def test_queued_workload_with_new_backoff_stays_in_heap() -> None:
    queue = waiting(workload("a"))
    assert put(queue, backoff("a", 10))
    assert pop_all(queue) == ["a"]


# Updates.


def test_irrelevant_update_keeps_workload_inadmissible() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    changed = workload("a", conditions=[make.condition("QuotaReserved", status=False, reason="WaitingForQuota")])
    assert not put(queue, changed)
    result = queue.get("team/a")
    assert result is not None
    assert result.view is workload_view(changed)
    assert not queue.has_heads()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(with_metadata(workload("a"), generation=2), id="its spec"),
        pytest.param(workload("a", priority=3), id="its priority"),
        pytest.param(workload("a", status={"reclaimablePods": [{"name": "main", "count": 1}]}), id="fewer pods"),
        pytest.param(workload("a", conditions=[make.condition("Evicted", reason="Preempted")]), id="evicted"),
    ],
)
def test_relevant_update_requeues_inadmissible_workload(changed: Obj) -> None:
    queue = waiting(workload("a"))
    requeue(queue, GENERIC)
    assert put(queue, changed)
    assert pop_all(queue) == ["a"]


def test_shape_change_discards_last_assignment() -> None:
    queue = waiting(workload("a"))
    head = pop(queue)
    last = LastAssignment(({"cpu": 0},), 1, 1, head.workload.shape)
    queue.requeue(head, last, SKIPPED, make.NOW)
    put(queue, with_metadata(workload("a"), generation=2))
    assert pop(queue).last_assignment is last
    queue.requeue(head, last, SKIPPED, make.NOW)
    put(queue, workload("a", 2))
    assert pop(queue).last_assignment is None


def test_priority_change_moves_workload_in_queue() -> None:
    queue = waiting(workload("a"), workload("b", created=1))
    assert put(queue, workload("b", priority=5, created=1))
    assert pop_all(queue) == ["b", "a"]


def test_queued_workload_stays_in_heap_after_change_to_inadmissible_shape() -> None:
    queue = waiting(workload("a"), workload("b", 2))
    requeue(queue, NO_FIT)
    assert put(queue, workload("b"))
    assert pop_all(queue) == ["b"]


def test_parked_workload_stays_parked_after_change_to_inadmissible_shape() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, NO_FIT)
    requeue(queue, GENERIC)
    assert not put(queue, workload("b", created=1))
    assert not queue.has_heads()


# Removal, and Workloads of a LocalQueue.


def test_workload_is_removed_from_middle_of_queue() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abc")))
    assert (queue.remove("team/b"), queue.remove("team/b")) == (True, False)
    assert pop_all(queue) == ["a", "c"]


def test_front_skips_removed_workload() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abcd")))
    queue.remove("team/b")
    assert (names(queue.first_not_held_back(2)), names(queue.first_not_held_back(9))) == (["a", "c"], ["a", "c", "d"])


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_inadmissible_workload_is_removed(name: str) -> None:
    queue = waiting(*(workload(one, created=n) for n, one in enumerate("abc")))
    requeue(queue, NO_FIT)
    queue.remove(f"team/{name}")
    reactivate(queue)
    assert pop_all(queue) == [one for one in "abc" if one != name]


def test_removed_held_back_workload_does_not_return() -> None:
    queue = waiting(backoff("a", 10))
    queue.remove("team/a")
    assert (reactivate(queue, 20), len(queue)) == (False, 0)


def test_put_in_line_keeps_pending_workload_unchanged() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    for obj in (workload("a"), workload("b")):
        queue.put_in_line(workload_view(obj))
    assert pop_all(queue) == ["b"]


def test_new_generation_requeues_parked_workload() -> None:
    queue = waiting(workload("a"))
    requeue(queue, GENERIC)
    assert put(queue, with_path(workload("a"), ("metadata", "generation"), 7))


def test_inadmissible_shape_survives_empty_queue_until_reactivation() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    queue.remove("team/a")
    assert queue.may_reactivate
    reactivate(queue)
    assert not queue.may_reactivate
    assert put(queue, workload("b"))


def test_removal_behind_head_leaves_no_stale_entries() -> None:
    queue = waiting(*(workload(f"w{n:03}", created=n) for n in range(100)))
    before = len(queue._class_fronts)
    for n in range(1, 100):
        queue.remove(f"team/w{n:03}")
    assert (len(queue._class_fronts), pop_all(queue)) == (before, ["w000"])


def test_first_and_place_of_match_order_of_views() -> None:
    queue = PendingQueue("cq")
    for number, priority in enumerate([1, 5, 3, 5, 2]):
        queue.put(workload_view(make.workload(f"w{number}", priority=priority)), make.NOW)
    preempting = queue.head()
    assert preempting is not None
    for sticky in (False, True):
        if sticky:
            queue.requeue(preempting, None, RequeueReason.PENDING_PREEMPTION, make.NOW)
            queue.put(workload_view(make.workload("first", priority=9)), make.NOW)
        order = [view.key for view in queue.views()]
        for count in range(len(order) + 1):
            assert [view.key for view in queue.first_workloads(count)] == order[:count]
        assert [queue.count_ahead_of(key) for key in order] == list(range(len(order)))
    assert order[0] == preempting.workload.key
