"""A shadow models the one-second batch period before Kueue requeues inadmissible Workloads."""

from typing import Any

import pytest

import make
from admission_watch import open_queue, workload_with_quota
from batchyard.api.meta import Key, Obj, key_of, with_path
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.shadow.controller import TreeFollowers
from batchyard.shadow.findings import Divergence, DivergenceType
from batchyard.shadow.state import ShadowSettings
from yard import workload


class ShadowHarness:
    """Followers that observe objects at given seconds."""

    def __init__(self, *objects: Obj, terms: ShadowSettings | None = None) -> None:
        self.reported: list[Divergence] = []
        self.follower = TreeFollowers(
            SchedulingPolicy(), terms or ShadowSettings(), self.reported.append, lambda _: True
        )
        self._known: dict[Key, Obj] = {}
        self._revision = 0
        first = (make.namespace(), make.flavor("spot"), *objects)
        self.follower.reset([self._event(obj) for obj in first], make.NOW)

    def at(self, second: float, *objects: Obj) -> None:
        """Create or update the objects at that second, in order."""
        now = make.NOW + int(second * SECOND)
        while (look := self.follower.next_check_at()) is not None and look <= now:
            self.follower.observe((), look)
        for obj in objects:
            self.follower.observe([self._event(obj)], now)

    def end(self) -> list[str]:
        """Return the Workloads of all divergences reported within a minute."""
        self.at(60)
        return [finding.workload for finding in self.reported]

    def _event(self, obj: Obj) -> WatchEvent:
        self._revision += 1
        key, old = key_of(obj), self._known.get(key_of(obj))
        self._known[key] = obj
        return WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key, obj, old, self._revision)


def admitted_workload(name: str, cpu: int = 1, **fields: Any) -> Obj:
    return workload_with_quota(name, cpu, **fields)


def finished_workload(name: str, cpu: int) -> Obj:
    return lifecycle.finish(workload_with_quota(name, cpu), "Done", "", make.NOW)


def full_queue() -> ShadowHarness:
    """Return a full queue in which `early` is inadmissible; its running Workload finishes at 10 s."""
    harness = ShadowHarness(*open_queue(), workload_with_quota("running", 4))
    harness.at(1, workload("early", 3, created=1))
    harness.at(10, finished_workload("running", 4))
    return harness


def test_new_workload_within_batch_period_may_precede_inadmissible_workload() -> None:
    harness = full_queue()
    harness.at(10.4, workload("new", 2, created=10))
    harness.at(10.5, admitted_workload("new", 2, created=10))
    assert harness.end() == []
    assert harness.follower.counts.agreements == {"admission": 1}


def test_new_workload_after_batch_period_may_not_precede_older_workload() -> None:
    harness = full_queue()
    harness.at(16, workload("new", 2, created=16))
    harness.at(16.1, admitted_workload("new", 2, created=16))
    assert "team/early" in harness.end()


@pytest.mark.parametrize("after", [0, 0.5, 1, 1.7])
def test_inadmissible_workload_may_be_admitted_during_or_after_batch_period(after: float) -> None:
    harness = full_queue()
    harness.at(10 + after, admitted_workload("early", 3, created=1))
    assert harness.end() == []


def test_late_status_write_keeps_decision_made_within_batch_period() -> None:
    harness = full_queue()
    harness.at(10.9, workload("new", 2, created=10))
    harness.at(12.2, admitted_workload("new", 2, created=10))
    assert harness.end() == []


def test_quota_freed_between_two_workloads_may_admit_second_workload() -> None:
    harness = ShadowHarness(*open_queue(), workload_with_quota("running", 3))
    harness.at(1, workload("first", 3, created=1), workload("second", 2, created=2))
    harness.at(1.3, finished_workload("running", 3), admitted_workload("second", 2, created=2))
    assert harness.end() == []


def test_deactivation_of_pending_workload_agrees() -> None:
    harness = ShadowHarness(*open_queue(cpu=1))
    waits = workload("waits", 3)
    inactive = with_path(waits, ("spec", "active"), value=False)
    harness.at(1, waits)
    harness.at(2, inactive)
    harness.at(2.1, evictions.deactivate(inactive, make.NOW))
    assert harness.end() == []
    assert harness.follower.counts.agreements == {"eviction": 1}


def test_other_eviction_of_pending_workload_is_reported() -> None:
    harness = ShadowHarness(*open_queue(cpu=1))
    waits = workload("waits", 3)
    harness.at(1, waits)
    harness.at(2, evictions.evict(waits, reason="ClusterQueueStopped", message="", now=make.NOW))
    assert harness.end() == ["team/waits"]
    assert harness.reported[0].divergence_type is DivergenceType.EVICTED


def test_eviction_written_after_victim_finished_is_ignored() -> None:
    harness = ShadowHarness(*open_queue(cpu=2), workload_with_quota("runs", 1), workload("waits", 2, priority=9))
    done = finished_workload("runs", 1)
    evicted = evictions.evict(done, reason="Preempted", message="(UID: uid-waits)", now=make.NOW)
    preempted = make.condition("Preempted", reason="InClusterQueue", message="(UID: uid-waits)")
    harness.at(1, done)
    harness.at(1.1, with_path(evicted, ("status", "conditions"), [*evicted["status"]["conditions"], preempted]))
    harness.at(1.3, admitted_workload("waits", 2, priority=9))
    assert harness.end() == []
    assert harness.follower.counts.agreements == {"admission": 1}


def pending_workload(name: str, why: str, message: str, **fields: Any) -> Obj:
    """Return a pending Workload with a reason and a message."""
    return lifecycle.set_pending(workload(name, 4, created=1, **fields), why, message, make.NOW)


def full_queue_with_evicted_victim(why: str, message: str) -> ShadowHarness:
    """`low` is pending while its only victim is being evicted; later `high` arrives, then quota is released."""
    goes = evictions.evict(workload_with_quota("goes", 4), reason="ClusterQueueStopped", message="", now=make.NOW)
    harness = ShadowHarness(*open_queue(preemption={"withinClusterQueue": "LowerPriority"}), goes)
    harness.at(1, workload("low", 4, created=1, priority=5))
    harness.at(1.1, pending_workload("low", why, message, priority=5))
    harness.at(5, workload("high", 4, created=5, priority=9))
    harness.at(9, finished_workload("goes", 4))
    return harness


_FOR_VICTIMS = ("WaitingForPreemptedWorkloads", "none fits. Pending the preemption of 1 workload(s)")
_FOR_QUOTA = ("WaitingForQuota", "none fits")


@pytest.mark.parametrize("why", [_FOR_VICTIMS, _FOR_QUOTA])
def test_only_workload_waiting_for_victims_goes_first(why: tuple[str, str]) -> None:
    low, high = ("low", 5, 1), ("high", 9, 5)
    first, last = (low, high) if why is _FOR_VICTIMS else (high, low)
    right, wrong = full_queue_with_evicted_victim(*why), full_queue_with_evicted_victim(*why)
    for harness, order in ((right, (first, last)), (wrong, (last, first))):
        for second, (name, priority, created) in zip((9.3, 19), order, strict=True):
            harness.at(second, admitted_workload(name, 4, created=created, priority=priority))
            harness.at(second + 9, finished_workload(name, 4))
    assert right.end() == []
    assert wrong.end()
