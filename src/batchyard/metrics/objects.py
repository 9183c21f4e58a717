"""Metrics of Nodes, Pods and Jobs with kube-state-metrics' names, and own metrics of cloud machines and costs.

Source: kube-state-metrics' docs/metrics (cluster/node, workload/pod, workload/job) and internal/store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, WHOLE, CostTotals
from batchyard.accounting.budgets import amount_of, is_in_dollars
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, find_condition, is_true, label
from batchyard.api.times import parse_time
from batchyard.api.views.pods import SCHEDULED
from batchyard.base.instant import HOUR, SECOND, Instant
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.queues import units
from batchyard.metrics.registry import Counters, Labels, text_of

Rows: TypeAlias = Iterable[tuple[Labels, float]]

#: The number of objects that are formatted before the server may do other work.
_AT_ONCE: Final = 200
_STATUSES: Final = ("true", "false", "unknown")
_PHASES: Final = ("Pending", "Succeeded", "Failed", "Unknown", "Running")
_WHY_JOBS_FAIL: Final = ("BackoffLimitExceeded", "DeadlineExceeded", "Evicted")
_UNITS: Final = {"cpu": "core", "memory": "byte", "storage": "byte", "ephemeral-storage": "byte", "pods": "integer"}
_NOTHING: Final[Obj] = {}


class ObjectMetrics:
    """Metrics of the cluster's Nodes, Pods and Jobs, with the cached sample lines of each object."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {kind: {} for kind in _FAMILIES}
        #: Each object with its formatted sample lines, one string for each metric family.
        self._texts: dict[Key, tuple[Obj, tuple[str, ...]]] = {}

    def observe(self, event: WatchEvent) -> None:
        """Update the object of a watch event."""
        objects = self._objects.get(event.key.kind)
        if objects is None:
            return
        if event.type is EventType.DELETED:
            objects.pop(event.key, None)
            self._texts.pop(event.key, None)
        else:
            objects[event.key] = event.obj

    def all(self, kind: str) -> list[Obj]:
        """Return all observed objects of a kind, in no particular order."""
        return list(self._objects[kind].values())

    def texts(self) -> Iterator[str]:
        """Yield the text of all families; an empty string marks a point at which the server may do other work."""
        for kind, families in _FAMILIES.items():
            written: list[tuple[str, ...]] = []
            for number, (key, obj) in enumerate(list(self._objects[kind].items())):
                known = self._texts.get(key)
                if known is None or known[0] is not obj:
                    known = (obj, tuple(_written(name, rows(obj)) for name, rows in families.items()))
                    if key in self._objects[kind]:
                        self._texts[key] = known
                written.append(known[1])
                if number % _AT_ONCE == 0:
                    yield ""
            for place, name in enumerate(families):
                texts = [each[place] for each in written]
                if any(texts):
                    yield metric(name).head() + "".join(texts)


def _written(name: str, rows: Rows) -> str:
    found = metric(name)
    return "".join([found.sample(labels, value) for labels, value in rows])


def _one(value: Callable[[Obj], float | None], labels: Callable[[Obj], Labels]) -> Callable[[Obj], Rows]:
    """Return a function that maps an object to its only sample, or to none if its value is None."""

    def rows(obj: Obj) -> Rows:
        found = value(obj)
        return () if found is None else ((labels(obj), found),)

    return rows


# --- node samples ---


def _node(obj: Obj) -> Labels:
    return (obj["metadata"]["name"],)


def _node_info(obj: Obj) -> Rows:
    status, spec = obj.get("status") or _NOTHING, obj.get("spec") or _NOTHING
    info = status.get("nodeInfo") or _NOTHING
    fields = ("kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion")
    inside = [a["address"] for a in status.get("addresses") or () if a["type"] == "InternalIP"]
    rest = spec.get("providerID", ""), spec.get("podCIDR", ""), info.get("systemUUID", ""), "".join(inside[:1])
    yield (*_node(obj), *(info.get(field, "") for field in fields), *rest), 1


