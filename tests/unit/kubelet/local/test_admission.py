"""Which pods a kubelet takes."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.kubelet.local.node import GPU
from batchyard.kubelet.local.run_requests import KubeletRejection, allocate, find_rejection
from unit.kubelet.local.local_make import container, pod

ALLOCATABLE = {"cpu": "2", "memory": "1Gi", "pods": "3", "ephemeral-storage": "10Gi", GPU: "2"}


def node(**fields: Any) -> Obj:
    """A node with some room."""
    labels = {"zone": "a", **fields.pop("labels", {})}
    status = {"allocatable": ALLOCATABLE, **fields.pop("status", {})}
    metadata = make.metadata("node", None, labels=labels)
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": fields, "status": status}


def asking(name: str = "pod", requests: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    """A pod that requests this."""
    only = container(resources={"requests": requests or {}}, ports=spec.pop("ports", []))
    return {**pod(only, **spec), "metadata": make.metadata(name, labels=spec.pop("labels", None))}


def refusal(of: Obj, *others: Obj, at: Obj | None = None) -> tuple[str, str] | None:
    found = find_rejection(of, at or node(), others)
    return None if found is None else (found.reason, found.message)


def test_who_fits_is_taken() -> None:
    others = [asking("a", {"cpu": "1"}), asking("b", {"memory": "512Mi"})]
    assert refusal(asking(requests={"cpu": "1", "memory": "512Mi", GPU: "2"}), *others) is None


@pytest.mark.parametrize(
    ("resource", "amount", "numbers"),
    [
        ("cpu", "1001m", "requested: 1001, used: 1000, capacity: 2000"),
        ("memory", "1Gi", "requested: 1073741824, used: 1024, capacity: 1073741824"),
        ("ephemeral-storage", "11Gi", "requested: 11811160064, used: 0, capacity: 10737418240"),
        (GPU, "2", "requested: 2, used: 1, capacity: 2"),
    ],
)
def test_who_does_not_fit_what_is_left_is_refused(resource: str, amount: str, numbers: str) -> None:
    other = asking("other", {"cpu": "1", "memory": "1Ki", GPU: "1"})
    reported = f"Node didn't have enough resource: {resource}, {numbers}"
    assert refusal(asking(requests={resource: amount}), other) == (f"OutOf{resource}", reported)


def test_there_may_be_so_many_pods() -> None:
    reported = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    others = [asking(name) for name in "abc"]
    assert refusal(asking(requests={"cpu": "9"}), *others) == ("OutOfpods", reported)


def test_what_the_node_does_not_know_of_others_making_is_not_its_business() -> None:
    assert refusal(asking(requests={"example.com/license": "1"})) is None
    assert refusal(asking(requests={"hugepages-2Mi": "2Mi"})) is not None


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
def test_who_may_not_be_there_is_refused(spec: dict[str, Any], rule: str, why: str) -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    other = asking("other", ports=[{"containerPort": 80, "hostPort": 80}])
    tolerant = {"tolerations": [{"key": "b", "operator": "Exists"}], **spec}
    found = refusal(asking(**tolerant), other, at=node(taints=taints))
    assert found == (rule, f"Predicate {rule} failed: {why}")


def test_pods_of_other_systems_are_refused() -> None:
    assert refusal(asking(os={"name": "windows"})) == (
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
    )
    labelled = asking(labels={"kubernetes.io/os": "windows"})
    found = refusal(labelled)
    assert found is not None
    assert found[0] == "PodOSSelectorNodeLabelDoesNotMatch"


def test_strict_groups_are_for_nodes_that_can() -> None:
    strict = asking(securityContext={"supplementalGroupsPolicy": "Strict"})
    assert refusal(strict) == (
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    )
    assert refusal(strict, at=node(status={"features": {"supplementalGroupsPolicy": True}})) is None


def test_a_refusal_is_told_in_the_status() -> None:
    assert KubeletRejection("OutOfcpu", "why").status == {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: why",
    }


def test_who_cannot_have_its_devices_is_refused() -> None:
    of = pod(container(resources={"limits": {GPU: "2"}}))
    assert allocate(of, GPU, [0, 1], {}) == {"main": [0, 1]}
    found = allocate(of, GPU, [0, 1], {"other": {"c": [1]}})
    short = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
    assert found == KubeletRejection("UnexpectedAdmissionError", f"Allocate failed due to {short}, which is unexpected")
