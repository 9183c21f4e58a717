"""Deletion: grace periods of pods, propagation to dependents, and preconditions."""

from typing import Any

import pytest

from batchyard.api.errors import Conflict, NotFound
from batchyard.api.meta import Key, Obj, with_metadata, with_path
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.client.local import AdmissionHooks, LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, Propagation, Update, UpdateStatus, Write, WriteResult
from batchyard.store.memory import Store

START = parse_time("2026-01-01T00:00:00Z")
POD = Key("Pod", "team", "p")
TOP = Key("ConfigMap", "team", "top")


class DeletionClient:
    """A client on an empty store."""

    def __init__(self) -> None:
        self.kernel = VirtualEventLoop(START)
        self.client = LocalClient(Store(detect_mutation=True), self.kernel)

    def write(self, write: Write) -> WriteResult:
        results: list[WriteResult] = []
        self.client.submit([write], results.append)
        self.kernel.run()
        return results[0]

    def create(self, kind: str, name: str, *owners: Obj, **fields: Any) -> Obj:
        references = [
            {"apiVersion": "v1", "kind": o["kind"], "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]}
            | {"blockOwnerDeletion": True}
            for o in owners
        ]
        metadata = {"name": name, "namespace": "team", "ownerReferences": references, **fields.pop("metadata", {})}
        created = self.write(Create({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})).obj
        assert created is not None
        return created

    def grace(self) -> int | None:
        """The grace period of the pod; None if it is gone."""
        pod = self.client.get(POD)
        return None if pod is None else pod["metadata"]["deletionGracePeriodSeconds"]

    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for kind in ("ConfigMap", "Pod") for obj in self.client.list(kind)]


def test_bound_pod_gets_grace_period() -> None:
    world = DeletionClient()
    world.create("Pod", "p", spec={"nodeName": "n", "terminationGracePeriodSeconds": 20})
    world.write(Delete(POD))
    pod = world.client.get(POD)
    assert pod is not None
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:20Z"
    assert world.grace() == 20
    world.write(Update(with_metadata(pod, labels={"a": "b"})))
    assert world.grace() == 20
    world.write(Delete(POD, grace_period_seconds=0))
    assert world.names() == []


def test_grace_period_is_limited_to_68_years() -> None:
    world = DeletionClient()
    world.create("Pod", "p", spec={"nodeName": "n", "terminationGracePeriodSeconds": 2**63 - 1})
    world.write(Delete(POD))
    pod = world.client.get(POD)
    assert pod is not None
    assert pod["metadata"]["deletionTimestamp"] == "2094-01-19T03:14:07Z"
    assert world.grace() == 2**31 - 1


def deletion_fields(world: DeletionClient, key: Key = POD) -> tuple[str, int, list[str]]:
    """The deletionTimestamp, the grace period and the finalizers of an object."""
    obj = world.client.get(key)
    assert obj is not None
    metadata = obj["metadata"]
    return metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"], metadata.get("finalizers", [])


def test_second_deletion_only_shortens_grace_period_since_first_one() -> None:
    world = DeletionClient()
    world.create("Pod", "p", spec={"nodeName": "n"}, metadata={"finalizers": ["f"]})
    seen = []
    for seconds, grace in ((0, 40), (1, None), (2, 50), (20, 25), (21, 0)):
        world.kernel.run(START + seconds * SECOND)
        world.write(Delete(POD, grace_period_seconds=grace))
        seen.append(deletion_fields(world)[:2])
    whole, shorter = ("2026-01-01T00:00:40Z", 40), ("2026-01-01T00:00:25Z", 25)
    assert seen == [whole, whole, whole, shorter, ("2026-01-01T00:00:00Z", 0)]


def test_second_deletion_does_not_end_grace_period_of_finished_pod() -> None:
    world = DeletionClient()
    world.create("Pod", "p", spec={"nodeName": "n"})
    world.write(Delete(POD))
    pod = world.client.get(POD)
    assert pod is not None
    world.write(UpdateStatus(with_path(pod, ("status", "phase"), "Failed")))
    world.write(Delete(POD))
    assert world.grace() == 30


def test_second_deletion_in_foreground_keeps_deletion_time() -> None:
    world = DeletionClient()
    owner, key = world.create("ConfigMap", "a", metadata={"finalizers": ["f"]}), Key("ConfigMap", "team", "a")
    world.create("ConfigMap", "b", owner, metadata={"finalizers": ["f"]})
    world.write(Delete(key))
    world.kernel.run(START + 20 * SECOND)
    world.write(Delete(key, propagation=Propagation.FOREGROUND))
    assert deletion_fields(world, key) == ("2026-01-01T00:00:00Z", 0, ["f", "foregroundDeletion"])


