"""Backups: contents, restore, and revisions after a restore."""

import os
from pathlib import Path

import pytest

from batchyard.store.journal import REVISION_LEAP, back_up, restore_backup
from batchyard.store.journal_file import JournalError, commit_mark_path, read_setting, restore_draft_path
from batchyard.store.memory import ExpiredRevision
from unit.store.limits import files_no_larger_than
from unit.store.test_damaged_journals import LOG, write_crashed_journal
from unit.store.test_journal import JournaledStore, filled_store, key, thing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def other_path(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "journal.db"


def test_backup_of_open_journal_has_state_of_its_time(path: Path, backup: Path, other_path: Path) -> None:
    kept = JournaledStore(path)
    kept.fill()
    assert back_up(path, backup).store.revision == 5
    kept.store.put(key("z"), thing("z"))
    kept.flush()
    restore_backup(backup, other_path)
    restored = JournaledStore(other_path).store
    assert restored.list("ConfigMap") == [obj for obj in kept.store.list("ConfigMap") if obj["metadata"]["name"] != "z"]


def test_backup_contains_settings_that_differ_from_their_default(path: Path, backup: Path, other_path: Path) -> None:
    kept = JournaledStore(path)
    kept.journal.record_setting("kueue-version", "0.19", "0.19")
    assert read_setting(path, "kueue-version") == ""
    for version in ("0.20", "0.19", "0.20"):
        kept.journal.record_setting("kueue-version", version, "0.19")
        assert read_setting(path, "kueue-version") == version
    back_up(path, backup)
    restore_backup(backup, other_path)
    assert read_setting(other_path, "kueue-version") == "0.20"


def test_missing_journal_has_no_settings(path: Path) -> None:
    assert read_setting(path, "kueue-version") == ""


def test_backup_of_crashed_journal_is_complete(path: Path, backup: Path) -> None:
    write_crashed_journal(path)
    assert back_up(path, backup).store.revision == 45
    assert JournaledStore(path).store.revision == 45


def test_restored_store_skips_revisions_and_expires_old_watches(path: Path, backup: Path, other_path: Path) -> None:
    filled_store(path)
    back_up(path, backup)
    restore_backup(backup, other_path)
    store = JournaledStore(other_path).store
    assert store.revision == 5 + REVISION_LEAP
    assert store.put(key("z"), thing("z"))["metadata"]["resourceVersion"] == str(6 + REVISION_LEAP)
    for seen in (5, 800):
        with pytest.raises(ExpiredRevision):
            store.watch(seen)


def test_backup_and_restore_do_not_overwrite_files(path: Path, backup: Path, other_path: Path) -> None:
    filled_store(path)
    back_up(path, backup)
    with pytest.raises(JournalError, match="already exists and is not overwritten"):
        back_up(path, backup)
    restore_backup(backup, other_path)
    with pytest.raises(JournalError, match="already exists and is not overwritten"):
        restore_backup(backup, other_path)


def test_backup_of_damaged_journal_is_rejected(path: Path, backup: Path) -> None:
    write_crashed_journal(path)
    log = path.with_name(LOG)
    log.write_bytes(log.read_bytes()[:-100])
    with pytest.raises(JournalError, match=r"but revision \d+ was acknowledged"):
        back_up(path, backup)
    assert not backup.exists()


@pytest.mark.parametrize("words", [b"SQLite format", b'"data"', b"ConfigMap"])
def test_restore_of_damaged_backup_is_rejected(path: Path, backup: Path, other_path: Path, words: bytes) -> None:
    filled_store(path)
    back_up(path, backup)
    backup.write_bytes(backup.read_bytes().replace(words, words.swapcase(), 1))
    with pytest.raises(JournalError, match="backup"):
        restore_backup(backup, other_path)
    assert not other_path.exists()


def test_restore_rejects_journal_with_log(path: Path, other_path: Path) -> None:
    write_crashed_journal(path)
    with pytest.raises(JournalError, match="is not a backup: a SQLite log file is beside it"):
        restore_backup(path, other_path)


def test_restored_journal_is_backed_up_and_restored_again(path: Path, backup: Path, other_path: Path) -> None:
    filled_store(path)
    back_up(path, backup)
    restore_backup(backup, other_path)
    back_up(other_path, backup.with_name("again"))
    last = restore_backup(backup.with_name("again"), other_path.with_name("again.db"))
    assert last.store.revision == 5 + 2 * REVISION_LEAP
    assert JournaledStore(other_path.with_name("again.db")).store.list("ConfigMap") == JournaledStore(
        other_path
    ).store.list("ConfigMap")


def test_backup_has_owner_only_mode_and_keeps_other_files(path: Path, backup: Path) -> None:
    filled_store(path)
    before = os.umask(0o022)
    beside = backup.with_name(f"{backup.name}.new")
    beside.write_text("somebody else's", "utf-8")
    back_up(path, backup)
    os.umask(before)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert beside.read_text("utf-8") == "somebody else's"
    assert {result.name for result in path.parent.iterdir() if result.name.startswith(".")} == set()


def test_disk_error_names_backup_file(path: Path, other_path: Path) -> None:
    kept = JournaledStore(path)
    kept.store.put(key("large"), thing("x" * 100_000))
    kept.flush()
    with files_no_larger_than(50_000), pytest.raises(JournalError, match=f"^{other_path}: the disk cannot"):
        back_up(path, other_path)
    assert list(other_path.parent.iterdir()) == []


def test_log_without_its_journal_is_rejected(path: Path, backup: Path) -> None:
    write_crashed_journal(path)
    back_up(path, backup)
    path.unlink()
    log = path.with_name(LOG)
    kept = log.read_bytes()
    with pytest.raises(JournalError, match="exists without its journal"):
        restore_backup(backup, path)
    commit_mark_path(path).unlink()
    with pytest.raises(JournalError, match="exists without its journal"):
        JournaledStore(path)
    assert (log.read_bytes(), path.exists()) == (kept, False)


def test_interrupted_restore_prevents_start_until_repeated(path: Path, backup: Path, other_path: Path) -> None:
    filled_store(path)
    back_up(path, backup)
    draft = restore_draft_path(other_path)
    draft.write_bytes(backup.read_bytes()[:5000])
    with pytest.raises(JournalError, match=f"a restore was started here and not finished.* remove {draft.name}"):
        JournaledStore(other_path)
    restore_backup(backup, other_path)
    assert JournaledStore(other_path).store.revision == 5 + REVISION_LEAP
    assert not draft.exists()


def test_interrupted_first_start_is_completed(path: Path) -> None:
    path.with_name(f"{path.name}.new").write_bytes(b"SQLite format 3\0")
    assert JournaledStore(path).store.revision == 0


def test_journal_supports_folder_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"odd-\xff?#%41")
    folder.mkdir()
    kept = filled_store(folder / "journal.db")
    kept.flush()
    assert back_up(folder / "journal.db", folder / "backup").store.revision == 5
