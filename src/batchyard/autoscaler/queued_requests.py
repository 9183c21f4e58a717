"""Reconciler of one ProvisioningRequest of the class queued-provisioning.gke.io: one state transition per call.

Source: GKE's autoscaler, pkg/provisioningrequests/reconciler and pkg/provisioningrequests/scaleup.
"""

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.cluster_forecast import UpcomingCluster, requested_pods, template_keys
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.failures import Failures
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.provisioning_request_conditions import (
    ACCEPTED,
    BOOKING_OVER,
    BOOKING_TIME,
    CAPACITY_REVOKED,
    FAILED,
    KEPT_FOR,
    NOT_ACCEPTED,
    PROVISIONED,
    QUEUED,
    RETRY_TIME,
    REVOKED,
    UNKNOWN_STRATEGY,
    WAITED_TOO_LONG,
    ConditionText,
    ProvisioningRequestState,
    created,
    is_for_many_zones,
    max_run_duration,
    missing_templates,
    run_duration_fault,
    since,
    state_of,
    valid_until,
    with_condition_set,
    with_details,
)
from batchyard.autoscaler.provisioning_request_pods import choose_group
from batchyard.autoscaler.resize_requests import answer_of, details_of, new_resize_request, resize_request_key
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.base.instant import HOUR, Duration, Instant
from batchyard.interfaces.client import Create, Delete, Reader, UpdateStatus, Write
from batchyard.interfaces.controller import ReconcileResult

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
