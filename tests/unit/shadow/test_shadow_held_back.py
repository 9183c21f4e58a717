"""A shadow of a Kueue that admits nobody while somebody's pods are not ready."""

import make
from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND
from batchyard.scheduling.workload.pods_ready import set_pods_ready
from batchyard.shadow.state import BlockedPeriods, ShadowSettings
from unit.shadow.test_shadow_gathering import Watched, admitted
from watcher import holding, open_queue
from yard import workload


def held() -> Watched:
    """A queue of four with one admitted whose pods are not ready, and one who waits from the beginning on."""
    terms = ShadowSettings(held_back=BlockedPeriods())
    watched = Watched(*open_queue(), holding("starts", 1), terms=terms)
    watched.at(1, workload("waits", 1, created=1))
    return watched


def ready() -> Obj:
    return set_pods_ready(holding("starts", 1), True, make.NOW)


def test_who_is_held_back_is_not_told_of() -> None:
    assert held().end() == []


def test_who_is_admitted_once_all_are_ready_was_foreseen() -> None:
    watched = held()
    watched.at(40, ready())
    watched.at(41, admitted("waits", 1, created=1))
    assert watched.end() == []
    assert watched.follower.counts.agreed == {"admission": 1}


def test_who_is_not_admitted_when_all_are_ready_is_told_of() -> None:
    watched = held()
    watched.at(30, ready())
    assert watched.end() == ["team/waits"]
    assert watched.reported[0].at >= make.NOW + 30 * SECOND + ShadowSettings().patience


def test_the_one_kueue_stands_still_for_is_admitted_before_those_who_came_meanwhile() -> None:
    watched = held()
    watched.at(20, workload("better", 4, created=20, priority=9))
    watched.at(40, ready())
    watched.at(40.2, admitted("waits", 1, created=1))
    assert watched.end() == []


def test_without_it_all_of_that_is_told() -> None:
    watched = Watched(*open_queue(), holding("starts", 1))
    watched.at(1, workload("waits", 1, created=1))
    assert watched.end() == ["team/waits"]
