"""Provisioning controller: creates ProvisioningRequests for Workloads, and sets their admission checks from the
results.

A Workload with quota has at most one request for each check, that of its current attempt. The request is deleted when
the Workload is evicted or finished, so that a requeued one gets a new request. Unneeded requests are deleted first. New
ones are created after those are gone, because names may be reused. Source: Kueue's
pkg/controller/admissionchecks/provisioning.
"""

from collections.abc import Iterable, Sequence

from batchyard.admissionchecks.config import (
    CheckUsers,
    ConfigUsers,
    InvalidConfig,
    ProvisioningConfig,
    find_config,
    owners_of,
)
from batchyard.admissionchecks.requests import (
    TemplateGroup,
    attempt_of,
    follows,
    groups_needed,
    handed_over,
    is_controlled_by,
    pod_template,
    provisioning_request,
    request_name,
    template_name,
)
from batchyard.admissionchecks.verdict import CheckCase, has_failed, updated_check
from batchyard.api import scheme, well_known
from batchyard.api.conditions import cut_message
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.schema import meaning_of
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework.podsets import InvalidPodSetInfo, flavor_injection
from batchyard.scheduling.cluster_queue import PROVISIONING
from batchyard.scheduling.workload import checks, lifecycle


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
    for check in checks.checks_of(workload):
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
        judged = checks.with_check(judged, new, now)
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
        if case.check["state"] != checks.PENDING:
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
        updated = checks.with_check(self._workload, {**case.check, "message": cut_message(message)}, self._now)
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
