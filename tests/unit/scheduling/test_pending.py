"""Who waits in a ClusterQueue, in what order, and when the parked come back."""

import pickle
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.flavor_assigner import LastAssignment
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.queue_manager import PendingQueue, is_held_back
from yard import workload

NO_FIT, NO_CANDIDATES = RequeueReason.NO_FIT, RequeueReason.PREEMPTION_NO_CANDIDATES
GENERIC, MISMATCH = RequeueReason.GENERIC, RequeueReason.NAMESPACE_MISMATCH
SKIPPED, PREEMPTING = RequeueReason.FAILED_AFTER_NOMINATION, RequeueReason.PENDING_PREEMPTION


def backoff(name: str, seconds: float, **fields: Any) -> Obj:
    """A Workload that must not be tried before a moment."""
    return workload(name, status={"requeueState": {"requeueAt": make.stamp(seconds)}}, **fields)


def blocked(name: str, **fields: Any) -> Obj:
    """A Workload with Requeued=False."""
    return workload(name, conditions=[make.condition("Requeued", status=False)], **fields)


def waiting(*objects: Obj, strict: bool = False) -> PendingQueue:
    """A queue in which these wait."""
    queue = PendingQueue("cq")
    queue.strict_fifo = strict
    for obj in objects:
        queue.put(workload_view(obj), make.NOW)
    return queue


def put(queue: PendingQueue, obj: Obj, seconds: float = 0) -> bool:
    return queue.put(workload_view(obj), make.at(seconds))


def everybody(namespace: str) -> bool:
    return True


def wake(queue: PendingQueue, seconds: float = 0) -> bool:
    return queue.wake(everybody, make.at(seconds))


def take(queue: PendingQueue) -> Head:
    """The head, which must be there; it waits no more."""
    head = queue.head()
    assert head is not None
    queue.remove(head.workload.key, forget_sticky=False)
    return head


def taken(queue: PendingQueue) -> list[str]:
    """Everybody in line, in the order of their turn; they are in line no more."""
    names = []
    while queue.has_heads():
        names.append(take(queue).workload.name)
    return names


def requeue(queue: PendingQueue, reason: RequeueReason, seconds: float = 0) -> bool:
    """Put the head back for a reason; whether it was parked."""
    head = queue.head()
    assert head is not None
    return queue.requeue(head, None, reason, make.at(seconds))


def names(views: list[WorkloadView]) -> list[str]:
    return [view.name for view in views]


# Order.


def test_priority_comes_before_waiting_time_before_uid() -> None:
    queue = waiting(workload("d"), workload("c"), workload("b", created=-5), workload("a", priority=9, created=5))
    assert names(queue.views()) == ["a", "b", "c", "d"]
    assert taken(queue) == ["a", "b", "c", "d"]


def test_shapes_and_namespaces_do_not_bear_on_the_order() -> None:
    objs = [workload("a", 1), workload("b", 2, created=1), workload("c", 1, created=2), workload("d", 2, created=3)]
    other = with_metadata(workload("e", 1, created=1.5), namespace="other")
    assert taken(waiting(*objs, other)) == ["a", "b", "e", "c", "d"]


def test_an_eviction_for_unready_pods_renews_the_waiting_time() -> None:
    late = make.condition("Evicted", reason="PodsReadyTimeout", since=50)
    kept = make.condition("Evicted", reason="Preempted", since=50)
    queue = waiting(
        workload("a", conditions=[late]), workload("b", created=20), workload("c", conditions=[kept], created=10)
    )
    assert taken(queue) == ["c", "b", "a"]


def test_an_empty_queue_has_no_head() -> None:
    queue = waiting()
    assert (queue.head(), queue.has_heads(), len(queue)) == (None, False, 0)


def test_a_head_waits_until_it_is_removed() -> None:
    queue = waiting(workload("a"))
    assert queue.head() == queue.head()
    assert (take(queue).workload.name, len(queue), queue.get("team/a")) == ("a", 0, None)
    assert queue.by_local_queue == {"team/cq": 0}


def test_a_copy_knows_whose_turn_it_is() -> None:
    copied = pickle.loads(pickle.dumps(waiting(workload("b"), workload("a"))))
    assert taken(copied) == ["a", "b"]


