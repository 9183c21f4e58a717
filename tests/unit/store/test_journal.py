"""The journal: recovery after restart, crash and full disk, and rejection of damaged files."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import WatchEvent
from batchyard.store.journal import REVISION_LEAP, RevisionJournal, SyncMode
from batchyard.store.journal_file import CommitMark, JournalError, is_journal_open
from batchyard.store.memory import ExpiredRevision, Store

TESTS = Path(__file__).parents[2]


def key(name: str) -> Key:
    return Key("ConfigMap", "team", name)


def thing(name: str, **fields: Any) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}, **fields}


class JournaledStore:
    """A store with a journal: each flush appends the gathered changes in one transaction."""

    def __init__(self, path: Path) -> None:
        self.journal = RevisionJournal(path)
        self.store = Store(contents=self.journal.recover())
        self.gathered: list[WatchEvent] = []
        self.store.listen(self.gathered.append)

    def flush(self) -> None:
        self.journal.append(self.gathered)
        self.gathered.clear()

    def fill(self) -> None:
        """Create three objects, change one and delete one."""
        for name in "abc":
            self.store.put(key(name), thing(name))
        self.store.put(key("a"), thing("a", data={"x": "1"}))
        self.store.delete(key("b"))
        self.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def filled_store(path: Path, floor: int = 0) -> JournaledStore:
    """A store with a journal, closed."""
    kept = JournaledStore(path)
    kept.fill()
    if floor:
        kept.journal.compact(floor)
    kept.journal.close()
    return kept


@pytest.mark.parametrize("floor", range(6))
def test_store_recovers_after_restart(path: Path, floor: int) -> None:
    before = filled_store(path, floor).store
    after = JournaledStore(path).store
    assert after.revision == before.revision == 5
    assert after.list("ConfigMap") == before.list("ConfigMap")
    assert after.put(key("d"), thing("d"))["metadata"]["resourceVersion"] == "6"
    after.validate()


@pytest.mark.parametrize("floor", range(6))
def test_watch_resumes_after_restart(path: Path, floor: int) -> None:
    before = filled_store(path, floor).store
    after = JournaledStore(path).store
    assert after.watch(floor).take_changes() == before.watch(floor).take_changes()


def test_watch_of_compacted_revision_expires(path: Path) -> None:
    filled_store(path, 3)
    with pytest.raises(ExpiredRevision, match="too old resource version: 2"):
        JournaledStore(path).store.watch(2)


def test_compaction_removes_replaced_revisions(path: Path) -> None:
    kept = filled_store(path, 5)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT revision FROM revisions").fetchall() == [(3,), (4,)]
    kept = JournaledStore(path)
    kept.store.delete(key("a"))
    kept.flush()
    kept.journal.compact(6)
    kept.journal.close()
    assert JournaledStore(path).store.list("ConfigMap") == [kept.store.get(key("c"))]


def test_changes_without_append_are_lost(path: Path) -> None:
    kept = JournaledStore(path)
    kept.store.put(key("a"), thing("a"))
    kept.journal.close()
    assert JournaledStore(path).store.revision == 0


def test_journal_is_opened_by_one_process_only(path: Path) -> None:
    kept = JournaledStore(path)
    with pytest.raises(JournalError, match="another process has the journal open; stop that process first"):
        RevisionJournal(path)
    kept.fill()


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        pytest.param(
            "UPDATE revisions SET object = x'7b7d' WHERE revision = 3",
            "the checksum of revision 3 does not match",
            id="another",
        ),
        pytest.param(
            "UPDATE revisions SET name = 'z' WHERE revision = 3",
            "the checksum of revision 3 does not match",
            id="renamed",
        ),
        pytest.param(
            "UPDATE revisions SET object = NULL WHERE revision = 3",
            "the checksum of revision 3 does not match",
            id="emptied",
        ),
        pytest.param("DELETE FROM revisions WHERE revision = 4", "revision 4 is missing", id="missing above the floor"),
        pytest.param(
            "DELETE FROM revisions WHERE revision = 1",
            "it has 1 rows up to revision 2 instead of 2",
            id="missing below",
        ),
    ],
)
def test_damaged_row_is_reported(path: Path, damage: str, reported: str) -> None:
    filled_store(path, 2)
    with closing(sqlite3.connect(path)) as file:
        file.execute(damage)
        file.commit()
    with pytest.raises(JournalError, match=rf"journal.db is damaged: .*{reported}.*; restore a backup"):
        RevisionJournal(path).recover()


@pytest.mark.parametrize("length", [0, 1, 100, 4096, 9000])
def test_truncated_file_is_reported(path: Path, length: int) -> None:
    filled_store(path)
    os.truncate(path, length)
    with pytest.raises(JournalError, match=r"journal\.db"):
        RevisionJournal(path).recover()


def test_foreign_file_is_rejected(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE t (x)")
    with pytest.raises(JournalError, match="is not a batchyard journal; choose another data directory"):
        RevisionJournal(path)
    path.write_text("text " * 1000, "utf-8")
    with pytest.raises(JournalError, match="is damaged: file is not a database"):
        RevisionJournal(path)


def test_newer_format_is_reported(path: Path) -> None:
    filled_store(path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 9")
    with pytest.raises(JournalError, match="has journal format 9, but this version of batchyard reads format 1"):
        RevisionJournal(path)


def test_lock_ignores_processes_that_only_test_it(path: Path) -> None:
    with closing(RevisionJournal(path)):
        pass
    is_done = threading.Event()

    def ask_repeatedly() -> None:
        while not is_done.is_set():
            is_journal_open(path)

    thread = threading.Thread(target=ask_repeatedly)
    thread.start()
    try:
        for _ in range(200):
            CommitMark(path).close()
    finally:
        is_done.set()
        thread.join()


def test_raised_revision_ends_all_earlier_watches(path: Path) -> None:
    revision = filled_store(path).store.revision
    with closing(RevisionJournal(path)) as journal:
        journal.raise_revision(revision)
    kept = JournaledStore(path)
    assert kept.store.revision == revision + REVISION_LEAP
    assert sorted(each["metadata"]["name"] for each in kept.store.list("ConfigMap")) == ["a", "c"]
    with pytest.raises(ExpiredRevision):
        kept.store.changes_since(revision)
    kept.store.put(key("a"), thing("a"))
    kept.flush()
    kept.journal.compact(kept.store.revision)
    kept.journal.close()
    with closing(RevisionJournal(path)) as journal:
        assert journal.recover().revision == revision + REVISION_LEAP + 1


def test_full_disk_loses_no_stored_changes(path: Path) -> None:
    kept = JournaledStore(path)
    kept.fill()
    kept.journal._connection.execute("PRAGMA max_page_count = 4")
    kept.store.put(key("big"), thing("big", data={"x": "y" * 100_000}))
    with pytest.raises(JournalError, match="database or disk is full"):
        kept.flush()
    kept.journal._connection.execute("PRAGMA max_page_count = 1000")
    kept.flush()
    kept.journal.close()
    assert JournaledStore(path).store.revision == 6


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file or directory"):
        RevisionJournal(tmp_path / "nowhere" / "journal.db")


WRITER = """
import sys
from pathlib import Path
from unit.store.test_journal import JournaledStore
from unit.store.test_journal import key
from unit.store.test_journal import thing

