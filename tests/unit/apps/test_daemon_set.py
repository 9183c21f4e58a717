"""DaemonSets: one pod per matching node, tolerations, rolling updates."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.apps.daemon_set import DaemonSetController, target_node
from unit.apps.apps_world import AppsWorld, app, template

READY = [make.condition("Ready")]


def node(name: str, *taints: str, **labels: str) -> Obj:
    spec = {"taints": [{"key": "k", "effect": effect} for effect in taints]} if taints else {}
    metadata = {**make.metadata(name, None), "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"conditions": READY}}


def deployed(*nodes: Obj, **spec: Any) -> AppsWorld:
    world = AppsWorld(DaemonSetController())
    world.put(*(nodes or (node("a"), node("b"), node("c"))))
    world.put(app("DaemonSet", **spec))
    return world


def images(world: AppsWorld) -> dict[str, str]:
    return {target_node(pod): pod["spec"]["containers"][0]["image"] for pod in world.pods()}


def status(world: AppsWorld) -> Mapping[str, Any]:
    return world.get(scheme.DAEMON_SET, "web")["status"]  # type: ignore[no-any-return]


def rolling(**settings: Any) -> Obj:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1, **settings}}


def test_each_node_has_a_pod() -> None:
    world = deployed()
    assert sorted(images(world)) == ["a", "b", "c"]
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "numberAvailable")
    assert [status(world)[field] for field in (*counts, "updatedNumberScheduled")] == [3] * 5
    world.put(node("d"))
    assert sorted(images(world)) == ["a", "b", "c", "d"]


def test_pods_tolerate_the_taints_of_unready_nodes() -> None:
    (pod,) = deployed(node("a")).pods()
    tolerated = {(each["key"].partition("/")[2], each["effect"]) for each in pod["spec"]["tolerations"]}
    pressures = {(f"{name}-pressure", "NoSchedule") for name in ("disk", "memory", "pid")}
    others = {("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("unschedulable", "NoSchedule")}
    assert tolerated == pressures | others


@pytest.mark.parametrize(
    ("nodes", "pod_fields", "expected"),
    [
        ([node("a", gpu="yes"), node("b")], {"nodeSelector": {"gpu": "yes"}}, ["a"]),
        ([node("a", "NoSchedule"), node("b", "PreferNoSchedule")], {}, ["b"]),
        ([node("a", "NoExecute"), node("b")], {"tolerations": [{"operator": "Exists"}]}, ["a", "b"]),
        ([node("a"), node("b")], {"nodeName": "b"}, ["b"]),
    ],
)
def test_selector_and_taints_decide_the_nodes(nodes: list[Obj], pod_fields: Obj, expected: list[str]) -> None:
    assert sorted(images(deployed(*nodes, template=template(**pod_fields)))) == expected


def test_pod_stays_on_a_node_that_becomes_unschedulable_but_not_if_it_evicts() -> None:
    world = deployed(node("a"), node("b"))
    world.put(node("a", "NoSchedule"))
    assert (sorted(images(world)), status(world)["numberMisscheduled"]) == (["a", "b"], 1)
    world.put(node("a", "NoExecute"))
    assert sorted(images(world)) == ["b"]


def test_failed_pod_is_replaced_after_a_backoff() -> None:
    world = deployed(node("a"))
    for seconds in (0, 0.5):
        (pod,) = world.pods()
        world.put({**pod, "status": {**pod["status"], "phase": "Failed"}})
        world.run(seconds)
    assert [pod["status"]["phase"] for pod in world.pods()] == ["Failed"]
    world.run(2)
    assert [pod["status"]["phase"] for pod in world.pods()] == ["Running"]
    assert len(world.messages("FailedDaemonPod")) == 2


def test_rolling_update_replaces_one_pod_after_the_other() -> None:
    world = deployed(updateStrategy=rolling(), minReadySeconds=10)
    world.run(15)
    world.change(scheme.DAEMON_SET, template=template("i:2"))
    assert sorted(images(world).values()) == ["i:1", "i:1", "i:2"]
    world.run(60)
    assert sorted(images(world).values()) == ["i:2"] * 3
    assert status(world)["updatedNumberScheduled"] == 3


def test_rolling_update_with_surge_starts_new_pods_first() -> None:
    world = deployed(updateStrategy=rolling(maxSurge=1, maxUnavailable=0), minReadySeconds=10)
    world.run(15)
    world.change(scheme.DAEMON_SET, template=template("i:2"))
    assert world.images() == ["i:1", "i:1", "i:1", "i:2"]
    world.run(80)
    assert world.images() == ["i:2"] * 3


def test_on_delete_updates_only_deleted_pods() -> None:
    world = deployed(node("a"), node("b"), updateStrategy={"type": "OnDelete"})
    world.change(scheme.DAEMON_SET, template=template("i:2"))
    assert world.images() == ["i:1", "i:1"]
    world.delete(scheme.POD, next(p["metadata"]["name"] for p in world.pods() if target_node(p) == "a"))
    assert images(world) == {"a": "i:2", "b": "i:1"}


def test_revisions_are_numbered_and_limited() -> None:
    world = deployed(node("a"), revisionHistoryLimit=1)
    for number in range(2, 5):
        world.change(scheme.DAEMON_SET, template=template(f"i:{number}"))
    assert sorted(each["revision"] for each in world.client.list(scheme.CONTROLLER_REVISION)) == [3, 4]


def test_status_updates_of_nodes_are_ignored() -> None:
    world = deployed(node("a"))
    reconciles = world.runner.reconciles
    world.put(with_path(node("a"), ("status", "phase"), "Running"))
    assert world.runner.reconciles == reconciles
