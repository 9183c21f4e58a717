"""Validation of pod templates."""

from typing import Any

import pytest

import make
from batchyard.api.validation import validate
from object_edits import GONE, begins, with_edits

SPEC = "template.spec"
MAIN = f"{SPEC}.containers[0]"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODES = f"{SPEC}.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
POD: make.Obj = {
    "apiVersion": "v1",
    "kind": "PodTemplate",
    "metadata": make.metadata("it"),
    "template": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "ports": [{"name": "web", "containerPort": 80}],
                    "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                    "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": 1}},
                    "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                }
            ],
        },
    },
}


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({}, id="as it is"),
        pytest.param({f"{SPEC}.initContainers": [{"name": "first", "image": "i"}]}, id="a container at the start"),
        pytest.param({f"{MAIN}.resources": GONE}, id="no resources"),
        pytest.param({f"{MAIN}.resources": {"requests": {"example.kubernetes.io/x": "1"}}}, id="a native resource"),
        pytest.param(
            {f"{MAIN}.resources": {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}}, id="huge pages beside memory"
        ),
        pytest.param({f"{SPEC}.tolerations": [{"operator": "Exists"}]}, id="a toleration"),
        pytest.param({f"{SPEC}.schedulingGates": [{"name": "a.io/b"}]}, id="a gate"),
        pytest.param({f"{SPEC}.restartPolicy": "Always"}, id="a pod that restarts"),
        pytest.param(
            {NODES: [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}]}, id="node affinity"
        ),
        pytest.param(
            {f"{SPEC}.affinity.podAffinity.{REQUIRED}": [{"topologyKey": "zone", "labelSelector": {}}]},
            id="pod affinity",
        ),
        pytest.param(
            {
                f"{SPEC}.topologySpreadConstraints": [
                    {"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
                ]
            },
            id="spreading",
        ),
    ],
)
def test_valid_pod_template_is_accepted(edits: dict[str, Any]) -> None:
    assert validate(with_edits(POD, edits)) == []


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param({f"{SPEC}.containers": []}, f"{SPEC}.containers: Required value", id="no containers"),
        pytest.param({f"{MAIN}.name": GONE}, f"{MAIN}.name: Required value", id="no name"),
        pytest.param({f"{MAIN}.name": "A"}, f'{MAIN}.name: Invalid value: "A": a lowercase RFC 1123', id="a bad name"),
        pytest.param(
            {f"{SPEC}.initContainers": [{"name": "main", "image": "i"}]},
            f'{SPEC}.initContainers[0].name: Duplicate value: "main"',
            id="a name twice",
        ),
        pytest.param({f"{MAIN}.image": ""}, f"{MAIN}.image: Required value", id="no image"),
        pytest.param(
            {f"{MAIN}.image": " i"},
            f'{MAIN}.image: Invalid value: " i": must not have leading or trailing whitespace',
            id="an image with a space",
        ),
        pytest.param(
            {f"{MAIN}.imagePullPolicy": "X"}, f'{MAIN}.imagePullPolicy: Unsupported value: "X"', id="no pull policy"
        ),
        pytest.param(
            {f"{MAIN}.ports[0].containerPort": 70000},
            f"{MAIN}.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535",
            id="no port",
        ),
        pytest.param(
            {f"{MAIN}.ports[0].protocol": "X"}, f'{MAIN}.ports[0].protocol: Unsupported value: "X"', id="no protocol"
        ),
        pytest.param(
            {f"{MAIN}.ports": [{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]},
            f'{MAIN}.ports[1].name: Duplicate value: "a"',
            id="a name of ports twice",
        ),
        pytest.param({f"{MAIN}.env[0].name": ""}, f"{MAIN}.env[0].name: Required value", id="a variable without name"),
        pytest.param({f"{MAIN}.env[0].name": "A=B"}, f'{MAIN}.env[0].name: Invalid value: "A=B"', id="no variable"),
        pytest.param(
            {f"{MAIN}.env[1].valueFrom": {}},
            f'{MAIN}.env[1].valueFrom: Invalid value: "": must specify one of',
            id="a value without source",
        ),
        pytest.param(
            {f"{MAIN}.env[1].value": "x"},
            f'{MAIN}.env[1].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
            id="two values",
        ),
        pytest.param(
            {f"{MAIN}.env[1].valueFrom.secretKeyRef": {}},
            f'{MAIN}.env[1].valueFrom: Invalid value: "": may not have more than one field specified at a time',
            id="a value from two sources",
        ),
        pytest.param({f"{MAIN}.volumeMounts[0].name": ""}, f"{MAIN}.volumeMounts[0].name: Required", id="no mount"),
        pytest.param(
            {f"{MAIN}.volumeMounts[0].name": "x"},
            f'{MAIN}.volumeMounts[0].name: Not found: "x"',
            id="a mount of a missing volume",
        ),
        pytest.param(
            {f"{MAIN}.volumeMounts[0].mountPath": ""},
            f"{MAIN}.volumeMounts[0].mountPath: Required value",
            id="a mount without path",
        ),
        pytest.param(
            {f"{MAIN}.volumeMounts": [{"name": "scratch", "mountPath": "/a"}, {"name": "scratch", "mountPath": "/a"}]},
            f'{MAIN}.volumeMounts[1].mountPath: Invalid value: "/a": must be unique',
            id="two mounts at the same path",
        ),
        pytest.param(
            {f"{MAIN}.volumeMounts[0].subPath": "a", f"{MAIN}.volumeMounts[0].subPathExpr": "b"},
            f'{MAIN}.volumeMounts[0].subPathExpr: Invalid value: "b": subPathExpr and subPath are mutually exclusive',
            id="two paths of a mount",
        ),
    ],
)
def test_invalid_container_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(POD, edits)), start)


