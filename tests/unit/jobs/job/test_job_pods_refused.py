"""Pods of Jobs that are refused: who is told, and when it is tried again."""

import make
from batchyard.api.errors import Forbidden, NamespaceTerminating, RefusedForNow
from batchyard.api.meta import Obj
from unit.client.job_pods_make import JobStage


class Door:
    """Lets so many pods in."""

    def __init__(self, error: type[Forbidden], lets_in: int = 0) -> None:
        self.error = error
        self.lets_in = lets_in
        self.came = 0

    def __call__(self, pod: Obj) -> None:
        self.came += 1
        if not self.lets_in:
            raise self.error("no")
        self.lets_in -= 1


def job_stage(door: Door, parallelism: int = 1) -> JobStage:
    return JobStage(make.job(queue=None, suspend=False, parallelism=parallelism, completions=parallelism), admit=door)


def test_the_job_tells_of_each_pod_that_came_and_once_of_those_that_did_not() -> None:
    stage = job_stage(Door(RefusedForNow, lets_in=2), parallelism=5)
    reported = [(event.reason, event.message) for event in stage.events]
    assert [reason for reason, _ in reported[:3]] == ["SuccessfulCreate", "SuccessfulCreate", "FailedCreate"]
    assert reported[2][1] == "Error creating: no"
    assert len(stage.pods()) == 2


def test_what_is_refused_for_now_is_tried_again_later_and_later() -> None:
    door = Door(RefusedForNow)
    stage = job_stage(door)
    tries = []
    for second in range(9):
        stage.run(second)
        tries.append(door.came)
    assert tries[-1] > tries[0]
    assert len(dict.fromkeys(tries)) < 6
    door.lets_in = 1
    stage.run(100)
    assert len(stage.pods()) == 1


def test_what_is_forbidden_is_not_tried_again_for_time_alone() -> None:
    door = Door(Forbidden)
    stage = job_stage(door)
    came = door.came
    stage.run(100)
    assert door.came == came


def test_that_the_namespace_goes_is_no_news() -> None:
    assert job_stage(Door(NamespaceTerminating)).reasons() == []


def test_of_very_many_pods_some_are_made_at_a_time_until_all_are_there() -> None:
    stage = job_stage(Door(RefusedForNow, lets_in=1200), parallelism=1200)
    assert (len(stage.pods()), stage.status["active"]) == (1200, 1200)


def test_of_very_many_pods_only_some_are_tried_where_they_are_refused() -> None:
    door = Door(RefusedForNow)
    stage = job_stage(door, parallelism=2_000_000_000)
    assert door.came <= 500
    stage.run(100)
    assert door.came <= 500 * 20
