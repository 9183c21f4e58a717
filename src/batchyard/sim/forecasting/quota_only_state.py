"""Reduces a platform's state to queues and Workloads, so that forecasts simulate quota without jobs, pods and nodes.

Workloads in a reduced state run for a given time. Only the cohort trees of the requested Workloads are kept, and only
the first Workloads of long queues. Admission checks are removed, so that they pass at once. If flavors have a Topology,
nodes are kept, without the capacity that other pods use.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, format_amount, owner_key, with_metadata, with_path
from batchyard.api.views.node import flavor_view, node_view, parse_pod_template
from batchyard.api.views.pods import is_terminal
from batchyard.api.views.workload import (
    LocalQueueView,
    WorkloadView,
    cluster_queue_view,
    cohort_view,
    local_queue_view,
    workload_view,
)
from batchyard.base.instant import Duration, format_duration
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.fair_sharing.admission_fair_sharing import (
    AdmissionFairSharing,
    NanoAmounts,
    add_amounts,
    consumed_resources,
    total_requests,
)
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.state import State
from batchyard.topology.counts import pod_amounts

#: Limits on the kept Workloads of a requested Workload's queue: in total, and behind it (they may start earlier).
KEPT_QUEUE_MAX: Final = 1500
_KEPT_BEHIND_COUNT: Final = 150
#: The number of Workloads kept of a longer queue, from which later starts are extrapolated.
SAMPLE_SIZE: Final = 400
#: The number of Workloads kept of all other queues together, and the minimum for each.
KEPT_MAX: Final = 1000
_KEPT_MIN: Final = 5
_KEPT_KINDS: Final = frozenset(
    {
        *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.COHORT, scheme.LOCAL_QUEUE),
        *(scheme.LIMIT_RANGE, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS, scheme.PREEMPTION_CONFIG),
    }
)
#: The name of a Workload that does not exist: a job that waits for it has no known start.
_UNKNOWN: Final = "unknown"
_KEPT_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation")


@dataclass(frozen=True, slots=True)
class QueueTrees:
    """The ClusterQueue of each LocalQueue, and the cohort tree of each ClusterQueue."""

    cluster_queues: Mapping[str, str]
    trees: Mapping[str, str]

    def tree_of(self, local_queue: str) -> str | None:
        """Return the cohort tree of the LocalQueue `namespace/name`; None if it or its ClusterQueue does not exist."""
        return self.trees.get(self.cluster_queues.get(local_queue, ""))


@dataclass(frozen=True, slots=True)
class QuotaOnlyState:
    """The queues and unfinished Workloads of a platform's state that a forecast simulates."""

    objects: Mapping[Key, Obj]
    #: The kept unfinished Workloads, by `namespace/name`.
    workloads: Mapping[str, Obj]
    #: By ClusterQueue, the `namespace/name` of its last kept pending Workload.
    last_by_queue: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PendingOrder:
    """The pending Workloads by ClusterQueue, in queue order, and the Workloads with quota."""

    waiting_by_queue: Mapping[str, Sequence[WorkloadView]]
    #: The Workloads with quota, in the order of their reservations.
    workloads_with_quota: Sequence[WorkloadView]
    #: By Workload, its ClusterQueue and its queue position, counted from 0.
    positions: Mapping[str, tuple[str, int]]
    #: By Workload that waits only for other jobs: the Workloads of these jobs, with the required outcome.
    dependencies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def trees_of(state: State) -> Snapshot:
    """Return the cohort trees of a state as a scheduler snapshot without Workloads."""
    snapshot = Snapshot()
    for cohort in state.of_kind(scheme.COHORT):
        snapshot.put_cohort(cohort_view(cohort))
    for queue in state.of_kind(scheme.CLUSTER_QUEUE):
        snapshot.put_queue(cluster_queue_view(queue))
    snapshot.rebuild_if_changed()
    return snapshot


