"""Controller of ProvisioningRequests, which ask for capacity as a whole before pods exist.

It reconciles requests at the scan instants of the autoscaler.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.pods import PodView
from batchyard.autoscaler import provisioning_request_pods
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.cluster_forecast import UpcomingCluster, requested_pods, template_keys
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.index import Failures, ScalingIndex
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.provisioning_request_pods import (
    ACCEPTED,
    ACCEPTED_BY_AUTOSCALER,
    BOOKING_OVER,
    BOOKING_TIME,
    CANCELLED,
    CAPACITY_FOUND,
    CAPACITY_LATER,
    CAPACITY_MADE,
    CAPACITY_NEVER,
    CAPACITY_REVOKED,
    CHECK_CLASS,
    CONSUMED,
    EXPIRED,
    EXPIRES_AFTER,
    FAILED,
    HAS_CAPACITY,
    KEPT_FOR,
    MISSING_RESIZE_REQUEST,
    NOT_ACCEPTED,
    PROVISIONED,
    QUEUED,
    RESERVATION_OVER,
    RETRY_TIME,
    REVOKED,
    UNKNOWN_STRATEGY,
    WAITED_TOO_LONG,
    ConditionText,
    ProvisioningRequestState,
    choose_group,
    consumed_request,
    created,
    is_for_many_zones,
    max_run_duration,
    missing_templates,
    missing_templates_message,
    parameter,
    resize_request_name,
    run_duration_fault,
    since,
    state_of,
    valid_until,
    with_condition_set,
    with_details,
)
from batchyard.autoscaler.scale_up import LoopContext, PendingUnit, PodPlacements
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.cloud.catalog.instances import new_instance
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# --- resize requests ---
#
# ResizeRequests, the cloud's form of a queued ProvisioningRequest, and their result.
#
# Source: GKE's autoscaler, pkg/provisioningrequests/{manager,reconciler} and reconciler/reasons.


_REASONS: Final[Mapping[str, str]] = {
    "LIMIT_EXCEEDED": "LimitExceeded",
    "RESOURCE_POOL_EXHAUSTED": "ResourcePoolExhausted",
    "ZONE_RESOURCE_POOL_EXHAUSTED": "ResourcePoolExhausted",
    "QUOTA_EXCEEDED": "QuotaExceeded",
    "RESERVATION_NOT_FOUND": "ReservationNotFound",
    "RESERVATION_NOT_READY": "ReservationNotReady",
    "RESERVATION_CAPACITY_EXCEEDED": "ReservationCapacityExceeded",
    "RESERVATION_INCOMPATIBLE": "ReservationIncompatible",
    "INVALID_MACHINE_TYPE": "InvalidMachineType",
    "INVALID_GPU_TYPE": "InvalidGPUType",
    "INVALID_ARGUMENT": "InvalidArgument",
    "CONDITION_NOT_MET": "ConditionNotMet",
}
_INTERNAL: Final = "InternalError"
_NO_ERROR: Final = ConditionText(
    FAILED,
    True,
    "InternalErrorResizeRequestFailed",
    "Provisioning Request failed, but no errors with details can be provided.",
)


def resize_request_key(request: Key) -> Key:
    """Return the key of a ProvisioningRequest's ResizeRequest."""
    return Key(scheme.RESIZE_REQUEST, "", resize_request_name(request.namespace, request.name))


def new_resize_request(request: Obj, group: NodeGroup, count: int) -> dict[str, Any]:
    """Return a new ResizeRequest for a ProvisioningRequest."""
    metadata = request["metadata"]
    return {
        "apiVersion": scheme.kind_info(scheme.RESIZE_REQUEST).api_version,
        "kind": "ResizeRequest",
        "metadata": {"name": resize_request_name(metadata["namespace"], metadata["name"])},
        "spec": {
            "pool": group.name.pool,
            "zone": group.name.zone,
            "count": count,
            "maxRunDuration": f"{max_run_duration(request) // SECOND}s",
            "provisioningRequest": f"{metadata['namespace']}/{metadata['name']}",
        },
    }


def details_of(request: Obj, resize_request: Obj, group: NodeGroup) -> dict[str, str]:
    """Return the provisioning class details of a ProvisioningRequest."""
    accelerator = group.machine.accelerator
    names = dict.fromkeys(pod_set["podTemplateRef"]["name"] for pod_set in request["spec"]["podSets"])
    return {
        "NodeGroupName": group.id,
        "ResizeRequestName": resize_request["metadata"]["name"],
        "NodePoolName": group.name.pool,
        "AcceleratorType": accelerator.type if accelerator else "",
        "SelectedZone": group.name.zone,
        "NodePoolAutoProvisioned": "true" if group.is_auto_provisioned else "false",
        "PodTemplateName": ", ".join(names),
        "ProvisioningMode": "resize_request",
    }


