"""The store in memory: stored objects, conflicts, and detection of changes in place."""

from typing import Any

import pytest

from batchyard.api.errors import Conflict, NotFound
from batchyard.api.meta import Key, Obj, with_path
from batchyard.base.primitives import InvariantError
from batchyard.store.memory import Store


def key(name: str, namespace: str = "team", kind: str = "ConfigMap") -> Key:
    return Key(kind, namespace, name)


def thing(name: str = "a", **fields: Any) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}, **fields}


def test_put_copies_changed_path_and_shares_other_fields() -> None:
    store, given = Store(), thing(data={"x": "1"})
    stored = store.put(key("a"), given, 0)
    assert "resourceVersion" not in given["metadata"]
    assert stored["metadata"]["resourceVersion"] == "1"
    assert stored["data"] is given["data"]
    assert store.get(key("a")) is stored


def test_fields_keep_their_order() -> None:
    stored = Store().put(key("a"), {"zeta": 1, **thing(), "alpha": 2})
    assert list(stored) == ["zeta", "apiVersion", "kind", "metadata", "alpha"]


def test_conflict_changes_nothing() -> None:
    store = Store()
    first = store.put(key("a"), thing(), 0)
    with pytest.raises(Conflict, match="already exists"):
        store.put(key("a"), thing(data={}), 0)
    with pytest.raises(Conflict, match="has been modified"):
        store.put(key("a"), thing(data={}), 7)
    with pytest.raises(Conflict, match="has been modified"):
        store.delete(key("a"), 7)
    assert store.get(key("a")) is first
    assert store.revision == 1


def test_kinds_returns_kinds_with_objects() -> None:
    store = Store()
    store.put(key("a", kind="Secret"), thing())
    store.put(key("a"), thing())
    assert store.kinds() == ["ConfigMap", "Secret"]
    store.delete(key("a"))
    assert store.kinds() == ["Secret"]


def test_list_of_unknown_kind_is_empty() -> None:
    store = Store()
    assert list(store.list("Nothing")) == []
    assert store.get(key("a")) is None
    with pytest.raises(NotFound):
        store.delete(key("a"))


def test_listener_that_writes_is_rejected() -> None:
    store = Store()

    def rewrite(event: object) -> None:
        store.put(key("b"), thing("b"))

    store.listen(rewrite)
    with pytest.raises(AssertionError, match="must not write"):
        store.put(key("a"), thing())


def test_change_in_place_is_detected() -> None:
    store = Store(detect_mutation=True)
    stored = store.put(key("a"), thing(data={"x": "1"}))
    store.check_unchanged()
    stored["data"]["x"] = "2"
    with pytest.raises(InvariantError, match=r'"team/a" was changed in place'):
        store.check_unchanged()


def test_change_in_place_is_detected_on_replace_and_delete() -> None:
    store = Store(detect_mutation=True)
    store.put(key("a"), thing(data={"x": "1"}))["data"]["x"] = "2"
    with pytest.raises(InvariantError, match="changed in place"):
        store.put(key("a"), thing())
    with pytest.raises(InvariantError, match="changed in place"):
        store.delete(key("a"))


def test_change_of_given_object_is_detected() -> None:
    store = Store(detect_mutation=True)
    given = {"x": "1"}
    store.put(key("a"), thing(data=given))
    given["y"] = "2"
    with pytest.raises(InvariantError):
        store.check_unchanged()


def test_copied_path_is_not_change_in_place() -> None:
    store = Store(detect_mutation=True)
    stored = store.put(key("a"), thing(data={"x": "1"}))
    store.put(key("a"), with_path(stored, ("data", "x"), "2"), 1)
    store.put(key("b"), thing("b"))
    store.delete(key("b"))
    store.check_unchanged()
    store.validate()


def test_check_unchanged_needs_detect_mutation() -> None:
    with pytest.raises(InvariantError, match="detect_mutation"):
        Store().check_unchanged()