def test_waiting_workloads_are_counted_by_local_queue() -> None:
    queue = waiting(
        workload("a", queue="x"), workload("b", queue="y"), workload("c", queue="x"), blocked("d", queue="y")
    )
    assert queue.by_local_queue == {"team/x": 2, "team/y": 2}
    queue.remove("team/d")
    assert queue.by_local_queue == {"team/x": 2, "team/y": 1}


# Going back.


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
def test_the_reason_says_who_is_parked(reason: RequeueReason, *, parked: bool, strictly_parked: bool) -> None:
    assert requeue(waiting(workload("a")), reason) is parked
    assert requeue(waiting(workload("a"), strict=True), reason) is strictly_parked


def test_who_has_flavors_left_to_try_stays_in_line() -> None:
    queue = waiting(workload("a"))
    head = take(queue)
    last = LastAssignment(({"cpu": 0},), 1, 1, head.workload.shape)
    assert not queue.requeue(head, last, NO_FIT, make.NOW)
    assert take(queue).last is last


def test_who_has_tried_all_flavors_is_parked() -> None:
    queue = waiting(workload("a"))
    head = take(queue)
    assert queue.requeue(head, None, NO_FIT, make.NOW)
    assert not queue.has_heads()


def test_the_parked_wait_too() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, NO_FIT)
    assert (names(queue.views()), len(queue), queue.has_heads()) == (["a", "b"], 2, True)
    found = queue.get("team/a")
    assert found is not None
    assert found.view.name == "a"


# Parking all that are alike.


@pytest.mark.parametrize("reason", [NO_FIT, NO_CANDIDATES])
def test_a_hopeless_head_parks_all_of_its_shape(reason: RequeueReason) -> None:
    queue = waiting(workload("a"), workload("b", created=1), workload("c", 2, created=2), workload("d", created=3))
    assert requeue(queue, reason)
    assert taken(queue) == ["c"]


def test_who_comes_later_of_a_hopeless_shape_is_parked_at_once() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    assert (put(queue, workload("b")), put(queue, workload("c", 2))) == (False, True)
    assert taken(queue) == ["c"]


def test_a_shape_is_hopeless_in_every_namespace() -> None:
    queue = waiting(workload("a"), with_metadata(workload("b", created=1), namespace="other"))
    requeue(queue, NO_FIT)
    assert not queue.has_heads()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(workload("b", priority=1), id="priority"),
        pytest.param(workload("b", 2), id="requests"),
        pytest.param(workload("b", pod_sets=[make.pod_set(count=2)]), id="count"),
        pytest.param(workload("b", pod_sets=[make.pod_set(minCount=1)]), id="least count"),
        pytest.param(workload("b", pod_sets=[make.pod_set("other")]), id="name of the pod set"),
    ],
)
def test_another_shape_is_not_parked_along(other: Obj) -> None:
    queue = waiting(workload("a", priority=0))
    requeue(queue, NO_FIT)
    assert put(queue, other)


def test_who_was_parked_for_itself_leaves_the_others_in_line() -> None:
    queue = waiting(workload("a"), workload("b", created=1))
    requeue(queue, GENERIC)
    assert taken(queue) == ["b"]


def test_in_a_strict_queue_nobody_is_parked_along() -> None:
    queue = waiting(workload("a"), workload("b", created=1), strict=True)
    requeue(queue, NO_FIT)
    assert put(queue, workload("c", created=2))
    assert taken(queue) == ["a", "b", "c"]


# Waking.


def test_the_parked_come_back_in_their_order() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abcde")))
    requeue(queue, NO_FIT)
    assert not queue.has_heads()
    assert wake(queue)
    assert taken(queue) == ["a", "b", "c", "d", "e"]


def test_a_few_parked_join_the_many_in_line_and_the_other_way_round() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abcde")))
    for _ in range(3):
        requeue(queue, GENERIC)
    assert wake(queue)
    assert taken(queue) == ["a", "b", "c", "d", "e"]


def test_nobody_comes_where_nobody_is_parked() -> None:
    assert not wake(waiting(workload("a")))


