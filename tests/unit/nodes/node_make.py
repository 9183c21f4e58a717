"""Nodes, Leases, pods and instances for tests, by keyword."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.times import format_time
from batchyard.base.instant import Instant

Obj = dict[str, Any]


def node(name: str = "node", *, ready: str = "True", zone: str = "a", taints: Sequence[Obj] = (), **fields: Any) -> Obj:
    """A node; `ready` is the status of its condition Ready, empty for none."""
    conditions = [
        {
            **make.condition("MemoryPressure", False, reason="KubeletHasSufficientMemory"),
            "lastHeartbeatTime": make.stamp(),
        },
        {**make.condition("Ready", reason="KubeletReady", message="kubelet is posting ready status"), "status": ready},
    ]
    spec = {**({"taints": list(taints)} if taints else {}), **fields.pop("spec", {})}
    labels = {"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": zone}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": make.metadata(name, None, labels=labels, **fields),
        "spec": spec,
        "status": {"conditions": conditions if ready else []},
    }


def taint(key: str, effect: str = "NoExecute", since: float | None = 0) -> Obj:
    """A taint; `since` is in seconds from the start, None for no timeAdded."""
    return {"key": key, "effect": effect, **({} if since is None else {"timeAdded": make.stamp(since)})}


def toleration(key: str, seconds: int | None = None) -> Obj:
    """A toleration of all taints with a key, for this many seconds."""
    return {"key": key, "operator": "Exists", **({} if seconds is None else {"tolerationSeconds": seconds})}


def pod(name: str = "pod", *, node: str | None = "node", status: Mapping[str, Any] | None = None, **spec: Any) -> Obj:
    """A pod of one container, bound to a node; other keywords are fields of its spec."""
    metadata = spec.pop("metadata", {})
    container = {"name": "c", "image": "busybox", "command": ["sleep", "10"]}
    bound = {"nodeName": node} if node else {}
    obj: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": make.metadata(name, **metadata),
        "spec": {"containers": [container], "restartPolicy": "Never", **bound, **spec},
    }
    return obj if status is None else {**obj, "status": dict(status)}


def running(since: float = 0) -> Obj:
    """The status of a pod that runs and is ready, with the fields that controllers other than its kubelet read."""
    conditions = [make.condition("Ready", since=since), make.condition("PodScheduled", since=since)]
    return {"phase": "Running", "startTime": make.stamp(since), "conditions": conditions}


def owner(kind: str, name: str) -> list[Obj]:
    """The owner references of an object that a controller owns."""
    api = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2", "DaemonSet": "apps/v1"}[kind]
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]


def instance(name: str = "node", phase: str = "Running", since: float = 0, stop_at: float | None = None) -> Obj:
    """A machine of the cloud."""
    status: Obj = {"phase": phase, "since": make.stamp(since)}
    if stop_at is not None:
        status["stopAt"] = make.stamp(stop_at)
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Instance",
        "metadata": make.metadata(name, None),
        "spec": {"pool": "p", "zone": "a", "machineType": "m"},
        "status": status,
    }


def lease(name: str = "node", *, renewed: Instant | None = None, owner_uid: str | None = None) -> Obj:
    """The Lease of a node; `renewed` is its last heartbeat, None while heartbeats continue."""
    spec: Obj = {"holderIdentity": name, "leaseDurationSeconds": 40, "acquireTime": make.stamp()}
    if renewed is not None:
        spec["renewTime"] = format_time(renewed)
    owners = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner_uid or f"uid-{name}"}]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": make.metadata(name, "kube-node-lease", ownerReferences=owners),
        "spec": spec,
    }
