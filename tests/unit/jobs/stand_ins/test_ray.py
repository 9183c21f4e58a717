"""The controller of RayClusters: pods, replacement, scaling, replicas of several hosts, suspension and status.

Source: ray-operator/controllers/ray/raycluster_controller_{test,unit_test}.go of KubeRay.
"""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import find_condition
from batchyard.jobs.described.description import built_in_descriptions
from batchyard.jobs.described.integration import DescribedJobIntegration
from batchyard.jobs.stand_ins.ray_nodes import RAY_CLUSTER
from unit.jobs.stand_ins.ray_world import RayWorld, cluster_spec, group, ray_cluster, template

ENDED = {"phase": "Failed", "conditions": []}


def ready_world(*groups: dict[str, Any], **fields: Any) -> RayWorld:
    """A world with a RayCluster whose pods run."""
    world = RayWorld(ray_cluster(*groups, **fields))
    world.start_cluster()
    return world


def test_cluster_gets_service_head_and_workers() -> None:
    world = RayWorld(ray_cluster(group(replicas=2)))
    assert [name[:-5] for name in world.names()] == ["rc-head-", "rc-small-worker-", "rc-small-worker-"]
    assert world.get(scheme.SERVICE, "rc-head-svc")["spec"]["clusterIP"] == "None"
    assert world.state("RayClusterProvisioned")[:2] == ("False", "RayClusterPodsProvisioning")
    assert world.state("HeadPodReady")[:2] == ("False", "Unknown")
    assert world.messages("CreatedHeadPod") == [f"Created head Pod team/{world.names('head')[0]}"]
    assert len(world.messages("CreatedWorkerPod")) == 2
    indexes = [pod["metadata"]["labels"]["ray.io/worker-group-replica-index"] for pod in world.nodes("worker")]
    assert sorted(indexes) == ["0", "1"]


def test_cluster_is_ready_when_all_pods_are() -> None:
    world = RayWorld(ray_cluster(group(replicas=2)))
    world.set_status(world.nodes("head"))
    assert "state" not in world.cluster_status()
    world.start_cluster()
    status = world.cluster_status()
    counts = [status[f"{name}WorkerReplicas"] for name in ("ready", "available", "desired", "max")]
    assert (status["state"], counts) == ("ready", [2, 2, 2, 2**31 - 1])
    assert status["head"]["podName"] == world.names("head")[0]
    assert (status["head"]["serviceIP"], status["head"]["serviceName"]) == ("10.0.0.1", "rc-head-svc")
    assert status["endpoints"]["dashboard"] == "8265"
    assert world.state("RayClusterProvisioned")[:2] == ("True", "AllPodRunningAndReadyFirstTime")
    assert world.state("HeadPodReady")[0] == "True"
    assert status["stateTransitionTimes"] == {"ready": make.stamp()}


def test_requests_of_all_pods_are_reported() -> None:
    resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "2"}}
    status = RayWorld(ray_cluster(group(replicas=3, template=template("w", {"resources": resources})))).cluster_status()
    assert [status[f"desired{name}"] for name in ("CPU", "Memory", "GPU", "TPU")] == ["1500m", "3Gi", "6", "0"]


@pytest.mark.parametrize("node_type", ["head", "worker"])
def test_ended_pod_is_replaced(node_type: str) -> None:
    world = ready_world(group(replicas=2))
    lost = world.names(node_type)[0]
    world.set_status(world.nodes(node_type)[:1], **ENDED)
    assert lost in world.names()  # it is too young
    world.run(5)
    assert (lost in world.names(), len(world.names())) == (False, 3)
    reason = "DeletedHeadPod" if node_type == "head" else "DeletedWorkerPod"
    assert world.messages(reason)[0].startswith(f"Deleted {node_type} Pod team/{lost}; Pod status: Failed")
    assert world.cluster_status()["state"] == "ready"


@pytest.mark.parametrize(("policy", "is_replaced"), [("Never", True), ("Always", False)])
def test_running_pod_without_its_ray_container_is_replaced_if_it_never_restarts(policy: str, is_replaced: bool) -> None:
    world = ready_world(head={"template": template("ray-head", restartPolicy=policy)})
    before = world.names("head")
    ended = {"name": "ray-head", "state": {"terminated": {"exitCode": 1}}}
    world.set_status(world.nodes("head"), containerStatuses=[ended])
    world.run(5)
    assert (world.names("head") != before) is is_replaced


def test_head_of_a_provisioned_cluster_stays_lost_with_the_annotation() -> None:
    world = ready_world(annotations={"ray.io/disable-provisioned-head-restart": "true"})
    world.delete(scheme.POD, world.names("head")[0])
    assert world.names() == []
    assert world.state("HeadPodReady") == ("False", "HeadPodNotFound", "Head Pod not found")


def test_workers_are_scaled_by_replicas() -> None:
    world = ready_world(group(replicas=2))
    for count in (4, 1, 0):
        world.change(RAY_CLUSTER, "rc", "workerGroupSpecs", [group(replicas=count)])
        assert len(world.names("worker")) == count
    assert world.cluster_status().get("desiredWorkerReplicas") is None


