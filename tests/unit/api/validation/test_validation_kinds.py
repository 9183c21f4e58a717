"""Validation of Kueue's small kinds, and of the Kubernetes kinds that Jobs depend on."""

import base64
from typing import Any

import pytest

import make
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
TOLERATION = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
FLAVOR = make.flavor(labels={"pool": "a"}, nodeTaints=[TAINT], tolerations=[TOLERATION])
HOSTNAME = "kubernetes.io/hostname"


def kueue(kind: str, **spec: Any) -> dict[str, Any]:
    """An object of Kueue."""
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": make.metadata("it", None), "spec": spec}


def core(kind: str, **fields: Any) -> dict[str, Any]:
    """An object of Kubernetes's core group."""
    return {"apiVersion": "v1", "kind": kind, "metadata": make.metadata("it"), **fields}


def topology(*labels: str) -> dict[str, Any]:
    """Return a Topology with these levels."""
    return kueue("Topology", levels=[{"nodeLabel": label} for label in labels])


CHECK = kueue("AdmissionCheck", controllerName="example.com/check")
CONFIG = kueue("MultiKueueConfig", clusters=["a", "b"])
CLUSTER = kueue("MultiKueueCluster", clusterSource={"kubeConfig": {"location": "s", "locationType": "Secret"}})
SERVICE = core("Service", spec={"clusterIP": "None", "selector": {"a": "b"}})
PORTS = core("Service", spec={"ports": [{"name": "web", "port": 80}, {"name": "tls", "port": 443}]})
CONFIG_MAP = core("ConfigMap", data={"a.conf": "x"}, binaryData={"b": "eA=="})
SECRET = core("Secret", data={"password": "eA=="})


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(FLAVOR, id="a flavor"),
        pytest.param(make.flavor(), id="a bare flavor"),
        pytest.param(make.flavor(labels={"pool": "a"}, topologyName="t"), id="a flavor with a topology"),
        pytest.param(make.flavor(tolerations=[{"operator": "Exists"}]), id="tolerating everything"),
        pytest.param(
            make.flavor(
                tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}]
            ),
            id="tolerating for a while",
        ),
        pytest.param(make.local_queue(fairSharing={"weight": "0.5"}), id="a LocalQueue"),
        pytest.param(make.local_queue(fairSharing={"weight": "-1"}), id="a LocalQueue of negative weight"),
        pytest.param(topology("example.com/rack", HOSTNAME), id="a Topology"),
        pytest.param(CHECK, id="an AdmissionCheck"),
        pytest.param(CONFIG, id="a MultiKueueConfig"),
        pytest.param(CLUSTER, id="a MultiKueueCluster"),
        pytest.param(kueue("ProvisioningRequestConfig", provisioningClassName="c"), id="a ProvisioningRequestConfig"),
        pytest.param(make.workload_priority_class("high", 10), id="a WorkloadPriorityClass"),
        pytest.param(make.priority_class("high", 1_000_000_000), id="a PriorityClass"),
        pytest.param(make.priority_class("system-node-critical", 2_000_001_000), id="a class of the system"),
        pytest.param(make.namespace("team-a"), id="a Namespace"),
        pytest.param(SERVICE, id="a headless Service"),
        pytest.param(PORTS, id="a Service with ports"),
        pytest.param(core("Service", spec={"type": "ExternalName", "externalName": "a.b."}), id="an external name"),
        pytest.param(CONFIG_MAP, id="a ConfigMap"),
        pytest.param(SECRET, id="a Secret"),
        pytest.param(core("Secret", type="kubernetes.io/tls", data={"tls.crt": "", "tls.key": ""}), id="a certificate"),
        pytest.param(core("ServiceAccount"), id="a ServiceAccount"),
    ],
)
def test_valid_object_is_accepted(obj: dict[str, Any]) -> None:
    assert validate(obj) == []
    assert validate_update(obj, obj) == []


