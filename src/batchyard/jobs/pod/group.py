"""Decisions about a pod or a group of pods in a queue: pod sets, members to keep, readiness and completion.

A group has one pod set for each role. More pods than the group has are deleted, and failed pods stay until other pods
replace them. Source: pkg/controller/jobs/pod/pod_controller.go of Kueue.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import filterfalse
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.api.views import pods, queued_pods
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import Write
from batchyard.jobframework import workloads
from batchyard.jobframework.workloads import JobCompletion, PodSetInfo
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.workload import lifecycle

#: The name of the only pod set of a single pod.
POD_SET: Final = "main"
#: The maximum number of roles in a group. Source: MaxPodSets in pkg/controller/jobframework/constants.go.
ROLES_MAX: Final = 18
TERMINATION_TARGET: Final = "TerminationTarget"
WAITING_FOR_REPLACEMENT: Final = "WaitingForReplacementPods"
_PODS_FAILED: Final = "PodsFailed"


class PodJob(NamedTuple):
    """A pod in a queue, or the members of a group, in the order of their creation."""

    pods: Sequence[Obj]
    #: The name of the group; '' for a pod without a group.
    group: str
    now: Instant
    rules: DecisionRules = DEFAULT_RULES

    @property
    def suspend_path(self) -> Sequence[str]:
        """An empty path: gates suspend pods, not a field."""
        return ()

    @property
    def first(self) -> Obj:
        """The pod whose labels and annotations count for the group."""
        return self.pods[0]

    @property
    def kind(self) -> str:
        """The kind of the members."""
        return scheme.POD

    @property
    def total_count(self) -> int | None:
        """The number of pods in the group, from the first pod; None if it is invalid."""
        return queued_pods.group_count(self.first)

    @property
    def is_serving(self) -> bool:
        """Whether this is a group that never finishes."""
        return bool(self.group) and queued_pods.is_serving(self.first)

    def is_suspended(self, job: Obj) -> bool:
        """Return whether any pod waits for its admission or has ended."""
        return any(map(queued_pods.is_suspended_pod, self.pods))

    def is_active(self, job: Obj) -> bool:
        """Return whether a pod of the group runs; a single pod is never active."""
        return bool(self.group) and any(self._holds_quota(pod) for pod in self.pods)

    def stuck_after(self) -> Instant | None:
        """Return when the next terminating pod counts as stuck, and no longer as active; None without such a pod."""
        times = [time for pod in self.pods if (time := _stuck_time(pod)) is not None and time >= self.now]
        return min(times, default=None)

    def _holds_quota(self, pod: Obj) -> bool:
        if pods.phase(pod) != pods.RUNNING or (self.rules.releases_pods_fast and pods.is_terminating(pod)):
            return False
        stuck_time = _stuck_time(pod)
        return stuck_time is None or self.now <= stuck_time

    def pods_ready(self, job: Obj) -> bool:
        """Return whether all pods are ready; a group must also be complete."""
        total = self.total_count if self.group else 1
        return total is not None and len(self.pods) >= total and all(map(self._is_ready, self.pods))

    def _is_ready(self, pod: Obj) -> bool:
        return meta.is_true(pod, pods.READY) or (self.rules.is_current and pods.phase(pod) == pods.SUCCEEDED)

    def has_stopped(self, pod: Obj) -> bool:
        """Return whether a pod of a group that serves was deleted and has ended, so that its successor may be created.

        Without this rule, such a pod waits for its successor, which a StatefulSet creates only once the pod is gone.
        Source: #14632 of Kueue, in 0.20.
        """
        return self.rules.is_current and self.is_serving and pods.is_terminating(pod) and pods.is_terminal(pod)

    def is_runnable_or_succeeded(self, pod: Obj) -> bool:
        """Return whether a pod runs, can run later, or has succeeded; a deleted pod without a node cannot run."""
        return is_runnable_or_succeeded(pod) and not self.has_stopped(pod)

    def completion(self, job: Obj) -> JobCompletion | None:
        """Return how the pod ended, or that the group ended: all pods succeeded, or none is left to retry."""
        if not self.group:
            return _pod_completion(self.first) if pods.is_terminal(self.first) else None
        total = self.total_count
        if self.is_serving or total is None:
            return None
        succeeded = sum(pods.phase(pod) == pods.SUCCEEDED for pod in self.pods)
        has_ended = all(map(pods.is_terminal, self.pods)) and any(map(queued_pods.is_unretriable, self.pods))
        return JobCompletion(True, f"Pods succeeded: {succeeded}/{total}.") if succeeded == total or has_ended else None

    def pod_class(self, job: Obj) -> str:
        """Return the PriorityClass of a pod; '' if it names none."""
        name: str = job["spec"].get("priorityClassName") or ""
        return name

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of the Workload: one for a single pod, and one for each role of a group."""
        if not self.group:
            return [_pod_set(self.first, POD_SET, 1)]
        total = self.total_count
        if total is not None and queued_pods.has_fast_admission(self.first):
            runnable = next(filter(self.is_runnable_or_succeeded, self.pods), None)
            return [] if runnable is None else [_pod_set(runnable, queued_pods.role_of(runnable), total)]
        return self.role_pod_sets(self.pods)

    def role_pod_sets(self, members: Sequence[Obj]) -> list[dict[str, Any]]:
        """Return a pod set for each role of the runnable and succeeded pods.

        With the gate PodGroupSchedulingShapeOrdering, they are in the order of what their pods request, else in that
        of their names. The names may come from the user, and the first pod sets get the first flavors.
        """
        first_pods: dict[str, Obj] = {}
        counts: dict[str, int] = {}
        for pod in filter(self.is_runnable_or_succeeded, members):
            role = queued_pods.role_of(pod)
            first_pods.setdefault(role, pod)
            counts[role] = counts.get(role, 0) + 1
        roles = sorted(counts)
        if self.rules.orders_roles_by_shape:
            hash_by_role = {role: queued_pods.role_hash(first_pods[role]["spec"]) for role in roles}
            roles.sort(key=hash_by_role.__getitem__)
        return [_pod_set(first_pods[role], role, counts[role]) for role in roles]

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return how many pods of each role of a group have succeeded; none of a group that serves."""
        if not self.group or self.is_serving:
            return []
        counts: dict[str, int] = {}
        for pod in self.pods:
            if pods.phase(pod) == pods.SUCCEEDED:
                role = queued_pods.role_of(pod)
                counts[role] = counts.get(role, 0) + 1
        return [{"name": role, "count": count} for role, count in counts.items()]

    def started_job(self, job: Obj, injections: Sequence[PodSetInfo]) -> Obj:
        """Return the single pod without its gates, with the fields of its assignment."""
        if len(injections) != 1:
            message = f"expecting 1 pod set got {len(injections)}"
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: {message}")
        return ungated_pod(self.first, injections[0])

    def stop(self, job: Obj, pod_set_infos: Sequence[PodSetInfo]) -> Write | None:
        """Return None: pods are deleted, not suspended."""
        return None


def _pod_completion(pod: Obj) -> JobCompletion:
    message = (pod.get("status") or {}).get("message") or ""
    return JobCompletion(pods.phase(pod) == pods.SUCCEEDED, message)


def _stuck_time(pod: Obj) -> Instant | None:
    metadata = pod["metadata"]
    deletion_time, grace_seconds = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    if deletion_time is None or grace_seconds is None or pods.phase(pod) != pods.RUNNING:
        return None
    grace_period: Duration = grace_seconds * SECOND
    return parse_time(deletion_time) + grace_period


def is_runnable_or_succeeded(pod: Obj) -> bool:
    """Return whether a pod runs, can run later, or has succeeded; a deleted pod without a node cannot run."""
    is_gone = pods.is_terminating(pod) and not pods.bound_node(pod)
    return not is_gone and pods.phase(pod) != pods.FAILED


def _pod_set(pod: Obj, name: str, count: int) -> dict[str, Any]:
    return {
        "name": name,
        "template": workloads.without_duplicate_env({"spec": pod["spec"]}),
        "count": count,
        "topologyRequest": workloads.topology_request(pod, podIndexLabel=well_known.POD_GROUP_INDEX),
    }


def ungated_pod(pod: Obj, injection: PodSetInfo) -> Obj:
    """Return a pod without the gate of its admission, with the scheduling fields of its pod set's assignment.

    The topology gate stays only if the assignment has topology domains. Raises InvalidPodSetInfo if fields conflict.
    """
    keeps_topology = any(gate["name"] == well_known.TOPOLOGY_GATE for gate in injection.scheduling_gates)
    removed = queued_pods.QUEUE_GATES[:1] if keeps_topology else queued_pods.QUEUE_GATES
    started_pod = workloads.inject_pod_set_info(pod, injection)
    gates = [gate for gate in started_pod["spec"].get("schedulingGates") or () if gate["name"] not in removed]
    return meta.with_path(started_pod, ("spec", "schedulingGates"), gates or None)


# The members of a group that its Workload has.


class GroupMembers(NamedTuple):
    """The members of a group by what happens to them, according to the pod sets of the group's Workload."""

    kept: Sequence[Obj]
    #: Running or gated pods beyond the count of their role, which are deleted.
    excess: Sequence[Obj]
    #: Failed pods that other pods replace, and stopped pods of a group that serves: they lose their finalizer.
    replaced: Sequence[Obj]
    #: How many pods are missing.
    absent_count: int


