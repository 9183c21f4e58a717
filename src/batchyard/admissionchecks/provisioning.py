"""Provisioning controller: creates ProvisioningRequests for Workloads, and sets their admission checks from the
results.

A Workload with quota has at most one request for each check, that of its current attempt. The request is deleted when
the Workload is evicted or finished, so that a requeued one gets a new request. Unneeded requests are deleted first. New
ones are created after those are gone, because names may be reused. Source: Kueue's
pkg/controller/admissionchecks/provisioning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.admissionchecks.requests import (
    InvalidConfig,
    ProvisioningConfig,
    TemplateGroup,
    attempt_of,
    config_name,
    find_config,
    follows,
    groups_needed,
    handed_over,
    is_controlled_by,
    pod_template,
    provisioning_request,
    request_name,
    template_name,
)
from batchyard.api import scheme, well_known
from batchyard.api.meta import (
    Key,
    Obj,
    cut_message,
    find_condition,
    group_kind,
    is_true,
    key_of,
    with_condition,
    with_path,
)
from batchyard.api.schema import meaning_of
from batchyard.autoscaler.provisioning_request_pods import (
    ACCEPTED,
    BOOKING_EXPIRED,
    CAPACITY_REVOKED,
    FAILED,
    PROVISIONED,
)
from batchyard.base.instant import SECOND, Instant, backoff
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework.workloads import InvalidPodSetInfo, flavor_injection
from batchyard.scheduling.cluster_queue import PROVISIONING
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import PENDING, READY, REJECTED, RETRY, Check, checks_of

# --- users ---
#
# Indexes of the AdmissionChecks and Workloads affected by a change of a config or check, built only from watch events.


class ConfigUsers:
    """AdmissionChecks by config."""

    def __init__(self) -> None:
        self._checks: dict[str, dict[str, None]] = {}

    def note(self, event: WatchEvent) -> None:
        """Process a change of an AdmissionCheck."""
        name, before, after = event.key.name, _config_of(event.old), _config_of(_now(event))
        if before != after:
            self._checks.get(before, {}).pop(name, None)
        self._checks.setdefault(after, {})[name] = None

    def of(self, config: str) -> Iterable[str]:
        """Return the checks that reference a config."""
        return list(self._checks.get(config, ()))


class CheckUsers:
    """Workloads by AdmissionCheck."""

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def note(self, event: WatchEvent) -> bool:
        """Process a change of a Workload. Return whether it has or had checks."""
        before, after = _checks_of(event.old), _checks_of(_now(event))
        if not (before or after):
            return False
        for name in before:
            if name not in after:
                self._workloads.get(name, {}).pop(event.key, None)
        for name in after:
            self._workloads.setdefault(name, {})[event.key] = None
        return True

    def of(self, check: str) -> Iterable[Key]:
        """Return the Workloads that have a check."""
        return list(self._workloads.get(check, ()))


def owners_of(obj: Obj) -> list[Key]:
    """Return the Workloads that own an object."""
    namespace = obj["metadata"].get("namespace", "")
    owners = obj["metadata"].get("ownerReferences") or ()
    return [Key(scheme.WORKLOAD, namespace, owner["name"]) for owner in owners if owner["kind"] == "Workload"]


def _now(event: WatchEvent) -> Obj | None:
    return None if event.type is EventType.DELETED else event.obj


def _config_of(check: Obj | None) -> str:
    """Return the config name of an AdmissionCheck; '' if it has none."""
    name = "" if check is None else config_name(check)
    return "" if isinstance(name, InvalidConfig) else name


def _checks_of(workload: Obj | None) -> Sequence[str]:
    checks = () if workload is None else checks_of(workload)
    return [check["name"] for check in checks] if checks else ()


# --- checks ---
#
# Maintains the Active condition of the provisioning controller's AdmissionChecks: whether their config exists.
#
# Source: admissioncheck_reconciler.go beside Kueue's provisioning controller.


class ProvisioningChecks:
    """Maintains the Active condition of these AdmissionChecks."""

    name = "provisioning-checks"
    rank = 0
    kinds = (scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG)

    def __init__(self) -> None:
        self._users = ConfigUsers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the check, or all checks that reference a config."""
        if event.key.kind == scheme.PROVISIONING_REQUEST_CONFIG:
            return [Key(scheme.ADMISSION_CHECK, "", name) for name in self._users.of(event.key.name)]
        self._users.note(event)
        return (event.key,) if event.type is not EventType.DELETED else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the Active condition; the message changes only together with the status."""
        check = reader.get(key)
        if check is None or check["spec"].get("controllerName") != PROVISIONING:
            return ReconcileResult()
        config = find_config(check, reader)
        active = not isinstance(config, InvalidConfig)
        old = find_condition(check, "Active")
        if old is not None and (old["status"] == "True") == active:
            return ReconcileResult()
        conditions = with_condition(
            (check.get("status") or {}).get("conditions") or [],
            type="Active",
            status=active,
            reason="Active" if active else "BadParametersRef",
            message=config.message if isinstance(config, InvalidConfig) else "The admission check is active",
            now=now,
            generation=check["metadata"].get("generation"),
        )
        return ReconcileResult([UpdateStatus(with_path(check, ("status", "conditions"), conditions))])


# --- verdict ---
#
# Verdict on an admission check: the state that follows from its ProvisioningRequest.
#
#     condition of the request                state of the check
#     --------------------------------------  --------------------------------------------------------------
#     none yet                                Pending
#     Accepted                                Pending, with the message of Provisioned (such as an estimated time)
#     Provisioned                             Ready, with the pod set updates
#     Failed; BookingExpired before the       Retry after a backoff that doubles, while retries are left;
#       Workload was admitted                 then Rejected
#     CapacityRevoked                         Rejected: the nodes are gone, and pods would be pending forever
#
# Source: syncCheckStates of Kueue's provisioning controller. Two upstream defects are fixed: every pod set that shares
# a template gets the pod set updates, not only the first, and a check has the transition time of its state.


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


class ProvisioningController:
    """Manages the ProvisioningRequests of Workloads, with indexes of checks and Workloads."""

    name = "provisioning"
    rank = 0
    kinds = (
        scheme.WORKLOAD,
        scheme.PROVISIONING_REQUEST,
        scheme.ADMISSION_CHECK,
        scheme.PROVISIONING_REQUEST_CONFIG,
    )

    def __init__(self) -> None:
        self._checks = ConfigUsers()
        self._workloads = CheckUsers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a Workload with checks, the owners of a request, or the Workloads of a changed check or config."""
        match event.key.kind:
            case scheme.WORKLOAD:
                concerned = self._workloads.note(event) and event.type is not EventType.DELETED
                return (event.key,) if concerned else ()
            case scheme.PROVISIONING_REQUEST:
                return owners_of(event.obj)
            case scheme.ADMISSION_CHECK:
                self._checks.note(event)
                return self._workloads.of(event.key.name)
            case _:
                return [key for check in self._checks.of(event.key.name) for key in self._workloads.of(check)]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the checks from their requests, then delete unneeded requests or create missing ones."""
        workload = reader.get(key)
        if workload is None:
            return ReconcileResult()
        owned = reader.owned_by(workload["metadata"]["uid"], key.namespace)
        if lifecycle.is_finished(workload) or lifecycle.is_evicted(workload):
            return ReconcileResult(_deletions([obj for obj in owned if _is_ours(obj)]))
        if not lifecycle.has_quota_reservation(workload):
            return ReconcileResult()
        requests = [obj for obj in owned if group_kind(obj) == scheme.PROVISIONING_REQUEST]
        cases = _cases(workload, requests, reader)
        outcome = _judge(workload, cases, now)
        used = [case.request["metadata"]["name"] for case in cases if case.request is not None]
        unused = [request for request in requests if request["metadata"]["name"] not in used]
        if unused:
            outcome.writes += _deletions(unused)
        elif not outcome.writes:
            _RequestCreator(workload, reader, now, outcome).ask(cases)
        return outcome


def _is_ours(obj: Obj) -> bool:
    """Report whether it is a request, or a template whose request was never created."""
    kind, labels = group_kind(obj), obj["metadata"].get("labels") or {}
    return kind == scheme.PROVISIONING_REQUEST or (kind == scheme.POD_TEMPLATE and well_known.MANAGED in labels)


def _deletions(objects: Sequence[Obj]) -> list[Write]:
    present = [obj for obj in objects if "deletionTimestamp" not in obj["metadata"]]
    return [Delete(key_of(obj), uid=obj["metadata"]["uid"]) for obj in present]


def _cases(workload: Obj, requests: Sequence[Obj], reader: Reader) -> list[CheckCase]:
    """Return the checks of a Workload that this controller answers."""
    cases = []
    for check in lifecycle.checks_of(workload):
        obj = reader.get(Key(scheme.ADMISSION_CHECK, "", check["name"]))
        if obj is None or obj["spec"].get("controllerName") != PROVISIONING:
            continue
        found = find_config(obj, reader)
        config = None if isinstance(found, InvalidConfig) else found
        groups = [] if config is None else groups_needed(workload, config)
        request, attempt = _latest(requests, workload, check["name"], config) if groups else (None, 0)
        cases.append(CheckCase(check, config, groups, request, attempt))
    return cases


def _latest(
    requests: Sequence[Obj], workload: Obj, check: str, config: ProvisioningConfig | None
) -> tuple[Obj | None, int]:
    """Return the request of the latest attempt that matches the config."""
    latest: Obj | None = None
    last = 0
    for request in requests:
        attempt = attempt_of(request["metadata"]["name"], workload["metadata"]["name"], check)
        if attempt is not None and attempt > last and config is not None and follows(request, config, workload):
            latest, last = request, attempt
    return latest, last


def _judge(workload: Obj, cases: Sequence[CheckCase], now: Instant) -> ReconcileResult:
    """Write the changed checks."""
    outcome, judged = ReconcileResult(), workload
    for case in cases:
        new, old = updated_check(case, workload), case.check
        judged = lifecycle.with_check(judged, new, now)
        if new["state"] != old["state"]:
            message = f"Admission check {new['name']} updated state from {old['state']} to {new['state']}"
            message += f" with message: {new['message']}" if new["message"] else ""
            outcome.events.append(EventRecord(key_of(workload), "Normal", "AdmissionCheckUpdated", message))
    if judged is not workload:
        outcome.writes.append(UpdateStatus(judged))
    return outcome


class _RequestCreator:
    """Creates the requests of a Workload, and transfers their templates to them."""

    def __init__(self, workload: Obj, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        self._workload = workload
        self._reader = reader
        self._now = now
        self._outcome = outcome

    def ask(self, cases: Iterable[CheckCase]) -> None:
        """Create a request for each check that needs one."""
        for case in cases:
            if case.config is None or not case.groups:
                continue
            attempt = self._next_attempt(case)
            if attempt is not None:
                self._make(case, case.config, attempt)
            elif case.request is not None:
                self._hand_over(case.request)

    def _next_attempt(self, case: CheckCase) -> int | None:
        """Return the number of the attempt to create; None if the check needs none."""
        if case.check["state"] != lifecycle.PENDING:
            return None
        if case.request is None:
            return int(case.check.get("retryCount", 0)) + 1
        return case.attempt + 1 if has_failed(case.request, self._workload) else None

    def _make(self, case: CheckCase, config: ProvisioningConfig, attempt: int) -> None:
        name = request_name(self._workload["metadata"]["name"], case.check["name"], attempt)
        writes: list[Write] = []
        for group in case.groups:
            key = Key(
                scheme.POD_TEMPLATE, self._workload["metadata"].get("namespace", ""), template_name(name, group.name)
            )
            try:
                made = self._template(key, group)
            except InvalidPodSetInfo as wrong:
                self._refuse(case, f'Error creating PodTemplate "{key.name}": {wrong}')
                return
            if made is None:
                return
            writes += made
        request = provisioning_request(self._workload, name, config, case.groups)
        self._outcome.writes += [*writes, Create(request)]
        message = f'Created ProvisioningRequest: "{name}"'
        self._outcome.events.append(self._event("Normal", "ProvisioningRequestCreated", message))

    def _template(self, key: Key, group: TemplateGroup) -> list[Write] | None:
        """Return the writes that create or replace the template; None while a flavor is missing."""
        injection = flavor_injection(group.assignment, group.pod_set, self._flavor)
        if injection is None:
            return None
        template = pod_template(self._workload, key.name, group, injection)
        known = self._reader.get(key)
        if known is None:
            return [Create(template)]
        is_same = meaning_of(scheme.POD_TEMPLATE).is_same_field("PodTemplate", "template", known, template)
        if is_controlled_by(known, self._workload) and is_same:
            return []
        return [Delete(key), Create(template)]

    def _flavor(self, name: str) -> Obj | None:
        return self._reader.get(Key(scheme.RESOURCE_FLAVOR, "", name))

    def _refuse(self, case: CheckCase, message: str) -> None:
        """Set the check's message to why no request can be created, once."""
        updated = lifecycle.with_check(self._workload, {**case.check, "message": cut_message(message)}, self._now)
        if updated is not self._workload:
            self._outcome.writes.append(UpdateStatus(updated))
            self._outcome.events.append(self._event("Warning", "FailedCreate", message))

    def _hand_over(self, request: Obj) -> None:
        """Transfer the ownership of the templates to a request."""
        namespace = request["metadata"].get("namespace", "")
        for pod_set in request["spec"]["podSets"]:
            template = self._reader.get(Key(scheme.POD_TEMPLATE, namespace, pod_set["podTemplateRef"]["name"]))
            if template is not None and (given := handed_over(template, self._workload, request)) is not template:
                self._outcome.writes.append(Update(given))

    def _event(self, kind: str, reason: str, message: str) -> EventRecord:
        return EventRecord(key_of(self._workload), kind, reason, message)