RESOURCES = f"{MAIN}.resources"


@pytest.mark.parametrize(
    ("resources", "start"),
    [
        pytest.param(
            {"requests": {"cpu": "3"}, "limits": {"cpu": "2"}},
            f'{RESOURCES}.requests: Invalid value: "3": must be less than or equal to cpu limit of 2',
            id="a request above its limit",
        ),
        pytest.param(
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
            f'{RESOURCES}.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2',
            id="part of a limit on devices",
        ),
        pytest.param(
            {"requests": {"nvidia.com/gpu": 1}},
            f"{RESOURCES}.limits: Required value: Limit must be set for non overcommitable resources",
            id="devices without limit",
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpu": "500m"}},
            f'{RESOURCES}.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
            id="half a device",
        ),
        pytest.param(
            {"requests": {"cpu": "-1"}},
            f'{RESOURCES}.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative request",
        ),
        pytest.param(
            {"requests": {"gpu": 1}},
            f'{RESOURCES}.requests[gpu]: Invalid value: "gpu": must be a standard resource for containers',
            id="no resource of containers",
        ),
        pytest.param(
            {"requests": {"a b": 1}}, f'{RESOURCES}.requests[a b]: Invalid value: "a b": name part', id="no resource"
        ),
        pytest.param(
            {"requests": {"cpu": 1}, "limits": {"requests.a.io/b": 1}},
            f"{RESOURCES}.limits[requests.a.io/b]: "
            'Invalid value: "requests.a.io/b": doesn\'t follow extended resource name standard',
            id="a name of quotas",
        ),
        pytest.param(
            {"limits": {"hugepages-2Mi": "4Mi"}},
            f"{RESOURCES}: Forbidden: HugePages require cpu or memory",
            id="huge pages alone",
        ),
    ],
)
def test_invalid_resources_are_rejected(resources: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(POD, {RESOURCES: resources})), start)


