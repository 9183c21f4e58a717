"""Admission fair sharing: a ledger of what each LocalQueue has used, and the orders that follow from it.

With admission fair sharing, the Workloads of a ClusterQueue are ordered by the past usage of their LocalQueues before
their priority. Usage decays: it halves in each half-life. An entry of the ledger holds the decayed usage of a
LocalQueue (consumed resources), and the entry penalties of Workloads that the scheduler admitted since. An entry
penalty is the usage of one sampling interval. It becomes part of the consumed resources (it is settled) when its
Workload is admitted. Amounts are exact: integers in billionths, to which each product is rounded down.

Sources: pkg/util/admissionfairsharing, pkg/cache/queue/afs, reconcileAfsPenaltiesOnUpdate in
pkg/controller/core/workload_controller.go, and pkg/scheduler/preemption/common/ordering.go of Kueue.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cmp_to_key, lru_cache
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import NANO, Obj, QuantityFormat, format_quantity, parse_quantity
from batchyard.api.times import format_time
from batchyard.api.views.workload import LocalQueueView, WorkloadView
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cluster_queue import PODS, PREEMPTION_RANK, AdmittedWorkload, ClusterQueue
from batchyard.scheduling.snapshot import QueueCounters, Snapshot

#: Amounts by resource, in billionths of a unit (a core, a byte).
NanoAmounts: TypeAlias = dict[str, int]

DEFAULT_SAMPLING_INTERVAL: Final = 5 * MINUTE
#: The least time between samples: Kueue cannot sample more often than it writes statuses.
_SAMPLING_PERIOD_MIN: Final = SECOND // 10
#: Overdue samples beyond this number are taken as one, which differs only in the rounding.
_OVERDUE_SAMPLES_MAX: Final = 1000
#: The billionths in the unit of an integer amount: a thousandth of a core, or one unit of any other resource.
_NANO_PER_MILLICORE: Final = NANO // 1000


@dataclass(frozen=True, slots=True)
class AdmissionFairSharing:
    """The settings `admissionFairSharing` of Kueue's Configuration."""

    #: The time in which usage halves; 0 resets the usage at each sample.
    half_life: Duration
    #: The time from an update of a LocalQueue's usage to the next sample.
    sampling_interval: Duration = DEFAULT_SAMPLING_INTERVAL
    #: The weight of each resource; other resources have the weight 1.
    resource_weights: Mapping[str, float] = field(default_factory=dict)
    #: Whether usage counts from the quota reservation, as by default in Kueue 0.20; otherwise from the admission.
    is_anchored_at_reservation: bool = False

    @property
    def sampling_period(self) -> Duration:
        """The time from an update of a LocalQueue's usage to the next sample: the interval, or 0.1 s if it is less."""
        return max(self.sampling_interval, _SAMPLING_PERIOD_MIN)

    def decay_rate(self, elapsed: Duration) -> float:
        """Return the part of the usage that decays in a time: 0.5 after a half-life; 0 if the half-life is 0."""
        if not self.half_life:
            return 0.0
        return 1.0 - math.pow(0.5, _seconds(elapsed) / _seconds(self.half_life))

    def entry_penalty(self, requests: Mapping[str, int]) -> NanoAmounts:
        """Return the penalty for a Workload that requests these amounts (billionths): its usage in one interval."""
        return multiply_amounts(requests, self.decay_rate(self.sampling_interval))

    def decayed_amounts(
        self, consumed: Mapping[str, int], current: Mapping[str, int], elapsed: Duration
    ) -> NanoAmounts:
        """Return the consumed resources after a time in which a LocalQueue used the amounts `current`."""
        rate = self.decay_rate(elapsed)
        return add_amounts(multiply_amounts(consumed, 1 - rate), multiply_amounts(current, rate))

    def weighted_usage(self, amounts: Mapping[str, int], local_queue_weight: float) -> float:
        """Return the usage by which LocalQueues are compared; infinite if the LocalQueue's weight is not positive."""
        usage, weights = 0.0, self.resource_weights
        for resource in sorted(amounts):
            usage += weights.get(resource, 1.0) * (amounts[resource] * 1e-9)
        return usage / local_queue_weight if local_queue_weight > 0 else math.inf


