"""The index of dependents by the uid of their owner."""

from collections.abc import Sequence
from typing import Any

from batchyard.api.meta import Key, Obj
from batchyard.client.informer import OwnerIndex
from batchyard.interfaces.client import EventType, WatchEvent


def dependent(name: str, *uids: str) -> Obj:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{uid}", "uid": uid} for uid in uids]
    metadata: dict[str, Any] = {"name": name, "namespace": "team"}
    return {"metadata": {**metadata, "ownerReferences": owners} if owners else metadata}


def observe(index: OwnerIndex, name: str, old: Obj | None, new: Obj | None) -> None:
    last = new if new is not None else old
    assert last is not None
    change = EventType.DELETED if new is None else EventType.MODIFIED if old is not None else EventType.ADDED
    index.observe(WatchEvent(change, Key("Pod", "team", name), last, old, 1))


def names(index: OwnerIndex, uid: str) -> Sequence[str]:
    return [key.name for key in index.dependents(uid)]


def test_dependents_are_sorted() -> None:
    index = OwnerIndex()
    for name in ("b", "c", "a"):
        observe(index, name, None, dependent(name, "u"))
    assert names(index, "u") == ["a", "b", "c"]
    observe(index, "aa", None, dependent("aa", "u"))
    assert names(index, "u") == ["a", "aa", "b", "c"]
    assert "u" in index


def test_deleted_object_is_removed_from_index() -> None:
    index = OwnerIndex()
    observe(index, "a", None, dependent("a", "u"))
    observe(index, "a", dependent("a", "u"), None)
    assert names(index, "u") == []
    assert "u" not in index


def test_index_follows_changed_owners() -> None:
    index = OwnerIndex()
    observe(index, "a", None, dependent("a", "u"))
    observe(index, "a", dependent("a", "u"), dependent("a", "v", "w"))
    assert (names(index, "u"), names(index, "v"), names(index, "w")) == ([], ["a"], ["a"])
    observe(index, "a", dependent("a", "v", "w"), dependent("a"))
    assert "v" not in index
    assert "w" not in index


def test_duplicate_owner_reference_counts_once() -> None:
    index = OwnerIndex()
    observe(index, "a", None, dependent("a", "u", "u"))
    assert names(index, "u") == ["a"]
    observe(index, "a", dependent("a", "u", "u"), None)
    assert "u" not in index


def test_other_changes_keep_owner() -> None:
    index = OwnerIndex()
    first = dependent("a", "u")
    observe(index, "a", None, first)
    observe(index, "a", first, {**first, "status": {}})
    observe(index, "a", {**first, "status": {}}, dependent("a", "u"))
    assert names(index, "u") == ["a"]