def queues_of(state: State) -> QueueTrees:
    """Return the ClusterQueue of each LocalQueue and the cohort tree of each ClusterQueue in a state."""
    snapshot = trees_of(state)
    trees = {name: queue.node.tree for name, queue in snapshot.queues.items()}
    cluster_queue_by_local = {
        f"{obj['metadata']['namespace']}/{obj['metadata']['name']}": obj["spec"]["clusterQueue"]
        for obj in state.of_kind(scheme.LOCAL_QUEUE)
    }
    return QueueTrees(cluster_queue_by_local, trees)


def _dependencies_of(state: State) -> Mapping[str, Mapping[str, str]]:
    """Return the unmet dependencies of the Workloads whose only gate is that of their dependencies on other jobs."""
    gated = [
        workload
        for workload in state.of_kind(scheme.WORKLOAD)
        if annotation(workload, well_known.ADMISSION_GATED_BY) == well_known.AFTER and controller_of(workload)
    ]
    if not gated:
        return {}
    from batchyard.api import job_dependencies  # noqa: PLC0415 - few jobs depend on others

    names = {key: name for name, key in _job_keys(state.of_kind(scheme.WORKLOAD))}
    kinds = list(dict.fromkeys(key.kind for key in names))
    dependencies: dict[str, dict[str, str]] = {}
    for name, key in _job_keys(gated):
        awaited = dependencies[name] = {}
        for each in job_dependencies.unmet_dependencies(state.objects.get(key, {"metadata": {}})):
            job = Key(job_dependencies.find_kind(each.kind, kinds) or "", key.namespace, each.name)
            awaited[names.get(job, f"{key.namespace}/{_UNKNOWN}")] = each.outcome
    return dependencies


def _job_keys(workloads: Iterable[Obj]) -> Iterator[tuple[str, Key]]:
    for workload in workloads:
        namespace, owner = workload["metadata"]["namespace"], controller_of(workload)
        if owner is not None:
            yield f"{namespace}/{workload['metadata']['name']}", owner_key(owner, namespace)


def _with_awaited(names: Collection[str], dependencies: Mapping[str, Mapping[str, str]]) -> Collection[str]:
    """Return the names of Workloads, and of those for which they wait, directly or indirectly."""
    found = dict.fromkeys(names)
    unvisited = list(found) if dependencies else []
    while unvisited:
        new_names = [name for name in dependencies.get(unvisited.pop(), ()) if name not in found]
        found |= dict.fromkeys(new_names)
        unvisited += new_names
    return found


def _with_dependencies(workload: Obj, awaited: Mapping[str, str]) -> Obj:
    """Return a Workload that waits for other Workloads; `awaited` maps their names to the required outcomes."""
    texts = [f"{outcome}:workload/{name.partition('/')[2]}" for name, outcome in awaited.items()]
    annotations = workload["metadata"].get("annotations") or {}
    return with_metadata(workload, annotations={**annotations, well_known.AFTER: ",".join(texts)})


def pending_order_of(state: State, queues: QueueTrees) -> PendingOrder:
    """Return the unfinished Workloads of a state: those that may be admitted, in queue order, and those with quota.

    Workloads that wait only for other jobs are among the first.
    """
    dependencies = _dependencies_of(state)
    waiting: dict[str, list[WorkloadView]] = {}
    views_with_quota: list[WorkloadView] = []
    for view in map(workload_view, state.of_kind(scheme.WORKLOAD)):
        if view.finished:
            continue
        if view.quota_reserved:
            views_with_quota.append(view)
        elif view.admissible or view.key in dependencies:
            waiting.setdefault(queues.cluster_queues.get(view.queue, ""), []).append(view)
    for views in waiting.values():
        views.sort(key=_queue_order_key)
    if state.kueue.admission_fair_sharing is not None:
        waiting |= _ordered_by_usage(state, state.kueue.admission_fair_sharing, waiting)
    views_with_quota.sort(key=lambda view: (view.reserved_at or 0, view.key))
    positions = {view.key: (queue, position) for queue, views in waiting.items() for position, view in enumerate(views)}
    return PendingOrder(waiting, views_with_quota, positions, dependencies)


