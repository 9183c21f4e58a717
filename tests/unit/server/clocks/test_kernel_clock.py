"""A kernel that keeps up with a clock goes on when the clock is set."""

import asyncio
from collections.abc import Awaitable, Callable

from batchyard.base.instant import HOUR, SECOND
from batchyard.server.clocks.kernel import LiveKernel

START = 1_767_225_600_000_000


def run(act: Callable[[LiveKernel, asyncio.Event], Awaitable[None]]) -> None:
    async def whole() -> None:
        kernel = LiveKernel(asyncio.get_running_loop(), START)
        await asyncio.wait_for(act(kernel, asyncio.Event()), timeout=10)
        kernel.stop()

    asyncio.run(whole())


def test_work_that_is_due_by_the_new_clock_is_done_at_the_instant_that_was_skipped_to() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.call_at(START + HOUR, done.set)
        kernel.set_clock(START + 2 * HOUR, 1.0)
        await done.wait()
        assert kernel.now() == START + 2 * HOUR
        assert kernel.clock() >= START + 2 * HOUR

    run(act)


def test_time_that_has_passed_does_not_come_back() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.set_clock(START + HOUR, 1.0)
        kernel.post(done.set)
        await done.wait()
        kernel.set_clock(START, 1.0)
        again = asyncio.Event()
        kernel.call_soon(again.set)
        await again.wait()
        assert kernel.now() >= START + HOUR

    run(act)


def test_time_runs_as_fast_as_it_is_told_to() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.set_clock(START, 3600.0)
        kernel.call_at(START + 30 * SECOND, done.set)
        await done.wait()
        assert kernel.now() == START + 30 * SECOND

    run(act)


def test_time_runs_up_to_an_instant_and_stops_there_once_all_that_is_due_is_done() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        later = asyncio.Event()
        kernel.set_clock(START, 3600.0)
        kernel.call_at(START + 30 * SECOND, done.set)
        kernel.call_at(START + 30 * SECOND + 1, later.set)
        kernel.run_until(START + 30 * SECOND)
        assert not kernel.has_stopped()
        await done.wait()
        await stopped(kernel)
        assert kernel.clock() == START + 30 * SECOND
        assert not later.is_set()
        kernel.run_until(None)
        await later.wait()
        assert not kernel.has_stopped()

    run(act)


def test_what_comes_from_outside_while_time_has_stopped_comes_at_that_instant() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.set_clock(START, 3600.0)
        kernel.run_until(START + SECOND)
        await stopped(kernel)
        kernel.post(done.set)
        await done.wait()
        assert kernel.now() == START + SECOND
        kernel.run_until(START)
        assert kernel.stops_at == START + SECOND

    run(act)


async def stopped(kernel: LiveKernel) -> None:
    """Wait until time has stopped."""
    while not kernel.has_stopped():
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, turn.set_result, None)
        await turn
