"""States and conditions of ProvisioningRequests, with their reasons and messages.

Sources: GKE's autoscaler, pkg/provisioningrequests/{provreqstate,reconciler} for queued-provisioning.gke.io;
kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/conditions and pkg/processors/provreq for the other classes.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import find_condition, is_true, with_condition
from batchyard.api.meta import Obj, with_path, with_status
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

QUEUED_CLASS: Final = "queued-provisioning.gke.io"
ATOMIC_CLASS: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CHECK_CLASS: Final = "check-capacity.autoscaling.x-k8s.io"

ACCEPTED: Final = "Accepted"
PROVISIONED: Final = "Provisioned"
FAILED: Final = "Failed"
BOOKING_EXPIRED: Final = "BookingExpired"
CAPACITY_REVOKED: Final = "CapacityRevoked"
#: The conditions that end a stage of a request, in order.
STAGES: Final = (ACCEPTED, PROVISIONED, FAILED, BOOKING_EXPIRED, CAPACITY_REVOKED)

#: How long provisioned capacity stays reserved for the pods of the request.
BOOKING_TIME: Final = 10 * MINUTE
#: How long a request with missing templates, or without a fitting group, is retried.
RETRY_TIME: Final = 2 * MINUTE
#: Finished requests are deleted after KEPT_FOR. Requests of the other classes fail after EXPIRES_AFTER without success.
KEPT_FOR: Final = 7 * 24 * HOUR
EXPIRES_AFTER: Final = 7 * 24 * HOUR
MIN_RUN_DURATION: Final = 30 * SECOND
MAX_RUN_DURATION: Final = 7 * 24 * HOUR

_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_SEARCH_STRATEGY: Final = "capacitySearchStrategy"
_MAX_RUN_SECONDS: Final = "maxRunDurationSeconds"
_VALID_SECONDS: Final = "ValidUntilSeconds"


class ProvisioningRequestState(Enum):
    """The state of a request of the queued class, derived from its conditions."""

    UNINITIALIZED = auto()
    PENDING = auto()
    ACCEPTED = auto()
    PROVISIONED = auto()
    BOOKING_EXPIRED = auto()
    CAPACITY_REVOKED = auto()
    FAILED = auto()


class ConditionText(NamedTuple):
    """Type, status, reason and message of a condition."""

    type: str
    status: bool
    reason: str
    message: str


NOT_ACCEPTED: Final = ConditionText(ACCEPTED, False, "NotAccepted", "Provisioning Request wasn't accepted.")
QUEUED: Final = ConditionText(ACCEPTED, True, "SuccessfullyQueued", "Provisioning Request was successfully queued.")
HAS_CAPACITY: Final = ConditionText(
    PROVISIONED, True, "Provisioned", "Provisioning Request was successfully provisioned."
)
BOOKING_OVER: Final = ConditionText(
    BOOKING_EXPIRED,
    True,
    "BookingExpired",
    "Capacity booking for the Provisioning Request has expired and the nodes are now candidates for scale down when "
    "underutilized.",
)
REVOKED: Final = ConditionText(
    CAPACITY_REVOKED,
    True,
    "CapacityRevoked",
    "Capacity provisioned for the Provisioning Request was reclaimed and is no longer available in the cluster.",
)
MISSING_RESIZE_REQUEST: Final = ConditionText(
    FAILED, True, "MissingResizeRequest", "The corresponding Resize Request was missing."
)
CANCELLED: Final = ConditionText(
    FAILED,
    True,
    "InternalErrorResizeRequestGotCancelled",
    "Provisioning Request failed because Resize Request got cancelled.",
)
WAITED_TOO_LONG: Final = ConditionText(
    FAILED,
    True,
    "WaitTimeExceeded",
    "Provisioning Request could not provision queued instances in the allocated time.",
)
UNREADABLE_RUN_DURATION: Final = ConditionText(
    FAILED,
    True,
    "InvalidArgumentMaxRunDurationParseError",
    "Additional parameter maxRunDurationSeconds could not be parsed.",
)
IMPOSSIBLE_RUN_DURATION: Final = ConditionText(
    FAILED,
    True,
    "InvalidArgument",
    "Invalid value for field 'requestedRunDuration': it must be between 30 seconds and 7 days.",
)
UNKNOWN_STRATEGY: Final = ConditionText(
    FAILED,
    True,
    "ObtainabilityStrategyUnsupported",
    "Provisioning Request doesn't support OBTAINABILITY capacity search strategy, please remove the parameter.",
)

ACCEPTED_BY_AUTOSCALER: Final = ConditionText(
    ACCEPTED, True, "Accepted", "ProvisioningRequest is accepted by ClusterAutoscaler"
)
CAPACITY_FOUND: Final = ConditionText(PROVISIONED, True, "CapacityIsFound", "Capacity is found in the cluster")
CAPACITY_MADE: Final = ConditionText(PROVISIONED, True, "CapacityIsProvisioned", "Capacity is found in the cluster")
CAPACITY_LATER: Final = ConditionText(
    PROVISIONED, False, "CapacityIsNotFound", "Capacity is not found, CA will try to find it later."
)
CAPACITY_NEVER: Final = ConditionText(FAILED, True, "CapacityIsNotFound", "CA could not find requested capacity")
EXPIRED: Final = ConditionText(FAILED, True, "Expired", "ProvisioningRequest is expired")
RESERVATION_OVER: Final = ConditionText(
    BOOKING_EXPIRED, True, "CapacityReservationTimeExpired", "Capacity reservation time is expired"
)
CONSUMED: Final = ConditionText(
    BOOKING_EXPIRED, True, "CapacityBookingConsumed", "Capacity booking consumed: all pods scheduled"
)


def state_of(request: Obj) -> ProvisioningRequestState:
    """Return the state that the request's conditions imply."""
    if not (request.get("status") or {}).get("conditions"):
        return ProvisioningRequestState.UNINITIALIZED
    for kind, state in _STATES.items():
        if is_true(request, kind):
            return state
    return ProvisioningRequestState.PENDING


