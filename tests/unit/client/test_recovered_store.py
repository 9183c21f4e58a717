"""A client that starts from a recovered store indexes the owners and collects orphans."""

import pytest

import make
from batchyard.api.meta import Key, Obj, key_of
from batchyard.client.garbage_collector import NamespacedLookup
from batchyard.client.local import LocalClient
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


def recovered_client(*objs: Obj, scopes: NamespacedLookup | None = None) -> tuple[LocalClient, VirtualEventLoop]:
    """A client of a store that is recovered with these objects."""
    kernel = VirtualEventLoop()
    store = Store(contents=RecoveredStore(1, {key_of(each): each for each in objs}, ()))
    client = LocalClient(store, kernel)
    if scopes is not None:
        client.set_scope_lookup(scopes)
    client.observe_existing([WatchEvent(EventType.ADDED, key_of(each), each, None, 1) for each in objs])
    kernel.run()
    return client, kernel


def test_recovered_client_knows_dependents() -> None:
    client, _ = recovered_client(obj(OWNER, "a"), obj(OWNED, "b", "a"))
    assert [key_of(each) for each in client.owned_by("a", "")] == [OWNED]


def test_dependent_of_missing_owner_is_collected() -> None:
    client, _ = recovered_client(obj(OWNED, "b", "a"))
    assert client.get(OWNED) is None


@pytest.mark.parametrize("is_served", [True, False])
def test_dependent_of_owner_of_unserved_kind_is_kept(is_served: bool) -> None:
    client, _ = recovered_client(obj(OWNED, "b", "a"), scopes=lambda *_: True if is_served else None)
    assert (client.get(OWNED) is None) == is_served


def test_dependent_is_deleted_in_background_and_foreground() -> None:
    for propagation in (Propagation.BACKGROUND, Propagation.FOREGROUND):
        client, kernel = recovered_client(obj(OWNER, "a"), obj(OWNED, "b", "a"))
        client.attempt(Delete(OWNER, propagation=propagation))
        kernel.run()
        assert (client.get(OWNER), client.get(OWNED)) == (None, None)


def test_recalled_foreground_deletion_is_completed() -> None:
    metadata = obj(OWNER, "a")["metadata"]
    marked = {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    leaving = {**obj(OWNER, "a"), "metadata": marked}
    client, _ = recovered_client(leaving, obj(OWNED, "b", "a"))
    assert (client.get(OWNER), client.get(OWNED)) == (None, None)
