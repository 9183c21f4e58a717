"""A client that goes on where another has ended knows what belongs to whom, and collects what was left behind."""

import pytest

import make
from batchyard.api.meta import Key, Obj, key_of
from batchyard.client.local import LocalClient, Scopes
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Delete, EventType, Propagation, WatchEvent
from batchyard.store.memory import RecoveredStore, Store

OWNER = Key("Job.batch", "team", "owner")
OWNED = Key("ConfigMap", "team", "owned")


def obj(key: Key, uid: str, *owners: str) -> Obj:
    metadata = {**make.metadata(key.name), "namespace": key.namespace, "uid": uid, "resourceVersion": "1"}
    references = [{"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": owner} for owner in owners]
    kind, _, group = key.kind.partition(".")
    metadata["ownerReferences"] = [{**each, "controller": True, "blockOwnerDeletion": True} for each in references]
    return {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "metadata": metadata}


def gone_on(*objs: Obj, scopes: Scopes | None = None) -> tuple[LocalClient, VirtualEventLoop]:
    """A client of a store that goes on with these objects."""
    kernel = VirtualEventLoop()
    store = Store(recovered=RecoveredStore(1, {key_of(each): each for each in objs}, ()))
    client = LocalClient(store, kernel)
    if scopes is not None:
        client.judge_owners(scopes)
    client.recall([WatchEvent(EventType.ADDED, key_of(each), each, None, 1) for each in objs])
    kernel.run()
    return client, kernel


def test_it_knows_what_belongs_to_whom() -> None:
    client, _ = gone_on(obj(OWNER, "a"), obj(OWNED, "b", "a"))
    assert [key_of(each) for each in client.owned_by("a", "")] == [OWNED]


def test_what_an_owner_left_behind_is_collected() -> None:
    client, _ = gone_on(obj(OWNED, "b", "a"))
    assert client.get(OWNED) is None


@pytest.mark.parametrize("is_served", [True, False])
def test_where_kinds_are_served_what_an_owner_of_another_kind_left_behind_stays(is_served: bool) -> None:
    client, _ = gone_on(obj(OWNED, "b", "a"), scopes=lambda *_: True if is_served else None)
    assert (client.get(OWNED) is None) == is_served


def test_what_is_owned_goes_after_its_owner_and_before_it() -> None:
    for propagation in (Propagation.BACKGROUND, Propagation.FOREGROUND):
        client, kernel = gone_on(obj(OWNER, "a"), obj(OWNED, "b", "a"))
        client.attempt(Delete(OWNER, propagation=propagation))
        kernel.run()
        assert (client.get(OWNER), client.get(OWNED)) == (None, None)


def test_whoever_waited_for_those_he_owns_goes_when_they_do() -> None:
    metadata = obj(OWNER, "a")["metadata"]
    marked = {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    leaving = {**obj(OWNER, "a"), "metadata": marked}
    client, _ = gone_on(leaving, obj(OWNED, "b", "a"))
    assert (client.get(OWNER), client.get(OWNED)) == (None, None)
