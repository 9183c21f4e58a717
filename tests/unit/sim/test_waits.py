"""How long Workloads waited, told from recorded events."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, WriteResult
from batchyard.interfaces.controller import EventRecord
from batchyard.sim.world import WaitTracker
from batchyard.store.memory import Store

KEY = Key(scheme.WORKLOAD, "team", "wl")


class Stage:
    """A store with one Workload, and the events about it."""

    def __init__(self) -> None:
        self.client = LocalClient(Store(), VirtualEventLoop(make.NOW))
        self.waits = WaitTracker(self.client)
        self.create(0)

    def create(self, seconds: float) -> None:
        """The Workload comes."""
        obj = make.workload()
        obj["metadata"]["creationTimestamp"] = make.stamp(seconds)
        self.client.submit([Create(obj)], ignore)

    def hear(self, seconds: float, reason: str) -> None:
        """An event about it."""
        self.waits.observe(make.at(seconds), EventRecord(KEY, "Normal", reason, ""))

    def preempt(self, seconds: float) -> None:
        """It is preempted, as the scheduler tells it: an eviction, and the reason for it."""
        self.hear(seconds, "EvictedDueToPreempted")
        self.hear(seconds, "Preempted")

    @property
    def workload(self) -> Obj:
        """The Workload as it is."""
        found = self.client.get(KEY)
        assert found is not None
        return found

    def waited(self, seconds: float) -> float:
        """Seconds waited until then."""
        return self.waits.waited(self.workload, make.at(seconds)) / SECOND


def ignore(result: WriteResult) -> None:
    """Whatever becomes of the write."""


def test_all_times_without_quota_count_and_no_others() -> None:
    stage = Stage()
    stage.hear(10, "QuotaReserved")
    stage.preempt(50)
    assert stage.waited(55) == 15
    stage.hear(70, "QuotaReserved")
    assert stage.waited(1000) == 30
    stage.hear(1000, "EvictedDueToClusterQueueStopped")
    assert stage.waited(1001) == 31
    assert (stage.waits.admissions, stage.waits.evictions, stage.waits.preemptions) == (2, 2, 1)
    assert stage.waits.preempted(stage.workload) == 1


def test_other_events_mean_nothing() -> None:
    stage = Stage()
    stage.hear(5, "Pending")
    stage.hear(6, "Admitted")
    assert stage.waited(10) == 10


def test_pods_that_are_preempted_are_no_workloads() -> None:
    stage = Stage()
    stage.waits.observe(make.at(5), EventRecord(Key(scheme.POD, "team", "wl"), "Normal", "Preempted", ""))
    assert stage.waits.preemptions == 0


def test_another_workload_of_the_name_starts_anew() -> None:
    stage = Stage()
    stage.hear(10, "QuotaReserved")
    stage.preempt(20)
    stage.client.submit([Delete(KEY)], ignore)
    stage.create(100)
    assert (stage.waited(101), stage.waits.preempted(stage.workload)) == (1, 0)
    stage.hear(103, "QuotaReserved")
    assert stage.waited(200) == 3


def test_an_event_about_what_is_gone_is_counted_and_no_more() -> None:
    stage = Stage()
    stage.client.submit([Delete(KEY)], ignore)
    stage.hear(10, "QuotaReserved")
    assert stage.waits.admissions == 1