def _ordered_by_usage(
    state: State, settings: AdmissionFairSharing, waiting: Mapping[str, list[WorkloadView]]
) -> dict[str, list[WorkloadView]]:
    """Return the pending Workloads of the usage-based ClusterQueues in the order of an admission one after another.

    Each admission adds its entry penalty to the usage of its LocalQueue. Usage does not decay in between.
    """
    local_queues = {view.key: view for view in map(local_queue_view, state.of_kind(scheme.LOCAL_QUEUE))}
    consumed = {
        f"{obj['metadata']['namespace']}/{obj['metadata']['name']}": consumed_resources(obj)
        for obj in state.of_kind(scheme.LOCAL_QUEUE)
    }
    queues = trees_of(state).queues
    usage_based = {name: queues[name] for name in waiting if name in queues and queues[name].view.is_usage_based}
    return {
        name: list(_admission_order(waiting[name], queue, settings, (local_queues, consumed)))
        for name, queue in usage_based.items()
    }


def _admission_order(
    views: Sequence[WorkloadView],
    queue: ClusterQueue,
    settings: AdmissionFairSharing,
    usages: tuple[Mapping[str, LocalQueueView], Mapping[str, NanoAmounts]],
) -> Iterator[WorkloadView]:
    local_queues, consumed = usages
    lines: dict[str, list[WorkloadView]] = {}
    for view in reversed(views):
        lines.setdefault(view.queue, []).append(view)
    amounts = {name: consumed.get(name, {}) for name in lines}

    def rank(name: str) -> tuple[float, tuple[int, int, str], str]:
        usage = settings.weighted_usage(amounts[name], local_queues[name].weight)
        return usage, _queue_order_key(lines[name][-1]), name

    heap = [rank(name) for name in lines]
    heapq.heapify(heap)
    while heap:
        name = heapq.heappop(heap)[2]
        view = lines[name].pop()
        yield view
        if lines[name]:
            amounts[name] = add_amounts(amounts[name], settings.entry_penalty(total_requests(view, queue)))
            heapq.heappush(heap, rank(name))


