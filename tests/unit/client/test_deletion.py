"""How objects go: pods with time to stop, owners after what they own, and only those that were meant."""

from typing import Any

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


class Desk:
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
        made = self.write(Create({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})).obj
        assert made is not None
        return made

    def grace(self) -> int | None:
        """What the pod is given to stop; None if it is gone."""
        pod = self.client.get(POD)
        return None if pod is None else pod["metadata"]["deletionGracePeriodSeconds"]

    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for kind in ("ConfigMap", "Pod") for obj in self.client.list(kind)]


def test_a_bound_pod_is_given_time_to_stop() -> None:
    desk = Desk()
    desk.create("Pod", "p", spec={"nodeName": "n", "terminationGracePeriodSeconds": 20})
    desk.write(Delete(POD))
    pod = desk.client.get(POD)
    assert pod is not None
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:20Z"
    assert desk.grace() == 20
    desk.write(Update(with_metadata(pod, labels={"a": "b"})))
    assert desk.grace() == 20
    desk.write(Delete(POD, grace=0))
    assert desk.names() == []


def test_a_pod_that_wants_more_time_than_can_be_written_gets_68_years() -> None:
    desk = Desk()
    desk.create("Pod", "p", spec={"nodeName": "n", "terminationGracePeriodSeconds": 2**63 - 1})
    desk.write(Delete(POD))
    pod = desk.client.get(POD)
    assert pod is not None
    assert pod["metadata"]["deletionTimestamp"] == "2094-01-19T03:14:07Z"
    assert desk.grace() == 2**31 - 1


def test_a_second_deletion_only_shortens_the_time() -> None:
    desk = Desk()
    desk.create("Pod", "p", spec={"nodeName": "n"}, metadata={"finalizers": ["f"]})
    seen = []
    for grace in (None, 40, 5, 0):
        desk.kernel.run(desk.kernel.now() + SECOND)
        desk.write(Delete(POD, grace=grace))
        seen.append(desk.grace())
    assert seen == [30, 30, 5, 0]


def test_pods_without_a_node_and_pods_that_ended_go_at_once() -> None:
    desk = Desk()
    desk.create("Pod", "p", spec={})
    desk.write(Delete(POD))
    assert desk.names() == []
    ended = desk.create("Pod", "p", spec={"nodeName": "n"})
    desk.write(UpdateStatus(with_path(ended, ("status", "phase"), "Failed")))
    desk.write(Delete(POD))
    assert desk.names() == []


def test_a_pod_that_has_stopped_waits_for_its_finalizers() -> None:
    desk = Desk()
    desk.create("Pod", "p", spec={"nodeName": "n"}, metadata={"finalizers": ["f"]})
    desk.write(Delete(POD, grace=0))
    pod = desk.client.get(POD)
    assert pod is not None
    desk.write(Update(with_metadata(pod, finalizers=[])))
    assert desk.names() == []


def test_a_deletion_meant_for_another_object_of_the_name_is_refused() -> None:
    desk = Desk()
    made = desk.create("ConfigMap", "a")
    assert isinstance(desk.write(Delete(Key("ConfigMap", "team", "a"), uid="another")).error, Conflict)
    assert desk.write(Delete(Key("ConfigMap", "team", "a"), uid=made["metadata"]["uid"])).error is None
    assert isinstance(desk.write(Delete(Key("ConfigMap", "team", "a"))).error, NotFound)


def test_in_the_foreground_an_owner_goes_last() -> None:
    desk = Desk()
    top = desk.create("ConfigMap", "top")
    middle = desk.create("ConfigMap", "middle", top)
    desk.create("Pod", "p", middle, spec={"nodeName": "n"})
    desk.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert desk.names() == ["middle", "top", "p"]
    assert desk.grace() == 30
    desk.write(Delete(POD, grace=0))
    assert desk.names() == []


def test_in_the_foreground_what_has_another_owner_stays_with_it() -> None:
    desk = Desk()
    top, other = desk.create("ConfigMap", "top"), desk.create("ConfigMap", "other")
    desk.create("ConfigMap", "shared", top, other)
    desk.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert desk.names() == ["other", "shared"]
    shared = desk.client.get(Key("ConfigMap", "team", "shared"))
    assert shared is not None
    assert [owner["name"] for owner in shared["metadata"]["ownerReferences"]] == ["other"]
    desk.write(Delete(Key("ConfigMap", "team", "other"), propagation=Propagation.FOREGROUND))
    assert desk.names() == []


def test_nobody_in_another_namespace_holds_up_a_deletion() -> None:
    desk = Desk()
    top = desk.create("ConfigMap", "top")
    held = {"namespace": "other", "finalizers": ["example.com/held"]}
    desk.create("ConfigMap", "intruder", top, metadata=held)
    desk.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert desk.names() == ["intruder"]


def test_what_does_not_block_its_owner_goes_after_it() -> None:
    desk = Desk()
    top = desk.create("ConfigMap", "top")
    loose = desk.create("ConfigMap", "loose", top, metadata={"finalizers": ["f"]})
    references = [{**owner, "blockOwnerDeletion": False} for owner in loose["metadata"]["ownerReferences"]]
    desk.write(Update(with_metadata(loose, ownerReferences=references)))
    desk.write(Delete(Key("ConfigMap", "team", "top"), propagation=Propagation.FOREGROUND))
    assert desk.names() == ["loose"]


def test_in_the_foreground_an_object_that_owns_nothing_goes_at_once() -> None:
    desk = Desk()
    desk.create("ConfigMap", "a")
    desk.write(Delete(Key("ConfigMap", "team", "a"), propagation=Propagation.FOREGROUND))
    assert desk.names() == []


def test_what_an_owner_orphans_stays_with_its_other_owners() -> None:
    desk = Desk()
    top = desk.create("ConfigMap", "top", metadata={"finalizers": ["orphan", "f"]})
    other = desk.create("ConfigMap", "other")
    desk.create("ConfigMap", "alone", top)
    desk.create("ConfigMap", "shared", top, other)
    desk.write(Delete(Key("ConfigMap", "team", "top")))
    assert desk.names() == ["alone", "other", "shared", "top"]
    left = desk.client.get(Key("ConfigMap", "team", "top"))
    assert left is not None
    assert left["metadata"]["finalizers"] == ["f"]
    owners = [obj["metadata"].get("ownerReferences") for obj in desk.client.list("ConfigMap")]
    assert [None if each is None else [owner["name"] for owner in each] for each in owners] == [
        None,
        [],
        ["other"],
        [],
    ]
    desk.write(Update(with_metadata(left, finalizers=None)))
    assert desk.names() == ["alone", "other", "shared"]


def test_an_object_is_made_ready_as_its_kind_demands() -> None:
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
    made = results[0].obj
    assert made is not None
    assert made["spec"] == {"priority": 7}
    assert prepared == [made["metadata"]["uid"]]