def test_only_namespaces_that_are_admitted_wake() -> None:
    queue = waiting(workload("a"), with_metadata(workload("b", created=1), namespace="other"))
    requeue(queue, NO_FIT)
    assert queue.wake(lambda namespace: namespace == "other", make.NOW)
    assert taken(queue) == ["b"]


def test_after_a_wake_no_shape_is_hopeless() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    queue.wake(lambda _: False, make.NOW)
    assert put(queue, workload("b"))
    assert taken(queue) == ["b"]


def test_parking_and_waking_many_times_keeps_everybody() -> None:
    queue = waiting(*(workload(f"w{n}", 1 + n % 3, created=n) for n in range(12)))
    for _ in range(4):
        while queue.has_heads():
            requeue(queue, NO_FIT)
        wake(queue)
    assert taken(queue) == [f"w{n}" for n in range(12)]


# The one that preempts.


def test_who_preempts_stays_in_front() -> None:
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    put(queue, workload("b", priority=9))
    assert names(queue.views()) == ["a", "b"]
    assert taken(queue) == ["a", "b"]


def test_in_a_strict_queue_it_does_not() -> None:
    queue = waiting(workload("a"), strict=True)
    requeue(queue, PREEMPTING)
    put(queue, workload("b", priority=9))
    assert taken(queue) == ["b", "a"]


def test_it_keeps_its_place_while_it_comes_and_goes() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, PREEMPTING)
    requeue(queue, NO_FIT)
    put(queue, workload("c", 3, priority=9))
    assert taken(queue) == ["c", "b"]
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    requeue(queue, NO_FIT)
    put(queue, workload("c", 3, priority=9))
    wake(queue)
    assert taken(queue) == ["a", "c"]


def test_the_next_to_preempt_takes_the_place() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, PREEMPTING)
    head = take(queue)
    requeue(queue, PREEMPTING)
    queue.requeue(head, None, SKIPPED, make.NOW)
    assert taken(queue) == ["b", "a"]


def test_who_is_gone_holds_no_place() -> None:
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    assert queue.remove("team/a")
    put(queue, workload("b", priority=9))
    put(queue, workload("a"))
    assert taken(queue) == ["b", "a"]


def test_a_change_of_the_preemptor_does_not_cost_its_place() -> None:
    queue = waiting(workload("a"))
    requeue(queue, PREEMPTING)
    put(queue, workload("a", 2))
    put(queue, workload("b", priority=9))
    assert taken(queue) == ["a", "b"]


# Times to wait.


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
def test_who_must_wait_says_so(obj: Obj, *, expected: bool) -> None:
    assert is_held_back(workload_view(obj), make.NOW) is expected


def test_who_must_wait_is_held_apart() -> None:
    queue = waiting(backoff("a", 10), blocked("b"))
    assert (queue.has_heads(), len(queue), queue.next_release()) == (False, 2, make.at(10))
    assert not wake(queue, 9)
    assert wake(queue, 10)
    assert (taken(queue), queue.next_release()) == (["a"], None)


def test_the_first_release_counts() -> None:
    queue = waiting(backoff("a", 30), backoff("b", 10), backoff("c", 20))
    assert queue.next_release() == make.at(10)
    queue.remove("team/b")
    assert queue.next_release() == make.at(20)


def test_who_is_blocked_comes_back_by_a_change_alone() -> None:
    queue = waiting(blocked("a"))
    assert (queue.next_release(), wake(queue, 1000)) == (None, False)
    assert put(queue, workload("a", conditions=[make.condition("Requeued")]))
    assert taken(queue) == ["a"]


def test_who_is_held_stays_held_in_namespaces_not_admitted() -> None:
    queue = waiting(backoff("a", 10))
    assert not queue.wake(lambda _: False, make.at(20))
    assert wake(queue, 20)


def test_a_head_that_must_wait_meanwhile_is_held() -> None:
    queue = waiting(workload("a"))
    head = take(queue)
    later = Head(workload_view(backoff("a", 10)), head.queue)
    assert queue.requeue(later, None, SKIPPED, make.NOW)
    assert (queue.has_heads(), queue.next_release()) == (False, make.at(10))


