"""The result of a simulation: rows to display, the objects that they describe, and the HTML report.

The rows are computed on first access, because a large run has many of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from batchyard.accounting.accounts import Statement
from batchyard.api import printing, scheme
from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, find_condition, key_of, with_metadata
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, cluster_queue_view, workload_view
from batchyard.base.instant import Duration, Instant, duration_seconds
from batchyard.dashboard.history import RUN_LIMITS, PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime, render_static_report
from batchyard.interfaces.client import Delete, WatchEvent, Write
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.messages import WAITING_FOR_PREEMPTED_WORKLOADS
from batchyard.scheduling.workload.lifecycle import QUOTA_RESERVED, Status
from batchyard.scheduling.workload.lifecycle import status as status_of
from batchyard.scheduling.workload.pending_reason import SCHEDULER_REASONS
from batchyard.sim.event_log import Event
from batchyard.sim.faults import ScheduledFault
from batchyard.sim.recovery import GangLoss
from batchyard.sim.shrinkings import Shrinking
from batchyard.sim.world import WaitTracker, World


class RunEnding(StrEnum):
    """Why a simulation ended."""

    IDLE = "idle"  #  no more events were scheduled
    HORIZON = "horizon"
    LOOP = "loop"  #  Workloads preempted each other endlessly, and the run was configured to stop then
    BOUND = "bound"  #  it reached the maximum length of a run
    INTERRUPTED = "interrupted"  #  the user interrupted it


@dataclass(frozen=True, slots=True)
class RejectedWrite:
    """A user's write in a scenario that the API server rejected."""

    verb: str
    key: Key
    reason: str
    message: str

    def __str__(self) -> str:
        """Return the rejection as a text: `update Workload.kueue.x-k8s.io ns/name: reason: message`."""
        return f"{self.verb} {self.key.kind} {self.key}: {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class ClusterQueueRow:
    """A ClusterQueue at the end of a simulation, with the numbers of its pending and admitted Workloads."""

    name: str
    cohort: str
    strategy: str
    pending: int
    admitted: int
    obj: Obj


@dataclass(frozen=True, slots=True)
class LocalQueueRow:
    """A LocalQueue at the end of a simulation, with the numbers of its pending and admitted Workloads."""

    namespace: str
    name: str
    cluster_queue: str
    pending: int
    admitted: int
    obj: Obj


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """A Workload at the end of a simulation; `waited` is its total time without quota in seconds."""

    namespace: str
    name: str
    #: The Job or JobSet that owns it; the Workload's own name if it has no owner.
    owner: str
    queue: str
    cluster_queue: str
    status: str
    priority: int
    waited: float
    preemptions: int
    #: Why the Workload is pending; '' if it is not pending, or if no reason is known.
    why: str
    obj: Obj


@dataclass(frozen=True, slots=True)
class JobRow:
    """A Job at the end of a simulation, as kubectl prints it; the duration in seconds is None if it never started."""

    namespace: str
    name: str
    status: str
    completions: str
    duration: float | None
    obj: Obj


