"""ClusterQueues and LocalQueues in one line each."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.core.queue import ClusterQueue
from batchyard.web.models.usage import main_usage, usage_of
from batchyard.web.sight import Scope
from batchyard.web.source import Model, Source


def queue_line(source: Source, queue: ClusterQueue) -> Model:
    """A ClusterQueue with its figures, and a bar for each flavor."""
    ready = source.standing.readiness(queue.name)
    admitted = sum(held.is_admitted for held in queue.workloads.values())
    return {
        "name": queue.name,
        "cohort": queue.view.cohort,
        "strategy": "StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO",
        "pending": source.standing.count_pending(queue.name),
        "reserving": len(queue.workloads),
        "admitted": admitted,
        "active": ready.active,
        "why": "" if ready.active else ready.message,
        "bars": main_usage(usage_of(source.standing.snapshot, queue.node)),
    }


def local_queues(source: Source, scope: Scope, cluster_queue: str = "") -> list[Model]:
    """The LocalQueues that the asker sees, or those of one ClusterQueue."""
    namespaces = scope.namespaces(scheme.LOCAL_QUEUE, source.reader)
    if namespaces is None:
        found = list(source.reader.list(scheme.LOCAL_QUEUE))
    else:
        found = [obj for name in namespaces for obj in source.reader.list(scheme.LOCAL_QUEUE, name)]
    return [_local_line(obj) for obj in found if cluster_queue in ("", obj["spec"].get("clusterQueue"))]


def _local_line(obj: Obj) -> Model:
    status, active = obj.get("status") or {}, find_condition(obj, "Active")
    is_active = active is None or active["status"] == "True"
    return {
        "namespace": obj["metadata"]["namespace"],
        "name": obj["metadata"]["name"],
        "clusterQueue": obj["spec"].get("clusterQueue", ""),
        "pending": status.get("pendingWorkloads", 0),
        "reserving": status.get("reservingWorkloads", 0),
        "admitted": status.get("admittedWorkloads", 0),
        "active": is_active,
        "why": "" if is_active or active is None else active.get("message", ""),
        "usage": [line for flavor in status.get("flavorsReservation") or () for line in _local_usage(flavor)],
    }


def _local_usage(flavor: dict[str, Any]) -> list[Model]:
    """What a LocalQueue's Workloads hold of a flavor, but for what they hold nothing of."""
    from_status = [(each["name"], each.get("total", "0")) for each in flavor.get("resources") or ()]
    return [
        {"flavor": flavor["name"], "resource": resource, "used": total}
        for resource, total in from_status
        if str(total) != "0"
    ]
