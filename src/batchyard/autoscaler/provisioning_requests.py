"""Controller of ProvisioningRequests, which ask for capacity as a whole before pods exist.

It reconciles requests at the scan instants of the autoscaler.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.pods import PodView
from batchyard.autoscaler import provisioning_request_conditions as states
from batchyard.autoscaler.cluster_forecast import UpcomingCluster, requested_pods, template_keys
from batchyard.autoscaler.failures import Failures
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.pending_units import PendingUnit, PodPlacements
from batchyard.autoscaler.provisioning_request_conditions import (
    ACCEPTED_BY_AUTOSCALER,
    BOOKING_TIME,
    CAPACITY_FOUND,
    CAPACITY_LATER,
    CAPACITY_MADE,
    CAPACITY_NEVER,
    CHECK_CLASS,
    CONSUMED,
    EXPIRED,
    EXPIRES_AFTER,
    FAILED,
    KEPT_FOR,
    PROVISIONED,
    RESERVATION_OVER,
    ConditionText,
    ProvisioningRequestState,
    created,
    missing_templates_message,
    parameter,
    since,
    state_of,
    with_condition_set,
)
from batchyard.autoscaler.provisioning_request_pods import consumed_request
from batchyard.autoscaler.queued_requests import QueuedRequest
from batchyard.autoscaler.resize_requests import resize_request_key
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.base.instant import MINUTE, Instant
from batchyard.cloud.catalog.instances import new_instance
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# --- capacity requests ---
#
# ProvisioningRequests of the classes check-capacity and best-effort-atomic-scale-up, served from existing pools.
#
# A request without capacity is retried after a minute, then with exponential backoff. Source:
# kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/{checkcapacity,besteffortatomic} and
# pkg/processors/provreq.


_FIRST_WAIT: Final = MINUTE
_LONGEST_WAIT: Final = 10 * MINUTE


class CapacityRequest:
    """A ProvisioningRequest of these classes, and the cluster state at one instant."""

    def __init__(self, request: Obj, index: ScalingIndex, reader: Reader, situation: LoopContext) -> None:
        self._request = request
        self._key = key_of(request)
        self._index = index
        self._reader = reader
        self._situation = situation
        self._now = situation.now

    def step(self) -> ReconcileResult:
        """Return the writes that are due now, and the time of the next reconcile."""
        match state_of(self._request):
            case ProvisioningRequestState.FAILED:
                return self._end(since(self._request, FAILED))
            case ProvisioningRequestState.BOOKING_EXPIRED | ProvisioningRequestState.CAPACITY_REVOKED:
                return self._end(since(self._request, PROVISIONED))
            case ProvisioningRequestState.PROVISIONED:
                return self._keep_room()
            case _:
                return self._provision()

    def _end(self, over: Instant | None) -> ReconcileResult:
        due = (self._now if over is None else over) + KEPT_FOR
        return ReconcileResult([Delete(self._key)]) if due <= self._now else ReconcileResult(requeue_at=due)

    def _keep_room(self) -> ReconcileResult:
        """Keep the capacity booked until all pods consume it, or for ten minutes."""
        due = (since(self._request, PROVISIONED) or self._now) + BOOKING_TIME
        count = sum(pod_set["count"] for pod_set in self._request["spec"]["podSets"])
        if len(self._index.consumers.get(self._key, ())) >= count:
            return self._set_condition(CONSUMED)
        return self._set_condition(RESERVATION_OVER) if due <= self._now else ReconcileResult(requeue_at=due)

    def _provision(self) -> ReconcileResult:
        """Check or provision the capacity if a try is due."""
        expires = created(self._request) + EXPIRES_AFTER
        if expires <= self._now:
            return self._set_condition(EXPIRED)
        refused = since(self._request, PROVISIONED)
        if refused is not None:
            due, upcoming = next_tries(refused, self._now, self._situation.settings.scan_interval)
            if not due:
                return ReconcileResult(requeue_at=min(expires, upcoming))
        pods = requested_pods(self._request, self._reader)
        if pods is None:
            missing = [key.name for key in template_keys(self._request) if self._reader.get(key) is None]
            return self._set_condition(
                ConditionText(FAILED, True, "FailedToCreatePods", missing_templates_message(self._request, missing))
            )
        with self._index.nodes.what_if():
            condition, writes = self._try(pods)
        updated = with_condition_set(
            with_condition_set(self._request, ACCEPTED_BY_AUTOSCALER, self._now), condition, self._now
        )
        writes += [UpdateStatus(updated)] if updated is not self._request else []
        return ReconcileResult(writes, requeue_at=self._now + _FIRST_WAIT if condition is CAPACITY_LATER else None)

    def _try(self, pods: Sequence[PodView]) -> tuple[ConditionText, list[Write]]:
        """Return the resulting condition, and the writes that provision capacity for all the pods."""
        trial = UpcomingCluster(
            self._index, self._reader, self._situation, Failures(self._index, self._reader, self._now)
        )
        trial.prepare()
        if self._request["spec"]["provisioningClassName"] == CHECK_CLASS:
            if not PodPlacements(self._index.nodes).put(pods):
                return CAPACITY_FOUND, []
            return CAPACITY_NEVER if parameter(self._request, "noRetry") == "true" else CAPACITY_LATER, []
        scale_up = trial.scale_up
        if not scale_up.help(PendingUnit(pods, is_gang=True)):
            return CAPACITY_LATER, []
        writes: list[Write] = [Create(pool) for pool in scale_up.pools]
        for group, count in scale_up.increases.items():
            writes += [Create(new_instance(group.pool, group.name.zone, self._situation.cluster))] * count
        return CAPACITY_MADE if writes else CAPACITY_FOUND, writes

    def _set_condition(self, condition: ConditionText) -> ReconcileResult:
        updated = with_condition_set(self._request, condition, self._now)
        return ReconcileResult() if updated is self._request else ReconcileResult([UpdateStatus(updated)])


def next_tries(refused: Instant, now: Instant, interval: int) -> tuple[bool, Instant]:
    """Whether a try is due, and the time of the next: one minute after the first failure, then doubled up to ten."""
    wait, due = _FIRST_WAIT, refused + _FIRST_WAIT
    while due <= now:
        if due > now - interval:
            return True, due
        wait = min(2 * wait, _LONGEST_WAIT)
        due += wait
    return False, due


class ProvisioningRequests:
    """Reconciles ProvisioningRequests. It runs after the Autoscaler, which updates the index."""

    name = "provisioning-requests"
    rank = 15
    kinds = (scheme.PROVISIONING_REQUEST, scheme.RESIZE_REQUEST, scheme.POD_TEMPLATE, scheme.POD)

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the request, the request of a ResizeRequest or consuming pod, or those that may use a PodTemplate."""
        if event.key.kind == scheme.PROVISIONING_REQUEST:
            return (event.key,)
        if not self._index.requests:
            return ()
        match event.key.kind:
            case scheme.RESIZE_REQUEST:
                found = self._index.by_resize_request.get(event.key.name)
                return () if found is None else (found,)
            case scheme.POD:
                return self._consumed(event)
            case _:
                return [key for key in self._index.requests if key.namespace == event.key.namespace]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Advance a request if a scan is due. If it was deleted, delete its ResizeRequest too."""
        request = reader.get(key)
        if request is None:
            resize_request = resize_request_key(key)
            return ReconcileResult([] if reader.get(resize_request) is None else [Delete(resize_request)])
        if states.is_for_another(request):
            return ReconcileResult()
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None:
            return ReconcileResult()
        next_scan = settings.next_scan(parse_time(cluster["metadata"]["creationTimestamp"]), now)
        if next_scan > now:
            return ReconcileResult(requeue_at=next_scan)
        situation = LoopContext(cluster, settings, now)
        match request["spec"]["provisioningClassName"]:
            case states.QUEUED_CLASS:
                return QueuedRequest(request, self._index, reader, situation).step()
            case states.ATOMIC_CLASS | states.CHECK_CLASS:
                return CapacityRequest(request, self._index, reader, situation).step()
        return ReconcileResult()

    def _consumed(self, event: WatchEvent) -> Iterable[Key]:
        """Return the request that a bound pod consumes."""
        if event.type is EventType.DELETED or not event.obj["spec"].get("nodeName"):
            return ()
        request = consumed_request(event.obj)
        key = Key(scheme.PROVISIONING_REQUEST, event.key.namespace, request)
        return (key,) if request and key in self._index.requests else ()
