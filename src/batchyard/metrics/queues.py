"""Metrics of ClusterQueues, LocalQueues and Cohorts: gauges of usage and pending Workloads, computed on scrape.

Sources: Kueue's pkg/cache/queue/metrics.go, pkg/cache/scheduler (clusterqueue, localqueue, cohort_metrics),
pkg/controller/core.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import INT64_MAX, Key, find_condition
from batchyard.api.views.workload import LocalQueueView, Shape, WorkloadView
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.metrics.exposition import metric_by_workload_labels
from batchyard.metrics.registry import Labels, gauge_text_chunks
from batchyard.metrics.workloads import WorkloadMetrics
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.queue_manager import PendingQueue
from batchyard.scheduling.quota import QuotaNode, weighted_share
from batchyard.scheduling.scheduler_cache import SchedulerCache

QueueSamples: TypeAlias = Iterator[tuple[Labels, float]]

_QUEUE_STATUSES: Final = ("pending", "active", "terminating")
_CONDITION_STATUSES: Final = ("True", "False", "Unknown")
_ACTIVE_STATUS, _INADMISSIBLE_STATUS = "active", "inadmissible"


class _PendingWorkloads:
    def __init__(self, queue: PendingQueue, *, is_active: bool, request_cache: "_RequestCache") -> None:
        self.active_count = 0
        self.total_count = len(queue)
        #: The number of active and of all pending Workloads, by LocalQueue.
        self.counts_by_local_queue = {name: (0, count) for name, count in queue.counts_by_local_queue.items()}
        shapes: tuple[dict[Shape, None], dict[Shape, None]] = ({}, {})
        self.resources: dict[str, int] = {}
        for (shape, _, _), members in queue.classes():
            representative = members.in_line.first_entry() or members.parked.first_entry()
            if representative is None:
                continue
            active_count = members.in_line.size if is_active else 0
            size = members.in_line.size + members.parked.size
            self.active_count += active_count
            shapes[0 if active_count else 1][shape] = None
            if active_count and members.parked.size:
                shapes[1][shape] = None
            for resource, amount in request_cache.requests_of(representative.view):
                self.resources[resource] = self.resources.get(resource, 0) + amount * size
            for member in members.in_line.members() if active_count else ():
                local_active_count, local_count = self.counts_by_local_queue[member.view.queue]
                self.counts_by_local_queue[member.view.queue] = local_active_count + 1, local_count
        for view in queue.held_workloads():
            shapes[1][view.shape] = None
            for resource, amount in request_cache.requests_of(view):
                self.resources[resource] = self.resources.get(resource, 0) + amount
        #: The number of distinct shapes of active and of inadmissible Workloads.
        self.shape_counts = len(shapes[0]), len(shapes[1])
        #: The number of Workloads by status and the values of their custom labels; empty without such labels.
        self.label_counts: dict[Labels, int] = {}

    def count_labels(
        self, queue: PendingQueue, values_of: Callable[[WorkloadView], Labels], *, is_active: bool
    ) -> None:
        """Count the Workloads by the values of their custom labels; in an inactive queue, all are inadmissible."""
        views_by_status: dict[str, list[WorkloadView]] = {
            _ACTIVE_STATUS: [],
            _INADMISSIBLE_STATUS: queue.held_workloads(),
        }
        for _, members in queue.classes():
            in_line_status = _ACTIVE_STATUS if is_active else _INADMISSIBLE_STATUS
            views_by_status[in_line_status].extend(member.view for member in members.in_line.members())
            views_by_status[_INADMISSIBLE_STATUS].extend(member.view for member in members.parked.members())
        for status, views in views_by_status.items():
            for view in views:
                labels = status, *values_of(view)
                self.label_counts[labels] = self.label_counts.get(labels, 0) + 1


class _RequestCache:
    """The total resource requests of pending Workloads, cached by their `shape` (scheduling equivalence class)."""

    def __init__(self) -> None:
        self._previous: dict[Shape, Sequence[tuple[str, int]]] = {}
        self._current: dict[Shape, Sequence[tuple[str, int]]] = {}

    def requests_of(self, view: WorkloadView) -> Sequence[tuple[str, int]]:
        requests_by_resource = self._current.get(view.shape) or self._previous.get(view.shape)
        if requests_by_resource is None:
            requested_amounts: dict[str, int] = {}
            for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
                for resource, amount in pod_set.template.requests:
                    requested_amounts[resource] = requested_amounts.get(resource, 0) + amount * count
            requests_by_resource = tuple(requested_amounts.items())
        self._current[view.shape] = requests_by_resource
        return requests_by_resource

    def drop_unused(self) -> None:
        self._previous, self._current = self._current, {}


class QueueMetrics:
    """Gauges of ClusterQueues, LocalQueues and Cohorts, computed from the scheduler's cache."""

    def __init__(
        self, cache: SchedulerCache, workloads: WorkloadMetrics, objects: Reader, role: str, *, fair_sharing: bool
    ) -> None:
        self._cache = cache
        self._workloads = workloads
        self._workload_labels = workloads.workload_labels
        self._objects = objects
        self._role = role
        self._fair_sharing = fair_sharing
        self._request_cache = _RequestCache()
        #: Cohorts whose object was deleted; ClusterQueues may still name these Cohorts.
        self._deleted_cohorts: set[str] = set()

    def observe(self, event: WatchEvent) -> None:
        """Update the set of deleted Cohorts, whose gauges are omitted, from a watch event.

        A Cohort leaves the set when its object is created again, or when a ClusterQueue below it changes.

        Source: ClearCohortMetrics and RecordCohortMetrics in Kueue's pkg/controller/core.
        """
        kind, name = event.key.kind, event.key.name
        if kind == scheme.COHORT and event.type is EventType.DELETED:
            self._deleted_cohorts.add(name)
        elif kind == scheme.COHORT:
            self._deleted_cohorts.discard(name)
        elif kind == scheme.CLUSTER_QUEUE and self._deleted_cohorts:
            queue = self._cache.snapshot.queues.get(name)
            self._deleted_cohorts.difference_update(node.name for node in (queue.node.path[:-1] if queue else ()))

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of each gauge; an empty string marks a point where the server may do other work."""
        self._cache.snapshot.rebuild_if_changed()
        pending_workloads = {}
        for name in list(self._cache.queue_manager.pending):
            queue, cluster_queue = self._cache.queue_manager.pending.get(name), self._cache.snapshot.queues.get(name)
            if queue is not None and cluster_queue is not None:
                is_active = cluster_queue.active
                pending_workloads[name] = _PendingWorkloads(
                    queue, is_active=is_active, request_cache=self._request_cache
                )
                if self._workload_labels.names:
                    pending_workloads[name].count_labels(queue, self._label_values_of, is_active=is_active)
                yield ""
        self._request_cache.drop_unused()
        yield from self._pending_texts(pending_workloads)
        yield from self._cluster_queue_texts()
        yield from self._usage_texts()
        yield from self._local_queue_texts(pending_workloads)
        yield from self._cohort_texts()

    def _gauge(self, name: str, samples: QueueSamples) -> Iterator[str]:
        definition = metric_by_workload_labels(f"kueue_{name}", self._workload_labels.names)
        return gauge_text_chunks(definition, (((*labels, self._role), value) for labels, value in samples))

    def _label_values_of(self, view: WorkloadView) -> Labels:
        return self._workload_labels.values_of(self._objects.get(_namespaced_key(scheme.WORKLOAD, view.key)))

    def _admitted_samples(self, queue: Key, count: int) -> QueueSamples:
        """Yield the number of a queue's admitted Workloads, by the values of their custom labels if there are any."""
        counts = self._workloads.admitted_counts
        return iter([((), count)]) if counts is None else counts.samples(queue)

    def _pending_texts(self, pending_workloads: Mapping[str, _PendingWorkloads]) -> Iterator[str]:
        workload_counts = (
            (name, queue_pending.active_count, queue_pending.total_count - queue_pending.active_count)
            for name, queue_pending in pending_workloads.items()
        )
        pending_samples = _active_and_inadmissible_samples(workload_counts)
        if self._workload_labels.names:
            # As in Kueue, only label values of pending Workloads have series.
            pending_samples = (
                ((name, *labels), count)
                for name, w in pending_workloads.items()
                for labels, count in w.label_counts.items()
            )
        yield from self._gauge("pending_workloads", pending_samples)
        yield from self._gauge(
            "pending_scheduling_hashes",
            _active_and_inadmissible_samples((name, *w.shape_counts) for name, w in pending_workloads.items()),
        )
        yield from self._gauge("cluster_queue_resource_pending", self._pending_requests(pending_workloads))
        yield from self._gauge("unadmitted_workloads", self._unadmitted_samples())
        yield from self._gauge("finished_workloads", self._finished_samples())

    def _pending_requests(self, pending_workloads: Mapping[str, _PendingWorkloads]) -> QueueSamples:
        names = self._cache.snapshot.flavor_resource_names
        for name, queue_pending in pending_workloads.items():
            queue = self._cache.snapshot.queues.get(name)
            nominal_quotas = () if queue is None else queue.node.nominal
            for resource, amount in {**{names[fr][1]: 0 for fr in nominal_quotas}, **queue_pending.resources}.items():
                yield (name, resource), to_metric_unit(resource, amount)

    def _unadmitted_samples(self) -> QueueSamples:
        workload_counts: dict[Labels, int] = {}
        for (local_queue_key, reason, cause), count in self._workloads.unadmitted_counts.items():
            labels = self._cluster_queue_of(local_queue_key), reason, cause
            workload_counts[labels] = workload_counts.get(labels, 0) + count
        yield from workload_counts.items()

    def _finished_samples(self) -> QueueSamples:
        finished_counts = dict.fromkeys(self._cache.snapshot.queues, 0)
        for local_queue_key, count in self._workloads.finished_counts.items():
            name = self._cluster_queue_of(local_queue_key)
            if name in finished_counts:
                finished_counts[name] += count
        return (((name,), count) for name, count in finished_counts.items())

    def _cluster_queue_of(self, local_queue_key: str) -> str:
        view = self._cache.workload_cache.local_queues.get(local_queue_key)
        return "" if view is None else view.cluster_queue

    def _cluster_queue_texts(self) -> Iterator[str]:
        queues, counters = list(self._cache.snapshot.queues.values()), self._cache.workload_cache.cluster_queue_counters
        reserving_counts = (((q.name,), counters.get(q.name).reserving) for q in queues)
        yield from self._gauge("reserving_active_workloads", reserving_counts)
        admitted_counts = (
            ((q.name, *values), count)
            for q in queues
            for values, count in self._admitted_samples(
                Key(scheme.CLUSTER_QUEUE, "", q.name), counters.get(q.name).admitted
            )
        )
        yield from self._gauge("admitted_active_workloads", admitted_counts)
        statuses = [(q.name, self._status(q)) for q in queues]
        samples = (((name, state), float(state == status)) for name, status in statuses for state in _QUEUE_STATUSES)
        yield from self._gauge("cluster_queue_status", samples)
        yield from self._gauge("cluster_queue_info", (((q.name, *_cohort_labels(q.node)), 1) for q in queues))
        if self._fair_sharing:
            share_samples = (((q.name, q.view.cohort), self._weighted_share(q.node)) for q in queues)
            yield from self._gauge("cluster_queue_weighted_share", share_samples)

    def _status(self, queue: ClusterQueue) -> str:
        if self._cache.is_terminating(queue.name):
            return "terminating"
        return "active" if queue.active else "pending"

    def _usage_texts(self) -> Iterator[str]:
        queues, counters = list(self._cache.snapshot.queues.values()), self._cache.workload_cache.cluster_queue_counters
        usage_by_queue = {q.name: counters.get(q.name) for q in queues}
        gauge_tables = (
            ("cluster_queue_nominal_quota", [(q, q.node.nominal, 0.0) for q in queues]),
            ("cluster_queue_borrowing_limit", [(q, q.node.borrowing_limit, math.inf) for q in queues]),
            ("cluster_queue_lending_limit", [(q, q.node.lending_limit, math.inf) for q in queues]),
            ("cluster_queue_resource_reservation", [(q, usage_by_queue[q.name].reserved_usage, 0.0) for q in queues]),
            ("cluster_queue_resource_usage", [(q, usage_by_queue[q.name].admitted_usage, 0.0) for q in queues]),
        )
        names = self._cache.snapshot.flavor_resource_names
        for name, table in gauge_tables:
            samples = (
                ((queue.view.cohort, queue.name, *names[fr]), to_metric_unit(names[fr][1], amounts.get(fr, default)))
                for queue, amounts, default in table
                for fr in queue.node.nominal
            )
            yield from self._gauge(name, samples)

    def _local_queue_texts(self, pending_workloads: Mapping[str, _PendingWorkloads]) -> Iterator[str]:
        workload_cache = self._cache.workload_cache
        local_queues, counters = list(workload_cache.local_queues.values()), workload_cache.local_queue_counters
        queues = [(_local_queue_labels(view.key), view) for view in local_queues]
        yield from self._gauge("local_queue_pending_workloads", _local_queue_pending_samples(queues, pending_workloads))
        yield from self._gauge("local_queue_unadmitted_workloads", self._unadmitted_by_local_queue())
        finished_counts = self._workloads.finished_counts
        finished_samples = ((labels, finished_counts.get(view.key, 0)) for labels, view in queues)
        yield from self._gauge("local_queue_finished_workloads", finished_samples)
        rows = [(labels, view, counters.get(view.key)) for labels, view in queues]
        reserving_samples = ((labels, counts.reserving) for labels, _, counts in rows)
        yield from self._gauge("local_queue_reserving_active_workloads", reserving_samples)
        admitted_samples = (
            ((*labels, *values), count)
            for labels, view, counts in rows
            for values, count in self._admitted_samples(_namespaced_key(scheme.LOCAL_QUEUE, view.key), counts.admitted)
        )
        yield from self._gauge("local_queue_admitted_active_workloads", admitted_samples)
        yield from self._gauge("local_queue_status", self._local_queue_statuses())
        reserved_usage = ((labels, view, counts.reserved_usage) for labels, view, counts in rows)
        yield from self._gauge("local_queue_resource_reservation", self._local_queue_usage(reserved_usage))
        admitted_usage = ((labels, view, counts.admitted_usage) for labels, view, counts in rows)
        yield from self._gauge("local_queue_resource_usage", self._local_queue_usage(admitted_usage))
        ledger = workload_cache.usage_ledger
        if ledger is not None:
            sampled_queues = [(labels, view) for labels, view in queues if ledger.entry(view.key) is not None]
            usages = (((*labels, view.cluster_queue), ledger.usage_of(view.key)) for labels, view in sampled_queues)
            yield from self._gauge("local_queue_admission_fair_sharing_usage", usages)

    def _local_queue_usage(self, samples: Iterator[tuple[Labels, LocalQueueView, Mapping[int, int]]]) -> QueueSamples:
        names, queues = self._cache.snapshot.flavor_resource_names, self._cache.snapshot.queues
        for key, view, amounts in samples:
            queue = queues.get(view.cluster_queue)
            for fr in () if queue is None else queue.node.nominal:
                yield (*key, *names[fr]), to_metric_unit(names[fr][1], amounts.get(fr, 0))

    def _unadmitted_by_local_queue(self) -> QueueSamples:
        for (local, reason, cause), count in self._workloads.unadmitted_counts.items():
            yield (*_local_queue_labels(local), self._cluster_queue_of(local), reason, cause), count

    def _local_queue_statuses(self) -> QueueSamples:
        for obj in self._objects.list(scheme.LOCAL_QUEUE):
            condition = find_condition(obj, "Active")
            for status_value in _CONDITION_STATUSES if condition is not None else ():
                labels = obj["metadata"]["name"], obj["metadata"]["namespace"], status_value
                yield labels, float(condition is not None and condition["status"] == status_value)

    def _cohort_texts(self) -> Iterator[str]:
        cohorts, cohort_sums = self._cache.snapshot.cohorts, _CohortSums(self._cache)
        nodes = [node for name, node in cohorts.items() if name not in self._deleted_cohorts]
        names = self._cache.snapshot.flavor_resource_names
        yield from self._gauge("cohort_info", (((node.name, *_cohort_labels(node)), 1) for node in nodes))
        subtree_quotas = {node: enumerate(node.subtree_quota) for node in nodes}
        yield from self._gauge("cohort_subtree_quota", _cohort_amounts(nodes, names, subtree_quotas))
        reservations = {node: cohort_sums.sums_of(node)[1].items() for node in nodes}
        yield from self._gauge("cohort_subtree_resource_reservations", _cohort_amounts(nodes, names, reservations))
        yield from self._gauge(
            "cohort_subtree_admitted_active_workloads", (((node.name,), cohort_sums.sums_of(node)[0]) for node in nodes)
        )
        if self._fair_sharing:
            yield from self._gauge("cohort_weighted_share", (((n.name,), self._weighted_share(n)) for n in nodes))

    def _weighted_share(self, node: QuotaNode) -> float:
        share = weighted_share(node, self._cache.snapshot.flavor_resource_names).weighted_value
        return math.nan if math.isinf(share) else share


