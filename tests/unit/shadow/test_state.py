"""The objects that the model of a shadow's comparison has observed."""

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_metadata
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.resource_charging import ResourceRules
from batchyard.shadow.state import SchedulerModel

_OBJECTS = (
    yard.queue("cq", 1),
    with_metadata(make.local_queue("lq"), namespace="a"),
    with_metadata(make.local_queue("lq"), namespace="b"),
    with_metadata(yard.workload("w", queue="lq"), namespace="a", uid="u1"),
    with_metadata(yard.workload("w", queue="lq"), namespace="b", uid="u2"),
)


def model_of(*objects: Obj) -> SchedulerModel:
    model = SchedulerModel(SchedulingPolicy(), 0)
    for revision, obj in enumerate(objects):
        model.apply_event(WatchEvent(EventType.ADDED, key_of(obj), obj, None, revision), 0)
    return model


@pytest.mark.parametrize("obj", _OBJECTS, ids=lambda obj: str(key_of(obj)))
def test_model_gets_objects_of_all_kinds(obj: Obj) -> None:
    assert model_of(*_OBJECTS).get(key_of(obj)) == obj
    assert model_of(*_OBJECTS).get(Key(key_of(obj).kind, "elsewhere", "lq")) is None


@pytest.mark.parametrize(
    ("kind", "namespace", "found"),
    [
        (scheme.CLUSTER_QUEUE, None, [0]),
        (scheme.LOCAL_QUEUE, None, [1, 2]),
        (scheme.LOCAL_QUEUE, "b", [2]),
        (scheme.LOCAL_QUEUE, "c", []),
        (scheme.WORKLOAD, None, [3, 4]),
        (scheme.WORKLOAD, "b", [4]),
        (scheme.WORKLOAD, "c", []),
    ],
)
def test_model_lists_objects_of_all_kinds(kind: str, namespace: str | None, found: list[int]) -> None:
    assert model_of(*_OBJECTS).list(kind, namespace) == [_OBJECTS[place] for place in found]


def test_model_charges_resources_of_configuration() -> None:
    rules = ResourceRules(excluded_prefixes=("cpu",))
    model = SchedulerModel(SchedulingPolicy(), 0, resource_rules=rules)
    for revision, obj in enumerate((_OBJECTS[0], _OBJECTS[1], _OBJECTS[3])):
        model.apply_event(WatchEvent(EventType.ADDED, key_of(obj), obj, None, revision), 0)
    (view,) = model.index.workload_cache.views()
    assert view.pod_sets[0].template.requests == ()
