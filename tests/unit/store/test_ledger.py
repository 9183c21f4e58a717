"""The file of the decision ledger: contents, queries and damage."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchyard.api.meta import Key
from batchyard.interfaces.controller import DecisionRecord, LedgerQuery, LedgerUnreadable, QueryTooBroad
from batchyard.server.logging import ledger as module
from batchyard.server.logging.ledger import LedgerFile
from batchyard.store.journal_file import JournalError
from unit.store.limits import files_no_larger_than


def entry(number: int, name: str = "job-a-12345", namespace: str = "team", reason: str = "Admitted") -> DecisionRecord:
    key = Key("Workload.kueue.x-k8s.io", namespace, name)
    return DecisionRecord(
        number, number * 10, "kueue-admission", key, "Normal", reason, f"no {number}", {"cycle": number}
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerFile]:
    ledger = LedgerFile(tmp_path / "decisions.db", entries_max=100)
    yield ledger
    ledger.close()


def numbers(ledger: LedgerFile, **asked: object) -> list[int]:
    return [each.number for each in ledger.find(LedgerQuery(**asked))]  # type: ignore[arg-type]


def test_appended_records_are_found(ledger: LedgerFile) -> None:
    ledger.append([entry(1), entry(2, reason="Preempted")])
    assert list(ledger.find(LedgerQuery())) == [entry(1), entry(2, reason="Preempted")]
    assert (ledger.get(2), ledger.get(3)) == (entry(2, reason="Preempted"), None)


def test_query_filters_by_field_time_and_limit(ledger: LedgerFile) -> None:
    ledger.append([entry(1), entry(2, "other"), entry(3, namespace="b"), entry(4, "queue", ""), entry(5, reason="No")])
    assert numbers(ledger, namespace="team") == [1, 2, 5]
    assert numbers(ledger, namespace="default") == [4]
    assert numbers(ledger, name="other") == [2]
    assert numbers(ledger, reason="No") == [5]
    assert numbers(ledger, since=20, until=40) == [2, 3]
    assert numbers(ledger, since=21) == [3, 4, 5]
    assert numbers(ledger, limit=2) == [4, 5]
    assert numbers(ledger, since=99) == []


def test_query_name_pattern_matches_unknown_suffix(ledger: LedgerFile) -> None:
    ledger.append([entry(1), entry(2, "job-a-b-12345"), entry(3, "job-a-1234")])
    about = [Key("Workload.kueue.x-k8s.io", "team", "job-a-?????"), Key("Job.batch", "team", "a")]
    assert numbers(ledger, regarding=about) == [1]


def test_ledger_continues_after_reopen(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    first = LedgerFile(path)
    first.append([entry(1), entry(2)])
    first.close()
    again = LedgerFile(path)
    assert (again.last_number, again.was_damaged, numbers(again)) == (2, False, [1, 2])
    again.close()


def test_oldest_records_are_removed_above_limit(ledger: LedgerFile) -> None:
    for begin in range(0, 300, 30):
        ledger.append([entry(number) for number in range(begin + 1, begin + 31)])
    kept = numbers(ledger, limit=1000)
    assert kept == list(range(kept[0], 301))
    assert 100 <= len(kept) <= 130


def test_damaged_file_is_moved_aside_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    path.write_bytes(b"no database at all" * 1000)
    ledger = LedgerFile(path)
    ledger.append([entry(1)])
    assert (ledger.was_damaged, ledger.last_number, numbers(ledger)) == (True, 0, [1])
    assert (tmp_path / "decisions.db.damaged").read_bytes().startswith(b"no database")
    ledger.close()


def test_read_of_damaged_page_raises_ledger_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    first = LedgerFile(path)
    first.append([entry(number) for number in range(1, 2001)])
    first.close()
    content = path.read_bytes()
    pages = [content[begin : begin + 4096] for begin in range(0, len(content), 4096)]
    leaves = [number for number, page in enumerate(pages) if page[0] == 13]
    pages[leaves[len(leaves) // 2]] = b"\xa5" * 4096
    path.write_bytes(b"".join(pages))
    ledger = LedgerFile(path)
    assert not ledger.was_damaged
    reported = f"{path} cannot be read: .*; stop the platform, move the file away and start it again"
    with pytest.raises(LedgerUnreadable, match=reported):
        ledger.find(LedgerQuery(reason="None"))
    assert numbers(ledger, limit=1) == [2000]
    ledger.close()


def test_file_with_disk_error_is_not_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    first = LedgerFile(path)
    first.append([entry(1), entry(2)])
    first.close()
    with (
        files_no_larger_than(100),
        pytest.raises(JournalError, match=r"decisions\.db: the disk cannot read or write the file"),
    ):
        LedgerFile(path)
    again = LedgerFile(path)
    assert (again.was_damaged, numbers(again)) == (False, [1, 2])
    again.close()


def test_failed_append_stores_no_records(ledger: LedgerFile) -> None:
    ledger.append([entry(1)])
    with pytest.raises(sqlite3.Error):
        ledger.append([entry(2), entry(1)])
    ledger.append([entry(3)])
    assert numbers(ledger) == [1, 3]


def test_query_above_step_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = LedgerFile(tmp_path / "large.db")
    ledger.append([entry(number) for number in range(1, 1001)])
    monkeypatch.setattr(module, "_THOUSAND_STEPS_MAX", 0)
    with pytest.raises(QueryTooBroad):
        ledger.find(LedgerQuery(reason="Nothing"))
    monkeypatch.undo()
    assert numbers(ledger, reason="Nothing") == []
    ledger.close()


def test_damage_with_error_message_that_is_not_utf8_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    LedgerFile(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE decisions (", b"CREATE TA\xa8LE decisions ("))
    ledger = LedgerFile(path)
    assert (ledger.was_damaged, ledger.last_number) == (True, 0)
    ledger.close()
