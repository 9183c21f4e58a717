"""Table rows of Pods, Nodes and cloud objects, as kubectl prints them."""

from typing import Any

import pytest

import make
from batchyard.api import printing, scheme

Obj = dict[str, Any]
RUNNING: Obj = {"running": {"startedAt": make.stamp()}}
DONE: Obj = {"terminated": {"exitCode": 0, "reason": "Completed"}}


def obj(kind: str, *, now: float = 60, metadata: Obj | None = None, **fields: Any) -> dict[str, str]:
    """Return the cells of an object by column; it was created at second 0."""
    info = scheme.kind_info(kind)
    created = {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "metadata": make.metadata("it", **(metadata or {})),
        **fields,
    }
    names = [column.name for column in printing.columns(kind, wide=True)]
    return dict(zip(names, printing.row(created, now=make.at(now), wide=True), strict=True))


def container(state: Obj, name: str = "c", **fields: Any) -> Obj:
    """The status of a container."""
    return {"name": name, "state": state, "ready": "running" in state, "restartCount": 0, **fields}


def pod(*containers: Obj, init: tuple[Obj, ...] = (), deleted: bool = False, **status: Any) -> dict[str, str]:
    """The cells of a pod with these container statuses; init containers named `sidecar` stay."""
    spec = {
        "containers": [{"name": each["name"]} for each in containers] or [{"name": "c"}],
        "initContainers": [
            {"name": each["name"], **({"restartPolicy": "Always"} if each["name"] == "sidecar" else {})}
            for each in init
        ],
    }
    statuses = {"containerStatuses": list(containers), "initContainerStatuses": list(init)}
    metadata = {"deletionTimestamp": make.stamp()} if deleted else {}
    return obj(scheme.POD, metadata=metadata, spec=spec, status={**statuses, **status})


@pytest.mark.parametrize(
    ("cells", "status", "ready"),
    [
        pytest.param(pod(phase="Pending"), "Pending", "0/1", id="not placed yet"),
        pytest.param(
            pod(phase="Pending", conditions=[make.condition("PodScheduled", False, reason="SchedulingGated")]),
            "SchedulingGated",
            "0/1",
            id="gated",
        ),
        pytest.param(
            pod(container({"waiting": {"reason": "ContainerCreating"}}), phase="Pending"),
            "ContainerCreating",
            "0/1",
            id="starting",
        ),
        pytest.param(pod(container(RUNNING), phase="Running"), "Running", "1/1", id="running"),
        pytest.param(pod(container(DONE), phase="Succeeded"), "Completed", "0/1", id="done"),
        pytest.param(
            pod(container({"terminated": {"exitCode": 3, "reason": "Error"}}), phase="Failed"), "Error", "0/1", id="bad"
        ),
        pytest.param(pod(container({"terminated": {"exitCode": 3}}), phase="Failed"), "ExitCode:3", "0/1", id="exit"),
        pytest.param(pod(container({"terminated": {"signal": 9}}), phase="Failed"), "Signal:9", "0/1", id="killed"),
        pytest.param(pod(phase="Failed", reason="Terminated"), "Terminated", "0/1", id="node deleted"),
        pytest.param(
            pod(container({"waiting": {"reason": "CrashLoopBackOff"}}), container(RUNNING, "d"), phase="Running"),
            "CrashLoopBackOff",
            "1/2",
            id="one of two",
        ),
        pytest.param(
            pod(container(DONE), container(RUNNING, "d"), phase="Running", conditions=[make.condition("Ready")]),
            "Running",
            "1/2",
            id="one done, one running",
        ),
        pytest.param(pod(container(DONE), container(RUNNING, "d"), phase="Running"), "NotReady", "1/2", id="not ready"),
        pytest.param(pod(container(RUNNING), phase="Running", deleted=True), "Terminating", "1/1", id="deleted"),
        pytest.param(pod(container(DONE), phase="Succeeded", deleted=True), "Completed", "0/1", id="deleted when done"),
        pytest.param(pod(phase="Running", reason="NodeLost", deleted=True), "Unknown", "0/1", id="on a lost node"),
    ],
)
def test_pod_status_and_ready_columns_match_kubectl(cells: dict[str, str], status: str, ready: str) -> None:
    assert (cells["Status"], cells["Ready"]) == (status, ready)


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        pytest.param(RUNNING, {"waiting": {"reason": "PodInitializing"}}, "Init:0/2", id="the first runs"),
        pytest.param(DONE, {"waiting": {"reason": "PodInitializing"}}, "Init:1/2", id="the second waits"),
        pytest.param(
            DONE, {"waiting": {"reason": "ImagePullBackOff"}}, "Init:ImagePullBackOff", id="the second is stuck"
        ),
        pytest.param({"terminated": {"exitCode": 1, "reason": "Error"}}, RUNNING, "Init:Error", id="the first failed"),
        pytest.param(
            {"terminated": {"exitCode": 1}}, RUNNING, "Init:ExitCode:1", id="the first failed without a reason"
        ),
        pytest.param({"terminated": {"exitCode": 1, "signal": 9}}, RUNNING, "Init:Signal:9", id="the first was killed"),
        pytest.param(DONE, DONE, "ContainerCreating", id="both are done"),
    ],
)
def test_pod_status_shows_init_progress(first: Obj, second: Obj, status: str) -> None:
    main = container({"waiting": {"reason": "ContainerCreating"}})
    assert pod(main, init=(container(first, "a"), container(second, "b")), phase="Pending")["Status"] == status


