"""Metrics of Nodes, Pods and Jobs with kube-state-metrics' names, and batchyard's metrics of cloud machines and costs.

Source: kube-state-metrics' docs/metrics (cluster/node, workload/pod, workload/job) and internal/store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, WHOLE_MACHINE, CostTotals
from batchyard.accounting.budgets import is_in_dollars, limit_of
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, find_condition, is_true, label
from batchyard.api.times import parse_time
from batchyard.api.views.pods import SCHEDULED
from batchyard.base.instant import HOUR, SECOND, Instant
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.queues import to_metric_unit
from batchyard.metrics.registry import Counters, Labels, gauge_text

ObjectSamples: TypeAlias = Iterable[tuple[Labels, float]]

#: The number of objects that are formatted before the server may do other work.
_OBJECTS_PER_PAUSE: Final = 200
_CONDITION_STATUSES: Final = ("true", "false", "unknown")
_POD_PHASES: Final = ("Pending", "Succeeded", "Failed", "Unknown", "Running")
_JOB_FAILURE_REASONS: Final = ("BackoffLimitExceeded", "DeadlineExceeded", "Evicted")
_UNIT_OF: Final = {"cpu": "core", "memory": "byte", "storage": "byte", "ephemeral-storage": "byte", "pods": "integer"}
_NO_FIELDS: Final[Obj] = {}


class ObjectMetrics:
    """kube-state-metrics' metrics of Nodes, Pods and Jobs; the sample lines of unchanged objects are cached."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {kind: {} for kind in _METRICS_BY_KIND}
        #: Each object with its formatted sample lines, one string for each metric family.
        self._texts: dict[Key, tuple[Obj, tuple[str, ...]]] = {}

    def observe(self, event: WatchEvent) -> None:
        """Store or delete the Node, Pod or Job of a watch event; ignore other kinds."""
        objects = self._objects.get(event.key.kind)
        if objects is None:
            return
        if event.type is EventType.DELETED:
            objects.pop(event.key, None)
            self._texts.pop(event.key, None)
        else:
            objects[event.key] = event.obj

    def objects_of(self, kind: str) -> list[Obj]:
        """Return all current objects of a kind (Node, Pod or Job), in no particular order."""
        return list(self._objects[kind].values())

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of each metric; an empty string marks a point where other work may be done."""
        for kind, families in _METRICS_BY_KIND.items():
            lines_per_object: list[tuple[str, ...]] = []
            for position, (key, obj) in enumerate(list(self._objects[kind].items())):
                cached_texts = self._texts.get(key)
                if cached_texts is None or cached_texts[0] is not obj:
                    cached_texts = (
                        obj,
                        tuple(_format_samples(name, samples(obj)) for name, samples in families.items()),
                    )
                    if key in self._objects[kind]:
                        self._texts[key] = cached_texts
                lines_per_object.append(cached_texts[1])
                if position % _OBJECTS_PER_PAUSE == 0:
                    yield ""
            for index, name in enumerate(families):
                object_texts = [object_lines[index] for object_lines in lines_per_object]
                if any(object_texts):
                    yield metric(name).header_lines() + "".join(object_texts)


def _format_samples(name: str, samples: ObjectSamples) -> str:
    definition = metric(name)
    return "".join([definition.sample(labels, value) for labels, value in samples])


def _single_sample(
    value: Callable[[Obj], float | None], labels: Callable[[Obj], Labels]
) -> Callable[[Obj], ObjectSamples]:
    def samples(obj: Obj) -> ObjectSamples:
        sample_value = value(obj)
        return () if sample_value is None else ((labels(obj), sample_value),)

    return samples


def _node_labels(obj: Obj) -> Labels:
    return (obj["metadata"]["name"],)


def _node_info(obj: Obj) -> ObjectSamples:
    status, spec = obj.get("status") or _NO_FIELDS, obj.get("spec") or _NO_FIELDS
    info = status.get("nodeInfo") or _NO_FIELDS
    version_fields = ("kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion")
    ips = [a["address"] for a in status.get("addresses") or () if a["type"] == "InternalIP"]
    other_labels = (spec.get("providerID", ""), spec.get("podCIDR", ""), info.get("systemUUID", ""), "".join(ips[:1]))
    yield (*_node_labels(obj), *(info.get(field, "") for field in version_fields), *other_labels), 1


def _node_taints(obj: Obj) -> ObjectSamples:
    for taint in (obj.get("spec") or _NO_FIELDS).get("taints") or ():
        yield (*_node_labels(obj), taint["key"], taint.get("value", ""), taint["effect"]), 1


def _node_conditions(obj: Obj) -> ObjectSamples:
    for condition in (obj.get("status") or _NO_FIELDS).get("conditions") or ():
        for status in _CONDITION_STATUSES:
            yield (*_node_labels(obj), condition["type"], status), float(condition["status"].lower() == status)


def _node_resources(field: str) -> Callable[[Obj], ObjectSamples]:
    def samples(obj: Obj) -> ObjectSamples:
        for labels, value in _resource_samples((obj.get("status") or _NO_FIELDS).get(field)):
            yield (*_node_labels(obj), *labels), value

    return samples


def _pod_labels(obj: Obj) -> Labels:
    metadata = obj["metadata"]
    return metadata["namespace"], metadata["name"], metadata.get("uid", "")


def _pod_info(obj: Obj) -> ObjectSamples:
    status, spec, owner = obj.get("status") or _NO_FIELDS, obj["spec"], controller_of(obj) or _NO_FIELDS
    address_labels = status.get("hostIP", ""), status.get("podIP", ""), spec.get("nodeName", "")
    owner_labels = owner.get("kind", ""), owner.get("name", "")
    host_network_label = "true" if spec.get("hostNetwork") else "false"
    yield (*_pod_labels(obj), *address_labels, *owner_labels, spec.get("priorityClassName", ""), host_network_label), 1


def _pod_phases(obj: Obj) -> ObjectSamples:
    phase = (obj.get("status") or _NO_FIELDS).get("phase") or "Pending"
    return (((*_pod_labels(obj), candidate), float(candidate == phase)) for candidate in _POD_PHASES)


def _container_resources(field: str) -> Callable[[Obj], ObjectSamples]:
    def samples(obj: Obj) -> ObjectSamples:
        node = obj["spec"].get("nodeName", "")
        for container in obj["spec"].get("containers") or ():
            for labels, value in _resource_samples((container.get("resources") or _NO_FIELDS).get(field)):
                yield (*_pod_labels(obj), container["name"], node, *labels), value

    return samples


def _job_labels(obj: Obj) -> Labels:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _job_count(field: str) -> Callable[[Obj], ObjectSamples]:
    return _single_sample(lambda obj: (obj.get("status") or _NO_FIELDS).get(field) or 0, _job_labels)


def _job_time(field: str) -> Callable[[Obj], ObjectSamples]:
    return _single_sample(lambda obj: _epoch_seconds((obj.get("status") or _NO_FIELDS).get(field)), _job_labels)


def _job_failed(obj: Obj) -> ObjectSamples:
    """Yield the samples of kube_job_status_failed for a Job, as kube-state-metrics does.
    If the Job failed for a known reason, there is a sample for each reason, 1 for this one and 0 for the others.
    Otherwise there is one sample without a reason: the number of failed pods.
    """
    failed_count = (obj.get("status") or _NO_FIELDS).get("failed") or 0
    reasons = {c.get("reason", "") for c in _job_conditions(obj, "Failed")}
    if failed_count and reasons:
        for reason in _JOB_FAILURE_REASONS:
            yield (*_job_labels(obj), reason), float(reason in reasons)
    if not failed_count or reasons.isdisjoint(_JOB_FAILURE_REASONS):
        yield (*_job_labels(obj), ""), failed_count


def _job_conditions(obj: Obj, type: str) -> list[Mapping[str, Any]]:  # noqa: A002 - the field's name
    return [c for c in (obj.get("status") or _NO_FIELDS).get("conditions") or () if c["type"] == type]


def _job_condition(type: str) -> Callable[[Obj], ObjectSamples]:  # noqa: A002 - the field's name
    def samples(obj: Obj) -> ObjectSamples:
        for condition in _job_conditions(obj, type):
            for status in _CONDITION_STATUSES:
                yield (*_job_labels(obj), status), float(condition["status"].lower() == status)

    return samples


def _job_suspended(obj: Obj) -> ObjectSamples:
    return ((_job_labels(obj), float(c["status"] == "True")) for c in _job_conditions(obj, "Suspended"))


def _resource_samples(quantities: Mapping[str, Any] | None) -> ObjectSamples:
    for name, value in (quantities or {}).items():
        unit = "byte" if name.startswith(("hugepages-", "attachable-volumes-")) else _UNIT_OF.get(name, "integer")
        label_value = "".join(char if char.isalnum() else "_" for char in name)
        yield (label_value, unit), to_metric_unit(name, meta.amount(name, value))


def _epoch_seconds(text: str | None) -> float | None:
    return parse_time(text) // SECOND if text else None


#: By kind and metric name, the function that returns the samples of an object.
_METRICS_BY_KIND: Final[Mapping[str, Mapping[str, Callable[[Obj], ObjectSamples]]]] = {
    scheme.NODE: {
        "kube_node_info": _node_info,
        "kube_node_created": _single_sample(
            lambda obj: _epoch_seconds(obj["metadata"].get("creationTimestamp")), _node_labels
        ),
        "kube_node_spec_unschedulable": _single_sample(
            lambda obj: float(bool((obj.get("spec") or _NO_FIELDS).get("unschedulable"))), _node_labels
        ),
        "kube_node_spec_taint": _node_taints,
        "kube_node_status_condition": _node_conditions,
        "kube_node_status_capacity": _node_resources("capacity"),
        "kube_node_status_allocatable": _node_resources("allocatable"),
    },
    scheme.POD: {
        "kube_pod_info": _pod_info,
        "kube_pod_status_phase": _pod_phases,
        "kube_pod_container_resource_requests": _container_resources("requests"),
        "kube_pod_container_resource_limits": _container_resources("limits"),
    },
    scheme.JOB: {
        "kube_job_status_active": _job_count("active"),
        "kube_job_status_succeeded": _job_count("succeeded"),
        "kube_job_status_failed": _job_failed,
        "kube_job_status_start_time": _job_time("startTime"),
        "kube_job_status_completion_time": _job_time("completionTime"),
        "kube_job_status_suspended": _job_suspended,
        "kube_job_complete": _job_condition("Complete"),
        "kube_job_failed": _job_condition("Failed"),
    },
}


# batchyard's own metrics: nodes by pool, cloud machines by phase, failed machines, and unschedulable pods.


_UNSCHEDULABLE_REASON: Final = "Unschedulable"
_UNSCHEDULABLE_PODS: Final = "batchyard_pods_unschedulable"


class MachineMetrics:
    """Gauges of nodes and cloud machines by state and of unschedulable pods, and a counter of failed machines."""

    def __init__(self) -> None:
        self._failures = Counters(metric("batchyard_instance_failures_total"))
        #: The metric name and the labels under which each object counts, and the counts by metric name and labels.
        self._gauge_by_object: dict[Key, tuple[str, Labels]] = {}
        self._counts: dict[str, dict[Labels, int]] = {}

    def observe_existing(self, event: WatchEvent) -> None:
        """Count an object that is older than this process in the gauges, but not in the failure counter."""
        self._count_object(event)

    def observe(self, event: WatchEvent) -> None:
        """Update the gauges and the failure counter for a watch event of a Node, Instance, Pod or Namespace."""
        self._count_object(event)
        obj, old = event.obj, event.old
        if event.key.kind == scheme.NAMESPACE and event.type is EventType.DELETED:
            self._counts.get(_UNSCHEDULABLE_PODS, {}).pop((event.key.name,), None)
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED and phase_of(obj) == FAILED:
            error = obj["status"].get("error") or {}
            if old is None or phase_of(old) != FAILED or (old["status"].get("error") or {}) != error:
                self._failures.add((obj["spec"]["pool"], error.get("code", "")))

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of nodes, machines and unschedulable pods."""
        for name in ("batchyard_nodes", "batchyard_instances", _UNSCHEDULABLE_PODS):
            yield gauge_text(metric(name), iter(self._counts.get(name, {}).items()))
        yield from self._failures.texts()

    def _count_object(self, event: WatchEvent) -> None:
        if event.key.kind not in _COUNTED_KINDS:
            return
        new = None if event.type is EventType.DELETED else _gauge_name_and_labels(event.key, event.obj)
        old = self._gauge_by_object.get(event.key)
        if new == old:
            return
        for metric_and_labels, sign in ((old, -1), (new, 1)):
            if metric_and_labels is not None:
                metric_counts = self._counts.setdefault(metric_and_labels[0], {})
                metric_counts[metric_and_labels[1]] = metric_counts.get(metric_and_labels[1], 0) + sign
        if new is None:
            del self._gauge_by_object[event.key]
        else:
            self._gauge_by_object[event.key] = new


