"""PersistentVolumeClaims bind volumes, get provisioned volumes, and are protected while pods use them."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj
from batchyard.volumes.admission import (
    DEFAULT_CLASS_ANNOTATION,
    check_claim_size,
    default_storage_class,
    find_default_class,
    prepare_claim,
)
from batchyard.volumes.controller import VolumeController
from stage import Stage

CLAIM, VOLUME = scheme.PERSISTENT_VOLUME_CLAIM, scheme.PERSISTENT_VOLUME


def claim(name: str = "data", storage: str = "1Gi", **spec: Any) -> Obj:
    fields = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, **spec}
    metadata = make.metadata(name, uid=None, creationTimestamp=None)
    return with_defaults({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": fields})


def volume(name: str, storage: str = "1Gi", **spec: Any) -> Obj:
    fields = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": storage}, "hostPath": {"path": "/a"}, **spec}
    return with_defaults({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": fields})


def storage_class(name: str, **fields: Any) -> Obj:
    return {**default_storage_class(), "metadata": {"name": name}, **fields}


def pod(name: str = "p", node: str = "n", **status: Any) -> Obj:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
    spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    spec |= {"nodeName": node} if node else {}
    metadata = make.metadata(name, uid=None, creationTimestamp=None)
    pod_status = {"phase": "Pending", **status}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": pod_status}


class VolumeWorld(Stage):
    """A stage with the controller of volumes, and a class that binds at once."""

    def __init__(self, *, has_folders: bool = False) -> None:
        super().__init__(VolumeController(with_nodes=True, has_folders=has_folders))
        self.put(storage_class("now", volumeBindingMode="Immediate"), storage_class("later"))

    def phase(self, name: str = "data") -> str:
        phase: str = self.get(CLAIM, name)["status"]["phase"]
        return phase

    def volume_phase(self, name: str) -> str:
        phase: str = self.get(VOLUME, name, "")["status"]["phase"]
        return phase

    def volumes(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.client.list(VOLUME)]

    def messages(self) -> list[str]:
        return [f"{event.reason}: {event.message}" for event in self.events]


def test_claim_gets_a_new_volume() -> None:
    world = VolumeWorld()
    world.put(claim(storageClassName="now"))
    stored = world.get(CLAIM, "data")
    name = f"pvc-{stored['metadata']['uid']}"
    assert (world.volumes(), stored["spec"]["volumeName"]) == ([name], name)
    assert stored["status"] == {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    assert stored["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    created = world.get(VOLUME, name, "")
    assert (created["status"]["phase"], created["spec"]["persistentVolumeReclaimPolicy"]) == ("Bound", "Delete")
    assert created["metadata"]["finalizers"][0] == "kubernetes.io/pv-protection"
    assert world.messages() == [f"ProvisioningSucceeded: Successfully provisioned volume {name}"]


def test_volume_waits_for_the_first_consumer() -> None:
    world = VolumeWorld()
    world.put(claim(storageClassName="later"))
    assert (world.phase(), world.volumes()) == ("Pending", [])
    world.put(pod(node=""))
    assert world.volumes() == []
    world.put(pod())
    assert world.phase() == "Bound"
    assert world.messages()[:2] == [
        "WaitForFirstConsumer: waiting for first consumer to be created before binding",
        "WaitForPodScheduled: waiting for pod p to be scheduled",
    ]


def test_smallest_matching_volume_is_bound() -> None:
    world = VolumeWorld()
    world.put(volume("big", "9Gi"), volume("small", "500Mi"), volume("fits", "2Gi"))
    world.put(volume("other", storageClassName="x"))
    assert world.volume_phase("fits") == "Available"
    world.put(claim(storageClassName=""))
    assert (world.get(CLAIM, "data")["spec"]["volumeName"], world.volume_phase("fits")) == ("fits", "Bound")


def test_pending_claim_binds_a_later_volume() -> None:
    world = VolumeWorld()
    world.put(claim(storageClassName=""))
    assert world.messages()[-1] == (
        "FailedBinding: no persistent volumes available for this claim and no storage class is set"
    )
    world.put(volume("late"))
    assert world.phase() == "Bound"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"capacity": {"storage": "1Mi"}}, "requested PV is too small"),
        ({"storageClassName": "x"}, "storageClassName does not match"),
        ({"accessModes": ["ReadOnlyMany"]}, "incompatible accessMode"),
        ({"volumeMode": "Block"}, "incompatible volumeMode"),
    ],
)
def test_named_volume_must_satisfy_the_claim(spec: Obj, problem: str) -> None:
    world = VolumeWorld()
    world.put(volume("v", **spec))
    world.put(claim(storageClassName="", volumeName="v"))
    assert world.messages()[-1] == f'VolumeMismatch: Cannot bind to requested volume "v": {problem}'
    assert world.phase() == "Pending"


def test_second_claim_of_a_volume_waits() -> None:
    world = VolumeWorld()
    world.put(volume("v"))
    world.put(claim("a", storageClassName="", volumeName="v"), claim("b", storageClassName="", volumeName="v"))
    assert (world.phase("a"), world.phase("b")) == ("Bound", "Pending")
    assert world.messages()[-1] == 'FailedBinding: volume "v" already bound to a different claim.'


def test_used_claim_is_deleted_after_its_pod() -> None:
    world = VolumeWorld()
    world.put(claim(storageClassName="now"), pod())
    world.delete(CLAIM, "data")
    assert "deletionTimestamp" in world.get(CLAIM, "data")["metadata"]
    world.put(pod(phase="Succeeded"))
    assert "deletionTimestamp" in world.get(CLAIM, "data")["metadata"]
    world.delete(scheme.POD, "p")
    assert world.client.get(Key(CLAIM, "team", "data")) is None
    assert world.volumes() == []


def test_retained_volume_is_released() -> None:
    world = VolumeWorld()
    world.put(storage_class("keep", volumeBindingMode="Immediate", reclaimPolicy="Retain"))
    world.put(claim(storageClassName="keep"))
    (name,) = world.volumes()
    world.delete(CLAIM, "data")
    assert world.volume_phase(name) == "Released"
    world.put(claim(storageClassName="keep"))
    assert len(world.volumes()) == 2


def test_volume_with_a_folder_waits_for_the_node() -> None:
    world = VolumeWorld(has_folders=True)
    world.put(claim(storageClassName="now"))
    (name,) = world.volumes()
    world.delete(CLAIM, "data")
    assert world.get(VOLUME, name, "")["metadata"]["finalizers"] == ["batchyard.dev/volume-folder"]


def test_bound_volume_is_protected() -> None:
    world = VolumeWorld()
    world.put(claim(storageClassName="now"))
    (name,) = world.volumes()
    world.delete(VOLUME, name, "")
    assert (world.volumes(), world.phase()) == ([name], "Bound")
    world.delete(CLAIM, "data")
    assert world.volumes() == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mountOptions": ["ro"]}, 'but StorageClass "x" has mount options [ro]'),
        ({"provisioner": "a.io/b"}, "Waiting for a volume to be created either by the external provisioner 'a.io/b'"),
    ],
)
def test_unusable_classes_are_reported(fields: Obj, message: str) -> None:
    world = VolumeWorld()
    world.put(storage_class("x", volumeBindingMode="Immediate", **fields))
    world.put(claim(storageClassName="x"))
    assert message in world.messages()[-1]
    assert world.volumes() == []


def test_missing_class_is_reported_until_it_exists() -> None:
    world = VolumeWorld()
    world.put(claim(storageClassName="x"))
    assert world.messages() == ['ProvisioningFailed: storageclass.storage.k8s.io "x" not found']
    world.put(storage_class("x", volumeBindingMode="Immediate"))
    assert world.phase() == "Bound"


def test_default_class_is_set_later_too() -> None:
    world = VolumeWorld()
    world.put(claim())
    default = {"name": "d", "annotations": {DEFAULT_CLASS_ANNOTATION: "true"}}
    world.put({**storage_class("d", volumeBindingMode="Immediate"), "metadata": default})
    assert (world.get(CLAIM, "data")["spec"]["storageClassName"], world.phase()) == ("d", "Bound")


def test_newest_default_class_completes_a_new_claim() -> None:
    annotations = {DEFAULT_CLASS_ANNOTATION: "true"}
    classes = [
        {**default_storage_class(), "metadata": {"name": name, "annotations": annotations, "creationTimestamp": time}}
        for name, time in (("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-02T00:00:00Z"))
    ]
    found = find_default_class(classes)
    assert found is not None
    assert found["metadata"]["name"] == "new"
    world = VolumeWorld()
    world.put(*classes)
    assert prepare_claim(claim(), world.client)["spec"]["storageClassName"] == "new"
    assert prepare_claim(claim(storageClassName=""), world.client)["spec"]["storageClassName"] == ""


def test_claim_cannot_grow() -> None:
    reason = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support"
    with pytest.raises(Forbidden, match=reason):
        check_claim_size(claim(storage="2Gi"), {**claim(), "status": {"phase": "Bound"}})
    with pytest.raises(Forbidden, match="Only bound persistent volume claims can be expanded"):
        check_claim_size(claim(storage="2Gi"), claim())
    check_claim_size(claim(), claim())
