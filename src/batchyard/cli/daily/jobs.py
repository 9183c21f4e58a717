"""Jobs of a queue as users see them: one entry for each job, of any kind, with its state, pods and reason.

An entry combines a Workload with the job that owns it and the job's pods. Sources of the conditions and reasons:
Kueue's apis/kueue/v1beta2/workload_types.go, Kubernetes's pkg/apis/batch/types.go, JobSet's api/jobset/v1alpha2.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.amounts import readable_amount
from batchyard.api.meta import Obj, controller_of, controlling_job_key, find_condition, is_true, label
from batchyard.api.times import parse_time
from batchyard.api.views.node import parallel_pod_count
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Instant
from batchyard.cli.daily.cluster import ClusterClient, ClusterRequestError
from batchyard.cli.missing_objects import similar_names

#: The job of a pod: namespace, kind and name.
_JobName: TypeAlias = tuple[str, str, str]
_END_STATES: Final[Mapping[str, str]] = {"Complete": "Complete", "Completed": "Complete", "Failed": "Failed"}
_FINISHED_POD_PHASES: Final = frozenset({"Succeeded", "Failed"})


class JobState(StrEnum):
    """The state of a job; lists of jobs are sorted in the order of these states."""

    RUNNING = "Running"
    STARTING = "Starting"
    STOPPING = "Stopping"
    CHECKING = "Checking"
    PENDING = "Pending"
    SUSPENDED = "Suspended"
    UNMANAGED = "Unmanaged"
    COMPLETE = "Complete"
    FAILED = "Failed"

    @property
    def has_ended(self) -> bool:
        """Whether the job is complete or has failed."""
        return self in (JobState.COMPLETE, JobState.FAILED)

    @property
    def holds_quota(self) -> bool:
        """Whether the job's Workload is admitted, or its pods are still being stopped."""
        return self in (JobState.RUNNING, JobState.STARTING, JobState.STOPPING)


class JobPods(NamedTuple):
    """The pods of a job: how many are ready, how many nodes they use, and the reason of the first waiting pod."""

    ready: int
    nodes: int
    waiting_reason: str = ""


class StateSince(NamedTuple):
    """A job's state, the instant from which the state's age counts, and its reason ('' if there is none)."""

    state: JobState
    since: Instant
    reason: str


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job with its Workload. A Workload without an owner is an entry of kind Workload; a job may have no Workload."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    queue: str
    #: The Job or JobSet; None if it was not read, as for other kinds of jobs.
    job: Obj | None
    workload: Obj | None
    #: None if the pods were not read.
    pods: JobPods | None
    state: JobState
    since: Instant
    reason: str

    @property
    def title(self) -> str:
        """The name with its kind, such as job/train."""
        return f"{self.kind.lower()}/{self.name}"

    @property
    def workload_name(self) -> str:
        """The name of the Workload; '' without one."""
        return "" if self.workload is None else str(self.workload["metadata"]["name"])

    @property
    def pod_count(self) -> int:
        """The number of pods that run at once, as the Workload or the Job requests it; 0 if it is unknown."""
        if self.workload is not None:
            return sum(pod_set.get("count", 1) for pod_set in self.workload["spec"].get("podSets") or ())
        return parallel_pod_count(self.job["spec"]) if self.job is not None and self.kind == "Job" else 0

    @property
    def priority(self) -> int:
        """The priority of the Workload; 0 without one."""
        return 0 if self.workload is None else workload_view(self.workload).priority

    @property
    def cluster_queue(self) -> str:
        """The ClusterQueue in which the Workload has reserved quota; '' if it has none."""
        return "" if self.workload is None else workload_view(self.workload).cluster_queue


def requested_amounts(workload: Obj) -> Mapping[str, int]:
    """Return the total requests of a Workload's pods by resource, sorted: millicores of cpu, whole units of others."""
    view = workload_view(workload)
    totals: dict[str, int] = defaultdict(int)
    for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
        for resource, amount in pod_set.template.requests:
            totals[resource] += amount * count
    return dict(sorted(totals.items()))