class _CohortSums:
    def __init__(self, scheduler_cache: SchedulerCache) -> None:
        self._cache = scheduler_cache
        self._sums_by_node: dict[QuotaNode, tuple[int, Mapping[int, int]]] = {}

    def sums_of(self, node: QuotaNode) -> tuple[int, Mapping[int, int]]:
        if node in self._sums_by_node:
            return self._sums_by_node[node]
        queue = self._cache.snapshot.queue_of.get(node)
        if queue is not None:
            queue_counters = self._cache.workload_cache.cluster_queue_counters.get(queue.name)
            subtree_sums: tuple[int, Mapping[int, int]] = (queue_counters.admitted, queue_counters.reserved_usage)
        else:
            admitted_count, reserved_amounts = 0, dict[int, int]()
            for child in list(node.children.values()):
                child_admitted_count, child_amounts = self.sums_of(child)
                admitted_count += child_admitted_count
                for fr, amount in child_amounts.items():
                    reserved_amounts[fr] = reserved_amounts.get(fr, 0) + amount
            subtree_sums = admitted_count, reserved_amounts
        self._sums_by_node[node] = subtree_sums
        return subtree_sums


def to_metric_unit(resource: str, amount: float) -> float:
    """Convert an amount of a resource to the unit of metrics: CPU from millicores to cores; others are unchanged.

    As in Kueue, amounts from the maximum of int64 on are infinite.
    """
    if amount >= INT64_MAX:
        return math.inf
    return amount / 1000 if resource == "cpu" else amount


