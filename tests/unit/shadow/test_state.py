"""The objects that the model of a shadow's comparison has observed."""

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_metadata
from batchyard.api.times import format_time
from batchyard.base.instant import MILLISECOND, SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.fair_sharing.admission_fair_sharing import AdmissionFairSharing
from batchyard.scheduling.resource_charging import ResourceRules
from batchyard.scheduling.workload import lifecycle
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


# The usage of LocalQueues.

_FAIR_SHARING = AdmissionFairSharing(half_life=10 * SECOND, sampling_interval=10 * SECOND)


class UsageModel:
    """A model with admission fair sharing, and a usage-based ClusterQueue `cq` with the LocalQueues `a` and `b`."""

    def __init__(self) -> None:
        self.model = SchedulerModel(SchedulingPolicy(), 0, fair_sharing=_FAIR_SHARING)
        self._objects: dict[Key, Obj] = {}
        scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
        objects = (make.flavor("spot"), yard.queue("cq", 8, admissionScope=scope))
        for obj in (*objects, make.local_queue("a"), make.local_queue("b")):
            self.put(obj, 0)

    def put(self, obj: Obj, at: Instant) -> None:
        key, old = key_of(obj), self._objects.get(key_of(obj))
        kind = EventType.ADDED if old is None else EventType.MODIFIED
        self._objects[key] = obj
        self.model.apply_event(WatchEvent(kind, key, obj, old, 0), at)

    def admit(self, name: str, queue: str, at: Instant) -> None:
        pending = yard.workload(name, 4, queue=queue)
        self.put(pending, at)
        assigned = {"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "4"}}
        admission = {"clusterQueue": "cq", "podSetAssignments": [assigned]}
        self.put(lifecycle.reserve_quota(pending, admission, at, admitted=True, checks=[]), at)

    def put_status(self, queue: str, cpu: str, at: Instant) -> None:
        reported = {"consumedResources": {"cpu": cpu}, "lastUpdate": format_time(at)}
        status = {"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": reported}}
        self.put({**make.local_queue(queue), "status": status}, at)

    def usage(self, queue: str, at: Instant) -> float:
        self.model.heads(at)
        usage_of = self.model.index.snapshot.usage_of
        assert usage_of is not None
        return usage_of(f"team/{queue}")


def test_model_settles_and_samples_usage_as_kueue() -> None:
    usage = UsageModel()
    usage.admit("w", "a", SECOND)
    assert usage.usage("a", SECOND) == pytest.approx(2 + 4 * (1 - 0.5**0.1))
    settled = usage.usage("a", 10 * SECOND)
    assert usage.usage("a", 11 * SECOND) == pytest.approx(settled / 2 + 2)


def test_model_keeps_sample_of_current_second_open() -> None:
    usage = UsageModel()
    usage.admit("w", "a", 0)
    assert usage.usage("a", 10 * SECOND + 5 * MILLISECOND) == pytest.approx(3)
    finished = lifecycle.finish(usage.model.list(scheme.WORKLOAD)[0], lifecycle.SUCCEEDED, "done", 10 * SECOND)
    usage.put(finished, 10 * SECOND + 6 * MILLISECOND)
    assert usage.usage("a", 10 * SECOND + 7 * MILLISECOND) == pytest.approx(1)


def test_status_of_local_queue_replaces_computed_usage() -> None:
    usage = UsageModel()
    usage.put_status("a", "6", 5 * SECOND)
    assert usage.usage("a", 6 * SECOND) == 6
    assert usage.usage("a", 15 * SECOND) == 3


def test_model_takes_first_workload_of_least_used_local_queue_after_sample() -> None:
    usage = UsageModel()
    usage.put_status("a", "6", 0)
    usage.put_status("b", "4", 5 * SECOND)
    usage.put(yard.workload("a1", 1, queue="a"), 6 * SECOND)
    usage.put(yard.workload("b1", 1, queue="b", created=1), 6 * SECOND)
    assert [head.workload.name for head in usage.model.heads(7 * SECOND)] == ["b1"]
    assert usage.model.next_sample_at() == 10 * SECOND
    assert [head.workload.name for head in usage.model.heads(10 * SECOND)] == ["a1"]
