"""Our own metrics of machines and unschedulable pods: nodes by pool, machines by phase, failures of the cloud."""

from collections.abc import Iterator
from typing import Final, Protocol

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, WHOLE, CostTotals
from batchyard.accounting.budgets import amount_of, is_in_dollars
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, find_condition, is_true, label
from batchyard.api.views.pods import SCHEDULED
from batchyard.base.instant import HOUR, SECOND, Instant
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import Counters, Labels, text_of

_UNSCHEDULABLE: Final = "Unschedulable"
_STUCK: Final = "batchyard_pods_unschedulable"


class MachineMetrics:
    """The current numbers of nodes, machines and unschedulable pods, and a counter of failed machines."""

    def __init__(self) -> None:
        self._failures = Counters(metric("batchyard_instance_failures_total"))
        #: The family and the labels under which each object counts, and the count of each.
        self._counted: dict[Key, tuple[str, Labels]] = {}
        self._counts: dict[str, dict[Labels, int]] = {}

    def recall(self, event: WatchEvent) -> None:
        """Add an object that existed before the process started."""
        self._count(event)

    def observe(self, event: WatchEvent) -> None:
        """Apply a watch event."""
        self._count(event)
        obj, old = event.obj, event.old
        if event.key.kind == scheme.NAMESPACE and event.type is EventType.DELETED:
            self._counts.get(_STUCK, {}).pop((event.key.name,), None)
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED and phase_of(obj) == FAILED:
            error = obj["status"].get("error") or {}
            if old is None or phase_of(old) != FAILED or (old["status"].get("error") or {}) != error:
                self._failures.add((obj["spec"]["pool"], error.get("code", "")))

    def texts(self) -> Iterator[str]:
        """Yield all families."""
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
# Cost metrics: dollars and accelerator time by team and queue, unused machine time, and budgets.
#
# Counters start at the hour that is open when the platform starts. The cost of a Workload counts at once; whether its
# time was done or lost counts when its pod ends.


_DOLLAR: Final = 1_000_000 * HOUR * WHOLE
_SECOND: Final = SECOND * WHOLE


class CostSource(Protocol):
    """A source of cost totals."""

    def totals(self, now: Instant) -> CostTotals:
        """Return all charges until now, summed over Workloads and flavors."""


class CostMetrics:
    """Counters of cost, by use and queue, and gauges of budgets."""

    def __init__(self) -> None:
        names = ("dollars", "accelerator_seconds", "outcome_dollars", "unused_dollars")
        self._counters = {name: Counters(metric(f"batchyard_cost_{name}_total")) for name in names}
        self._published: dict[tuple[str, Labels], float] = {}

    def texts(self, spending: CostSource | None, reader: Reader, now: Instant) -> Iterator[str]:
        """Yield all families; without a ledger (`spending` is None) only those of budgets."""
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
