"""What a ProvisioningRequest means for the admission check it was made for.

    the request says                        the check
    --------------------------------------  --------------------------------------------------------------
    nothing yet                             Pending
    Accepted                                Pending, with what Provisioned says (when it may be there)
    Provisioned                             Ready, with what the pods are to carry
    Failed; BookingExpired before the       Retry after a while that doubles, while it may be tried again;
      Workload was admitted                   then Rejected
    CapacityRevoked                         Rejected: the nodes are gone, and pods would wait for ever

Source: syncCheckStates of Kueue's provisioning controller. Two things are mended: every pod set that shares a template
gets what the pods are to carry, not only the first, and a check says since when it is in its state.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.admissionchecks.config import Config
from batchyard.admissionchecks.requests import Group, template_name
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


class Case(NamedTuple):
    """A check of a Workload, with all there is to judge it by."""

    check: Check
    #: None while the check has none.
    config: Config | None
    #: What capacity is needed for.
    groups: Sequence[Group]
    #: Its latest request, and which attempt that is.
    request: Obj | None
    attempt: int


def judge(case: Case, workload: Obj) -> Check:
    """The check as it stands now; the same object if nothing changed."""
    check = case.check
    if case.config is None:
        return {**check, "state": PENDING, "message": _INACTIVE}
    if not case.groups:
        return check if check["state"] == READY else {**_without_updates(check), "state": READY, "message": _NOT_NEEDED}
    if case.request is None:
        return check
    return _judge_request(case, case.request, case.config, workload)


def has_failed(request: Obj, workload: Obj) -> bool:
    """Whether another request is needed: this one failed, or its booking went by before the Workload was admitted."""
    return is_true(request, FAILED) or (is_true(request, BOOKING_EXPIRED) and not lifecycle.is_admitted(workload))


def _judge_request(case: Case, request: Obj, config: Config, workload: Obj) -> Check:
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
        told = find_condition(request, PROVISIONED)
        return check if told is None else {**check, "state": PENDING, "message": told.get("message", "")}
    return {**check, "state": PENDING, "message": ""}


def _retried(case: Case, config: Config, why: str, message: str) -> Check:
    """Tried again if it may be; a request of an attempt that was answered already changes the message alone."""
    if case.attempt > config.retries_max:
        return {**case.check, "state": REJECTED, "message": message}
    told = {**case.check, "message": f"{why}: {message}"}
    retries = case.check.get("retryCount", 0)
    if case.attempt <= retries:
        return told
    wait = backoff(config.backoff_base, config.backoff_max, retries + 1)
    return {**told, "state": RETRY, "requeueAfterSeconds": wait // SECOND}


def _pod_set_updates(case: Case, request: Obj, config: Config) -> list[Mapping[str, Any]]:
    """What pods are to carry, so that they use what was provisioned for them and nothing else."""
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
    told = find_condition(request, kind)
    return "" if told is None else str(told.get("message", ""))
