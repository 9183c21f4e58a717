"""Workload lifecycle: functions that change a Workload's status, and the controller of the resource-in-use finalizer.

A Workload is in one of four states, given by its conditions (`status`):

    event               pending          quotaReserved        admitted             finished
    ------------------  ---------------  -------------------  -------------------  --------
    reserve_quota       quotaReserved, or admitted if no check is outstanding
    sync_admitted       pending          admitted if all checks are Ready          -
    set_pending         pending          pending              pending              -
    evict, deactivate   unchanged: only marked, the quota stays reserved until the work has stopped
    release_after_...   pending          pending              pending              -
    finish              finished         finished             finished             finished

Two marks are independent of the state: Evicted (stop the work, then release quota) and Requeued (False: do not queue
yet). Eviction takes two steps because quota is free only once the pods are gone.

Rule 1: only the functions here and in `evictions.py` change these conditions. Rule 2: the conditions are the state.
Nothing is stored elsewhere, so a restart loses nothing.

The functions that change a Workload return a new object that shares the unchanged parts, or the same object if nothing
changed. Reasons and messages are Kueue's (pkg/workload at v0.20 with its default feature gates).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme, well_known
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import is_in_queue
from batchyard.api.views.workload import ClusterQueueView
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.messages import ADMISSION_GATED
from batchyard.scheduling.scheduler_cache import SchedulerCache

# Admission checks of a Workload: which ones it requires, their initial state, and messages of failed ones.
#
# A check is Pending until its controller sets it to Ready, Retry or Rejected. Sources: Kueue's
# pkg/workload/admissionchecks.go, and its workload_controller in pkg/controller/core.


AdmissionCheck: TypeAlias = Mapping[str, Any]

PENDING: Final = "Pending"
READY: Final = "Ready"
RETRY: Final = "Retry"
REJECTED: Final = "Rejected"

_NO_FIELDS: Final[Mapping[str, Any]] = {}


def checks_of(workload: meta.Obj) -> Sequence[AdmissionCheck]:
    """Return the admission checks in a Workload's status; empty if there are none."""
    return (workload.get("status") or _NO_FIELDS).get("admissionChecks") or ()


def are_checks_ready(checks: Sequence[AdmissionCheck]) -> bool:
    """Return whether all given admission checks are in state Ready."""
    return all(check["state"] == READY for check in checks)


def required_checks(queue: ClusterQueueView, admission: Mapping[str, Any] | None) -> list[str]:
    """Return the sorted names of the admission checks that a ClusterQueue requires for a Workload.

    With quota (`admission`), these are the checks for the assigned flavors. Without quota, they are the checks that
    apply to all flavors of the queue.
    """
    if not queue.check_rules:
        return []
    if admission is None:
        all_flavors = frozenset(queue.flavors)
        return sorted(rule.name for rule in queue.check_rules if all_flavors.issubset(rule.flavors))
    assignments = admission.get("podSetAssignments") or ()
    used_flavors = {flavor: None for a in assignments for flavor in (a.get("flavors") or _NO_FIELDS).values()}
    return sorted(rule.name for rule in queue.check_rules if any(flavor in used_flavors for flavor in rule.flavors))


def retried_checks(workload: meta.Obj, queue: ClusterQueueView) -> list[str]:
    """Return the names of a Workload's admission checks that have been retried and that its ClusterQueue still lists.

    These checks stay while the Workload is pending. Otherwise their retry count would never reach its limit.
    """
    check_names = [rule.name for rule in queue.check_rules]
    return [check["name"] for check in checks_of(workload) if check.get("retryCount") and check["name"] in check_names]


def with_required_checks(workload: meta.Obj, required_names: Sequence[str], now: Instant) -> meta.Obj:
    """Return the Workload with exactly the required admission checks; new ones are Pending.

    The same object is returned if its checks are the required ones.
    """
    checks_by_name = {check["name"]: check for check in checks_of(workload)}
    if checks_by_name.keys() == frozenset(required_names):
        return workload
    checks = [checks_by_name.get(name) or new_check(name, format_time(now)) for name in required_names]
    return meta.with_path(workload, ("status", "admissionChecks"), checks or None)


def new_check(name: str, timestamp: str) -> AdmissionCheck:
    """Return a new admission check in state Pending."""
    return {"name": name, "state": PENDING, "message": "", "lastTransitionTime": timestamp}


