"""Garbage collection of reference cycles while a platform runs."""

import asyncio
import gc
import weakref

import pytest

from batchyard.server.platform import serve
from batchyard.server.platform.serve import rare_garbage_collections


class SelfReference:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_automatic_garbage_collection_is_disabled_and_restored() -> None:
    async def run() -> None:
        with rare_garbage_collections(asyncio.get_running_loop()):
            assert not gc.isenabled()

    asyncio.run(run())
    assert gc.isenabled()


def test_reference_cycles_are_collected_eventually(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_COLLECTION_INTERVAL", 0.01)
    monkeypatch.setattr(serve, "_INTERVAL_FACTOR", 0)

    async def run() -> None:
        gone = asyncio.Event()
        with rare_garbage_collections(asyncio.get_running_loop()):
            for _ in range(2):  # and again
                gone.clear()
                weakref.finalize(SelfReference(), gone.set)
                await asyncio.wait_for(gone.wait(), 60)

    asyncio.run(run())
