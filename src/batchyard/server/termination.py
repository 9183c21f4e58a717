"""Cancellation of a coroutine when the process must terminate."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def unless_ended(end: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """Await the work and return its result; if `end` is set before, cancel the work and return None."""
    doing, end_wait = asyncio.ensure_future(work), asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait({doing, end_wait}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        end_wait.cancel()
        await asyncio.gather(doing, end_wait, return_exceptions=True)