def _taints(obj: Obj) -> Rows:
    for taint in (obj.get("spec") or _NOTHING).get("taints") or ():
        yield (*_node(obj), taint["key"], taint.get("value", ""), taint["effect"]), 1


def _node_conditions(obj: Obj) -> Rows:
    for condition in (obj.get("status") or _NOTHING).get("conditions") or ():
        for status in _STATUSES:
            yield (*_node(obj), condition["type"], status), float(condition["status"].lower() == status)


def _node_has(field: str) -> Callable[[Obj], Rows]:
    def rows(obj: Obj) -> Rows:
        for labels, value in _resources((obj.get("status") or _NOTHING).get(field)):
            yield (*_node(obj), *labels), value

    return rows


# --- pod samples ---


def _pod(obj: Obj) -> Labels:
    metadata = obj["metadata"]
    return metadata["namespace"], metadata["name"], metadata.get("uid", "")


def _pod_info(obj: Obj) -> Rows:
    status, spec, owner = obj.get("status") or _NOTHING, obj["spec"], controller_of(obj) or _NOTHING
    where = status.get("hostIP", ""), status.get("podIP", ""), spec.get("nodeName", "")
    made_by = owner.get("kind", ""), owner.get("name", "")
    network = "true" if spec.get("hostNetwork") else "false"
    yield (*_pod(obj), *where, *made_by, spec.get("priorityClassName", ""), network), 1


def _phases(obj: Obj) -> Rows:
    phase = (obj.get("status") or _NOTHING).get("phase") or "Pending"
    return (((*_pod(obj), each), float(each == phase)) for each in _PHASES)


def _containers(field: str) -> Callable[[Obj], Rows]:
    def rows(obj: Obj) -> Rows:
        node = obj["spec"].get("nodeName", "")
        for container in obj["spec"].get("containers") or ():
            for labels, value in _resources((container.get("resources") or _NOTHING).get(field)):
                yield (*_pod(obj), container["name"], node, *labels), value

    return rows


# --- job samples ---


def _job(obj: Obj) -> Labels:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _job_count(field: str) -> Callable[[Obj], Rows]:
    return _one(lambda obj: (obj.get("status") or _NOTHING).get(field) or 0, _job)


def _job_time(field: str) -> Callable[[Obj], Rows]:
    return _one(lambda obj: _seconds((obj.get("status") or _NOTHING).get(field)), _job)


def _job_failed(obj: Obj) -> Rows:
    """Yield the number of failed pods; if the Job failed for a known reason, a 0/1 sample for each known reason."""
    failed = (obj.get("status") or _NOTHING).get("failed") or 0
    reasons = {c.get("reason", "") for c in _job_conditions(obj, "Failed")}
    if failed and reasons:
        for reason in _WHY_JOBS_FAIL:
            yield (*_job(obj), reason), float(reason in reasons)
    if not failed or reasons.isdisjoint(_WHY_JOBS_FAIL):
        yield (*_job(obj), ""), failed


def _job_conditions(obj: Obj, type: str) -> list[Mapping[str, Any]]:  # noqa: A002 - the field's name
    return [c for c in (obj.get("status") or _NOTHING).get("conditions") or () if c["type"] == type]


def _job_condition(type: str) -> Callable[[Obj], Rows]:  # noqa: A002 - the field's name
    def rows(obj: Obj) -> Rows:
        for condition in _job_conditions(obj, type):
            for status in _STATUSES:
                yield (*_job(obj), status), float(condition["status"].lower() == status)

    return rows


def _is_suspended(obj: Obj) -> Rows:
    return ((_job(obj), float(c["status"] == "True")) for c in _job_conditions(obj, "Suspended"))


# --- shared helpers ---


def _resources(amounts: Mapping[str, Any] | None) -> Rows:
    """Yield quantities with the labels resource and unit; other characters in resource names become underscores."""
    for name, value in (amounts or {}).items():
        unit = "byte" if name.startswith(("hugepages-", "attachable-volumes-")) else _UNITS.get(name, "integer")
        plain = "".join(letter if letter.isalnum() else "_" for letter in name)
        yield (plain, unit), units(name, meta.amount(name, value))


