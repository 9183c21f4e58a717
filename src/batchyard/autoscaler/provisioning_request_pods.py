"""ProvisioningRequests: their conditions, their pods, and the choice of nodes for those of GKE's queued class.

Source: GKE's autoscaler, pkg/provisioningrequests/scaleup (orchestrator.go, reasons).
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from hashlib import sha256
from typing import Any, Final, NamedTuple

from batchyard.admission_plugins.built_in import with_extended_tolerations
from batchyard.api import well_known
from batchyard.api.defaults import pod_defaults
from batchyard.api.meta import Obj, annotation, find_condition, is_true, with_condition, with_path, with_status
from batchyard.api.times import parse_time
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.expander import FULL, IN_BACKOFF, ScaleUpOption, best_option
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.scale_up import ScaleUp, find_misfit_reasons, group_pods_by_kind
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

# The states and conditions of ProvisioningRequests, with upstream's reasons and messages.
#
# Sources: GKE's autoscaler, pkg/provisioningrequests/{provreqstate,reconciler} for queued-provisioning.gke.io;
# kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/conditions and pkg/processors/provreq for the other
# classes.


QUEUED_CLASS: Final = "queued-provisioning.gke.io"
ATOMIC_CLASS: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CHECK_CLASS: Final = "check-capacity.autoscaling.x-k8s.io"

ACCEPTED: Final = "Accepted"
PROVISIONED: Final = "Provisioned"
FAILED: Final = "Failed"
BOOKING_EXPIRED: Final = "BookingExpired"
CAPACITY_REVOKED: Final = "CapacityRevoked"
#: The condition types that end a stage of a request, in order.
STAGE_CONDITIONS: Final = (ACCEPTED, PROVISIONED, FAILED, BOOKING_EXPIRED, CAPACITY_REVOKED)

#: How long provisioned capacity stays reserved for the pods of the request.
BOOKING_TIME: Final = 10 * MINUTE
#: How long a request with missing templates or without a fitting group is retried.
RETRY_TIME: Final = 2 * MINUTE
#: How long a finished request is kept, and the age at which an unsuccessful request of the other classes fails.
RETENTION_TIME: Final = 7 * 24 * HOUR
EXPIRY_TIME: Final = 7 * 24 * HOUR
MIN_RUN_DURATION: Final = 30 * SECOND
MAX_RUN_DURATION: Final = 7 * 24 * HOUR

_INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]+")
_SEARCH_STRATEGY_PARAMETER: Final = "capacitySearchStrategy"
_MAX_RUN_SECONDS_PARAMETER: Final = "maxRunDurationSeconds"
_VALID_SECONDS_PARAMETER: Final = "ValidUntilSeconds"


class ProvisioningRequestState(Enum):
    """The state of a ProvisioningRequest, derived from its conditions."""

    UNINITIALIZED = auto()
    PENDING = auto()
    ACCEPTED = auto()
    PROVISIONED = auto()
    BOOKING_EXPIRED = auto()
    CAPACITY_REVOKED = auto()
    FAILED = auto()


class ConditionText(NamedTuple):
    """A condition of a ProvisioningRequest without its time: type, status, reason and message."""

    type: str
    status: bool
    reason: str
    message: str


NOT_ACCEPTED: Final = ConditionText(ACCEPTED, False, "NotAccepted", "Provisioning Request wasn't accepted.")
QUEUED: Final = ConditionText(ACCEPTED, True, "SuccessfullyQueued", "Provisioning Request was successfully queued.")
HAS_CAPACITY: Final = ConditionText(
    PROVISIONED, True, "Provisioned", "Provisioning Request was successfully provisioned."
)
BOOKING_EXPIRED_CONDITION: Final = ConditionText(
    BOOKING_EXPIRED,
    True,
    "BookingExpired",
    "Capacity booking for the Provisioning Request has expired and the nodes are now candidates for scale down when "
    "underutilized.",
)
REVOKED_CONDITION: Final = ConditionText(
    CAPACITY_REVOKED,
    True,
    "CapacityRevoked",
    "Capacity provisioned for the Provisioning Request was reclaimed and is no longer available in the cluster.",
)
MISSING_RESIZE_REQUEST: Final = ConditionText(
    FAILED, True, "MissingResizeRequest", "The corresponding Resize Request was missing."
)
CANCELLED_CONDITION: Final = ConditionText(
    FAILED,
    True,
    "InternalErrorResizeRequestGotCancelled",
    "Provisioning Request failed because Resize Request got cancelled.",
)
WAITED_TOO_LONG: Final = ConditionText(
    FAILED, True, "WaitTimeExceeded", "Provisioning Request could not provision queued instances in the allocated time."
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
CAPACITY_PROVISIONED: Final = ConditionText(
    PROVISIONED, True, "CapacityIsProvisioned", "Capacity is found in the cluster"
)
CAPACITY_NOT_FOUND_YET: Final = ConditionText(
    PROVISIONED, False, "CapacityIsNotFound", "Capacity is not found, CA will try to find it later."
)
CAPACITY_NOT_FOUND: Final = ConditionText(FAILED, True, "CapacityIsNotFound", "CA could not find requested capacity")
EXPIRED: Final = ConditionText(FAILED, True, "Expired", "ProvisioningRequest is expired")
RESERVATION_EXPIRED: Final = ConditionText(
    BOOKING_EXPIRED, True, "CapacityReservationTimeExpired", "Capacity reservation time is expired"
)
CONSUMED_CONDITION: Final = ConditionText(
    BOOKING_EXPIRED, True, "CapacityBookingConsumed", "Capacity booking consumed: all pods scheduled"
)


def state_of(request: Obj) -> ProvisioningRequestState:
    """Return the state of a ProvisioningRequest that its conditions imply."""
    if not (request.get("status") or {}).get("conditions"):
        return ProvisioningRequestState.UNINITIALIZED
    for kind, state in _STATE_BY_CONDITION.items():
        if is_true(request, kind):
            return state
    return ProvisioningRequestState.PENDING


_STATE_BY_CONDITION: Final[Mapping[str, ProvisioningRequestState]] = {
    CAPACITY_REVOKED: ProvisioningRequestState.CAPACITY_REVOKED,
    BOOKING_EXPIRED: ProvisioningRequestState.BOOKING_EXPIRED,
    FAILED: ProvisioningRequestState.FAILED,
    PROVISIONED: ProvisioningRequestState.PROVISIONED,
    ACCEPTED: ProvisioningRequestState.ACCEPTED,
}


def with_condition_set(request: Obj, condition: ConditionText, now: Instant) -> Obj:
    """Return a copy of a ProvisioningRequest with a condition set; the same object if nothing changed."""
    status = request.get("status") or {}
    old_conditions = status.get("conditions") or []
    conditions = with_condition(
        old_conditions if isinstance(old_conditions, list) else list(old_conditions),
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        now=now,
        generation=request["metadata"].get("generation"),
    )
    return request if conditions is old_conditions else with_status(request, {**status, "conditions": conditions})


def with_details(request: Obj, details: Mapping[str, str]) -> Obj:
    """Return a copy of a ProvisioningRequest with status.provisioningClassDetails; empty details are omitted."""
    return with_path(request, ("status", "provisioningClassDetails"), {k: v for k, v in details.items() if v})


def missing_templates_message(request: Obj, missing_names: Sequence[str]) -> str:
    """Return the cluster autoscaler's message that names the missing pod templates of a ProvisioningRequest."""
    return (
        f"missing pod templates, {len(request['spec']['podSets'])} pod templates were referenced, "
        f"{len(missing_names)} templates were missing: {','.join(missing_names)}"
    )