def reset_check(check: AdmissionCheck, timestamp: str) -> AdmissionCheck:
    """Return an admission check as Pending, after an eviction; if it was in Retry, its retry count is incremented."""
    if check["state"] == PENDING:
        return check
    message = f"Reset to Pending after eviction. Previously: {check['state']}"
    pending_check = {"name": check["name"], "state": PENDING, "message": message, "lastTransitionTime": timestamp}
    if "requeueAfterSeconds" in check:
        pending_check["requeueAfterSeconds"] = check["requeueAfterSeconds"]
    if check["state"] == RETRY:
        pending_check["retryCount"] = check.get("retryCount", 0) + 1
    return pending_check


def with_check(workload: meta.Obj, check: AdmissionCheck, now: Instant) -> meta.Obj:
    """Return the Workload with the admission check of the same name replaced; a new state gets the time `now`.

    The Workload must have a check of that name. If `check` is equal to it, the same Workload is returned.
    """
    checks = checks_of(workload)
    old = next(each for each in checks if each["name"] == check["name"])
    if check == old:
        return workload
    if check["state"] != old["state"]:
        check = {**check, "lastTransitionTime": format_time(now)}
    return meta.with_path(workload, ("status", "admissionChecks"), [check if each is old else each for each in checks])


def checks_in_state(workload: meta.Obj, state: str) -> list[AdmissionCheck]:
    """Return the Workload's admission checks that are in `state`, sorted by name."""
    matching_checks = [check for check in checks_of(workload) if check["state"] == state]
    return sorted(matching_checks, key=lambda check: check["name"])


def describe_checks(checks: Sequence[AdmissionCheck], state: str) -> str:
    """Format Kueue's message that lists admission checks, all in the same state."""
    check_texts = [f'"{c["name"]}" ({c["message"]})' if c.get("message") else f'"{c["name"]}"' for c in checks]
    noun = "AdmissionChecks" if len(checks) > 1 else "AdmissionCheck"
    return f"{noun} in {state} state: {'; '.join(check_texts)}"


def retry_at(workload: meta.Obj) -> Instant | None:
    """Return the latest retry time of a Workload's admission checks in state Retry; None if no check sets one."""
    retry_times = [
        parse_time(check["lastTransitionTime"]) + check["requeueAfterSeconds"] * SECOND
        for check in checks_in_state(workload, RETRY)
        if "requeueAfterSeconds" in check
    ]
    return max(retry_times, default=None)


# Condition types of a Workload, and the reasons that other modules branch on.
#
# Source: apis/kueue/v1beta2/workload_types.go of Kueue. Clients read these texts, so they are never changed.


# Condition types.
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
PODS_READY: Final = "PodsReady"
BLOCKED_ON_PREEMPTION_GATES: Final = "BlockedOnPreemptionGates"
EVICTED_BY_PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
EVICTED_BY_ADMISSION_CHECK: Final = "AdmissionCheck"
EVICTED_BY_CLUSTER_QUEUE_STOPPED: Final = "ClusterQueueStopped"
EVICTED_BY_LOCAL_QUEUE_STOPPED: Final = "LocalQueueStopped"
DEACTIVATED: Final = "Deactivated"

# Reasons of QuotaReserved=False, besides those of batchyard.scheduling.messages.
WAITING_FOR_PODS_READY: Final = "WaitingForPodsReady"
ON_HOLD: Final = "OnHold"

# Reasons of Requeued=True.
REACTIVATED: Final = "Reactivated"
CLUSTER_QUEUE_RESTARTED: Final = "ClusterQueueRestarted"
LOCAL_QUEUE_RESTARTED: Final = "LocalQueueRestarted"
REQUEUING_LIMIT_EXCEEDED: Final = "RequeuingLimitExceeded"

# Reasons of PodsReady, those of False first.
WAIT_FOR_START: Final = "WaitForStart"
WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
STARTED: Final = "Started"
RECOVERED: Final = "Recovered"

# Reasons of Finished=True.
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
FAILED_TO_START: Final = "FailedToStart"
OUT_OF_SYNC: Final = "OutOfSync"
OWNER_NOT_FOUND: Final = "OwnerNotFound"


_NO_STATUS: Final[Mapping[str, Any]] = {}


class Status(StrEnum):
    """The state of a Workload, named as in Kueue."""

    PENDING = "pending"
    QUOTA_RESERVED = "quotaReserved"
    ADMITTED = "admitted"
    FINISHED = "finished"