@pytest.mark.parametrize(
    ("edits", "starts"),
    [
        pytest.param({"spec.nodeLabels": {"a b": ""}}, ['spec.nodeLabels: Invalid value: "a b"'], id="no label"),
        pytest.param(
            {"spec.nodeTaints[0].key": "a b"}, ['spec.nodeTaints[0].key: Invalid value: "a b"'], id="no key of a taint"
        ),
        pytest.param(
            {"spec.nodeTaints[0].value": "a b"}, ['spec.nodeTaints[0].value: Invalid value: "a b"'], id="no value"
        ),
        pytest.param(
            {"spec.nodeTaints[0].effect": "Never"},
            ['spec.nodeTaints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "Pref'],
            id="no effect of a taint",
        ),
        pytest.param(
            {"spec.nodeTaints": [TAINT, {**TAINT, "value": "no"}]},
            ['spec.nodeTaints[1]: Duplicate value: {"key":"gpu"'],
            id="a taint twice",
        ),
        pytest.param(
            {"spec.tolerations[0].operator": "In"},
            ['spec.tolerations[0].operator: Unsupported value: "In": supported values: "Equal", "Exists"'],
            id="no operator",
        ),
        pytest.param(
            {"spec.tolerations[0].key": GONE},
            ['spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty'],
            id="a value without key",
        ),
        pytest.param(
            {"spec.tolerations[0].operator": "Exists"},
            ['spec.tolerations[0].operator: Invalid value: "Exists": value must be empty when `operator` is'],
            id="Exists with a value",
        ),
        pytest.param(
            {"spec.tolerations[0].key": "a b"}, ['spec.tolerations[0].key: Invalid value: "a b"'], id="no key"
        ),
        pytest.param(
            {"spec.tolerations[0].value": "a b"},
            ['spec.tolerations[0].value: Invalid value: "a b"'],
            id="no value of it",
        ),
        pytest.param(
            {"spec.tolerations[0].effect": "Never"},
            ['spec.tolerations[0].effect: Unsupported value: "Never"'],
            id="no effect",
        ),
        pytest.param(
            {"spec.tolerations[0].tolerationSeconds": 9},
            ["spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when"],
            id="tolerationSeconds with NoSchedule",
        ),
        pytest.param(
            {"spec.nodeLabels": GONE, "spec.topologyName": "t"},
            ['spec: Invalid value: "object": at least one nodeLabel is required when topology is set'],
            id="a topology of no nodes",
        ),
    ],
)
def test_invalid_flavor_is_rejected(edits: dict[str, Any], starts: list[str]) -> None:
    assert begins(validate(with_edits(FLAVOR, edits)), *starts)


@pytest.mark.parametrize(
    ("obj", "start"),
    [
        pytest.param(topology("a", "a"), 'spec.levels: Invalid value: "array": must be unique', id="a level twice"),
        pytest.param(
            topology(HOSTNAME, "a"),
            'spec.levels: Invalid value: "array": the kubernetes.io/hostname label can only be used at the',
            id="hosts above racks",
        ),
        pytest.param(topology("a b"), 'spec.levels[0].nodeLabel: Invalid value: "a b"', id="no label of a level"),
        pytest.param(
            with_edits(CONFIG, {"spec.clusters": ["a", "a"]}),
            'spec.clusters: Invalid value: "array": must be unique',
            id="a cluster twice",
        ),
        pytest.param(
            with_edits(CLUSTER, {"spec.clusterSource": {}}),
            'spec.clusterSource: Invalid value: "object": exactly one of the fields in [kubeConfig clusterProfileRef]',
            id="no way to a cluster",
        ),
        pytest.param(
            with_edits(CLUSTER, {"spec.clusterSource.clusterProfileRef": {"name": "p"}}),
            'spec.clusterSource: Invalid value: "object": exactly one of the fields in [kubeConfig clusterProfileRef]',
            id="two ways to a cluster",
        ),
        pytest.param(
            make.priority_class("high", 1_000_000_001),
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
            id="too high a priority",
        ),
        pytest.param(
            make.priority_class("system-mine", 1),
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. "
            "error: system-mine is not a known system priority class",
            id="a name of the system",
        ),
        pytest.param(
            make.priority_class("system-node-critical", 1),
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. "
            "error: value of system-node-critical PriorityClass must be 2000001000",
            id="another value for a class of the system",
        ),
        pytest.param(
            make.priority_class("system-node-critical", 2_000_001_000, is_default=True),
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. "
            "error: globalDefault of system-node-critical PriorityClass must be false",
            id="a class of the system as global default",
        ),
        pytest.param(
            {**make.priority_class("high", 1), "preemptionPolicy": "Always"},
            'preemptionPolicy: Unsupported value: "Always": supported values: "PreemptLowerPriority", "Never"',
            id="no preemption policy",
        ),
        pytest.param(make.namespace("a.b"), 'metadata.name: Invalid value: "a.b": a lowercase', id="no Namespace"),
        pytest.param(
            {**make.namespace(), "spec": {"finalizers": ["x/a b"]}},
            'spec.finalizers[0]: Invalid value: "x/a b"',
            id="no finalizer of a Namespace",
        ),
    ],
)
def test_invalid_object_is_rejected(obj: dict[str, Any], start: str) -> None:
    assert begins(validate(obj), start)