def format_requests(workload: Obj) -> str:
    """Return a Workload's requests as text, such as `2 cpu, 4Gi memory`."""
    return ", ".join(f"{readable_amount(name, total)} {name}" for name, total in requested_amounts(workload).items())


def job_entries(workloads: Iterable[Obj], jobs: Iterable[Obj], pods: Iterable[Obj] | None) -> list[JobEntry]:
    """Return an entry for each job at the top of its owner chain, and for each Workload without a job.

    Jobs without a queue are included. Entries are sorted by state, then by the time in that state, the longest first.
    """
    pods_by_job = None if pods is None else _pods_by_job(pods)
    job_by_uid = {job["metadata"]["uid"]: job for job in jobs if controlling_job_key(job) is None}
    workload_by_owner: dict[str, Obj] = {}
    for workload in sorted(workloads, key=_workload_rank):
        owner = controller_of(workload)
        workload_by_owner[workload["metadata"]["uid"] if owner is None else owner["uid"]] = workload
    entries = [_entry_of(job_by_uid.get(uid), workload, pods_by_job) for uid, workload in workload_by_owner.items()]
    entries += [_entry_of(job, None, pods_by_job) for uid, job in job_by_uid.items() if uid not in workload_by_owner]
    states = list(JobState)
    return sorted(entries, key=lambda entry: (states.index(entry.state), entry.since, entry.namespace, entry.title))


def pod_owner(pod: Obj) -> tuple[str, str] | None:
    """Return the kind and name of a pod's JobSet, or else of its controller; None without either."""
    job_set_name, owner = label(pod, well_known.JOB_SET_NAME), controller_of(pod)
    if job_set_name:
        return "JobSet", job_set_name
    return None if owner is None else (owner["kind"], owner["name"])


def _workload_rank(workload: Obj) -> tuple[bool, bool, Instant]:
    """Return a sort key: Workloads that are finished come first, then those without quota, then the older ones.

    So the last Workload of an elastic Job is the one that runs, even if a larger one waits to replace it.
    """
    is_held = is_true(workload, "QuotaReserved") and not is_true(workload, "Evicted")
    return not is_true(workload, "Finished"), is_held, workload_view(workload).created


def workload_entries(workloads: Iterable[Obj]) -> list[JobEntry]:
    """Return an entry for each unfinished Workload; an elastic Job that grows has two."""
    return [_entry_of(None, each, None) for each in workloads if not is_true(each, "Finished")]


def _pods_by_job(pods: Iterable[Obj]) -> Mapping[_JobName, Sequence[Obj]]:
    pods_by_job: dict[_JobName, list[Obj]] = defaultdict(list)
    for pod in pods:
        owner = pod_owner(pod)
        if owner is not None:
            pods_by_job[(pod["metadata"]["namespace"], *owner)].append(pod)
    return pods_by_job


def _entry_of(job: Obj | None, workload: Obj | None, pods_by_job: Mapping[_JobName, Sequence[Obj]] | None) -> JobEntry:
    source = job if job is not None else workload
    assert source is not None, "an entry has a job or a Workload"
    namespace: str = source["metadata"]["namespace"]
    owner = controller_of(source) if job is None else None
    identity = owner or {**source, "name": source["metadata"]["name"], "uid": source["metadata"]["uid"]}
    pods = None
    if pods_by_job is not None:
        pods = count_pods(pods_by_job.get((namespace, identity["kind"], identity["name"]), ()))
    queue = label(source, well_known.QUEUE_NAME) if workload is None else workload["spec"].get("queueName")
    return JobEntry(
        *(identity["apiVersion"], identity["kind"], namespace, identity["name"], identity["uid"], queue or ""),
        *(job, workload, pods, *state_of(job, workload, pods)),
    )


