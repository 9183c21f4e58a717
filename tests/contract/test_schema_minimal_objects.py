"""Objects that a schema allows crash no operator, even if they are inconsistent: other programs write them too."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

import make
from batchyard.api import scheme
from batchyard.api.conversion import from_storage
from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND
from batchyard.client.local import LocalClient
from batchyard.client.transport import to_storage_version
from batchyard.controller_groups import KUBERNETES_GROUPS
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create
from batchyard.store.memory import Store
from batchyard.webhooks.hooks import (
    FetchedObjects,
    ObjectNotFetched,
    ObjectQuery,
    review_conversion,
    review_mutation,
    review_validation,
)
from batchyard.wiring import PlatformPorts, PlatformSettings, build_platform
from contract.schema_minimal_objects import NAME, allowed_objects

ALLOWED = allowed_objects()
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}}
CONDITIONS = ("QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady", "Requeued", "Preempted")
ADMISSIONS: tuple[Obj | None, ...] = (
    None,
    {},
    {"clusterQueue": NAME},
    {"podSetAssignments": [{"name": "other", "count": 3}]},
)


def decide(objects: Sequence[Obj]) -> None:
    """Show these objects to the controllers of an operator, one after the other."""
    kernel = VirtualEventLoop(make.NOW)
    client = LocalClient(Store(), kernel)
    settings = PlatformSettings(with_nodes=True, controllers=KUBERNETES_GROUPS)
    build_platform(PlatformPorts(kernel, client, (), (), lambda *_: None, lambda _: None), settings)
    for obj in [NAMESPACE, *objects]:
        client.submit([Create(obj)], lambda _: None)
        kernel.run(kernel.now())
    kernel.run(kernel.now() + 5 * SECOND)


def operator_view(kind: str, obj: Obj) -> Obj:
    """Return the object as an operator reads it."""
    info = ALLOWED[kind].info
    return to_storage_version(info, info.storage_version, obj)


def others(kind: str) -> list[Obj]:
    """Return the minimal objects of the other kinds."""
    return [operator_view(other, found.objects[0]) for other, found in ALLOWED.items() if other != kind]


def workloads_with(conditions: Sequence[str]) -> Iterator[Obj]:
    """Yield Workloads with inconsistent conditions."""
    (least, *_) = ALLOWED[scheme.WORKLOAD].objects
    stated = [make.condition(each) for each in conditions]
    for pod_sets in ({}, {"podSets": [{"name": "main", "count": 1, "template": {}}]}):
        for admission in ADMISSIONS:
            status = {"conditions": stated, **({} if admission is None else {"admission": admission})}
            yield {**least, "spec": {"queueName": NAME, **pod_sets}, "status": status}


@pytest.mark.parametrize("kind", ALLOWED)
def test_controllers_tolerate_any_object_allowed_by_schema(kind: str) -> None:
    for obj in ALLOWED[kind].objects:
        decide([*others(kind), operator_view(kind, obj)])


@pytest.mark.parametrize("count", range(3))
def test_controllers_tolerate_workloads_with_any_status(count: int) -> None:
    for conditions in combinations(CONDITIONS, count):
        for workload in workloads_with(conditions):
            decide([*others(scheme.WORKLOAD), operator_view(scheme.WORKLOAD, workload)])


@pytest.mark.parametrize("kind", ALLOWED)
def test_webhooks_accept_any_object_allowed_by_schema(kind: str) -> None:
    (least, *_), part = ALLOWED[kind].objects, {"subResource": "status"}
    for obj in ALLOWED[kind].objects:
        for asked in ({"operation": "CREATE"}, {"operation": "UPDATE", "oldObject": least}):
            answer({**asked, "object": obj})
        answer({"operation": "UPDATE", "object": least, "oldObject": obj, **part})


def answer(asked: Obj) -> None:
    """Send a review to both webhooks, without any other objects."""
    review = {"request": {"uid": "u", "namespace": NAME, **asked}}
    for hook in (review_mutation, review_validation):
        known: dict[ObjectQuery, Sequence[Obj]] = {}
        while True:
            try:
                assert hook(review, KUBERNETES_GROUPS, FetchedObjects(known))["response"]["uid"] == "u"
                break
            except ObjectNotFetched as unknown:
                known[unknown.query] = []


@pytest.mark.parametrize("kind", [kind for kind, found in ALLOWED.items() if len(found.info.versions) > 1])
def test_any_object_allowed_by_schema_is_converted(kind: str) -> None:
    info, objects = ALLOWED[kind]
    for version in map(info.api_version_for, info.versions):
        reported = [from_storage(obj, version) for obj in objects]
        review = {"request": {"desiredAPIVersion": info.api_version, "objects": reported}}
        assert review_conversion(review)["response"]["result"] == {"status": "Success"}