_STATES: Final[Mapping[str, ProvisioningRequestState]] = {
    CAPACITY_REVOKED: ProvisioningRequestState.CAPACITY_REVOKED,
    BOOKING_EXPIRED: ProvisioningRequestState.BOOKING_EXPIRED,
    FAILED: ProvisioningRequestState.FAILED,
    PROVISIONED: ProvisioningRequestState.PROVISIONED,
    ACCEPTED: ProvisioningRequestState.ACCEPTED,
}


def with_condition_set(request: Obj, condition: ConditionText, now: Instant) -> Obj:
    """Return the request with the condition set; the same object if nothing changes."""
    status = request.get("status") or {}
    before = status.get("conditions") or []
    conditions = with_condition(
        before if isinstance(before, list) else list(before),
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        now=now,
        generation=request["metadata"].get("generation"),
    )
    return request if conditions is before else with_status(request, {**status, "conditions": conditions})


def with_details(request: Obj, details: Mapping[str, str]) -> Obj:
    """Return the request with provisioning class details in its status; empty values are omitted."""
    return with_path(request, ("status", "provisioningClassDetails"), {k: v for k, v in details.items() if v})


def missing_templates_message(request: Obj, missing: Sequence[str]) -> str:
    """Return the message that names the missing pod templates."""
    return (
        f"missing pod templates, {len(request['spec']['podSets'])} pod templates were referenced, "
        f"{len(missing)} templates were missing: {','.join(missing)}"
    )


def missing_templates(request: Obj, missing: Sequence[str], *, is_final: bool) -> ConditionText:
    """Return the condition of a queued request with missing templates: Failed if `is_final`, else not Accepted."""
    what = missing_templates_message(request, missing)
    if is_final:
        return ConditionText(
            FAILED, True, "MissingPodTemplates", f"Provisioning Request failed because there were {what}"
        )
    return ConditionText(ACCEPTED, False, "MissingPodTemplates", f"Provisioning Request will fail soon as it is {what}")


def since(request: Obj, kind: str) -> Instant | None:
    """Return the last transition time of a condition; None if the request does not have it."""
    found = find_condition(request, kind)
    return None if found is None else parse_time(found["lastTransitionTime"])


def created(request: Obj) -> Instant:
    """Return the creation time of the request."""
    return parse_time(request["metadata"]["creationTimestamp"])


def max_run_duration(request: Obj) -> Duration:
    """Return how long the machines may run; 7 days if the request does not limit it."""
    return _seconds(request, _MAX_RUN_SECONDS) or MAX_RUN_DURATION


def run_duration_fault(request: Obj) -> ConditionText | None:
    """Return the Failed condition for an invalid maxRunDurationSeconds; None if it is valid or absent."""
    text = (request["spec"].get("parameters") or {}).get(_MAX_RUN_SECONDS)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        return UNREADABLE_RUN_DURATION
    is_possible = MIN_RUN_DURATION <= int(text) * SECOND <= MAX_RUN_DURATION
    return None if is_possible else IMPOSSIBLE_RUN_DURATION


def is_for_many_zones(request: Obj) -> bool:
    """Whether the request uses the OBTAINABILITY search strategy, which searches several zones."""
    return parameter(request, _SEARCH_STRATEGY) == "OBTAINABILITY"


def is_for_another(request: Obj) -> bool:
    """Whether the request asks a specific autoscaler instance to check the capacity."""
    return request["spec"]["provisioningClassName"] == CHECK_CLASS and bool(parameter(request, "processorInstance"))


def valid_until(request: Obj) -> Instant | None:
    """Return the time until which the request is valid; None if it is unlimited."""
    wait = _seconds(request, _VALID_SECONDS)
    return None if wait is None else created(request) + wait


def parameter(request: Obj, name: str) -> str:
    """Return a parameter of the request; '' if it is not set."""
    value: Any = (request["spec"].get("parameters") or {}).get(name)
    return "" if value is None else str(value)


def _seconds(request: Obj, name: str) -> Duration | None:
    text = parameter(request, name)
    return int(text) * SECOND if text.isdecimal() and int(text) > 0 else None
