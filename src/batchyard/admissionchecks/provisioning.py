"""Provisioning controller: creates ProvisioningRequests for Workloads, and sets admission checks from the results.

A Workload with quota has at most one request for each check: the request of the current attempt. The request is deleted
when the Workload is evicted or finished, so that a requeued Workload gets a new request. Unneeded requests are deleted
before new ones are created, because names may be reused. Source: Kueue's
pkg/controller/admissionchecks/provisioning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.admissionchecks import requests as check_requests
from batchyard.api import meta, scheme, well_known
from batchyard.api.schema import semantic_equality
from batchyard.autoscaler import provisioning_request_pods
from batchyard.base.instant import SECOND, Instant, exponential_backoff
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework.workloads import InvalidPodSetInfo, flavor_injection
from batchyard.scheduling.active_status import PROVISIONING_CONTROLLER_NAME
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import PENDING, READY, REJECTED, RETRY, AdmissionCheck, checks_of

#: The time after which the controller retries if a ResourceFlavor is missing, because it does not watch these.
_MISSING_FLAVOR_RETRY: Final = 10 * SECOND

# Indexes of the AdmissionChecks that reference a config and of the Workloads that have a check, from watch events.


class ChecksByConfig:
    """An index of the AdmissionChecks by the name of the ProvisioningRequestConfig that they reference."""

    def __init__(self) -> None:
        self._checks: dict[str, dict[str, None]] = {}

    def observe(self, event: WatchEvent) -> None:
        """Update the index from a watch event of an AdmissionCheck."""
        name, old_name, new_name = event.key.name, _config_name_of(event.old), _config_name_of(_current_object(event))
        if old_name != new_name:
            self._checks.get(old_name, {}).pop(name, None)
        self._checks.setdefault(new_name, {})[name] = None

    def names_for(self, config_name: str) -> Iterable[str]:
        """Return the names of the AdmissionChecks that reference a ProvisioningRequestConfig."""
        return list(self._checks.get(config_name, ()))


class WorkloadsByCheck:
    """Index of Workloads by the admission checks in their status."""

    def __init__(self) -> None:
        self._workloads: dict[str, dict[meta.Key, None]] = {}

    def observe(self, event: WatchEvent) -> bool:
        """Update the index from a watch event of a Workload; return whether the Workload has or had checks."""
        old_names, new_names = _check_names(event.old), _check_names(_current_object(event))
        if not (old_names or new_names):
            return False
        for name in old_names:
            if name not in new_names:
                self._workloads.get(name, {}).pop(event.key, None)
        for name in new_names:
            self._workloads.setdefault(name, {})[event.key] = None
        return True

    def keys_for_check(self, check_name: str) -> Iterable[meta.Key]:
        """Return the keys of the Workloads that have the admission check with this name."""
        return list(self._workloads.get(check_name, ()))


def owner_workload_keys(obj: meta.Obj) -> list[meta.Key]:
    """Return the keys of the Workloads among an object's ownerReferences."""
    namespace = obj["metadata"].get("namespace", "")
    owners = obj["metadata"].get("ownerReferences") or ()
    return [meta.Key(scheme.WORKLOAD, namespace, owner["name"]) for owner in owners if owner["kind"] == "Workload"]


def _current_object(event: WatchEvent) -> meta.Obj | None:
    return None if event.type is EventType.DELETED else event.obj


def _config_name_of(check: meta.Obj | None) -> str:
    name = "" if check is None else check_requests.config_name(check)
    return "" if isinstance(name, check_requests.InvalidConfig) else name


def _check_names(workload: meta.Obj | None) -> Sequence[str]:
    checks = () if workload is None else checks_of(workload)
    return [check["name"] for check in checks] if checks else ()


# The Active condition of the provisioning controller's AdmissionChecks: whether their config exists.
#
# Source: admissioncheck_reconciler.go beside Kueue's provisioning controller.