def reduce_to_quota(
    state: State, queues: QueueTrees, pending_order: PendingOrder, names: Collection[str] | None
) -> QuotaOnlyState:
    """Return the part of a state that decides when the Workloads `names` (`namespace/name`) start.

    It contains their cohort trees (all trees if `names` is None), without the ends of long queues.
    """
    dependencies = pending_order.dependencies
    names = None if names is None else _with_awaited(names, dependencies)
    requested_queues = {pending_order.positions[name][0] for name in names or () if name in pending_order.positions}
    trees = {tree for queue, tree in queues.trees.items() if names is None or queue in requested_queues}
    if dependencies:
        awaited = [view.cluster_queue for view in pending_order.workloads_with_quota if view.key in (names or ())]
        trees |= {queues.trees[name] for name in awaited if name in queues.trees}
    topology_trees = _trees_with_topology(state, queues)
    if not trees.isdisjoint(topology_trees):  # their Workloads share nodes
        trees |= topology_trees
    kept_views = [view for view in pending_order.workloads_with_quota if queues.trees.get(view.cluster_queue) in trees]
    kept_queues = [queue for queue in pending_order.waiting_by_queue if queues.trees.get(queue) in trees]
    last_by_queue = {}
    for queue in kept_queues:
        kept_count = max(_KEPT_MIN, KEPT_MAX // len(kept_queues))
        if queue in requested_queues:
            kept_count = max(kept_count, _kept_count(queue, pending_order, names or ()))
        views = pending_order.waiting_by_queue[queue][:kept_count]
        last_by_queue[queue] = views[-1].key
        kept_views += views
    objects = {key: obj for key, obj in state.objects.items() if key.kind in _KEPT_KINDS}
    if not trees.isdisjoint(topology_trees):
        objects |= _nodes_without_other_pods(state)
    for cluster_queue in state.of_kind(scheme.CLUSTER_QUEUE):
        name = cluster_queue["metadata"]["name"]
        if queues.trees[name] in trees:
            objects[Key(scheme.CLUSTER_QUEUE, "", name)] = _remove_admission_checks(cluster_queue)
    workloads = {view.key: state.objects[Key(scheme.WORKLOAD, view.namespace, view.name)] for view in kept_views}
    for name in dependencies.keys() & workloads.keys():
        workloads[name] = _with_dependencies(workloads[name], dependencies[name])
    return QuotaOnlyState(objects, workloads, last_by_queue)


def _trees_with_topology(state: State, queues: QueueTrees) -> set[str]:
    """Return the cohort trees with flavors of a stored Topology, for which nodes decide too."""
    topologies = {obj["metadata"]["name"] for obj in state.of_kind(scheme.TOPOLOGY)}
    if not topologies:
        return set()
    flavors = map(flavor_view, state.of_kind(scheme.RESOURCE_FLAVOR))
    names = {flavor.name for flavor in flavors if flavor.topology in topologies}
    views = map(cluster_queue_view, state.of_kind(scheme.CLUSTER_QUEUE))
    return {queues.trees[view.name] for view in views if not names.isdisjoint(view.flavors)}


def _nodes_without_other_pods(state: State) -> dict[Key, Obj]:
    """Return the nodes, whose allocatable resources are reduced by the pods that no Job controls."""
    used: dict[str, dict[str, int]] = {}
    for pod in state.of_kind(scheme.POD):
        node_name, owner = (pod.get("spec") or {}).get("nodeName") or "", controller_of(pod)
        if not node_name or is_terminal(pod) or (owner is not None and owner["kind"] == "Job"):
            continue
        amounts = used.setdefault(node_name, {})
        for resource, amount in pod_amounts(parse_pod_template(pod["spec"])):
            amounts[resource] = amounts.get(resource, 0) + amount
    nodes: dict[Key, Obj] = {}
    for node in state.of_kind(scheme.NODE):
        name = node["metadata"]["name"]
        if name in used:
            view = node_view(node)
            allocatable = {
                resource: format_amount(resource, max(0, amount - used[name].get(resource, 0)))
                for resource, amount in view.allocatable.items()
            }
            node = with_path(node, ("status", "allocatable"), allocatable)  # noqa: PLW2901 - the changed copy
        nodes[Key(scheme.NODE, "", name)] = node
    return nodes


def _kept_count(queue: str, pending_order: PendingOrder, requested_names: Collection[str]) -> int:
    positions = [
        pending_order.positions[name][1]
        for name in requested_names
        if pending_order.positions.get(name, ("", 0))[0] == queue
    ]
    count_with_margin = max(positions) + _KEPT_BEHIND_COUNT
    return count_with_margin if count_with_margin <= KEPT_QUEUE_MAX else SAMPLE_SIZE


def standalone_workload(workload: Obj, runtime: Duration | None) -> Obj:
    """Return a copy of a Workload without its owner, labels and annotations, except those of its dependencies.

    `runtime` is stored in its run time annotation. If `runtime` is None, the copy has no annotation and never ends.
    """
    metadata = {field: value for field, value in workload["metadata"].items() if field in _KEPT_METADATA}
    annotations = {} if runtime is None else {well_known.RUNTIME: format_duration(runtime)}
    if after := annotation(workload, well_known.AFTER):
        annotations |= {well_known.AFTER: after, well_known.ADMISSION_GATED_BY: well_known.AFTER}
    if annotations:
        metadata["annotations"] = annotations
    return {**workload, "metadata": metadata}


def _queue_order_key(view: WorkloadView) -> tuple[int, int, str]:
    return -view.priority, view.queued, view.uid


def _remove_admission_checks(queue: Obj) -> Obj:
    removed_fields = ("admissionChecks", "admissionChecksStrategy")
    spec: dict[str, Any] = {field: value for field, value in queue["spec"].items() if field not in removed_fields}
    return {**queue, "spec": spec}


def make_state(state: State, objects_by_key: Mapping[Key, Obj], workloads: Iterable[Obj]) -> State:
    """Return a state at the same instant as `state` that contains only `objects_by_key` and `workloads`."""
    keys = [Key(scheme.WORKLOAD, obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in workloads]
    objects = {**objects_by_key, **dict(zip(keys, workloads, strict=True))}
    return State(state.at, state.revision, objects)