class Eviction(NamedTuple):
    """Why a Workload is evicted: the reason, the message and the underlying cause ('' if none)."""

    reason: str
    message: str
    underlying_cause: str = ""

    @property
    def condition_reason(self) -> str:
        """The reason of the Evicted condition; `DeactivatedDueToCAUSE` after a deactivation with a cause."""
        if self.reason == DEACTIVATED and self.underlying_cause:
            return f"{self.reason}DueTo{self.underlying_cause}"
        return self.reason

    @property
    def event_reason(self) -> str:
        """The reason of the Event about the eviction."""
        return f"EvictedDueTo{self.condition_reason}"


def status(workload: meta.Obj) -> Status:
    """Return the state of a Workload, from its conditions."""
    if is_finished(workload):
        return Status.FINISHED
    if is_admitted(workload):
        return Status.ADMITTED
    return Status.QUOTA_RESERVED if has_quota_reservation(workload) else Status.PENDING


def is_finished(workload: meta.Obj) -> bool:
    """Return whether a Workload's Finished condition is True, after success or failure."""
    return meta.is_true(workload, FINISHED)


def is_admitted(workload: meta.Obj) -> bool:
    """Return whether a Workload's Admitted condition is True."""
    return meta.is_true(workload, ADMITTED)


def is_evicted(workload: meta.Obj) -> bool:
    """Return whether a Workload's Evicted condition is True."""
    return meta.is_true(workload, EVICTED)


def has_quota_reservation(workload: meta.Obj) -> bool:
    """Return whether a Workload's QuotaReserved condition is True."""
    return meta.is_true(workload, QUOTA_RESERVED)


def admission_of(workload: meta.Obj) -> Mapping[str, Any]:
    """Return `status.admission` of a Workload; empty if it is missing."""
    return (workload.get("status") or {}).get("admission") or {}


def cluster_queue_of(workload: meta.Obj) -> str:
    """Return the name of the ClusterQueue in a Workload's `status.admission`; '' if there is none."""
    return admission_of(workload).get("clusterQueue") or ""


def is_active(workload: meta.Obj) -> bool:
    """Return `spec.active` of a Workload, which defaults to true."""
    return workload["spec"].get("active") is not False


def is_on_hold(workload: meta.Obj) -> bool:
    """Return whether a Workload's job has put it on hold (QuotaReserved=False, reason OnHold), so it is not queued."""
    condition = meta.find_condition(workload, QUOTA_RESERVED)
    return condition is not None and condition["status"] == "False" and condition["reason"] == ON_HOLD


def has_admission_gate(workload: meta.Obj) -> bool:
    """Return whether a Workload has an admission gate annotation, which prevents its admission."""
    return bool(meta.annotation(workload, well_known.ADMISSION_GATED_BY))


def reserve_quota(
    workload: meta.Obj, admission: Mapping[str, Any], now: Instant, admitted: bool, checks: Sequence[str] | None = None
) -> meta.Obj:
    """Return the Workload with a quota reservation, and as Admitted if `admitted` (all its checks must then be Ready).

    If `checks` is given, the Workload gets exactly these admission checks, new ones Pending. Evicted and Preempted, if
    True, become False. `resourceRequests` is removed, because the admission contains the usage.
    """
    draft = meta.StatusDraft(workload, now)
    draft.set_field("admission", admission)
    draft.drop_fields("resourceRequests")
    if checks is not None:
        checks_by_name = {check["name"]: check for check in draft.status.get("admissionChecks") or ()}
        draft.drop_fields("admissionChecks")
        if checks:
            required_checks = [checks_by_name.get(name) or new_check(name, draft.timestamp) for name in checks]
            draft.set_field("admissionChecks", required_checks)
    cluster_queue = admission["clusterQueue"]
    draft.set_condition(QUOTA_RESERVED, True, "QuotaReserved", f"Quota reserved in ClusterQueue {cluster_queue}")
    for kind in (EVICTED, PREEMPTED, BLOCKED_ON_PREEMPTION_GATES):
        if draft.is_true(kind):
            # The conditions keep their previous message for users.
            draft.set_condition(kind, False, "QuotaReserved", f"Previously: {draft.conditions[kind]['message']}")
    if admitted:
        _sync_admitted(draft)
    return draft.result()


