"""Events of what controllers record: told, counted, combined, and not too many."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import MINUTE
from batchyard.client.local import LocalClient
from batchyard.controllers.event_expiry import EventExpiry
from batchyard.controllers.events import BURST, EventRecorder
from batchyard.kernel import VirtualKernel
from batchyard.ports.client import Create, Delete, WriteResult
from batchyard.ports.controller import EventRecord
from batchyard.store.memory import Store

JOB = Key(scheme.JOB, "team", "train")


class Recorder:
    """A recorder over a store, and what it has told."""

    def __init__(self) -> None:
        self.kernel = VirtualKernel(make.at(0))
        self.store = Store()
        self.client = LocalClient(self.store, self.kernel)
        self._record = EventRecorder(self.client)

    def record(self, message: str, reason: str = "SuccessfulCreate", *, at: float = 0, key: Key = JOB) -> None:
        self._record(make.at(at), "job-pods", EventRecord(key, "Normal", reason, message))

    @property
    def told(self) -> list[Obj]:
        return list(self.store.list(scheme.EVENT))


def ignore(_result: WriteResult) -> None:
    pass


def test_an_event_says_what_it_is_about() -> None:
    recorder = Recorder()
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "team", "uid": "u1"}}
    recorder.client.submit([Create(job)], ignore)
    recorder.record("Created pod: train-0")
    (event,) = recorder.told
    about = {"kind": "Job", "namespace": "team", "name": "train", "apiVersion": "batch/v1", "uid": "u1"}
    assert event["involvedObject"] == {**about, "resourceVersion": "1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "SuccessfulCreate", "Created pod: train-0")
    assert (event["source"], event["count"]) == ({"component": "job-controller"}, 1)
    assert event["metadata"]["namespace"] == "team"


def test_the_same_again_is_counted() -> None:
    recorder = Recorder()
    for second in (0, 5, 9):
        recorder.record("Job suspended", "Suspended", at=second)
    (event,) = recorder.told
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (3, make.stamp(0), make.stamp(9))


def test_many_that_differ_in_their_messages_alone_become_one() -> None:
    recorder = Recorder()
    for number in range(14):
        recorder.record(f"Created pod: train-{number}")
    assert len(recorder.told) == 11
    (combined,) = [event for event in recorder.told if event["message"].startswith("(combined from similar events): ")]
    assert (combined["count"], combined["message"].rpartition(" ")[2]) == (4, "train-13")


def test_of_one_object_no_more_than_a_burst_is_told() -> None:
    recorder = Recorder()
    for number in range(BURST + 10):
        recorder.record("told", f"Reason{number}")
    assert len(recorder.told) == BURST
    recorder.record("told", "Later", at=5 * MINUTE / 1_000_000)
    assert len(recorder.told) == BURST + 1
    recorder.record("told", "Other", key=Key(scheme.NODE, "", "n1"))
    assert recorder.told[0]["metadata"]["namespace"] == "default"


def test_an_event_goes_an_hour_after_it_was_last_told() -> None:
    recorder = Recorder()
    recorder.record("told")
    recorder.record("told", at=60)
    (event,) = recorder.told
    key = key_of(event)
    assert EventExpiry().reconcile(key, recorder.client, make.at(3600)).requeue_at == make.at(3660)
    assert EventExpiry().reconcile(key, recorder.client, make.at(3660)).writes == [Delete(key)]
