"""One ClusterQueue: its order, its LocalQueues, its quota, and how it went so far."""

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.web.models.queues import local_queues, queue_line
from batchyard.web.models.rows import Reasons, row_at
from batchyard.web.models.series import series_of
from batchyard.web.models.usage import usage_of
from batchyard.web.sight import Scope
from batchyard.web.source import Model, Query, Source
from batchyard.web.window import Window, window_of


def queue(source: Source, scope: Scope, query: Query) -> Model | None:
    """See the module; None if there is no such queue. Of Workloads that the asker may not list only places are told."""
    if not scope.all_of(scheme.CLUSTER_QUEUE):
        return {"forbidden": "clusterqueues"}
    name, window = query.get("name", ""), window_of(source, query)
    found = source.standing.snapshot.queues.get(name)
    if found is None:
        return None
    spec = (source.reader.get(Key(scheme.CLUSTER_QUEUE, "", name)) or {}).get("spec") or {}
    preemption = spec.get("preemption") or {}
    holders = sorted(found.workloads.values(), key=lambda held: (-held.reserved_at, held.key))
    seen = [held for held in holders if scope.sees(scheme.WORKLOAD, held.key.partition("/")[0])]
    running = [row for held in seen[: window.limit] if (row := row_at(source, held.key))]
    line = queue_line(source, found)
    return {
        **{field: value for field, value in line.items() if field != "bars"},
        "path": [node.name for node in found.node.path[:-1]],
        "rules": {
            "preemption within the queue": preemption.get("withinClusterQueue", "Never"),
            "reclaims in the cohort": preemption.get("reclaimWithinCohort", "Never"),
            "stop policy": found.view.stop_policy,
            "admission checks": ", ".join(found.view.admission_checks) or "none",
        },
        "usage": usage_of(source.standing.snapshot, found.node),
        "localQueues": local_queues(source, scope, name),
        "line": _line(source, scope, name, window),
        "offset": window.offset,
        "limit": window.limit,
        "running": running,
        "hiddenRunning": len(holders) - len(seen),
        "series": series_of(source, name),
    }


def _line(source: Source, scope: Scope, name: str, window: Window) -> list[Model]:
    """Who waits, in the order of their turn."""
    first = source.standing.first_pending(name, window.offset + window.limit)
    lines, reasons = list[Model](), Reasons()
    for place, view in enumerate(first, 1):
        row = row_at(source, view.key) if scope.sees(scheme.WORKLOAD, view.namespace) else None
        lines.append({"position": place, **({"hidden": True} if row is None else reasons.told(view, row))})
    return lines[window.offset :]
