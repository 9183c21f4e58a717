"""The kernel in real time, on a loop of its own."""

import asyncio
from collections.abc import Callable

from batchyard.base.instant import MILLISECOND
from batchyard.live.kernel import LiveKernel


def run(begin: Callable[[LiveKernel, asyncio.Future[None]], None]) -> list[str]:
    """Let it begin, and run until it is done; what the loop was told of defects."""
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: told.append(repr(context["exception"])))
        kernel, done = LiveKernel(loop, 0), loop.create_future()
        begin(kernel, done)
        await asyncio.wait_for(done, 10)
        kernel.stop()

    asyncio.run(main())
    return told


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