def set_pending(workload: meta.Obj, reason: str, message: str, now: Instant) -> meta.Obj:
    """Return the Workload without a quota reservation, and with the reason why it is pending."""
    draft = meta.StatusDraft(workload, now)
    unset_quota_reservation(draft, reason, message)
    return draft.result()


def set_waiting(workload: meta.Obj, reason: str, message: str, now: Instant) -> meta.Obj:
    """Return the Workload as pending for a reason of the scheduler.

    If a preemption gate is the reason, it also gets the condition BlockedOnPreemptionGates. As in Kueue, a Workload
    that has this condition stays unchanged.
    """
    if reason != ADMISSION_GATED:
        return set_pending(workload, reason, message, now)
    condition = meta.find_condition(workload, BLOCKED_ON_PREEMPTION_GATES)
    if condition is not None and (condition["status"], condition["message"]) == ("True", message):
        return workload
    draft = meta.StatusDraft(workload, now)
    unset_quota_reservation(draft, reason, message)
    draft.set_condition(BLOCKED_ON_PREEMPTION_GATES, True, "PreemptionGated", message)
    return draft.result()


def with_preemption_gates(workload: meta.Obj, now: Instant) -> meta.Obj:
    """Return the Workload with a state for each of its preemption gates, new ones closed; the same object if it has."""
    gates, status = workload["spec"].get("preemptionGates") or (), workload.get("status") or _NO_STATUS
    states = {each["name"]: each for each in status.get("preemptionGates") or ()}
    names = dict.fromkeys([gate["name"] for gate in gates])
    if names.keys() == states.keys():
        return workload
    draft = meta.StatusDraft(workload, now)
    draft.drop_fields("preemptionGates")
    kept_states = [state for name, state in states.items() if name in names]
    new_names = [name for name in names if name not in states]
    closed = [{"name": name, "position": "Closed", "lastTransitionTime": draft.timestamp} for name in new_names]
    if kept_states or closed:
        draft.set_field("preemptionGates", [*kept_states, *closed])
    return draft.result()


def without_stale_admission(workload: meta.Obj) -> meta.Obj:
    """Return the Workload without `status.admission` if it has no quota reservation; the same object if unchanged.

    A stale admission remains if another client resets only the QuotaReserved condition. As `status.admission` is
    immutable once set, it would prevent the next admission.
    """
    if has_quota_reservation(workload) or "admission" not in (workload.get("status") or _NO_STATUS):
        return workload
    return meta.with_path(workload, ("status", "admission"), None)


def sync_admitted(workload: meta.Obj, now: Instant) -> meta.Obj:
    """Return the Workload with its condition Admitted computed from quota, admission checks and topology.

    When Admitted becomes False, the time since it became True is added to `accumulatedPastExecutionTimeSeconds`.
    """
    if not (workload.get("status") or _NO_STATUS).get("conditions"):
        return workload
    draft = meta.StatusDraft(workload, now)
    _sync_admitted(draft)
    return draft.result()


def with_resource_requests(workload: meta.Obj, requests: Sequence[Mapping[str, Any]]) -> meta.Obj:
    """Return the pending Workload with `status.resourceRequests`: per pod set, `{"name": ..., "resources": {...}}`."""
    old = workload.get("status") or _NO_STATUS
    if old.get("resourceRequests") == requests:
        return workload
    return {**workload, "status": {**old, "resourceRequests": requests}}


def finish(workload: meta.Obj, reason: str, message: str, now: Instant) -> meta.Obj:
    """Return the Workload with Finished set to True; the same object if it is already finished."""
    if is_finished(workload):
        return workload
    draft = meta.StatusDraft(workload, now)
    draft.set_condition(FINISHED, True, reason, message)
    return draft.result()


def unset_quota_reservation(draft: meta.StatusDraft, reason: str, message: str) -> None:
    """Remove the quota reservation from the draft, set the pending reason, and update the Admitted condition."""
    draft.set_condition(QUOTA_RESERVED, False, reason, message)
    draft.drop_fields("admission")
    _sync_admitted(draft)


def _sync_admitted(draft: meta.StatusDraft) -> None:
    old = draft.conditions.get(ADMITTED)
    if old is None and QUOTA_RESERVED not in draft.conditions:
        return  # a new Workload has neither condition
    is_admitted, reason, message = _admission_state(draft)
    draft.set_condition(ADMITTED, is_admitted, reason, message)
    if old is not None and old["status"] == "True" and not is_admitted:
        run_seconds = (draft.now - parse_time(old["lastTransitionTime"])) // SECOND
        past_seconds = draft.status.get("accumulatedPastExecutionTimeSeconds", 0)
        draft.set_field("accumulatedPastExecutionTimeSeconds", past_seconds + run_seconds)


