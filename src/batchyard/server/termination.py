"""Work that is broken off when its process is told to end: nobody waits for what may never come."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def unless_told(end: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """What comes of some work; None where we are told to end before that, and then it is broken off."""
    doing, told = asyncio.ensure_future(work), asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait({doing, told}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        told.cancel()
        await asyncio.gather(doing, told, return_exceptions=True)
