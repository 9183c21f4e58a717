"""Event recorder: writes the records of controllers as Kubernetes Events, with deduplication and a spam filter.

A record equal to an earlier one (same object, reason and message from the same component) raises the count of that
Event. From the eleventh on, records within ten minutes that differ only in their messages are combined into one Event.
For one object, a component may record a burst of 25 Events, and one more every five minutes. The state for this is
bounded and lost in a crash; then a new Event is created. Source: client-go, tools/record/events_cache.go.

Components that write `events.k8s.io` Events use `EventSeries` below, with the same limits. client-go sets no limits
there, and a Workload that is pending for long with changing reasons would fill the memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, cut_message, key_of
from batchyard.api.times import format_micro_time, format_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.base.memory import LruCache
from batchyard.interfaces.client import Create, ObjectClient, Update, WriteResult
from batchyard.interfaces.controller import EventRecord

# --- event series ---
#
# Events in the form of `events.k8s.io`, as Kueue, JobSet and kube-scheduler write them.
#
# A record that differs from an earlier one only in its message, for the same revision of the object and within six
# minutes, makes that Event a series. The series is updated at once. client-go instead writes the third and all later
# occurrences only when the series ends. Sources: client-go, tools/events (event_recorder.go, event_broadcaster.go); the
# actions: calls of Eventf in Kueue, JobSet and kube-scheduler.


#: The components that write such Events; all others write Events of the core group.
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
#: The action by component and reason, if it differs from the reason; '' stands for all other reasons.
_ACTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("ProvisioningController", "ProvisioningRequestCreated"): "Created",
    ("default-scheduler", "FailedScheduling"): "Scheduling",
    ("default-scheduler", "Preempted"): "Preempting",
    ("default-scheduler", "Scheduled"): "Binding",
    ("jobset", ""): "Reconciling",
}

#: The key of a series: component, reference to the object with its revision, type, reason.
_SeriesKey: TypeAlias = tuple[str, tuple[str, ...], str, str]


@dataclass(slots=True)
class _Series:
    """The Event of a series, the time of its last occurrence, and the number of occurrences."""

    event: Key
    last: Instant
    count: int = 1
    #: Whether the Event is being created: occurrences meanwhile are counted once it exists.
    is_under_way: bool = True


class EventSeries:
    """The recent series. `host` is the reporting machine; `numbers` distinguish Events of one instant."""

    def __init__(self, client: ObjectClient, host: str, numbers: Iterator[int]) -> None:
        self._client = client
        self._numbers = numbers
        self._recent: LruCache[_SeriesKey, _Series] = LruCache()
        self._instances = {name: f"{name}-{host}"[:_INSTANCE_MAX] for name in COMPONENTS}

    def publish(self, now: Instant, component: str, record: EventRecord) -> None:
        """Count another occurrence of a recent Event, or create a new one."""
        about = reference_to(self._client, record.regarding)
        key = component, tuple(about.values()), record.type, record.reason
        known = self._recent.recall(key)
        if known is not None and now - known.last >= FINISHED_AFTER:
            known = None
        stored = None if known is None else self._client.get(known.event)
        if known is None or (stored is None and not known.is_under_way):
            event = self._event(now, component, record, about)
            begun = _Series(key_of(event), now)
            self._recent.remember(key, begun)
            self._client.submit([Create(event)], partial(self._made, begun))
            return
        known.last, known.count = now, known.count + 1
        if stored is not None:
            self._count(known, stored)

    def _made(self, series: _Series, result: WriteResult) -> None:
        """Process the creation of the first Event: write the occurrences counted meanwhile."""
        series.is_under_way = False
        stored = self._client.get(series.event)
        counted = (stored or {}).get("series") or {}
        if result.error is None and stored is not None and counted.get("count", 1) < series.count:
            self._count(series, stored)

    def _count(self, series: _Series, stored: Obj) -> None:
        """Write the number of occurrences into an Event."""
        series_status = {"count": series.count, "lastObservedTime": format_micro_time(series.last)}
        metadata = {field: value for field, value in stored["metadata"].items() if field != "resourceVersion"}
        self._client.submit([Update({**stored, "metadata": metadata, "series": series_status})], ignore_result)

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
    """Return the name of an Event: object name and instant in nanoseconds, whose last three digits are a counter."""
    return f"{key.name}.{now * 1000 + number % 1000:x}"


def reference_to(client: ObjectClient, key: Key) -> dict[str, str]:
    """Return the reference of an Event to an object."""
    info = scheme.kind_info(key.kind)
    found: Obj | None = client.get(key)
    reference = {"kind": info.kind, "namespace": key.namespace, "name": key.name, "apiVersion": info.api_version}
    if found is not None:
        metadata = found["metadata"]
        reference["uid"], reference["resourceVersion"] = metadata["uid"], metadata["resourceVersion"]
    if not key.namespace:
        del reference["namespace"]
    return reference


def ignore_result(_result: WriteResult) -> None:
    """Ignore a failed write of an Event: its namespace is terminating, or its name is taken."""


BURST: Final = 25
REFILL: Final = 5 * MINUTE
SIMILAR_MAX: Final = 10
SIMILAR_WITHIN: Final = 10 * MINUTE
_COMBINED: Final = "(combined from similar events): "

#: The component that a controller reports as, if it implements a part of a well-known one.
_COMPONENTS: Final = {
    "autoscaler": "cluster-autoscaler",
    "disruption-budgets": "controllermanager",
    "job": "batch/job-kueue-controller",
    "job-pods": "job-controller",
    "jobset": "jobset.x-k8s.io/jobset-kueue-controller",
    "jobset-controller": "jobset",
    "kubelets": "kubelet",
    "local-kubelet": "kubelet",
    "local-node": "kubelet",
    "node-agents": "kubelet",
    "node-health": "node-controller",
    "placement": "default-scheduler",
    "provisioning": "ProvisioningController",
    "provisioning-requests": "cluster-autoscaler",
    "scheduler": "kueue-admission",
    "taint-eviction": "taint-eviction-controller",
    "workload": "kueue-workload-controller",
}


def component_of(controller: str) -> str:
    """Return the component that a controller reports as."""
    return _COMPONENTS.get(controller, controller)


#: The key for deduplication: component, object, type, reason, message.
_EventKey: TypeAlias = tuple[str, Key, str, str, str]


@dataclass(slots=True)
class _Similar:
    """The distinct messages of records that are otherwise equal, and the time of the last one."""

    since: Instant
    messages: dict[str, None]


@dataclass(slots=True)
class _Budget:
    """The token bucket of an object: tokens left as of a time."""

    since: Instant
    left: float


class EventRecorder:
    """An EventSink that writes to a client; `host` is the reporting machine."""

    def __init__(self, client: ObjectClient, host: str) -> None:
        self._client = client
        self._numbers = count(1)
        self._series = EventSeries(client, host, self._numbers)
        self._recent: LruCache[_EventKey, Key] = LruCache()
        self._similar: LruCache[tuple[str, Key, str, str], _Similar] = LruCache()
        self._budget: LruCache[tuple[str, Key], _Budget] = LruCache()

    def __call__(self, now: Instant, controller: str, record: EventRecord) -> None:
        """Record an event, unless the limit of its object is exceeded."""
        component = component_of(controller)
        if component in COMPONENTS:
            if self._take_token(now, component, record.regarding):
                self._series.publish(now, component, record)
            return
        regarding, type_, reason, message, _ = record
        deduplicated = message
        if self._is_one_of_many(now, (component, regarding, type_, reason), message):
            deduplicated, message = _COMBINED, _COMBINED + message
        if self._take_token(now, component, regarding):
            self._count_or_create(now, (component, regarding, type_, reason, deduplicated), message)

    def _count_or_create(self, now: Instant, key: _EventKey, message: str) -> None:
        """Raise the count of an earlier Event, or create a new one."""
        known = self._recent.recall(key)
        stored = self._client.get(known) if known is not None else None
        if stored is not None:
            times = stored.get("count", 1) + 1
            again = {**stored, "message": message, "count": times, "lastTimestamp": format_time(now)}
            self._client.submit([Update(again)], ignore_result)
            return
        event = self._event(now, key, message)
        self._recent.remember(key, key_of(event))
        self._client.submit([Create(event)], ignore_result)

    def _is_one_of_many(self, now: Instant, key: tuple[str, Key, str, str], message: str) -> bool:
        """Report whether so many records differ only in their messages that they are combined."""
        similar = self._similar.recall(key)
        if similar is None:
            self._similar.remember(key, _Similar(now, {message: None}))
            return False
        if now - similar.since > SIMILAR_WITHIN:
            similar.messages = {}
        messages, similar.since = similar.messages, now
        messages[message] = None
        if len(messages) > SIMILAR_MAX + 1:
            del messages[next(iter(messages))]
        return len(messages) > SIMILAR_MAX

    def _take_token(self, now: Instant, component: str, regarding: Key) -> bool:
        """Take a token for an object; return False if none is left."""
        budget = self._budget.recall((component, regarding))
        if budget is None:
            self._budget.remember((component, regarding), _Budget(now, BURST - 1.0))
            return True
        left = min(float(BURST), budget.left + (now - budget.since) / REFILL)
        may = left >= 1
        budget.since, budget.left = now, left - 1 if may else left
        return may

    def _event(self, now: Instant, event_key: _EventKey, message: str) -> Obj:
        component, key, type_, reason, _ = event_key
        at = format_time(now)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": event_name(key, now, next(self._numbers)),
                "namespace": key.namespace or "default",
            },
            "involvedObject": reference_to(self._client, key),
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "type": type_,
            "reportingComponent": component,
            "reportingInstance": "",
        }
