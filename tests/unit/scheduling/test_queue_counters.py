"""Counters of reserved and admitted Workloads and usage by queue."""

from batchyard.scheduling.snapshot import QueueCounter, QueueCounters
from yard import SchedulerBench, queue


def test_reserving_and_admitted_workloads_are_counted() -> None:
    bench, tally = SchedulerBench(queue("cq", 9)), QueueCounters()
    admitted, reserving = bench.hold("a", 3), bench.hold("b", 1)
    reserving.is_admitted = False
    for held in (admitted, reserving):
        tally.add("cq", held)
    fr = bench.snapshot.flavor_resource_id("spot", "cpu")
    assert tally.get("cq") == QueueCounter(2, 1, {fr: 4000}, {fr: 3000})
    tally.remove("cq", admitted)
    count = tally.get("cq")
    assert (count.reserving, count.admitted, count.reserved_usage[fr], count.admitted_usage[fr]) == (1, 0, 1000, 0)


def test_unknown_queue_has_zero_counts() -> None:
    bench, tally = SchedulerBench(queue("cq", 9)), QueueCounters()
    assert tally.get("nowhere") == QueueCounter()
    tally.remove("nowhere", bench.hold("a", 1))
    assert tally.get("nowhere") == QueueCounter()


def test_forgotten_queue_restarts_at_zero() -> None:
    bench, tally = SchedulerBench(queue("cq", 9)), QueueCounters()
    tally.add("cq", bench.hold("a", 1))
    tally.forget("cq")
    tally.forget("cq")
    assert tally.get("cq").reserving == 0
