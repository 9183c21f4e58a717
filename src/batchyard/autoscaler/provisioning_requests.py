"""The controller of ProvisioningRequests, which ask for the capacity of all pods of a workload before the pods exist.

The controller reconciles requests at the scan times of the autoscaler.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.pods import PodView
from batchyard.autoscaler import provisioning_request_pods as request_pods
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.cluster_forecast import UpcomingCluster, requested_pods, template_keys
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.index import FailedMachines, ScalingIndex
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.scale_up import LoopContext, PendingUnit, PodPlacements
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.cloud.catalog.instances import new_instance
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# ResizeRequests, with which the cloud provides the machines of a queued ProvisioningRequest, and their result.
#
# Source: GKE's autoscaler, pkg/provisioningrequests/{manager,reconciler} and reconciler/reasons.


_REASON_BY_ERROR_CODE: Final[Mapping[str, str]] = {
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
_UNKNOWN_ERROR_REASON: Final = "InternalError"
_NO_ERROR: Final = request_pods.ConditionText(
    request_pods.FAILED,
    True,
    "InternalErrorResizeRequestFailed",
    "Provisioning Request failed, but no errors with details can be provided.",
)


def resize_request_key(request: Key) -> Key:
    """Return the key of the ResizeRequest that obtains the machines of a queued ProvisioningRequest."""
    return Key(scheme.RESIZE_REQUEST, "", request_pods.resize_request_name(request.namespace, request.name))


def new_resize_request(request: Obj, group: NodeGroup, count: int) -> dict[str, Any]:
    """Return a new ResizeRequest that requests `count` machines of a node group for a ProvisioningRequest."""
    metadata = request["metadata"]
    return {
        "apiVersion": scheme.kind_info(scheme.RESIZE_REQUEST).api_version,
        "kind": "ResizeRequest",
        "metadata": {"name": request_pods.resize_request_name(metadata["namespace"], metadata["name"])},
        "spec": {
            "pool": group.name.pool,
            "zone": group.name.zone,
            "count": count,
            "maxRunDuration": f"{request_pods.max_run_duration(request) // SECOND}s",
            "provisioningRequest": f"{metadata['namespace']}/{metadata['name']}",
        },
    }


def provisioning_details(request: Obj, resize_request: Obj, group: NodeGroup) -> dict[str, str]:
    """Return the status.provisioningClassDetails of a ProvisioningRequest."""
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


def result_condition(resize_request: Obj | None) -> request_pods.ConditionText | None:
    """Return the condition that a ResizeRequest (None: it does not exist) implies for its ProvisioningRequest.

    For an open ResizeRequest, the condition reports the cloud's last failed attempt; return None if none has failed.
    """
    if resize_request is None:
        return request_pods.MISSING_RESIZE_REQUEST
    status = resize_request.get("status") or {}
    match status.get("state"):
        case "SUCCEEDED":
            return request_pods.HAS_CAPACITY
        case "CANCELLED":
            return request_pods.CANCELLED_CONDITION
        case "FAILED":
            error = status.get("error")
            return (
                request_pods.ConditionText(
                    request_pods.FAILED, True, _failure_reason(error["code"]), error.get("message") or ""
                )
                if error
                else _NO_ERROR
            )
        case "ACCEPTED":
            return _last_attempt_condition(status)
    return None


def _last_attempt_condition(status: Mapping[str, Any]) -> request_pods.ConditionText | None:
    condition = find_condition(status, request_pods.PROVISIONED)
    if condition is None or condition["status"] == "True" or not condition.get("message"):
        return None
    return request_pods.ConditionText(
        request_pods.PROVISIONED, False, _failure_reason(condition["reason"]), condition["message"]
    )


def _failure_reason(error_code: str) -> str:
    return _REASON_BY_ERROR_CODE.get(error_code, _UNKNOWN_ERROR_REASON)


# Reconcile one ProvisioningRequest of the class queued-provisioning.gke.io: one state transition per call.
#
# Source: GKE's autoscaler, pkg/provisioningrequests/reconciler and pkg/provisioningrequests/scaleup.


#: How long a ResizeRequest is kept after it was provisioned.
_RESIZE_REQUEST_RETENTION = HOUR
_OPEN_STATES: Final = {
    request_pods.ProvisioningRequestState.UNINITIALIZED,
    request_pods.ProvisioningRequestState.PENDING,
    request_pods.ProvisioningRequestState.ACCEPTED,
}


class QueuedRequest:
    """A ProvisioningRequest of GKE's queued class during one reconcile, with its ResizeRequest if that exists."""

    def __init__(self, request: Obj, index: ScalingIndex, reader: Reader, loop_context: LoopContext) -> None:
        self._request = request
        self._key = key_of(request)
        self._resize_request = reader.get(resize_request_key(self._key))
        self._index = index
        self._reader = reader
        self._loop_context = loop_context
        self._now = loop_context.now

    def reconcile(self) -> ReconcileResult:
        """Return the writes that are due for the ProvisioningRequest, and the time of the next reconcile."""
        request_state, expiry_time = request_pods.state_of(self._request), request_pods.valid_until(self._request)
        if request_state in _OPEN_STATES:
            if expiry_time is not None and expiry_time <= self._now:
                return self._set_condition(request_pods.WAITED_TOO_LONG)
            if request_pods.is_for_many_zones(self._request):
                return self._set_condition(request_pods.UNKNOWN_STRATEGY)
        match request_state:
            case request_pods.ProvisioningRequestState.UNINITIALIZED:
                return self._initialize()
            case request_pods.ProvisioningRequestState.PENDING:
                outcome = self._request_machines()
            case request_pods.ProvisioningRequestState.ACCEPTED:
                condition = result_condition(self._resize_request)
                outcome = ReconcileResult() if condition is None else self._set_condition(condition)
            case request_pods.ProvisioningRequestState.PROVISIONED:
                outcome = self._set_condition_after(
                    request_pods.PROVISIONED, request_pods.BOOKING_TIME, request_pods.BOOKING_EXPIRED_CONDITION
                )
            case request_pods.ProvisioningRequestState.BOOKING_EXPIRED:
                outcome = self._set_condition_after(
                    request_pods.PROVISIONED,
                    request_pods.max_run_duration(self._request),
                    request_pods.REVOKED_CONDITION,
                )
            case request_pods.ProvisioningRequestState.CAPACITY_REVOKED:
                outcome = self._delete_after_retention(request_pods.CAPACITY_REVOKED)
            case request_pods.ProvisioningRequestState.FAILED:
                outcome = self._delete_after_retention(request_pods.FAILED)
        if request_state in _OPEN_STATES:
            _requeue_by(outcome, expiry_time)
        return self._clean_up_resize_request(request_state, outcome)

    # --- pending ---

    def _initialize(self) -> ReconcileResult:
        """Set the condition Accepted of a new ProvisioningRequest to False.

        The ResizeRequest of an earlier ProvisioningRequest with the same name is deleted.
        """
        deletions = [] if self._resize_request is None else [Delete(resize_request_key(self._key))]
        return ReconcileResult([*deletions, *self._set_condition(request_pods.NOT_ACCEPTED).writes])

    def _request_machines(self) -> ReconcileResult:
        """Return the creation of the ResizeRequest or, if it exists, the write of the condition Accepted.

        If PodTemplates are missing, or no node group can provide the machines, return the write of a condition that
        says so.
        """
        if request_pods.transition_time(self._request, request_pods.ACCEPTED) == self._now:
            return ReconcileResult(requeue_at=self._next_scan_time())
        missing_names = [key.name for key in template_keys(self._request) if self._reader.get(key) is None]
        if missing_names:
            condition = request_pods.missing_templates_condition(
                self._request, missing_names, is_final=not self._may_retry()
            )
            return self._set_retry_condition(condition)
        if self._resize_request is not None:
            return self._accept_request(self._resize_request)
        option = self._choose_scale_up()
        if isinstance(option, request_pods.ConditionText):
            condition = option._replace(type=request_pods.ACCEPTED, status=False) if self._may_retry() else option
            return self._set_retry_condition(condition)
        duration_fault = request_pods.run_duration_fault(self._request)
        if duration_fault is not None:
            return self._set_condition(duration_fault)
        pool: list[Write] = [Create(option.group.pool)] if option.is_new_pool else []
        return ReconcileResult([*pool, Create(new_resize_request(self._request, option.group, len(option.nodes)))])

    def _choose_scale_up(self) -> ScaleUpOption | request_pods.ConditionText:
        context = self._loop_context
        pods = requested_pods(self._request, self._reader)
        assert pods is not None, "_request_machines checks that all pod templates exist"
        provisioner = None
        if context.settings.makes_pools:
            provisioner = NodeAutoProvisioner(context.cluster, context.settings.limits, self._index.pools, "queued")
        with self._index.nodes.what_if():
            failures = FailedMachines(self._index, self._reader, context)
            upcoming_cluster = UpcomingCluster(self._index, self._reader, context, failures)
            upcoming_cluster.add_upcoming_capacity()
            return request_pods.choose_scale_up(pods, upcoming_cluster.scale_up, provisioner)

    def _accept_request(self, resize_request: Obj) -> ReconcileResult:
        spec = resize_request["spec"]
        groups = self._index.groups.get(spec["pool"], ())
        group = next((group for group in groups if group.name.zone == spec["zone"]), None)
        if group is None:
            return ReconcileResult([Delete(resize_request_key(self._key))])
        new_request = request_pods.with_details(
            self._request, provisioning_details(self._request, resize_request, group)
        )
        return ReconcileResult(
            [UpdateStatus(request_pods.with_condition_set(new_request, request_pods.QUEUED, self._now))]
        )

    def _may_retry(self) -> bool:
        return self._now < request_pods.creation_time(self._request) + request_pods.RETRY_TIME

    def _set_retry_condition(self, condition: request_pods.ConditionText) -> ReconcileResult:
        outcome = self._set_condition(condition)
        if self._may_retry():
            outcome.requeue_at = self._next_scan_time()
        return outcome

    def _next_scan_time(self) -> Instant:
        return self._now + self._loop_context.settings.scan_interval

    # --- after provisioning ---

    def _set_condition_after(
        self, condition_type: str, wait: Duration, condition: request_pods.ConditionText
    ) -> ReconcileResult:
        due_at = (request_pods.transition_time(self._request, condition_type) or self._now) + wait
        return self._set_condition(condition) if due_at <= self._now else ReconcileResult(requeue_at=due_at)

    def _delete_after_retention(self, condition_type: str) -> ReconcileResult:
        finished_at = request_pods.transition_time(self._request, condition_type) or self._now
        due_at = finished_at + request_pods.RETENTION_TIME
        return ReconcileResult([Delete(self._key)]) if due_at <= self._now else ReconcileResult(requeue_at=due_at)

    def _clean_up_resize_request(
        self, state: request_pods.ProvisioningRequestState, outcome: ReconcileResult
    ) -> ReconcileResult:
        if self._resize_request is None or state in _OPEN_STATES:
            return outcome
        provisioned_at = request_pods.transition_time(self._request, request_pods.PROVISIONED)
        deletion_due_at = self._now
        if state is not request_pods.ProvisioningRequestState.FAILED and provisioned_at is not None:
            deletion_due_at = provisioned_at + _RESIZE_REQUEST_RETENTION
        if deletion_due_at <= self._now:
            outcome.writes.append(Delete(Key(scheme.RESIZE_REQUEST, "", self._resize_request["metadata"]["name"])))
        else:
            _requeue_by(outcome, deletion_due_at)
        return outcome

    def _set_condition(self, condition: request_pods.ConditionText) -> ReconcileResult:
        new_request = request_pods.with_condition_set(self._request, condition, self._now)
        return ReconcileResult() if new_request is self._request else ReconcileResult([UpdateStatus(new_request)])


