"""The status of a pod as kubelets write it."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import with_status
from batchyard.kubelet.simulated.pod_status import pod_address, qos_class
from unit.kubelet.simulated.kubelet_make import conditions, delete, kubelet_stage, slow, status
from unit.nodes.node_make import node, pod

SIDECAR = {"name": "proxy", "image": "p", "restartPolicy": "Always"}
SETUP = {"name": "setup", "image": "s"}


def resources(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> Any:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}}


@pytest.mark.parametrize(
    ("containers", "quality"),
    [
        ([{"name": "c"}], "BestEffort"),
        ([resources({"nvidia.com/gpu": "1"})], "BestEffort"),
        ([resources({"cpu": "0"})], "BestEffort"),
        ([resources({"cpu": "1"})], "Burstable"),
        ([resources({"cpu": "1"}, {"cpu": "1"})], "Burstable"),
        ([resources({}, {"cpu": "1", "memory": "1Gi"})], "Guaranteed"),
        ([resources({"cpu": "1000m", "memory": "1Gi"}, {"cpu": "1", "memory": "1024Mi"})], "Guaranteed"),
        ([resources({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"})], "Burstable"),
        ([resources({}, {"cpu": "1", "memory": "1Gi"}), {"name": "d"}], "Burstable"),
    ],
)
def test_qos_class_follows_from_requests_and_limits(containers: list[Any], quality: str) -> None:
    assert qos_class({"containers": containers}) == quality


def test_pod_is_initialized_when_init_containers_are_done() -> None:
    stage = kubelet_stage(pod(initContainers=[SETUP, SIDECAR]), pace=slow(4))
    assert conditions(stage, "Initialized") == [("False", "ContainersNotInitialized")]
    assert [s["state"]["waiting"]["reason"] for s in status(stage)["initContainerStatuses"]] == ["PodInitializing"] * 2
    stage.run(4)
    assert conditions(stage, "Initialized", "Ready") == [("True", "")] * 2
    setup, proxy = status(stage)["initContainerStatuses"]
    assert (setup["state"]["terminated"]["exitCode"], setup["ready"]) == (0, True)
    assert "running" in proxy["state"]


def test_init_containers_stay_terminated_and_sidecars_end_with_pod() -> None:
    stage = kubelet_stage(pod(initContainers=[SETUP, SIDECAR]))
    stage.run(10)
    setup, proxy = status(stage)["initContainerStatuses"]
    assert setup["state"]["terminated"]["finishedAt"] == make.stamp()
    assert proxy["state"]["terminated"]["finishedAt"] == make.stamp(10)


def test_unready_containers_are_named_in_ready_condition() -> None:
    containers = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
    stage = kubelet_stage(pod(initContainers=[SIDECAR], containers=containers), pace=slow(4))
    (message,) = (c["message"] for c in status(stage)["conditions"] if c["type"] == "Ready")
    assert message == "containers with unready status: [proxy a b]"


def test_status_fields_of_other_writers_are_kept() -> None:
    gate = {"type": "example.com/gate", "status": "True", "lastTransitionTime": make.stamp(), "reason": "r"}
    stage = kubelet_stage(with_status(pod(), {"conditions": [gate], "nominatedNodeName": "n"}))
    assert status(stage)["conditions"][0] == gate
    assert status(stage)["nominatedNodeName"] == "n"


def test_condition_has_last_transition_time() -> None:
    stage = kubelet_stage(pod(), pace=slow(4))
    stage.run(14)
    since = {c["type"]: c["lastTransitionTime"] for c in status(stage)["conditions"]}
    assert (since["PodScheduled"], since["Ready"]) == (make.stamp(), make.stamp(14))


def test_host_ip_is_node_address_and_pod_ip_is_derived_from_uid() -> None:
    stage = kubelet_stage()
    addressed = {
        **node("n"),
        "status": {**node("n")["status"], "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}]},
    }
    stage.put(addressed, pod(node="n"), pod("host", node="n", hostNetwork=True))
    assert status(stage)["hostIP"] == "1.2.3.4"
    assert status(stage)["podIP"] == pod_address("uid-pod")
    assert status(stage, "host")["podIPs"] == [{"ip": "1.2.3.4"}]


def test_pod_deleted_during_start_delay_is_removed() -> None:
    stage = kubelet_stage(pod(), pace=slow(4))
    delete(stage)
    assert stage.client.list(scheme.POD) == []
