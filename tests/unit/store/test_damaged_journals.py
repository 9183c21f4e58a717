"""Damaged journal files: the journal is served as it was acknowledged, or rejected."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.store.journal import REVISION_LEAP, RevisionJournal
from batchyard.store.journal_file import JournalError, commit_mark_path
from batchyard.store.memory import ExpiredRevision, RecoveredStore, Store
from unit.store.test_journal import JournaledStore, filled_store, key, thing

LOG = "journal.db-wal"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def write_crashed_journal(path: Path, changes: int = 40) -> None:
    """Write the files of a crashed journal: a compacted part in the file, the rest in the log."""
    with TemporaryDirectory() as other:
        kept = JournaledStore(Path(other) / path.name)
        kept.fill()
        kept.journal.compact(3)
        kept.journal.close()
        kept = JournaledStore(Path(other) / path.name)
        for number in range(changes):
            kept.store.put(key(str(number % 9)), thing(str(number % 9), data={"n": f"{number} " * 9}))
            if number % 3 == 0:
                kept.flush()
        kept.flush()
        for file in (path, path.with_name(LOG), commit_mark_path(path)):
            shutil.copy(Path(other) / file.name, file)
        kept.journal.close()


@pytest.fixture(scope="module")
def crashed_journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, bytes], RecoveredStore]]:
    """The files of a crashed journal, and its contents."""
    path = tmp_path_factory.mktemp("crashed") / "journal.db"
    write_crashed_journal(path)
    files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    journal = RevisionJournal(path)
    yield files, journal.recover()
    journal.close()


@given(drawn=st.data())
def test_flipped_bytes_are_rejected_or_have_no_effect(
    crashed_journal: tuple[dict[str, bytes], RecoveredStore], drawn: st.DataObject
) -> None:
    files, expected = crashed_journal
    name = drawn.draw(st.sampled_from(sorted(files)))
    spoilt = bytearray(files[name])
    for _ in range(drawn.draw(st.integers(1, 3))):
        spoilt[drawn.draw(st.integers(0, len(spoilt) - 1))] ^= drawn.draw(st.integers(1, 255))
    with TemporaryDirectory() as folder:
        for other, content in (files | {name: bytes(spoilt)}).items():
            (Path(folder) / other).write_bytes(content)
        try:
            journal = RevisionJournal(Path(folder) / "journal.db")
        except JournalError:
            return
        assert journal.recover() == expected
        journal.close()


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["journal.db", LOG, "journal.mark"])
def test_truncated_file_is_rejected(path: Path, name: str, part: float) -> None:
    write_crashed_journal(path)
    file = path.with_name(name)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * part)])
    with pytest.raises(JournalError, match=r"journal\.(db|mark)"):
        RevisionJournal(path)


@pytest.mark.parametrize("name", ["journal.db", LOG, "journal.mark"])
def test_missing_file_is_reported(path: Path, name: str) -> None:
    write_crashed_journal(path)
    path.with_name(name).unlink()
    with pytest.raises(JournalError, match="restore a backup"):
        RevisionJournal(path)


def test_damaged_last_transaction_is_detected(path: Path) -> None:
    write_crashed_journal(path)
    log = path.with_name(LOG)
    log.write_bytes(log.read_bytes()[:-100] + b"\0" * 100)
    with pytest.raises(JournalError, match=r"is damaged: it ends at revision \d+, but revision 45 was acknowledged"):
        RevisionJournal(path)


def test_rejected_journal_is_not_changed(path: Path) -> None:
    write_crashed_journal(path)
    log = path.with_name(LOG)
    log.write_bytes(log.read_bytes()[:-100] + b"\0" * 100)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(JournalError):
            RevisionJournal(path)
    after = {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
    assert after == before


def test_older_copy_of_journal_is_rejected(path: Path, tmp_path: Path) -> None:
    filled_store(path)
    shutil.copy(path, tmp_path / "older")
    kept = JournaledStore(path)
    kept.store.put(key("z"), thing("z"))
    kept.flush()
    kept.journal.close()
    shutil.copy(tmp_path / "older", path)
    with pytest.raises(JournalError, match="it ends at revision 5, but revision 6 was acknowledged"):
        RevisionJournal(path)


def test_journal_of_another_data_directory_is_rejected(path: Path, tmp_path: Path) -> None:
    filled_store(path)
    (tmp_path / "other").mkdir()
    filled_store(tmp_path / "other" / "journal.db")
    shutil.copy(tmp_path / "other" / "journal.db", path)
    with pytest.raises(JournalError, match="it belongs to another data directory"):
        RevisionJournal(path)


def test_journal_opens_after_damage_with_accept_loss(path: Path) -> None:
    write_crashed_journal(path)
    log = path.with_name(LOG)
    log.write_bytes(log.read_bytes()[:-100] + b"\0" * 100)
    journal = RevisionJournal(path, accept_loss=True)
    store = Store(contents=journal.recover())
    assert store.revision == 45 + REVISION_LEAP
    for seen in (40, 45):
        with pytest.raises(ExpiredRevision):
            store.watch(seen)
    journal.close()
    assert JournaledStore(path).store.revision == 45 + REVISION_LEAP


def test_damage_with_error_message_that_is_not_utf8_is_reported(path: Path) -> None:
    RevisionJournal(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE floor (", b"CREATE TA\xa8LE floor ("))
    with pytest.raises(JournalError, match=r"is damaged: malformed database schema .*; restore a backup"):
        RevisionJournal(path)