@pytest.mark.parametrize(
    ("obj", "edits", "start"),
    [
        pytest.param(SERVICE, {"metadata.name": "1a"}, 'metadata.name: Invalid value: "1a": a DNS-1035', id="no name"),
        pytest.param(SERVICE, {"spec.clusterIP": GONE}, "spec.ports: Required value", id="no ports"),
        pytest.param(SERVICE, {"spec.type": "Any"}, 'spec.type: Unsupported value: "Any"', id="no type"),
        pytest.param(SERVICE, {"spec.selector": {"a": "b c"}}, 'spec.selector: Invalid value: "b c"', id="no selector"),
        pytest.param(
            SERVICE, {"spec.sessionAffinity": "Any"}, 'spec.sessionAffinity: Unsupported value: "Any"', id="no affinity"
        ),
        pytest.param(PORTS, {"spec.ports[0].name": GONE}, "spec.ports[0].name: Required value", id="no name of a port"),
        pytest.param(
            PORTS, {"spec.ports[1].name": "web"}, 'spec.ports[1].name: Duplicate value: "web"', id="a name twice"
        ),
        pytest.param(PORTS, {"spec.ports[0].name": "A"}, 'spec.ports[0].name: Invalid value: "A"', id="a bad name"),
        pytest.param(
            PORTS,
            {"spec.ports[0].port": 0},
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            id="no port",
        ),
        pytest.param(
            PORTS, {"spec.ports[0].protocol": "X"}, 'spec.ports[0].protocol: Unsupported value: "X"', id="no protocol"
        ),
        pytest.param(PORTS, {"spec.ports[1].port": 80}, "spec.ports[1]: Duplicate value: {", id="a port twice"),
        pytest.param(
            SERVICE, {"spec": {"type": "ExternalName"}}, "spec.externalName: Required value", id="no external name"
        ),
        pytest.param(
            SERVICE,
            {"spec": {"type": "ExternalName", "externalName": "A"}},
            'spec.externalName: Invalid value: "A"',
            id="a bad external name",
        ),
        pytest.param(
            SERVICE,
            {"spec": {"type": "ExternalName", "externalName": "a", "clusterIP": "10.0.0.1"}},
            "spec.clusterIP: Forbidden: may not be set when `type` is 'ExternalName'",
            id="an external name with an address",
        ),
    ],
)
def test_invalid_service_is_rejected(obj: dict[str, Any], edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(obj, edits)), start)


@pytest.mark.parametrize(
    ("obj", "edits", "starts"),
    [
        pytest.param(
            CONFIG_MAP, {"data": {"a/b": ""}}, ['data[a/b]: Invalid value: "a/b": a valid config'], id="a key"
        ),
        pytest.param(
            CONFIG_MAP,
            {"data.b": "x"},
            ['data[b]: Invalid value: "b": duplicate of key present in binaryData'],
            id="a key in both",
        ),
        pytest.param(
            CONFIG_MAP,
            {"data.a": "x" * 2**20},
            [": Too long: may not be more than 1048576 bytes"],
            id="a large ConfigMap",
        ),
        pytest.param(SECRET, {"data": {"..": ""}}, ["data[..]: Invalid value"], id="a key of a Secret"),
        pytest.param(
            SECRET,
            {"type": "kubernetes.io/tls"},
            ["data[tls.crt]: Required value", "data[tls.key]: Required value"],
            id="no certificate",
        ),
        pytest.param(
            SECRET,
            {"type": "kubernetes.io/basic-auth", "data": {}},
            ["data[username]: Required value", "data[password]: Required value"],
            id="neither name nor password",
        ),
        pytest.param(
            SECRET,
            {"type": "kubernetes.io/service-account-token"},
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            id="a token without service account",
        ),
    ],
)
def test_invalid_config_map_or_secret_is_rejected(
    obj: dict[str, Any], edits: dict[str, Any], starts: list[str]
) -> None:
    assert begins(validate(with_edits(obj, edits)), *starts)