_COUNTED_KINDS: Final = (scheme.NODE, scheme.INSTANCE, scheme.POD)


def _gauge_name_and_labels(key: Key, obj: Obj) -> tuple[str, Labels] | None:
    if key.kind == scheme.NODE:
        status = "ready" if is_true(obj, "Ready") else "notready"
        return "batchyard_nodes", (label(obj, well_known.NODE_POOL) or "", status)
    if key.kind == scheme.INSTANCE:
        return "batchyard_instances", (obj["spec"]["pool"], phase_of(obj) or "Requested")
    if obj["spec"].get("nodeName"):
        return None
    scheduled_condition = find_condition(obj, SCHEDULED)
    is_unschedulable = scheduled_condition is not None and scheduled_condition.get("reason") == _UNSCHEDULABLE_REASON
    return (_UNSCHEDULABLE_PODS, (key.namespace,)) if is_unschedulable else None


# Dollars and accelerator time by team and queue, unused machine time, and budgets.
#
# Counters start with the billing hour in which the platform starts. The cost of a Workload is counted immediately.
# Whether its work was completed or lost is counted when its pod ends.


_COST_UNITS_PER_DOLLAR: Final = 1_000_000 * HOUR * WHOLE_MACHINE
_TIME_UNITS_PER_SECOND: Final = SECOND * WHOLE_MACHINE