def test_named_workers_are_deleted_and_replaced() -> None:
    world = ready_world(group(replicas=2))
    lost = world.names("worker")[0]
    strategy = {"workersToDelete": [lost]}
    world.change(RAY_CLUSTER, "rc", "workerGroupSpecs", [group(replicas=2, scaleStrategy=strategy)])
    assert (lost in world.names("worker"), len(world.names("worker"))) == (False, 2)


def test_suspended_group_has_no_pods() -> None:
    world = ready_world(group(replicas=2), group("large"))
    groups = [group(replicas=2, suspend=True), group("large")]
    world.change(RAY_CLUSTER, "rc", "workerGroupSpecs", groups)
    assert [name[:-5] for name in world.names("worker")] == ["rc-large-worker-"]
    assert world.cluster_status()["desiredWorkerReplicas"] == 1


def test_replica_of_several_hosts_is_replaced_as_a_whole() -> None:
    world = ready_world(group(replicas=2, numOfHosts=2))
    assert world.get(scheme.SERVICE, "rc-headless")["spec"]["selector"]["ray.io/node-type"] == "worker"
    replicas = {pod["metadata"]["labels"]["ray.io/worker-group-replica-name"] for pod in world.nodes("worker")}
    assert len(replicas) == 2
    lost = world.nodes("worker")[0]
    world.set_status([lost], **ENDED)
    world.run(5)
    lost_replica = lost["metadata"]["labels"]["ray.io/worker-group-replica-name"]
    labels = [pod["metadata"]["labels"] for pod in world.nodes("worker")]
    assert lost_replica not in [each["ray.io/worker-group-replica-name"] for each in labels]
    assert sorted(each["ray.io/replica-host-index"] for each in labels) == ["0", "0", "1", "1"]
    world.change(RAY_CLUSTER, "rc", "workerGroupSpecs", [group(replicas=1, numOfHosts=2)])
    assert len(world.names("worker")) == 2


def test_suspended_cluster_loses_its_pods_and_gets_new_ones() -> None:
    world = ready_world(group())
    before = world.names()
    world.change(RAY_CLUSTER, "rc", "suspend", True)
    assert (world.names(), world.cluster_status()["state"]) == ([], "suspended")
    assert [world.state(f"RayCluster{name}")[0] for name in ("Suspending", "Suspended")] == ["False", "True"]
    assert world.state("RayClusterProvisioned")[2] == "RayCluster has been suspended"
    world.run(1)
    world.change(RAY_CLUSTER, "rc", "suspend", False)
    world.start_cluster()
    assert world.cluster_status()["state"] == "ready"
    assert not set(world.names()) & set(before)


def test_suspended_cluster_waits_for_pods_in_deletion() -> None:
    world = ready_world()
    (head,) = world.nodes()
    world.put({**head, "spec": {**head["spec"], "nodeName": "n"}})
    world.change(RAY_CLUSTER, "rc", "suspend", True)
    assert "deletionTimestamp" in world.nodes()[0]["metadata"]
    assert (world.state("RayClusterSuspending")[0], world.cluster_status()["state"]) == ("True", "ready")


def test_queue_reads_the_status() -> None:
    integration = DescribedJobIntegration(built_in_descriptions()[RAY_CLUSTER])
    world = ready_world(group())
    assert integration.is_active(world.cluster())
    world.change(RAY_CLUSTER, "rc", "suspend", True)
    assert not integration.is_active(world.cluster())


def test_invalid_pod_is_reported_until_the_template_is_corrected() -> None:
    bad = {"template": template("ray-head", {"image": ""})}
    world = RayWorld(ray_cluster(head=bad))
    assert world.names() == []
    assert world.state("ReplicaFailure")[:2] == ("True", "FailedCreateHeadPod")
    assert "image" in world.messages("FailedToCreateHeadPod")[0]
    world.change(RAY_CLUSTER, "rc", "headGroupSpec", cluster_spec()["headGroupSpec"])
    world.run(60)
    assert len(world.names()) == 1
    assert find_condition(world.cluster(), "ReplicaFailure") is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"enableInTreeAutoscaling": True}, "enableInTreeAutoscaling needs KubeRay's own operator"),
        ({"head": {"template": {"spec": {}}}}, "headGroupSpec should have at least one container"),
    ],
)
def test_invalid_cluster_gets_an_event_and_no_pods(fields: dict[str, Any], problem: str) -> None:
    world = RayWorld(ray_cluster(**fields))
    assert world.messages("InvalidRayClusterSpec") == [f"The RayCluster spec is invalid team/rc: {problem}"]
    assert world.names() == []


def test_long_name_gets_an_event() -> None:
    cluster = ray_cluster()
    world = RayWorld({**cluster, "metadata": {**cluster["metadata"], "name": "r" * 54}})
    (message,) = world.messages("InvalidRayClusterMetadata")
    assert message.endswith("RayCluster name should be no more than 53 characters")


def test_cluster_managed_elsewhere_is_ignored() -> None:
    assert RayWorld(ray_cluster(managedBy="kueue.x-k8s.io/multikueue")).names() == []
    assert len(RayWorld(ray_cluster(managedBy="ray.io/kuberay-operator")).names()) == 1


def test_nothing_is_written_at_rest() -> None:
    world = ready_world(group(replicas=2))
    before = world.store.revision
    world.run(3600)
    assert world.store.revision == before