def missing_templates_condition(request: Obj, missing_names: Sequence[str], *, is_final: bool) -> ConditionText:
    """Return the condition for missing pod templates: Failed if `is_final`, else Accepted with status False."""
    text = missing_templates_message(request, missing_names)
    if is_final:
        message = f"Provisioning Request failed because there were {text}"
        return ConditionText(FAILED, True, "MissingPodTemplates", message)
    return ConditionText(ACCEPTED, False, "MissingPodTemplates", f"Provisioning Request will fail soon as it is {text}")


def transition_time(request: Obj, condition_type: str) -> Instant | None:
    """Return the lastTransitionTime of a ProvisioningRequest's condition; None without that condition."""
    condition = find_condition(request, condition_type)
    return None if condition is None else parse_time(condition["lastTransitionTime"])


def creation_time(request: Obj) -> Instant:
    """Return the creation time of a ProvisioningRequest."""
    return parse_time(request["metadata"]["creationTimestamp"])


def max_run_duration(request: Obj) -> Duration:
    """Return how long the machines of a ProvisioningRequest may run; 7 days if it sets no valid duration."""
    return _seconds_parameter(request, _MAX_RUN_SECONDS_PARAMETER) or MAX_RUN_DURATION


def run_duration_fault(request: Obj) -> ConditionText | None:
    """Return the Failed condition if a ProvisioningRequest's maxRunDurationSeconds is invalid; None otherwise."""
    text = (request["spec"].get("parameters") or {}).get(_MAX_RUN_SECONDS_PARAMETER)
    if text is None:
        return None
    if not _INTEGER_PATTERN.fullmatch(text):
        return UNREADABLE_RUN_DURATION
    is_duration_in_range = MIN_RUN_DURATION <= int(text) * SECOND <= MAX_RUN_DURATION
    return None if is_duration_in_range else IMPOSSIBLE_RUN_DURATION