def assign_members(job: PodJob, pod_sets: Sequence[Mapping[str, Any]]) -> GroupMembers:
    """Return which members of a group are kept; the excess and replaced ones of each role are those of least use."""
    kept: list[Obj] = []
    excess: list[Obj] = []
    replaced: list[Obj] = []
    absent_count = 0
    active_by_role, inactive_by_role = _by_role(job)
    is_fast = queued_pods.has_fast_admission(job.first)
    for pod_set in pod_sets:
        count, role = pod_set["count"], pod_set["name"]
        active, inactive = active_by_role.get(role, []), inactive_by_role.get(role, [])
        absent_count += (count > 0 and not active) if is_fast else max(0, count - len(active))
        if len(active) > count:
            active = sorted(active, key=_active_order)
            excess += active[count:]
        kept += active[:count]
        replaced += filter(job.has_stopped, inactive)
        inactive = list(filterfalse(job.has_stopped, inactive))
        replaced_count = min(len(inactive), len(inactive) + len(active) - count)
        if replaced_count > 0:
            inactive = sorted(inactive, key=lambda pod: _inactive_order(pod, job.now))
            replaced += inactive[-replaced_count:]
            inactive = inactive[:-replaced_count]
        kept += inactive
    return GroupMembers(kept, excess, replaced, absent_count)


