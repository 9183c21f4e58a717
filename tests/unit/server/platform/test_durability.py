"""Group commit: how much history is kept, what is written together, and what after a failure."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import make
from batchyard.api.meta import Key
from batchyard.interfaces.client import WatchEvent
from batchyard.server.platform import group_commit
from batchyard.server.platform.group_commit import HISTORY_BYTES, GroupCommit
from batchyard.store.journal import RevisionJournal, SyncMode
from batchyard.store.journal_file import JournalError, read_journal
from batchyard.store.memory import Expired, Store


async def stored(folder: Path, size: int, count: int) -> tuple[Store, int]:
    """A store of one object that was written so often, with so much in it; and up to where its journal is compact."""
    loop = asyncio.get_running_loop()
    store, journal = Store(window=count), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
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


class Told:
    """A watch, maybe with a defect."""

    def __init__(self, *, is_defective: bool = False) -> None:
        self.is_defective = is_defective
        self.revisions: list[int] = []

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        if self.is_defective:
            raise KeyError("a defect")
        self.revisions += [change.revision for change in changes]

    def end(self) -> None:
        """Nothing is left to tell."""


async def reported(folder: Path, *watches: Told) -> None:
    """Two changes, one after the other, told to watches."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    store, journal = Store(), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
    commit = GroupCommit(store, journal, loop, loop.stop)
    for watch in watches:
        commit.join(watch)
    for name in "ab":
        store.put(Key("Namespace", "", name), make.namespace(name))
        await asyncio.gather(commit.close(), return_exceptions=True)
    journal.close()


def test_a_watch_with_a_defect_leaves_no_gap_in_the_others(tmp_path: Path) -> None:
    before, defective, after = Told(), Told(is_defective=True), Told()
    asyncio.run(reported(tmp_path, before, defective, after))
    assert before.revisions == after.revisions == [1, 2]


class Written(NamedTuple):
    """How large the transactions were, what was answered, up to which revision was kept, and what went wrong."""

    sizes: list[int]
    answers: list[str]
    kept: int
    failure: str


async def written(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, *, fails_at: int = 0) -> Written:
    """So many changes at once, of which two are enough for a transaction; one of these may find the disk full."""
    monkeypatch.setattr(group_commit, "ENOUGH", 2)
    loop = asyncio.get_running_loop()
    store, journal = Store(), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
    sizes: list[int] = []
    answers: list[JournalError | None] = []
    append = journal.append

    def append_or_fail(changes: Sequence[WatchEvent]) -> int:
        sizes.append(len(changes))
        if len(sizes) == fails_at:
            raise JournalError("the disk is full")
        return append(changes)

    monkeypatch.setattr(journal, "append", append_or_fail)
    commit = GroupCommit(store, journal, loop, lambda: None)
    for number in range(count):
        stored = store.put(Key("Namespace", "", f"n-{number}"), make.namespace(f"n-{number}"))
        commit.when_durable(int(stored["metadata"]["resourceVersion"]), answers.append)
    await commit.close()
    journal.close()
    kept = read_journal(folder / "journal.db").recovered.revision
    return Written(sizes, [str(answer) for answer in answers], kept, str(commit.failure))


def test_enough_changes_do_not_wait_for_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.run(written(tmp_path, 5, monkeypatch))
    assert done == Written([2, 2, 1], ["None"] * 5, 5, "None")


def test_nothing_is_written_after_what_could_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.run(written(tmp_path, 7, monkeypatch, fails_at=2))
    full = "the disk is full"
    assert done == Written([2, 2], ["None", "None", *[full] * 5], 2, full)


async def behind(folder: Path) -> tuple[bool, bool]:
    """Whether it is behind with as many changes as may be, and one more, and whether once they are written."""
    loop = asyncio.get_running_loop()
    store, journal = Store(), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
    commit = GroupCommit(store, journal, loop, loop.stop)
    for number in range(group_commit.BEHIND_MAX):
        store.put(Key("Namespace", "", "a"), make.namespace("a") | {"data": str(number)})
    assert not commit.is_behind()
    store.put(Key("Namespace", "", "a"), make.namespace("a") | {"data": ""})
    before = commit.is_behind()
    await commit.close()
    journal.close()
    return before, commit.is_behind()


def test_it_tells_when_more_is_made_than_is_written(tmp_path: Path) -> None:
    assert asyncio.run(behind(tmp_path)) == (True, False)
