"""Watches return each change once."""

import pytest

from batchyard.api.meta import Key, Obj
from batchyard.store.memory import ExpiredRevision, RevisionWatch, Store

KEY = Key("ConfigMap", "team", "a")
OBJ: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "team"}}


def revisions(watch: RevisionWatch) -> list[int]:
    return [event.revision for event in watch.take_changes()]


def test_watch_returns_each_change_once() -> None:
    store = Store()
    watch = store.watch(0)
    store.put(KEY, OBJ)
    store.put(KEY, OBJ)
    assert revisions(watch) == [1, 2]
    assert revisions(watch) == []
    store.put(KEY, OBJ)
    assert revisions(watch) == [3]


def test_watch_resumes_from_revision_of_another() -> None:
    store = Store()
    store.put(KEY, OBJ)
    first = store.watch(0)
    first.take_changes()
    store.put(KEY, OBJ)
    assert revisions(store.watch(first.revision)) == [2]


def test_watch_that_falls_behind_stays_expired() -> None:
    store = Store(window=2)
    watch = store.watch(0)
    for _ in range(10):
        store.put(KEY, OBJ)
    for _ in range(2):
        with pytest.raises(ExpiredRevision):
            watch.take_changes()


def test_watch_from_expired_revision_is_rejected() -> None:
    store = Store(window=2)
    for _ in range(10):
        store.put(KEY, OBJ)
    with pytest.raises(ExpiredRevision):
        store.watch(1)
