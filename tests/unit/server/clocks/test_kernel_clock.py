"""A kernel that follows a clock continues when the clock is set."""

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


def test_timer_due_under_new_clock_runs_at_new_instant() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.call_at(START + HOUR, done.set)
        kernel.set_clock(START + 2 * HOUR, 1.0)
        await done.wait()
        assert kernel.now() == START + 2 * HOUR
        assert kernel.clock() >= START + 2 * HOUR

    run(act)


def test_kernel_time_never_moves_backwards() -> None:
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


def test_kernel_clock_runs_at_configured_speed() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.set_clock(START, 3600.0)
        kernel.call_at(START + 30 * SECOND, done.set)
        await done.wait()
        assert kernel.now() == START + 30 * SECOND

    run(act)


def test_run_until_stops_clock_after_all_due_work() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        later = asyncio.Event()
        kernel.set_clock(START, 3600.0)
        kernel.call_at(START + 30 * SECOND, done.set)
        kernel.call_at(START + 30 * SECOND + 1, later.set)
        kernel.run_until(START + 30 * SECOND)
        assert not kernel.has_stopped()
        await done.wait()
        await wait_until_stopped(kernel)
        assert kernel.clock() == START + 30 * SECOND
        assert not later.is_set()
        kernel.run_until(None)
        await later.wait()
        assert not kernel.has_stopped()

    run(act)


def test_work_posted_while_clock_is_stopped_runs_at_stop_instant() -> None:
    async def act(kernel: LiveKernel, done: asyncio.Event) -> None:
        kernel.set_clock(START, 3600.0)
        kernel.run_until(START + SECOND)
        await wait_until_stopped(kernel)
        kernel.post(done.set)
        await done.wait()
        assert kernel.now() == START + SECOND
        kernel.run_until(START)
        assert kernel.stops_at == START + SECOND

    run(act)


async def wait_until_stopped(kernel: LiveKernel) -> None:
    """Wait until time has stopped."""
    while not kernel.has_stopped():
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, turn.set_result, None)
        await turn
