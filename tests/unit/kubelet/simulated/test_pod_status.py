"""The status of a pod as kubelets write it."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import with_status
from batchyard.kubelet.simulated.pod_status import pod_address, qos_class
from unit.kubelet.simulated.kubelet_make import conditions, delete, slow, started, status
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
def test_the_quality_of_service_follows_from_requests_and_limits(containers: list[Any], quality: str) -> None:
    assert qos_class({"containers": containers}) == quality


def test_a_pod_is_initialized_when_its_first_containers_are_done() -> None:
    stage = started(pod(initContainers=[SETUP, SIDECAR]), pace=slow(4))
    assert conditions(stage, "Initialized") == [("False", "ContainersNotInitialized")]
    assert [s["state"]["waiting"]["reason"] for s in status(stage)["initContainerStatuses"]] == ["PodInitializing"] * 2
    stage.run(4)
    assert conditions(stage, "Initialized", "Ready") == [("True", "")] * 2
    setup, proxy = status(stage)["initContainerStatuses"]
    assert (setup["state"]["terminated"]["exitCode"], setup["ready"]) == (0, True)
    assert "running" in proxy["state"]


def test_first_containers_stay_done_and_sidecars_end_with_the_pod() -> None:
    stage = started(pod(initContainers=[SETUP, SIDECAR]))
    stage.run(10)
    setup, proxy = status(stage)["initContainerStatuses"]
    assert setup["state"]["terminated"]["finishedAt"] == make.stamp()
    assert proxy["state"]["terminated"]["finishedAt"] == make.stamp(10)


def test_what_is_not_ready_is_named() -> None:
    containers = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
    stage = started(pod(initContainers=[SIDECAR], containers=containers), pace=slow(4))
    (message,) = (c["message"] for c in status(stage)["conditions"] if c["type"] == "Ready")
    assert message == "containers with unready status: [proxy a b]"


def test_words_of_others_stay_in_the_status() -> None:
    gate = {"type": "example.com/gate", "status": "True", "lastTransitionTime": make.stamp(), "reason": "r"}
    stage = started(with_status(pod(), {"conditions": [gate], "nominatedNodeName": "n"}))
    assert status(stage)["conditions"][0] == gate
    assert status(stage)["nominatedNodeName"] == "n"


def test_a_condition_tells_since_when_it_holds() -> None:
    stage = started(pod(), pace=slow(4))
    stage.run(14)
    since = {c["type"]: c["lastTransitionTime"] for c in status(stage)["conditions"]}
    assert (since["PodScheduled"], since["Ready"]) == (make.stamp(), make.stamp(14))


def test_addresses_are_those_of_the_node_and_made_from_the_uid() -> None:
    stage = started()
    addressed = {
        **node("n"),
        "status": {**node("n")["status"], "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}]},
    }
    stage.put(addressed, pod(node="n"), pod("host", node="n", hostNetwork=True))
    assert status(stage)["hostIP"] == "1.2.3.4"
    assert status(stage)["podIP"] == pod_address("uid-pod")
    assert status(stage, "host")["podIPs"] == [{"ip": "1.2.3.4"}]


def test_a_deleted_pod_is_written_nothing_more_about_than_its_end() -> None:
    stage = started(pod(), pace=slow(4))
    delete(stage)
    assert stage.client.list(scheme.POD) == []
