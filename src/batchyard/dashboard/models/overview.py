"""The overview: cluster, queues, running Workloads, pending Workloads and their reasons."""

import heapq
from collections.abc import Iterator
from typing import Final

from batchyard.api import scheme
from batchyard.api.views.workload import WorkloadView
from batchyard.dashboard.data_source import Model, NamespaceAccess, Query, ViewInputs
from batchyard.dashboard.models.nodes import cluster_figures
from batchyard.dashboard.models.queues import local_queues, queue_line
from batchyard.dashboard.models.rows import Reasons, comparison, main_usage, row_at, row_of, usage_of
from batchyard.dashboard.workload_list_cache import PENDING
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.quota import QuotaNode

#: Maximum lines of each part; separate views list all.
QUEUES_MAX: Final = 60
LINES_MAX: Final = 12


def overview(source: ViewInputs, scope: NamespaceAccess, _query: Query) -> Model:
    """Return the overview. Users without access to ClusterQueues get their LocalQueues and Workloads instead."""
    reported: Model = {}
    if scope.all_of(scheme.NODE):
        reported["cluster"] = cluster_figures(source)
    reported |= comparison(source, scope)
    if scope.all_of(scheme.CLUSTER_QUEUE):
        reported |= _queues(source)
    else:
        reported["localQueues"] = local_queues(source, scope)
    namespaces = scope.namespaces(scheme.WORKLOAD, source.reader)
    reported |= _of_all(source) if namespaces is None else _of_some(source, namespaces)
    return reported


def _queues(source: ViewInputs) -> Model:
    queues = source.standing.snapshot.queues
    names = sorted(queues)
    lines = [queue_line(source, queues[name]) for name in names[:QUEUES_MAX]]
    return {"queues": lines, "queuesCount": len(names)}


def _of_all(source: ViewInputs) -> Model:
    """Return running and pending Workloads for a user who sees all."""
    queues = source.standing.snapshot.queues
    held = [each for queue in queues.values() for each in queue.workloads.values()]
    latest = heapq.nlargest(LINES_MAX, held, key=_reserved_at)
    waiting = heapq.nsmallest(LINES_MAX, _first_in_line(source), key=lambda place: place[:2])
    reasons = Reasons()
    return {
        "runningCount": len(held),
        "running": [row for each in latest if (row := row_at(source, each.key))],
        "waitingCount": sum(map(source.standing.count_pending, queues)),
        "waiting": [reasons.reported(view, row) for _, _, view in waiting if (row := row_at(source, view.key))],
    }


def _first_in_line(source: ViewInputs) -> Iterator[tuple[int, str, WorkloadView]]:
    """Yield the first Workloads of each queue; more of each if there are few queues."""
    queues = [name for name in source.standing.snapshot.queues if source.standing.count_pending(name)]
    for name in queues:
        for place, view in enumerate(source.standing.first_pending(name, -(-LINES_MAX // len(queues)))):
            yield place, name, view


def _of_some(source: ViewInputs, namespaces: list[str]) -> Model:
    """Return running and pending Workloads for a user who sees some namespaces."""
    found = source.workload_list.entries(source.reader, namespaces)
    running = [each for each in found if each.view.quota_reserved and not each.view.finished]
    waiting = [each for each in found if each.state == PENDING]
    latest = heapq.nlargest(LINES_MAX, running, key=lambda each: each.view.reserved_at or 0)
    first = heapq.nsmallest(LINES_MAX, waiting, key=lambda each: (-each.view.priority, each.view.queued))
    reasons = Reasons()
    return {
        "runningCount": len(running),
        "running": [row_of(source, each.view, each.obj) for each in latest],
        "waitingCount": len(waiting),
        "waiting": [reasons.reported(each.view, row_of(source, each.view, each.obj)) for each in first],
    }


def _reserved_at(held: AdmittedWorkload) -> tuple[int, str]:
    return held.reserved_at, held.key


# --- cohorts ---
#
# The Cohort trees: quota, usage, borrowing and lending at each level.


def cohorts(source: ViewInputs, scope: NamespaceAccess, _query: Query) -> Model:
    """Return all Cohort trees, those with children first. Of Cohorts only names and usage are shown."""
    if not scope.all_of(scheme.CLUSTER_QUEUE):
        return {"forbidden": "clusterqueues"}
    roots = dict.fromkeys(queue.node.path[0] for queue in source.standing.snapshot.queues.values())
    roots |= dict.fromkeys(node for node in source.standing.snapshot.cohorts.values() if node.parent is None)
    trees = [_branch(source, root) for root in roots]
    return {"trees": sorted(trees, key=lambda tree: (not tree["children"], tree["kind"], tree["name"]))}


def _branch(source: ViewInputs, node: QuotaNode) -> Model:
    queue = source.standing.snapshot.queue_of.get(node)
    children = [_branch(source, node.children[name]) for name in sorted(node.children)]
    usage = usage_of(source.standing.snapshot, node)
    reported = {"name": node.name, "usage": usage, "bars": main_usage(usage), "children": children}
    if queue is None:
        counts = {name: sum(child[name] for child in children) for name in ("pending", "admitted")}
        return {"kind": "Cohort", **reported, **counts}
    counts = {"pending": source.standing.count_pending(queue.name), "admitted": len(queue.workloads)}
    return {"kind": "ClusterQueue", **reported, **counts}
