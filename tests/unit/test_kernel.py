"""The virtual event loop: its clock, and the limit of work in one instant."""

import gc

import pytest

from batchyard.base.instant import Instant
from batchyard.base.primitives import InvariantError
from batchyard.controller_runtime.kernel import EndlessInstant, VirtualEventLoop


def test_clock_moves_only_with_work() -> None:
    kernel = VirtualEventLoop(100)
    kernel.call_at(150, lambda: None)
    kernel.call_at(300, lambda: None)
    assert kernel.run(end_time=200) == 1
    assert kernel.now() == 150
    assert kernel.next_instant() == 300


def test_run_until_includes_its_instant() -> None:
    kernel = VirtualEventLoop()
    done: list[Instant] = []
    for when in (10, 20, 30):
        kernel.call_at(when, lambda: done.append(kernel.now()))
    kernel.run(end_time=20)
    assert done == [10, 20]
    assert kernel.pending_count() == 1


def test_run_until_now_does_due_work() -> None:
    kernel = VirtualEventLoop(10)
    done: list[str] = []
    kernel.call_soon(lambda: done.append("now"))
    kernel.call_at(11, lambda: done.append("later"))
    kernel.run(end_time=10)
    assert done == ["now"]


def test_run_until_past_instant_does_no_work() -> None:
    kernel = VirtualEventLoop(10)
    kernel.call_soon(lambda: None)
    assert kernel.run(end_time=9) == 0
    assert kernel.pending_count() == 1


def test_cancelled_work_is_removed() -> None:
    kernel = VirtualEventLoop()
    kept = kernel.call_at(7, lambda: None)
    for number in range(5_000):
        kernel.cancel(kernel.call_at(10_000 - number, lambda: None))
        kernel.validate()
    assert kernel.pending_count() == 1
    assert kernel.next_instant() == 7
    kernel.cancel(kept)
    assert kernel.next_instant() is None
    assert kernel.run() == 0


def test_step_does_one_piece_of_work() -> None:
    kernel = VirtualEventLoop()
    done: list[str] = []
    kernel.call_soon(lambda: done.append("a"))
    kernel.call_at(5, lambda: done.append("b"))
    assert kernel.step()
    assert done == ["a"]
    assert kernel.step()
    assert done == ["a", "b"]
    assert not kernel.step()
    assert kernel.steps == 2


def test_run_with_step_limit_keeps_order() -> None:
    kernel = VirtualEventLoop()
    done: list[int] = []
    for number in range(10):
        kernel.call_at(number // 3, lambda number=number: done.append(number))  # type: ignore[misc]
    while kernel.run(steps_max=4):
        kernel.validate()
    assert done == list(range(10))


def test_run_without_steps_keeps_clock() -> None:
    kernel = VirtualEventLoop()
    kernel.call_at(5, lambda: None)
    assert kernel.run(steps_max=0) == 0
    assert kernel.now() == 0


def test_endless_instant_raises_error_with_its_work() -> None:
    kernel = VirtualEventLoop(7, work_per_instant_max=100)

    def again() -> None:
        kernel.call_soon(again)

    kernel.call_soon(again)
    with pytest.raises(EndlessInstant, match=r"more than 100 callbacks ran at one time, .*again"):
        kernel.run()
    assert kernel.steps == 100
    with pytest.raises(EndlessInstant):
        kernel.step()


def test_work_limit_applies_to_each_instant() -> None:
    kernel = VirtualEventLoop(work_per_instant_max=3)
    for when in range(1, 6):
        for _ in range(3):
            kernel.call_at(when, lambda: None)
    kernel.run()
    kernel.validate()
    assert kernel.steps == 15


def test_run_does_work_up_to_limit() -> None:
    kernel = VirtualEventLoop(work_per_instant_max=3)
    for _ in range(3):
        kernel.call_soon(lambda: None)
    assert kernel.run(steps_max=3) == 3
    kernel.call_soon(lambda: None)
    with pytest.raises(EndlessInstant):
        kernel.run()


def test_exception_keeps_remaining_work() -> None:
    kernel = VirtualEventLoop()
    done: list[str] = []

    def broken() -> None:
        raise RuntimeError("broken")

    kernel.call_at(5, broken)
    kernel.call_at(5, lambda: done.append("next"))
    with pytest.raises(RuntimeError):
        kernel.run()
    kernel.validate()
    kernel.run()
    assert done == ["next"]


def test_work_cannot_run_its_own_event_loop() -> None:
    kernel = VirtualEventLoop()

    def rerun() -> None:
        kernel.run()

    kernel.call_soon(rerun)
    with pytest.raises(InvariantError, match="is not run from within its own work"):
        kernel.run()
    assert kernel.run() == 0


def test_event_loop_without_work_has_no_next_instant() -> None:
    kernel = VirtualEventLoop(3)
    assert kernel.next_instant() is None
    kernel.call_soon(lambda: None)
    assert kernel.next_instant() == 3


def test_run_restores_garbage_collector_thresholds() -> None:
    before = gc.get_threshold()
    kernel = VirtualEventLoop()
    during: list[tuple[int, int, int]] = []
    kernel.call_soon(lambda: during.append(gc.get_threshold()))
    kernel.run()
    assert gc.get_threshold() == before
    assert during[0][0] > before[0]


def test_skipped_work_is_done_once_in_order() -> None:
    kernel = VirtualEventLoop()
    done: list[tuple[str, Instant]] = []

    def again() -> None:
        done.append(("again", kernel.now()))
        kernel.call_at(kernel.now() + 5, again)

    kernel.call_at(20, lambda: done.append(("later", kernel.now())))
    kernel.call_at(5, again)
    unwanted = kernel.call_at(7, lambda: done.append(("unwanted", kernel.now())))
    kernel.call_soon(lambda: done.append(("now", kernel.now())))
    kernel.cancel(unwanted)
    kernel.skip_to(100)
    kernel.skip_to(50)
    kernel.validate()
    kernel.run(end_time=104)
    assert done == [("now", 100), ("again", 100), ("later", 100)]
    assert kernel.next_instant() == 105