def _requeue_by(outcome: ReconcileResult, requeue_at: Instant | None) -> None:
    if requeue_at is not None:
        outcome.requeue_at = requeue_at if outcome.requeue_at is None else min(requeue_at, outcome.requeue_at)


# ProvisioningRequests of the classes check-capacity and best-effort-atomic-scale-up, which use existing pools.
#
# A request without capacity is retried after a minute, then with exponential backoff. Source:
# kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/{checkcapacity,besteffortatomic} and
# pkg/processors/provreq.


_FIRST_RETRY_DELAY: Final = MINUTE
_LONGEST_RETRY_WAIT: Final = 10 * MINUTE


class CapacityRequest:
    """A check-capacity or best-effort-atomic-scale-up ProvisioningRequest during one reconcile."""

    def __init__(self, request: Obj, index: ScalingIndex, reader: Reader, loop_context: LoopContext) -> None:
        self._request = request
        self._key = key_of(request)
        self._index = index
        self._reader = reader
        self._loop_context = loop_context
        self._now = loop_context.now

    def reconcile(self) -> ReconcileResult:
        """Return the writes that are due for the ProvisioningRequest, and the time of the next reconcile."""
        match request_pods.state_of(self._request):
            case request_pods.ProvisioningRequestState.FAILED:
                return self._delete_after_retention(request_pods.transition_time(self._request, request_pods.FAILED))
            case (
                request_pods.ProvisioningRequestState.BOOKING_EXPIRED
                | request_pods.ProvisioningRequestState.CAPACITY_REVOKED
            ):
                return self._delete_after_retention(
                    request_pods.transition_time(self._request, request_pods.PROVISIONED)
                )
            case request_pods.ProvisioningRequestState.PROVISIONED:
                return self._update_booking()
            case _:
                return self._provision_capacity()

    def _delete_after_retention(self, finished_at: Instant | None) -> ReconcileResult:
        due_at = (self._now if finished_at is None else finished_at) + request_pods.RETENTION_TIME
        return ReconcileResult([Delete(self._key)]) if due_at <= self._now else ReconcileResult(requeue_at=due_at)

    def _update_booking(self) -> ReconcileResult:
        due_at = (
            request_pods.transition_time(self._request, request_pods.PROVISIONED) or self._now
        ) + request_pods.BOOKING_TIME
        pod_count = sum(pod_set["count"] for pod_set in self._request["spec"]["podSets"])
        if len(self._index.consumers.get(self._key, ())) >= pod_count:
            return self._set_condition(request_pods.CONSUMED_CONDITION)
        return (
            self._set_condition(request_pods.RESERVATION_EXPIRED)
            if due_at <= self._now
            else ReconcileResult(requeue_at=due_at)
        )

    def _provision_capacity(self) -> ReconcileResult:
        expires_at = request_pods.creation_time(self._request) + request_pods.EXPIRY_TIME
        if expires_at <= self._now:
            return self._set_condition(request_pods.EXPIRED)
        refused_at = request_pods.transition_time(self._request, request_pods.PROVISIONED)
        if refused_at is not None:
            is_due, next_attempt = due_or_next_attempt(refused_at, self._now, self._loop_context.settings.scan_interval)
            if not is_due:
                return ReconcileResult(requeue_at=min(expires_at, next_attempt))
        pods = requested_pods(self._request, self._reader)
        if pods is None:
            missing_names = [key.name for key in template_keys(self._request) if self._reader.get(key) is None]
            message = request_pods.missing_templates_message(self._request, missing_names)
            return self._set_condition(
                request_pods.ConditionText(request_pods.FAILED, True, "FailedToCreatePods", message)
            )
        with self._index.nodes.what_if():
            condition, writes = self._attempt_provisioning(pods)
        accepted_request = request_pods.with_condition_set(
            self._request, request_pods.ACCEPTED_BY_AUTOSCALER, self._now
        )
        new_request = request_pods.with_condition_set(accepted_request, condition, self._now)
        writes += [UpdateStatus(new_request)] if new_request is not self._request else []
        return ReconcileResult(
            writes,
            requeue_at=self._now + _FIRST_RETRY_DELAY if condition is request_pods.CAPACITY_NOT_FOUND_YET else None,
        )

    def _attempt_provisioning(self, pods: Sequence[PodView]) -> tuple[request_pods.ConditionText, list[Write]]:
        """Try to place a request's pods, on new nodes too if its class allows it; return its condition and the writes.

        The attempt places pods in the node snapshot, so call this only within `nodes.what_if()`.
        """
        failures = FailedMachines(self._index, self._reader, self._loop_context)
        upcoming_cluster = UpcomingCluster(self._index, self._reader, self._loop_context, failures)
        upcoming_cluster.add_upcoming_capacity()
        if self._request["spec"]["provisioningClassName"] == request_pods.CHECK_CLASS:
            if not PodPlacements(self._index.nodes).place_all(pods):
                return request_pods.CAPACITY_FOUND, []
            return request_pods.CAPACITY_NOT_FOUND if request_pods.request_parameter(
                self._request, "noRetry"
            ) == "true" else request_pods.CAPACITY_NOT_FOUND_YET, []
        scale_up = upcoming_cluster.scale_up
        if not scale_up.plan(PendingUnit(pods, is_gang=True)):
            return request_pods.CAPACITY_NOT_FOUND_YET, []
        writes: list[Write] = [Create(pool) for pool in scale_up.pools]
        for group, count in scale_up.increases.items():
            writes += [Create(new_instance(group.pool, group.name.zone, self._loop_context.cluster))] * count
        return request_pods.CAPACITY_PROVISIONED if writes else request_pods.CAPACITY_FOUND, writes

    def _set_condition(self, condition: request_pods.ConditionText) -> ReconcileResult:
        new_request = request_pods.with_condition_set(self._request, condition, self._now)
        return ReconcileResult() if new_request is self._request else ReconcileResult([UpdateStatus(new_request)])


