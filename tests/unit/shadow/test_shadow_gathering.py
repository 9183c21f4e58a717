"""Shadow mode: Kueue batches changes for a second before it reactivates parked Workloads."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Key, Obj, key_of, with_path
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.workload import lifecycle
from batchyard.shadow.controller import Followers
from batchyard.shadow.findings import Divergence, DivergenceType
from batchyard.shadow.state import ShadowSettings
from watcher import holding, open_queue
from yard import workload


class Watched:
    """Followers, and what they are shown, at seconds from its beginning."""

    def __init__(self, *objects: Obj, terms: ShadowSettings | None = None) -> None:
        self.reported: list[Divergence] = []
        self.follower = Followers(SchedulingPolicy(), terms or ShadowSettings(), self.reported.append, lambda _: True)
        self._known: dict[Key, Obj] = {}
        self._revision = 0
        first = (make.namespace(), make.flavor("spot"), *objects)
        self.follower.recall([self._event(obj) for obj in first], make.NOW)

    def at(self, second: float, *objects: Obj) -> None:
        """Objects are there or change then, one after the other."""
        now = make.NOW + int(second * SECOND)
        while (look := self.follower.next_look()) is not None and look <= now:
            self.follower.observe((), look)
        for obj in objects:
            self.follower.observe([self._event(obj)], now)

    def end(self) -> list[str]:
        """Whom it told of by a minute later."""
        self.at(60)
        return [finding.workload for finding in self.reported]

    def _event(self, obj: Obj) -> WatchEvent:
        self._revision += 1
        key, old = key_of(obj), self._known.get(key_of(obj))
        self._known[key] = obj
        return WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key, obj, old, self._revision)


def admitted(name: str, cpu: int = 1, **fields: Any) -> Obj:
    return holding(name, cpu, **fields)


def finished(name: str, cpu: int) -> Obj:
    return lifecycle.finish(holding(name, cpu), "Done", "", make.NOW)


def full() -> Watched:
    """A queue that is full, in which `early` has been tried and parked, and which is half empty again at 10 s."""
    watched = Watched(*open_queue(), holding("running", 4))
    watched.at(1, workload("early", 3, created=1))
    watched.at(10, finished("running", 4))
    return watched


def test_who_comes_within_the_second_may_go_before_one_who_is_parked() -> None:
    watched = full()
    watched.at(10.4, workload("new", 2, created=10))
    watched.at(10.5, admitted("new", 2, created=10))
    assert watched.end() == []
    assert watched.follower.counts.agreed == {"admission": 1}


def test_after_the_second_he_may_not() -> None:
    watched = full()
    watched.at(16, workload("new", 2, created=16))
    watched.at(16.1, admitted("new", 2, created=16))
    assert "team/early" in watched.end()


@pytest.mark.parametrize("after", [0, 0.5, 1, 1.7])
def test_who_is_parked_may_be_admitted_when_the_second_is_over_or_before(after: float) -> None:
    watched = full()
    watched.at(10 + after, admitted("early", 3, created=1))
    assert watched.end() == []


def test_a_slow_write_keeps_the_decision_that_came_before_the_second_was_over() -> None:
    watched = full()
    watched.at(10.9, workload("new", 2, created=10))
    watched.at(12.2, admitted("new", 2, created=10))
    assert watched.end() == []


def test_a_change_between_two_of_one_line_finds_the_second() -> None:
    watched = Watched(*open_queue(), holding("running", 3))
    watched.at(1, workload("first", 3, created=1), workload("second", 2, created=2))
    watched.at(1.3, finished("running", 3), admitted("second", 2, created=2))
    assert watched.end() == []


def test_one_who_waits_may_be_deactivated() -> None:
    watched = Watched(*open_queue(cpu=1))
    waits = workload("waits", 3)
    inactive = with_path(waits, ("spec", "active"), value=False)
    watched.at(1, waits)
    watched.at(2, inactive)
    watched.at(2.1, lifecycle.deactivate(inactive, make.NOW))
    assert watched.end() == []
    assert watched.follower.counts.agreed == {"eviction": 1}


def test_another_eviction_of_one_who_waits_is_told() -> None:
    watched = Watched(*open_queue(cpu=1))
    waits = workload("waits", 3)
    watched.at(1, waits)
    watched.at(2, lifecycle.evict(waits, reason="ClusterQueueStopped", message="", now=make.NOW))
    assert watched.end() == ["team/waits"]
    assert watched.reported[0].parting is DivergenceType.EVICTED


def test_an_eviction_that_is_written_when_the_victim_has_finished_is_none() -> None:
    watched = Watched(*open_queue(cpu=2), holding("runs", 1), workload("waits", 2, priority=9))
    done = finished("runs", 1)
    evicted = lifecycle.evict(done, reason="Preempted", message="(UID: uid-waits)", now=make.NOW)
    preempted = make.condition("Preempted", reason="InClusterQueue", message="(UID: uid-waits)")
    watched.at(1, done)
    watched.at(1.1, with_path(evicted, ("status", "conditions"), [*evicted["status"]["conditions"], preempted]))
    watched.at(1.3, admitted("waits", 2, priority=9))
    assert watched.end() == []
    assert watched.follower.counts.agreed == {"admission": 1}


def reported(name: str, why: str, message: str, **fields: Any) -> Obj:
    """One who waits, and is told why."""
    return lifecycle.set_pending(workload(name, 4, created=1, **fields), why, message, make.NOW)


def full_of_one_who_goes(why: str, message: str) -> Watched:
    """`low` came when its only victim was on its way out, and is told why it waits; later `high` comes, and room."""
    goes = lifecycle.evict(holding("goes", 4), reason="ClusterQueueStopped", message="", now=make.NOW)
    watched = Watched(*open_queue(preemption={"withinClusterQueue": "LowerPriority"}), goes)
    watched.at(1, workload("low", 4, created=1, priority=5))
    watched.at(1.1, reported("low", why, message, priority=5))
    watched.at(5, workload("high", 4, created=5, priority=9))
    watched.at(9, finished("goes", 4))
    return watched


_FOR_VICTIMS = ("WaitingForPreemptedWorkloads", "none fits. Pending the preemption of 1 workload(s)")
_FOR_QUOTA = ("WaitingForQuota", "none fits")


@pytest.mark.parametrize("why", [_FOR_VICTIMS, _FOR_QUOTA])
def test_who_is_said_to_wait_for_victims_stands_first_and_others_do_not(why: tuple[str, str]) -> None:
    low, high = ("low", 5, 1), ("high", 9, 5)
    first, last = (low, high) if why is _FOR_VICTIMS else (high, low)
    right, wrong = full_of_one_who_goes(*why), full_of_one_who_goes(*why)
    for watched, order in ((right, (first, last)), (wrong, (last, first))):
        for second, (name, priority, created) in zip((9.3, 19), order, strict=True):
            watched.at(second, admitted(name, 4, created=created, priority=priority))
            watched.at(second + 9, finished(name, 4))
    assert right.end() == []
    assert wrong.end()