@pytest.mark.parametrize(
    ("edits", "starts"),
    [
        pytest.param({"template.metadata.labels": {"a b": ""}}, ["template.metadata.labels: Invalid"], id="labels"),
        pytest.param(
            {"template.metadata.annotations": {"a b": ""}}, ["template.metadata.annotations: Invalid"], id="annotations"
        ),
        pytest.param(
            {f"{SPEC}.volumes[0]": {"name": "scratch"}},
            [f"{SPEC}.volumes[0]: Required value: must specify a volume type"],
            id="a volume without type",
        ),
        pytest.param(
            {f"{SPEC}.volumes[0].hostPath": {"path": "/"}},
            [f"{SPEC}.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
            id="a volume of two types",
        ),
        pytest.param(
            {f"{SPEC}.volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "scratch", "emptyDir": {}}]},
            [f'{SPEC}.volumes[1].name: Duplicate value: "scratch"'],
            id="a volume twice",
        ),
        pytest.param(
            {f"{SPEC}.volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "A", "emptyDir": {}}]},
            [f'{SPEC}.volumes[1].name: Invalid value: "A"'],
            id="no name of a volume",
        ),
        pytest.param(
            {f"{SPEC}.volumes": [{"name": "scratch", "emptyDir": {}}, {"emptyDir": {}}]},
            [f"{SPEC}.volumes[1].name: Required value"],
            id="a volume without name",
        ),
        pytest.param({f"{SPEC}.nodeSelector": {"a": "b c"}}, [f"{SPEC}.nodeSelector: Invalid value"], id="selector"),
        pytest.param(
            {f"{SPEC}.tolerations": [{"key": "a", "operator": "In"}]},
            [f'{SPEC}.tolerations[0].operator: Unsupported value: "In"'],
            id="tolerations",
        ),
        pytest.param(
            {f"{SPEC}.schedulingGates": [{"name": "a"}, {"name": "a"}, {"name": "a b"}]},
            [f'{SPEC}.schedulingGates[1]: Duplicate value: "a"', f'{SPEC}.schedulingGates[2]: Invalid value: "a b"'],
            id="gates",
        ),
        pytest.param({f"{SPEC}.restartPolicy": "X"}, [f"{SPEC}.restartPolicy: Unsupported value"], id="no policy"),
        pytest.param(
            {f"{SPEC}.activeDeadlineSeconds": 0},
            [f"{SPEC}.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
            id="no time",
        ),
        pytest.param(
            {f"{SPEC}.terminationGracePeriodSeconds": -1},
            [f"{SPEC}.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0"],
            id="negative grace period",
        ),
        pytest.param({f"{SPEC}.hostname": "a.b"}, [f'{SPEC}.hostname: Invalid value: "a.b"'], id="no host name"),
        pytest.param(
            {f"{SPEC}.priorityClassName": "A"}, [f'{SPEC}.priorityClassName: Invalid value: "A"'], id="no class"
        ),
    ],
)
def test_invalid_pod_template_is_rejected(edits: dict[str, Any], starts: list[str]) -> None:
    assert begins(validate(with_edits(POD, edits)), *starts)


def expression(operator: str, *values: str, key: str = "a") -> dict[str, Any]:
    """Return a node selector term with a single expression."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "start"),
    [
        pytest.param(
            expression("In"),
            "matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            id="In without values",
        ),
        pytest.param(
            expression("Exists", "x"),
            "matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists'",
            id="Exists with values",
        ),
        pytest.param(
            expression("Gt", "1", "2"),
            "matchExpressions[0].values: Required value: must be specified single value when `operator`",
            id="Gt with two values",
        ),
        pytest.param(
            expression("Like", "x"),
            'matchExpressions[0].operator: Invalid value: "Like": not a valid selector operator',
            id="no operator",
        ),
        pytest.param(
            expression("Exists", key="a b"), 'matchExpressions[0].key: Invalid value: "a b": name part', id="no key"
        ),
        pytest.param(
            {"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]},
            'matchFields[0].key: Invalid value: "spec.x": not a valid field selector key',
            id="no field of nodes",
        ),
        pytest.param(
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": []}]},
            "matchFields[0].values: Required value: must be only one value",
            id="no node",
        ),
    ],
)
def test_invalid_node_affinity_term_is_rejected(term: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(POD, {NODES: [term]})), f"{NODES}[0].{start}")


@pytest.mark.parametrize(
    ("edits", "starts"),
    [
        pytest.param({NODES: []}, [f"{NODES}: Required value: must have at least one node selector term"], id="none"),
        pytest.param(
            {f"{SPEC}.affinity.nodeAffinity.{PREFERRED}": [{"weight": 0, "preference": {}}]},
            [f"{SPEC}.affinity.nodeAffinity.{PREFERRED}[0].weight: Invalid value: 0: must be in the range 1-100"],
            id="a preference of no weight",
        ),
        pytest.param(
            {f"{SPEC}.affinity.podAffinity.{REQUIRED}": [{}]},
            [f"{SPEC}.affinity.podAffinity.{REQUIRED}[0].topologyKey: Required value: can not be empty"],
            id="affinity without topology key",
        ),
        pytest.param(
            {
                f"{SPEC}.affinity.podAntiAffinity.{PREFERRED}": [
                    {"weight": 101, "podAffinityTerm": {"topologyKey": "-"}}
                ]
            },
            [
                f"{SPEC}.affinity.podAntiAffinity.{PREFERRED}[0].weight: Invalid value: 101",
                f"{SPEC}.affinity.podAntiAffinity.{PREFERRED}[0].podAffinityTerm.topologyKey: Invalid value",
            ],
            id="invalid anti-affinity",
        ),
        pytest.param(
            {f"{SPEC}.topologySpreadConstraints": [{"maxSkew": 0, "whenUnsatisfiable": "Never"}]},
            [
                f"{SPEC}.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                f"{SPEC}.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                f'{SPEC}.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Never"',
            ],
            id="invalid spreading",
        ),
        pytest.param(
            {
                f"{SPEC}.topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}
                ]
                * 2
            },
            [f"{SPEC}.topologySpreadConstraints[1].{{topologyKey, whenUnsatisfiable}}: Duplicate value"],
            id="spreading twice",
        ),
    ],
)
def test_invalid_affinity_or_topology_spread_is_rejected(edits: dict[str, Any], starts: list[str]) -> None:
    assert begins(validate(with_edits(POD, edits)), *starts)


@pytest.mark.parametrize(
    ("term", "start"),
    [
        ({"namespaces": ["A"]}, '.namespaces[0]: Invalid value: "A"'),
        ({"matchLabelKeys": ["a"], "labelSelector": None}, ".matchLabelKeys: Forbidden: must not be specified when"),
        ({"mismatchLabelKeys": ["-"]}, ".mismatchLabelKeys[0]: Invalid value"),
        (
            {"matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"]},
            '.matchLabelKeys[0]: Invalid value: "a": exists in both matchLabelKeys and mismatchLabelKeys',
        ),
    ],
)
def test_invalid_pod_affinity_term_is_rejected(term: dict[str, Any], start: str) -> None:
    path = f"{SPEC}.affinity.podAffinity.{REQUIRED}"
    whole = {"topologyKey": "zone", "labelSelector": {}, **term}
    assert begins(validate(with_edits(POD, {path: [whole]})), f"{path}[0]{start}")


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"minDomains": 0}, ".minDomains: Invalid value: 0: must be greater than zero"),
        (
            {"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"},
            ".minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule",
        ),
        ({"nodeTaintsPolicy": "X"}, '.nodeTaintsPolicy: Unsupported value: "X": supported values: "Honor", "Ignore"'),
        ({"matchLabelKeys": ["a"]}, ".matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
    ],
)
def test_invalid_topology_spread_constraint_is_rejected(fields: dict[str, Any], start: str) -> None:
    path = f"{SPEC}.topologySpreadConstraints"
    whole = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **fields}
    assert begins(validate(with_edits(POD, {path: [whole]})), f"{path}[0]{start}")


@pytest.mark.parametrize(
    ("ports", "on_host", "start"),
    [
        ([{"containerPort": 1, "hostPort": 70000}], False, "[0].hostPort: Invalid value: 70000: must be between 1"),
        ([{"containerPort": 1, "hostPort": 8}] * 2, False, '[1].hostPort: Duplicate value: "TCP//8"'),
        ([{"containerPort": 1}] * 2, True, '[1].hostPort: Duplicate value: "TCP//1"'),
        ([{"containerPort": 1, "hostPort": 8}], True, "[0].containerPort: Invalid value: 1: must match `hostPort`"),
    ],
)
def test_invalid_or_duplicate_host_port_is_rejected(ports: list[dict[str, Any]], on_host: bool, start: str) -> None:
    edits = {f"{MAIN}.ports": ports, f"{SPEC}.hostNetwork": on_host}
    assert begins(validate(with_edits(POD, edits)), f"{MAIN}.ports{start}")


def test_unsupported_pod_level_resource_is_rejected() -> None:
    gpus = {"nvidia.com/gpu": 1}
    edits = {f"{SPEC}.resources": {"limits": gpus}, f"{SPEC}.overhead": {"cpu": "-1"}}
    places = (
        f'{SPEC}.resources.limits[nvidia.com/gpu]: Unsupported value: "nvidia.com/gpu"',
        f"{SPEC}.overhead.limits[cpu]",
    )
    assert begins(validate(with_edits(POD, edits)), *places)


def test_gated_pod_with_node_name_is_rejected() -> None:
    spec = {**POD["template"]["spec"], "schedulingGates": [{"name": "a"}], "nodeName": "n"}
    result = validate({"apiVersion": "v1", "kind": "Pod", "metadata": make.metadata("p"), "spec": spec})
    assert begins(result, "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared")