def test_second_deletion_in_foreground_leaves_terminating_pod_unchanged() -> None:
    world = DeletionClient()
    pod = world.create("Pod", "p", spec={"nodeName": "n"})
    world.create("ConfigMap", "a", pod)
    world.write(Delete(POD))
    world.kernel.run(START + 20 * SECOND)
    world.write(Delete(POD, propagation=Propagation.FOREGROUND))
    assert deletion_fields(world) == ("2026-01-01T00:00:30Z", 30, [])


def world_in_foreground_deletion() -> DeletionClient:
    """An owner in foreground deletion, with a dependent that a finalizer holds."""
    world = DeletionClient()
    owner = world.create("ConfigMap", "top")
    world.create("ConfigMap", "held", owner, metadata={"finalizers": ["f"]})
    world.write(Delete(TOP, propagation=Propagation.FOREGROUND))
    assert world.names() == ["held", "top"]
    return world


@pytest.mark.parametrize("remaining", ["none", "non-blocking"])
def test_changed_owner_reference_unblocks_foreground_deletion(remaining: str) -> None:
    world = world_in_foreground_deletion()
    held = world.client.get(Key("ConfigMap", "team", "held"))
    assert held is not None
    owners = [{**owner, "blockOwnerDeletion": False} for owner in held["metadata"]["ownerReferences"]]
    world.write(Update(with_metadata(held, ownerReferences=owners if remaining == "non-blocking" else None)))
    assert world.names() == ["held"]


def test_second_deletion_in_background_ends_foreground_deletion() -> None:
    world = world_in_foreground_deletion()
    world.write(Delete(TOP))
    assert deletion_fields(world, TOP)[2] == ["foregroundDeletion"]
    world.write(Delete(TOP, propagation=Propagation.BACKGROUND))
    assert world.names() == ["held"]


def test_second_deletion_that_orphans_ends_foreground_deletion() -> None:
    world = world_in_foreground_deletion()
    world.write(Delete(TOP, propagation=Propagation.ORPHAN))
    held = world.client.get(Key("ConfigMap", "team", "held"))
    assert held is not None
    assert (world.names(), held["metadata"].get("ownerReferences")) == (["held"], None)


def test_deletion_after_foreground_deletion_spares_later_dependents() -> None:
    world = DeletionClient()
    owner = world.create("ConfigMap", "top", metadata={"finalizers": ["f"]})
    held = world.create("ConfigMap", "held", owner, metadata={"finalizers": ["f"]})
    world.write(Delete(TOP, propagation=Propagation.FOREGROUND))
    world.write(Delete(TOP, propagation=Propagation.BACKGROUND))
    world.create("ConfigMap", "new", owner)
    world.write(Update(with_metadata(held, resourceVersion=None, finalizers=None)))
    assert (world.names(), deletion_fields(world, TOP)[2]) == (["new", "top"], ["f"])


def test_deletion_replaces_orphan_finalizer() -> None:
    world = DeletionClient()
    owner = world.create("ConfigMap", "top", metadata={"finalizers": ["orphan"]})
    world.create("ConfigMap", "a", owner)
    world.write(Delete(TOP, propagation=Propagation.BACKGROUND))
    assert world.names() == []


def test_second_deletion_of_terminating_pod_orphans_nothing() -> None:
    world = DeletionClient()
    pod = world.create("Pod", "p", spec={"nodeName": "n"})
    world.create("ConfigMap", "a", pod)
    world.write(Delete(POD))
    world.write(Delete(POD, propagation=Propagation.ORPHAN))
    world.write(Delete(POD, grace_period_seconds=0))
    assert world.names() == []


def test_pods_without_node_and_finished_pods_are_deleted_at_once() -> None:
    world = DeletionClient()
    world.create("Pod", "p", spec={})
    world.write(Delete(POD))
    assert world.names() == []
    ended = world.create("Pod", "p", spec={"nodeName": "n"})
    world.write(UpdateStatus(with_path(ended, ("status", "phase"), "Failed")))
    world.write(Delete(POD))
    assert world.names() == []


def test_stopped_pod_waits_for_its_finalizers() -> None:
    world = DeletionClient()
    world.create("Pod", "p", spec={"nodeName": "n"}, metadata={"finalizers": ["f"]})
    world.write(Delete(POD, grace_period_seconds=0))
    pod = world.client.get(POD)
    assert pod is not None
    world.write(Update(with_metadata(pod, finalizers=[])))
    assert world.names() == []


