"""ResizeRequests, the cloud's form of a queued ProvisioningRequest, and their result.

Source: GKE's autoscaler, pkg/provisioningrequests/{manager,reconciler} and reconciler/reasons.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.provisioning_request_conditions import (
    CANCELLED,
    FAILED,
    HAS_CAPACITY,
    MISSING_RESIZE_REQUEST,
    PROVISIONED,
    ConditionText,
    max_run_duration,
)
from batchyard.autoscaler.provisioning_request_pods import resize_request_name
from batchyard.base.instant import SECOND

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
