"""The pods and Services of RayClusters: command lines, environment, labels, probes; invalid and unsupported specs.

Source: ray-operator/controllers/ray/{common,utils}/*_test.go of KubeRay.
"""

from typing import Any

import pytest

from batchyard.api.meta import Obj, with_path
from batchyard.jobs.stand_ins.new_objects import complete_object
from batchyard.jobs.stand_ins.ray_nodes import HeadGroup, InvalidRayObject, WorkerGroup
from batchyard.jobs.stand_ins.ray_pods import WorkerPosition
from unit.jobs.stand_ins.ray_world import cluster_spec, group, parsed, ray_cluster, template

HOST = "rc-head-svc.team.svc.cluster.local"
TPU = {"google.com/tpu": 4}
LIMITS = {"resources": {"limits": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": 2}}}


def head_pod(**fields: Any) -> Obj:
    return complete_object(parsed(ray_cluster(**fields)).new_head_pod("rc-head-x"))


def worker_pod(**fields: Any) -> Obj:
    cluster = parsed(ray_cluster(group(**fields)))
    position = WorkerPosition("small-r", 3, 1)
    return complete_object(cluster.new_worker_pod("rc-small-worker-x", cluster.groups[0], position))


def first(pod: Obj) -> Any:
    return pod["spec"]["containers"][0]


def values(container: Obj) -> dict[str, Any]:
    """The variables of a container."""
    return {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}


def command(*groups: dict[str, Any], **head: Any) -> str:
    """The words of the start command of the only group, or of the head."""
    cluster = parsed(ray_cluster(*groups, head=head))
    chosen: HeadGroup | WorkerGroup = cluster.groups[0] if groups else cluster.fields.head_group_spec
    raw = cluster.spec["workerGroupSpecs"][0] if groups else cluster.spec["headGroupSpec"]
    return " ".join(cluster.start_command(chosen, raw["template"]["spec"]["containers"][0]).split())


def test_head_starts_ray_with_defaults() -> None:
    container = first(head_pod())
    flags = "--block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 --metrics-export-port=8080"
    assert container["command"] == ["/bin/bash", "-c", "--"]
    generated = "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; ray start --head " + flags
    assert " ".join(container["args"][0].split()) == generated
    assert {"name": "metrics", "containerPort": 8080, "protocol": "TCP"} in container["ports"]
    assert {"name": "shared-mem", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_head_has_labels_and_environment_of_kuberay() -> None:
    pod = head_pod(head={"labels": {"zone": "b", "ray.io/cluster": "other"}})
    expected = {
        "ray.io/cluster": "rc",
        "ray.io/node-type": "head",
        "ray.io/group": "headgroup",
        "ray.io/identifier": "rc-head",
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
        "zone": "b",
    }
    assert pod["metadata"]["labels"] == expected
    assert pod["metadata"]["annotations"] == {"ray.io/ft-enabled": "false"}
    variables = values(first(pod))
    assert (variables["RAY_ADDRESS"], variables["RAY_PORT"]) == ("127.0.0.1:6379", "6379")
    assert variables["RAY_CLUSTER_NAME"] == "metadata.labels['ray.io/cluster']"
    assert variables["KUBERAY_GEN_RAY_START_CMD"].startswith("ray start --head")
    assert "FQ_RAY_IP" not in variables


def test_worker_connects_to_head_after_waiting_for_it() -> None:
    pod = worker_pod(template=template("ray-worker", {"env": [{"name": "RAY_ADDRESS", "value": "mine"}]}))
    assert f"--address={HOST}:6379" in first(pod)["args"][0]
    variables = values(first(pod))
    assert (variables["FQ_RAY_IP"], variables["RAY_IP"], variables["RAY_ADDRESS"]) == (HOST, "rc-head-svc", "mine")
    (waiting,) = pod["spec"]["initContainers"]
    assert (waiting["name"], waiting["image"]) == ("wait-gcs-ready", "rayproject/ray")
    assert f"ray health-check --address {HOST}:6379" in waiting["args"][0]
    assert values(waiting)["FQ_RAY_IP"] == HOST
    assert pod["metadata"]["labels"]["ray.io/worker-group-replica-index"] == "3"


def test_worker_of_several_hosts_has_labels_of_its_replica() -> None:
    labels = worker_pod(numOfHosts=2)["metadata"]["labels"]
    assert labels["ray.io/worker-group-replica-name"] == "small-r"
    assert labels["ray.io/replica-host-index"] == "1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"template": template(container=LIMITS)}, ["--num-cpus=2", f"--memory={1 << 30}", "--num-gpus=2"]),
        ({"template": template(container={"resources": {"requests": {"cpu": 3}}})}, ["--num-cpus=3"]),
        ({"template": template(container=LIMITS), "rayStartParams": {"num-cpus": "0"}}, ["--num-cpus=0"]),
        ({"template": template(container={"resources": {"limits": TPU}})}, ["""--resources='{"TPU":4}'"""]),
        ({"resources": {"CPU": "4", "memory": "1Gi", "custom": "0.5"}}, ["--num-cpus=4", """'{"custom":0.5}'"""]),
        ({"labels": {"b": "2", "a": "1"}}, ["--labels=a=1,b=2"]),
        ({"rayStartParams": {"no-monitor": "true", "include-dashboard": "false"}}, ["--no-monitor", "dashboard=false"]),
    ],
)
def test_parameters_come_from_group_and_resources(fields: dict[str, Any], expected: list[str]) -> None:
    words = command(group(**fields))
    assert [each for each in expected if each not in words] == []


def test_false_flag_is_left_out_and_port_of_head_is_used() -> None:
    assert "--no-monitor" not in command(rayStartParams={"no-monitor": "false"})
    cluster = parsed(ray_cluster(group(), head={"rayStartParams": {"port": "7000"}}))
    pod = cluster.new_worker_pod("w", cluster.groups[0], WorkerPosition("", 0))
    assert values(first(pod))["RAY_ADDRESS"] == f"{HOST}:7000"


def test_own_commands_are_kept() -> None:
    head = {"template": template("ray-head", {"command": ["sh", "-c"], "args": ["true"]})}
    assert first(head_pod(head=head))["args"][0].startswith(" sh  -c  true  && ulimit")
    annotated = first(head_pod(head=head, annotations={"ray.io/overwrite-container-cmd": "true"}))
    assert (annotated["command"], annotated["args"]) == (["sh", "-c"], ["true"])
    assert "KUBERAY_GEN_RAY_START_CMD" in values(annotated)


@pytest.mark.parametrize(("version", "is_request"), [("2.53.0", True), ("v3.0", True), ("2.52.1", False), ("", False)])
def test_probes_depend_on_the_version(version: str, is_request: bool) -> None:
    probe = first(head_pod(rayVersion=version))["readinessProbe"]
    if is_request:
        assert (probe["httpGet"]["path"], probe["httpGet"]["port"]) == ("/api/healthz", 52365)
    else:
        text = probe["exec"]["command"][2]
        assert "localhost:52365/api/local_raylet_healthz | grep success && wget" in text
    assert (probe["initialDelaySeconds"], probe["periodSeconds"], probe["timeoutSeconds"]) == (10, 5, 5)


def test_head_service_is_headless_with_default_ports() -> None:
    service = complete_object(parsed(ray_cluster()).new_head_service())
    ports = {each["name"]: (each["port"], each["appProtocol"]) for each in service["spec"]["ports"]}
    numbers = {"client": 10001, "gcs-server": 6379, "dashboard": 8265, "metrics": 8080, "serve": 8000}
    assert ports == {name: (number, "tcp") for name, number in numbers.items()}
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["metadata"]["name"] == "rc-head-svc"
    assert service["spec"]["selector"]["ray.io/identifier"] == "rc-head"


def test_head_service_of_user_is_completed() -> None:
    ports = [{"name": "http", "port": 80}]
    custom = {"metadata": {"name": "mine", "labels": {"a": "b"}}, "spec": {"type": "NodePort", "ports": ports}}
    container = {"ports": [{"containerPort": 9000}, {"containerPort": 8265, "name": "dashboard"}]}
    cluster = parsed(ray_cluster(head={"headService": custom, "template": template(container=container)}))
    service = cluster.new_head_service()
    assert (service["metadata"]["name"], service["spec"]["type"]) == ("mine", "NodePort")
    assert service["metadata"]["labels"]["a"] == "b"
    assert [each["name"] for each in service["spec"]["ports"]] == ["http", "9000-port", "dashboard", "metrics"]
    assert cluster.head_address == "mine.team.svc.cluster.local"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"enableInTreeAutoscaling": True}, "enableInTreeAutoscaling needs KubeRay's own operator"),
        ({"gcsFaultToleranceOptions": {}}, "gcsFaultToleranceOptions needs KubeRay's own operator"),
        ({"annotations": {"ray.io/ft-enabled": "True"}}, "the annotation ray.io/ft-enabled needs KubeRay's own"),
        ({"upgradeStrategy": {"type": "Recreate"}}, "upgradeStrategy Recreate needs KubeRay's own operator"),
        ({"head": {"template": {"spec": {}}}}, "headGroupSpec should have at least one container"),
        ({"head": {"rayStartParams": {"labels": "a"}}}, "rayStartParams['labels'] is not supported for Head group"),
        ({"head": {"rayStartParams": {"port": 1}}}, "spec.headGroupSpec.rayStartParams[...]: Invalid value: Expected"),
        ({"head": {"template": template(container={"resources": {"limits": {"cpu": "x"}}})}}, "'x' is not a quantity"),
    ],
)
def test_invalid_and_unsupported_clusters_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRayObject) as raised:
        parsed(ray_cluster(**fields))
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"template": {"spec": {"containers": []}}}, "workerGroupSpec should have at least one container"),
        ({"minReplicas": -1}, "worker group small has negative minReplicas -1"),
        ({"minReplicas": 3, "maxReplicas": 2}, "worker group small has minReplicas 3 greater than maxReplicas 2"),
        ({"replicas": 501, "numOfHosts": 2}, "more than 1000 workers need KubeRay's own operator"),
        ({"rayStartParams": {"num-cpus": "1"}, "resources": {"CPU": "1"}}, "please use only one"),
    ],
)
def test_invalid_worker_groups_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRayObject) as raised:
        parsed(ray_cluster(group(**fields)))
    assert problem in str(raised.value)


def test_replicas_are_within_their_limits() -> None:
    cases = ((0, 1, 5), (9, 1, 5), (3, None, None))
    groups = [group(str(each), each[0], minReplicas=each[1], maxReplicas=each[2]) for each in cases]
    cluster = parsed(with_path(ray_cluster(), ("spec",), cluster_spec(*groups)))
    assert [each.desired_replicas for each in cluster.groups] == [1, 5, 3]
