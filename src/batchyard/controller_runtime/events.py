"""Event recorder: writes the event records of controllers as Kubernetes Events, with deduplication and a spam filter.

A record equal to an earlier one (same object, reason and message from the same component) raises the count of that
Event. From the eleventh on, records within ten minutes that differ only in their messages are combined into one Event.
For one object, a component may record a burst of 25 Events, and one more every five minutes. The counters are kept in
memory, up to a limit. After a restart, a new Event is created. Source: client-go, tools/record/events_cache.go.

Components that write `events.k8s.io` Events use `EventSeriesWriter` below, with the same limits. client-go has no limit
there, but a Workload that is pending for long with changing messages would fill the memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, truncate_message
from batchyard.api.times import format_micro_time, format_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.base.primitives import LruCache
from batchyard.interfaces.client import Create, ObjectClient, Update, WriteResult
from batchyard.interfaces.controller import EventRecord

# Events in the form of `events.k8s.io`, as Kueue, JobSet and kube-scheduler write them.
#
# A record that differs from an earlier one only in its message, for the same revision of the object and within six
# minutes, makes that Event a series. The series is updated at once. client-go instead writes the third and all later
# occurrences only when the series ends. Sources: client-go, tools/events (event_recorder.go, event_broadcaster.go); the
# actions: calls of Eventf in Kueue, JobSet and kube-scheduler.


#: The components that write such Events; all others write Events of the core group.
EVENT_SERIES_COMPONENTS: Final = frozenset(
    {
        *("kueue-admission", "kueue-workload-controller", "ProvisioningController"),
        *("batch/job-kueue-controller", "jobset.x-k8s.io/jobset-kueue-controller"),
        *("jobset", "default-scheduler"),
    }
)
SERIES_FINISHED_AFTER: Final = 6 * MINUTE
_EVENT_NOTE_BYTES_MAX: Final = 1024
_INSTANCE_NAME_LENGTH_MAX: Final = 128
#: The action by component and reason, if it differs from the reason; '' stands for all other reasons.
_ACTION_BY_REASON: Final[Mapping[tuple[str, str], str]] = {
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
    event_key: Key
    last_occurrence: Instant
    count: int = 1
    #: Whether the Event is being created; occurrences in the meantime are written once it exists.
    is_being_created: bool = True


class EventSeriesWriter:
    """Writer of `events.k8s.io` Events, which counts repeats of an Event in its `series`.

    `host` is the reporting machine; `event_numbers` make Event names unique.
    """

    def __init__(self, client: ObjectClient, host: str, event_numbers: Iterator[int]) -> None:
        self._client = client
        self._numbers = event_numbers
        self._recent_series: LruCache[_SeriesKey, _Series] = LruCache()
        self._instances = {name: f"{name}-{host}"[:_INSTANCE_NAME_LENGTH_MAX] for name in EVENT_SERIES_COMPONENTS}

    def publish(self, now: Instant, component: str, record: EventRecord) -> None:
        """Count a record in a recent Event of the same component, object revision, type and reason.

        If there is none, create a new Event.
        """
        object_reference = reference_to(self._client, record.regarding)
        key = component, tuple(object_reference.values()), record.type, record.reason
        event_series = self._recent_series.get(key)
        if event_series is not None and now - event_series.last_occurrence >= SERIES_FINISHED_AFTER:
            event_series = None
        stored_event = None if event_series is None else self._client.get(event_series.event_key)
        if event_series is None or (stored_event is None and not event_series.is_being_created):
            event = self._new_event(now, component, record, object_reference)
            new_series = _Series(key_of(event), now)
            self._recent_series.put(key, new_series)
            self._client.submit([Create(event)], partial(self._process_creation, new_series))
            return
        event_series.last_occurrence, event_series.count = now, event_series.count + 1
        if stored_event is not None:
            self._write_count(event_series, stored_event)

    def _process_creation(self, series: _Series, result: WriteResult) -> None:
        series.is_being_created = False
        stored_event = self._client.get(series.event_key)
        series_status = (stored_event or {}).get("series") or {}
        if result.error is None and stored_event is not None and series_status.get("count", 1) < series.count:
            self._write_count(series, stored_event)

    def _write_count(self, series: _Series, stored_event: Obj) -> None:
        series_status = {"count": series.count, "lastObservedTime": format_micro_time(series.last_occurrence)}
        metadata = {field: value for field, value in stored_event["metadata"].items() if field != "resourceVersion"}
        self._client.submit([Update({**stored_event, "metadata": metadata, "series": series_status})], ignore_result)

    def _new_event(
        self, now: Instant, component: str, record: EventRecord, object_reference: Mapping[str, str]
    ) -> dict[str, Any]:
        key, reason = record.regarding, record.reason
        name, namespace = event_name(key, now, next(self._numbers)), key.namespace or "default"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": object_reference,
            "reason": reason,
            "message": truncate_message(record.message, _EVENT_NOTE_BYTES_MAX),
            "type": record.type,
            "eventTime": format_micro_time(now),
            "action": _ACTION_BY_REASON.get((component, reason)) or _ACTION_BY_REASON.get((component, "")) or reason,
            "reportingComponent": component,
            "reportingInstance": self._instances[component],
        }


def event_name(key: Key, now: Instant, number: int) -> str:
    """Return an Event name NAME.HEX: the object's name, and `now` in nanoseconds plus `number` modulo 1000."""
    return f"{key.name}.{now * 1000 + number % 1000:x}"


