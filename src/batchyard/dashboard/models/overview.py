"""The overview page, the Cohort trees, and the timeline of quota and node intervals."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant, duration_seconds
from batchyard.dashboard.data_source import PENDING, NamespaceAccess, Query, ViewInputs, ViewJson
from batchyard.dashboard.history import PREEMPTED, WorkloadHistory
from batchyard.dashboard.models.charts import usage_charts
from batchyard.dashboard.models.nodes import cluster_summary
from batchyard.dashboard.models.queues import cluster_queue_row, local_queues
from batchyard.dashboard.models.rows import (
    SharedPendingReasons,
    dominant_usage_rows,
    format_timestamp,
    quota_usage_rows,
    shadow_comparison,
    workload_row,
    workload_row_by_key,
)
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.quota import QuotaNode

#: The maximum number of rows of each list; separate views show all rows.
QUEUES_SHOWN_MAX: Final = 60
WORKLOADS_SHOWN_MAX: Final = 12


def overview_document(inputs: ViewInputs, access: NamespaceAccess, _query: Query) -> ViewJson:
    """Return the document of the overview page; users without access to ClusterQueues get their LocalQueues instead."""
    document: ViewJson = {}
    if access.may_list_all(scheme.NODE):
        document["cluster"] = cluster_summary(inputs)
    document |= shadow_comparison(inputs, access)
    document |= usage_charts(inputs, access)
    if access.may_list_all(scheme.CLUSTER_QUEUE):
        document |= _cluster_queue_rows(inputs)
    else:
        document["localQueues"] = local_queues(inputs, access)
    namespaces = access.namespaces(scheme.WORKLOAD, inputs.reader)
    document |= _all_workloads(inputs) if namespaces is None else _workloads_in_namespaces(inputs, namespaces)
    return document


def _cluster_queue_rows(inputs: ViewInputs) -> ViewJson:
    queues = inputs.queue_source.snapshot.queues
    names = sorted(queues)
    queue_rows = [cluster_queue_row(inputs, queues[name]) for name in names[:QUEUES_SHOWN_MAX]]
    return {"queues": queue_rows, "queuesCount": len(names)}


def _all_workloads(inputs: ViewInputs) -> ViewJson:
    queues = inputs.queue_source.snapshot.queues
    admitted_workloads = [workload for queue in queues.values() for workload in queue.workloads.values()]
    latest_workloads = heapq.nlargest(WORKLOADS_SHOWN_MAX, admitted_workloads, key=_reservation_sort_key)
    first_pending_workloads = heapq.nsmallest(
        WORKLOADS_SHOWN_MAX, _first_pending_workloads(inputs), key=lambda sort_key: sort_key[:2]
    )
    pending_reasons = SharedPendingReasons(inputs.queue_source.snapshot)
    return {
        "runningCount": len(admitted_workloads),
        "running": [row for workload in latest_workloads if (row := workload_row_by_key(inputs, workload.key))],
        "waitingCount": sum(map(inputs.queue_source.count_pending, queues)),
        "waiting": [
            pending_reasons.with_reason(view, row)
            for _, _, view in first_pending_workloads
            if (row := workload_row_by_key(inputs, view.key))
        ],
    }


def _first_pending_workloads(inputs: ViewInputs) -> Iterator[tuple[int, str, WorkloadView]]:
    queue_names = [name for name in inputs.queue_source.snapshot.queues if inputs.queue_source.count_pending(name)]
    for name in queue_names:
        shown_per_queue = -(-WORKLOADS_SHOWN_MAX // len(queue_names))
        for position, view in enumerate(inputs.queue_source.first_pending(name, shown_per_queue)):
            yield position, name, view


def _workloads_in_namespaces(inputs: ViewInputs, namespaces: list[str]) -> ViewJson:
    workload_entries = inputs.workload_list.entries(inputs.reader, namespaces)
    running_entries = [entry for entry in workload_entries if entry.view.quota_reserved and not entry.view.finished]
    pending_entries = [entry for entry in workload_entries if entry.state == PENDING]
    latest_entries = heapq.nlargest(WORKLOADS_SHOWN_MAX, running_entries, key=lambda entry: entry.view.reserved_at or 0)
    heads = heapq.nsmallest(
        WORKLOADS_SHOWN_MAX, pending_entries, key=lambda entry: (-entry.view.priority, entry.view.queued)
    )
    reasons = SharedPendingReasons(inputs.queue_source.snapshot)
    return {
        "runningCount": len(running_entries),
        "running": [workload_row(inputs, entry.view, entry.obj) for entry in latest_entries],
        "waitingCount": len(pending_entries),
        "waiting": [reasons.with_reason(entry.view, workload_row(inputs, entry.view, entry.obj)) for entry in heads],
    }


def _reservation_sort_key(workload: AdmittedWorkload) -> tuple[int, str]:
    return workload.reserved_at, workload.key


# The Cohort trees: quota, usage, borrowing and lending at each level.


def cohorts_document(inputs: ViewInputs, access: NamespaceAccess, _query: Query) -> ViewJson:
    """Return the document of the page of Cohort trees; trees without children come last.

    Without permission, the document only has `forbidden`.
    """
    if not access.may_list_all(scheme.CLUSTER_QUEUE):
        return {"forbidden": "clusterqueues"}
    root_nodes = dict.fromkeys(queue.node.path[0] for queue in inputs.queue_source.snapshot.queues.values())
    root_nodes |= dict.fromkeys(node for node in inputs.queue_source.snapshot.cohorts.values() if node.parent is None)
    cohort_trees = [_cohort_tree(inputs, root) for root in root_nodes]
    return {"trees": sorted(cohort_trees, key=lambda tree: (not tree["children"], tree["kind"], tree["name"]))}


def _cohort_tree(inputs: ViewInputs, node: QuotaNode) -> ViewJson:
    queue = inputs.queue_source.snapshot.queue_of.get(node)
    child_trees = [_cohort_tree(inputs, node.children[name]) for name in sorted(node.children)]
    usage = quota_usage_rows(inputs.queue_source.snapshot, node)
    tree_fields = {"name": node.name, "usage": usage, "bars": dominant_usage_rows(usage), "children": child_trees}
    if queue is None:
        workload_counts = {name: sum(child[name] for child in child_trees) for name in ("pending", "admitted")}
        return {"kind": "Cohort", **tree_fields, **workload_counts}
    workload_counts = {"pending": inputs.queue_source.count_pending(queue.name), "admitted": len(queue.workloads)}
    return {"kind": "ClusterQueue", **tree_fields, **workload_counts}


# The timeline: quota intervals of Workloads by flavor, or pod intervals by node, and preemptions.


#: The maximum number of bars; the oldest are dropped.
SPANS_MAX: Final = 3000
REPORT_SPANS_MAX: Final = 30_000
_DEFAULT_TIMELINE_PERIOD: Final = HOUR
_MIN_TIMELINE_PERIOD: Final = MINUTE


class _TimelineBar(NamedTuple):
    """One bar of the timeline: an interval of a Workload in a lane (a flavor or a node)."""

    start: Instant
    end: Instant | None
    lane: str
    #: The key of the Workload.
    workload: str
    outcome: str


def timeline_document(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson:
    """Return the document of the timeline page. Times are seconds since `origin`; a bar without an end still runs.

    Beyond a maximum number of bars, the oldest are dropped; `dropped` is their number.
    """
    lane_kind = "node" if query.get("by") == "node" and access.may_list_all(scheme.NODE) else "flavor"
    period_start = _period_start(inputs, query)
    histories = (history for history in inputs.history.workload_histories.values() if history.quota_intervals)
    visible_histories = [history for history in histories if access.may_list(scheme.WORKLOAD, history.namespace)]
    histories_by_key = {history.key: history for history in visible_histories}
    all_spans = _spans_by_node(inputs, access) if lane_kind == "node" else _spans_by_flavor(histories_by_key.values())
    spans = [span for span in all_spans if span.end is None or span.end >= period_start]
    spans_max = REPORT_SPANS_MAX if inputs.is_complete else SPANS_MAX
    dropped_count = max(0, len(spans) - spans_max)
    if dropped_count:
        spans = heapq.nlargest(spans_max, spans, key=lambda span: (span.start, span.workload))
    workload_numbers = {key: number for number, key in enumerate(dict.fromkeys(span.workload for span in spans))}
    queue_names = sorted({histories_by_key[key].queue for key in workload_numbers if key in histories_by_key})
    return {
        "by": lane_kind,
        "origin": format_timestamp(period_start),
        "to": float(duration_seconds(inputs.now - period_start)),
        "lanes": _lane_documents(spans, workload_numbers, period_start),
        "workloads": [_workload_entry(histories_by_key.get(key), key, queue_names) for key in workload_numbers],
        "queues": queue_names,
        "preemptions": _preemption_documents(inputs, histories_by_key, workload_numbers, period_start),
        "dropped": dropped_count,
    }


def _period_start(inputs: ViewInputs, query: Query) -> Instant:
    """Return the start of the shown period; the query parameter `last` is its length in seconds, or `all`."""
    period_text = query.get("last", "")
    if period_text == "all":
        histories = inputs.history.workload_histories.values()
        first_mark_at = min((history.marks[0].at for history in histories), default=inputs.now)
        return first_mark_at // SECOND * SECOND
    is_valid = period_text.isascii() and period_text.isdecimal() and len(period_text) < 10
    period = int(period_text) * SECOND if is_valid else _DEFAULT_TIMELINE_PERIOD
    return (inputs.now - max(period, _MIN_TIMELINE_PERIOD)) // SECOND * SECOND


def _spans_by_flavor(histories: Iterable[WorkloadHistory]) -> list[_TimelineBar]:
    return [
        _TimelineBar(interval.start, interval.end, flavor, history.key, interval.outcome)
        for history in histories
        for interval in history.quota_intervals
        for flavor in interval.flavors
    ]


def _spans_by_node(inputs: ViewInputs, access: NamespaceAccess) -> list[_TimelineBar]:
    """Return the timeline's bars by node; pods of a Workload that start at the same time on a node share a bar."""
    span_ends: dict[tuple[str, str, Instant], Instant | None] = {}
    for interval in inputs.history.pod_binding_intervals():
        if not interval.workload or not access.may_list(scheme.POD, interval.namespace):
            continue
        key = (interval.node, interval.workload, interval.start)
        latest_end_time = span_ends.get(key, 0)
        span_ends[key] = None if latest_end_time is None or interval.end is None else max(latest_end_time, interval.end)
    return [_TimelineBar(start, end, node, workload, "") for (node, workload, start), end in span_ends.items()]