@dataclass(frozen=True, slots=True)
class WorkloadCounts:
    """The numbers of Workloads by state at the end of a simulation, and of all preemptions and evictions."""

    finished: int
    admitted: int
    pending: int
    preemptions: int
    evictions: int
    #: The number of Workloads with quota whose admission checks are not all ready.
    awaiting_checks: int = 0
    #: The number of the finished Workloads that had finished before the simulation, in the state from which it starts.
    finished_before: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Result:
    """The result of a simulation: the final objects, how the run ended, waits, costs and events."""

    scenario: str
    #: The length of the run in seconds of virtual time.
    duration: float
    ending: RunEnding
    #: All events in order; empty if they were not recorded.
    events: Sequence[Event]
    loops: Sequence[PreemptionLoop]
    refused: Sequence[RejectedWrite]
    #: The faults of the scenario whose target did not exist at their time.
    missed: Sequence[ScheduledFault]
    warnings: Sequence[str]
    counts: WorkloadCounts
    #: Objects by kind (`Job.batch`, `ClusterQueue.kueue.x-k8s.io`), sorted by namespace and name.
    objects: Mapping[str, Sequence[Obj]]
    #: The instant of the end; ages are counted to it.
    now: Instant
    waits: WaitTracker
    #: The cost of the machines; None in a world without a cluster.
    costs: Statement | None = None
    #: The gangs of pods that lost a machine, with the time until each ran in full again.
    losses: Sequence[GangLoss] = ()
    #: The partial preemptions, in order of time; None without the feature gate.
    shrinkings: Sequence[Shrinking] | None = None
    #: The Jobs and bare pods whose pods the API server rejected, by the cause.
    rejected_pods: Mapping[str, Sequence[Key]] = field(default_factory=dict)
    #: The jobs without a Workload, by the key of the priority class that they name and that does not exist.
    jobs_without_class: Mapping[Key, Sequence[Key]] = field(default_factory=dict)

    @cached_property
    def cluster_queues(self) -> Sequence[ClusterQueueRow]:
        """Return a table row for each ClusterQueue at the end of the simulation."""
        return tuple(map(_cluster_queue_row, self.objects[scheme.CLUSTER_QUEUE]))

    @cached_property
    def local_queues(self) -> Sequence[LocalQueueRow]:
        """Return a table row for each LocalQueue at the end of the simulation."""
        return tuple(map(_local_queue_row, self.objects[scheme.LOCAL_QUEUE]))

    @cached_property
    def workloads(self) -> Sequence[WorkloadResult]:
        """Return a table row for each Workload at the end of the simulation."""
        workloads, wait_tracker = self.objects[scheme.WORKLOAD], self.waits
        pending_reasons = _PendingReasons(
            workloads, self.objects[scheme.CLUSTER_QUEUE], self.objects[scheme.LOCAL_QUEUE]
        )
        return tuple(_workload_row(obj, pending_reasons, wait_tracker, self.now) for obj in workloads)

    @cached_property
    def jobs(self) -> Sequence[JobRow]:
        """Return a table row for each Job at the end of the simulation, including the Jobs of JobSets."""
        return tuple(_job_row(obj, self.now) for obj in self.objects[scheme.JOB])


def describe_rejected_write(write: Write, error: ApiError) -> RejectedWrite:
    """Return a rejected write with the reason and message of the API server."""
    key = write.key if isinstance(write, Delete) else _key(write.obj)
    return RejectedWrite(type(write).__name__.lower(), key, error.reason, str(error))


def _key(obj: Obj) -> Key:
    metadata = obj["metadata"]
    return key_of(obj if metadata.get("name") else with_metadata(obj, name=metadata.get("generateName", "")))


def _status_count(obj: Obj, field: str) -> int:
    return int((obj.get("status") or {}).get(field, 0))


def _cluster_queue_row(obj: Obj) -> ClusterQueueRow:
    spec = obj["spec"]
    return ClusterQueueRow(
        obj["metadata"]["name"],
        spec.get("cohortName") or "",
        spec.get("queueingStrategy") or "",
        _status_count(obj, "pendingWorkloads"),
        _status_count(obj, "admittedWorkloads"),
        obj,
    )


def _local_queue_row(obj: Obj) -> LocalQueueRow:
    metadata = obj["metadata"]
    return LocalQueueRow(
        metadata["namespace"],
        metadata["name"],
        obj["spec"].get("clusterQueue") or "",
        _status_count(obj, "pendingWorkloads"),
        _status_count(obj, "admittedWorkloads"),
        obj,
    )


