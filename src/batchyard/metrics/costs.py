"""Cost metrics: dollars and accelerator time by team and queue, unused machine time, and budgets.

Counters start at the hour that is open when the platform starts. The cost of a Workload counts at once; whether its
time was done or lost counts when its pod ends.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, WHOLE, CostTotals
from batchyard.accounting.budgets import amount_of, is_in_dollars
from batchyard.api import scheme
from batchyard.base.instant import HOUR, SECOND, Instant
from batchyard.interfaces.client import Reader
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import Counters, Labels, text_of

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