def count_pods(pods: Sequence[Obj]) -> JobPods:
    """Count the ready pods of a job and the nodes that its pods use; add the reason of the first waiting pod.

    Pods that have ended are ignored.
    """
    live_pods = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in _FINISHED_POD_PHASES]
    nodes = {node for pod in live_pods if (node := (pod.get("spec") or {}).get("nodeName"))}
    waiting_reason = next((reason for pod in live_pods if (reason := _waiting_reason(pod))), "")
    return JobPods(sum(is_true(pod, "Ready") for pod in live_pods), len(nodes), waiting_reason)


def _waiting_reason(pod: Obj) -> str:
    scheduled = find_condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        return scheduled.get("message") or scheduled.get("reason") or ""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting_state = (status.get("state") or {}).get("waiting") or {}
        if waiting_state:
            return ": ".join(waiting_state[field] for field in ("reason", "message") if waiting_state.get(field))
    return ""


def state_of(job: Obj | None, workload: Obj | None, pods: JobPods | None) -> StateSince:
    """Return the state of a job, from its conditions, those of its Workload, and its pods."""
    source = job if job is not None else workload
    assert source is not None, "a state needs a job or a Workload"
    if job is not None:
        for condition in (job.get("status") or {}).get("conditions") or ():
            if condition["type"] in _END_STATES and condition["status"] == "True":
                return _since(condition, JobState(_END_STATES[condition["type"]]))
    deleted_at = source["metadata"].get("deletionTimestamp")
    if deleted_at:
        return StateSince(JobState.STOPPING, parse_time(deleted_at), "it is being deleted")
    if workload is None:
        created_at = parse_time(source["metadata"]["creationTimestamp"])
        return StateSince(JobState.UNMANAGED, created_at, "it has no Workload")
    return _workload_state(workload, pods)


def _workload_state(workload: Obj, pods: JobPods | None) -> StateSince:
    finished, evicted = find_condition(workload, "Finished"), find_condition(workload, "Evicted")
    admitted, reserved = find_condition(workload, "Admitted"), find_condition(workload, "QuotaReserved")
    created_at = workload_view(workload).created
    if finished is not None and finished["status"] == "True":
        return _since(finished, JobState.COMPLETE if finished["reason"] == "Succeeded" else JobState.FAILED)
    is_admitted = admitted is not None and admitted["status"] == "True"
    if evicted is not None and evicted["status"] == "True" and is_admitted:
        return _since(evicted, JobState.STOPPING)
    if workload["spec"].get("active") is False:
        changed = evicted or reserved
        message = "it is inactive (spec.active: false)"
        return StateSince(JobState.SUSPENDED, created_at if changed is None else _changed_at(changed), message)
    if admitted is not None and is_admitted:
        is_running = pods is None or pods.ready > 0
        state = JobState.RUNNING if is_running else JobState.STARTING
        return StateSince(state, _changed_at(admitted), "" if is_running or pods is None else pods.waiting_reason)
    if reserved is not None and reserved["status"] == "True":
        return StateSince(JobState.CHECKING, _changed_at(reserved), _check_messages(workload))
    reason = "the scheduler has not considered it yet" if reserved is None else reserved.get("message") or ""
    return StateSince(JobState.PENDING, workload_view(workload).waiting_since, reason)


def _check_messages(workload: Obj) -> str:
    checks: Sequence[Mapping[str, Any]] = (workload.get("status") or {}).get("admissionChecks") or ()
    return "; ".join(
        f"{each['name']}: {each.get('message') or each['state']}" for each in checks if each["state"] != "Ready"
    )


def _since(condition: Mapping[str, Any], state: JobState) -> StateSince:
    return StateSince(
        state, _changed_at(condition), "" if state is JobState.COMPLETE else condition.get("message") or ""
    )


def _changed_at(condition: Mapping[str, Any]) -> Instant:
    return parse_time(condition["lastTransitionTime"])


# Reading entries, and finding the one that a user names.


async def read_entries(client: ClusterClient, namespace: str, *, with_pods: bool = True) -> list[JobEntry] | None:
    """Return the jobs of a namespace ('' for all namespaces); None if the Workloads may not be listed."""
    workloads = await client.list_objects(scheme.WORKLOAD, namespace)
    if workloads is None:
        return None
    jobs = await client.list_objects(scheme.JOB, namespace)
    job_sets = await client.list_objects(scheme.JOB_SET, namespace, is_required=False)
    pods = await client.list_objects(scheme.POD, namespace) if with_pods else None
    return job_entries(workloads, [*(jobs or ()), *(job_sets or ())], pods)