def _lane_documents(
    spans: list[_TimelineBar], workload_numbers: dict[str, int], period_start: Instant
) -> list[ViewJson]:
    spans_by_lane: dict[str, list[_TimelineBar]] = {}
    for span in spans:
        spans_by_lane.setdefault(span.lane, []).append(span)
    lane_documents = []
    for name in sorted(spans_by_lane):
        bars, row_count = _arrange_bars_in_rows(spans_by_lane[name], workload_numbers, period_start)
        lane_documents.append({"name": name, "rows": row_count, "bars": bars})
    return lane_documents


def _arrange_bars_in_rows(
    spans: list[_TimelineBar], workload_numbers: dict[str, int], period_start: Instant
) -> tuple[list[list[object]], int]:
    """Return bars [start, end, row, Workload number, outcome], each in the first free row, and the row count."""
    free_rows: list[int] = []
    busy_rows: list[tuple[Instant, int]] = []
    row_count, bars = 0, list[list[object]]()
    for span in sorted(spans, key=lambda span: (span.start, span.workload)):
        while busy_rows and busy_rows[0][0] <= span.start:
            heapq.heappush(free_rows, heapq.heappop(busy_rows)[1])
        if free_rows:
            row = heapq.heappop(free_rows)
        else:
            row, row_count = row_count, row_count + 1
        if span.end is not None:
            heapq.heappush(busy_rows, (span.end, row))
        end = None if span.end is None else duration_seconds(span.end - period_start)
        bars.append(
            [duration_seconds(span.start - period_start), end, row, workload_numbers[span.workload], span.outcome]
        )
    return bars, row_count


def _workload_entry(history: WorkloadHistory | None, key: str, queues: list[str]) -> list[object]:
    """Return a Workload as [key, index of its queue in `queues`, priority]; [key, -1, 0] without a history."""
    return [key, -1, 0] if history is None else [key, queues.index(history.queue), history.priority]


def _preemption_documents(
    inputs: ViewInputs, histories: dict[str, WorkloadHistory], workload_numbers: dict[str, int], period_start: Instant
) -> list[ViewJson]:
    preemption_documents = []
    for key, number in workload_numbers.items():
        for mark in histories[key].marks if key in histories else ():
            preemptor = inputs.history.workload_histories.get(mark.preemptor_uid) if mark.event == PREEMPTED else None
            if preemptor is not None and preemptor.key in workload_numbers and mark.at >= period_start:
                at, preemptor_number = duration_seconds(mark.at - period_start), workload_numbers[preemptor.key]
                preemption_documents.append({"at": at, "victim": number, "by": preemptor_number})
    return sorted(preemption_documents, key=lambda preemption: (preemption["at"], preemption["victim"]))
