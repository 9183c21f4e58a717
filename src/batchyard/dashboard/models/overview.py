"""The overview: cluster, queues, running Workloads, pending Workloads and their reasons."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant, seconds
from batchyard.dashboard.data_source import PENDING, Model, NamespaceAccess, Query, ViewInputs
from batchyard.dashboard.history import PREEMPTED, WorkloadHistory
from batchyard.dashboard.models.nodes import cluster_figures
from batchyard.dashboard.models.queues import local_queues, queue_line
from batchyard.dashboard.models.rows import Reasons, comparison, main_usage, row_at, row_of, time_of, usage_of
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


# --- timeline ---
#
# The time line: quota intervals of Workloads by flavor or node, and preemptions between them.


#: Maximum number of spans shown; the oldest are dropped.
SPANS_MAX: Final = 3000
WHOLE_SPANS_MAX: Final = 30_000
_DEFAULT: Final = HOUR
_SHORTEST: Final = MINUTE


class _Span(NamedTuple):
    """A bar of the time line."""

    start: Instant
    end: Instant | None
    lane: str
    #: The key of the Workload.
    workload: str
    outcome: str


def timeline(source: ViewInputs, scope: NamespaceAccess, query: Query) -> Model:
    """Return the time line. Times are seconds since `origin`; a bar without end is still running."""
    by = "node" if query.get("by") == "node" and scope.all_of(scheme.NODE) else "flavor"
    since = _since(source, query)
    begun = (life for life in source.history.lives.values() if life.quota_intervals)
    lives = {life.key: life for life in begun if scope.sees(scheme.WORKLOAD, life.namespace)}
    found = _on_nodes(source, scope) if by == "node" else _in_flavors(lives.values())
    spans = [span for span in found if span.end is None or span.end >= since]
    most = WHOLE_SPANS_MAX if source.whole else SPANS_MAX
    dropped = max(0, len(spans) - most)
    if dropped:
        spans = heapq.nlargest(most, spans, key=lambda span: (span.start, span.workload))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(span.workload for span in spans))}
    queues = sorted({lives[key].queue for key in numbers if key in lives})
    return {
        "by": by,
        "origin": time_of(since),
        "to": float(seconds(source.now - since)),
        "lanes": _lanes(spans, numbers, since),
        "workloads": [_named(lives.get(key), key, queues) for key in numbers],
        "queues": queues,
        "preemptions": _preemptions(source, lives, numbers, since),
        "dropped": dropped,
    }


def _since(source: ViewInputs, query: Query) -> Instant:
    """Return the start of the shown interval, from `last` in seconds or `all`."""
    text = query.get("last", "")
    if text == "all":
        return min((life.marks[0].at for life in source.history.lives.values()), default=source.now) // SECOND * SECOND
    last = int(text) * SECOND if text.isascii() and text.isdecimal() and len(text) < 10 else _DEFAULT
    return (source.now - max(last, _SHORTEST)) // SECOND * SECOND


def _in_flavors(lives: Iterable[WorkloadHistory]) -> list[_Span]:
    return [
        _Span(stint.start, stint.end, flavor, life.key, stint.outcome)
        for life in lives
        for stint in life.quota_intervals
        for flavor in stint.flavors
    ]


def _on_nodes(source: ViewInputs, scope: NamespaceAccess) -> list[_Span]:
    """Return spans by node; pods of a Workload that start together on a node share a span."""
    together: dict[tuple[str, str, Instant], Instant | None] = {}
    for stay in source.history.stays():
        if not stay.workload or not scope.sees(scheme.POD, stay.namespace):
            continue
        place = (stay.node, stay.workload, stay.start)
        known = together.get(place, 0)
        together[place] = None if known is None or stay.end is None else max(known, stay.end)
    return [_Span(start, end, node, workload, "") for (node, workload, start), end in together.items()]


def _lanes(spans: list[_Span], numbers: dict[str, int], since: Instant) -> list[Model]:
    by_lane: dict[str, list[_Span]] = {}
    for span in spans:
        by_lane.setdefault(span.lane, []).append(span)
    lanes = []
    for name in sorted(by_lane):
        bars, height = _in_rows(by_lane[name], numbers, since)
        lanes.append({"name": name, "rows": height, "bars": bars})
    return lanes


def _in_rows(spans: list[_Span], numbers: dict[str, int], since: Instant) -> tuple[list[list[object]], int]:
    """Return bars [start, end, row, Workload number, outcome], each in the first row that is free."""
    free: list[int] = []
    busy: list[tuple[Instant, int]] = []
    height, bars = 0, list[list[object]]()
    for span in sorted(spans, key=lambda span: (span.start, span.workload)):
        while busy and busy[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, height = height, height + 1
        if span.end is not None:
            heapq.heappush(busy, (span.end, row))
        end = None if span.end is None else seconds(span.end - since)
        bars.append([seconds(span.start - since), end, row, numbers[span.workload], span.outcome])
    return bars, height


def _named(life: WorkloadHistory | None, key: str, queues: list[str]) -> list[object]:
    """Return a Workload as [key, queue number, priority]; queue and priority are unknown if it was dropped."""
    return [key, -1, 0] if life is None else [key, queues.index(life.queue), life.priority]


def _preemptions(
    source: ViewInputs, lives: dict[str, WorkloadHistory], numbers: dict[str, int], since: Instant
) -> list[Model]:
    """Return the preemptions between shown Workloads."""
    found = []
    for key, number in numbers.items():
        for mark in lives[key].marks if key in lives else ():
            other = source.history.lives.get(mark.by) if mark.what == PREEMPTED else None
            if other is not None and other.key in numbers and mark.at >= since:
                found.append({"at": seconds(mark.at - since), "victim": number, "by": numbers[other.key]})
    return sorted(found, key=lambda each: (each["at"], each["victim"]))
