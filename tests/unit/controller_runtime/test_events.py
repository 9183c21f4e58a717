"""Recorded events are written, counted, combined and limited."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import MINUTE
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.events import EVENT_BURST, EventRecorder
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.housekeeping.controllers import BATCH_MAX, EVENTS_KEY, EVENTS_MAX, EventExpiry
from batchyard.interfaces.client import Create, Delete, EventType, Update, WatchEvent, WriteResult
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.store.memory import Store

JOB = Key(scheme.JOB, "team", "train")


class StoredEventRecorder:
    """A recorder with a store, and the events in it."""

    def __init__(self) -> None:
        self.kernel = VirtualEventLoop(make.at(0))
        self.store = Store()
        self.client = LocalClient(self.store, self.kernel)
        self._record = EventRecorder(self.client, "here")

    def record(
        self, message: str, reason: str = "SuccessfulCreate", *, at: float = 0, key: Key = JOB, by: str = "job-pods"
    ) -> None:
        self._record(make.at(at), by, EventRecord(key, "Normal", reason, message))

    @property
    def reported(self) -> list[Obj]:
        return list(self.store.list(scheme.EVENT))


def added(event: Obj) -> WatchEvent:
    return WatchEvent(EventType.ADDED, key_of(event), event, None, int(event["metadata"]["resourceVersion"]))


def ignore(_result: WriteResult) -> None:
    pass


def test_event_names_involved_object() -> None:
    recorder = StoredEventRecorder()
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "team", "uid": "u1"}}
    recorder.client.submit([Create(job)], ignore)
    recorder.record("Created pod: train-0")
    (event,) = recorder.reported
    about = {"kind": "Job", "namespace": "team", "name": "train", "apiVersion": "batch/v1", "uid": "u1"}
    assert event["involvedObject"] == {**about, "resourceVersion": "1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "SuccessfulCreate", "Created pod: train-0")
    assert (event["source"], event["count"]) == ({"component": "job-controller"}, 1)
    assert event["metadata"]["namespace"] == "team"


def test_kueue_events_have_action() -> None:
    recorder = StoredEventRecorder()
    recorder.record("Job suspended", "Suspended")
    recorder.record("Admitted by clusterQueue cq", "Started", by="job")
    recorder.record('Created ProvisioningRequest: "x"', "ProvisioningRequestCreated", by="provisioning")
    assert [event.get("action") for event in recorder.reported] == [None, "Started", "Created"]


def test_repeated_event_increments_count() -> None:
    recorder = StoredEventRecorder()
    for second in (0, 5, 9):
        recorder.record("Job suspended", "Suspended", at=second)
    (event,) = recorder.reported
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (3, make.stamp(0), make.stamp(9))


def test_similar_events_are_combined() -> None:
    recorder = StoredEventRecorder()
    for number in range(14):
        recorder.record(f"Created pod: train-{number}")
    assert len(recorder.reported) == 11
    (combined,) = [
        event for event in recorder.reported if event["message"].startswith("(combined from similar events): ")
    ]
    assert (combined["count"], combined["message"].rpartition(" ")[2]) == (4, "train-13")


def test_events_of_single_object_are_limited_to_burst() -> None:
    recorder = StoredEventRecorder()
    for number in range(EVENT_BURST + 10):
        recorder.record("told", f"Reason{number}")
    assert len(recorder.reported) == EVENT_BURST
    recorder.record("told", "Later", at=5 * MINUTE / 1_000_000)
    assert len(recorder.reported) == EVENT_BURST + 1
    recorder.record("told", "Other", key=Key(scheme.NODE, "", "n1"))
    assert recorder.reported[0]["metadata"]["namespace"] == "default"


def test_event_expires_hour_after_last_occurrence() -> None:
    recorder, expiry = StoredEventRecorder(), EventExpiry()
    recorder.record("told")
    (event,) = recorder.reported
    key = key_of(event)
    assert expiry.keys_for(added(event), make.at(0)) == (EVENTS_KEY,)
    recorder.record("told", at=60)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(1)).requeue_at == make.at(3600)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3600)).requeue_at == make.at(3660)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3660)).writes == [Delete(key)]
    assert not expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3661)).writes
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3720)).writes == [
        Delete(key)
    ]  # the first deletion failed
    recorder.client.submit([Delete(key)], ignore)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3780)) == ReconcileResult(independent=True)


@pytest.mark.parametrize("reported", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_event_with_implausible_time_expires_hour_after_creation(reported: str) -> None:
    recorder, expiry = StoredEventRecorder(), EventExpiry()
    recorder.record("told")
    (event,) = recorder.reported
    recorder.client.submit(
        [Update({**event, "lastTimestamp": reported, "eventTime": reported, "series": None})], ignore
    )
    (event,) = recorder.reported
    assert expiry.keys_for(added(event), make.at(0)) == (EVENTS_KEY,)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3599)).requeue_at == make.at(3600)
    assert expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3600)).writes == [Delete(key_of(event))]


def test_event_expiry_deletes_in_batches() -> None:
    recorder, expiry = StoredEventRecorder(), EventExpiry()
    for number in range(BATCH_MAX + 1):
        recorder.record("told", key=Key(scheme.JOB, "team", f"job-{number}"), at=number / 1000)
    expected = [key for event in recorder.reported for key in expiry.keys_for(added(event), make.at(1))]
    assert expected[0] == EVENTS_KEY
    assert len(expected) < BATCH_MAX
    outcome = expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3610))
    assert len(outcome.writes) == BATCH_MAX
    assert outcome.requeue_at is not None
    assert outcome.requeue_at <= make.at(3610)
    assert len(expiry.reconcile(EVENTS_KEY, recorder.client, make.at(3610)).writes) == 1


class EventSurplus:
    """More Events than the limit, of Jobs with numbered names, and their expiry."""

    def __init__(self, count: int) -> None:
        self.recorder, self.expiry = StoredEventRecorder(), EventExpiry()
        for number in range(count):
            self.recorder.record("told", key=Key(scheme.JOB, "team", f"job-{number}"), at=number / 1000)
        self.stored = sorted(self.recorder.reported, key=lambda event: int(event["involvedObject"]["name"][4:]))
        self.woken_at = [n for n, event in enumerate(self.stored) if self.expiry.keys_for(added(event), make.at(20))]

    def reconcile(self, at: float) -> ReconcileResult:
        """Reconcile at a second and apply the deletions."""
        outcome = self.expiry.reconcile(EVENTS_KEY, self.recorder.client, make.at(at))
        self.recorder.client.submit(outcome.writes, ignore)
        return outcome


def test_surplus_events_are_deleted_oldest_first_in_batches() -> None:
    surplus = EventSurplus(EVENTS_MAX + BATCH_MAX + 1)
    assert surplus.woken_at == [0, EVENTS_MAX + BATCH_MAX - 1]
    outcome = surplus.reconcile(20)
    assert outcome.writes == [Delete(key_of(event)) for event in surplus.stored[:BATCH_MAX]]
    assert outcome.requeue_at == make.at(21)
    assert surplus.reconcile(21).writes == [Delete(key_of(surplus.stored[BATCH_MAX]))]
    assert len(surplus.recorder.reported) == EVENTS_MAX


def test_surplus_deletion_keeps_old_event_that_occurred_again() -> None:
    surplus = EventSurplus(EVENTS_MAX + BATCH_MAX)
    again, *old = surplus.stored
    surplus.recorder.client.submit([Update({**again, "lastTimestamp": make.stamp(19)})], ignore)
    assert surplus.reconcile(20).writes == [Delete(key_of(event)) for event in old[:BATCH_MAX]]
