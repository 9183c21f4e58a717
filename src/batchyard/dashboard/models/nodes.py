"""The node views: utilization of all nodes by pool, with booting and draining nodes; one node with its pods."""

from collections.abc import Iterable, Mapping
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.cloud.catalog.instances import CRASHED, FAILED, STOPPING, phase_of
from batchyard.dashboard.data_source import Model, NamespaceAccess, Query, ViewInputs, in_words, share

READY, BOOTING, DRAINING, NOT_READY = "ready", "booting", "going", "notReady"
NODES_MAX: Final = 5000
PODS_MAX: Final = 200
_SHOWN: Final = ("cpu", "memory")
_NO_POOL: Final = "nodes"


def nodes(source: ViewInputs, scope: NamespaceAccess, _query: Query) -> Model:
    """Return the node map. Utilization is a property of the node and does not reveal whose pods use it."""
    if not scope.all_of(scheme.NODE):
        return {"forbidden": "nodes"}
    used = _used_by_node(source)
    pools: dict[str, list[Model]] = {}
    found = source.reader.list(scheme.NODE)
    for obj in found[:NODES_MAX]:
        pools.setdefault(pool_of(obj), []).append(_cell(node_view(obj), used.get(obj["metadata"]["name"]), obj))
    known = {str(obj["metadata"]["name"]) for obj in found}
    for instance in source.reader.list(scheme.INSTANCE):
        if instance["metadata"]["name"] not in known and phase_of(instance) not in (CRASHED, FAILED, STOPPING):
            pools.setdefault(instance["spec"]["pool"], []).append(_awaited(instance))
    resources = dict.fromkeys(line["resource"] for cells in pools.values() for cell in cells for line in cell["usage"])
    return {
        "pools": [_pool(source, name, pools[name]) for name in sorted(pools)],
        "count": len(found),
        "resources": sorted(resources, key=_order),
    }


def node(source: ViewInputs, scope: NamespaceAccess, query: Query) -> Model | None:
    """Return one node with the pods that the user may list; None if the node does not exist."""
    if not scope.all_of(scheme.NODE):
        return {"forbidden": "nodes"}
    name = query.get("name", "")
    found = source.reader.get(Key(scheme.NODE, "", name))
    if found is None:
        return None
    pods = [obj for obj in source.reader.list(scheme.POD) if _is_on(pod_view(obj), name)]
    seen = [obj for obj in pods if scope.sees(scheme.POD, obj["metadata"]["namespace"])]
    cell = _cell(node_view(found), _sum(map(pod_view, pods)), found)
    return {
        **cell,
        "pool": pool_of(found),
        "labels": dict(sorted((found["metadata"].get("labels") or {}).items())),
        "pods": [_pod_line(pod_view(obj), obj) for obj in seen[:PODS_MAX]],
        "hidden": len(pods) - len(seen),
    }


def cluster_figures(source: ViewInputs) -> Model:
    """Return the number of nodes, and the requested share of their capacity."""
    found = [node_view(obj) for obj in source.reader.list(scheme.NODE)]
    capacity = _added(view.allocatable for view in found)
    used = _added(dict(usage) for usage in _used_by_node(source).values())
    shown = [r for r in sorted(capacity, key=_order) if (r in _SHOWN or "/" in r) and capacity[r]]
    return {
        "nodes": {"ready": sum(view.ready for view in found), "all": len(found)},
        "resources": [
            {
                "resource": resource,
                "used": in_words(resource, used.get(resource, 0)),
                "capacity": in_words(resource, capacity[resource]),
                "share": share(used.get(resource, 0), capacity[resource]),
            }
            for resource in shown
        ],
    }


def pool_of(obj: Obj) -> str:
    """Return the pool of a node, or a default name for nodes outside pools."""
    return label(obj, well_known.NODE_POOL) or _NO_POOL


def _used_by_node(source: ViewInputs) -> dict[str, dict[str, int]]:
    """Return the resources requested by the pods on each node."""
    used: dict[str, dict[str, int]] = {}
    for obj in source.reader.list(scheme.POD):
        view = pod_view(obj)
        if view.node_name and not view.is_terminal:
            _add(used.setdefault(view.node_name, {}), view.requests)
    return used


def _sum(pods: Iterable[PodView]) -> dict[str, int]:
    used: dict[str, int] = {}
    for view in pods:
        _add(used, view.requests)
    return used


def _added(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in amounts:
        _add(total, each.items())
    return total


def _add(total: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for resource, amount in amounts:
        total[resource] = total.get(resource, 0) + amount


def _cell(view: NodeView, used: Mapping[str, int] | None, obj: Obj) -> Model:
    used = used or {}
    device = next((r for r in sorted(view.allocatable) if "/" in r and view.allocatable[r]), "")
    shown = [*_SHOWN, *([device] if device else ())]
    usage = [
        {
            "resource": resource,
            "used": in_words(resource, used.get(resource, 0)),
            "capacity": in_words(resource, view.allocatable.get(resource, 0)),
            "share": share(used.get(resource, 0), view.allocatable.get(resource, 0)),
        }
        for resource in shown
    ]
    # The heat is the share of the node's dominant resource: its accelerators, if it has any.
    return {
        "name": view.name,
        "state": _state(view, obj),
        "zone": view.labels.get(well_known.ZONE, ""),
        "machine": view.labels.get(well_known.INSTANCE_TYPE, ""),
        "usage": usage,
        "pods": used.get("pods", 0),
        "heat": usage[-1]["share"] if device else max(each["share"] for each in usage),
    }


def _state(view: NodeView, obj: Obj) -> str:
    keys = [taint.key for taint in view.taints]
    if well_known.TO_BE_DELETED in keys or "deletionTimestamp" in obj["metadata"] or view.unschedulable:
        return DRAINING
    return READY if view.ready else NOT_READY


def _awaited(instance: Obj) -> Model:
    """Return a cell for a machine that has no node yet."""
    spec = instance["spec"]
    reported = {"name": instance["metadata"]["name"], "state": BOOTING, "zone": spec["zone"], "usage": [], "pods": 0}
    return {**reported, "machine": spec["machineType"], "heat": 0.0}


def _pool(source: ViewInputs, name: str, cells: list[Model]) -> Model:
    pool = source.reader.get(Key(scheme.NODE_POOL, "", name))
    counts = {state: sum(cell["state"] == state for cell in cells) for state in (READY, BOOTING, DRAINING, NOT_READY)}
    return {
        "name": name,
        "machine": cells[0]["machine"],
        "provisioning": "" if pool is None else pool["spec"].get("provisioning", "standard"),
        "counts": {state: count for state, count in counts.items() if count},
        "nodes": cells,
    }


def _is_on(view: PodView, node_name: str) -> bool:
    return view.node_name == node_name and not view.is_terminal


def _pod_line(view: PodView, obj: Obj) -> Model:
    return {
        "namespace": view.namespace,
        "name": view.name,
        "phase": view.phase,
        "workload": annotation(obj, well_known.WORKLOAD) or "",
        "requests": ", ".join(f"{r} {in_words(r, amount)}" for r, amount in view.requests if r != "pods"),
    }


def _order(resource: str) -> tuple[bool, int, str]:
    return "/" not in resource, _SHOWN.index(resource) if resource in _SHOWN else 0, resource
