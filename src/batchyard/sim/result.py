"""The result of a run, as frozen values: small rows for display, and the whole objects behind them.

Rows are computed on first access, so that a large run does not pay for unused ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from batchyard.accounting.accounts import Statement
from batchyard.api import printing, scheme
from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, find_condition, key_of, with_metadata
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.dashboard.history import RUN_LIMITS, PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime, report
from batchyard.interfaces.client import Delete, WatchEvent, Write
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.workload.lifecycle import Status
from batchyard.scheduling.workload.lifecycle import status as status_of
from batchyard.sim.event_log import Event
from batchyard.sim.faults import ScheduledFault
from batchyard.sim.recovery import Loss
from batchyard.sim.world import WaitTracker, World


class RunEnding(StrEnum):
    """The reason why a run ended."""

    IDLE = "idle"  #  no more events were scheduled
    HORIZON = "horizon"
    LOOP = "loop"  #  Workloads preempted each other endlessly, and the run was configured to stop then
    BOUND = "bound"  #  it reached the maximum length of a run


@dataclass(frozen=True, slots=True)
class RejectedWrite:
    """A write of the scenario that the API rejected."""

    verb: str
    key: Key
    reason: str
    message: str

    def __str__(self) -> str:
        """Return `update Workload.kueue.x-k8s.io ns/name: reason: message`."""
        return f"{self.verb} {self.key.kind} {self.key}: {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class ClusterQueueRow:
    """A ClusterQueue at the end, with the numbers of its pending and admitted Workloads."""

    name: str
    cohort: str
    strategy: str
    pending: int
    admitted: int
    obj: Obj


@dataclass(frozen=True, slots=True)
class LocalQueueRow:
    """A LocalQueue at the end."""

    namespace: str
    name: str
    cluster_queue: str
    pending: int
    admitted: int
    obj: Obj


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """A Workload at the end; `waited` (seconds) and `preemptions` count over its whole life."""

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
    #: Why it is pending; empty for others.
    why: str
    obj: Obj


@dataclass(frozen=True, slots=True)
class JobRow:
    """A Job at the end, as kubectl prints it; the duration is in seconds, None if it never started."""

    namespace: str
    name: str
    status: str
    completions: str
    duration: float | None
    obj: Obj


@dataclass(frozen=True, slots=True)
class WorkloadCounts:
    """The numbers of Workloads by their state at the end, and of preemptions and evictions during the run."""

    finished: int
    admitted: int
    pending: int
    preemptions: int
    evictions: int


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    scenario: str
    #: The length of the run in seconds of virtual time: to the horizon, or to the last event.
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
    #: The gangs that lost a machine, with the time until each was whole again.
    losses: Sequence[Loss] = ()

    @cached_property
    def cluster_queues(self) -> Sequence[ClusterQueueRow]:
        """Return the ClusterQueues."""
        return tuple(map(_cluster_queue_row, self.objects[scheme.CLUSTER_QUEUE]))

    @cached_property
    def local_queues(self) -> Sequence[LocalQueueRow]:
        """Return the LocalQueues."""
        return tuple(map(_local_queue_row, self.objects[scheme.LOCAL_QUEUE]))

    @cached_property
    def workloads(self) -> Sequence[WorkloadResult]:
        """Return the Workloads."""
        return tuple(_workload_row(obj, self.waits, self.now) for obj in self.objects[scheme.WORKLOAD])

    @cached_property
    def jobs(self) -> Sequence[JobRow]:
        """Return the Jobs, including those of JobSets."""
        return tuple(_job_row(obj, self.now) for obj in self.objects[scheme.JOB])


def rejected_write(write: Write, error: ApiError) -> RejectedWrite:
    """Return a rejected write with the API's reason and message."""
    key = write.key if isinstance(write, Delete) else _key(write.obj)
    return RejectedWrite(type(write).__name__.lower(), key, error.reason, str(error))


def _key(obj: Obj) -> Key:
    """Return the key of an object; without a name, generateName takes its place."""
    metadata = obj["metadata"]
    return key_of(obj if metadata.get("name") else with_metadata(obj, name=metadata.get("generateName", "")))


def _count(obj: Obj, field: str) -> int:
    return int((obj.get("status") or {}).get(field, 0))


def _cluster_queue_row(obj: Obj) -> ClusterQueueRow:
    spec = obj["spec"]
    return ClusterQueueRow(
        obj["metadata"]["name"],
        spec.get("cohortName") or "",
        spec.get("queueingStrategy") or "",
        _count(obj, "pendingWorkloads"),
        _count(obj, "admittedWorkloads"),
        obj,
    )


def _local_queue_row(obj: Obj) -> LocalQueueRow:
    metadata = obj["metadata"]
    return LocalQueueRow(
        metadata["namespace"],
        metadata["name"],
        obj["spec"].get("clusterQueue") or "",
        _count(obj, "pendingWorkloads"),
        _count(obj, "admittedWorkloads"),
        obj,
    )


def _workload_row(obj: Obj, waits: WaitTracker, now: Instant) -> WorkloadResult:
    view, state = workload_view(obj), status_of(obj)
    return WorkloadResult(
        namespace=view.namespace,
        name=view.name,
        owner=_owner(obj, view),
        queue=view.queue.partition("/")[2],
        cluster_queue=view.cluster_queue,
        status=state.value,
        priority=view.priority,
        waited=seconds(waits.waited(obj, now)),
        preemptions=waits.preempted(obj),
        why=_why(obj) if state is Status.PENDING else "",
        obj=obj,
    )


def _owner(obj: Obj, view: WorkloadView) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return str(owners[0]["name"]) if owners else view.name


def _why(obj: Obj) -> str:
    """Return the message of a Workload's QuotaReserved condition."""
    condition = find_condition(obj, "QuotaReserved")
    return str(condition["message"]) if condition else ""


def _job_row(obj: Obj, now: Instant) -> JobRow:
    metadata = obj["metadata"]
    cells = printing.row(obj, now=now, wide=False)
    return JobRow(metadata["namespace"], metadata["name"], cells[1], cells[2], _job_seconds(obj, now), obj)


def _job_seconds(obj: Obj, now: Instant) -> float | None:
    status = obj.get("status") or {}
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return None
    took: Duration = (parse_time(end) if end else now) - parse_time(start)
    return seconds(took)


# --- report ---
#
# The HTML page of a run as one file: the dashboard of a running platform, for a world at its end.


class Reporter:
    """Records the history of a run for its page; create it before the run begins."""

    def __init__(self, world: World, there: Sequence[WatchEvent] = ()) -> None:
        """`there` are the initial objects."""
        self._world = world
        self._history = PlatformHistory(world.kernel.now, self._queue_of, RUN_LIMITS)
        self._history.observe(there)
        world.client.subscribe(self._history.observe)

    def html(self, now: Instant, costs: Statement | None) -> str:
        """Return the page of the current state; ages are counted to `now`."""
        world = self._world
        time = PlatformTime(lambda: now, 0)
        return report(
            DashboardViews(world.client, world.platform.index, self._history, time, lambda: costs, whole=True)
        )

    def _queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue from the current platform, which a crash may have replaced."""
        return self._world.platform.index.cluster_queue_of(namespace, local_queue)