def is_for_many_zones(request: Obj) -> bool:
    """Return whether a ProvisioningRequest uses the OBTAINABILITY search strategy, which searches several zones."""
    return request_parameter(request, _SEARCH_STRATEGY_PARAMETER) == "OBTAINABILITY"


def is_for_other_autoscaler(request: Obj) -> bool:
    """Return whether a check-capacity ProvisioningRequest names another autoscaler instance."""
    return request["spec"]["provisioningClassName"] == CHECK_CLASS and bool(
        request_parameter(request, "processorInstance")
    )


def valid_until(request: Obj) -> Instant | None:
    """Return the time until which a ProvisioningRequest may wait for capacity; None if it sets no valid limit."""
    wait_time_max = _seconds_parameter(request, _VALID_SECONDS_PARAMETER)
    return None if wait_time_max is None else creation_time(request) + wait_time_max


def request_parameter(request: Obj, name: str) -> str:
    """Return a parameter in the spec of a ProvisioningRequest; '' if it is not set."""
    value: Any = (request["spec"].get("parameters") or {}).get(name)
    return "" if value is None else str(value)


def _seconds_parameter(request: Obj, name: str) -> Duration | None:
    text = request_parameter(request, name)
    return int(text) * SECOND if text.isdecimal() and int(text) > 0 else None


# The pods of a ProvisioningRequest, built from its templates, and GKE's changes of pods that consume its capacity.
#
# Sources: kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/pods; GKE's autoscaler,
# pkg/provisioningrequests/pods and pkg/cloudprovider/gke/gceclient/resizerequest (ResizeRequestName).


_NAME_PREFIX_LENGTH: Final = 20
_HASH_LENGTH: Final = 16
_QUEUED_TOLERATION: Final = {"key": well_known.QUEUED, "operator": "Equal", "value": "true", "effect": "NoSchedule"}