def add_amounts(left: Mapping[str, int], right: Mapping[str, int]) -> NanoAmounts:
    """Return the sum of two tables of amounts."""
    return {resource: left.get(resource, 0) + right.get(resource, 0) for resource in {**left, **right}}


def multiply_amounts(amounts: Mapping[str, int], factor: float) -> NanoAmounts:
    """Return amounts in billionths times a factor of 0 or more, rounded down; the factor is its shortest decimal."""
    numerator, denominator = _decimal_ratio(factor)
    return {resource: amount * numerator // denominator for resource, amount in amounts.items()}


@lru_cache
def _decimal_ratio(factor: float) -> tuple[int, int]:
    return Decimal(repr(factor)).as_integer_ratio()


def _seconds(duration: Duration) -> float:
    """Return a duration in seconds, rounded as Go does: the whole seconds and the fraction are converted separately."""
    seconds, microseconds = divmod(duration, SECOND)
    return float(seconds) + microseconds * 1000 / 1e9


def nano_amount(resource: str, amount: int) -> int:
    """Convert an integer amount of a resource (millicores for `cpu`, otherwise units) to billionths."""
    return amount * (_NANO_PER_MILLICORE if resource == "cpu" else NANO)


def total_requests(view: WorkloadView, queue: ClusterQueue) -> NanoAmounts:
    """Return what all pods of a Workload request, in billionths; its pods count if the ClusterQueue has quota for them.

    A partial admission does not reduce the amounts.
    """
    covers_pods = any(PODS in group.resources for group in queue.view.groups)
    totals: NanoAmounts = {}
    for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
        requests = pod_set.template.requests
        for resource, amount in requests:
            totals[resource] = totals.get(resource, 0) + nano_amount(resource, amount * count)
        if covers_pods and requests:
            totals[PODS] = totals.get(PODS, 0) + nano_amount(PODS, count)
    return totals


class LedgerEntry:
    """The usage of one LocalQueue: consumed resources, the time of their last update, and pending entry penalties."""

    __slots__ = ("consumed", "is_status_merged", "last_update", "penalties")

    def __init__(self, last_update: Instant) -> None:
        self.consumed: NanoAmounts = {}
        self.last_update = last_update
        #: The entry penalties that are not settled, by Workload.
        self.penalties: dict[str, NanoAmounts] = {}
        #: Whether the consumed resources of the LocalQueue's status are included.
        self.is_status_merged = False

    def pending_penalty(self) -> NanoAmounts:
        """Return the sum of the entry penalties that are not settled."""
        total: NanoAmounts = {}
        for penalty in self.penalties.values():
            total = add_amounts(total, penalty)
        return total

    def has_pending_penalty(self) -> bool:
        """Return whether some entry penalty of more than 0 is not settled."""
        return any(amount for penalty in self.penalties.values() for amount in penalty.values())


class UsageLedger:
    """The usage of all LocalQueues, updated from admissions, changes of Workloads, and samples."""

    def __init__(
        self,
        settings: AdmissionFairSharing,
        snapshot: Snapshot,
        local_queues: Mapping[str, LocalQueueView],
        counters: QueueCounters,
    ) -> None:
        """Create an empty ledger; `counters` count the quota that the Workloads of each LocalQueue use."""
        self.settings = settings
        self._snapshot = snapshot
        self._local_queues = local_queues
        self._counters = counters
        self._entries: dict[str, LedgerEntry] = {}

    def entry(self, local_queue: str) -> LedgerEntry | None:
        """Return the entry of a LocalQueue (`namespace/name`); None if it has none yet."""
        return self._entries.get(local_queue)

    def usage_of(self, local_queue: str) -> float:
        """Return the usage by which a LocalQueue is compared with others: consumed resources and pending penalties.

        The amounts are weighted by resource, and divided by the weight of the LocalQueue (1 if it does not exist).
        """
        return self.usage_with(local_queue, {})

    def usage_with(self, local_queue: str, penalty: Mapping[str, int]) -> float:
        """Return the usage of a LocalQueue with a further penalty."""
        view, entry = self._local_queues.get(local_queue), self._entries.get(local_queue)
        amounts = penalty
        if entry is not None:
            amounts = add_amounts(entry.consumed, entry.pending_penalty()) if entry.penalties else entry.consumed
            amounts = add_amounts(amounts, penalty) if penalty else amounts
        return self.settings.weighted_usage(amounts, 1.0 if view is None else view.weight)

    def penalty_of(self, view: WorkloadView, queue: ClusterQueue) -> NanoAmounts:
        """Return the entry penalty of a Workload in a ClusterQueue; empty if the ClusterQueue ignores usage."""
        if not self.orders_by_usage(queue):
            return {}
        return self.settings.entry_penalty(total_requests(view, queue))

    def orders_by_usage(self, queue: ClusterQueue | None) -> bool:
        """Return whether a ClusterQueue orders its Workloads by the usage of their LocalQueues."""
        return queue is not None and queue.view.is_usage_based

    def merge_status(self, local_queue: str, obj: Obj, now: Instant) -> tuple[LedgerEntry, bool]:
        """Return the entry of a LocalQueue, which includes the usage of its status, and whether it is new.

        The usage of the status is added once, so that a restart keeps it.
        """
        is_new = local_queue not in self._entries
        entry = self._entries.setdefault(local_queue, LedgerEntry(now))
        if not entry.is_status_merged:
            entry.consumed = add_amounts(entry.consumed, consumed_resources(obj))
            entry.is_status_merged = True
        return entry, is_new

    def sample(self, local_queue: str, now: Instant) -> None:
        """Let a LocalQueue's consumed resources decay, and add what its Workloads used since the last update."""
        entry = self._entries[local_queue]
        if self.settings.half_life:
            self._decay(local_queue, entry, now)
        else:
            entry.consumed, entry.last_update = {}, now

    def take_due_samples(self, local_queue: str, now: Instant) -> None:
        """Take the samples of a LocalQueue that were due up to a time, at their own times."""
        entry, period = self._entries[local_queue], self.settings.sampling_period
        overdue_count = (now - entry.last_update) // period - _OVERDUE_SAMPLES_MAX
        if overdue_count > 0:
            self.sample(local_queue, entry.last_update + overdue_count * period)
        while now >= entry.last_update + period:
            self.sample(local_queue, entry.last_update + period)

    def add_penalty(self, view: WorkloadView, queue: ClusterQueue, now: Instant) -> None:
        """Record the entry penalty of a Workload for which the scheduler reserves quota."""
        if self.orders_by_usage(queue) and (entry := self._entry_of(view.queue, now)) is not None:
            entry.penalties[view.key] = self.penalty_of(view, queue)

    def drop_penalty(self, local_queue: str, workload: str) -> None:
        """Forget the entry penalty of a Workload that can no longer be settled, if there is one."""
        entry = self._entries.get(local_queue)
        if entry is not None:
            entry.penalties.pop(workload, None)

    def observe(self, event: WatchEvent, view_of: Callable[[Obj], WorkloadView], now: Instant) -> None:
        """Update the ledger from a watch event of a Workload or LocalQueue, after the counters include the change."""
        kind, is_deleted = event.key.kind, event.type is EventType.DELETED
        if kind == scheme.WORKLOAD:
            view = view_of(event.obj)
            if is_deleted:
                self.drop_penalty(view.queue, view.key)
            elif event.old is not None:
                self._observe_change(view_of(event.old), view, now)
        elif kind == scheme.LOCAL_QUEUE and is_deleted:
            self._entries.pop(f"{event.key.namespace}/{event.key.name}", None)

    def _entry_of(self, local_queue: str, now: Instant) -> LedgerEntry | None:
        """Return the entry of a LocalQueue, which is created if it is missing; None if the LocalQueue is deleted."""
        if local_queue not in self._local_queues:
            return self._entries.get(local_queue)
        return self._entries.setdefault(local_queue, LedgerEntry(now))

    def _observe_change(self, old_view: WorkloadView, view: WorkloadView, now: Instant) -> None:
        if self._has_reached_anchor(old_view, view):
            self._settle(view, now)
        if old_view.queue != view.queue:
            self.drop_penalty(old_view.queue, view.key)
        is_out = not view.active and not view.quota_reserved
        was_out = not old_view.active and not old_view.quota_reserved
        if (is_out and not was_out) or (view.finished and not old_view.finished):
            self.drop_penalty(view.queue, view.key)

    def _has_reached_anchor(self, old_view: WorkloadView, view: WorkloadView) -> bool:
        """Return whether a change is the transition with which the usage of a Workload starts to count."""
        if not view.active or view.finished or not self.orders_by_usage(self._snapshot.queues.get(view.cluster_queue)):
            return False
        if self.settings.is_anchored_at_reservation:
            return view.quota_reserved and not (old_view.quota_reserved and old_view.active)
        return view.admitted and not old_view.admitted

    def _settle(self, view: WorkloadView, now: Instant) -> None:
        entry = self._entry_of(view.queue, now)
        if entry is None:
            return
        self._decay(view.queue, entry, now)
        entry.consumed = add_amounts(entry.consumed, entry.penalties.pop(view.key, {}))

    def _decay(self, local_queue: str, entry: LedgerEntry, now: Instant) -> None:
        elapsed = max(0, now - entry.last_update)
        entry.consumed = self.settings.decayed_amounts(entry.consumed, self._current_usage(local_queue), elapsed)
        entry.last_update = max(now, entry.last_update)

    def _current_usage(self, local_queue: str) -> NanoAmounts:
        counter, view = self._counters.get(local_queue), self._local_queues.get(local_queue)
        queue = None if view is None else self._snapshot.queues.get(view.cluster_queue)
        is_reservation = self.settings.is_anchored_at_reservation and self.orders_by_usage(queue)
        used_amounts = counter.reserved_usage if is_reservation else counter.admitted_usage
        groups = () if queue is None else queue.view.groups
        usage: NanoAmounts = dict.fromkeys([resource for group in groups for resource in group.resources], 0)
        names = self._snapshot.flavor_resource_names
        for fr, amount in used_amounts.items():
            resource = names[fr][1]
            usage[resource] = usage.get(resource, 0) + nano_amount(resource, amount)
        return usage


def consumed_resources(local_queue: Obj) -> NanoAmounts:
    """Return the consumed resources in the status of a LocalQueue, in billionths; empty if there are none."""
    fair_sharing = (local_queue.get("status") or {}).get("fairSharing") or {}
    consumed = (fair_sharing.get("admissionFairSharingStatus") or {}).get("consumedResources") or {}
    return {resource: parse_quantity(amount) for resource, amount in consumed.items()}


def fair_sharing_status(entry: LedgerEntry) -> dict[str, Any]:
    """Return the field `status.fairSharing` of a LocalQueue with this entry."""
    consumed = {r: format_quantity(entry.consumed[r], QuantityFormat.DECIMAL) for r in sorted(entry.consumed)}
    return {
        "weightedShare": 0,
        "admissionFairSharingStatus": {
            "consumedResources": consumed,
            "lastUpdate": format_time(entry.last_update // SECOND * SECOND),
        },
    }


def order_victims(
    candidates: Iterable[AdmittedWorkload], preemptor_queue: ClusterQueue, usage_of: Callable[[str], float]
) -> list[AdmittedWorkload]:
    """Return preemption candidates in Kueue's order with admission fair sharing.

    Evicted Workloads come first, then those of other ClusterQueues. Two Workloads of one usage-based ClusterQueue and
    of LocalQueues with different names are compared by usage, the highest first. Then the lowest priority, the latest
    reservation and the uid decide. This order is not transitive if candidates of several ClusterQueues take part;
    the result is then one of those that Kueue may choose.
    """
    usages: dict[str, float] = {}

    def usage(candidate: AdmittedWorkload) -> float:
        local_queue = candidate.local_queue
        if local_queue not in usages:
            usages[local_queue] = usage_of(local_queue)
        return usages[local_queue]

    def compare(a: AdmittedWorkload, b: AdmittedWorkload) -> int:
        if a.evicted != b.evicted:
            return -1 if a.evicted else 1
        if (a.queue is preemptor_queue) != (b.queue is preemptor_queue):
            return 1 if a.queue is preemptor_queue else -1
        if a.queue is b.queue and a.queue.view.is_usage_based and _local_name(a) != _local_name(b):
            a_usage, b_usage = usage(a), usage(b)
            if a_usage != b_usage:
                return -1 if a_usage > b_usage else 1
        return -1 if a.preemption_rank < b.preemption_rank else int(a.preemption_rank > b.preemption_rank)

    return sorted(sorted(candidates, key=PREEMPTION_RANK), key=cmp_to_key(compare))


def _local_name(workload: AdmittedWorkload) -> str:
    return workload.local_queue.partition("/")[2]