def answer_of(resize_request: Obj | None) -> ConditionText | None:
    """Return the condition that the ResizeRequest's state implies; None if nothing changed."""
    if resize_request is None:
        return MISSING_RESIZE_REQUEST
    status = resize_request.get("status") or {}
    match status.get("state"):
        case "SUCCEEDED":
            return HAS_CAPACITY
        case "CANCELLED":
            return CANCELLED
        case "FAILED":
            error = status.get("error")
            return (
                ConditionText(FAILED, True, _reason(error["code"]), error.get("message") or "") if error else _NO_ERROR
            )
        case "ACCEPTED":
            return _last_attempt(status)
    return None


def _last_attempt(status: Mapping[str, Any]) -> ConditionText | None:
    """Return the condition for a failed attempt that the cloud retries."""
    condition = find_condition(status, PROVISIONED)
    if condition is None or condition["status"] == "True" or not condition.get("message"):
        return None
    return ConditionText(PROVISIONED, False, _reason(condition["reason"]), condition["message"])


def _reason(code: str) -> str:
    return _REASONS.get(code, _INTERNAL)


# --- queued requests ---
#
# Reconciler of one ProvisioningRequest of the class queued-provisioning.gke.io: one state transition per call.
#
# Source: GKE's autoscaler, pkg/provisioningrequests/reconciler and pkg/provisioningrequests/scaleup.


#: How long a ResizeRequest is kept after it was provisioned.
_RESIZE_REQUEST_KEPT_FOR = HOUR


