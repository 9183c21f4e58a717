"""The events of a run, one class for each kind of event in the log. Times are seconds from the start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from batchyard.sim.event_log import Record


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the run."""

    time: float


@dataclass(frozen=True, slots=True)
class WorkloadEvent(Event):
    """An event of a Workload, `namespace/name`."""

    workload: str


@dataclass(frozen=True, slots=True)
class Created(WorkloadEvent):
    """The Workload was created, and queues."""


@dataclass(frozen=True, slots=True)
class Deleted(WorkloadEvent):
    """The Workload was deleted."""


@dataclass(frozen=True, slots=True)
class PodSetFlavors:
    """The quota of a pod set: the number of pods, and the flavor of each resource."""

    name: str
    count: int
    flavors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QuotaReserved(WorkloadEvent):
    """The Workload got quota."""

    cluster_queue: str
    pod_sets: tuple[PodSetFlavors, ...]


@dataclass(frozen=True, slots=True)
class Admitted(WorkloadEvent):
    """The Workload may run."""

    cluster_queue: str


@dataclass(frozen=True, slots=True)
class Preempted(WorkloadEvent):
    """The Workload lost its quota to another one, `by`, for Kueue's reason."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Evicted(WorkloadEvent):
    """The Workload lost its quota for another of Kueue's reasons."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished(WorkloadEvent):
    """The Workload finished."""


@dataclass(frozen=True, slots=True)
class LoopFound(Event):
    """Workloads of a cohort preempt each other endlessly."""

    cohort: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The last event, `Final` in the log: the pending Workloads and those with quota at the end."""

    pending: tuple[str, ...]
    admitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtherEvent(Event):
    """An event of a kind without its own class."""

    record: Record = field(default_factory=dict)


def event_of(record: Record) -> Event:
    """Convert a record of the event log to a typed event."""
    make = _MAKERS.get(record["event"])
    return OtherEvent(record["time"], record) if make is None else make(record)


def _of_workload(make: Callable[..., Event], *fields: str) -> Callable[[Record], Event]:
    return lambda record: make(record["time"], record["workload"], *(record[field] for field in fields))


def _reserved(record: Record) -> Event:
    pod_sets = tuple(PodSetFlavors(**pod_set) for pod_set in record["podSets"])
    return QuotaReserved(record["time"], record["workload"], record["clusterQueue"], pod_sets)


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event]]] = {
    "Created": _of_workload(Created),
    "Deleted": _of_workload(Deleted),
    "QuotaReserved": _reserved,
    "Admitted": _of_workload(Admitted, "clusterQueue"),
    "Preempted": _of_workload(Preempted, "reason", "by"),
    "Evicted": _of_workload(Evicted, "reason"),
    "Finished": _of_workload(Finished),
    "PreemptionLoop": lambda record: LoopFound(record["time"], record["cohort"], record["message"]),
    "Final": lambda record: Ended(record["time"], tuple(record["pending"]), tuple(record["admitted"])),
}