def forbidden_error(client: ClusterClient, resources: str, namespace: str) -> ClusterRequestError:
    """Return the error for a missing permission to list `resources` (such as pods) in a namespace ('' for all)."""
    scope_text = f"namespace {namespace}" if namespace else "all namespaces"
    remedy = "ask for the verb `list` on these" if namespace else "use -n NS, or ask for the verb `list` on these"
    return ClusterRequestError(f"{client.url}: no permission to list {resources} in {scope_text}: {remedy}")


async def read_required_entries(client: ClusterClient, namespace: str, *, with_pods: bool = True) -> list[JobEntry]:
    """Return the jobs of a namespace ('' for all); raise ClusterRequestError if the user may not list them."""
    entries = await read_entries(client, namespace, with_pods=with_pods)
    if entries is None:
        raise forbidden_error(client, "workloads.kueue.x-k8s.io", namespace)
    return entries


async def find_job(client: ClusterClient, namespace: str, job_reference: str) -> JobEntry:
    """Return the job that the user names, as NAME or KIND/NAME; a Workload's name stands for its job.

    Raises ClusterRequestError if there is none or more than one, with the names that the user may have meant.
    """
    return (await find_jobs(client, namespace, [job_reference]))[0]


async def find_jobs(client: ClusterClient, namespace: str, job_references: Sequence[str]) -> Sequence[JobEntry]:
    """Return the jobs that the user names, each job once; names and errors are as for `find_job`."""
    entries = await read_required_entries(client, namespace)
    named_entries = [await _select_entry(client, namespace, job_reference, entries) for job_reference in job_references]
    return list({entry.uid: entry for entry in named_entries}.values())


async def _select_entry(
    client: ClusterClient, namespace: str, job_reference: str, entries: Sequence[JobEntry]
) -> JobEntry:
    matches = [entry for entry in entries if _is_named(entry, job_reference)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        titles = ", ".join(entry.title for entry in matches)
        raise ClusterRequestError(f"{job_reference} is ambiguous in namespace {namespace}: use one of {titles}")
    raise ClusterRequestError(await _not_found_message(client, namespace, job_reference, entries))


def _is_named(entry: JobEntry, job_reference: str) -> bool:
    kind, separator, name = job_reference.rpartition("/")
    if not separator:
        return name in {entry.name, entry.workload_name}
    kind = kind.lower().partition(".")[0]
    if kind in {"workload", "workloads", "wl"}:
        return bool(name == entry.workload_name)
    return name == entry.name and kind in {entry.kind.lower(), f"{entry.kind.lower()}s"}


async def _not_found_message(
    client: ClusterClient, namespace: str, job_reference: str, entries_in_namespace: Sequence[JobEntry]
) -> str:
    message = f"{job_reference if '/' in job_reference else f'job {job_reference}'} not found in namespace {namespace}"
    entries_elsewhere = await read_entries(client, "", with_pods=False) or ()
    namespaces = list(dict.fromkeys(entry.namespace for entry in entries_elsewhere if _is_named(entry, job_reference)))
    if namespaces:
        return f"{message}; found in {', '.join(namespaces)}: use -n {namespaces[0]}"
    names = similar_names(job_reference.rpartition("/")[2], [entry.name for entry in entries_in_namespace])
    if names:
        return f"{message}; similar names: {', '.join(names)}"
    other_names = similar_names(
        job_reference.rpartition("/")[2], [f"{entry.namespace}/{entry.name}" for entry in entries_elsewhere]
    )
    if other_names:
        return f"{message}; similar names in other namespaces: {', '.join(other_names)}: use -n NS"
    return f"{message}: `batchyard jobs` lists its jobs, and `batchyard jobs -A` those of all namespaces"
