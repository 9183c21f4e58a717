"""The revision log: no gaps, a bounded window, and listeners that must not write."""

import pytest

from batchyard.api.meta import Key
from batchyard.base.primitives import InvariantError
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.memory import ExpiredRevision, RevisionLog

KEY = Key("ConfigMap", "team", "a")


def entry(revision: int) -> WatchEvent:
    return WatchEvent(EventType.ADDED, KEY, {}, None, revision)


def log_of(entries: int, window: int = 4) -> RevisionLog:
    log = RevisionLog(window)
    for revision in range(1, entries + 1):
        log.append(entry(revision))
    log.validate()
    return log


def revisions_since(log: RevisionLog, revision: int) -> list[int]:
    return [event.revision for event in log.events_since(revision)]


def test_since_returns_later_entries() -> None:
    assert revisions_since(log_of(3), 1) == [2, 3]


def test_since_last_revision_returns_no_entries() -> None:
    assert revisions_since(log_of(3), 3) == []
    assert revisions_since(log_of(0), 0) == []


@pytest.mark.parametrize("entries", range(30))
def test_log_keeps_at_least_its_window(entries: int) -> None:
    log = log_of(entries)
    oldest = max(0, entries - 4)
    assert revisions_since(log, oldest) == list(range(oldest + 1, entries + 1))


@pytest.mark.parametrize("entries", range(8, 30))
def test_revision_before_window_is_expired(entries: int) -> None:
    with pytest.raises(ExpiredRevision, match="list again"):
        log_of(entries).events_since(entries - 9 if entries > 8 else 0)


def test_future_revision_raises_invariant_error() -> None:
    with pytest.raises(InvariantError):
        log_of(3).events_since(4)


def test_empty_window_raises_invariant_error() -> None:
    with pytest.raises(InvariantError):
        RevisionLog(0)


def test_listeners_receive_each_entry_in_order() -> None:
    log = log_of(2)
    received: list[tuple[str, int]] = []
    log.listen(lambda event: received.append(("first", event.revision)))
    log.listen(lambda event: received.append(("second", event.revision)))
    log.append(entry(3))
    log.append(entry(4))
    assert received == [("first", 3), ("second", 3), ("first", 4), ("second", 4)]


def test_listener_must_not_write() -> None:
    log = log_of(0)
    log.listen(lambda event: log.append(entry(event.revision + 1)))
    with pytest.raises(AssertionError, match="must not write"):
        log.append(entry(1))


def test_gap_in_revisions_is_detected() -> None:
    log = log_of(2)
    log.append(entry(4))
    with pytest.raises(InvariantError, match="no gap"):
        log.validate()
