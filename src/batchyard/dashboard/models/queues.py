"""The queue pages of the dashboard: rows of ClusterQueues and LocalQueues, and one ClusterQueue in detail."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from batchyard.api import meta, scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.base.instant import SECOND, Instant
from batchyard.dashboard import data_source
from batchyard.dashboard.data_source import NamespaceAccess, Query, ViewInputs, ViewJson
from batchyard.dashboard.history import CREATED, DELETED, EVICTED, FINISHED, PREEMPTED, RESERVED, WorkloadHistory
from batchyard.dashboard.models.rows import (
    SharedPendingReasons,
    dominant_usage_rows,
    format_timestamp,
    quota_usage_rows,
    workload_row_by_key,
)
from batchyard.scheduling.cluster_queue import ClusterQueue


def cluster_queue_row(inputs: ViewInputs, queue: ClusterQueue) -> ViewJson:
    """Return the row of a ClusterQueue, with counts of Workloads and a usage bar for each flavor."""
    queue_state = inputs.queue_source.active_status(queue.name)
    admitted_count = sum(workload.is_admitted for workload in queue.workloads.values())
    return {
        "name": queue.name,
        "cohort": queue.view.cohort,
        "strategy": "StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO",
        "pending": inputs.queue_source.count_pending(queue.name),
        "reserving": len(queue.workloads),
        "admitted": admitted_count,
        "active": queue_state.active,
        "why": "" if queue_state.active else queue_state.message,
        "bars": dominant_usage_rows(quota_usage_rows(inputs.queue_source.snapshot, queue.node)),
    }


def local_queues(inputs: ViewInputs, access: NamespaceAccess, cluster_queue: str = "") -> list[ViewJson]:
    """Return the rows of the LocalQueues that the user may list; with `cluster_queue`, only of that ClusterQueue."""
    namespaces = access.namespaces(scheme.LOCAL_QUEUE, inputs.reader)
    if namespaces is None:
        queue_objects = list(inputs.reader.list(scheme.LOCAL_QUEUE))
    else:
        queue_objects = [obj for name in namespaces for obj in inputs.reader.list(scheme.LOCAL_QUEUE, name)]
    return [_local_queue_row(obj) for obj in queue_objects if cluster_queue in ("", obj["spec"].get("clusterQueue"))]


def _local_queue_row(obj: Obj) -> ViewJson:
    status, active_condition = obj.get("status") or {}, find_condition(obj, "Active")
    is_active = active_condition is None or active_condition["status"] == "True"
    return {
        "namespace": obj["metadata"]["namespace"],
        "name": obj["metadata"]["name"],
        "clusterQueue": obj["spec"].get("clusterQueue", ""),
        "pending": status.get("pendingWorkloads", 0),
        "reserving": status.get("reservingWorkloads", 0),
        "admitted": status.get("admittedWorkloads", 0),
        "active": is_active,
        "why": "" if is_active or active_condition is None else active_condition.get("message", ""),
        "usage": [line for flavor in status.get("flavorsReservation") or () for line in _local_usage_rows(flavor)],
        **past_usage(status.get("fairSharing") or {}),
    }


def past_usage(fair_sharing_status: dict[str, Any]) -> ViewJson:
    """Return the field `pastUsage` (the consumed resources, as text) if admission fair sharing is enabled, else {}."""
    consumed = (fair_sharing_status.get("admissionFairSharingStatus") or {}).get("consumedResources")
    if consumed is None:
        return {}
    texts = [f"{_format_quantity(resource, quantity)} {resource}" for resource, quantity in sorted(consumed.items())]
    return {"pastUsage": ", ".join(texts)}


def _format_quantity(resource: str, quantity: str) -> str:
    return data_source.format_resource_amount(resource, meta.amount(resource, quantity))


def _local_usage_rows(flavor_usage: dict[str, Any]) -> list[ViewJson]:
    reserved_totals = {each["name"]: each.get("total", "0") for each in flavor_usage.get("resources") or ()}
    nonzero_totals = {name: total for name, total in reserved_totals.items() if str(total) != "0"}
    return [
        {"flavor": flavor_usage["name"], "resource": name, "used": _format_quantity(name, str(total))}
        for name, total in nonzero_totals.items()
    ]


# Time series from the history: pending and running Workloads of a ClusterQueue, and their usage.


SERIES_POINTS: Final = 120
_PENDING_EVENTS: Final = (CREATED, EVICTED, PREEMPTED)
_END_OF_PENDING_EVENTS: Final = (RESERVED, FINISHED, DELETED)

_Changes: TypeAlias = Iterator[tuple[Instant, int]]


def queue_time_series(inputs: ViewInputs, queue: str) -> ViewJson | None:
    """Return time series of a ClusterQueue's pending Workloads, running Workloads and usage.

    Return None if no Workload of the queue has a history.
    """
    histories = [history for history in inputs.history.workload_histories.values() if history.queue == queue]
    if not histories:
        return None
    start = min(history.marks[0].at for history in histories)
    step_duration = max(SECOND, -(-(inputs.now - start) // SERIES_POINTS))
    step_starts = range(start, max(inputs.now, start + step_duration), step_duration)
    usage_changes_by_flavor: dict[tuple[str, str], list[tuple[Instant, int]]] = {}
    for history in histories:
        for at, flavor, resource, amount in _usage_changes(history):
            usage_changes_by_flavor.setdefault((flavor, resource), []).append((at, amount))
    return {
        "from": format_timestamp(start),
        "to": format_timestamp(inputs.now),
        "pending": _running_sums(
            _all_changes(histories, _pending_count_changes), start, step_duration, len(step_starts)
        ),
        "running": _running_sums(
            _all_changes(histories, _running_count_changes), start, step_duration, len(step_starts)
        ),
        "usage": [
            {
                "flavor": flavor,
                "resource": resource,
                **_formatted_series(resource, _running_sums(changes, start, step_duration, len(step_starts))),
            }
            for (flavor, resource), changes in sorted(usage_changes_by_flavor.items())
        ],
    }


def _formatted_series(resource: str, amounts: list[int]) -> ViewJson:
    return {"values": amounts, "most": data_source.format_resource_amount(resource, max(amounts))}


def _all_changes(
    histories: Iterable[WorkloadHistory], changes_of: Callable[[WorkloadHistory], _Changes]
) -> list[tuple[Instant, int]]:
    return [change for history in histories for change in changes_of(history)]


def _pending_count_changes(history: WorkloadHistory) -> _Changes:
    is_pending = False
    for mark in history.marks:
        if mark.event in _PENDING_EVENTS and not is_pending:
            is_pending = True
            yield mark.at, 1
        elif mark.event in _END_OF_PENDING_EVENTS and is_pending:
            is_pending = False
            yield mark.at, -1


def _running_count_changes(history: WorkloadHistory) -> _Changes:
    for interval in history.quota_intervals:
        yield interval.start, 1
        if interval.end is not None:
            yield interval.end, -1


def _usage_changes(history: WorkloadHistory) -> Iterator[tuple[Instant, str, str, int]]:
    for interval in history.quota_intervals:
        for flavor, resource, amount in interval.usage:
            yield interval.start, flavor, resource, amount
            if interval.end is not None:
                yield interval.end, flavor, resource, -amount


def _running_sums(changes: Iterable[tuple[Instant, int]], start: Instant, step_duration: int, count: int) -> list[int]:
    sums_by_step = [0] * count
    for at, change in changes:
        sums_by_step[min(count - 1, max(0, (at - start) // step_duration))] += change
    for index in range(1, count):
        sums_by_step[index] += sums_by_step[index - 1]
    return sums_by_step


# One ClusterQueue in detail: pending Workloads in order, LocalQueues, quota, time series.


def queue_document(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson | None:
    """Return the document of one ClusterQueue's page; None if the ClusterQueue does not exist.

    Of hidden Workloads, only positions and counts appear. Without permission, the document only has `forbidden`.
    """
    if not access.may_list_all(scheme.CLUSTER_QUEUE):
        return {"forbidden": "clusterqueues"}
    name, window = query.get("name", ""), data_source.requested_page(inputs, query)
    cluster_queue = inputs.queue_source.snapshot.queues.get(name)
    if cluster_queue is None:
        return None
    spec = (inputs.reader.get(Key(scheme.CLUSTER_QUEUE, "", name)) or {}).get("spec") or {}
    preemption_fields = spec.get("preemption") or {}
    admitted_workloads = sorted(
        cluster_queue.workloads.values(), key=lambda workload: (-workload.reserved_at, workload.key)
    )
    listed_workloads = [
        workload for workload in admitted_workloads if access.may_list(scheme.WORKLOAD, workload.key.partition("/")[0])
    ]
    rows = [row for workload in listed_workloads[: window.limit] if (row := workload_row_by_key(inputs, workload.key))]
    queue_row = cluster_queue_row(inputs, cluster_queue)
    return {
        **{field: value for field, value in queue_row.items() if field != "bars"},
        "path": [node.name for node in cluster_queue.node.path[:-1]],
        "rules": {
            "preemption within the queue": preemption_fields.get("withinClusterQueue", "Never"),
            "reclaims in the cohort": preemption_fields.get("reclaimWithinCohort", "Never"),
            "stop policy": cluster_queue.view.stop_policy,
            "admission checks": ", ".join(cluster_queue.view.admission_checks) or "none",
        },
        "usage": quota_usage_rows(inputs.queue_source.snapshot, cluster_queue.node),
        "localQueues": local_queues(inputs, access, name),
        "line": _pending_rows(inputs, access, name, window),
        "offset": window.offset,
        "limit": window.limit,
        "running": rows,
        "hiddenRunning": len(admitted_workloads) - len(listed_workloads),
        "series": queue_time_series(inputs, name),
    }


def _pending_rows(
    inputs: ViewInputs, access: NamespaceAccess, name: str, page_window: data_source.PageWindow
) -> list[ViewJson]:
    first_pending_views = inputs.queue_source.first_pending(name, page_window.offset + page_window.limit)
    rows, reasons = list[ViewJson](), SharedPendingReasons(inputs.queue_source.snapshot)
    for position, view in enumerate(first_pending_views, 1):
        row = workload_row_by_key(inputs, view.key) if access.may_list(scheme.WORKLOAD, view.namespace) else None
        rows.append({"position": position, **({"hidden": True} if row is None else reasons.with_reason(view, row))})
    return rows[page_window.offset :]
