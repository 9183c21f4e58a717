"""The node pages of the dashboard: all nodes by pool with their utilization, and one node with its pods."""

from collections.abc import Iterable, Mapping
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, label
from batchyard.api.times import parse_time
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import MINUTE, Instant
from batchyard.cloud.catalog.instances import CRASHED, FAILED, STOPPING, phase_of
from batchyard.dashboard import data_source
from batchyard.dashboard.data_source import NamespaceAccess, Query, ViewInputs, ViewJson

READY, BOOTING, DRAINING, NOT_READY = "ready", "booting", "going", "notReady"
NODES_MAX: Final = 5000
PODS_MAX: Final = 200
#: A registered node that has not been ready yet counts as booting for this long, later as not ready.
BOOT_DURATION_MAX: Final = 15 * MINUTE
_MAIN_RESOURCES: Final = ("cpu", "memory")
_DEFAULT_POOL_NAME: Final = "nodes"


def nodes_document(inputs: ViewInputs, access: NamespaceAccess, _query: Query) -> ViewJson:
    """Return the JSON document of the nodes page: by node pool, the nodes and the machines that do not have a Node yet.
    It contains at most NODES_MAX nodes in total, and no pod names. If the user may not list Nodes, it has only the
    field `forbidden`.
    """
    if not access.may_list_all(scheme.NODE):
        return {"forbidden": "nodes"}
    amounts_by_node = _requests_by_node(inputs)
    pools: dict[str, list[ViewJson]] = {}
    node_objects = inputs.reader.list(scheme.NODE)
    for obj in node_objects[:NODES_MAX]:
        cell = _node_cell(inputs, amounts_by_node.get(obj["metadata"]["name"]), obj)
        pools.setdefault(node_pool_name(obj), []).append(cell)
    node_names = {str(obj["metadata"]["name"]) for obj in node_objects}
    for instance in inputs.reader.list(scheme.INSTANCE):
        if instance["metadata"]["name"] not in node_names and phase_of(instance) not in (CRASHED, FAILED, STOPPING):
            pools.setdefault(instance["spec"]["pool"], []).append(_booting_cell(instance))
    resources = dict.fromkeys(line["resource"] for cells in pools.values() for cell in cells for line in cell["usage"])
    return {
        "pools": [_pool_document(inputs, name, pools[name]) for name in sorted(pools)],
        "count": len(node_objects),
        "resources": sorted(resources, key=_resource_order),
    }


