"""StatefulSets: stable names, ordered creation and deletion, rolling updates, claims."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import meta, scheme
from batchyard.api.meta import Obj
from batchyard.apps.stateful_set import StatefulSetSync
from batchyard.interfaces.client import Create
from unit.apps.apps_world import AppsWorld, app, template

GATES = [{"name": "wait"}]


def deployed(**spec: Any) -> AppsWorld:
    world = AppsWorld()
    world.put(app("StatefulSet", **{"replicas": 3, "serviceName": "web", **spec}))
    return world


def names(world: AppsWorld) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods()]


def image_by_name(world: AppsWorld) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in world.pods()}


def status(world: AppsWorld) -> Mapping[str, Any]:
    return world.get(scheme.STATEFUL_SET, "web")["status"]  # type: ignore[no-any-return]


def ungate(world: AppsWorld, name: str) -> None:
    pod = world.get(scheme.POD, name)
    world.put(meta.with_path(pod, ("spec", "schedulingGates"), None))


def test_pods_have_stable_names_and_labels() -> None:
    world = deployed()
    pod = world.get(scheme.POD, "web-1")
    labels = pod["metadata"]["labels"]
    assert names(world) == ["web-0", "web-1", "web-2"]
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("web-1", "web")
    assert labels["statefulset.kubernetes.io/pod-name"] == "web-1"
    assert labels["apps.kubernetes.io/pod-index"] == "1"
    assert labels["controller-revision-hash"] == status(world)["currentRevision"] == status(world)["updateRevision"]
    counts = ("replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas")
    assert [status(world)[field] for field in counts] == [3] * 5


def test_ordered_pods_wait_for_the_pod_before() -> None:
    world = deployed(template=template(schedulingGates=GATES))
    assert names(world) == ["web-0"]
    ungate(world, "web-0")
    assert names(world) == ["web-0", "web-1"]


def test_parallel_pods_do_not_wait() -> None:
    world = deployed(template=template(schedulingGates=GATES), podManagementPolicy="Parallel")
    assert names(world) == ["web-0", "web-1", "web-2"]


def test_scaling_down_deletes_the_highest_ordinals() -> None:
    world = deployed()
    world.change(scheme.STATEFUL_SET, replicas=1)
    assert names(world) == ["web-0"]
    assert world.messages("SuccessfulDelete")[0] == "Delete Pod web-2 in StatefulSet web successful"


def test_start_ordinal_moves_the_names() -> None:
    assert names(deployed(ordinals={"start": 5}, replicas=2)) == ["web-5", "web-6"]


def test_failed_pod_is_replaced_under_its_name() -> None:
    world = deployed(replicas=1)
    pod = world.get(scheme.POD, "web-0")
    world.put({**pod, "status": {**pod["status"], "phase": "Failed"}})
    assert world.get(scheme.POD, "web-0")["metadata"]["uid"] != pod["metadata"]["uid"]


def test_rolling_update_replaces_all_pods_and_completes() -> None:
    world = deployed()
    before = status(world)["currentRevision"]
    world.change(scheme.STATEFUL_SET, template=template("i:2"))
    assert world.images() == ["i:2"] * 3
    assert status(world)["currentRevision"] == status(world)["updateRevision"] != before
    deletions = world.messages("SuccessfulDelete")
    assert [message.split()[2] for message in deletions] == ["web-2", "web-1", "web-0"]


def test_rolling_update_stops_at_an_unavailable_pod() -> None:
    world = deployed()
    world.change(scheme.STATEFUL_SET, template=template("i:2", schedulingGates=GATES))
    assert image_by_name(world) == {"web-0": "i:1", "web-1": "i:1", "web-2": "i:2"}


def test_partition_keeps_the_lower_ordinals_at_the_current_revision() -> None:
    world = deployed(updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 2}})
    world.change(scheme.STATEFUL_SET, template=template("i:2"))
    assert image_by_name(world) == {"web-0": "i:1", "web-1": "i:1", "web-2": "i:2"}
    world.delete(scheme.POD, "web-0")
    assert image_by_name(world)["web-0"] == "i:1"


def test_on_delete_updates_only_deleted_pods() -> None:
    world = deployed(updateStrategy={"type": "OnDelete"})
    world.change(scheme.STATEFUL_SET, template=template("i:2"))
    world.delete(scheme.POD, "web-1")
    assert image_by_name(world) == {"web-0": "i:1", "web-1": "i:2", "web-2": "i:1"}


def test_max_unavailable_replaces_several_pods_at_once() -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 2}}
    world = deployed(updateStrategy=rolling, podManagementPolicy="Parallel")
    world.change(scheme.STATEFUL_SET, template=template("i:2", schedulingGates=GATES))
    assert image_by_name(world) == {"web-0": "i:1", "web-1": "i:2", "web-2": "i:2"}


def test_rollback_reuses_the_revision_with_a_new_number() -> None:
    world = deployed()
    first = status(world)["updateRevision"]
    world.change(scheme.STATEFUL_SET, template=template("i:2"))
    world.change(scheme.STATEFUL_SET, template=template("i:1"))
    numbers = {each["metadata"]["name"]: each["revision"] for each in world.client.list(scheme.CONTROLLER_REVISION)}
    assert (numbers[first], status(world)["updateRevision"]) == (3, first)


def test_history_limit_deletes_old_revisions() -> None:
    world = deployed(replicas=1, revisionHistoryLimit=1)
    for number in range(2, 6):
        world.change(scheme.STATEFUL_SET, template=template(f"i:{number}"))
    assert sorted(each["revision"] for each in world.client.list(scheme.CONTROLLER_REVISION)) == [4, 5]


def claim_template() -> Obj:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "data"}, "spec": spec}


def claims(world: AppsWorld) -> dict[str, list[str]]:
    return {
        claim["metadata"]["name"]: [owner["kind"] for owner in claim["metadata"].get("ownerReferences") or ()]
        for claim in world.client.list(scheme.PERSISTENT_VOLUME_CLAIM)
    }


def test_each_pod_has_its_claim_as_a_volume() -> None:
    world = deployed(replicas=2, volumeClaimTemplates=[claim_template()])
    assert claims(world) == {"data-web-0": [], "data-web-1": []}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}}
    assert world.get(scheme.POD, "web-1")["spec"]["volumes"] == [volume]
    world.change(scheme.STATEFUL_SET, replicas=0)
    assert claims(world) == {"data-web-0": [], "data-web-1": []}


@pytest.mark.parametrize(
    ("when_deleted", "when_scaled", "owners", "left_claims"),
    [
        ("Delete", "Retain", ["StatefulSet"], ["data-web-0", "data-web-1"]),
        ("Retain", "Delete", [], ["data-web-0"]),
        ("Delete", "Delete", ["StatefulSet"], ["data-web-0"]),
    ],
)
def test_retention_policy_decides_the_owners_of_claims(
    when_deleted: str, when_scaled: str, owners: list[str], left_claims: list[str]
) -> None:
    policy = {"whenDeleted": when_deleted, "whenScaled": when_scaled}
    templates = [claim_template()]
    world = deployed(replicas=2, volumeClaimTemplates=templates, persistentVolumeClaimRetentionPolicy=policy)
    assert claims(world) == {"data-web-0": owners, "data-web-1": owners}
    world.change(scheme.STATEFUL_SET, replicas=1)
    assert list(claims(world)) == left_claims


@pytest.mark.parametrize(("management", "count"), [("OrderedReady", 1), ("Parallel", 500)])
def test_one_reconcile_visits_few_of_a_billion_ordinals(management: str, count: int) -> None:
    spec: dict[str, Any] = {"replicas": 2**31 - 1, "podManagementPolicy": management, "serviceName": "web"}
    stateful_set = {**app("StatefulSet", **spec), "metadata": make.metadata("web")}
    sync = StatefulSetSync(stateful_set, (), AppsWorld().client, 0)
    sync.reconcile()
    assert sum(isinstance(write, Create) and write.obj["kind"] == "Pod" for write in sync.outcome.writes) == count