class ProvisioningChecks:
    """Controller that sets the Active condition of the AdmissionChecks of Kueue's provisioning controller."""

    name = "provisioning-checks"
    rank = 0
    kinds = (scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG)

    def __init__(self) -> None:
        self._checks = ChecksByConfig()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the index; return the key of a changed AdmissionCheck, or those of the checks of a changed config."""
        if event.key.kind == scheme.PROVISIONING_REQUEST_CONFIG:
            return [meta.Key(scheme.ADMISSION_CHECK, "", name) for name in self._checks.names_for(event.key.name)]
        self._checks.observe(event)
        return (event.key,) if event.type is not EventType.DELETED else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set an AdmissionCheck's Active condition if its status must change; a new message alone is not written."""
        check = reader.get(key)
        if check is None or check["spec"].get("controllerName") != PROVISIONING_CONTROLLER_NAME:
            return ReconcileResult()
        config = check_requests.find_config(check, reader)
        is_active = not isinstance(config, check_requests.InvalidConfig)
        old = meta.find_condition(check, "Active")
        if old is not None and (old["status"] == "True") == is_active:
            return ReconcileResult()
        conditions = meta.with_condition(
            (check.get("status") or {}).get("conditions") or [],
            type="Active",
            status=is_active,
            reason="Active" if is_active else "BadParametersRef",
            message=config.message
            if isinstance(config, check_requests.InvalidConfig)
            else "The admission check is active",
            now=now,
            generation=check["metadata"].get("generation"),
        )
        return ReconcileResult([UpdateStatus(meta.with_path(check, ("status", "conditions"), conditions))])


# The state of an admission check that follows from its ProvisioningRequest.
#
#     condition of the request                state of the check
#     --------------------------------------  --------------------------------------------------------------
#     none yet                                Pending
#     Accepted                                Pending, with the message of Provisioned (such as an estimated time)
#     Provisioned                             Ready, with the pod set updates
#     Failed; BookingExpired before the       Retry after a backoff that doubles, while retries are left;
#       Workload was admitted                 then Rejected
#     CapacityRevoked                         Rejected: the capacity is gone, and pods would stay pending
#
# Source: syncCheckStates of Kueue's provisioning controller. Two upstream defects are fixed: every pod set that shares
# a template gets the pod set updates, not only the first, and a check has the transition time of its state.


_INACTIVE_MESSAGE: Final = "the check is not active"
_NOT_NEEDED_MESSAGE: Final = "the provisioning request is not needed"


class ObservedCheck(NamedTuple):
    """An admission check of a Workload, with its config, its groups of pod sets and its latest ProvisioningRequest."""

    check: AdmissionCheck
    #: None while the check has no valid config.
    config: check_requests.ProvisioningConfig | None
    #: The groups of pod sets that need capacity.
    groups: Sequence[check_requests.TemplateGroup]
    #: The request of the latest attempt, and the number of that attempt; None and 0 without a request.
    request: meta.Obj | None
    attempt: int


def updated_check(observed_check: ObservedCheck, workload: meta.Obj) -> AdmissionCheck:
    """Return the admission check with the state and message that follow from its ProvisioningRequest.

    Without a valid config, the state is Pending. If no pod set needs capacity, the state is Ready. While the
    ProvisioningRequest does not exist, the check is unchanged.
    """
    check = observed_check.check
    if observed_check.config is None:
        return {**check, "state": PENDING, "message": _INACTIVE_MESSAGE}
    if not observed_check.groups:
        return (
            check
            if check["state"] == READY
            else {**_without_pod_set_updates(check), "state": READY, "message": _NOT_NEEDED_MESSAGE}
        )
    if observed_check.request is None:
        return check
    return _check_from_request(observed_check, observed_check.request, observed_check.config, workload)


def has_failed(request: meta.Obj, workload: meta.Obj) -> bool:
    """Return whether a ProvisioningRequest failed, or its booking expired before the Workload was admitted."""
    return meta.is_true(request, provisioning_request_pods.FAILED) or (
        meta.is_true(request, provisioning_request_pods.BOOKING_EXPIRED) and not lifecycle.is_admitted(workload)
    )