def _admission_state(draft: meta.StatusDraft) -> tuple[bool, str, str]:
    if not draft.is_true(QUOTA_RESERVED):
        return False, "NoReservation", "The workload has no reservation"
    checks = draft.status.get("admissionChecks")
    if checks and not are_checks_ready(checks):
        return False, "UnsatisfiedAdmissionChecks", "The workload has not all checks ready"
    if awaits_topology(draft.status):
        return False, "PendingDelayedTopologyRequests", "There are pending delayed topology requests"
    return True, "Admitted", "The workload is admitted"


def awaits_topology(status: Mapping[str, Any]) -> bool:
    """Return whether a pod set of an admission gets topology domains only when the AdmissionChecks are ready."""
    return any(
        assignment.get("delayedTopologyRequest") == "Pending" and "topologyAssignment" not in assignment
        for assignment in (status.get("admission") or _NO_STATUS).get("podSetAssignments") or ()
    )


# Transfers the field ownership of a Workload's status from earlier releases of batchyard to Kueue's field manager.
#
# Earlier releases replaced the whole status as manager `batchyard`. A server-side apply as `kueue-admission` removes
# only fields that the same manager applied before, so fields of `batchyard` would stay. Source: client-go,
# util/csaupgrade.


#: The manager, operation and subresource of statuses written by earlier releases.
_FORMER_OWNER: Final = ("batchyard", "Update", "status")
_CURRENT_OWNER: Final = ("kueue-admission", "Apply", "status")


def has_former_owner(workload: meta.Obj) -> bool:
    """Return whether `managedFields` lists status fields that an earlier release of batchyard wrote."""
    return any(_owner_identity(entry) == _FORMER_OWNER for entry in workload["metadata"].get("managedFields") or ())


def transfer_field_ownership(workload: meta.Obj) -> Sequence[meta.Obj]:
    """Return `managedFields` in which `kueue-admission` owns the status fields that an earlier release wrote.

    The Workload must have such fields (`has_former_owner()`).
    """
    entries = workload["metadata"].get("managedFields") or ()
    status_entries = [entry for entry in entries if _owner_identity(entry) in {_FORMER_OWNER, _CURRENT_OWNER}]
    merged_fields: dict[str, Any] = {}
    for entry in status_entries:
        merged_fields = _union_fields(merged_fields, entry.get("fieldsV1") or {})
    manager, operation, subresource = _CURRENT_OWNER
    new_entry = {
        **status_entries[-1],
        "manager": manager,
        "operation": operation,
        "subresource": subresource,
        "fieldsV1": merged_fields,
    }
    return [*(entry for entry in entries if _owner_identity(entry) not in {_FORMER_OWNER, _CURRENT_OWNER}), new_entry]


