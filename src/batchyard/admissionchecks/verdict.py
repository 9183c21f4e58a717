"""Verdict on an admission check: the state that follows from its ProvisioningRequest.

    condition of the request                state of the check
    --------------------------------------  --------------------------------------------------------------
    none yet                                Pending
    Accepted                                Pending, with the message of Provisioned (such as an estimated time)
    Provisioned                             Ready, with the pod set updates
    Failed; BookingExpired before the       Retry after a backoff that doubles, while retries are left;
      Workload was admitted                 then Rejected
    CapacityRevoked                         Rejected: the nodes are gone, and pods would be pending forever

Source: syncCheckStates of Kueue's provisioning controller. Two upstream defects are fixed: every pod set that shares a
template gets the pod set updates, not only the first, and a check has the transition time of its state.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.admissionchecks.config import ProvisioningConfig
from batchyard.admissionchecks.requests import TemplateGroup, template_name
from batchyard.api import well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj
from batchyard.autoscaler.provisioning_request_conditions import (
    ACCEPTED,
    BOOKING_EXPIRED,
    CAPACITY_REVOKED,
    FAILED,
    PROVISIONED,
)
from batchyard.base.backoff import backoff
from batchyard.base.instant import SECOND
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.checks import PENDING, READY, REJECTED, RETRY, Check

_INACTIVE: Final = "the check is not active"
_NOT_NEEDED: Final = "the provisioning request is not needed"


class CheckCase(NamedTuple):
    """A check of a Workload, with its config, pod sets and latest request."""

    check: Check
    #: None while the check has none.
    config: ProvisioningConfig | None
    #: The groups of pod sets that need capacity.
    groups: Sequence[TemplateGroup]
    #: Its latest request, and the attempt of that.
    request: Obj | None
    attempt: int


def updated_check(case: CheckCase, workload: Obj) -> Check:
    """Return the current state of the check; the same object if unchanged."""
    check = case.check
    if case.config is None:
        return {**check, "state": PENDING, "message": _INACTIVE}
    if not case.groups:
        return check if check["state"] == READY else {**_without_updates(check), "state": READY, "message": _NOT_NEEDED}
    if case.request is None:
        return check
    return _judge_request(case, case.request, case.config, workload)


def has_failed(request: Obj, workload: Obj) -> bool:
    """Report whether another request is needed: this one failed, or its booking expired before admission."""
    return is_true(request, FAILED) or (is_true(request, BOOKING_EXPIRED) and not lifecycle.is_admitted(workload))


def _judge_request(case: CheckCase, request: Obj, config: ProvisioningConfig, workload: Obj) -> Check:
    check = case.check
    if is_true(request, FAILED):
        return _retried(case, config, "Retrying after failure", _message(request, FAILED))
    if is_true(request, CAPACITY_REVOKED):
        if not lifecycle.is_active(workload):
            return check
        return {**check, "state": REJECTED, "message": _message(request, CAPACITY_REVOKED)}
    if is_true(request, BOOKING_EXPIRED):
        if lifecycle.is_admitted(workload):
            return check
        return _retried(case, config, "Retrying after booking expired", _message(request, BOOKING_EXPIRED))
    if is_true(request, PROVISIONED):
        if check["state"] == READY:
            return check
        updates = _pod_set_updates(case, request, config)
        return {**check, "state": READY, "message": _message(request, PROVISIONED), "podSetUpdates": updates}
    if is_true(request, ACCEPTED):
        condition = find_condition(request, PROVISIONED)
        return check if condition is None else {**check, "state": PENDING, "message": condition.get("message", "")}
    return {**check, "state": PENDING, "message": ""}


def _retried(case: CheckCase, config: ProvisioningConfig, why: str, message: str) -> Check:
    """Retry if retries are left; a request of an answered attempt changes only the message."""
    if case.attempt > config.retries_max:
        return {**case.check, "state": REJECTED, "message": message}
    updated = {**case.check, "message": f"{why}: {message}"}
    retries = case.check.get("retryCount", 0)
    if case.attempt <= retries:
        return updated
    wait = backoff(config.backoff_base, config.backoff_max, retries + 1)
    return {**updated, "state": RETRY, "requeueAfterSeconds": wait // SECOND}


def _pod_set_updates(case: CheckCase, request: Obj, config: ProvisioningConfig) -> list[Mapping[str, Any]]:
    """Return the pod set updates that let pods consume exactly the provisioned capacity."""
    name = request["metadata"]["name"]
    templates = {pod_set["podTemplateRef"]["name"] for pod_set in request["spec"]["podSets"]}
    details = (request.get("status") or {}).get("provisioningClassDetails") or {}
    selector = {update.key: details[update.detail] for update in config.node_selector if update.detail in details}
    update: dict[str, Any] = {
        "annotations": {
            well_known.CONSUME_PROVISIONING_REQUEST: name,
            well_known.PROVISIONING_CLASS: request["spec"]["provisioningClassName"],
        }
    }
    if selector:
        update["nodeSelector"] = selector
    groups = [group for group in case.groups if template_name(name, group.name) in templates]
    return [{"name": member, **update} for group in groups for member in group.members]


def _without_updates(check: Check) -> Check:
    return {field: value for field, value in check.items() if field != "podSetUpdates"}


def _message(request: Obj, kind: str) -> str:
    condition = find_condition(request, kind)
    return "" if condition is None else str(condition.get("message", ""))
