"""The kernel in real time, on its own loop."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from batchyard.base.instant import HOUR, MILLISECOND, SECOND, Instant
from batchyard.server.clocks.kernel import LiveKernel


def run(begin: Callable[[LiveKernel, asyncio.Future[None]], None]) -> list[str]:
    """Run the kernel until the future is done; return the exceptions that the loop reported."""
    reported: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: reported.append(repr(context["exception"])))
        kernel, done = LiveKernel(loop, 0), loop.create_future()
        begin(kernel, done)
        await asyncio.wait_for(done, 10)
        kernel.stop()

    asyncio.run(main())
    return reported


NOTHING: dict[str, None] = {}


def later(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
    kernel.call_at(kernel.now() + MILLISECOND, lambda: done.set_result(None))


def test_kernel_continues_after_exception() -> None:
    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        kernel.post(lambda: NOTHING["there"])
        kernel.post(lambda: later(kernel, done))

    assert run(begin) == ["KeyError('there')"]


def test_self_rescheduling_work_leaves_time_to_event_loop() -> None:
    count_of_calls: list[int] = []

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def again() -> None:
            count_of_calls.append(len(count_of_calls))
            if not done.done():
                kernel.call_soon(again)

        kernel.post(again)
        asyncio.get_running_loop().call_later(0.05, done.set_result, None)

    assert run(begin) == []
    assert len(count_of_calls) > 1


def after_a_long_time(kernel: LiveKernel, work: Callable[[], None]) -> None:
    """Call `work` when the kernel is late by some minutes of its time."""

    def dawdle() -> None:
        threading.Event().wait(0.25)
        work()

    kernel.set_clock(0, 1000.0)
    kernel.call_at(SECOND, dawdle)


def test_posted_work_runs_before_overdue_timers() -> None:
    order: list[int] = []

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def ask() -> None:
            for i in (-1, -2):
                kernel.post(partial(order.append, i))

        after_a_long_time(kernel, ask)
        for i in range(2, 101):
            kernel.call_at(i * SECOND, partial(order.append, i))
        kernel.call_at(101 * SECOND, partial(done.set_result, None))

    assert run(begin) == []
    assert order == [2, -1, -2, *range(3, 101)]


def test_posted_work_keeps_order_relative_to_timers() -> None:
    order: list[str] = []

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def ask() -> None:
            kernel.call_at(10 * SECOND, partial(order.append, "due"))
            kernel.post(partial(order.append, "first"))
            kernel.call_at(2 * SECOND, partial(order.append, "sooner"))
            kernel.post(partial(order.append, "second"))
            kernel.post(partial(done.set_result, None))

        after_a_long_time(kernel, ask)

    assert run(begin) == []
    assert order == ["sooner", "due", "first", "second"]


def test_kernel_skips_intermediate_instants_when_clock_jumps() -> None:
    seen: list[Instant] = []

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def every_second() -> None:
            seen.append(kernel.now())
            kernel.call_at(kernel.now() + SECOND, every_second)

        kernel.call_at(SECOND, every_second)
        kernel.set_clock(HOUR, 1.0)
        kernel.call_at(HOUR + SECOND // 2, partial(done.set_result, None))

    assert run(begin) == []
    assert seen == [HOUR]


def test_kernel_runs_no_work_while_held() -> None:
    begun: list[bool] = []
    held = [True]

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def let_go() -> None:
            held[0] = False

        kernel.must_pause = lambda: held[0]
        kernel.post(lambda: begun.append(held[0]))
        kernel.post(lambda: done.set_result(None))
        asyncio.get_running_loop().call_later(0.05, let_go)

    assert run(begin) == []
    assert begun == [False]


def test_work_that_is_due_does_not_run_after_stop() -> None:
    order: list[str] = []

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def stop() -> None:
            order.append("stop")
            kernel.stop()
            asyncio.get_running_loop().call_soon(done.set_result, None)

        kernel.post(stop)
        kernel.post(partial(order.append, "posted"))
        kernel.call_at(kernel.now() + MILLISECOND, partial(order.append, "timer"))

    assert run(begin) == []
    assert order == ["stop"]
