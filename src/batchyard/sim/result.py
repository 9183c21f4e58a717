"""What a run came to, as frozen values: small rows for reading, the whole objects behind them.

Rows are made when they are first asked for, so that a large run pays for none that nobody reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from batchyard.accounting.accounts import Statement
from batchyard.api import printing, scheme
from batchyard.api.conditions import find_condition
from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, key_of, with_metadata
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.interfaces.client import Delete, Write
from batchyard.scheduling.preemption_loops import PreemptionLoop
from batchyard.scheduling.workload.lifecycle import Status
from batchyard.scheduling.workload.lifecycle import status as status_of
from batchyard.sim.events import Event
from batchyard.sim.faults.faults import ScheduledFault
from batchyard.sim.recovery import Loss
from batchyard.sim.waits import Waits


class Ending(StrEnum):
    """Why a run ended."""

    IDLE = "idle"  # nothing was left to happen
    HORIZON = "horizon"
    LOOP = "loop"  # Workloads preempted each other for ever, and the run was to end then
    BOUND = "bound"  # it would have gone on beyond all reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write of the scenario that the API refused."""

    verb: str
    key: Key
    reason: str
    message: str

    def __str__(self) -> str:
        """`update Workload.kueue.x-k8s.io ns/name: reason: message`."""
        return f"{self.verb} {self.key.kind} {self.key}: {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class ClusterQueueRow:
    """A ClusterQueue at the end: how many wait in it, and how many are admitted."""

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
class WorkloadRow:
    """A Workload at the end; `waited` and `preemptions` are of its whole life, in seconds and times."""

    namespace: str
    name: str
    #: The Job or JobSet it stands for; the Workload's own name if it stands for none.
    owner: str
    queue: str
    cluster_queue: str
    status: str
    priority: int
    waited: float
    preemptions: int
    #: Why it waits, where it does.
    why: str
    obj: Obj


@dataclass(frozen=True, slots=True)
class JobRow:
    """A Job at the end, as kubectl shows it; the duration is in seconds, None if it never started."""

    namespace: str
    name: str
    status: str
    completions: str
    duration: float | None
    obj: Obj


@dataclass(frozen=True, slots=True)
class Counts:
    """How many Workloads are where at the end, and what happened to them on the way."""

    finished: int
    admitted: int
    pending: int
    preemptions: int
    evictions: int


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    scenario: str
    #: How long the run took in virtual time: to the horizon, or to the last that happened.
    duration: float
    ending: Ending
    #: All events in order; empty if they were not to be recorded.
    events: Sequence[Event]
    loops: Sequence[PreemptionLoop]
    refused: Sequence[Refusal]
    #: The faults of the scenario that met nobody when their time came.
    missed: Sequence[ScheduledFault]
    warnings: Sequence[str]
    counts: Counts
    #: Objects by kind (`Job.batch`, `ClusterQueue.kueue.x-k8s.io`), sorted by namespace and name.
    objects: Mapping[str, Sequence[Obj]]
    #: The instant of the end; ages are counted to it.
    now: Instant
    waits: Waits
    #: What the machines cost; None in a world without a cluster.
    costs: Statement | None = None
    #: The gangs that lost a machine, and how long each took to be whole again.
    losses: Sequence[Loss] = ()

    @cached_property
    def cluster_queues(self) -> Sequence[ClusterQueueRow]:
        """The ClusterQueues."""
        return tuple(map(_cluster_queue_row, self.objects[scheme.CLUSTER_QUEUE]))

    @cached_property
    def local_queues(self) -> Sequence[LocalQueueRow]:
        """The LocalQueues."""
        return tuple(map(_local_queue_row, self.objects[scheme.LOCAL_QUEUE]))

    @cached_property
    def workloads(self) -> Sequence[WorkloadRow]:
        """The Workloads."""
        return tuple(_workload_row(obj, self.waits, self.now) for obj in self.objects[scheme.WORKLOAD])

    @cached_property
    def jobs(self) -> Sequence[JobRow]:
        """The Jobs, those of JobSets among them."""
        return tuple(_job_row(obj, self.now) for obj in self.objects[scheme.JOB])


def refusal_of(write: Write, error: ApiError) -> Refusal:
    """What the API said to a write."""
    key = write.key if isinstance(write, Delete) else _key(write.obj)
    return Refusal(type(write).__name__.lower(), key, error.reason, str(error))


def _key(obj: Obj) -> Key:
    """The key of an object, with the start of its name where the name was still to be made."""
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


def _workload_row(obj: Obj, waits: Waits, now: Instant) -> WorkloadRow:
    view, state = workload_view(obj), status_of(obj)
    return WorkloadRow(
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
    """The message of the condition that says why a Workload has no quota."""
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
