"""The contract of stores: consecutive revisions, optimistic concurrency, sorted lists, watches."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.errors import Conflict, NotFound
from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.memory import Store


class AnyStore(Protocol):
    @property
    def revision(self) -> int: ...
    def get(self, key: Key) -> Obj | None: ...
    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]: ...
    def put(self, key: Key, obj: Obj, expected_revision: int | None = None) -> Obj: ...
    def delete(self, key: Key, expected_revision: int | None = None) -> Obj: ...
    def listen(self, listener: Callable[[WatchEvent], None]) -> None: ...


STORES = [pytest.param(Store, id="memory")]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> AnyStore:
    created: AnyStore = request.param()
    return created


def key(name: str, namespace: str = "team") -> Key:
    return Key("ConfigMap", namespace, name)


def thing(name: str = "a", namespace: str = "team", **fields: Any) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, **fields}


def test_each_change_increments_revision(store: AnyStore) -> None:
    assert store.revision == 0
    assert store.put(key("a"), thing())["metadata"]["resourceVersion"] == "1"
    assert store.put(key("b"), thing("b"))["metadata"]["resourceVersion"] == "2"
    store.delete(key("a"))
    assert store.put(key("a"), thing())["metadata"]["resourceVersion"] == "4"
    assert store.revision == 4


def test_expected_revision_zero_requires_missing_object(store: AnyStore) -> None:
    store.put(key("a"), thing(), 0)
    with pytest.raises(Conflict):
        store.put(key("a"), thing(), 0)
    store.delete(key("a"))
    store.put(key("a"), thing(), 0)


def test_write_with_older_revision_is_rejected(store: AnyStore) -> None:
    store.put(key("a"), thing())
    store.put(key("a"), thing(), 1)
    with pytest.raises(Conflict):
        store.put(key("a"), thing(), 1)
    with pytest.raises(Conflict):
        store.delete(key("a"), 1)
    store.delete(key("a"), 2)


def test_deleted_object_cannot_be_replaced(store: AnyStore) -> None:
    store.put(key("a"), thing())
    store.delete(key("a"))
    with pytest.raises(Conflict):
        store.put(key("a"), thing(), 1)
    with pytest.raises(NotFound):
        store.delete(key("a"))


def test_lists_are_sorted_and_filtered_by_namespace(store: AnyStore) -> None:
    for namespace, name in (("b", "x"), ("a", "y"), ("a", "x")):
        store.put(key(name, namespace), thing(name, namespace))
    assert [obj["metadata"]["name"] for obj in store.list("ConfigMap")] == ["x", "y", "x"]
    assert [obj["metadata"]["name"] for obj in store.list("ConfigMap", "a")] == ["x", "y"]
    assert list(store.list("Secret")) == []
    store.put(key("y", "b"), thing("y", "b"))
    store.put(key("y", "a"), thing("y", "a", data={"new": "1"}))
    store.delete(key("x", "a"))
    assert [obj["metadata"]["name"] for obj in store.list("ConfigMap")] == ["y", "x", "y"]
    assert store.list("ConfigMap", "a")[0]["data"] == {"new": "1"}


def test_listeners_receive_old_and_new_object(store: AnyStore) -> None:
    received: list[WatchEvent] = []
    store.listen(received.append)
    first = store.put(key("a"), thing())
    second = store.put(key("a"), thing(data={}))
    assert store.delete(key("a")) == second
    assert received == [
        (EventType.ADDED, key("a"), first, None, 1),
        (EventType.MODIFIED, key("a"), second, first, 2),
        (EventType.DELETED, key("a"), second, second, 3),
    ]


@pytest.mark.parametrize("make", STORES)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_replayed_changes_yield_current_state(make: Callable[[], AnyStore], writes: list[tuple[str, bool]]) -> None:
    store = make()
    replayed: dict[Key, Obj] = {}

    def replay(event: WatchEvent) -> None:
        assert event.old == replayed.get(event.key)
        if event.type is EventType.DELETED:
            del replayed[event.key]
        else:
            replayed[event.key] = event.obj

    store.listen(replay)
    for name, is_put in writes:
        if is_put:
            store.put(key(name), thing(name))
        elif store.get(key(name)) is not None:
            store.delete(key(name))
    assert [replayed[at] for at in sorted(replayed)] == list(store.list("ConfigMap"))