@pytest.mark.parametrize(
    ("old", "edits", "start"),
    [
        pytest.param(
            make.local_queue(),
            {"spec.clusterQueue": "other"},
            'spec.clusterQueue: Invalid value: "string": field is immutable',
            id="the ClusterQueue of a LocalQueue",
        ),
        pytest.param(
            make.flavor(labels={"a": "b"}, topologyName="t"),
            {"spec.topologyName": "u"},
            'spec: Invalid value: "object": topologyName is immutable when topologyName is set',
            id="the topology of a flavor",
        ),
        pytest.param(
            make.flavor(labels={"a": "b"}, topologyName="t"),
            {"spec.topologyName": GONE},
            'spec: Invalid value: "object": topologyName is immutable when topologyName is set',
            id="removing the topology",
        ),
        pytest.param(
            topology("a", "b"),
            {"spec.levels[1].nodeLabel": HOSTNAME},
            'spec.levels: Invalid value: "array": levels are mutable only when kubernetes.io/hostname is the lowest',
            id="the levels of a Topology",
        ),
        pytest.param(
            CHECK,
            {"spec.controllerName": "example.com/other"},
            'spec.controllerName: Invalid value: "string": field is immutable',
            id="the controller of an AdmissionCheck",
        ),
        pytest.param(
            make.priority_class("high", 1),
            {"value": 2},
            "value: Forbidden: may not be changed in an update.",
            id="value",
        ),
        pytest.param(
            make.priority_class("high", 1),
            {"preemptionPolicy": "Never"},
            'preemptionPolicy: Invalid value: "Never": field is immutable',
            id="the preemption policy of a class",
        ),
        pytest.param(
            with_edits(PORTS, {"spec.clusterIP": "10.0.0.1"}),
            {"spec.clusterIP": "10.0.0.2"},
            'spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set',
            id="the address of a Service",
        ),
        pytest.param(SECRET, {"type": "a"}, 'type: Invalid value: "a": field is immutable', id="the type of a Secret"),
        pytest.param(
            with_edits(SECRET, {"immutable": True}),
            {"data": {}},
            "data: Forbidden: field is immutable when `immutable` is set",
            id="an immutable Secret",
        ),
        pytest.param(
            with_edits(CONFIG_MAP, {"immutable": True}),
            {"immutable": False},
            "immutable: Forbidden: field is immutable when `immutable` is set",
            id="that a ConfigMap is immutable",
        ),
    ],
)
def test_immutable_fields_are_rejected_in_update(old: dict[str, Any], edits: dict[str, Any], start: str) -> None:
    new = with_edits(old, edits)
    assert validate(new) == []
    assert begins(validate_update(new, old), start)


@pytest.mark.parametrize(
    ("old", "edits"),
    [
        pytest.param(make.flavor(labels={"a": "b"}), {"spec.topologyName": "t"}, id="a flavor gets a topology"),
        pytest.param(topology("a", HOSTNAME), {"spec.levels[0].nodeLabel": "b"}, id="levels above hosts change"),
        pytest.param(
            make.workload_priority_class("a", 1), {"value": 2}, id="a WorkloadPriorityClass gets another value"
        ),
        pytest.param(make.local_queue(), {"spec.stopPolicy": "Hold"}, id="a LocalQueue is stopped"),
        pytest.param(CONFIG_MAP, {"data": {}, "immutable": True}, id="a ConfigMap changes for the last time"),
    ],
)
def test_mutable_fields_are_accepted_in_update(old: dict[str, Any], edits: dict[str, Any]) -> None:
    assert validate_update(with_edits(old, edits), old) == []


def test_config_map_size_counts_decoded_binary_data() -> None:
    whole = base64.b64encode(bytes(2**20 - 1)).decode()
    assert validate(with_edits(CONFIG_MAP, {"binaryData": {"b": whole}, "data": {"a": "x"}})) == []
    assert begins(validate(with_edits(CONFIG_MAP, {"binaryData": {"b": whole}, "data": {"a": "xx"}})), ": Too long")
