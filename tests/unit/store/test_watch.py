"""Watches: each change once, at the watcher's pace."""

import pytest

from batchyard.api.meta import Key, Obj
from batchyard.store.memory import Expired, RevisionWatch, Store

KEY = Key("ConfigMap", "team", "a")
OBJ: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "team"}}


def revisions(watch: RevisionWatch) -> list[int]:
    return [event.revision for event in watch.take()]


def test_each_change_is_taken_once() -> None:
    store = Store()
    watch = store.watch(0)
    store.put(KEY, OBJ)
    store.put(KEY, OBJ)
    assert revisions(watch) == [1, 2]
    assert revisions(watch) == []
    store.put(KEY, OBJ)
    assert revisions(watch) == [3]


def test_a_watch_can_be_resumed_where_another_stood() -> None:
    store = Store()
    store.put(KEY, OBJ)
    first = store.watch(0)
    first.take()
    store.put(KEY, OBJ)
    assert revisions(store.watch(first.revision)) == [2]


def test_a_watch_that_falls_behind_expires_and_stays_so() -> None:
    store = Store(window=2)
    watch = store.watch(0)
    for _ in range(10):
        store.put(KEY, OBJ)
    for _ in range(2):
        with pytest.raises(Expired):
            watch.take()


def test_watching_from_too_far_back_is_refused_at_once() -> None:
    store = Store(window=2)
    for _ in range(10):
        store.put(KEY, OBJ)
    with pytest.raises(Expired):
        store.watch(1)