def test_started_sidecars_count_as_ready() -> None:
    sidecar = container(RUNNING, "sidecar", started=True)
    assert pod(container(RUNNING), init=(sidecar,), phase="Running")["Ready"] == "2/2"
    starting = container(RUNNING, "sidecar", started=False)
    assert pod(container(RUNNING), init=(starting,), phase="Pending")["Status"] == "Init:0/1"


def test_restarts_column_shows_time_of_last_restart() -> None:
    ended = {"terminated": {"finishedAt": make.stamp(30)}}
    assert pod(container(RUNNING, restartCount=2, lastState=ended), phase="Running")["Restarts"] == "2 (30s ago)"
    assert pod(container(RUNNING, restartCount=2), phase="Running")["Restarts"] == "2"
    assert pod(container(RUNNING), phase="Running")["Restarts"] == "0"


def test_init_container_restarts_count_until_initialization_ends() -> None:
    failing = container({"waiting": {"reason": "CrashLoopBackOff"}}, "a", restartCount=3)
    assert pod(container(RUNNING), init=(failing,), phase="Pending")["Restarts"] == "3"
    done = container(DONE, "a", restartCount=3)
    assert pod(container(RUNNING, restartCount=1), init=(done,), phase="Running")["Restarts"] == "1"


def test_wide_pod_row_shows_ip_node_and_readiness_gates() -> None:
    spec = {"containers": [], "nodeName": "n1", "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]}
    status = {"podIP": "10.0.0.1", "nominatedNodeName": "n2", "conditions": [make.condition("a")]}
    cells = obj(scheme.POD, spec=spec, status=status)
    assert list(cells.values())[5:] == ["10.0.0.1", "n1", "n2", "1/2"]
    assert list(obj(scheme.POD, spec={"containers": []}).values())[5:] == ["<none>"] * 4


@pytest.mark.parametrize(
    ("conditions", "unschedulable", "status"),
    [
        ([], False, "Unknown"),
        ([make.condition("Ready")], False, "Ready"),
        ([make.condition("Ready", False)], False, "NotReady"),
        ([make.condition("Ready")], True, "Ready,SchedulingDisabled"),
        ([{**make.condition("Ready"), "status": "Unknown"}], True, "NotReady,SchedulingDisabled"),
    ],
)
def test_node_status_column_shows_readiness_and_cordon(conditions: list[Obj], unschedulable: bool, status: str) -> None:
    cells = obj(scheme.NODE, spec={"unschedulable": unschedulable}, status={"conditions": conditions})
    assert cells["Status"] == status


def test_node_roles_are_read_from_labels() -> None:
    roles = {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/": "", "kubernetes.io/role": "agent"}
    assert obj(scheme.NODE, metadata={"labels": roles})["Roles"] == "agent,worker"
    assert obj(scheme.NODE)["Roles"] == "<none>"


def test_wide_node_row_shows_addresses_and_system_info() -> None:
    system = {"kubeletVersion": "v1.30.3", "osImage": "cos", "kernelVersion": "6.1", "containerRuntimeVersion": "c://1"}
    addresses = [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.1"}]
    cells = obj(scheme.NODE, status={"nodeInfo": system, "addresses": addresses})
    assert list(cells.values())[3:] == ["60s", "v1.30.3", "10.0.0.1", "<none>", "cos", "6.1", "c://1"]
    assert list(obj(scheme.NODE).values())[7:] == ["<unknown>"] * 3


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"nodeCount": 4}, "4"),
        ({"autoscaling": {"min": 1, "max": 3}}, "1-3"),
        ({"autoscaling": {"totalMax": 24}}, "0-24 total"),
    ],
)
def test_node_pool_row_shows_size_range(spec: Obj, size: str) -> None:
    cells = obj(scheme.NODE_POOL, spec={"machineType": "e2-small", "zones": ["a", "b"], **spec})
    assert (cells["Size"], cells["Instances"], cells["Zones"], cells["Provisioning"]) == (size, "0", "a,b", "standard")


def test_instance_row_shows_phase_and_error() -> None:
    spec = {"pool": "np", "zone": "a", "machineType": "e2-small"}
    assert obj(scheme.INSTANCE, spec=spec)["Phase"] == "Pending"
    failed = obj(scheme.INSTANCE, spec=spec, status={"phase": "Failed", "error": {"code": "QUOTA_EXCEEDED"}})
    assert (failed["Phase"], failed["Error"]) == ("Failed", "QUOTA_EXCEEDED")
    leaving = obj(scheme.INSTANCE, spec=spec, status={"phase": "Running"}, metadata={"deletionTimestamp": make.stamp()})
    assert leaving["Phase"] == "Terminating"


def test_other_cloud_kinds_print_their_columns() -> None:
    request = obj(scheme.RESIZE_REQUEST, spec={"pool": "np", "zone": "a", "count": 2}, status={"state": "ACCEPTED"})
    assert list(request.values()) == ["it", "np", "a", "2", "ACCEPTED", "60s", "<none>"]
    assert list(obj(scheme.CLUSTER, spec={"region": "r", "zones": ["r-a"]}).values()) == ["it", "r", "r-a", "60s"]
    assert list(obj(scheme.LEASE, spec={"holderIdentity": "n1"}).values()) == ["it", "n1", "60s"]
    assert list(obj(scheme.PROVISIONING_REQUEST, spec={}).values()) == ["it", "", "", "", "60s"]
