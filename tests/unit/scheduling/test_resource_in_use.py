"""The resource-in-use finalizer: a deleted object is removed when it is no longer referenced."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_metadata
from batchyard.api.well_known import RESOURCE_IN_USE
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import ResourceInUseFinalizer
from stage import Stage
from yard import cohort, queue, workload


def with_finalizers(obj: Obj, *finalizers: str) -> Obj:
    """Return the object with the resource-in-use finalizer."""
    return with_metadata(obj, finalizers=[RESOURCE_IN_USE, *finalizers])


def open_stage(*objects: Obj) -> Stage:
    index = SchedulerCache()
    stage = Stage(Scheduler(index, SchedulingPolicy()), ResourceInUseFinalizer(index))
    stage.put(make.namespace(), make.local_queue("cq", cluster_queue="cq"), *objects)
    return stage


def check(name: str = "check") -> Obj:
    """An AdmissionCheck as a user writes it."""
    metadata, spec = make.metadata(name, None), {"controllerName": "test/checks"}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": metadata, "spec": spec}


def queue_with_checks(*names: str) -> Obj:
    """A ClusterQueue with these AdmissionChecks."""
    return queue("cq", 4, admissionChecksStrategy={"admissionChecks": [{"name": name} for name in names]})


def exists(stage: Stage, kind: str, name: str) -> bool:
    return stage.client.get(Key(kind, "", name)) is not None


def test_unused_queue_is_removed_at_once() -> None:
    stage = open_stage(make.flavor("spot"), with_finalizers(queue("cq", 4)))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert not exists(stage, scheme.CLUSTER_QUEUE, "cq")


def test_queue_is_removed_after_its_last_workload() -> None:
    stage = open_stage(make.flavor("spot"), with_finalizers(queue("cq", 4)), workload("a"), workload("b", 9))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert exists(stage, scheme.CLUSTER_QUEUE, "cq")
    stage.delete(scheme.WORKLOAD, "a")
    assert not exists(stage, scheme.CLUSTER_QUEUE, "cq")


def test_flavor_is_removed_when_no_queue_references_it() -> None:
    stage = open_stage(with_finalizers(make.flavor("spot")), with_finalizers(make.flavor("other")), queue("cq", 4))
    for name in ("spot", "other"):
        stage.delete(scheme.RESOURCE_FLAVOR, name, "")
    assert [exists(stage, scheme.RESOURCE_FLAVOR, name) for name in ("spot", "other")] == [True, False]
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert not exists(stage, scheme.RESOURCE_FLAVOR, "spot")


def test_flavor_is_removed_when_queue_drops_reference() -> None:
    stage = open_stage(with_finalizers(make.flavor("spot")), queue("cq", 4))
    stage.delete(scheme.RESOURCE_FLAVOR, "spot", "")
    stage.put({**queue("cq"), "spec": {"namespaceSelector": {}}})
    assert not exists(stage, scheme.RESOURCE_FLAVOR, "spot")


def test_other_finalizers_are_kept() -> None:
    stage = open_stage(make.flavor("spot"), with_finalizers(queue("cq", 4), "example.com/mine"))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    left = stage.get(scheme.CLUSTER_QUEUE, "cq", "")
    assert left["metadata"]["finalizers"] == ["example.com/mine"]
    stage.put(make.flavor("another"))
    assert exists(stage, scheme.CLUSTER_QUEUE, "cq")


def test_finalizer_stays_without_deletion() -> None:
    stage = open_stage(with_finalizers(make.flavor("spot")), with_finalizers(queue("cq", 4)))
    assert exists(stage, scheme.CLUSTER_QUEUE, "cq")
    assert exists(stage, scheme.RESOURCE_FLAVOR, "spot")


def test_finalizer_is_added_only_to_referenced_kinds() -> None:
    stage = open_stage(make.flavor("spot"), queue("cq", 4), check(), make.topology(), cohort("root", 4), workload("a"))
    held = [scheme.RESOURCE_FLAVOR, scheme.CLUSTER_QUEUE, scheme.ADMISSION_CHECK, scheme.TOPOLOGY]
    assert all(obj["metadata"]["finalizers"] == [RESOURCE_IN_USE] for kind in held for obj in stage.client.list(kind))
    free = [*stage.client.list(scheme.COHORT), *stage.client.list(scheme.LOCAL_QUEUE), stage.workload("a")]
    assert not any("finalizers" in obj["metadata"] for obj in free)


def test_removed_finalizer_is_restored() -> None:
    stage = open_stage(make.flavor("spot"))
    stage.put(with_metadata(stage.get(scheme.RESOURCE_FLAVOR, "spot", ""), finalizers=None))
    assert stage.get(scheme.RESOURCE_FLAVOR, "spot", "")["metadata"]["finalizers"] == [RESOURCE_IN_USE]


def test_admission_check_is_removed_when_no_queue_references_it() -> None:
    stage = open_stage(make.flavor("spot"), check("one"), check("two"), check("three"), queue_with_checks("one", "two"))
    for name in ("one", "two", "three"):
        stage.delete(scheme.ADMISSION_CHECK, name, "")
    assert [exists(stage, scheme.ADMISSION_CHECK, name) for name in ("one", "two", "three")] == [True, True, False]
    stage.put(queue_with_checks("two"))
    assert [exists(stage, scheme.ADMISSION_CHECK, name) for name in ("one", "two")] == [False, True]
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert not exists(stage, scheme.ADMISSION_CHECK, "two")


def test_topology_is_removed_when_no_flavor_references_it() -> None:
    stage = open_stage(make.topology(), make.flavor("spot", topologyName="racks"), queue("cq", 4))
    stage.delete(scheme.TOPOLOGY, "racks", "")
    stage.delete(scheme.RESOURCE_FLAVOR, "spot", "")
    assert exists(stage, scheme.TOPOLOGY, "racks")
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert not exists(stage, scheme.TOPOLOGY, "racks")


def test_object_that_is_gone_gets_no_finalizer() -> None:
    flavor = make.flavor("spot")
    controller = ResourceInUseFinalizer(SchedulerCache())
    (key,) = controller.keys_for(WatchEvent(EventType.ADDED, key_of(flavor), flavor, None, 1), make.NOW)
    assert controller.reconcile(key, Stage().client, make.NOW).writes == []