kept = JournaledStore(Path(sys.argv[1]))
for number in range(1_000_000):
    name = str(number % 7)
    if number % 5 == 4 and kept.store.get(key(name)):
        kept.store.delete(key(name))
    else:
        kept.store.put(key(name), thing(name, data={"n": str(number)}))
    kept.flush()
    sys.stdout.write(f"{kept.store.revision}\\n")
    sys.stdout.flush()
    if number % 50 == 49:
        kept.journal.compact(kept.store.revision - 20)
"""


@pytest.mark.slow
def test_acknowledged_changes_survive_kill(path: Path) -> None:
    acknowledged = 0
    for round_ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=TESTS
        ) as writer:
            assert writer.stdout is not None
            for _ in range(20 + 37 * round_):
                acknowledged = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split()[:-1])])
        kept = JournaledStore(path)
        assert kept.store.revision >= acknowledged
        kept.store.validate()
        kept.journal.close()


def test_sync_mode_process_lowers_synchronous_level(path: Path) -> None:
    journal = RevisionJournal(path, SyncMode.PROCESS)
    assert journal._connection.execute("PRAGMA synchronous").fetchone() == (1,)
    journal.close()
    assert RevisionJournal(path)._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_recovered_objects_of_equal_spec_share_it(path: Path) -> None:
    kept = JournaledStore(path)
    for name in "ab":
        kept.store.put(Key("Workload", "team", name), {**thing(name, spec={"priority": 1}), "kind": "Workload"})
    kept.flush()
    kept.journal.close()
    a, b = JournaledStore(path).store.list("Workload")
    assert a["spec"] is b["spec"]