class CostSource(Protocol):
    """The part of the cost ledger's interface that the cost metrics use."""

    def totals(self, now: Instant) -> CostTotals:
        """Return the costs charged until `now`, summed over Workloads and flavors."""


class CostMetrics:
    """Counters of costs by team and queue, and gauges of the Budget objects."""

    def __init__(self) -> None:
        names = ("dollars", "accelerator_seconds", "outcome_dollars", "unused_dollars")
        self._counters = {name: Counters(metric(f"batchyard_cost_{name}_total")) for name in names}
        self._published: dict[tuple[str, Labels], float] = {}

    def texts(self, cost_source: CostSource | None, reader: Reader, now: Instant) -> Iterator[str]:
        """Yield the exposition text of cost counters and Budget gauges; without a `cost_source`, only of the gauges."""
        if cost_source is not None:
            self._count_costs(cost_source.totals(now))
            for counters in self._counters.values():
                yield from counters.texts()
        budgets = [(obj, obj.get("status") or {}) for obj in reader.list(scheme.BUDGET)]
        samples: dict[str, list[tuple[Labels, float]]] = {"amount": [], "spent": [], "remaining": []}
        for obj, status in budgets:
            is_dollars = is_in_dollars(obj)
            labels = obj["metadata"]["namespace"], obj["metadata"]["name"], "dollars" if is_dollars else "hours"
            samples["amount"].append((labels, limit_of(obj) / (1_000_000 if is_dollars else HOUR)))
            for field in ("spent", "remaining"):
                if field in status:
                    samples[field].append((labels, float(status[field])))
        for name, budget_samples in samples.items():
            yield gauge_text(metric(f"batchyard_budget_{name}"), budget_samples)

    def _count_costs(self, cost_totals: CostTotals) -> None:
        cost_sums: dict[tuple[str, Labels], float] = {}

        def add(name: str, labels: Labels, amount: float) -> None:
            cost_sums[name, labels] = cost_sums.get((name, labels), 0.0) + amount

        for charge_key, account in cost_totals.accounts.items():
            if charge_key.use in {IDLE, BOOT}:
                add("unused_dollars", (charge_key.pool, charge_key.use), account.cost / _COST_UNITS_PER_DOLLAR)
                continue
            queue_labels = charge_key.team, charge_key.cluster_queue, charge_key.local_queue
            add("dollars", queue_labels, account.cost / _COST_UNITS_PER_DOLLAR)
            add("accelerator_seconds", queue_labels, account.accelerators / _TIME_UNITS_PER_SECOND)
        for accounts_by_key in cost_totals:
            for charge_key, account in accounts_by_key.items():
                if charge_key.use in {DONE, LOST}:
                    labels_with_use = charge_key.team, charge_key.cluster_queue, charge_key.local_queue, charge_key.use
                    add("outcome_dollars", labels_with_use, account.cost / _COST_UNITS_PER_DOLLAR)
        for (name, labels), amount in cost_sums.items():  # a counter must not decrease if a charge is dated back
            published_amount = self._published[name, labels] = max(amount, self._published.get((name, labels), 0.0))
            self._counters[name].set(labels, published_amount)
