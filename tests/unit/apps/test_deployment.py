"""Rollouts of Deployments: strategies, history, pauses, conditions, scaling."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import meta, scheme
from batchyard.apps import rollout
from batchyard.apps.rollout import ReplicaSets
from stage import condition_state
from unit.apps.apps_world import AppsWorld, app, template

REVISION = "deployment.kubernetes.io/revision"


def deployed(**spec: Any) -> AppsWorld:
    world = AppsWorld()
    world.put(app("Deployment", **{"replicas": 4, **spec}))
    return world


def status(world: AppsWorld) -> Mapping[str, Any]:
    return world.get(scheme.DEPLOYMENT, "web")["status"]  # type: ignore[no-any-return]


def progress(world: AppsWorld) -> tuple[str, str]:
    return condition_state(world.get(scheme.DEPLOYMENT, "web"), "Progressing")[:2]


def revisions(world: AppsWorld) -> dict[str, str | None]:
    sets = world.client.list(scheme.REPLICA_SET)
    return {s["spec"]["template"]["spec"]["containers"][0]["image"]: meta.annotation(s, REVISION) for s in sets}


def test_complete_deployment_has_counts_and_conditions() -> None:
    world = deployed()
    expected = {
        "replicas": 4,
        "updatedReplicas": 4,
        "readyReplicas": 4,
        "availableReplicas": 4,
        "terminatingReplicas": 0,
    }
    assert {
        name: value for name, value in status(world).items() if name.endswith("Replicas") or name == "replicas"
    } == expected
    (replica_set,) = world.client.list(scheme.REPLICA_SET)
    name = replica_set["metadata"]["name"]
    message = f'ReplicaSet "{name}" has successfully progressed.'
    assert condition_state(world.get(scheme.DEPLOYMENT, "web"), "Progressing") == (
        "True",
        "NewReplicaSetAvailable",
        message,
    )
    available = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    assert condition_state(world.get(scheme.DEPLOYMENT, "web"), "Available") == available
    assert world.messages("ScalingReplicaSet") == [f"Scaled up replica set {name} from 0 to 4"]


def test_replica_set_has_hash_in_name_selector_and_labels() -> None:
    world = deployed()
    (replica_set,) = world.client.list(scheme.REPLICA_SET)
    hash_text = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{hash_text}"
    assert replica_set["spec"]["selector"]["matchLabels"]["pod-template-hash"] == hash_text
    assert {pod["metadata"]["labels"]["pod-template-hash"] for pod in world.pods()} == {hash_text}


def test_rollout_replaces_all_pods_and_keeps_the_old_replica_set() -> None:
    world = deployed()
    world.change(scheme.DEPLOYMENT, template=template("i:2"))
    world.run(60)
    assert (world.images(), world.sizes()) == (["i:2"] * 4, {"i:1": 0, "i:2": 4})
    assert revisions(world) == {"i:1": "1", "i:2": "2"}
    assert meta.annotation(world.get(scheme.DEPLOYMENT, "web"), REVISION) == "2"


def test_rollout_waits_for_availability_within_surge_and_unavailable() -> None:
    world = deployed(minReadySeconds=30)
    world.run(40)
    world.change(scheme.DEPLOYMENT, template=template("i:2"))
    # maxSurge 25 % adds a pod, maxUnavailable 25 % removes one, whose place a second new pod takes
    assert world.images() == ["i:1"] * 3 + ["i:2"] * 2
    world.run(400)
    assert world.images() == ["i:2"] * 4


def test_undo_gives_the_old_replica_set_a_new_revision() -> None:
    world = deployed()
    world.change(scheme.DEPLOYMENT, template=template("i:2"))
    world.change(scheme.DEPLOYMENT, template=template("i:1"))
    assert (world.images(), revisions(world)) == (["i:1"] * 4, {"i:1": "3", "i:2": "2"})
    histories = [meta.annotation(s, f"{REVISION}-history") for s in world.client.list(scheme.REPLICA_SET)]
    assert sorted(filter(None, histories)) == ["1"]


def test_recreate_deletes_the_old_pods_first() -> None:
    world = deployed(strategy={"type": "Recreate"})
    world.fail_pods()
    pods = {pod["metadata"]["name"] for pod in world.pods()}
    world.change(scheme.DEPLOYMENT, template=template("i:2"))
    assert world.images() == ["i:2"] * 4
    downs = [message.partition(" from")[2] for message in world.messages("ScalingReplicaSet")]
    assert downs == [" 0 to 4", " 4 to 0", " 0 to 4"]
    assert pods.isdisjoint(pod["metadata"]["name"] for pod in world.pods())


def test_paused_deployment_scales_but_does_not_roll() -> None:
    world = deployed()
    world.change(scheme.DEPLOYMENT, paused=True, template=template("i:2"))
    world.change(scheme.DEPLOYMENT, replicas=6)
    assert (world.images(), progress(world)) == (["i:1"] * 6, ("Unknown", "DeploymentPaused"))
    world.change(scheme.DEPLOYMENT, paused=False)
    assert (world.images(), progress(world)) == (["i:2"] * 6, ("True", "NewReplicaSetAvailable"))


def test_history_keeps_the_latest_old_replica_sets() -> None:
    world = deployed(replicas=1, revisionHistoryLimit=2)
    for number in range(2, 6):
        world.change(scheme.DEPLOYMENT, template=template(f"i:{number}"))
    assert world.sizes() == {"i:3": 0, "i:4": 0, "i:5": 1}


def test_stuck_rollout_exceeds_the_progress_deadline() -> None:
    world = deployed(progressDeadlineSeconds=60)
    gated = template("i:2", schedulingGates=[{"name": "never"}])
    world.change(scheme.DEPLOYMENT, template=gated)
    assert progress(world) == ("True", "ReplicaSetUpdated")
    world.run(65)
    assert progress(world) == ("False", "ProgressDeadlineExceeded")
    # maxUnavailable 25 % keeps three old pods
    assert world.images() == ["i:1"] * 3 + ["i:2"] * 2


def test_replica_set_with_the_name_of_another_increases_the_collision_count() -> None:
    probe = deployed()
    (expected,) = probe.client.list(scheme.REPLICA_SET)
    world = AppsWorld()
    foreign = app("ReplicaSet", expected["metadata"]["name"], replicas=0, template=template("other"))
    world.put({**foreign, "spec": {**foreign["spec"], "selector": {"matchLabels": {"app": "other"}}}})
    world.put(app("Deployment", replicas=1))
    assert (status(world)["collisionCount"], world.images()) == (1, ["i:1"])


def replica_set(name: str, size: int, available: int, max_replicas: int = 13) -> Mapping[str, Any]:
    annotations = {rollout.DESIRED_REPLICAS: "10", rollout.MAX_REPLICAS: str(max_replicas)}
    return {
        "metadata": make.metadata(name, annotations=annotations),
        "spec": {"replicas": size},
        "status": {"replicas": size, "availableReplicas": available},
    }


@pytest.mark.parametrize(
    ("replicas", "sizes", "expected"),
    [(20, (5, 8), [10, 15]), (5, (5, 8), [3, 4]), (0, (5, 8), [0, 0]), (10, (5, 8), [5, 8])],
)
def test_replicas_change_in_proportion_during_a_rollout(
    replicas: int, sizes: tuple[int, int], expected: list[int]
) -> None:
    sets = ReplicaSets(
        app("Deployment", replicas=replicas), replica_set("a", sizes[0], 0), [replica_set("b", sizes[1], 8)]
    )
    sets.scale()
    assert [each["spec"]["replicas"] for each in sets.new_first()] == expected


def test_unhealthy_pods_of_old_replica_sets_go_first() -> None:
    sets = ReplicaSets(
        app("Deployment", replicas=10), replica_set("c", 3, 0), [replica_set("a", 5, 5), replica_set("b", 5, 3)]
    )
    assert sets.shrink_old_sets()
    # 13 pods, 8 must be available, 3 new ones are not: 2 may go
    assert [each["spec"]["replicas"] for each in sets.new_first()] == [3, 5, 3]
