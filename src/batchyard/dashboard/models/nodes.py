"""The node pages of the dashboard: nodes by pool with their utilization, one node with its pods, and topologies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, label
from batchyard.api.times import parse_time
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import MINUTE, Instant
from batchyard.cloud.catalog.instances import CRASHED, FAILED, STOPPING, phase_of
from batchyard.dashboard import data_source
from batchyard.dashboard.data_source import NamespaceAccess, Query, ViewInputs, ViewJson
from batchyard.scheduling.snapshot import Snapshot
from batchyard.topology.state import FlavorTopology, domains_in
from batchyard.topology.tree import PODS, PodAmounts

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
        "topologies": len(inputs.queue_source.snapshot.topology.flavors),
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


# Topologies: the tree of domains of each flavor, with usage, fragmentation and the Workloads in each domain.


_UNCOUNTED_RESOURCES: Final = (PODS, "ephemeral-storage")


def topologies_document(inputs: ViewInputs, access: NamespaceAccess, _query: Query) -> ViewJson:
    """Return the document of the topology page: for each flavor with a Topology, levels and the tree of domains.

    Workloads that the user may not list have no name. Usage consists of Workloads with topology assignments and other
    pods. The usual request of a flavor is the one that most Workloads there have, and of several, the largest.
    The fragmentation of a level is the fraction of the free room for it that no domain of the level can use. At most
    NODES_MAX domains of the lowest level are shown. Without permission to list Nodes, the document only has
    `forbidden`.
    """
    if not access.may_list_all(scheme.NODE):
        return {"forbidden": "nodes"}
    snapshot = inputs.queue_source.snapshot
    flavors = sorted(snapshot.topology.flavors)
    return {"flavors": [_topology_document(snapshot, name, access) for name in flavors]}


def _topology_document(snapshot: Snapshot, flavor: str, access: NamespaceAccess) -> ViewJson:
    built, view = snapshot.topology.get(flavor), snapshot.topology.flavors[flavor]
    if built is None:
        return {"flavor": flavor, "topology": view.topology, "missing": True, "levels": [], "tree": []}
    occupants, usual = _occupants_by_leaf(snapshot, built, access)
    tree, capacity = built.tree, built.capacity
    counts = (
        [0] * tree.leaf_count if usual is None else [capacity.count_pods(n, usual[0]) for n in range(len(occupants))]
    )
    builder = _DomainDocuments(built, occupants, counts, 0 if usual is None else usual[1])
    leaves = tree.present_domains(len(tree.levels) - 1) if tree.levels else ()
    shown_leaves = leaves[:NODES_MAX]
    end = shown_leaves[-1] + 1 if shown_leaves else 0
    top_level_domains = tree.present_domains(0) if tree.levels else ()
    return {
        "flavor": flavor,
        "topology": view.topology,
        "usual": "" if usual is None else _request_text(*usual),
        "levels": [builder.level_row(level) for level in range(len(tree.levels))],
        "tree": [builder.domain(0, each) for each in top_level_domains if tree.leaves_below(0, each).start < end],
        "hidden": len(leaves) - len(shown_leaves),
    }


def _request_text(amounts: PodAmounts, pod_count: int) -> str:
    requests = [f"{data_source.format_resource_amount(r, amount)} {r}" for r, amount in amounts if r != PODS]
    return f"{count_with_noun(pod_count, 'pod')} of {', '.join(requests) or 'no resources'}"


def _occupants_by_leaf(
    snapshot: Snapshot, built: FlavorTopology, access: NamespaceAccess
) -> tuple[list[list[ViewJson]], tuple[PodAmounts, int] | None]:
    """Return the Workloads in each domain of the lowest level, and the usual request: one pod, and the pods."""
    tree, flavor = built.tree, built.flavor.name
    occupants: list[list[ViewJson]] = [[] for _ in range(tree.leaf_count)]
    request_counts: dict[tuple[PodAmounts, int], int] = {}
    for queue in snapshot.queues.values():
        for holder in queue.workloads.values():
            is_visible = access.may_list(scheme.WORKLOAD, holder.key.partition("/")[0])
            pod_counts: dict[PodAmounts, int] = {}
            for usage in holder.topology_usage:
                if usage.flavor == flavor:
                    count = sum(domain.pods for domain in usage.domains)
                    pod_counts[usage.pod] = pod_counts.get(usage.pod, 0) + count
            for domain in domains_in(built, holder.topology_usage, snapshot.topology.rules):
                leaf = tree.leaf_by_values.get(domain.values)
                if leaf is not None:
                    occupants[leaf].append({"workload": holder.key if is_visible else "", "pods": domain.pods})
            for request in pod_counts.items():
                request_counts[request] = request_counts.get(request, 0) + 1
    if not request_counts:
        return occupants, None
    return occupants, max(request_counts, key=lambda each: (request_counts[each], each[1]))


@dataclass(slots=True)
class _DomainDocuments:
    """Makes the documents of the domains of one flavor."""

    flavor: FlavorTopology
    occupants: Sequence[Sequence[ViewJson]]
    #: How many pods of the usual request fit in each domain of the lowest level, and the pods of the usual request.
    leaf_counts: Sequence[int]
    usual_count: int

    def level_row(self, level: int) -> ViewJson:
        """Return the row of a level: its domains, those with room for the usual request, and its fragmentation."""
        tree = self.flavor.tree
        counts = [self._free_count(level, domain) for domain in tree.present_domains(level)]
        free, unit = sum(self.leaf_counts), self.usual_count
        usable = sum(count - count % unit for count in counts) if unit else 0
        return {
            "level": tree.levels[level],
            "domains": len(counts),
            "fitting": sum(count >= unit for count in counts) if unit else None,
            "largest": max(counts, default=0),
            "fragmentation": round(1 - usable / free, 3) if free and unit else 0.0,
        }

    def domain(self, level: int, domain: int) -> ViewJson:
        """Return the document of a domain with those below it."""
        tree = self.flavor.tree
        leaves = tree.leaves_below(level, domain)
        is_leaf = level + 1 == len(tree.levels)
        usage = self._usage(leaves)
        document: ViewJson = {
            "name": tree.paths[level][domain][-1],
            "share": max((line["share"] for line in usage), default=0.0),
            "usage": usage,
            "pods": sum(each["pods"] for leaf in leaves for each in self.occupants[leaf]),
            "free": self._free_count(level, domain) if self.usual_count else None,
        }
        if is_leaf:
            return {**document, "workloads": self.occupants[domain]}
        first_child = tree.first_child[level]
        children = range(first_child[domain], first_child[domain + 1])
        present = [child for child in children if tree.is_present(level + 1, child)]
        return {**document, "children": [self.domain(level + 1, child) for child in present]}

    def _free_count(self, level: int, domain: int) -> int:
        return sum(self.leaf_counts[leaf] for leaf in self.flavor.tree.leaves_below(level, domain))

    def _usage(self, leaves: range) -> list[ViewJson]:
        capacity, total = self.flavor.capacity, self.flavor.tree.capacity
        resources = [r for r in sorted(total, key=_resource_order) if r not in _UNCOUNTED_RESOURCES and any(total[r])]
        lines = []
        for resource in resources:
            amount = sum(total[resource][leaf] for leaf in leaves)
            used = amount - sum(capacity.free.amounts[resource][leaf] for leaf in leaves)
            lines.append(
                {
                    "resource": resource,
                    "used": data_source.format_resource_amount(resource, used),
                    "capacity": data_source.format_resource_amount(resource, amount),
                    "share": data_source.usage_fraction(used, amount),
                }
            )
        return lines