def test_who_is_in_line_stays_there_though_it_should_wait() -> None:
    queue = waiting(workload("a"))
    assert put(queue, backoff("a", 10))
    assert taken(queue) == ["a"]


# Changes.


def test_a_change_that_helps_nobody_moves_nobody() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    changed = workload("a", conditions=[make.condition("QuotaReserved", status=False, reason="WaitingForQuota")])
    assert not put(queue, changed)
    found = queue.get("team/a")
    assert found is not None
    assert found.view is workload_view(changed)
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
def test_a_change_that_may_help_brings_back_in_line(changed: Obj) -> None:
    queue = waiting(workload("a"))
    requeue(queue, GENERIC)
    assert put(queue, changed)
    assert taken(queue) == ["a"]


def test_a_change_of_shape_starts_the_search_over() -> None:
    queue = waiting(workload("a"))
    head = take(queue)
    last = LastAssignment(({"cpu": 0},), 1, 1, head.workload.shape)
    queue.requeue(head, last, SKIPPED, make.NOW)
    put(queue, with_metadata(workload("a"), generation=2))
    assert take(queue).last is last
    queue.requeue(head, last, SKIPPED, make.NOW)
    put(queue, workload("a", 2))
    assert take(queue).last is None


def test_a_change_may_move_in_the_line() -> None:
    queue = waiting(workload("a"), workload("b", created=1))
    assert put(queue, workload("b", priority=5, created=1))
    assert taken(queue) == ["b", "a"]


def test_a_change_into_a_hopeless_shape_parks_nobody_in_line() -> None:
    queue = waiting(workload("a"), workload("b", 2))
    requeue(queue, NO_FIT)
    assert put(queue, workload("b"))
    assert taken(queue) == ["b"]


def test_a_parked_one_that_changes_into_a_hopeless_shape_stays_parked() -> None:
    queue = waiting(workload("a"), workload("b", 2, created=1))
    requeue(queue, NO_FIT)
    requeue(queue, GENERIC)
    assert not put(queue, workload("b", created=1))
    assert not queue.has_heads()


# Leaving, and coming with a LocalQueue.


def test_who_leaves_from_the_middle_is_gone() -> None:
    queue = waiting(*(workload(name, created=n) for n, name in enumerate("abc")))
    assert (queue.remove("team/b"), queue.remove("team/b")) == (True, False)
    assert taken(queue) == ["a", "c"]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_parked_may_leave_too(name: str) -> None:
    queue = waiting(*(workload(one, created=n) for n, one in enumerate("abc")))
    requeue(queue, NO_FIT)
    queue.remove(f"team/{name}")
    wake(queue)
    assert taken(queue) == [one for one in "abc" if one != name]


def test_who_is_removed_does_not_come_back() -> None:
    queue = waiting(backoff("a", 10))
    queue.remove("team/a")
    assert (wake(queue, 20), len(queue)) == (False, 0)


def test_put_in_line_leaves_alone_who_waits_already() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    for obj in (workload("a"), workload("b")):
        queue.put_in_line(workload_view(obj))
    assert taken(queue) == ["b"]


def test_a_generation_alone_brings_a_parked_one_back() -> None:
    queue = waiting(workload("a"))
    requeue(queue, GENERIC)
    assert put(queue, with_path(workload("a"), ("metadata", "generation"), 7))


def test_a_shape_is_hopeless_until_the_next_wake_up_even_of_an_empty_queue() -> None:
    queue = waiting(workload("a"))
    requeue(queue, NO_FIT)
    queue.remove("team/a")
    assert queue.may_reactivate
    wake(queue)
    assert not queue.may_reactivate
    assert put(queue, workload("b"))


def test_who_leaves_from_behind_leaves_nothing_behind() -> None:
    queue = waiting(*(workload(f"w{n:03}", created=n) for n in range(100)))
    before = len(queue._fronts)
    for n in range(1, 100):
        queue.remove(f"team/w{n:03}")
    assert (len(queue._fronts), taken(queue)) == (before, ["w000"])


def test_the_first_and_places_are_those_of_the_whole_order() -> None:
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
            assert [view.key for view in queue.first(count)] == order[:count]
        assert [queue.place_of(key) for key in order] == list(range(len(order)))
    assert order[0] == preempting.workload.key