def test_delete_with_uid_of_another_object_conflicts() -> None:
    world = DeletionClient()
    created = world.create("ConfigMap", "a")
    assert isinstance(world.write(Delete(Key("ConfigMap", "team", "a"), uid="another")).error, Conflict)
    assert world.write(Delete(Key("ConfigMap", "team", "a"), uid=created["metadata"]["uid"])).error is None
    assert isinstance(world.write(Delete(Key("ConfigMap", "team", "a"))).error, NotFound)


def test_foreground_deletion_deletes_owner_last() -> None:
    world = DeletionClient()
    top = world.create("ConfigMap", "top")
    middle = world.create("ConfigMap", "middle", top)
    world.create("Pod", "p", middle, spec={"nodeName": "n"})
    world.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert world.names() == ["middle", "top", "p"]
    assert world.grace() == 30
    world.write(Delete(POD, grace_period_seconds=0))
    assert world.names() == []


def test_foreground_deletion_keeps_dependents_with_another_owner() -> None:
    world = DeletionClient()
    top, other = world.create("ConfigMap", "top"), world.create("ConfigMap", "other")
    world.create("ConfigMap", "shared", top, other)
    world.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert world.names() == ["other", "shared"]
    shared = world.client.get(Key("ConfigMap", "team", "shared"))
    assert shared is not None
    assert [owner["name"] for owner in shared["metadata"]["ownerReferences"]] == ["other"]
    world.write(Delete(Key("ConfigMap", "team", "other"), propagation=Propagation.FOREGROUND))
    assert world.names() == []


def test_foreground_deletion_ignores_objects_in_other_namespaces() -> None:
    world = DeletionClient()
    top = world.create("ConfigMap", "top")
    held = {"namespace": "other", "finalizers": ["example.com/held"]}
    world.create("ConfigMap", "intruder", top, metadata=held)
    world.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert world.names() == ["intruder"]


def test_foreground_deletion_does_not_wait_for_non_blocking_dependents() -> None:
    world = DeletionClient()
    top = world.create("ConfigMap", "top")
    loose = world.create("ConfigMap", "loose", top, metadata={"finalizers": ["f"]})
    references = [{**owner, "blockOwnerDeletion": False} for owner in loose["metadata"]["ownerReferences"]]
    world.write(Update(with_metadata(loose, ownerReferences=references)))
    world.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert world.names() == ["loose"]


def test_foreground_deletion_without_dependents_is_immediate() -> None:
    world = DeletionClient()
    world.create("ConfigMap", "a")
    world.write(Delete(Key("ConfigMap", "team", "a"), propagation=Propagation.FOREGROUND))
    assert world.names() == []


def test_orphaned_dependents_keep_their_other_owners() -> None:
    world = DeletionClient()
    top = world.create("ConfigMap", "top", metadata={"finalizers": ["orphan", "f"]})
    other = world.create("ConfigMap", "other")
    world.create("ConfigMap", "alone", top)
    world.create("ConfigMap", "shared", top, other)
    world.write(Delete(Key("ConfigMap", "team", "top")))
    assert world.names() == ["alone", "other", "shared", "top"]
    left = world.client.get(Key("ConfigMap", "team", "top"))
    assert left is not None
    assert left["metadata"]["finalizers"] == ["f"]
    owners = [obj["metadata"].get("ownerReferences") for obj in world.client.list("ConfigMap")]
    assert [None if each is None else [owner["name"] for owner in each] for each in owners] == [None, [], ["other"], []]
    world.write(Update(with_metadata(left, finalizers=None)))
    assert world.names() == ["alone", "other", "shared"]


def test_create_runs_admission_hook_of_kind() -> None:
    kernel = VirtualEventLoop(START)
    prepared: list[str] = []

    def prepare(obj: Obj, reader: object) -> Obj:
        prepared.append(obj["metadata"]["uid"])
        return with_path(obj, ("spec", "priority"), 7)

    client = LocalClient(Store(), kernel, admission=AdmissionHooks({"Pod": prepare}))
    results: list[WriteResult] = []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": {}}
    client.submit([Create(pod)], results.append)
    kernel.run()
    created = results[0].obj
    assert created is not None
    assert created["spec"] == {"priority": 7}
    assert prepared == [created["metadata"]["uid"]]
