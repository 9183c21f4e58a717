"""Group commit: how much history is kept."""

import asyncio
from pathlib import Path

import pytest

import make
from batchyard.api.meta import Key
from batchyard.live.durability import HISTORY_BYTES, GroupCommit
from batchyard.store.journal import Journal, Sync
from batchyard.store.log import Expired
from batchyard.store.memory import Store


async def stored(folder: Path, size: int, count: int) -> tuple[Store, int]:
    """A store of one object that was written so often, with so much in it; and up to where its journal is compact."""
    loop = asyncio.get_running_loop()
    store, journal = Store(window=count), Journal(folder / "journal.db", Sync.PROCESS)
    commit = GroupCommit(store, journal, loop, loop.stop)
    for number in range(count):
        obj = make.namespace("a") | {"data": str(number) + "x" * size}
        store.put(Key("Namespace", "", "a"), obj)
        await commit.close()
    floor = journal.floor
    journal.close()
    return store, floor


def test_of_large_objects_less_history_is_kept(tmp_path: Path) -> None:
    size = HISTORY_BYTES // 20
    store, floor = asyncio.run(stored(tmp_path, size, 50))
    assert floor == 21
    assert [change.revision for change in store.changes_since(floor)] == list(range(floor + 1, 51))
    with pytest.raises(Expired):
        store.changes_since(floor - 1)
