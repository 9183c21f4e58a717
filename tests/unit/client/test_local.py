"""The client in process: names, uids, times, and deletion of dependents."""

from typing import Any

import pytest

from batchyard.api.errors import Conflict
from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.client.local import LocalClient, create_or_replace
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, EventType, Propagation, Update, WatchEvent, Write, WriteResult
from batchyard.store.memory import Store

START = parse_time("2026-01-01T00:00:00Z")


class ReportingClient:
    """A client on an empty store, and the events that it reported."""

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


def test_creation_time_is_now() -> None:
    world = ReportingClient()
    world.kernel.call_at(START + 90 * SECOND, lambda: None)
    world.kernel.run()
    assert world.create("a")["metadata"]["creationTimestamp"] == "2026-01-01T00:01:30Z"


def test_uids_depend_on_seed_but_not_on_other_objects() -> None:
    alone, busy, other = ReportingClient(), ReportingClient(), ReportingClient(seed=1)
    busy.create("before")
    uids = [world.create("a")["metadata"]["uid"] for world in (alone, busy, other)]
    assert uids[0] == uids[1]
    assert uids[0] != uids[2]


def test_recreated_object_has_new_uid() -> None:
    world, uids = ReportingClient(), []
    for _ in range(3):
        uids.append(world.create("a")["metadata"]["uid"])
        world.write(Delete(key("a")))
    world.kernel.call_at(START + 1, lambda: None)
    world.kernel.run()
    uids.append(world.create("a")["metadata"]["uid"])
    assert len(set(uids)) == 4


def test_generated_names_differ() -> None:
    world = ReportingClient()
    names = [world.write(Create(thing(None, generateName="job-"))).obj for _ in range(20)]
    assert len({obj["metadata"]["name"] for obj in names if obj}) == 20
    assert all(obj and obj["metadata"]["generateName"] == "job-" for obj in names)


def test_generated_name_skips_existing_names() -> None:
    taken = ReportingClient().write(Create(thing(None, generateName="job-"))).obj
    assert taken is not None
    world = ReportingClient()
    world.create(taken["metadata"]["name"])
    created = world.write(Create(thing(None, generateName="job-"))).obj
    assert created is not None
    assert created["metadata"]["name"] != taken["metadata"]["name"]


def test_generated_names_run_out_with_conflict() -> None:
    world = ReportingClient()
    # The names of one instant are a fixed sequence: take those that the next attempts would give.
    twin = ReportingClient()
    for _ in range(8):
        obj = twin.write(Create(thing(None, generateName="job-"))).obj
        assert obj is not None
        world.create(obj["metadata"]["name"])
    assert isinstance(world.write(Create(thing(None, generateName="job-"))).error, Conflict)


def test_dependents_are_deleted_after_their_owner() -> None:
    world = ReportingClient()
    top = world.create("top")
    middle = world.create("middle", ownerReferences=owner_of(top))
    world.create("leaf", ownerReferences=owner_of(middle))
    world.create("stranger")
    world.reported.clear()
    world.write(Delete(key("top")))
    assert world.reported == ["DELETED top", "DELETED middle", "DELETED leaf"]
    assert world.names() == ["stranger"]


def test_object_with_remaining_owner_loses_deleted_owner() -> None:
    world = ReportingClient()
    first, second = world.create("first"), world.create("second")
    world.create("shared", ownerReferences=owner_of(first, second))
    world.write(Delete(key("first")))
    shared = world.client.get(key("shared"))
    assert shared is not None
    assert shared["metadata"]["ownerReferences"] == owner_of(second)
    world.write(Delete(key("second")))
    assert world.names() == []


def test_dependent_is_deleted_with_all_its_owners() -> None:
    world = ReportingClient()
    first, second = world.create("first"), world.create("second")
    world.create("shared", ownerReferences=owner_of(first, second))
    world.client.submit([Delete(key("first"))], ignore)
    world.client.submit([Delete(key("second"))], ignore)
    world.kernel.run()
    assert world.names() == []