def due_or_next_attempt(refused_at: Instant, now: Instant, scan_interval: int) -> tuple[bool, Instant]:
    """Return whether an attempt to find capacity is due now, and the time of this attempt, or else of the next one.

    The delay between attempts doubles from one minute up to ten minutes.
    """
    wait, attempt_at = _FIRST_RETRY_DELAY, refused_at + _FIRST_RETRY_DELAY
    while attempt_at <= now:
        if attempt_at > now - scan_interval:
            return True, attempt_at
        wait = min(2 * wait, _LONGEST_RETRY_WAIT)
        attempt_at += wait
    return False, attempt_at


class ProvisioningRequests:
    """The controller of ProvisioningRequests; it must run after Autoscaler, which updates the shared ScalingIndex."""

    name = "provisioning-requests"
    rank = 15
    kinds = (scheme.PROVISIONING_REQUEST, scheme.RESIZE_REQUEST, scheme.POD_TEMPLATE, scheme.POD)

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the ProvisioningRequests that an event may affect.

        The event is of a ProvisioningRequest, its ResizeRequest, a pod that consumes its capacity, or a PodTemplate.
        """
        if event.key.kind == scheme.PROVISIONING_REQUEST:
            return (event.key,)
        if not self._index.requests:
            return ()
        match event.key.kind:
            case scheme.RESIZE_REQUEST:
                request_key = self._index.request_by_resize_request.get(event.key.name)
                return () if request_key is None else (request_key,)
            case scheme.POD:
                return self._consumed_request_keys(event)
            case _:
                return [key for key in self._index.requests if key.namespace == event.key.namespace]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Advance a ProvisioningRequest at the autoscaler's scan times; if it is deleted, delete its ResizeRequest."""
        request = reader.get(key)
        if request is None:
            resize_request = resize_request_key(key)
            return ReconcileResult([] if reader.get(resize_request) is None else [Delete(resize_request)])
        if request_pods.is_for_other_autoscaler(request):
            return ReconcileResult()
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None:
            return ReconcileResult()
        next_scan_time = settings.next_scan(parse_time(cluster["metadata"]["creationTimestamp"]), now)
        if next_scan_time > now:
            return ReconcileResult(requeue_at=next_scan_time)
        loop_context = LoopContext(cluster, settings, now)
        match request["spec"]["provisioningClassName"]:
            case request_pods.QUEUED_CLASS:
                return QueuedRequest(request, self._index, reader, loop_context).reconcile()
            case request_pods.ATOMIC_CLASS | request_pods.CHECK_CLASS:
                return CapacityRequest(request, self._index, reader, loop_context).reconcile()
        return ReconcileResult()

    def _consumed_request_keys(self, event: WatchEvent) -> Iterable[Key]:
        if event.type is EventType.DELETED or not event.obj["spec"].get("nodeName"):
            return ()
        request_name = request_pods.consumed_request_name(event.obj)
        key = Key(scheme.PROVISIONING_REQUEST, event.key.namespace, request_name)
        return (key,) if request_name and key in self._index.requests else ()
