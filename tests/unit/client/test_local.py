"""The client in process: what is made of names, uids and times, and what goes with its owner."""

from typing import Any

import pytest

from batchyard.api.errors import Conflict
from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, EventType, Propagation, Update, WatchEvent, Write, WriteResult
from batchyard.store.memory import Store

START = parse_time("2026-01-01T00:00:00Z")


class Desk:
    """A client on an empty store, and what it has told."""

    def __init__(self, seed: int = 0) -> None:
        self.kernel = VirtualEventLoop(START)
        self.store = Store(detect_mutation=True)
        self.client = LocalClient(self.store, self.kernel, seed)
        self.reported: list[str] = []
        self.client.subscribe(lambda events: self.reported.extend(f"{e.type} {e.key.name}" for e in events))

    def write(self, write: Write) -> WriteResult:
        results: list[WriteResult] = []
        self.client.submit([write], results.append)
        self.kernel.run()
        self.store.check_unchanged()
        return results[0]

    def create(self, name: str, **metadata: Any) -> Obj:
        obj = self.write(Create(thing(name, **metadata))).obj
        assert obj is not None
        return obj

    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.client.list("ConfigMap")]


def thing(name: str | None, **metadata: Any) -> Obj:
    own = {"namespace": "team", **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **own} if name else own}


def ignore(result: WriteResult) -> None:
    """Do nothing with a result."""


def owner_of(*owners: Obj) -> list[Obj]:
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]}
        for o in owners
    ]


def key(name: str) -> Key:
    return Key("ConfigMap", "team", name)


def test_the_creation_time_is_the_present() -> None:
    desk = Desk()
    desk.kernel.call_at(START + 90 * SECOND, lambda: None)
    desk.kernel.run()
    assert desk.create("a")["metadata"]["creationTimestamp"] == "2026-01-01T00:01:30Z"


def test_uids_depend_on_the_seed_and_not_on_what_else_happens() -> None:
    alone, busy, other = Desk(), Desk(), Desk(seed=1)
    busy.create("before")
    uids = [desk.create("a")["metadata"]["uid"] for desk in (alone, busy, other)]
    assert uids[0] == uids[1]
    assert uids[0] != uids[2]


def test_an_object_made_again_is_another_one() -> None:
    desk, uids = Desk(), []
    for _ in range(3):
        uids.append(desk.create("a")["metadata"]["uid"])
        desk.write(Delete(key("a")))
    desk.kernel.call_at(START + 1, lambda: None)
    desk.kernel.run()
    uids.append(desk.create("a")["metadata"]["uid"])
    assert len(set(uids)) == 4


def test_generated_names_differ() -> None:
    desk = Desk()
    names = [desk.write(Create(thing(None, generateName="job-"))).obj for _ in range(20)]
    assert len({obj["metadata"]["name"] for obj in names if obj}) == 20
    assert all(obj and obj["metadata"]["generateName"] == "job-" for obj in names)


def test_a_generated_name_that_is_taken_is_not_given_again() -> None:
    taken = Desk().write(Create(thing(None, generateName="job-"))).obj
    assert taken is not None
    desk = Desk()
    desk.create(taken["metadata"]["name"])
    made = desk.write(Create(thing(None, generateName="job-"))).obj
    assert made is not None
    assert made["metadata"]["name"] != taken["metadata"]["name"]


def test_names_run_out_with_an_error() -> None:
    desk = Desk()
    # The names of one instant are a fixed sequence: take those that the next attempts would give.
    twin = Desk()
    for _ in range(8):
        obj = twin.write(Create(thing(None, generateName="job-"))).obj
        assert obj is not None
        desk.create(obj["metadata"]["name"])
    assert isinstance(desk.write(Create(thing(None, generateName="job-"))).error, Conflict)


def test_dependents_go_after_their_owner_and_theirs_after_them() -> None:
    desk = Desk()
    top = desk.create("top")
    middle = desk.create("middle", ownerReferences=owner_of(top))
    desk.create("leaf", ownerReferences=owner_of(middle))
    desk.create("stranger")
    desk.reported.clear()
    desk.write(Delete(key("top")))
    assert desk.reported == ["DELETED top", "DELETED middle", "DELETED leaf"]
    assert desk.names() == ["stranger"]


