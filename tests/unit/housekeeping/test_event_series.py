"""Events of the newer sort: what was done, when, by whom; told again they are series."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import columns, row
from batchyard.api.validation.core import event_faults, strict_faults
from batchyard.base.instant import MINUTE
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.events import BURST, EventRecorder
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.housekeeping.controllers import FIRST, EventExpiry
from batchyard.interfaces.client import Create, EventType, WatchEvent
from batchyard.interfaces.controller import EventRecord
from batchyard.store.memory import Store

JOB = Key(scheme.JOB, "team", "train")
STAMP = make.stamp(0).replace("Z", ".000000Z")


class Recorder:
    """A recorder over a store that holds a Job, and what it has told."""

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


def test_an_event_says_what_was_done_when_and_by_whom() -> None:
    event = Recorder().record()
    about = {"kind": "Job", "namespace": "team", "name": "train", "apiVersion": "batch/v1", "uid": "u1"}
    assert event["involvedObject"] == {**about, "resourceVersion": "1"}
    assert (event["eventTime"], event["action"], event["reason"]) == (STAMP, "Started", "Started")
    assert event["reportingComponent"] == "batch/job-kueue-controller"
    assert event["reportingInstance"] == "batch/job-kueue-controller-here"
    assert [*event_faults(event), *strict_faults(event)] == []
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
def test_actions_are_those_of_each_component(by: str, reason: str, action: str) -> None:
    assert Recorder().record(reason=reason, by=by)["action"] == action


def test_the_same_of_the_same_revision_again_is_a_series_with_its_first_words() -> None:
    recorder = Recorder()
    for second in (0, 5, 9):
        recorder.record(f"at {second}", at=second)
    (event,) = recorder.reported
    assert event["message"] == "at 0"
    assert event["series"] == {"count": 3, "lastObservedTime": make.stamp(9).replace("Z", ".000000Z")}


def test_it_is_another_once_the_object_has_changed_or_six_minutes_are_over() -> None:
    recorder = Recorder()
    recorder.record()
    job: dict[str, Any] = dict(recorder.client.get(JOB) or {})
    recorder.store.put(JOB, {**job, "status": {"active": 1}})
    recorder.record(at=1)
    recorder.record(at=1 + 6 * MINUTE / 1_000_000)
    assert [event.get("series") for event in recorder.reported] == [None, None, None]


def test_of_one_object_no_more_than_a_burst_is_told() -> None:
    recorder = Recorder()
    for number in range(BURST + 5):
        recorder.record(reason=f"Reason{number}")
    assert len(recorder.reported) == BURST


def test_a_message_is_cut_to_what_a_note_may_hold() -> None:
    message = Recorder().record("ä" * 2000)["message"]
    assert message.endswith("ä ...")
    assert len(message.encode()) == 1024


def test_a_series_goes_an_hour_after_it_was_last_told() -> None:
    recorder, expiry = Recorder(), EventExpiry()
    event = recorder.record()
    key = Key(scheme.EVENT, "team", event["metadata"]["name"])
    expiry.keys_for(WatchEvent(EventType.ADDED, key, event, None, 2), make.at(0))
    recorder.record(at=60)
    assert expiry.reconcile(FIRST, recorder.client, make.at(3600)).requeue_at == make.at(3660)


def test_a_series_is_printed_with_its_count() -> None:
    recorder = Recorder()
    recorder.record()
    event = recorder.record(at=60)
    names = [column.name for column in columns(scheme.EVENT, wide=True)]
    cells = dict(zip(names, row(event, now=make.at(120), wide=True), strict=True))
    source = "batch/job-kueue-controller, batch/job-kueue-controller-here"
    assert (cells["Count"], cells["Last Seen"], cells["First Seen"], cells["Source"]) == ("2", "60s", "2m", source)
