"""The trees of Cohorts: quota, usage, what is borrowed and lent at each level."""

from batchyard.api import scheme
from batchyard.core.quota import QuotaNode
from batchyard.web.models.usage import main_usage, usage_of
from batchyard.web.sight import Scope
from batchyard.web.source import Model, Query, Source


def cohorts(source: Source, scope: Scope, _query: Query) -> Model:
    """All trees, those of more than one queue first. Cohorts are but names to whoever may not list them."""
    if not scope.all_of(scheme.CLUSTER_QUEUE):
        return {"forbidden": "clusterqueues"}
    roots = dict.fromkeys(queue.node.path[0] for queue in source.standing.snapshot.queues.values())
    roots |= dict.fromkeys(node for node in source.standing.snapshot.cohorts.values() if node.parent is None)
    trees = [_branch(source, root) for root in roots]
    return {"trees": sorted(trees, key=lambda tree: (not tree["children"], tree["kind"], tree["name"]))}


def _branch(source: Source, node: QuotaNode) -> Model:
    queue = source.standing.snapshot.queue_of.get(node)
    children = [_branch(source, node.children[name]) for name in sorted(node.children)]
    usage = usage_of(source.standing.snapshot, node)
    told = {"name": node.name, "usage": usage, "bars": main_usage(usage), "children": children}
    if queue is None:
        counts = {name: sum(child[name] for child in children) for name in ("pending", "admitted")}
        return {"kind": "Cohort", **told, **counts}
    counts = {"pending": source.standing.count_pending(queue.name), "admitted": len(queue.workloads)}
    return {"kind": "ClusterQueue", **told, **counts}