def _check_from_request(
    observed_check: ObservedCheck, request: meta.Obj, config: check_requests.ProvisioningConfig, workload: meta.Obj
) -> AdmissionCheck:
    check = observed_check.check
    if meta.is_true(request, provisioning_request_pods.FAILED):
        message = _condition_message(request, provisioning_request_pods.FAILED)
        return _retry_or_reject(observed_check, config, "Retrying after failure", message)
    if meta.is_true(request, provisioning_request_pods.CAPACITY_REVOKED):
        if not lifecycle.is_active(workload):
            return check
        message = _condition_message(request, provisioning_request_pods.CAPACITY_REVOKED)
        return {**check, "state": REJECTED, "message": message}
    if meta.is_true(request, provisioning_request_pods.BOOKING_EXPIRED):
        if lifecycle.is_admitted(workload):
            return check
        message = _condition_message(request, provisioning_request_pods.BOOKING_EXPIRED)
        return _retry_or_reject(observed_check, config, "Retrying after booking expired", message)
    if meta.is_true(request, provisioning_request_pods.PROVISIONED):
        if check["state"] == READY:
            return check
        pod_set_updates = _pod_set_updates(observed_check, request, config)
        message = _condition_message(request, provisioning_request_pods.PROVISIONED)
        return {**check, "state": READY, "message": message, "podSetUpdates": pod_set_updates}
    if meta.is_true(request, provisioning_request_pods.ACCEPTED):
        condition = meta.find_condition(request, provisioning_request_pods.PROVISIONED)
        return check if condition is None else {**check, "state": PENDING, "message": condition.get("message", "")}
    return {**check, "state": PENDING, "message": ""}


def _retry_or_reject(
    observed_check: ObservedCheck, config: check_requests.ProvisioningConfig, reason: str, message: str
) -> AdmissionCheck:
    """Return the check in state Retry, or Rejected if no retry is left.

    If this attempt was already counted as a retry, only the message is changed.
    """
    if observed_check.attempt > config.retries_max:
        return {**observed_check.check, "state": REJECTED, "message": message}
    new_check = {**observed_check.check, "message": f"{reason}: {message}"}
    retry_count = observed_check.check.get("retryCount", 0)
    if observed_check.attempt <= retry_count:
        return new_check
    retry_delay = exponential_backoff(config.backoff_base, config.backoff_max, retry_count + 1)
    return {**new_check, "state": RETRY, "requeueAfterSeconds": retry_delay // SECOND}


def _pod_set_updates(
    observed_check: ObservedCheck, request: meta.Obj, config: check_requests.ProvisioningConfig
) -> list[Mapping[str, Any]]:
    name = request["metadata"]["name"]
    template_names = {pod_set["podTemplateRef"]["name"] for pod_set in request["spec"]["podSets"]}
    class_details = (request.get("status") or {}).get("provisioningClassDetails") or {}
    node_selector = {
        update.key: class_details[update.class_detail]
        for update in config.node_selector
        if update.class_detail in class_details
    }
    pod_set_update: dict[str, Any] = {
        "annotations": {
            well_known.CONSUME_PROVISIONING_REQUEST: name,
            well_known.PROVISIONING_CLASS: request["spec"]["provisioningClassName"],
        }
    }
    if node_selector:
        pod_set_update["nodeSelector"] = node_selector
    groups = [
        group for group in observed_check.groups if check_requests.template_name(name, group.name) in template_names
    ]
    return [{"name": member, **pod_set_update} for group in groups for member in group.member_names]


def _without_pod_set_updates(check: AdmissionCheck) -> AdmissionCheck:
    return {field: value for field, value in check.items() if field != "podSetUpdates"}


def _condition_message(request: meta.Obj, condition_type: str) -> str:
    condition = meta.find_condition(request, condition_type)
    return "" if condition is None else str(condition.get("message", ""))


class ProvisioningController:
    """Controller that creates and deletes ProvisioningRequests and sets the Workloads' admission check states."""

    name = "provisioning"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.PROVISIONING_REQUEST, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG)

    def __init__(self) -> None:
        self._checks = ChecksByConfig()
        self._workloads = WorkloadsByCheck()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the indexes; return the keys of the Workloads that the event affects."""
        match event.key.kind:
            case scheme.WORKLOAD:
                has_checks = self._workloads.observe(event) and event.type is not EventType.DELETED
                return (event.key,) if has_checks else ()
            case scheme.PROVISIONING_REQUEST:
                return owner_workload_keys(event.obj)
            case scheme.ADMISSION_CHECK:
                self._checks.observe(event)
                return self._workloads.keys_for_check(event.key.name)
            case _:
                names = self._checks.names_for(event.key.name)
                return [key for name in names for key in self._workloads.keys_for_check(name)]

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the admission checks of a Workload with a quota reservation, and its ProvisioningRequests.

        Unneeded requests are deleted before missing ones are created. If the Workload is finished or evicted, its
        ProvisioningRequests and their PodTemplates are deleted.
        """
        workload = reader.get(key)
        if workload is None:
            return ReconcileResult()
        owned_objects = reader.owned_by(workload["metadata"]["uid"], key.namespace)
        if lifecycle.is_finished(workload) or lifecycle.is_evicted(workload):
            return ReconcileResult(_delete_writes([obj for obj in owned_objects if _is_created_by_controller(obj)]))
        if not lifecycle.has_quota_reservation(workload):
            return ReconcileResult()
        requests = [obj for obj in owned_objects if meta.group_kind(obj) == scheme.PROVISIONING_REQUEST]
        observed_checks = _observed_checks(workload, requests, reader)
        outcome = _update_changed_checks(workload, observed_checks, now)
        used_names = [
            observed_check.request["metadata"]["name"]
            for observed_check in observed_checks
            if observed_check.request is not None
        ]
        unused_requests = [request for request in requests if request["metadata"]["name"] not in used_names]
        if unused_requests:
            outcome.writes += _delete_writes(unused_requests)
        elif not outcome.writes:
            _RequestCreator(workload, reader, now, outcome).create_requests(observed_checks)
        return outcome


