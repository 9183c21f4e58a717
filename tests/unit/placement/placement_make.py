"""Nodes and pods for tests of placement."""

from collections.abc import Iterable, Mapping
from typing import Any

import make
from batchyard.api.meta import Obj
from batchyard.api.views.node import node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import ChosenNode, find_node
from batchyard.placement.node_filters import AutoscalingProfile

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def node(name: str = "n", zone: str = "z", **amounts: Any) -> make.Obj:
    """A Node of 4 cpus and 16Gi; amounts by resource (`gpu` for short), or `labels`, `taints` and `unschedulable`."""
    spec = {field: amounts.pop(field) for field in ("taints", "unschedulable") if field in amounts}
    labels = {HOST: name, ZONE: zone, **amounts.pop("labels", {})}
    gpus = {"nvidia.com/gpu": amounts.pop("gpu")} if "gpu" in amounts else {}
    allocatable = {"cpu": "4", "memory": "16Gi", "pods": "110", **amounts, **gpus}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": make.metadata(name, None, labels=labels),
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [make.condition("Ready")]},
    }


def pod(name: str = "p", *, namespace: str = "team", **fields: Any) -> make.Obj:
    """A Pod of 1 cpu and 1Gi. Fields other than amounts, metadata and status belong to its spec."""
    requests = {"cpu": fields.pop("cpu", "1"), "memory": fields.pop("memory", "1Gi")}
    if "gpu" in fields:
        requests["nvidia.com/gpu"] = fields.pop("gpu")
    metadata = make.metadata(
        name,
        namespace,
        labels=fields.pop("labels", None),
        annotations=fields.pop("annotations", None),
        deletionTimestamp=fields.pop("deleted", None),
        creationTimestamp=make.stamp(fields.pop("created", 0)),
    )
    status = fields.pop("status", None)
    container = {"name": "c", "resources": {"requests": requests}, "ports": fields.pop("ports", None) or []}
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **fields}}
    return obj if status is None else {**obj, "status": status}


def member(name: str, gang: str = "a", **fields: Any) -> make.Obj:
    """A Pod of a gang."""
    labels = {"batch.kubernetes.io/controller-uid": gang, **fields.pop("labels", {})}
    return pod(name, labels=labels, annotations={"kueue.x-k8s.io/workload": f"job-{gang}"}, **fields)


def view(obj: Obj) -> PodView:
    """The view of a Pod."""
    return pod_view(obj)


def cluster(*objects: Obj) -> ClusterSnapshot:
    """The cluster of these Nodes, and of Pods that are bound to some of them."""
    nodes = ClusterSnapshot()
    for obj in objects:
        if obj["kind"] == "Node":
            nodes.set_node(node_view(obj))
        else:
            nodes.add_pod(pod_view(obj), obj["spec"]["nodeName"])
    return nodes


def place(
    nodes: ClusterSnapshot, pods: Iterable[Obj], profile: AutoscalingProfile = AutoscalingProfile.BALANCED
) -> list[str]:
    """The nodes of pods that are placed one after the other; '' for pods that fit no node."""
    places = []
    for obj in pods:
        result = find_node(pod_view(obj), nodes, profile)
        places.append(result.node if isinstance(result, ChosenNode) else "")
        if isinstance(result, ChosenNode):
            nodes.add_pod(pod_view(obj), result.node)
    return places


def unschedulable_message(nodes: ClusterSnapshot, obj: Obj) -> str:
    """The message of a pod that fits no node."""
    result = find_node(pod_view(obj), nodes)
    assert not isinstance(result, ChosenNode), f"it fits {result.node}"
    return result.message()


def pod_term(key: str = HOST, /, *, match: Mapping[str, str] | None = None, **fields: Any) -> make.Obj:
    """A pod affinity term that selects pods with these labels."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(match or {"app": "a"})}, **fields}


def required(kind: str, *terms: Any) -> make.Obj:
    """A required affinity: `podAffinity` or `podAntiAffinity` with terms, `nodeAffinity` with lists of expressions."""
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    if kind == "nodeAffinity":
        return {kind: {field: {"nodeSelectorTerms": list(terms)}}}
    return {kind: {field: list(terms)}}


def preferred(kind: str, weight: int, term: Any) -> make.Obj:
    """A preferred affinity."""
    name = "preference" if kind == "nodeAffinity" else "podAffinityTerm"
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, name: term}]}}
