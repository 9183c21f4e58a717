"""Backups: what they hold, and what becomes of revisions when they are restored."""

import os
from pathlib import Path

import pytest

from batchyard.store.backup import back_up, restore
from batchyard.store.journal import LEAP
from batchyard.store.journal_file import JournalError, mark_of, restored_draft
from batchyard.store.memory import Expired
from unit.store.limits import files_no_larger_than
from unit.store.test_damage import LOG, left_by_a_crash
from unit.store.test_journal import Kept, filled, key, thing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "journal.db"


def test_a_backup_of_a_journal_in_use_holds_what_there_was_when_it_was_made(
    path: Path, backup: Path, elsewhere: Path
) -> None:
    kept = Kept(path)
    kept.fill()
    assert back_up(path, backup).recovered.revision == 5
    kept.store.put(key("z"), thing("z"))
    kept.flush()
    restore(backup, elsewhere)
    restored = Kept(elsewhere).store
    assert restored.list("ConfigMap") == [obj for obj in kept.store.list("ConfigMap") if obj["metadata"]["name"] != "z"]


def test_a_backup_of_a_journal_that_crashed_holds_all_of_it(path: Path, backup: Path) -> None:
    left_by_a_crash(path)
    assert back_up(path, backup).recovered.revision == 45
    assert Kept(path).store.revision == 45


def test_nobody_is_served_revisions_with_two_meanings_after_a_restore(
    path: Path, backup: Path, elsewhere: Path
) -> None:
    filled(path)
    back_up(path, backup)
    restore(backup, elsewhere)
    store = Kept(elsewhere).store
    assert store.revision == 5 + LEAP
    assert store.put(key("z"), thing("z"))["metadata"]["resourceVersion"] == str(6 + LEAP)
    for seen in (5, 800):
        with pytest.raises(Expired):
            store.watch(seen)


def test_nothing_is_overwritten(path: Path, backup: Path, elsewhere: Path) -> None:
    filled(path)
    back_up(path, backup)
    with pytest.raises(JournalError, match="it already exists and is not overwritten"):
        back_up(path, backup)
    restore(backup, elsewhere)
    with pytest.raises(JournalError, match="it already exists and is not overwritten"):
        restore(backup, elsewhere)


def test_a_damaged_journal_gives_no_backup(path: Path, backup: Path) -> None:
    left_by_a_crash(path)
    log = path.with_name(LOG)
    log.write_bytes(log.read_bytes()[:-100])
    with pytest.raises(JournalError, match="its mark does not match"):
        back_up(path, backup)
    assert not backup.exists()


@pytest.mark.parametrize("words", [b"SQLite format", b'"data"', b"ConfigMap"])
def test_a_damaged_backup_is_not_restored(path: Path, backup: Path, elsewhere: Path, words: bytes) -> None:
    filled(path)
    back_up(path, backup)
    backup.write_bytes(backup.read_bytes().replace(words, words.swapcase(), 1))
    with pytest.raises(JournalError, match="backup"):
        restore(backup, elsewhere)
    assert not elsewhere.exists()


def test_a_journal_with_a_log_beside_it_is_no_backup(path: Path, elsewhere: Path) -> None:
    left_by_a_crash(path)
    with pytest.raises(JournalError, match="is no backup: a log lies beside it"):
        restore(path, elsewhere)


def test_a_restored_journal_can_be_backed_up_and_restored_again(path: Path, backup: Path, elsewhere: Path) -> None:
    filled(path)
    back_up(path, backup)
    restore(backup, elsewhere)
    back_up(elsewhere, backup.with_name("again"))
    last = restore(backup.with_name("again"), elsewhere.with_name("again.db"))
    assert last.recovered.revision == 5 + 2 * LEAP
    assert Kept(elsewhere.with_name("again.db")).store.list("ConfigMap") == Kept(elsewhere).store.list("ConfigMap")


def test_a_backup_is_for_its_owner_alone_and_touches_nothing_beside_it(path: Path, backup: Path) -> None:
    filled(path)
    before = os.umask(0o022)
    beside = backup.with_name(f"{backup.name}.new")
    beside.write_text("somebody else's", "utf-8")
    back_up(path, backup)
    os.umask(before)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert beside.read_text("utf-8") == "somebody else's"
    assert {found.name for found in path.parent.iterdir() if found.name.startswith(".")} == set()


def test_what_is_told_of_the_disk_names_the_file_that_it_refuses(path: Path, elsewhere: Path) -> None:
    kept = Kept(path)
    kept.store.put(key("large"), thing("x" * 100_000))
    kept.flush()
    with files_no_larger_than(50_000), pytest.raises(JournalError, match=f"^{elsewhere}: the disk refuses"):
        back_up(path, elsewhere)
    assert list(elsewhere.parent.iterdir()) == []


def test_the_log_of_a_journal_that_is_gone_is_not_taken_for_that_of_a_new_one(path: Path, backup: Path) -> None:
    left_by_a_crash(path)
    back_up(path, backup)
    path.unlink()
    log = path.with_name(LOG)
    kept = log.read_bytes()
    with pytest.raises(JournalError, match="exists without its journal"):
        restore(backup, path)
    mark_of(path).unlink()
    with pytest.raises(JournalError, match="exists without its journal"):
        Kept(path)
    assert (log.read_bytes(), path.exists()) == (kept, False)


def test_where_a_restore_was_broken_off_nobody_begins_with_nothing(path: Path, backup: Path, elsewhere: Path) -> None:
    filled(path)
    back_up(path, backup)
    draft = restored_draft(elsewhere)
    draft.write_bytes(backup.read_bytes()[:5000])
    with pytest.raises(JournalError, match=f"a restore was started here and not finished.* remove {draft.name}"):
        Kept(elsewhere)
    restore(backup, elsewhere)
    assert Kept(elsewhere).store.revision == 5 + LEAP
    assert not draft.exists()


def test_a_first_start_that_was_broken_off_goes_on(path: Path) -> None:
    path.with_name(f"{path.name}.new").write_bytes(b"SQLite format 3\0")
    assert Kept(path).store.revision == 0


def test_a_folder_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"odd-\xff?#%41")
    folder.mkdir()
    kept = filled(folder / "journal.db")
    kept.flush()
    assert back_up(folder / "journal.db", folder / "backup").recovered.revision == 5
