"""Group commit: the length of the history, the size of batches, and write failures."""

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
from batchyard.store.memory import ExpiredRevision, Store


async def filled_store(folder: Path, size: int, count: int) -> tuple[Store, int]:
    """Write one object of this size this often; return its store and the floor of its journal."""
    loop = asyncio.get_running_loop()
    store, journal = Store(window=count), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
    commit = GroupCommit(store, journal, loop, loop.stop)
    for number in range(count):
        obj = make.namespace("a") | {"data": str(number) + "x" * size}
        store.put(Key("Namespace", "", "a"), obj)
        await commit.close()
    floor = journal.compacted_revision
    journal.close()
    return store, floor


@pytest.mark.slow
def test_history_is_shorter_for_large_objects(tmp_path: Path) -> None:
    size = HISTORY_BYTES // 20
    store, floor = asyncio.run(filled_store(tmp_path, size, 50))
    assert floor == 21
    assert [change.revision for change in store.changes_since(floor)] == list(range(floor + 1, 51))
    with pytest.raises(ExpiredRevision):
        store.changes_since(floor - 1)


class RecordingWatch:
    """A watch that may fail."""

    def __init__(self, *, is_defective: bool = False) -> None:
        self.is_defective = is_defective
        self.forgotten = 0
        self.revisions: list[int] = []

    def process_changes(self, changes: Iterable[WatchEvent]) -> None:
        if self.is_defective:
            raise KeyError("a defect")
        self.revisions += [change.revision for change in changes]

    def forget_changes(self, revision: int) -> None:
        """Record the revision."""
        self.forgotten = revision

    def end(self) -> None:
        """Do nothing: there are no more events."""


async def watch_events(folder: Path, *watches: RecordingWatch) -> None:
    """Send two changes to the watches, one after the other."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    store, journal = Store(), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
    commit = GroupCommit(store, journal, loop, loop.stop)
    for watch in watches:
        commit.subscribe(watch)
    for name in "ab":
        store.put(Key("Namespace", "", name), make.namespace(name))
        await asyncio.gather(commit.close(), return_exceptions=True)
    journal.close()


def test_failing_watch_leaves_no_gap_in_other_watches(tmp_path: Path) -> None:
    before, defective, after = RecordingWatch(), RecordingWatch(is_defective=True), RecordingWatch()
    asyncio.run(watch_events(tmp_path, before, defective, after))
    assert before.revisions == after.revisions == [1, 2]


class CommitResults(NamedTuple):
    """The sizes of the transactions, the answers, the last stored revision, and the failure."""

    sizes: list[int]
    answers: list[str]
    kept: int
    failure: str


async def commit_changes(
    folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, *, fails_at: int = 0
) -> CommitResults:
    """Write this many changes at once in transactions of two; transaction `fails_at` finds the disk full."""
    monkeypatch.setattr(group_commit, "LARGE_BATCH_SIZE", 2)
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
    kept = read_journal(folder / "journal.db").store.revision
    return CommitResults(sizes, [str(answer) for answer in answers], kept, str(commit.failure))


def test_changes_are_committed_in_batches_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.run(commit_changes(tmp_path, 5, monkeypatch))
    assert done == CommitResults([2, 2, 1], ["None"] * 5, 5, "None")


def test_nothing_is_committed_after_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.run(commit_changes(tmp_path, 7, monkeypatch, fails_at=2))
    full = "the disk is full"
    assert done == CommitResults([2, 2], ["None", "None", *[full] * 5], 2, full)


async def is_behind(folder: Path) -> tuple[bool, bool]:
    """Return whether the commit is behind above the limit, and after all changes are written."""
    loop = asyncio.get_running_loop()
    store, journal = Store(), RevisionJournal(folder / "journal.db", SyncMode.PROCESS)
    commit = GroupCommit(store, journal, loop, loop.stop)
    for number in range(group_commit.UNDURABLE_CHANGES_MAX):
        store.put(Key("Namespace", "", "a"), make.namespace("a") | {"data": str(number)})
    assert not commit.is_behind()
    store.put(Key("Namespace", "", "a"), make.namespace("a") | {"data": ""})
    before = commit.is_behind()
    await commit.close()
    journal.close()
    return before, commit.is_behind()


def test_group_commit_reports_backlog_above_limit(tmp_path: Path) -> None:
    assert asyncio.run(is_behind(tmp_path)) == (True, False)
