"""Warnings about the immediate effects of a change of queues."""

from dataclasses import replace
from typing import Any

import make
from batchyard.api.meta import Obj, key_of
from batchyard.sim.forecast import dry_run_warnings
from batchyard.sim.state import State
from unit.sim.forks_make import queue, state, workload

THERE = [*queue(2), workload("a", 30), workload("b", 30, 1), workload("c", 30, 2), workload("d", 30, 3)]


def warnings(found: State, changed: Obj, *, sees: bool = True) -> list[str]:
    return dry_run_warnings(found, changed, lambda _: sees)


def test_quota_increase_warns_of_workloads_admitted_at_once() -> None:
    assert warnings(state(THERE, 10), queue(3)[1]) == ["team/c would be admitted at once"]
    assert warnings(state(THERE, 10), queue(4)[1]) == ["team/c, team/d would be admitted at once"]


def test_quota_decrease_warns_of_workloads_that_no_longer_fit() -> None:
    (reported,) = warnings(state(THERE, 10), queue(1)[1])
    over, who = reported.split(": ")
    assert over == "ClusterQueue cq would use 1 cpu of flavor f more than its quota allows"
    assert who == "team/b would no longer fit; it admits no other Workload"


def test_hold_and_drain_warns_of_evicted_workloads() -> None:
    (reported,) = warnings(state(THERE, 10), queue(2, stopPolicy="HoldAndDrain")[1])
    assert reported == "team/a, team/b would be evicted at once"


def test_warning_hides_names_of_unreadable_workloads() -> None:
    assert warnings(state(THERE, 10), queue(4)[1], sees=False) == ["2 Workloads would be admitted at once"]


def test_label_change_gives_no_warning() -> None:
    changed = queue(2)[1]
    changed["metadata"]["labels"] = {"a": "b"}
    assert warnings(state(THERE, 10), changed) == []


def test_stopped_local_queue_warns_of_workloads_not_admitted() -> None:
    waiting = state(THERE, 10)
    freed = {key: obj for key, obj in waiting.objects.items() if key.name != "a"}
    assert dry_run_warnings(replace(waiting, objects=freed), _local("Hold"), lambda _: True) == [
        "team/c would be admitted at once without the change, but not with it"
    ]


def test_quota_above_node_capacity_is_reported() -> None:
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**make.metadata("n", None), "resourceVersion": "99"},
        "spec": {},
        "status": {"allocatable": {"cpu": "3"}, "capacity": {"cpu": "3"}},
    }
    result = state(queue(2), 10)
    there = replace(result, revision=99, objects={**result.objects, key_of(node): node})
    assert dry_run_warnings(there, queue(3)[1], lambda _: True) == []
    (reported,) = dry_run_warnings(there, queue(4)[1], lambda _: True)
    assert reported == "quota for cpu in flavor f would be 4 in all; the existing nodes have 3"


def _local(stop: str) -> Obj:
    local = queue(2)[2]
    return {**local, "spec": {**local["spec"], "stopPolicy": stop}}