class _PendingReasons:
    def __init__(self, workloads: Sequence[Obj], cluster_queues: Sequence[Obj], local_queues: Sequence[Obj]) -> None:
        self._cluster_queues = {str(key_of(obj)): obj["spec"].get("clusterQueue", "") for obj in local_queues}
        #: The first pending Workload of each ClusterQueue that keeps the scheduler from considering later ones.
        self._blocking_heads: dict[str, WorkloadView] = {}
        strict_queues = {obj["metadata"]["name"]: None for obj in cluster_queues if cluster_queue_view(obj).strict_fifo}
        for obj in workloads:
            condition = find_condition(obj, QUOTA_RESERVED)
            is_pending = status_of(obj) is Status.PENDING
            if condition is None or condition["reason"] not in SCHEDULER_REASONS or not is_pending:
                continue
            view = workload_view(obj)
            name = self._cluster_queues.get(view.queue, "")
            head = self._blocking_heads.get(name)
            is_blocking = name in strict_queues or condition["reason"] == WAITING_FOR_PREEMPTED_WORKLOADS
            if is_blocking and (head is None or _queue_order(view) < _queue_order(head)):
                self._blocking_heads[name] = view

    def reason_of(self, obj: Obj) -> str:
        """Return the message of a pending Workload's QuotaReserved condition.

        Without the condition, the text names the Workload that is ahead and blocks the ClusterQueue; '' if none does.
        """
        condition = find_condition(obj, QUOTA_RESERVED)
        if condition is not None:
            return str(condition["message"])
        view = workload_view(obj)
        name = self._cluster_queues.get(view.queue, "")
        head = self._blocking_heads.get(name)
        if head is None or _queue_order(view) < _queue_order(head):
            return ""
        return f"not considered by the scheduler, because {head.key} is ahead of it in ClusterQueue {name}"


def _queue_order(view: WorkloadView) -> tuple[int, Instant]:
    return -view.priority, view.queued


def _workload_row(
    obj: Obj, pending_reasons: _PendingReasons, wait_tracker: WaitTracker, now: Instant
) -> WorkloadResult:
    view, state = workload_view(obj), status_of(obj)
    return WorkloadResult(
        namespace=view.namespace,
        name=view.name,
        owner=_owner_name(obj, view),
        queue=view.queue.partition("/")[2],
        cluster_queue=view.cluster_queue,
        status=state.value,
        priority=view.priority,
        waited=duration_seconds(wait_tracker.wait_time(obj, now)),
        preemptions=wait_tracker.preemption_count(obj),
        why=pending_reasons.reason_of(obj) if state is Status.PENDING else "",
        obj=obj,
    )


def _owner_name(obj: Obj, view: WorkloadView) -> str:
    owner_references = obj["metadata"].get("ownerReferences") or ()
    return str(owner_references[0]["name"]) if owner_references else view.name


def _job_row(obj: Obj, now: Instant) -> JobRow:
    metadata = obj["metadata"]
    job_cells = printing.row(obj, now=now, wide=False)
    return JobRow(metadata["namespace"], metadata["name"], job_cells[1], job_cells[2], _job_seconds(obj, now), obj)


def _job_seconds(obj: Obj, now: Instant) -> float | None:
    status = obj.get("status") or {}
    start_text, end = status.get("startTime"), status.get("completionTime")
    if not start_text:
        return None
    duration: Duration = (parse_time(end) if end else now) - parse_time(start_text)
    return duration_seconds(duration)


# The HTML report of a run in one file: the pages of the dashboard, for the world at the end of the run.


class Reporter:
    """Records the history of a simulation for its HTML report; create it before the simulation begins."""

    def __init__(self, world: World, initial_events: Sequence[WatchEvent] = ()) -> None:
        """Start to record; `initial_events` are the initial objects as ADDED events."""
        self._world = world
        self._history = PlatformHistory(world.kernel.now, self._queue_of, RUN_LIMITS)
        self._history.observe(initial_events)
        world.client.subscribe(self._history.observe)

    def html(self, now: Instant, costs: Statement | None, result: dict[str, Any] | None = None) -> str:
        """Return the HTML report of the simulation so far; ages of objects are counted to `now`.

        `result` is the document of the page on which the report opens.
        """
        world = self._world
        time = PlatformTime(lambda: now, 0)
        return render_static_report(
            DashboardViews(world.client, world.platform.index, self._history, time, lambda: costs, is_complete=True),
            result,
        )

    def _queue_of(self, namespace: str, local_queue: str) -> str | None:
        return self._world.platform.index.cluster_queue_of(namespace, local_queue)