def test_an_object_with_a_living_owner_stays_and_forgets_the_dead() -> None:
    desk = Desk()
    first, second = desk.create("first"), desk.create("second")
    desk.create("shared", ownerReferences=owner_of(first, second))
    desk.write(Delete(key("first")))
    shared = desk.client.get(key("shared"))
    assert shared is not None
    assert shared["metadata"]["ownerReferences"] == owner_of(second)
    desk.write(Delete(key("second")))
    assert desk.names() == []


def test_owners_that_go_together_take_their_dependents_along() -> None:
    desk = Desk()
    first, second = desk.create("first"), desk.create("second")
    desk.create("shared", ownerReferences=owner_of(first, second))
    desk.client.submit([Delete(key("first"))], ignore)
    desk.client.submit([Delete(key("second"))], ignore)
    desk.kernel.run()
    assert desk.names() == []


def test_an_owner_of_the_same_name_is_another_owner() -> None:
    desk = Desk()
    top = desk.create("top")
    desk.create("leaf", ownerReferences=owner_of(top, {"metadata": {"name": "other", "uid": "long gone"}}))
    desk.create("other")
    desk.write(Delete(key("top")))
    assert desk.names() == ["other"]


def test_an_owner_without_namespace_keeps_its_dependents() -> None:
    desk = Desk()
    cluster = desk.create("cluster", namespace="")
    top = desk.create("top")
    desk.create("leaf", ownerReferences=owner_of(cluster, top))
    desk.write(Delete(key("top")))
    assert desk.names() == ["cluster", "leaf"]
    desk.write(Delete(Key("ConfigMap", "", "cluster")))
    assert desk.names() == []


def test_dependents_with_finalizers_are_marked_and_go_when_released() -> None:
    desk = Desk()
    top = desk.create("top")
    desk.create("leaf", ownerReferences=owner_of(top), finalizers=["f"])
    desk.write(Delete(key("top")))
    leaf = desk.client.get(key("leaf"))
    assert leaf is not None
    assert leaf["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    desk.write(Update(with_metadata(leaf, finalizers=[])))
    assert desk.names() == []


def test_owners_in_a_circle_go_once() -> None:
    desk = Desk()
    first = desk.create("first", uid="u1", ownerReferences=owner_of({"metadata": {"name": "second", "uid": "u2"}}))
    desk.create("second", uid="u2", ownerReferences=owner_of(first))
    desk.write(Delete(key("first")))
    assert desk.reported[-2:] == ["DELETED first", "DELETED second"]
    assert desk.names() == []


def test_changes_made_by_others_are_told_too() -> None:
    desk = Desk()
    desk.store.put(key("foreign"), thing("foreign"))
    assert not desk.client.settled()
    assert desk.reported == []
    desk.kernel.run()
    assert desk.reported == ["ADDED foreign"]
    assert desk.client.settled()


def test_a_batch_is_one_piece_of_work() -> None:
    desk = Desk()
    batches: list[int] = []
    desk.client.subscribe(lambda events: batches.append(len(events)))
    for number in range(100):
        desk.client.submit([Create(thing(f"t-{number}"))], ignore)
    assert desk.kernel.pending() == 1
    desk.kernel.run()
    assert batches == [100]


def test_a_defect_in_a_listener_passes_through() -> None:
    desk = Desk()

    def broken(events: object) -> None:
        raise RuntimeError("broken")

    desk.client.subscribe(broken)
    with pytest.raises(RuntimeError, match="broken"):
        desk.write(Create(thing("a")))


def test_deleted_events_carry_the_last_state() -> None:
    desk = Desk()
    last: list[WatchEvent] = []
    stored = desk.create("a")
    desk.client.subscribe(last.extend)
    assert desk.write(Delete(key("a"))).obj is stored
    assert last == [(EventType.DELETED, key("a"), stored, stored, 2)]


def test_an_owner_has_nothing_in_other_namespaces() -> None:
    desk = Desk()
    top = desk.create("top")
    owners = [{**owner_of(top)[0], "blockOwnerDeletion": True}]
    desk.create("forged", namespace="elsewhere", ownerReferences=owners, finalizers=["f"])
    assert list(desk.client.owned_by(top["metadata"]["uid"], "team")) == []
    desk.write(Delete(key("top"), propagation=Propagation.FOREGROUND))
    assert desk.client.get(key("top")) is None
