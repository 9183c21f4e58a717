"""ReplicaSets create, delete, adopt and release pods."""

from typing import Any

import pytest

import make
from batchyard.api import meta, scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj
from batchyard.apps.replica_set import ReplicaSetController, pods_to_delete
from unit.apps.apps_world import LABELS, AppsWorld, app, controllers, template

NOW = make.at(3600)


def counts(world: AppsWorld) -> tuple[int, ...]:
    status = world.get(scheme.REPLICA_SET, "web")["status"]
    return tuple(
        status.get(field, 0) for field in ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
    )


def test_missing_pods_are_created_and_counted() -> None:
    world = AppsWorld()
    world.put(app("ReplicaSet", replicas=3))
    names = [pod["metadata"]["name"] for pod in world.pods()]
    assert (len(names), counts(world)) == (3, (3, 3, 3, 3))
    assert sorted(world.messages("SuccessfulCreate")) == [f"Created pod: {name}" for name in names]


def test_excess_pods_are_deleted() -> None:
    world = AppsWorld()
    world.put(app("ReplicaSet", replicas=3))
    world.change(scheme.REPLICA_SET, replicas=1)
    assert (len(world.pods()), counts(world)) == (1, (1, 1, 1, 1))
    assert len(world.messages("SuccessfulDelete")) == 2


def test_ended_pod_is_replaced() -> None:
    world = AppsWorld()
    world.put(app("ReplicaSet", replicas=2))
    pod = world.pods()[0]
    world.put({**pod, "status": {**pod["status"], "phase": "Failed"}})
    assert (len(world.pods()), counts(world)) == (3, (2, 2, 2, 2))


def pod_spec() -> Obj:
    return {"spec": template()["spec"]}


def test_older_orphan_is_adopted() -> None:
    world = AppsWorld()
    world.put({"apiVersion": "v1", "kind": "Pod", "metadata": make.metadata("lonely", labels=LABELS), **pod_spec()})
    world.put(app("ReplicaSet", replicas=2))
    owner = meta.controller_of(world.get(scheme.POD, "lonely"))
    assert owner is not None
    assert (owner["name"], len(world.pods())) == ("web", 2)


def test_pod_with_other_labels_is_released_and_replaced() -> None:
    world = AppsWorld()
    world.put(app("ReplicaSet", replicas=1))
    pod = world.pods()[0]
    world.put(meta.with_metadata(pod, labels={"app": "debug"}))
    assert len(world.pods()) == 2
    assert meta.controller_of(world.get(scheme.POD, pod["metadata"]["name"])) is None


def test_ready_pod_becomes_available_after_min_ready_seconds() -> None:
    world = AppsWorld()
    world.put(app("ReplicaSet", replicas=1, minReadySeconds=30))
    assert counts(world) == (1, 1, 1, 0)
    world.run(31)
    assert counts(world) == (1, 1, 1, 1)


def test_restarted_controller_creates_no_more_pods() -> None:
    world = AppsWorld()
    world.put(app("ReplicaSet", replicas=2))
    world.replace_controllers(*controllers())
    assert len(world.pods()) == 2


def candidate(name: str, *, node: str = "n", ready: float | None = 0, created: float = 0, **fields: Any) -> Obj:
    conditions = [] if ready is None else [make.condition("Ready", since=ready)]
    status = {"phase": fields.pop("phase", "Running"), "conditions": conditions}
    statuses = {"containerStatuses": [{"restartCount": fields.pop("restarts", 0)}]}
    return {
        "kind": "Pod",
        "metadata": make.metadata(name, creationTimestamp=make.stamp(created), **fields),
        "spec": {"nodeName": node} if node else {},
        "status": {**status, **statuses},
    }


def cost(value: int) -> Obj:
    return {"controller.kubernetes.io/pod-deletion-cost": str(value)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (candidate("b", node=""), candidate("a", phase="Pending", ready=None)),
        (candidate("b", phase="Pending", ready=None), candidate("a", ready=None)),
        (candidate("b", ready=None), candidate("a")),
        (candidate("b", annotations=cost(-1)), candidate("a")),
        (candidate("b", ready=3590), candidate("a", ready=0)),
        (candidate("b", ready=None, restarts=2), candidate("a", ready=None, restarts=1)),
        (candidate("b", ready=None, created=3590), candidate("a", ready=None)),
        (candidate("a", ready=1), candidate("b", ready=2)),  # ages of the same magnitude: by uid
    ],
)
def test_pods_are_deleted_in_the_order_of_kubernetes(first: Obj, second: Obj) -> None:
    assert pods_to_delete([second, first], [], 1, NOW) == [first]
    assert pods_to_delete([first, second], [], 1, NOW) == [first]


def test_pod_beside_related_pods_is_deleted_first() -> None:
    alone, doubled = candidate("a", node="n1"), candidate("b", node="n2")
    assert pods_to_delete([alone, doubled], [alone, doubled, candidate("c", node="n2")], 1, NOW) == [doubled]


def replication_controller(**spec: Any) -> Obj:
    """A ReplicationController with its defaults; keywords set fields of its spec."""
    metadata = make.metadata("web", uid=None, creationTimestamp=None)
    fields = {"template": template(), **spec}
    return with_defaults({"apiVersion": "v1", "kind": "ReplicationController", "metadata": metadata, "spec": fields})


def test_replication_controller_keeps_its_pods() -> None:
    world = AppsWorld(ReplicaSetController(scheme.REPLICATION_CONTROLLER))
    world.put(replication_controller(replicas=3))
    status = world.get(scheme.REPLICATION_CONTROLLER, "web")["status"]
    counts_of_status = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
    assert [status[field] for field in counts_of_status] == [3, 3, 3, 3]
    assert "terminatingReplicas" not in status
    owner = world.pods()[0]["metadata"]["ownerReferences"][0]
    assert (owner["apiVersion"], owner["kind"]) == ("v1", "ReplicationController")
    world.change(scheme.REPLICATION_CONTROLLER, replicas=1)
    assert len(world.pods()) == 1
    world.delete(scheme.REPLICATION_CONTROLLER, "web")
    assert world.pods() == []


def test_replication_controller_adopts_orphans() -> None:
    world = AppsWorld(ReplicaSetController(scheme.REPLICATION_CONTROLLER))
    metadata = make.metadata("lone", labels=LABELS, uid=None, creationTimestamp=None)
    world.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **pod_spec()})
    world.put(replication_controller(replicas=1))
    (pod,) = world.pods()
    assert pod["metadata"]["name"] == "lone"
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicationController"
