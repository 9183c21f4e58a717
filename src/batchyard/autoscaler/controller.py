"""Autoscaler controller: scans the cluster at most once per scan interval, when something changed or is due."""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.pod import grace_period
from batchyard.api.views.pod_lifecycle import BY_EVICTION, disrupted, is_terminating
from batchyard.autoscaler.index import KINDS, ScalingIndex
from batchyard.autoscaler.machines import marked_staying
from batchyard.autoscaler.run_once import AutoscalerLoop
from batchyard.autoscaler.scale_down import PodDrainability, drain_of
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.autoscaler.settings import DRAIN_TIME, GRACE_MAX
from batchyard.base.instant import SECOND, Instant
from batchyard.disruption.budgets import verdict
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult

# --- leaving ---
#
# Draining of nodes with the ToBeDeleted taint: evict their pods, then delete their machines.
#
# All state is in the objects, so draining continues after a restart. A node is kept if its pods do not stop in time, or
# if it got a pod that blocks scale-down. Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaledown/actuation.


#: Retry interval for pods whose eviction a disruption budget rejected.
RETRY_TIME: Final = 10 * SECOND


def empty_nodes(index: ScalingIndex, reader: Reader, now: Instant) -> ReconcileResult:
    """Advance the draining nodes by one step."""
    outcome = ReconcileResult()
    for name in index.going:
        machine, node = index.machines.get(name), reader.get(Key(scheme.NODE, "", name))
        if machine is not None and not machine.is_leaving and node is not None:
            _empty(name, node, index, reader, now, outcome)
    return outcome


def _empty(name: str, node: Obj, index: ScalingIndex, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
    pods = _pods_on(name, index, reader)
    drains = [drain_of(pod, now) for pod in pods]
    moving = [pod for pod, drain in zip(pods, drains, strict=True) if drain is PodDrainability.MOVES]
    ends = (index.facts[name].going_since or 0) + DRAIN_TIME
    if PodDrainability.BLOCKS in drains or PodDrainability.WAITS in drains or (moving and ends <= now):
        outcome.writes.append(Update(marked_staying(node)))
    elif moving:
        look_at = min(ends, now + RETRY_TIME) if _evict_all(moving, reader, now, outcome) else ends
        outcome.requeue_at = look_at if outcome.requeue_at is None else min(look_at, outcome.requeue_at)
    else:
        outcome.writes.append(Delete(Key(scheme.INSTANCE, "", name)))


def _pods_on(name: str, index: ScalingIndex, reader: Reader) -> list[Obj]:
    node = index.nodes.get(name)
    views = [] if node is None else list(node.pods.values())
    found = [reader.get(Key(scheme.POD, view.namespace, view.name)) for view in views]
    return [pod for pod in found if pod is not None]


def _evict_all(pods: Sequence[Obj], reader: Reader, now: Instant, outcome: ReconcileResult) -> bool:
    """Evict the pods that their disruption budgets allow; return whether some were rejected."""
    budgets: dict[Key, Obj] = {}
    evictions = ReconcileResult()
    is_refused = False
    for pod in pods:
        if is_terminating(pod):
            continue
        known = reader.list(scheme.POD_DISRUPTION_BUDGET, pod["metadata"].get("namespace", ""))
        judged = verdict(pod, [budgets.get(key_of(budget), budget) for budget in known], now)
        if judged.refusal is not None:
            is_refused = True
            continue
        if judged.spent is not None:
            budgets[key_of(judged.spent)] = judged.spent
        _evict(pod, now, evictions)
    outcome.writes += [*map(UpdateStatus, budgets.values()), *evictions.writes]
    outcome.events += evictions.events
    return is_refused


def _evict(pod: Obj, now: Instant, outcome: ReconcileResult) -> None:
    metadata = pod["metadata"]
    key = Key(scheme.POD, metadata.get("namespace", ""), metadata["name"])
    grace = min(grace_period(pod["spec"]), GRACE_MAX)
    outcome.writes += [UpdateStatus(disrupted(pod, BY_EVICTION, now)), Delete(key, grace, uid=metadata["uid"])]
    outcome.events.append(EventRecord(key, "Normal", "ScaleDown", "deleting pod for node scale down"))


_CLUSTER: Final = Key(scheme.CLUSTER, "", "autoscaler")


class Autoscaler:
    """Scans the cluster, and updates the index, which other readers must run after.

    Scan instants are counted from the creation of the Cluster, so that a restart does not move them.
    """

    name = "autoscaler"
    rank = 15
    kinds = KINDS

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index
        self._last_scan: Instant | None = None
        self._last_messages: dict[str, str] = {}

    def last_message_for(self, pod: str) -> str:
        """Return the last message for a pending pod, by uid; '' if none."""
        return self._last_messages.get(pod, "")

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the cluster's key if the change requires a scan."""
        return (_CLUSTER,) if self._index.observe(event) and self._index.is_needed else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Advance draining nodes; scan the cluster if a scan is due."""
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None or not self._index.is_needed:
            return ReconcileResult()
        leaving = empty_nodes(self._index, reader, now)
        if leaving.writes:
            return leaving
        start = parse_time(cluster["metadata"]["creationTimestamp"])
        next_scan = settings.next_scan(start, now if self._last_scan != now else now + 1)
        if next_scan > now:
            return ReconcileResult(requeue_at=next_scan)
        self._last_scan = now
        looked = AutoscalerLoop(self._index, reader, LoopContext(cluster, settings, now), self._last_messages).run()
        dues = [due for due in (leaving.requeue_at, looked.requeue_at) if due is not None]
        looked.requeue_at = min(dues, default=None)
        return looked
