"""Waiting times of Workloads, computed from recorded events."""

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


class WaitingWorkload:
    """A store with one Workload, and the events about it."""

    def __init__(self) -> None:
        self.client = LocalClient(Store(), VirtualEventLoop(make.NOW))
        self.waits = WaitTracker(self.client)
        self.create(0)

    def create(self, seconds: float) -> None:
        """Creates the Workload."""
        obj = make.workload()
        obj["metadata"]["creationTimestamp"] = make.stamp(seconds)
        self.client.submit([Create(obj)], ignore)

    def observe(self, seconds: float, reason: str) -> None:
        """Observes an event of the Workload."""
        self.waits.observe(make.at(seconds), EventRecord(KEY, "Normal", reason, ""))

    def preempt(self, seconds: float) -> None:
        """Observes a preemption as the scheduler reports it: an eviction and its reason."""
        self.observe(seconds, "EvictedDueToPreempted")
        self.observe(seconds, "Preempted")

    @property
    def workload(self) -> Obj:
        """The Workload as it is."""
        result = self.client.get(KEY)
        assert result is not None
        return result

    def waited(self, seconds: float) -> float:
        """Seconds waited until this time."""
        return self.waits.wait_time(self.workload, make.at(seconds)) / SECOND


def ignore(result: WriteResult) -> None:
    """Ignores the result of the write."""


def test_waiting_time_counts_all_periods_without_quota() -> None:
    stage = WaitingWorkload()
    stage.observe(10, "QuotaReserved")
    stage.preempt(50)
    assert stage.waited(55) == 15
    stage.observe(70, "QuotaReserved")
    assert stage.waited(1000) == 30
    stage.observe(1000, "EvictedDueToClusterQueueStopped")
    assert stage.waited(1001) == 31
    assert (stage.waits.admissions, stage.waits.evictions, stage.waits.preemptions) == (2, 2, 1)
    assert stage.waits.preemption_count(stage.workload) == 1


def test_other_events_do_not_change_waiting_time() -> None:
    stage = WaitingWorkload()
    stage.observe(5, "Pending")
    stage.observe(6, "Admitted")
    assert stage.waited(10) == 10


def test_pod_preemptions_do_not_count_as_workload_preemptions() -> None:
    stage = WaitingWorkload()
    stage.waits.observe(make.at(5), EventRecord(Key(scheme.POD, "team", "wl"), "Normal", "Preempted", ""))
    assert stage.waits.preemptions == 0


def test_recreated_workload_starts_with_zero_waiting_time() -> None:
    stage = WaitingWorkload()
    stage.observe(10, "QuotaReserved")
    stage.preempt(20)
    stage.client.submit([Delete(KEY)], ignore)
    stage.create(100)
    assert (stage.waited(101), stage.waits.preemption_count(stage.workload)) == (1, 0)
    stage.observe(103, "QuotaReserved")
    assert stage.waited(200) == 3


def test_event_of_deleted_workload_counts_only_admission() -> None:
    stage = WaitingWorkload()
    stage.client.submit([Delete(KEY)], ignore)
    stage.observe(10, "QuotaReserved")
    assert stage.waits.admissions == 1