def _is_created_by_controller(obj: meta.Obj) -> bool:
    kind, labels = meta.group_kind(obj), obj["metadata"].get("labels") or {}
    return kind == scheme.PROVISIONING_REQUEST or (kind == scheme.POD_TEMPLATE and well_known.MANAGED in labels)


def _delete_writes(objects: Sequence[meta.Obj]) -> list[Write]:
    existing_objects = [obj for obj in objects if "deletionTimestamp" not in obj["metadata"]]
    return [Delete(meta.key_of(obj), uid=obj["metadata"]["uid"]) for obj in existing_objects]


def _observed_checks(workload: meta.Obj, requests: Sequence[meta.Obj], reader: Reader) -> list[ObservedCheck]:
    observed_checks = []
    for check in lifecycle.checks_of(workload):
        obj = reader.get(meta.Key(scheme.ADMISSION_CHECK, "", check["name"]))
        if obj is None or obj["spec"].get("controllerName") != PROVISIONING_CONTROLLER_NAME:
            continue
        config_or_error = check_requests.find_config(obj, reader)
        config = None if isinstance(config_or_error, check_requests.InvalidConfig) else config_or_error
        groups = [] if config is None else check_requests.groups_needing_capacity(workload, config)
        request, attempt = _latest_request(requests, workload, check["name"], config) if groups else (None, 0)
        observed_checks.append(ObservedCheck(check, config, groups, request, attempt))
    return observed_checks


def _latest_request(
    requests: Sequence[meta.Obj], workload: meta.Obj, check_name: str, config: check_requests.ProvisioningConfig | None
) -> tuple[meta.Obj | None, int]:
    latest_request: meta.Obj | None = None
    attempt_max = 0
    for request in requests:
        attempt = check_requests.attempt_of(request["metadata"]["name"], workload["metadata"]["name"], check_name) or 0
        if attempt > attempt_max and config is not None and check_requests.matches_config(request, config, workload):
            latest_request, attempt_max = request, attempt
    return latest_request, attempt_max


def _update_changed_checks(
    workload: meta.Obj, observed_checks: Sequence[ObservedCheck], now: Instant
) -> ReconcileResult:
    outcome, new_workload = ReconcileResult(), workload
    for observed_check in observed_checks:
        new, old = updated_check(observed_check, workload), observed_check.check
        new_workload = lifecycle.with_check(new_workload, new, now)
        if new["state"] != old["state"]:
            message = f"Admission check {new['name']} updated state from {old['state']} to {new['state']}"
            message += f" with message: {new['message']}" if new["message"] else ""
            outcome.events.append(EventRecord(meta.key_of(workload), "Normal", "AdmissionCheckUpdated", message))
    if new_workload is not workload:
        outcome.writes.append(UpdateStatus(new_workload))
    return outcome


