"""Validation of Nodes, Leases, Pods and ProvisioningRequests."""

from typing import Any

import pytest

import make
from batchyard.api.manifests import decode
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

Obj = dict[str, Any]
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def obj(api_version: str, kind: str, namespace: str | None = None, **fields: Any) -> Obj:
    """An object of a kind."""
    return {"apiVersion": api_version, "kind": kind, "metadata": make.metadata("it", namespace), **fields}


NODE = obj(
    "v1",
    "Node",
    spec={"providerID": "gce://p/z/it", "podCIDRs": ["10.0.0.0/24"], "taints": [TAINT]},
    status={"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3920m"}},
)
LEASE = obj("coordination.k8s.io/v1", "Lease", "kube-node-lease", spec={"leaseDurationSeconds": 40})
POD = obj("v1", "Pod", "team", **make.pod_template())
REQUEST = obj(
    "autoscaling.x-k8s.io/v1",
    "ProvisioningRequest",
    "team",
    spec={
        "provisioningClassName": "queued-provisioning.gke.io",
        "parameters": {"maxRunDurationSeconds": "3600"},
        "podSets": [{"count": 2, "podTemplateRef": {"name": "ppt-it-main"}}],
    },
)


@pytest.mark.parametrize("good", [NODE, LEASE, POD, REQUEST], ids=lambda good: str(good["kind"]))
def test_valid_object_is_accepted(good: Obj) -> None:
    decoded = decode(good)
    assert decoded.faults == []
    assert decoded.obj is not None
    assert validate_update(decoded.obj, decoded.obj) == []


@pytest.mark.parametrize(
    ("good", "edits", "start"),
    [
        pytest.param(NODE, {"metadata.name": "A"}, 'metadata.name: Invalid value: "A": a lowercase RFC', id="no name"),
        pytest.param(NODE, {"spec.taints": [TAINT, TAINT]}, "spec.taints[1]: Duplicate value:", id="a taint twice"),
        pytest.param(NODE, {"spec.taints[0].key": "a b"}, 'spec.taints[0].key: Invalid value: "a b"', id="no key"),
        pytest.param(
            NODE,
            {"status.capacity.cpu": "-1"},
            'status.capacity[cpu]: Invalid value: "-1": must be greater than or equal to 0',
            id="negative capacity",
        ),
        pytest.param(POD, {"spec.nodeSelector": {"a": "b c"}}, 'spec.nodeSelector: Invalid value: "b c"', id="a pod"),
        pytest.param(POD, {"spec.containers[0].image": ""}, "spec.containers[0].image: Required value", id="no image"),
    ],
)
def test_invalid_object_is_rejected(good: Obj, edits: Obj, start: str) -> None:
    assert begins(validate(with_edits(good, edits)), start)


@pytest.mark.parametrize(
    ("good", "edits", "path"),
    [
        pytest.param(NODE, {"spec.taints[0].effect": "Never"}, "spec.taints[0].effect", id="no effect"),
        pytest.param(
            LEASE, {"spec.leaseDurationSeconds": 0}, "spec.leaseDurationSeconds", id="a lease of zero duration"
        ),
        pytest.param(REQUEST, {"spec.podSets": []}, "spec.podSets", id="a request without pod sets"),
        pytest.param(
            REQUEST,
            {"spec.podSets": REQUEST["spec"]["podSets"] * 33},
            "spec.podSets",
            id="a request of too many pod sets",
        ),
        pytest.param(REQUEST, {"spec.podSets[0].count": 0}, "spec.podSets[0].count", id="a request of no pods"),
        pytest.param(
            REQUEST, {"spec.parameters": {f"p{i}": "" for i in range(101)}}, "spec.parameters", id="many parameters"
        ),
        pytest.param(REQUEST, {"spec.provisioningClassName": "A b"}, "spec.provisioningClassName", id="no class"),
    ],
)
def test_invalid_structure_is_rejected(good: Obj, edits: Obj, path: str) -> None:
    assert [fault.path for fault in decode(with_edits(good, edits)).faults] == [path]


@pytest.mark.parametrize(
    ("old", "edits", "start"),
    [
        pytest.param(
            NODE,
            {"spec.providerID": "gce://p/z/other"},
            'spec.providerID: Forbidden: node updates may not change providerID except from "" to valid',
            id="the machine of a node",
        ),
        pytest.param(
            NODE, {"spec.podCIDRs": GONE}, "spec.podCIDRs: Forbidden: node updates may not change podCIDR", id="o"
        ),
        pytest.param(
            REQUEST, {"spec.podSets[0].count": 3}, 'spec.podSets: Invalid value: "array": Value is immutable', id="pods"
        ),
        pytest.param(
            REQUEST,
            {"spec.parameters": {}},
            'spec.parameters: Invalid value: "object": Value is immutable',
            id="parameters",
        ),
        pytest.param(
            REQUEST,
            {"spec.provisioningClassName": "a"},
            'spec.provisioningClassName: Invalid value: "string": Value is immutable',
            id="the class",
        ),
    ],
)
def test_immutable_fields_are_rejected_in_update(old: Obj, edits: Obj, start: str) -> None:
    new = with_edits(old, edits)
    assert validate(new) == []
    assert begins(validate_update(new, old), start)


def test_missing_node_fields_may_be_set_in_update() -> None:
    bare = with_edits(NODE, {"spec": {}})
    assert validate_update(NODE, bare) == []


def test_parameters_may_be_added_to_provisioning_request() -> None:
    assert validate_update(REQUEST, with_edits(REQUEST, {"spec.parameters": GONE})) == []


def test_v1beta1_provisioning_request_is_converted_with_warning() -> None:
    decoded = decode({**REQUEST, "apiVersion": "autoscaling.x-k8s.io/v1beta1"})
    assert decoded.obj == REQUEST
    assert decoded.warnings == ["autoscaling.k8s.io/v1beta1 API is deprecated"]