def _active_and_inadmissible_samples(samples: Iterator[tuple[str, int, int]]) -> QueueSamples:
    for name, active, inadmissible in samples:
        yield (name, _ACTIVE_STATUS), active
        yield (name, _INADMISSIBLE_STATUS), inadmissible


def _local_queue_pending_samples(
    labeled_queues: Sequence[tuple[Labels, LocalQueueView]], pending_workloads: Mapping[str, _PendingWorkloads]
) -> QueueSamples:
    for key, view in labeled_queues:
        queue_pending = pending_workloads.get(view.cluster_queue)
        active_count, count = (
            (0, 0) if queue_pending is None else queue_pending.counts_by_local_queue.get(view.key, (0, 0))
        )
        yield (*key, _ACTIVE_STATUS), active_count
        yield (*key, _INADMISSIBLE_STATUS), count - active_count


def _cohort_amounts(
    nodes: Sequence[QuotaNode], names: Sequence[Labels], amounts_by_node: Mapping[QuotaNode, object]
) -> QueueSamples:
    for node in nodes:
        for fr, amount in amounts_by_node[node]:  # type: ignore[attr-defined]
            if amount > 0:
                yield (node.name, *names[fr]), to_metric_unit(names[fr][1], amount)


def _cohort_labels(node: QuotaNode) -> Labels:
    """Return the names of a node's parent and root Cohort as labels ('' without a Cohort); a root is its own root."""
    parent = "" if node.parent is None else node.parent.name
    if not parent:
        return "", "" if node.tree.startswith("queue/") else node.name
    return parent, node.path[0].name


def _namespaced_key(kind: str, namespaced_name: str) -> Key:
    namespace, _, name = namespaced_name.partition("/")
    return Key(kind, namespace, name)


def _local_queue_labels(local_queue_key: str) -> Labels:
    namespace, _, name = local_queue_key.partition("/")
    return name, namespace
