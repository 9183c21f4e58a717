"""Events in the format of events.k8s.io; repeated events form a series."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import columns, row
from batchyard.api.validation.core import event_errors, events_v1_errors
from batchyard.base.instant import MINUTE
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.events import EVENT_BURST, EventRecorder
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.housekeeping.controllers import EVENTS_KEY, EventExpiry
from batchyard.interfaces.client import Create, EventType, WatchEvent
from batchyard.interfaces.controller import EventRecord
from batchyard.store.memory import Store

JOB = Key(scheme.JOB, "team", "train")
STAMP = make.stamp(0).replace("Z", ".000000Z")


class EventSeriesRecorder:
    """An event recorder on a store that contains a Job."""

    def __init__(self) -> None:
        self.store = Store()
        self.client = LocalClient(self.store, VirtualEventLoop(make.at(0)))
        self._record = EventRecorder(self.client, "here")
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "team", "uid": "u1"}}
        self.client.submit([Create(job)], lambda _result: None)

    def record(self, message: str = "it began", reason: str = "Started", *, by: str = "job", at: float = 0) -> Obj:
        self._record(make.at(at), by, EventRecord(JOB, "Normal", reason, message))
        return self.reported[-1]

    @property
    def reported(self) -> list[Obj]:
        return list(self.store.list(scheme.EVENT))


def test_event_has_time_action_reason_and_reporting_component() -> None:
    event = EventSeriesRecorder().record()
    about = {"kind": "Job", "namespace": "team", "name": "train", "apiVersion": "batch/v1", "uid": "u1"}
    assert event["involvedObject"] == {**about, "resourceVersion": "1"}
    assert (event["eventTime"], event["action"], event["reason"]) == (STAMP, "Started", "Started")
    assert event["reportingComponent"] == "batch/job-kueue-controller"
    assert event["reportingInstance"] == "batch/job-kueue-controller-here"
    assert [*event_errors(event), *events_v1_errors(event)] == []
    assert not {"source", "count", "firstTimestamp", "lastTimestamp", "series"} & event.keys()


@pytest.mark.parametrize(
    ("by", "reason", "action"),
    [
        ("jobset-controller", "JobCreationFailed", "Reconciling"),
        ("placement", "FailedScheduling", "Scheduling"),
        ("provisioning", "ProvisioningRequestCreated", "Created"),
        ("provisioning", "FailedCreate", "FailedCreate"),
    ],
)
def test_event_action_depends_on_component_and_reason(by: str, reason: str, action: str) -> None:
    assert EventSeriesRecorder().record(reason=reason, by=by)["action"] == action


def test_repeated_event_becomes_series_with_first_message() -> None:
    recorder = EventSeriesRecorder()
    for second in (0, 5, 9):
        recorder.record(f"at {second}", at=second)
    (event,) = recorder.reported
    assert event["message"] == "at 0"
    assert event["series"] == {"count": 3, "lastObservedTime": make.stamp(9).replace("Z", ".000000Z")}


def test_repeated_event_is_new_after_object_change_or_six_minutes() -> None:
    recorder = EventSeriesRecorder()
    recorder.record()
    job: dict[str, Any] = dict(recorder.client.get(JOB) or {})
    recorder.store.put(JOB, {**job, "status": {"active": 1}})
    recorder.record(at=1)
    recorder.record(at=1 + 6 * MINUTE / 1_000_000)
    assert [event.get("series") for event in recorder.reported] == [None, None, None]


def test_events_per_object_are_limited_to_burst() -> None:
    recorder = EventSeriesRecorder()
    for number in range(EVENT_BURST + 5):
        recorder.record(reason=f"Reason{number}")
    assert len(recorder.reported) == EVENT_BURST


def test_event_message_is_truncated_to_1024_bytes() -> None:
    message = EventSeriesRecorder().record("ä" * 2000)["message"]
    assert message.endswith("ä ...")
    assert len(message.encode()) == 1024


def test_event_series_expires_one_hour_after_last_observation() -> None:
    recorder, expiry = EventSeriesRecorder(), EventExpiry()
    event = recorder.record()
    key = Key(scheme.EVENT, "team", event["metadata"]["name"])
    expiry.keys_for(WatchEvent(EventType.ADDED, key, event, None, 2), make.at(0))
    recorder.record(at=60)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3600)).requeue_at == make.at(3660)


def test_event_series_is_printed_with_count_and_times() -> None:
    recorder = EventSeriesRecorder()
    recorder.record()
    event = recorder.record(at=60)
    names = [column.name for column in columns(scheme.EVENT, wide=True)]
    cells = dict(zip(names, row(event, now=make.at(120), wide=True), strict=True))
    source = "batch/job-kueue-controller, batch/job-kueue-controller-here"
    assert (cells["Count"], cells["Last Seen"], cells["First Seen"], cells["Source"]) == ("2", "60s", "2m", source)
