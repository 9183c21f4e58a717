"""Events as `events.k8s.io` has them, which Kueue, JobSet and kube-scheduler write: what was done, when, and by whom.

A record like one before, but for its message, of the same revision of the object, within six minutes, makes that Event
a series. It is counted at once, where client-go tells of the third and all later in the end alone. Sources: client-go,
tools/events (event_recorder.go, event_broadcaster.go); what they are called: Kueue's, JobSet's and kube-scheduler's
calls of Eventf.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.conditions import cut_message
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import format_micro_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.base.remembered import Remembered
from batchyard.ports.client import Client, Create, Update, WriteResult
from batchyard.ports.controller import EventRecord

#: Who writes such Events; all others write those of the core group.
COMPONENTS: Final = frozenset(
    {
        *("kueue-admission", "kueue-workload-controller", "ProvisioningController"),
        *("batch/job-kueue-controller", "jobset.x-k8s.io/jobset-kueue-controller"),
        *("jobset", "default-scheduler"),
    }
)
FINISHED_AFTER: Final = 6 * MINUTE
_NOTE_BYTES_MAX: Final = 1024
_INSTANCE_MAX: Final = 128
#: What is done, where it is not what the reason says; '' is any other reason.
_ACTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("ProvisioningController", "ProvisioningRequestCreated"): "Created",
    ("default-scheduler", "FailedScheduling"): "Scheduling",
    ("default-scheduler", "Preempted"): "Preempting",
    ("default-scheduler", "Scheduled"): "Binding",
    ("jobset", ""): "Reconciling",
}

#: What makes a series where it is told again: by whom, of which revision of what, its type, its reason.
_Told: TypeAlias = tuple[str, tuple[str, ...], str, str]


@dataclass(slots=True)
class _Series:
    """The Event of what was told, when it was told last, and how often."""

    event: Key
    last: Instant
    count: int = 1
    #: Whether the Event is being made: what is told meanwhile is counted once it is there.
    is_under_way: bool = True


class EventSeries:
    """See the module. `host` is the machine that they are told from; `numbers` tell apart Events of one instant."""

    def __init__(self, client: Client, host: str, numbers: Iterator[int]) -> None:
        self._client = client
        self._numbers = numbers
        self._told: Remembered[_Told, _Series] = Remembered()
        self._instances = {name: f"{name}-{host}"[:_INSTANCE_MAX] for name in COMPONENTS}

    def tell(self, now: Instant, component: str, record: EventRecord) -> None:
        """Count the Event of what was told before, or make one."""
        about = reference_to(self._client, record.regarding)
        told = component, tuple(about.values()), record.type, record.reason
        known = self._told.recall(told)
        if known is not None and now - known.last >= FINISHED_AFTER:
            known = None
        stored = None if known is None else self._client.get(known.event)
        if known is None or (stored is None and not known.is_under_way):
            event = self._event(now, component, record, about)
            begun = _Series(key_of(event), now)
            self._told.remember(told, begun)
            self._client.submit([Create(event)], partial(self._made, begun))
            return
        known.last, known.count = now, known.count + 1
        if stored is not None:
            self._count(known, stored)

    def _made(self, series: _Series, result: WriteResult) -> None:
        """The Event of a series was made, or refused: count what was told meanwhile."""
        series.is_under_way = False
        stored = self._client.get(series.event)
        counted = (stored or {}).get("series") or {}
        if result.error is None and stored is not None and counted.get("count", 1) < series.count:
            self._count(series, stored)

    def _count(self, series: _Series, stored: Obj) -> None:
        """Write how often what an Event tells was told."""
        told = {"count": series.count, "lastObservedTime": format_micro_time(series.last)}
        metadata = {field: value for field, value in stored["metadata"].items() if field != "resourceVersion"}
        self._client.submit([Update({**stored, "metadata": metadata, "series": told})], let_it_be)

    def _event(self, now: Instant, component: str, record: EventRecord, about: Mapping[str, str]) -> dict[str, Any]:
        key, reason = record.regarding, record.reason
        name, namespace = event_name(key, now, next(self._numbers)), key.namespace or "default"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "reason": reason,
            "message": cut_message(record.message, _NOTE_BYTES_MAX),
            "type": record.type,
            "eventTime": format_micro_time(now),
            "action": _ACTIONS.get((component, reason)) or _ACTIONS.get((component, "")) or reason,
            "reportingComponent": component,
            "reportingInstance": self._instances[component],
        }


def event_name(key: Key, now: Instant, number: int) -> str:
    """The name of an Event about an object: the instant in nanoseconds, of which the clock leaves three digits open."""
    return f"{key.name}.{now * 1000 + number % 1000:x}"


def reference_to(client: Client, key: Key) -> dict[str, str]:
    """An object as Events refer to it."""
    info = scheme.kind_info(key.kind)
    found: Obj | None = client.get(key)
    reference = {"kind": info.kind, "namespace": key.namespace, "name": key.name, "apiVersion": info.api_version}
    if found is not None:
        metadata = found["metadata"]
        reference["uid"], reference["resourceVersion"] = metadata["uid"], metadata["resourceVersion"]
    if not key.namespace:
        del reference["namespace"]
    return reference


def let_it_be(_result: WriteResult) -> None:
    """An Event that cannot be written is no loss: its namespace is going, or another has its name."""