def reference_to(client: ObjectClient, key: Key) -> dict[str, str]:
    """Return the `involvedObject` of an Event about an object, with uid and revision if the object exists."""
    stored_object: Obj | None = client.get(key)
    object_reference = {"kind": key.kind.partition(".")[0], "namespace": key.namespace, "name": key.name}
    if stored_object is not None:
        metadata = stored_object["metadata"]
        object_reference["apiVersion"] = stored_object["apiVersion"]
        object_reference["uid"], object_reference["resourceVersion"] = metadata["uid"], metadata["resourceVersion"]
    elif scheme.is_built_in(key.kind):
        object_reference["apiVersion"] = scheme.kind_info(key.kind).api_version
    if not key.namespace:
        del object_reference["namespace"]
    return object_reference


def ignore_result(_result: WriteResult) -> None:
    """Ignore whether an Event was written; its Namespace may be terminating, or its name may be in use."""


EVENT_BURST: Final = 25
TOKEN_PERIOD: Final = 5 * MINUTE
SIMILAR_RECORDS_MAX: Final = 10
SIMILAR_RECORDS_PERIOD: Final = 10 * MINUTE
_COMBINED_MESSAGE_PREFIX: Final = "(combined from similar events): "

#: The component name in Events by controller, if the controller implements a part of a well-known component.
_COMPONENT_BY_CONTROLLER: Final = {
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
    """Return the component name in a controller's Events, such as `job-controller`; by default its own name.

    The controller of a custom kind of jobs is named after the kind, such as `PyTorchJob.kubeflow.org`.
    """
    if "." in controller:
        kind, _, group = controller.partition(".")
        return f"{group}/{kind.lower()}-kueue-controller"
    return _COMPONENT_BY_CONTROLLER.get(controller, controller)


#: The key for deduplication: component, object, type, reason, message.
_EventKey: TypeAlias = tuple[str, Key, str, str, str]


@dataclass(slots=True)
class _SimilarRecords:
    updated_at: Instant
    messages: dict[str, None]


@dataclass(slots=True)
class _TokenBucket:
    updated_at: Instant
    tokens: float


class EventRecorder:
    """Writes event records of controllers as Events through an API client; `host` is the reporting machine."""

    def __init__(self, client: ObjectClient, host: str) -> None:
        self._client = client
        self._numbers = count(1)
        self._series = EventSeriesWriter(client, host, self._numbers)
        self._recent_events: LruCache[_EventKey, Key] = LruCache()
        self._similar_records: LruCache[tuple[str, Key, str, str], _SimilarRecords] = LruCache()
        self._buckets: LruCache[tuple[str, Key], _TokenBucket] = LruCache()

    def __call__(self, now: Instant, controller: str, record: EventRecord) -> None:
        """Write an event record as an Event, unless the object's rate limit for Events is exceeded."""
        component = component_of(controller)
        if component in EVENT_SERIES_COMPONENTS:
            if self._take_token(now, component, record.regarding):
                self._series.publish(now, component, record)
            return
        regarding_key, type_, reason, message, _ = record
        aggregated_message = message
        if self._is_combined_with_similar(now, (component, regarding_key, type_, reason), message):
            aggregated_message, message = _COMBINED_MESSAGE_PREFIX, _COMBINED_MESSAGE_PREFIX + message
        if self._take_token(now, component, regarding_key):
            self._count_or_create_event(now, (component, regarding_key, type_, reason, aggregated_message), message)

    def _count_or_create_event(self, now: Instant, key: _EventKey, message: str) -> None:
        known_event_key = self._recent_events.get(key)
        stored_event = self._client.get(known_event_key) if known_event_key is not None else None
        if stored_event is not None:
            new_count = stored_event.get("count", 1) + 1
            updated_event = {**stored_event, "message": message, "count": new_count, "lastTimestamp": format_time(now)}
            self._client.submit([Update(updated_event)], ignore_result)
            return
        event = self._new_event(now, key, message)
        self._recent_events.put(key, key_of(event))
        self._client.submit([Create(event)], ignore_result)

    def _is_combined_with_similar(self, now: Instant, key: tuple[str, Key, str, str], message: str) -> bool:
        """Record an Event's message; return whether over ten recent messages with this key share one Event."""
        similar_records = self._similar_records.get(key)
        if similar_records is None:
            self._similar_records.put(key, _SimilarRecords(now, {message: None}))
            return False
        if now - similar_records.updated_at > SIMILAR_RECORDS_PERIOD:
            similar_records.messages = {}
        messages, similar_records.updated_at = similar_records.messages, now
        messages[message] = None
        if len(messages) > SIMILAR_RECORDS_MAX + 1:
            del messages[next(iter(messages))]
        return len(messages) > SIMILAR_RECORDS_MAX

    def _take_token(self, now: Instant, component: str, regarding_key: Key) -> bool:
        token_bucket = self._buckets.get((component, regarding_key))
        if token_bucket is None:
            self._buckets.put((component, regarding_key), _TokenBucket(now, EVENT_BURST - 1.0))
            return True
        tokens = min(float(EVENT_BURST), token_bucket.tokens + (now - token_bucket.updated_at) / TOKEN_PERIOD)
        has_token = tokens >= 1
        token_bucket.updated_at, token_bucket.tokens = now, tokens - 1 if has_token else tokens
        return has_token

    def _new_event(self, now: Instant, event_key: _EventKey, message: str) -> Obj:
        component, key, type_, reason, _ = event_key
        timestamp = format_time(now)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name(key, now, next(self._numbers)), "namespace": key.namespace or "default"},
            "involvedObject": reference_to(self._client, key),
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "firstTimestamp": timestamp,
            "lastTimestamp": timestamp,
            "count": 1,
            "type": type_,
            "reportingComponent": component,
            "reportingInstance": "",
        }
