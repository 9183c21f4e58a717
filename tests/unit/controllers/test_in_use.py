"""ClusterQueues and ResourceFlavors that are deleted go once nobody uses them."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.well_known import RESOURCE_IN_USE
from batchyard.controllers.admission_index import AdmissionIndex
from batchyard.controllers.in_use import InUse
from batchyard.controllers.scheduler import Scheduler
from batchyard.core.cycle import Policy
from stage import Stage
from yard import queue, workload


def kept(obj: Obj, *finalizers: str) -> Obj:
    """An object that is protected while it is in use."""
    return with_metadata(obj, finalizers=[RESOURCE_IN_USE, *finalizers])


def open_stage(*objects: Obj) -> Stage:
    index = AdmissionIndex()
    stage = Stage(Scheduler(index, Policy()), InUse(index))
    stage.put(make.namespace(), make.local_queue("cq", cluster_queue="cq"), *objects)
    return stage


def is_there(stage: Stage, kind: str, name: str) -> bool:
    return stage.client.get(Key(kind, "", name)) is not None


def test_a_queue_that_is_not_used_goes_at_once() -> None:
    stage = open_stage(make.flavor("spot"), kept(queue("cq", 4)))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert not is_there(stage, scheme.CLUSTER_QUEUE, "cq")


def test_a_queue_goes_when_the_last_workload_has_gone() -> None:
    stage = open_stage(make.flavor("spot"), kept(queue("cq", 4)), workload("a"), workload("b", 9))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert is_there(stage, scheme.CLUSTER_QUEUE, "cq")
    stage.delete(scheme.WORKLOAD, "a")
    assert not is_there(stage, scheme.CLUSTER_QUEUE, "cq")


def test_a_flavor_goes_when_no_queue_names_it() -> None:
    stage = open_stage(kept(make.flavor("spot")), kept(make.flavor("other")), queue("cq", 4))
    for name in ("spot", "other"):
        stage.delete(scheme.RESOURCE_FLAVOR, name, "")
    assert [is_there(stage, scheme.RESOURCE_FLAVOR, name) for name in ("spot", "other")] == [True, False]
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert not is_there(stage, scheme.RESOURCE_FLAVOR, "spot")


def test_a_flavor_goes_when_its_queue_names_another() -> None:
    stage = open_stage(kept(make.flavor("spot")), queue("cq", 4))
    stage.delete(scheme.RESOURCE_FLAVOR, "spot", "")
    stage.put({**queue("cq"), "spec": {"namespaceSelector": {}}})
    assert not is_there(stage, scheme.RESOURCE_FLAVOR, "spot")


def test_finalizers_of_others_are_let_be() -> None:
    stage = open_stage(make.flavor("spot"), kept(queue("cq", 4), "example.com/mine"))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    left = stage.get(scheme.CLUSTER_QUEUE, "cq", "")
    assert left["metadata"]["finalizers"] == ["example.com/mine"]
    stage.put(make.flavor("another"))
    assert is_there(stage, scheme.CLUSTER_QUEUE, "cq")


def test_who_is_not_deleted_stays() -> None:
    stage = open_stage(kept(make.flavor("spot")), kept(queue("cq", 4)))
    assert is_there(stage, scheme.CLUSTER_QUEUE, "cq")
    assert is_there(stage, scheme.RESOURCE_FLAVOR, "spot")
