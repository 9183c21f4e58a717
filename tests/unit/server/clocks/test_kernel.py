"""The kernel in real time, on a loop of its own."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from batchyard.base.instant import HOUR, MILLISECOND, SECOND, Instant
from batchyard.server.clocks.kernel import LiveKernel


def run(begin: Callable[[LiveKernel, asyncio.Future[None]], None]) -> list[str]:
    """Let it begin, and run until it is done; what the loop was told of defects."""
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


def test_it_goes_on_after_a_defect() -> None:
    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        kernel.post(lambda: NOTHING["there"])
        kernel.post(lambda: later(kernel, done))

    assert run(begin) == ["KeyError('there')"]


def test_work_that_begets_work_leaves_the_loop_time() -> None:
    heard: list[int] = []

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def again() -> None:
            heard.append(len(heard))
            if not done.done():
                kernel.call_soon(again)

        kernel.post(again)
        asyncio.get_running_loop().call_later(0.05, done.set_result, None)

    assert run(begin) == []
    assert len(heard) > 1


def after_a_long_time(kernel: LiveKernel, work: Callable[[], None]) -> None:
    """Have something done once the kernel is late, by some minutes of its time."""

    def dawdle() -> None:
        threading.Event().wait(0.25)
        work()

    kernel.set_clock(0, 1000.0)
    kernel.call_at(SECOND, dawdle)


def test_what_comes_from_outside_does_not_wait_for_all_that_is_late() -> None:
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


def test_what_comes_from_outside_keeps_its_order_whatever_becomes_due_meanwhile() -> None:
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


def test_time_that_is_skipped_is_not_lived_through() -> None:
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


def test_nothing_is_done_while_others_do_not_keep_up() -> None:
    begun: list[bool] = []
    held = [True]

    def begin(kernel: LiveKernel, done: asyncio.Future[None]) -> None:
        def let_go() -> None:
            held[0] = False

        kernel.is_held = lambda: held[0]
        kernel.post(lambda: begun.append(held[0]))
        kernel.post(lambda: done.set_result(None))
        asyncio.get_running_loop().call_later(0.05, let_go)

    assert run(begin) == []
    assert begun == [False]