class QueuedRequest:
    """A queued ProvisioningRequest with its ResizeRequest, if there is one, and the cluster state at one instant."""

    def __init__(self, request: Obj, index: ScalingIndex, reader: Reader, situation: LoopContext) -> None:
        self._request = request
        self._key = key_of(request)
        self._resize_request = reader.get(resize_request_key(self._key))
        self._index = index
        self._reader = reader
        self._situation = situation
        self._now = situation.now

    def step(self) -> ReconcileResult:
        """Return the writes that are due now, and the time of the next reconcile."""
        state, until = state_of(self._request), valid_until(self._request)
        if state in {
            ProvisioningRequestState.UNINITIALIZED,
            ProvisioningRequestState.PENDING,
            ProvisioningRequestState.ACCEPTED,
        }:
            if until is not None and until <= self._now:
                return self._set_condition(WAITED_TOO_LONG)
            if is_for_many_zones(self._request):
                return self._set_condition(UNKNOWN_STRATEGY)
        match state:
            case ProvisioningRequestState.UNINITIALIZED:
                return self._begin()
            case ProvisioningRequestState.PENDING:
                outcome = self._queue()
            case ProvisioningRequestState.ACCEPTED:
                condition = answer_of(self._resize_request)
                outcome = ReconcileResult() if condition is None else self._set_condition(condition)
            case ProvisioningRequestState.PROVISIONED:
                outcome = self._after(PROVISIONED, BOOKING_TIME, BOOKING_OVER)
            case ProvisioningRequestState.BOOKING_EXPIRED:
                outcome = self._after(PROVISIONED, max_run_duration(self._request), REVOKED)
            case ProvisioningRequestState.CAPACITY_REVOKED:
                outcome = self._end(CAPACITY_REVOKED)
            case ProvisioningRequestState.FAILED:
                outcome = self._end(FAILED)
        if state in {ProvisioningRequestState.PENDING, ProvisioningRequestState.ACCEPTED}:
            _look_again(outcome, until)
        return self._clean_up(state, outcome)

    # --- pending ---

    def _begin(self) -> ReconcileResult:
        """Accept responsibility for the request; delete a stale ResizeRequest of the same name."""
        stale = [] if self._resize_request is None else [Delete(resize_request_key(self._key))]
        return ReconcileResult([*stale, *self._set_condition(NOT_ACCEPTED).writes])

    def _queue(self) -> ReconcileResult:
        """Choose a node group for the whole request and create its ResizeRequest; once that exists, set Accepted."""
        if since(self._request, ACCEPTED) == self._now:
            return ReconcileResult(requeue_at=self._next_scan())
        missing = [key.name for key in template_keys(self._request) if self._reader.get(key) is None]
        if missing:
            condition = missing_templates(self._request, missing, is_final=not self._may_retry())
            return self._retry(condition)
        if self._resize_request is not None:
            return self._accept(self._resize_request)
        found = self._choose()
        if isinstance(found, ConditionText):
            condition = found._replace(type=ACCEPTED, status=False) if self._may_retry() else found
            return self._retry(condition)
        fault = run_duration_fault(self._request)
        if fault is not None:
            return self._set_condition(fault)
        pool: list[Write] = [Create(found.group.pool)] if found.is_new_pool else []
        return ReconcileResult([*pool, Create(new_resize_request(self._request, found.group, len(found.nodes)))])

    def _choose(self) -> ScaleUpOption | ConditionText:
        situation = self._situation
        pods = requested_pods(self._request, self._reader)
        assert pods is not None, "all templates exist"
        maker = None
        if situation.settings.makes_pools:
            maker = NodeAutoProvisioner(situation.cluster, situation.settings.limits, self._index.pools, "queued")
        with self._index.nodes.what_if():
            trial = UpcomingCluster(
                self._index, self._reader, situation, Failures(self._index, self._reader, self._now)
            )
            trial.prepare()
            return choose_group(pods, trial.scale_up, maker)

    def _accept(self, resize_request: Obj) -> ReconcileResult:
        """Set Accepted with the provisioning details; if the pool is gone, delete the ResizeRequest."""
        spec = resize_request["spec"]
        groups = self._index.groups.get(spec["pool"], ())
        group = next((group for group in groups if group.name.zone == spec["zone"]), None)
        if group is None:
            return ReconcileResult([Delete(resize_request_key(self._key))])
        detailed = with_details(self._request, details_of(self._request, resize_request, group))
        return ReconcileResult([UpdateStatus(with_condition_set(detailed, QUEUED, self._now))])

    def _may_retry(self) -> bool:
        return self._now < created(self._request) + RETRY_TIME

    def _retry(self, condition: ConditionText) -> ReconcileResult:
        """Set the condition, and requeue while the request may still be retried."""
        outcome = self._set_condition(condition)
        if self._may_retry():
            outcome.requeue_at = self._next_scan()
        return outcome

    def _next_scan(self) -> Instant:
        return self._now + self._situation.settings.scan_interval

    # --- later ---

    def _after(self, kind: str, wait: Duration, condition: ConditionText) -> ReconcileResult:
        """Set a condition a given time after another condition became True."""
        due = (since(self._request, kind) or self._now) + wait
        return self._set_condition(condition) if due <= self._now else ReconcileResult(requeue_at=due)

    def _end(self, kind: str) -> ReconcileResult:
        """Delete the request once its final condition is older than the retention time."""
        due = (since(self._request, kind) or self._now) + KEPT_FOR
        return ReconcileResult([Delete(self._key)]) if due <= self._now else ReconcileResult(requeue_at=due)

    def _clean_up(self, state: ProvisioningRequestState, outcome: ReconcileResult) -> ReconcileResult:
        """Delete a ResizeRequest that is no longer needed. Deleting an open one makes the cloud stop trying."""
        if self._resize_request is None or state in {
            ProvisioningRequestState.UNINITIALIZED,
            ProvisioningRequestState.PENDING,
            ProvisioningRequestState.ACCEPTED,
        }:
            return outcome
        provisioned = since(self._request, PROVISIONED)
        due = (
            self._now
            if state is ProvisioningRequestState.FAILED or provisioned is None
            else provisioned + _RESIZE_REQUEST_KEPT_FOR
        )
        if due <= self._now:
            outcome.writes.append(Delete(Key(scheme.RESIZE_REQUEST, "", self._resize_request["metadata"]["name"])))
        else:
            _look_again(outcome, due)
        return outcome

    def _set_condition(self, condition: ConditionText) -> ReconcileResult:
        updated = with_condition_set(self._request, condition, self._now)
        return ReconcileResult() if updated is self._request else ReconcileResult([UpdateStatus(updated)])


def _look_again(outcome: ReconcileResult, when: Instant | None) -> None:
    if when is not None:
        outcome.requeue_at = when if outcome.requeue_at is None else min(when, outcome.requeue_at)


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
        if provisioning_request_pods.is_for_another(request):
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
            case provisioning_request_pods.QUEUED_CLASS:
                return QueuedRequest(request, self._index, reader, situation).step()
            case provisioning_request_pods.ATOMIC_CLASS | provisioning_request_pods.CHECK_CLASS:
                return CapacityRequest(request, self._index, reader, situation).step()
        return ReconcileResult()

    def _consumed(self, event: WatchEvent) -> Iterable[Key]:
        """Return the request that a bound pod consumes."""
        if event.type is EventType.DELETED or not event.obj["spec"].get("nodeName"):
            return ()
        request = consumed_request(event.obj)
        key = Key(scheme.PROVISIONING_REQUEST, event.key.namespace, request)
        return (key,) if request and key in self._index.requests else ()
