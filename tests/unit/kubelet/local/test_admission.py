"""The pods that a kubelet admits."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.kubelet.local.node import GPU
from batchyard.kubelet.local.run_requests import KubeletRejection, allocate_or_reject, find_rejection
from unit.kubelet.local.local_make import container, pod

ALLOCATABLE = {"cpu": "2", "memory": "1Gi", "pods": "3", "ephemeral-storage": "10Gi", GPU: "2"}


def node(**fields: Any) -> Obj:
    """A node with some room."""
    labels = {"zone": "a", **fields.pop("labels", {})}
    status = {"allocatable": ALLOCATABLE, **fields.pop("status", {})}
    metadata = make.metadata("node", None, labels=labels)
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": fields, "status": status}


def requesting_pod(name: str = "pod", requests: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    """A pod with these requests."""
    only = container(resources={"requests": requests or {}}, ports=spec.pop("ports", []))
    return {**pod(only, **spec), "metadata": make.metadata(name, labels=spec.pop("labels", None))}


def rejection(of: Obj, *others: Obj, at: Obj | None = None) -> tuple[str, str] | None:
    result = find_rejection(of, at or node(), others)
    return None if result is None else (result.reason, result.message)


def test_pod_that_fits_is_admitted() -> None:
    others = [requesting_pod("a", {"cpu": "1"}), requesting_pod("b", {"memory": "512Mi"})]
    assert rejection(requesting_pod(requests={"cpu": "1", "memory": "512Mi", GPU: "2"}), *others) is None


@pytest.mark.parametrize(
    ("resource", "amount", "numbers"),
    [
        ("cpu", "1001m", "requested: 1001, used: 1000, capacity: 2000"),
        ("memory", "1Gi", "requested: 1073741824, used: 1024, capacity: 1073741824"),
        ("ephemeral-storage", "11Gi", "requested: 11811160064, used: 0, capacity: 10737418240"),
        (GPU, "2", "requested: 2, used: 1, capacity: 2"),
    ],
)
def test_pod_that_exceeds_free_resources_is_rejected(resource: str, amount: str, numbers: str) -> None:
    other = requesting_pod("other", {"cpu": "1", "memory": "1Ki", GPU: "1"})
    reported = f"Node didn't have enough resource: {resource}, {numbers}"
    assert rejection(requesting_pod(requests={resource: amount}), other) == (f"OutOf{resource}", reported)


def test_pod_over_pod_limit_is_rejected() -> None:
    reported = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    others = [requesting_pod(name) for name in "abc"]
    assert rejection(requesting_pod(requests={"cpu": "9"}), *others) == ("OutOfpods", reported)


def test_unknown_extended_resource_is_ignored() -> None:
    assert rejection(requesting_pod(requests={"example.com/license": "1"})) is None
    assert rejection(requesting_pod(requests={"hugepages-2Mi": "2Mi"})) is not None


@pytest.mark.parametrize(
    ("spec", "rule", "why"),
    [
        ({"nodeSelector": {"zone": "b"}}, "NodeAffinity", "node(s) didn't match Pod's node affinity/selector"),
        ({"nodeName": "other"}, "NodeName", "node(s) didn't match the requested node name"),
        (
            {"hostNetwork": True, "ports": [{"containerPort": 80, "hostPort": 80}]},
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ),
        ({"tolerations": []}, "TaintToleration", "node(s) had taints that the pod didn't tolerate"),
    ],
)
def test_pod_that_does_not_match_node_is_rejected(spec: dict[str, Any], rule: str, why: str) -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    other = requesting_pod("other", ports=[{"containerPort": 80, "hostPort": 80}])
    tolerant = {"tolerations": [{"key": "b", "operator": "Exists"}], **spec}
    result = rejection(requesting_pod(**tolerant), other, at=node(taints=taints))
    assert result == (rule, f"Predicate {rule} failed: {why}")


def test_pod_of_other_operating_system_is_rejected() -> None:
    assert rejection(requesting_pod(os={"name": "windows"})) == (
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
    )
    labeled = requesting_pod(labels={"kubernetes.io/os": "windows"})
    result = rejection(labeled)
    assert result is not None
    assert result[0] == "PodOSSelectorNodeLabelDoesNotMatch"


def test_strict_supplemental_groups_require_node_feature() -> None:
    strict = requesting_pod(securityContext={"supplementalGroupsPolicy": "Strict"})
    assert rejection(strict) == (
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    )
    assert rejection(strict, at=node(status={"features": {"supplementalGroupsPolicy": True}})) is None


def test_rejection_status_has_reason_and_message() -> None:
    assert KubeletRejection("OutOfcpu", "why").status == {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: why",
    }


def test_pod_is_rejected_when_devices_are_unavailable() -> None:
    of = pod(container(resources={"limits": {GPU: "2"}}))
    assert allocate_or_reject(of, GPU, [0, 1], {}) == {"main": [0, 1]}
    result = allocate_or_reject(of, GPU, [0, 1], {"other": {"c": [1]}})
    short = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
    assert result == KubeletRejection(
        "UnexpectedAdmissionError", f"Allocate failed due to {short}, which is unexpected"
    )
