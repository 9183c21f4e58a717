"""The contract of kernels: work runs in order of (instant, arrival), never synchronously."""

from collections.abc import Callable

import pytest

from batchyard.base.instant import Instant
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.controller import Kernel

Run = Callable[[], object]
START: Instant = 1_000


def virtual() -> tuple[Kernel, Run]:
    kernel = VirtualEventLoop(START)
    return kernel, kernel.run


@pytest.fixture(params=[pytest.param(virtual, id="virtual")])
def kernel_and_run(request: pytest.FixtureRequest) -> tuple[Kernel, Run]:
    created: tuple[Kernel, Run] = request.param()
    return created


def test_work_runs_in_order_of_instants(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []
    kernel.call_at(START + 20, lambda: done.append("late"))
    kernel.call_at(START + 10, lambda: done.append("early"))
    run()
    assert done == ["early", "late"]


def test_equal_instants_run_in_order_of_arrival(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[int] = []
    for number in range(50):
        kernel.call_at(START + 10, lambda number=number: done.append(number))  # type: ignore[misc]
    run()
    assert done == list(range(50))


def test_clock_shows_requested_instant(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    seen: list[Instant] = []
    kernel.call_at(START + 10, lambda: seen.append(kernel.now()))
    run()
    assert seen[0] >= START + 10


def test_work_never_runs_synchronously(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []

    def outer() -> None:
        kernel.call_soon(lambda: done.append("inner"))
        kernel.call_at(kernel.now(), lambda: done.append("inner at now"))
        done.append("outer")

    kernel.call_soon(outer)
    assert done == []
    run()
    assert done == ["outer", "inner", "inner at now"]


def test_call_soon_runs_after_all_due_work(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []
    kernel.call_at(START + 10, lambda: kernel.call_soon(lambda: done.append("soon")))
    kernel.call_at(START + 10, lambda: done.append("due"))
    run()
    assert done == ["due", "soon"]


def test_call_soon_runs_before_later_work(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []
    kernel.call_at(START + 11, lambda: done.append("later"))
    kernel.call_at(START + 10, lambda: kernel.call_soon(lambda: done.append("soon")))
    run()
    assert done == ["soon", "later"]


def test_past_instant_runs_now(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    seen: list[Instant] = []
    kernel.call_at(START - 500, lambda: seen.append(kernel.now()))
    run()
    assert len(seen) == 1
    assert seen[0] >= START


def test_canceled_work_does_not_run_and_does_not_advance_clock(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []
    kernel.call_at(START + 10, lambda: done.append("kept"))
    tickets = [kernel.call_at(START + when, lambda: done.append("cancelled")) for when in (5, 10, 2_000_000_000)]
    for ticket in tickets:
        kernel.cancel(ticket)
    run()
    assert done == ["kept"]
    assert kernel.now() < START + 2_000_000_000


def test_cancel_of_completed_work_has_no_effect(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []
    tickets = [kernel.call_at(START + when, lambda: done.append("first")) for when in (-5, 10)]
    run()
    for ticket in tickets:
        kernel.cancel(ticket)
    kernel.call_at(START + 20, lambda: done.append("second"))
    run()
    assert done == ["first", "first", "second"]


def test_cancel_of_work_due_at_same_instant_has_no_effect(kernel_and_run: tuple[Kernel, Run]) -> None:
    kernel, run = kernel_and_run
    done: list[str] = []
    tickets: list[int] = []
    kernel.call_at(START + 10, lambda: kernel.cancel(tickets[0]))
    tickets.append(kernel.call_at(START + 10, lambda: done.append("due")))
    run()
    assert done == ["due"]