def _seconds(text: str | None) -> float | None:
    return parse_time(text) // SECOND if text else None


#: By kind and metric name, the function that returns the samples of an object.
_FAMILIES: Final[Mapping[str, Mapping[str, Callable[[Obj], Rows]]]] = {
    scheme.NODE: {
        "kube_node_info": _node_info,
        "kube_node_created": _one(lambda obj: _seconds(obj["metadata"].get("creationTimestamp")), _node),
        "kube_node_spec_unschedulable": _one(
            lambda obj: float(bool((obj.get("spec") or _NOTHING).get("unschedulable"))), _node
        ),
        "kube_node_spec_taint": _taints,
        "kube_node_status_condition": _node_conditions,
        "kube_node_status_capacity": _node_has("capacity"),
        "kube_node_status_allocatable": _node_has("allocatable"),
    },
    scheme.POD: {
        "kube_pod_info": _pod_info,
        "kube_pod_status_phase": _phases,
        "kube_pod_container_resource_requests": _containers("requests"),
        "kube_pod_container_resource_limits": _containers("limits"),
    },
    scheme.JOB: {
        "kube_job_status_active": _job_count("active"),
        "kube_job_status_succeeded": _job_count("succeeded"),
        "kube_job_status_failed": _job_failed,
        "kube_job_status_start_time": _job_time("startTime"),
        "kube_job_status_completion_time": _job_time("completionTime"),
        "kube_job_status_suspended": _is_suspended,
        "kube_job_complete": _job_condition("Complete"),
        "kube_job_failed": _job_condition("Failed"),
    },
}


# --- machines ---
#
# Own metrics: nodes by pool, cloud machines by phase, machines that failed, and unschedulable pods.


_UNSCHEDULABLE: Final = "Unschedulable"
_STUCK: Final = "batchyard_pods_unschedulable"


class MachineMetrics:
    """Gauges of nodes, cloud machines and unschedulable pods, and a counter of failed machines."""

    def __init__(self) -> None:
        self._failures = Counters(metric("batchyard_instance_failures_total"))
        #: The metric name and the labels under which each object counts, and the counts by metric name and labels.
        self._counted: dict[Key, tuple[str, Labels]] = {}
        self._counts: dict[str, dict[Labels, int]] = {}

    def recall(self, event: WatchEvent) -> None:
        """Count an object that existed before the process started; failures before the start are not counted."""
        self._count(event)

    def observe(self, event: WatchEvent) -> None:
        """Update the object of a watch event."""
        self._count(event)
        obj, old = event.obj, event.old
        if event.key.kind == scheme.NAMESPACE and event.type is EventType.DELETED:
            self._counts.get(_STUCK, {}).pop((event.key.name,), None)
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED and phase_of(obj) == FAILED:
            error = obj["status"].get("error") or {}
            if old is None or phase_of(old) != FAILED or (old["status"].get("error") or {}) != error:
                self._failures.add((obj["spec"]["pool"], error.get("code", "")))

    def texts(self) -> Iterator[str]:
        """Yield the text of all families of machines and unschedulable pods."""
        for name in ("batchyard_nodes", "batchyard_instances", _STUCK):
            yield text_of(metric(name), iter(self._counts.get(name, {}).items()))
        yield from self._failures.texts()

    def _count(self, event: WatchEvent) -> None:
        if event.key.kind not in _COUNTED:
            return
        new = None if event.type is EventType.DELETED else _counts_as(event.key, event.obj)
        old = self._counted.get(event.key)
        if new == old:
            return
        for counted, sign in ((old, -1), (new, 1)):
            if counted is not None:
                counts = self._counts.setdefault(counted[0], {})
                counts[counted[1]] = counts.get(counted[1], 0) + sign
        if new is None:
            del self._counted[event.key]
        else:
            self._counted[event.key] = new