def _by_role(job: PodJob) -> tuple[dict[str, list[Obj]], dict[str, list[Obj]]]:
    active: dict[str, list[Obj]] = {}
    inactive: dict[str, list[Obj]] = {}
    for pod in job.pods:
        by_role = active if job.is_runnable_or_succeeded(pod) else inactive
        by_role.setdefault(queued_pods.role_of(pod), []).append(pod)
    return active, inactive


def split_excess(members: Sequence[Obj], count: int) -> tuple[Sequence[Obj], Sequence[Obj]]:
    """Return the `count` active pods that a new group keeps, and the others, which are deleted."""
    if len(members) <= count:
        return members, ()
    ordered = sorted(members, key=_active_order)
    return ordered[:count], ordered[count:]


def _has_no_finalizer(pod: Obj) -> bool:
    return well_known.MANAGED not in meta.finalizers_of(pod)


def _active_order(pod: Obj) -> tuple[bool, bool, str]:
    return _has_no_finalizer(pod), queued_pods.has_admission_gate(pod), pod["metadata"].get("creationTimestamp", "")


def _inactive_order(pod: Obj, now: Instant) -> tuple[bool, Instant, str]:
    return _has_no_finalizer(pod), -_last_active_time(pod, now), pod["metadata"].get("creationTimestamp", "")


def _last_active_time(pod: Obj, now: Instant) -> Instant:
    condition = meta.find_condition(pod, "ContainersReady")
    has_failed = condition is not None and (condition["status"], condition.get("reason")) == ("False", pods.FAILED)
    failure_time = parse_time(condition["lastTransitionTime"]) if condition is not None and has_failed else now
    deletion_time = pod["metadata"].get("deletionTimestamp")
    return min(failure_time, now if deletion_time is None else parse_time(deletion_time))