class _RequestCreator:
    """Adds the writes that create a Workload's ProvisioningRequests and PodTemplates to a reconcile result."""

    def __init__(self, workload: meta.Obj, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        self._workload = workload
        self._reader = reader
        self._now = now
        self._outcome = outcome

    def create_requests(self, observed_checks: Iterable[ObservedCheck]) -> None:
        for observed_check in observed_checks:
            if observed_check.config is None or not observed_check.groups:
                continue
            attempt = self._next_attempt(observed_check)
            if attempt is not None:
                self._create_request(observed_check, observed_check.config, attempt)
            elif observed_check.request is not None:
                self._transfer_template_ownership(observed_check.request)

    def _next_attempt(self, observed_check: ObservedCheck) -> int | None:
        if observed_check.check["state"] != lifecycle.PENDING:
            return None
        if observed_check.request is None:
            return int(observed_check.check.get("retryCount", 0)) + 1
        return observed_check.attempt + 1 if has_failed(observed_check.request, self._workload) else None

    def _create_request(
        self, observed_check: ObservedCheck, config: check_requests.ProvisioningConfig, attempt: int
    ) -> None:
        name = check_requests.request_name(self._workload["metadata"]["name"], observed_check.check["name"], attempt)
        writes: list[Write] = []
        for group in observed_check.groups:
            namespace = self._workload["metadata"].get("namespace", "")
            key = meta.Key(scheme.POD_TEMPLATE, namespace, check_requests.template_name(name, group.name))
            try:
                template_writes = self._template_writes(key, group)
            except InvalidPodSetInfo as error:
                self._report_creation_failure(observed_check, f'Error creating PodTemplate "{key.name}": {error}')
                return
            if template_writes is None:
                self._outcome.requeue_at = self._now + _MISSING_FLAVOR_RETRY
                return
            writes += template_writes
        request = check_requests.provisioning_request(self._workload, name, config, observed_check.groups)
        self._outcome.writes += [*writes, Create(request)]
        message = f'Created ProvisioningRequest: "{name}"'
        self._outcome.events.append(self._make_event("Normal", "ProvisioningRequestCreated", message))

    def _template_writes(self, key: meta.Key, group: check_requests.TemplateGroup) -> list[Write] | None:
        """Return the writes that set a PodTemplate: [] if it is up to date, None if a ResourceFlavor is missing.

        Raises InvalidPodSetInfo.
        """
        injection = flavor_injection(group.assignment, group.pod_set, self._find_flavor)
        if injection is None:
            return None
        template = check_requests.pod_template(self._workload, key.name, group, injection)
        old = self._reader.get(key)
        if old is None:
            return [Create(template)]
        is_same = semantic_equality(scheme.POD_TEMPLATE).is_same_field("PodTemplate", "template", old, template)
        if check_requests.is_controlled_by(old, self._workload) and is_same:
            return []
        return [Delete(key), Create(template)]

    def _find_flavor(self, name: str) -> meta.Obj | None:
        return self._reader.get(meta.Key(scheme.RESOURCE_FLAVOR, "", name))

    def _report_creation_failure(self, observed_check: ObservedCheck, message: str) -> None:
        new_workload = lifecycle.with_check(
            self._workload, {**observed_check.check, "message": meta.truncate_message(message)}, self._now
        )
        if new_workload is not self._workload:
            self._outcome.writes.append(UpdateStatus(new_workload))
            self._outcome.events.append(self._make_event("Warning", "FailedCreate", message))

    def _transfer_template_ownership(self, request: meta.Obj) -> None:
        namespace = request["metadata"].get("namespace", "")
        for pod_set in request["spec"]["podSets"]:
            template = self._reader.get(meta.Key(scheme.POD_TEMPLATE, namespace, pod_set["podTemplateRef"]["name"]))
            if (
                template
                and (new_template := check_requests.with_request_owner(template, self._workload, request))
                is not template
            ):
                self._outcome.writes.append(Update(new_template))

    def _make_event(self, event_type: str, reason: str, message: str) -> EventRecord:
        return EventRecord(meta.key_of(self._workload), event_type, reason, message)