def resize_request_name(namespace: str, request_name: str) -> str:
    """Return the name of the ResizeRequest that obtains the machines of a queued ProvisioningRequest."""
    hash_digits = sha256(f"{namespace}/{request_name}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"gke-{namespace[:_NAME_PREFIX_LENGTH]}-{request_name[:_NAME_PREFIX_LENGTH]}-{hash_digits}"


def consumed_request_name(pod: Obj) -> str:
    """Return the name of the ProvisioningRequest whose capacity a pod consumes; '' if none."""
    name = annotation(pod, well_known.CONSUME_PROVISIONING_REQUEST)
    return name or annotation(pod, well_known.OLD_CONSUME_PROVISIONING_REQUEST) or ""


def with_queued_request_nodes(pod: Obj) -> Obj:
    """Return a pod that is being created, unchanged unless it consumes a queued ProvisioningRequest.

    Such a pod gets a node selector and a toleration for the request's nodes, as from GKE's webhook.
    """
    request_name = consumed_request_name(pod)
    class_name = annotation(pod, well_known.PROVISIONING_CLASS) or annotation(pod, well_known.OLD_PROVISIONING_CLASS)
    if not request_name or class_name != QUEUED_CLASS:
        return pod
    name = resize_request_name(pod["metadata"].get("namespace") or "", request_name)
    return _tolerate_queued(with_path(pod, ("spec", "nodeSelector", well_known.NODE_PROVISIONING_REQUEST), name))


def pods_of(request: Obj, templates: Sequence[Obj]) -> list[PodView]:
    """Return the pods for which a ProvisioningRequest asks; `templates` are in the order of its pod sets."""
    return [
        PodView(_request_pod(request, template, f"{set_index}-{index}"))
        for set_index, (pod_set, template) in enumerate(zip(request["spec"]["podSets"], templates, strict=True))
        for index in range(pod_set["count"])
    ]


def _request_pod(request: Obj, template: Obj, name_suffix: str) -> Obj:
    metadata, pod_template = request["metadata"], template["template"]
    name = f"{metadata['name']}-{name_suffix}"
    spec: Mapping[str, Any] = pod_template["spec"]
    selector = {k: v for k, v in (spec.get("nodeSelector") or {}).items() if k != well_known.NODE_PROVISIONING_REQUEST}
    pod = {
        "metadata": {
            **(pod_template.get("metadata") or {}),
            "name": name,
            "namespace": metadata["namespace"],
            "uid": f"{metadata['namespace']}/{name}",
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {**spec, "nodeSelector": selector},
    }
    is_queued = request["spec"]["provisioningClassName"] == QUEUED_CLASS
    return with_extended_tolerations(pod_defaults(_tolerate_queued(pod) if is_queued else pod))


def _tolerate_queued(pod: Obj) -> Obj:
    tolerations = pod["spec"].get("tolerations") or []
    if _QUEUED_TOLERATION in tolerations:
        return pod
    return with_path(pod, ("spec", "tolerations"), [*tolerations, _QUEUED_TOLERATION])


_POOLS_LISTED_MAX: Final = 10
_MISFITS_LISTED_MAX: Final = 5
_INFEASIBLE_CAUSE: Final = "infeasible"
_EXCEEDED_CAUSE: Final = "exceeded"
_MISFIT_CAUSE: Final = "misfit"
#: By cause, in order of precedence: the reason, and the beginning of the message.
_REASON_AND_MESSAGE_BY_CAUSE: Final[Mapping[str, tuple[str, str]]] = {
    _INFEASIBLE_CAUSE: (
        "ProvisioningRequestSingleZoneInfeasible",
        "Provisioning Request cannot be scheduled in a single zone of a single nodepool",
    ),
    FULL: ("NodepoolSizeReached", "Max nodepool size reached"),
    _EXCEEDED_CAUSE: ("OutOfResources", "Max cluster limit reached"),
    IN_BACKOFF: ("NodepoolInBackoff", "Nodepool in backoff after failed scale-up"),
    _MISFIT_CAUSE: (
        "ProvisioningRequestNotSchedulableInNodepool",
        "Provisioning Request's pods cannot be scheduled in the nodepool",
    ),
}
_NO_POOL_CONDITION: Final = ConditionText(
    FAILED, True, "NoQueuedNodepoolAvailable", "No nodepool with QueuedProvisioning enabled is available for scale up"
)


class GroupRefusal(NamedTuple):
    """The reason, with details, why a node group cannot provide nodes for all pods of a ProvisioningRequest."""

    cause: str
    details: Sequence[str] = ()


def choose_scale_up(
    pods: Sequence[PodView], scale_up: ScaleUp, provisioner: NodeAutoProvisioner | None
) -> ScaleUpOption | ConditionText:
    """Return the best scale-up of a queued node group, or of a new pool, that fits all pods of a ProvisioningRequest.

    Return a Failed condition if no scale-up fits them.
    """
    refusals: dict[NodeGroup, GroupRefusal] = {}
    scale_up_options: list[ScaleUpOption] = []
    for group in scale_up.fleet.groups.values():
        if group.provisioning != "queued" or not group.is_autoscaled:
            continue
        option_or_refusal = _option_in_group(group, pods, scale_up)
        if isinstance(option_or_refusal, GroupRefusal):
            refusals[group] = option_or_refusal
        else:
            scale_up_options.append(option_or_refusal)
    if not scale_up_options and provisioner is not None:
        new_pool_options = provisioner.scale_up_options(pods, scale_up)
        scale_up_options = [option for option in new_pool_options if not option.unplaced_pods]
        refusals |= {
            option.group: _refusal_for_rest(option.group, len(option.nodes), scale_up) for option in new_pool_options
        }
    if not scale_up_options:
        return _condition_for_refusals(refusals)
    guaranteed_options = [option for option in scale_up_options if _is_guaranteed(option, scale_up)]
    return best_option(guaranteed_options or scale_up_options, scale_up.loop_context.settings)


def _option_in_group(group: NodeGroup, pods: Sequence[PodView], scale_up: ScaleUp) -> ScaleUpOption | GroupRefusal:
    fleet, limits = scale_up.fleet, scale_up.limits
    obstacle = fleet.obstacle(group, limits, scale_up.loop_context.now)
    if obstacle in (IN_BACKOFF, FULL):
        return GroupRefusal(obstacle)
    if obstacle:
        return GroupRefusal(_EXCEEDED_CAUSE, limits.exceeded_resources(group.counted_resources, group.hosts))
    for similar_pods in group_pods_by_kind(pods, scale_up.nodes).values():
        misfit_reasons = find_misfit_reasons(similar_pods[0], group, scale_up.nodes)
        if misfit_reasons:
            return GroupRefusal(_MISFIT_CAUSE, misfit_reasons)
    option = scale_up.option([group], pods, [])
    if option is None or option.unplaced_pods:
        return _refusal_for_rest(group, 0 if option is None else len(option.nodes), scale_up)
    return option


def _refusal_for_rest(group: NodeGroup, node_count: int, scale_up: ScaleUp) -> GroupRefusal:
    """Return why a node group that gets `node_count` new nodes gets none for the rest of the pods."""
    if node_count >= scale_up.fleet.count_addable_within_size(group):
        return GroupRefusal(FULL)
    resources = scale_up.limits.exceeded_resources(group.counted_resources, node_count + 1)
    return GroupRefusal(_EXCEEDED_CAUSE, resources) if resources else GroupRefusal(_INFEASIBLE_CAUSE)


def _is_guaranteed(option: ScaleUpOption, scale_up: ScaleUp) -> bool:
    return scale_up.fleet.remaining_known_capacity(option.group, scale_up.loop_context.cluster) >= len(option.nodes)


def _condition_for_refusals(refusals: Mapping[NodeGroup, GroupRefusal]) -> ConditionText:
    for cause, (reason, message_prefix) in _REASON_AND_MESSAGE_BY_CAUSE.items():
        pools = {group.name.pool: refusal.details for group, refusal in refusals.items() if refusal.cause == cause}
        if pools:
            return ConditionText(FAILED, True, reason, f"{message_prefix}{_message_details(cause, pools)}")
    return _NO_POOL_CONDITION


def _message_details(cause: str, details_by_pool: Mapping[str, Sequence[str]]) -> str:
    pool_texts = [f"{pool} ({', '.join(details_by_pool[pool])})" for pool in sorted(details_by_pool)]
    if cause == _MISFIT_CAUSE:
        return f". Predicate checking errors: {_shorten_list(pool_texts, _MISFITS_LISTED_MAX)}"
    if cause == _EXCEEDED_CAUSE:
        return f", nodepools out of resources: {_shorten_list(pool_texts, _POOLS_LISTED_MAX)}"
    return f", affected nodepools: {_shorten_list(sorted(details_by_pool), _POOLS_LISTED_MAX)}"


def _shorten_list(texts: Sequence[str], count_max: int) -> str:
    return ", ".join([*texts[:count_max], *(["..."] if len(texts) > count_max else [])])