def has_equal_roles(workload: Obj, pod_sets: Sequence[Mapping[str, Any]], rules: DecisionRules) -> bool:
    """Return whether the Workload of a group has the roles of the group's pods, each with at least their count.

    The pod sets of a finished Workload may have fewer pods. With the gate PodGroupSchedulingShapeOrdering, their order
    does not matter: what a pod requests changes with its admission.
    """
    workload_pod_sets = workload["spec"]["podSets"]
    if rules.orders_roles_by_shape:
        workload_pod_sets, pod_sets = (
            sorted(each, key=lambda pod_set: pod_set["name"]) for each in (workload_pod_sets, pod_sets)
        )
    is_finished = lifecycle.is_finished(workload)
    if not is_finished and len(workload_pod_sets) < len(pod_sets):
        return False
    remaining = iter(workload_pod_sets)
    for pod_set in pod_sets:
        match = next((each for each in remaining if each["name"] == pod_set["name"]), None)
        if match is None or (not is_finished and match["count"] < pod_set["count"]):
            return False
    return True


# Errors of a group, for which it gets no Workload.


def group_error(job: PodJob, active: Sequence[Obj]) -> str:
    """Return why the group gets no Workload, in the words of Kueue; '' if nothing prevents it."""
    total, first = job.total_count, job.first
    if total is None:
        return queued_pods.count_error(first)
    if index_error := _index_error(first, total):
        return index_error
    if not queued_pods.has_fast_admission(first) and len(active) < total:
        return f"'{job.group}' group has fewer runnable pods than expected"
    queue, name = meta.label(first, well_known.QUEUE_NAME) or "", first["metadata"]["name"]
    for pod in job.pods:
        if pods.phase(pod) == pods.FAILED:
            continue
        other_queue, other_name = meta.label(pod, well_known.QUEUE_NAME) or "", pod["metadata"]["name"]
        if other_queue != queue:
            return f"pods '{name}' and '{other_name}' has different queue names: {queue}!={other_queue}"
        count_text = meta.annotation(pod, well_known.POD_GROUP_COUNT) or ""
        count = meta.parse_integer(count_text)
        if count is None:
            problem = queued_pods.parse_group_count(count_text)
            return f"failed to extract '{well_known.POD_GROUP_COUNT}' annotation from the pod '{other_name}': {problem}"
        if count != total:
            counts_text = f"different '{well_known.POD_GROUP_COUNT}' values: {total}!={count}"
            return f"pods '{name}' and '{other_name}' has {counts_text}"
    return ""


def _index_error(pod: Obj, total: int) -> str:
    """Return the error of a pod's index in its group; '' if it has none, or one below `total`."""
    text = meta.label(pod, well_known.POD_GROUP_INDEX)
    if text is None:
        return ""
    index = int(text) if text.isascii() and text.isdecimal() else None
    if index is not None and index < total:
        return ""
    if index is None:
        problem = f"invalid unsigned integer: strconv.ParseUint: parsing {json.dumps(text)}: invalid syntax"
    else:
        problem = f"validation error: value should be less than {total}"
    return f'incorrect label value "{text}" for Pod "{meta.key_of(pod)}": {problem}'


def shared_values(members: Sequence[Obj], field: str, keys: Sequence[str]) -> dict[str, str] | None:
    """Return the values of labels or annotations that all members share; None if two members differ in one."""
    shared: dict[str, str] = {}
    for pod in members if keys else ():
        values = pod["metadata"].get(field) or {}
        for key in keys:
            if key in values and shared.setdefault(key, values[key]) != values[key]:
                return None
    return shared


# The condition WaitingForReplacementPods.


def with_replacement_condition(workload: Obj, absent_count: int, now: Instant) -> Obj:
    """Return the Workload of a group with the condition of missing pods; the same object if it is up to date."""
    condition = meta.find_condition(workload, WAITING_FOR_REPLACEMENT)
    is_waiting = condition is not None and condition["status"] == "True"
    if condition is None and absent_count == 0:
        return workload
    evicted = meta.find_condition(workload, lifecycle.EVICTED)
    if absent_count == 0:
        if condition is not None and condition["status"] == "False":
            return workload
        reason, message = lifecycle.PODS_READY, "No pods need replacement"
    elif evicted is not None and evicted["status"] == "True":
        reason, message = evicted["reason"], evicted["message"]
    elif is_waiting:
        return workload
    else:
        reason, message = _PODS_FAILED, "Some Failed pods need replacement"
    draft = meta.StatusDraft(workload, now)
    draft.set_condition(WAITING_FOR_REPLACEMENT, absent_count > 0, reason, message)
    return draft.result()
