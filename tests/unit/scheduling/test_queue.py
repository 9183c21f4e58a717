"""Admitted Workloads of a ClusterQueue."""

from batchyard.scheduling.cluster_queue import AdmittedWorkload
from yard import SchedulerBench, queue


def test_workload_with_zero_usage_keeps_flavor_assignment() -> None:
    bench = SchedulerBench(queue("cq", 4))
    cq, fr = bench.snapshot.queues["cq"], bench.snapshot.flavor_resource_id("spot", "cpu")
    assert AdmittedWorkload("team/a", "a", cq, ((fr, 0),)).flavor_resources == {fr}
    assert AdmittedWorkload("team/a", "a", cq, (), frozenset({fr})).flavor_resources == {fr}


def test_candidates_are_sorted_by_priority_reservation_and_uid() -> None:
    bench = SchedulerBench(queue("cq", 9))
    for name, fields in (
        ("d", {"priority": 1}),
        ("c", {"since": 5}),
        ("b", {"since": 9}),
        ("a", {"since": 5}),
        ("e", {"priority": -1}),
    ):
        bench.hold(name, 1, "cq", **fields)
    assert [held.key[-1] for held in bench.snapshot.queues["cq"].ranked_workloads()] == ["e", "b", "a", "c", "d"]
    bench.snapshot.remove_holder("team/b")
    assert [held.key[-1] for held in bench.snapshot.queues["cq"].ranked_workloads()] == ["e", "a", "c", "d"]
