"""Cancellation of a coroutine when the process is to terminate."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_unless_ended(end: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """Await a coroutine and return its result. If `end` is set first, cancel the coroutine and return None."""
    work_task, end_task = asyncio.ensure_future(work), asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait({work_task, end_task}, return_when=asyncio.FIRST_COMPLETED)
        return work_task.result() if work_task.done() else None
    finally:
        work_task.cancel()
        end_task.cancel()
        await asyncio.gather(work_task, end_task, return_exceptions=True)
