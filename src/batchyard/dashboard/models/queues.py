"""The queue views: ClusterQueues and LocalQueues as lines, and one ClusterQueue in detail."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.base.instant import SECOND, Instant
from batchyard.dashboard.data_source import Model, NamespaceAccess, PageWindow, Query, ViewInputs, in_words, window_of
from batchyard.dashboard.history import CREATED, DELETED, EVICTED, FINISHED, PREEMPTED, RESERVED, WorkloadHistory
from batchyard.dashboard.models.rows import Reasons, main_usage, row_at, time_of, usage_of
from batchyard.scheduling.cluster_queue import ClusterQueue


def queue_line(source: ViewInputs, queue: ClusterQueue) -> Model:
    """Return the line of a ClusterQueue, with counts and a usage bar for each flavor."""
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


def local_queues(source: ViewInputs, scope: NamespaceAccess, cluster_queue: str = "") -> list[Model]:
    """Return the LocalQueues that the user may list, or those of one ClusterQueue."""
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
    """Return the nonzero reservations of a LocalQueue in a flavor."""
    from_status = [(each["name"], each.get("total", "0")) for each in flavor.get("resources") or ()]
    return [
        {"flavor": flavor["name"], "resource": resource, "used": total}
        for resource, total in from_status
        if str(total) != "0"
    ]


# --- series ---
#
# The number of pending and running Workloads of a ClusterQueue and their usage over time, from the history.


POINTS: Final = 120
_BEGIN_TO_WAIT: Final = (CREATED, EVICTED, PREEMPTED)
_WAIT_NO_MORE: Final = (RESERVED, FINISHED, DELETED)

_Changes: TypeAlias = Iterator[tuple[Instant, int]]


def series_of(source: ViewInputs, queue: str) -> Model | None:
    """Return step functions with a fixed number of points; None without history."""
    lives = [life for life in source.history.lives.values() if life.queue == queue]
    if not lives:
        return None
    start = min(life.marks[0].at for life in lives)
    step = max(SECOND, -(-(source.now - start) // POINTS))
    times = range(start, max(source.now, start + step), step)
    usage: dict[tuple[str, str], list[tuple[Instant, int]]] = {}
    for life in lives:
        for at, flavor, resource, amount in _used(life):
            usage.setdefault((flavor, resource), []).append((at, amount))
    return {
        "from": time_of(start),
        "to": time_of(source.now),
        "pending": _sums(_changes(lives, _waiting), start, step, len(times)),
        "running": _sums(_changes(lives, _running), start, step, len(times)),
        "usage": [
            {"flavor": flavor, "resource": resource, **_amounts(resource, _sums(changes, start, step, len(times)))}
            for (flavor, resource), changes in sorted(usage.items())
        ],
    }


def _amounts(resource: str, values: list[int]) -> Model:
    return {"values": values, "most": in_words(resource, max(values))}


def _changes(lives: Iterable[WorkloadHistory], of: Callable[[WorkloadHistory], _Changes]) -> list[tuple[Instant, int]]:
    return [change for life in lives for change in of(life)]


def _waiting(life: WorkloadHistory) -> _Changes:
    """Yield when a Workload became pending, and when it stopped."""
    waits = False
    for mark in life.marks:
        if mark.what in _BEGIN_TO_WAIT and not waits:
            waits = True
            yield mark.at, 1
        elif mark.what in _WAIT_NO_MORE and waits:
            waits = False
            yield mark.at, -1


def _running(life: WorkloadHistory) -> _Changes:
    for stint in life.quota_intervals:
        yield stint.start, 1
        if stint.end is not None:
            yield stint.end, -1


def _used(life: WorkloadHistory) -> Iterator[tuple[Instant, str, str, int]]:
    for stint in life.quota_intervals:
        for flavor, resource, amount in stint.usage:
            yield stint.start, flavor, resource, amount
            if stint.end is not None:
                yield stint.end, flavor, resource, -amount


def _sums(changes: Iterable[tuple[Instant, int]], start: Instant, step: int, count: int) -> list[int]:
    """Return the sum of all changes up to the end of each step."""
    steps = [0] * count
    for at, change in changes:
        steps[min(count - 1, max(0, (at - start) // step))] += change
    for place in range(1, count):
        steps[place] += steps[place - 1]
    return steps


# --- queue ---
#
# One ClusterQueue: pending Workloads in order, LocalQueues, quota, history.


def queue(source: ViewInputs, scope: NamespaceAccess, query: Query) -> Model | None:
    """Return one ClusterQueue, or None if it does not exist. Hidden Workloads appear only as positions."""
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


def _line(source: ViewInputs, scope: NamespaceAccess, name: str, window: PageWindow) -> list[Model]:
    """Return the pending Workloads in scheduling order."""
    first = source.standing.first_pending(name, window.offset + window.limit)
    lines, reasons = list[Model](), Reasons()
    for place, view in enumerate(first, 1):
        row = row_at(source, view.key) if scope.sees(scheme.WORKLOAD, view.namespace) else None
        lines.append({"position": place, **({"hidden": True} if row is None else reasons.reported(view, row))})
    return lines[window.offset :]