def _owner_identity(entry: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return entry.get("manager"), entry.get("operation"), entry.get("subresource")


def _union_fields(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **{name: _union_fields(base.get(name) or {}, inner) for name, inner in extra.items()}}


# Resource-in-use finalizer: set on creation, and removed when the object is being deleted and is no longer used.
#
# A ClusterQueue is used by Workloads with quota in it. A ResourceFlavor or AdmissionCheck is used by ClusterQueues that
# reference it, and a Topology by ResourceFlavors. Sources: Kueue's pkg/controller/core (clusterqueue_controller,
# resourceflavor_controller, admissioncheck_controller), pkg/controller/tas/topology_controller.


_USING_KIND: Final = scheme.WORKLOAD


class ResourceInUseFinalizer:
    """Controller of the resource-in-use finalizer of ClusterQueues, ResourceFlavors, AdmissionChecks and Topologies."""

    name = "in-use"
    rank = 1
    kinds = (_USING_KIND, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR, scheme.ADMISSION_CHECK, scheme.TOPOLOGY)

    def __init__(self, scheduler_cache: SchedulerCache) -> None:
        self._scheduler_cache = scheduler_cache
        #: Objects that are being deleted.
        self._deleting: dict[meta.Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the keys of all objects being deleted, because after any event they may have become unused.

        Also return the key of a changed object that lacks the finalizer.
        """
        if event.key.kind == _USING_KIND:
            return list(self._deleting)
        if event.type is EventType.DELETED:
            self._deleting.pop(event.key, None)
        elif event.obj["metadata"].get("deletionTimestamp"):
            self._deleting[event.key] = None
        elif well_known.RESOURCE_IN_USE not in meta.finalizers_of(event.obj):
            return [*self._deleting, event.key]
        return list(self._deleting)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Add the finalizer to an object; remove it if the object is being deleted and is no longer used."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if not obj["metadata"].get("deletionTimestamp"):
            new_obj = meta.with_finalizer(obj, well_known.RESOURCE_IN_USE)
        elif self._is_used(key, reader):
            return ReconcileResult()
        else:
            new_obj = meta.without_finalizer(obj, well_known.RESOURCE_IN_USE)
        return ReconcileResult() if new_obj is obj else ReconcileResult([Update(new_obj)])

    def _is_used(self, key: meta.Key, reader: Reader) -> bool:
        queues = self._scheduler_cache.snapshot.queues
        if key.kind == scheme.CLUSTER_QUEUE:
            return key.name in queues and bool(queues[key.name].workloads)
        if key.kind == scheme.ADMISSION_CHECK:
            return any(key.name in queue.view.admission_checks for queue in queues.values())
        if key.kind == scheme.TOPOLOGY:
            flavors = reader.list(scheme.RESOURCE_FLAVOR)
            return any((flavor.get("spec") or {}).get("topologyName") == key.name for flavor in flavors)
        return any(key.name in queue.view.flavors for queue in queues.values())


def is_group_workload(workload: meta.Obj) -> bool:
    """Return whether a Workload is that of a group of pods."""
    return meta.annotation(workload, well_known.IS_GROUP_WORKLOAD) == "true"


def has_queued_pods(workload: meta.Obj) -> bool:
    """Return whether a Workload is that of a pod, or of a group of pods."""
    owner = meta.controller_of(workload)
    return is_group_workload(workload) if owner is None else owner["kind"] == "Pod"


def concerns_custom_jobs(
    kinds: frozenset[str], manages_owner: Callable[[Mapping[str, Any]], bool], event: WatchEvent
) -> bool:
    """Return whether an event is about a job, a JobKind, a new Workload of these kinds, or an abandoned Workload."""
    if event.key.kind != scheme.WORKLOAD:
        return True
    is_first = event.type is EventType.ADDED and kind_of_job(event.obj) in kinds
    return is_first or is_abandoned(event.obj, manages_owner)


def is_abandoned(workload: meta.Obj, manages_owner: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether a Workload is being deleted, but no controller of its job's kind will remove its finalizer."""
    if "deletionTimestamp" not in workload["metadata"]:
        return False
    owner = meta.controller_of(workload)
    has_finalizer = well_known.RESOURCE_IN_USE in meta.finalizers_of(workload)
    return has_finalizer and owner is not None and not manages_owner(owner)


def with_reclaimable_pods(workload: meta.Obj, reclaimable_pods: Sequence[Mapping[str, Any]]) -> meta.Obj:
    """Return the Workload with these `reclaimablePods`, at most as many as its pods; the same object if equal."""
    pod_count_by_name = {pod_set["name"]: pod_set["count"] for pod_set in workload["spec"]["podSets"]}
    pods = [
        {"name": p["name"], "count": min(p["count"], pod_count_by_name.get(p["name"], p["count"]))}
        for p in reclaimable_pods
    ]
    old_reclaimable_pods = (workload.get("status") or {}).get("reclaimablePods") or ()
    if {p["name"]: p["count"] for p in old_reclaimable_pods} == {p["name"]: p["count"] for p in pods}:
        return workload
    return meta.with_path(workload, ("status", "reclaimablePods"), pods or None)


def kind_of_job(workload: meta.Obj) -> str:
    """Return the kind of a Workload's job, such as `PyTorchJob.kubeflow.org`; '' if no job controls the Workload."""
    owner = meta.controller_of(workload)
    return "" if owner is None else meta.owner_key(owner, "").kind


def is_bare_workload(workload: meta.Obj) -> bool:
    """Return whether a Workload has neither a job nor pods."""
    return meta.controller_of(workload) is None and not is_group_workload(workload)


def concerns_queued_pods(event: WatchEvent) -> bool:
    """Return whether an event of a pod or Workload concerns a pod in a queue, or the Workload of pods."""
    return is_in_queue(event.obj) if event.key.kind == scheme.POD else has_queued_pods(event.obj)