_COUNTED: Final = (scheme.NODE, scheme.INSTANCE, scheme.POD)


def _counts_as(key: Key, obj: Obj) -> tuple[str, Labels] | None:
    if key.kind == scheme.NODE:
        status = "ready" if is_true(obj, "Ready") else "notready"
        return "batchyard_nodes", (label(obj, well_known.NODE_POOL) or "", status)
    if key.kind == scheme.INSTANCE:
        return "batchyard_instances", (obj["spec"]["pool"], phase_of(obj) or "Requested")
    if obj["spec"].get("nodeName"):
        return None
    scheduled = find_condition(obj, SCHEDULED)
    is_stuck = scheduled is not None and scheduled.get("reason") == _UNSCHEDULABLE
    return (_STUCK, (key.namespace,)) if is_stuck else None


# --- costs ---
#
# Dollars and accelerator time by team and queue, unused machine time, and budgets.
#
# Counters start with the billing hour in which the platform starts. The cost of a Workload is counted immediately.
# Whether its work was completed or lost is counted when its pod ends.


_DOLLAR: Final = 1_000_000 * HOUR * WHOLE
_SECOND: Final = SECOND * WHOLE


class CostSource(Protocol):
    """The interface of the cost ledger that the cost metrics read."""

    def totals(self, now: Instant) -> CostTotals:
        """Return all charges until `now`, summed over Workloads and flavors."""


class CostMetrics:
    """Counters of cost by team and queue, and gauges of the Budget objects."""

    def __init__(self) -> None:
        names = ("dollars", "accelerator_seconds", "outcome_dollars", "unused_dollars")
        self._counters = {name: Counters(metric(f"batchyard_cost_{name}_total")) for name in names}
        self._published: dict[tuple[str, Labels], float] = {}

    def texts(self, spending: CostSource | None, reader: Reader, now: Instant) -> Iterator[str]:
        """Yield the text of all cost families; without a ledger (`spending` is None) only those of budgets."""
        if spending is not None:
            self._count(spending.totals(now))
            for each in self._counters.values():
                yield from each.texts()
        budgets = [(obj, obj.get("status") or {}) for obj in reader.list(scheme.BUDGET)]
        rows: dict[str, list[tuple[Labels, float]]] = {"amount": [], "spent": [], "remaining": []}
        for obj, status in budgets:
            is_dollars = is_in_dollars(obj)
            labels = obj["metadata"]["namespace"], obj["metadata"]["name"], "dollars" if is_dollars else "hours"
            rows["amount"].append((labels, amount_of(obj) / (1_000_000 if is_dollars else HOUR)))
            for field in ("spent", "remaining"):
                if field in status:
                    rows[field].append((labels, float(status[field])))
        for name, found in rows.items():
            yield text_of(metric(f"batchyard_budget_{name}"), found)

    def _count(self, totals: CostTotals) -> None:
        sums: dict[tuple[str, Labels], float] = {}

        def add(name: str, labels: Labels, amount: float) -> None:
            sums[name, labels] = sums.get((name, labels), 0.0) + amount

        for place, account in totals.accounts.items():
            if place.use in {IDLE, BOOT}:
                add("unused_dollars", (place.pool, place.use), account.cost / _DOLLAR)
                continue
            queue = place.team, place.cluster_queue, place.local_queue
            add("dollars", queue, account.cost / _DOLLAR)
            add("accelerator_seconds", queue, account.accelerators / _SECOND)
        for places in totals:
            for place, account in places.items():
                if place.use in {DONE, LOST}:
                    ended = place.team, place.cluster_queue, place.local_queue, place.use
                    add("outcome_dollars", ended, account.cost / _DOLLAR)
        for (name, labels), amount in sums.items():  #  a counter must not decrease when a charge is dated back
            published = self._published[name, labels] = max(amount, self._published.get((name, labels), 0.0))
            self._counters[name].set(labels, published)
