"""Admission fair sharing: the arithmetic of usage, the ledger, and the orders of pending Workloads and of victims."""

import math
from dataclasses import replace
from typing import Any

import pytest

import make
from admission_watch import AdmissionWatcher
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import DEFAULT_RULES, Admit
from batchyard.scheduling.fair_sharing.admission_fair_sharing import (
    AdmissionFairSharing,
    UsageLedger,
    add_amounts,
    multiply_amounts,
    order_victims,
)
from batchyard.scheduling.fair_sharing.usage_sampling import keep_usage_ledger
from batchyard.scheduling.gated_cycles import RefillTerms, create_cycle
from yard import SchedulerBench, group, preemption, queue, workload

SETTINGS = AdmissionFairSharing(half_life=10 * SECOND, sampling_interval=10 * SECOND)
CORE = 10**9
USAGE_BASED = {"admissionMode": "UsageBasedAdmissionFairSharing"}


# Arithmetic.


def test_usage_halves_in_each_half_life() -> None:
    assert [SETTINGS.decay_rate(seconds * SECOND) for seconds in (0, 10, 20)] == [0, 0.5, 0.75]
    decayed = SETTINGS.decayed_amounts({"cpu": 4 * CORE}, {"cpu": 2 * CORE, "memory": CORE}, 10 * SECOND)
    assert decayed == {"cpu": 3 * CORE, "memory": CORE // 2}


def test_half_life_of_zero_lets_nothing_decay() -> None:
    assert AdmissionFairSharing(half_life=0).decay_rate(MINUTE) == 0


def test_product_is_rounded_down_to_a_billionth_of_the_shortest_decimal() -> None:
    assert multiply_amounts({"cpu": 3, "memory": 10 * CORE}, 0.1) == {"cpu": 0, "memory": CORE}
    assert multiply_amounts({"cpu": 1}, 1 - 0.5 ** (1 / 2016)) == {"cpu": 0}


def test_entry_penalty_is_usage_of_one_interval() -> None:
    assert SETTINGS.entry_penalty({"cpu": 4 * CORE}) == {"cpu": 2 * CORE}


def test_sum_contains_resources_of_both() -> None:
    assert add_amounts({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": 1, "b": 5, "c": 4}


@pytest.mark.parametrize(
    ("amounts", "weight", "expected"),
    [
        ({"cpu": 4 * CORE, "gpu": 2 * CORE}, 1, 4 + 2 * 5),
        ({"cpu": 4 * CORE, "gpu": 2 * CORE}, 2, 7),
        ({"idle": 10 * CORE}, 1, 0),
        ({}, 0, math.inf),
        ({"cpu": CORE}, -1, math.inf),
    ],
)
def test_usage_is_weighted_by_resource_and_local_queue(amounts: dict[str, int], weight: float, expected: float) -> None:
    settings = AdmissionFairSharing(half_life=0, resource_weights={"gpu": 5.0, "idle": 0.0})
    assert settings.weighted_usage(amounts, weight) == expected


# The ledger, and the order of pending Workloads.


class FairWatcher(AdmissionWatcher):
    """A scheduler cache with a ledger: the ClusterQueue `cq` of 10 cpu, with the LocalQueues a and b."""

    def __init__(self, settings: AdmissionFairSharing = SETTINGS, **spec: Any) -> None:
        super().__init__()
        self.ledger: UsageLedger = keep_usage_ledger(self.index, settings)
        spec = {"admissionScope": USAGE_BASED, "groups": [group(spot={"cpu": 10, "memory": "10Gi", "pods": 9})], **spec}
        self.put(queue("cq", **spec), *(make.local_queue(name, cluster_queue="cq") for name in "ab"))
        self.put(make.namespace())

    def admit(self) -> list[str]:
        """Run a cycle, and count its admissions as the scheduler does before they are written."""
        cycle = Cycle(self.index.snapshot, SchedulingPolicy(), self.index.namespaces, 1)
        admissions = [each for each in cycle.run(self.index.heads(self.now)) if isinstance(each, Admit)]
        for each in admissions:
            self.index.workload_cache.dequeue(each.head.workload.key)
            self.index.workload_cache.assume(each, self.now, admitted=True)
        return [each.head.workload.name for each in admissions]

    def usages(self) -> tuple[float, float]:
        """Return the usage of a and of b."""
        return self.ledger.usage_of("team/a"), self.ledger.usage_of("team/b")


def admitted(obj: Obj, *, is_admitted: bool = True, **spec: Any) -> Obj:
    """A Workload with quota in `cq`."""
    (pod_set,) = obj["spec"]["podSets"]
    requests = pod_set["template"]["spec"]["containers"][0]["resources"]["requests"]
    assignment = {"name": "main", "count": 1, "flavors": dict.fromkeys(requests, "spot"), "resourceUsage": requests}
    conditions = [make.condition("QuotaReserved"), *([make.condition("Admitted")] if is_admitted else [])]
    status = {"admission": {"clusterQueue": "cq", "podSetAssignments": [assignment]}, "conditions": conditions}
    return {**obj, "spec": {**obj["spec"], **spec}, "status": status}


def test_local_queue_with_less_usage_comes_before_priority() -> None:
    watcher = FairWatcher()
    watcher.put(workload("a1", 2, queue="a"), workload("a2", queue="a", priority=9, created=1))
    watcher.put(workload("b1", queue="b", created=2))
    assert watcher.admit() == ["a2"]
    assert watcher.usages() == (1 / 2 + 1 / 2, 0)
    assert watcher.waiting() == ["b1", "a1"]
    assert watcher.admit() == ["b1"]


def test_other_cluster_queue_ignores_usage() -> None:
    watcher = FairWatcher(admissionScope={"admissionMode": "NoAdmissionFairSharing"})
    watcher.put(workload("a1", queue="a", priority=9), workload("a2", queue="a", priority=8), workload("b1", queue="b"))
    assert [watcher.admit(), watcher.admit(), watcher.admit()] == [["a1"], ["a2"], ["b1"]]
    assert watcher.usages() == (0, 0)


def test_usage_comes_before_preemptor() -> None:
    watcher = FairWatcher()
    watcher.put(workload("a1", queue="a"), workload("b1", queue="b", created=1))
    pending = watcher.index.queue_manager.pending["cq"]
    pending._preemptor = "team/a1"
    assert watcher.waiting() == ["a1", "b1"]
    watcher.put(workload("a0", queue="a", priority=1))
    pending._preemptor = "team/a0"
    assert watcher.admit() == ["a0"]
    pending._preemptor = "team/a1"
    assert (watcher.waiting(), pending.count_ahead_of("team/a1")) == (["b1", "a1"], 1)


def test_admission_settles_penalty_with_decayed_usage() -> None:
    watcher = FairWatcher()
    first, second = workload("a1", 4, queue="a"), workload("a2", 2, queue="a", created=1)
    for obj in (first, second):
        watcher.put(obj)
        watcher.admit()
        watcher.put(admitted(obj))
        watcher.now += 10 * SECOND
    entry = watcher.ledger.entry("team/a")
    assert entry is not None
    assert not entry.has_pending_penalty()
    # 4 cpu: the penalty 2 decays to 1, and the usage of 10 s adds half of 4 + 2; the penalty of a2 is 1.
    assert (entry.consumed["cpu"], entry.last_update) == (5 * CORE, make.at(10))


def test_weight_of_local_queue_changes_order_at_once() -> None:
    watcher = FairWatcher()
    watcher.put(workload("a1", queue="a"), workload("b1", queue="b", created=1))
    assert watcher.waiting() == ["a1", "b1"]
    watcher.put(make.local_queue("a", cluster_queue="cq", fairSharing={"weight": "0"}))
    assert watcher.waiting() == ["b1", "a1"]
    assert watcher.admit() == ["b1"]


@pytest.mark.parametrize(
    "change",
    [
        admitted(workload("a1", queue="a"), is_admitted=False, queueName="b"),
        workload("a1", queue="a", active=False),
        {**workload("a1", queue="a"), "status": {"conditions": [make.condition("Finished")]}},
    ],
    ids=["moved", "deactivated", "finished"],
)
def test_penalty_that_cannot_be_settled_is_dropped(change: Obj) -> None:
    watcher = FairWatcher()
    watcher.put(workload("a1", queue="a"))
    watcher.admit()
    assert watcher.usages()[0] == 1
    watcher.put(change)
    assert watcher.usages()[0] == 0


def test_deletion_and_rejected_write_drop_penalty() -> None:
    watcher = FairWatcher()
    for name in ("a1", "a2"):
        watcher.put(workload(name, queue="a"))
        watcher.admit()
    watcher.delete(scheme.WORKLOAD, "a1", "team")
    watcher.index.workload_cache.revert_assumption("team/a2")
    assert watcher.usages()[0] == 0
    assert watcher.waiting() == ["a2"]


def test_admission_does_not_restore_the_entry_of_a_deleted_local_queue() -> None:
    watcher = FairWatcher()
    watcher.put(workload("a1", queue="a"))
    watcher.admit()
    watcher.delete(scheme.LOCAL_QUEUE, "a", "team")
    watcher.put(admitted(workload("a1", queue="a")))
    assert watcher.ledger.entry("team/a") is None
    watcher.put(make.local_queue("a", cluster_queue="cq"))
    assert watcher.usages() == (0, 0)


@pytest.mark.parametrize(("interval", "samples"), [(1, 30), (SECOND // 2, 6), (SECOND, 3)])
def test_samples_are_at_least_a_tenth_of_a_second_apart(interval: int, samples: int) -> None:
    watcher = FairWatcher(AdmissionFairSharing(half_life=10 * SECOND, sampling_interval=interval))
    watcher.put(workload("a1", 4, queue="a"))
    watcher.admit()
    watcher.put(admitted(workload("a1", 4, queue="a")))
    times: list[int] = []
    sample = watcher.ledger.sample

    def record_sample(local_queue: str, now: int) -> None:
        times.append(now)
        sample(local_queue, now)

    watcher.ledger.sample = record_sample  # type: ignore[method-assign]
    watcher.ledger.take_due_samples("team/a", watcher.now + 3 * SECOND)
    assert len(times) == samples


def test_many_overdue_samples_are_taken_together() -> None:
    together, apart = (FairWatcher(AdmissionFairSharing(MINUTE, SECOND)) for _ in range(2))
    for watcher in (together, apart):
        watcher.put(workload("a1", 4, queue="a"))
        watcher.admit()
        watcher.put(admitted(workload("a1", 4, queue="a")))
    for second in range(0, 5000, 500):
        apart.ledger.take_due_samples("team/a", apart.now + second * SECOND)
    together.ledger.take_due_samples("team/a", together.now + 4500 * SECOND)
    assert together.usages()[0] == pytest.approx(apart.usages()[0])


# FairSharingRefill.


def refilled(**terms: Any) -> list[str]:
    """The Workloads that one cycle admits, in order; the first is of LocalQueue a."""
    watcher = FairWatcher()
    watcher.put(*(workload(name, queue=name[0], created=n) for n, name in enumerate(("a1", "a2", "b1"))))
    policy = SchedulingPolicy(fair_sharing=True, rules=replace(DEFAULT_RULES, refills_heads=True))
    heads = watcher.index.heads(watcher.now)
    cycle = Cycle(watcher.index.snapshot, policy, watcher.index.namespaces, 1)
    refill = RefillTerms(**{"ledger": watcher.ledger, **terms})
    cycle = create_cycle(cycle, watcher.index.queue_manager, heads, refill)
    return [each.head.workload.name for each in cycle.run(heads) if isinstance(each, Admit)]


def test_refill_counts_penalties_of_the_cycle() -> None:
    assert refilled() == ["a1", "b1", "a2"]


def test_refill_without_ledger_follows_usage_before_the_cycle() -> None:
    assert refilled(ledger=None) == ["a1", "a2", "b1"]


def test_refill_ends_at_a_workload_whose_write_is_in_flight() -> None:
    assert refilled(may_join=lambda head: head.workload.name != "a2") == ["a1", "b1"]
    assert refilled(may_join=lambda head: head.workload.name != "b1") == ["a1"]


def test_evicted_workload_keeps_penalty() -> None:
    watcher = FairWatcher()
    watcher.put(workload("a1", queue="a"))
    watcher.admit()
    watcher.put(admitted(workload("a1", queue="a"), is_admitted=False))
    watcher.put(workload("a1", queue="a"))
    assert watcher.usages()[0] == 1
    watcher.admit()
    assert watcher.usages()[0] == 1


@pytest.mark.parametrize(("anchored", "consumed"), [(False, {}), (True, {"cpu": 2 * CORE, "pods": CORE // 2})])
def test_gate_settles_penalty_at_quota_reservation(anchored: bool, consumed: dict[str, int]) -> None:
    settings = AdmissionFairSharing(10 * SECOND, 10 * SECOND, is_anchored_at_reservation=anchored)
    watcher = FairWatcher(settings)
    watcher.put(workload("a1", 4, queue="a"))
    watcher.admit()
    watcher.put(admitted(workload("a1", 4, queue="a"), is_admitted=False))
    entry = watcher.ledger.entry("team/a")
    assert entry is not None
    assert {resource: amount for resource, amount in entry.consumed.items() if amount} == consumed
    assert entry.has_pending_penalty() is not anchored


# The order of victims.


def victims(*rows: tuple[str, str, int]) -> tuple[list[AdmittedWorkload], SchedulerBench]:
    """Return Workloads with these names, LocalQueues and priorities in the usage-based queue `q`, or in `other`."""
    bench = SchedulerBench(
        queue("q", 9, admissionScope=USAGE_BASED, preemption=preemption("LowerPriority")),
        queue("other", 9, admissionScope=USAGE_BASED),
    )
    queues = bench.snapshot.queues
    holders = [
        AdmittedWorkload(name, name, queues["other" if name.startswith("o") else "q"], (), priority=priority)
        for name, _, priority in rows
    ]
    for holder, (_, local_queue, _) in zip(holders, rows, strict=True):
        holder.local_queue = local_queue
    return holders, bench


def ordered(holders: list[AdmittedWorkload], bench: SchedulerBench, **usages: float) -> list[str]:
    own_queue = bench.snapshot.queues["q"]
    return [holder.key for holder in order_victims(holders, own_queue, lambda name: usages[name.partition("/")[2]])]


def test_victims_of_local_queue_with_higher_usage_come_first() -> None:
    holders, bench = victims(("low", "team/a", 1), ("high", "team/b", 5), ("middle", "team/b", 3), ("o", "team/a", 9))
    assert ordered(holders, bench, a=1.0, b=2.0) == ["o", "middle", "high", "low"]
    assert ordered(holders, bench, a=1.0, b=1.0) == ["o", "low", "middle", "high"]
    holders[1].evicted = True
    assert ordered(holders, bench, a=1.0, b=1.0) == ["high", "o", "low", "middle"]


def test_local_queues_of_equal_names_are_not_compared() -> None:
    holders, bench = victims(("low", "team/a", 1), ("high", "other/a", 5))
    usages = {"team/a": 0.0, "other/a": 1.0}
    result = order_victims(holders, bench.snapshot.queues["q"], usages.__getitem__)
    assert [holder.key for holder in result] == ["low", "high"]