def test_owner_with_same_name_and_other_uid_does_not_keep_dependent() -> None:
    world = ReportingClient()
    top = world.create("top")
    world.create("leaf", ownerReferences=owner_of(top, {"metadata": {"name": "other", "uid": "long gone"}}))
    world.create("other")
    world.write(Delete(key("top")))
    assert world.names() == ["other"]


def test_cluster_scoped_owner_keeps_its_dependents() -> None:
    world = ReportingClient()
    cluster = world.create("cluster", namespace="")
    top = world.create("top")
    world.create("leaf", ownerReferences=owner_of(cluster, top))
    world.write(Delete(key("top")))
    assert world.names() == ["cluster", "leaf"]
    world.write(Delete(Key("ConfigMap", "", "cluster")))
    assert world.names() == []


def test_dependent_with_finalizer_is_marked_and_deleted_on_release() -> None:
    world = ReportingClient()
    top = world.create("top")
    world.create("leaf", ownerReferences=owner_of(top), finalizers=["f"])
    world.write(Delete(key("top")))
    leaf = world.client.get(key("leaf"))
    assert leaf is not None
    assert leaf["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    world.write(Update(with_metadata(leaf, finalizers=[])))
    assert world.names() == []


def test_owners_in_cycle_are_deleted_once() -> None:
    world = ReportingClient()
    first = world.create("first", uid="u1", ownerReferences=owner_of({"metadata": {"name": "second", "uid": "u2"}}))
    world.create("second", uid="u2", ownerReferences=owner_of(first))
    world.write(Delete(key("first")))
    assert world.reported[-2:] == ["DELETED first", "DELETED second"]
    assert world.names() == []


def test_changes_of_other_writers_are_reported() -> None:
    world = ReportingClient()
    world.store.put(key("foreign"), thing("foreign"))
    assert not world.client.is_settled()
    assert world.reported == []
    world.kernel.run()
    assert world.reported == ["ADDED foreign"]
    assert world.client.is_settled()


def test_batch_of_writes_is_one_piece_of_work() -> None:
    world = ReportingClient()
    batches: list[int] = []
    world.client.subscribe(lambda events: batches.append(len(events)))
    for number in range(100):
        world.client.submit([Create(thing(f"t-{number}"))], ignore)
    assert world.kernel.pending_count() == 1
    world.kernel.run()
    assert batches == [100]


def test_exception_in_listener_propagates() -> None:
    world = ReportingClient()

    def broken(events: object) -> None:
        raise RuntimeError("broken")

    world.client.subscribe(broken)
    with pytest.raises(RuntimeError, match="broken"):
        world.write(Create(thing("a")))


def test_deleted_event_has_last_state() -> None:
    world = ReportingClient()
    last: list[WatchEvent] = []
    stored = world.create("a")
    world.client.subscribe(last.extend)
    assert world.write(Delete(key("a"))).obj is stored
    assert last == [(EventType.DELETED, key("a"), stored, stored, 2)]


def test_owner_has_no_dependents_in_other_namespaces() -> None:
    world = ReportingClient()
    top = world.create("top")
    owners = [{**owner_of(top)[0], "blockOwnerDeletion": True}]
    world.create("forged", namespace="elsewhere", ownerReferences=owners, finalizers=["f"])
    assert list(world.client.owned_by(top["metadata"]["uid"], "team")) == []
    world.write(Delete(key("top"), propagation=Propagation.FOREGROUND))
    assert world.client.get(key("top")) is None


def test_own_objects_are_written_without_the_interceptor_if_they_differ() -> None:
    local = ReportingClient()
    local.client.set_write_interceptor(lambda _writes, _on_result: None)
    results: list[WriteResult] = []
    for value in ("1", "1", "2"):
        create_or_replace(local.client, [{**thing("own"), "data": {"key": value}}], results.append)
        local.kernel.run()
    assert local.reported == ["ADDED own", "MODIFIED own"]
    assert [result.error for result in results] == [None, None]
    stored_object = local.client.get(Key("ConfigMap", "team", "own"))
    assert stored_object is not None
    assert stored_object["data"] == {"key": "2"}