def node_document(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson | None:
    """Return the document of one node's page, with at most PODS_MAX pods that the user may list; None without the node.

    Without permission, the document only has `forbidden`.
    """
    if not access.may_list_all(scheme.NODE):
        return {"forbidden": "nodes"}
    name = query.get("name", "")
    node_object = inputs.reader.get(Key(scheme.NODE, "", name))
    if node_object is None:
        return None
    pods = [obj for obj in inputs.reader.list(scheme.POD) if _runs_on(pod_view(obj), name)]
    visible_pods = [obj for obj in pods if access.may_list(scheme.POD, obj["metadata"]["namespace"])]
    node_cell = _node_cell(inputs, _total_requests(map(pod_view, pods)), node_object)
    return {
        **node_cell,
        "pool": node_pool_name(node_object),
        "labels": dict(sorted((node_object["metadata"].get("labels") or {}).items())),
        "pods": [_pod_row(pod_view(obj), obj) for obj in visible_pods[:PODS_MAX]],
        "hidden": len(pods) - len(visible_pods),
    }


def cluster_summary(inputs: ViewInputs) -> ViewJson:
    """Return the numbers of nodes, and for each main resource the share of the total capacity that pods request."""
    nodes_and_views = [(node_view(obj), obj) for obj in inputs.reader.list(scheme.NODE)]
    node_views = [view for view, _ in nodes_and_views]
    capacity = _sum_amounts(view.allocatable for view in node_views)
    used_amounts = _sum_amounts(dict(usage) for usage in _requests_by_node(inputs).values())
    resources = [r for r in sorted(capacity, key=_resource_order) if (r in _MAIN_RESOURCES or "/" in r) and capacity[r]]
    return {
        "nodes": {
            "ready": sum(view.ready for view in node_views),
            "all": len(node_views),
            "booting": sum(_node_state(view, obj, inputs.now) == BOOTING for view, obj in nodes_and_views),
        },
        "resources": [
            {
                "resource": resource,
                "used": data_source.format_resource_amount(resource, used_amounts.get(resource, 0)),
                "capacity": data_source.format_resource_amount(resource, capacity[resource]),
                "share": data_source.usage_fraction(used_amounts.get(resource, 0), capacity[resource]),
            }
            for resource in resources
        ],
    }


def node_pool_name(obj: Obj) -> str:
    """Return the name of a node's pool, or a default name for nodes without a pool."""
    return label(obj, well_known.NODE_POOL) or _DEFAULT_POOL_NAME


def _requests_by_node(inputs: ViewInputs) -> dict[str, dict[str, int]]:
    amounts_by_node: dict[str, dict[str, int]] = {}
    for obj in inputs.reader.list(scheme.POD):
        view = pod_view(obj)
        if view.node_name and not view.is_terminal:
            _add_amounts(amounts_by_node.setdefault(view.node_name, {}), view.requests)
    return amounts_by_node


def _total_requests(pods: Iterable[PodView]) -> dict[str, int]:
    total_amounts: dict[str, int] = {}
    for view in pods:
        _add_amounts(total_amounts, view.requests)
    return total_amounts


def _sum_amounts(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total_amounts: dict[str, int] = {}
    for addend in amounts:
        _add_amounts(total_amounts, addend.items())
    return total_amounts


def _add_amounts(total_amounts: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for resource, amount in amounts:
        total_amounts[resource] = total_amounts.get(resource, 0) + amount


def _node_cell(inputs: ViewInputs, requested_amounts: Mapping[str, int] | None, obj: Obj) -> ViewJson:
    view, requested_amounts = node_view(obj), requested_amounts or {}
    device_resource = next((r for r in sorted(view.allocatable) if "/" in r and view.allocatable[r]), "")
    resource_names = [*_MAIN_RESOURCES, *([device_resource] if device_resource else ())]
    usage = [
        {
            "resource": resource,
            "used": data_source.format_resource_amount(resource, requested_amounts.get(resource, 0)),
            "capacity": data_source.format_resource_amount(resource, view.allocatable.get(resource, 0)),
            "share": data_source.usage_fraction(requested_amounts.get(resource, 0), view.allocatable.get(resource, 0)),
        }
        for resource in resource_names
    ]
    # The heat is the share of the node's dominant resource: its accelerators, if it has any.
    return {
        "name": view.name,
        "state": _node_state(view, obj, inputs.now),
        "zone": view.labels.get(well_known.ZONE, ""),
        "machine": view.labels.get(well_known.INSTANCE_TYPE, ""),
        "usage": usage,
        "pods": requested_amounts.get("pods", 0),
        "heat": usage[-1]["share"] if device_resource else max(resource_usage["share"] for resource_usage in usage),
    }


def _node_state(view: NodeView, obj: Obj, now: Instant) -> str:
    keys = [taint.key for taint in view.taints]
    if well_known.TO_BE_DELETED in keys or "deletionTimestamp" in obj["metadata"] or view.unschedulable:
        return DRAINING
    if view.ready:
        return READY
    created_at = obj["metadata"].get("creationTimestamp")
    if not created_at or now - parse_time(created_at) >= BOOT_DURATION_MAX:
        return NOT_READY
    condition = find_condition(obj, "Ready")  # unchanged since the node registered: it was never ready
    return BOOTING if condition is None or (condition.get("lastTransitionTime") or "") <= created_at else NOT_READY


def _booting_cell(instance: Obj) -> ViewJson:
    spec = instance["spec"]
    cell = {"name": instance["metadata"]["name"], "state": BOOTING, "zone": spec["zone"], "usage": [], "pods": 0}
    return {**cell, "machine": spec["machineType"], "heat": 0.0}


def _pool_document(inputs: ViewInputs, name: str, node_cells: list[ViewJson]) -> ViewJson:
    pool_object = inputs.reader.get(Key(scheme.NODE_POOL, "", name))
    node_counts = {
        state: sum(cell["state"] == state for cell in node_cells) for state in (READY, BOOTING, DRAINING, NOT_READY)
    }
    return {
        "name": name,
        "machine": node_cells[0]["machine"],
        "provisioning": "" if pool_object is None else pool_object["spec"].get("provisioning", "standard"),
        "counts": {state: count for state, count in node_counts.items() if count},
        "nodes": node_cells,
    }


def _runs_on(view: PodView, node_name: str) -> bool:
    return view.node_name == node_name and not view.is_terminal


def _pod_row(view: PodView, obj: Obj) -> ViewJson:
    return {
        "namespace": view.namespace,
        "name": view.name,
        "phase": view.phase,
        "workload": annotation(obj, well_known.WORKLOAD) or "",
        "requests": ", ".join(
            f"{r} {data_source.format_resource_amount(r, amount)}" for r, amount in view.requests if r != "pods"
        ),
    }


def _resource_order(resource: str) -> tuple[bool, int, str]:
    return "/" not in resource, _MAIN_RESOURCES.index(resource) if resource in _MAIN_RESOURCES else 0, resource
