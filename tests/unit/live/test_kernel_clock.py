"""A kernel that keeps up with a clock goes on when the clock is set."""

import asyncio
from collections.abc import Awaitable, Callable

from batchyard.base.instant import HOUR, SECOND
from batchyard.live.kernel import LiveKernel

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
