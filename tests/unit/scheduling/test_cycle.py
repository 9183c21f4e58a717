"""The decision and reason of a cycle for each head, and interactions of decisions in one cycle."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.scheduling.decisions import Admit, Head, Preempt, StayPending
from batchyard.scheduling.messages import RequeueReason
from yard import SchedulerBench, cohort, group, head, head_of, line, preemption, queue, quota, workload

WILL_FIT = (
    "Workload has overlapping preemption targets with another workload, but will fit after these preemptions complete"
)
NO_LONGER = "Workload no longer fits after processing another workload"
SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, {0} more needed"


# Inadmissible heads.


def pending_decision(bench: SchedulerBench, obj: Obj) -> tuple[str, str, RequeueReason]:
    decision = bench.wait(obj)
    return decision.why.reason, decision.why.message, decision.requeue_reason


def test_missing_cluster_queue_is_reported() -> None:
    expected = ("Misconfigured", "ClusterQueue cq not found", RequeueReason.GENERIC)
    assert pending_decision(SchedulerBench(), workload()) == expected


def test_inactive_cluster_queue_is_reported() -> None:
    bench = SchedulerBench(queue("cq", 4))
    bench.snapshot.queues["cq"].active = False
    assert pending_decision(bench, workload()) == ("Suspended", "ClusterQueue cq is inactive", RequeueReason.GENERIC)


def test_cohort_cycle_makes_its_queues_inactive() -> None:
    bench = SchedulerBench(cohort("x", 4, parent="y"), cohort("y", 4, parent="x"), queue("cq", 4, cohort="x"))
    assert pending_decision(bench, workload())[:2] == ("Suspended", "ClusterQueue cq is inactive")
    bench.put(cohort("y", 4))
    assert bench.decide(workload(cpu=12)) == ["wl: main 1 cpu=spot"]


def test_missing_namespace_is_reported() -> None:
    bench = SchedulerBench(queue("cq", 4))
    bench.namespaces.clear()
    message = 'workload namespace "team" does not exist: Namespace "team" not found'
    assert pending_decision(bench, workload()) == ("Misconfigured", message, RequeueReason.GENERIC)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        pytest.param({}, True, id="empty: all"),
        pytest.param(None, False, id="absent: none"),
        pytest.param({"matchLabels": {"kubernetes.io/metadata.name": "team"}}, True, id="by name"),
        pytest.param({"matchLabels": {"tier": "gold"}}, False, id="by a missing label"),
        pytest.param({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True, id="by absence"),
    ],
)
def test_namespace_must_match_selector(selector: Obj | None, *, matches: bool) -> None:
    bench = SchedulerBench(queue("cq", 4, namespaceSelector=selector))
    if matches:
        assert bench.decide(workload()) == ["wl: main 1 cpu=spot"]
        return
    message = "workload namespace doesn't match ClusterQueue selector"
    assert pending_decision(bench, workload()) == ("Misconfigured", message, RequeueReason.NAMESPACE_MISMATCH)


def limited_container(requests: Obj, limits: Obj, **spec: Any) -> Obj:
    """A container with requests and limits."""
    return {"name": "c", "image": "i", "resources": {"requests": requests, "limits": limits}, **spec}


def test_requests_above_limits_are_reported() -> None:
    containers = [limited_container({"cpu": "2", "memory": "1Gi"}, {"cpu": "1", "memory": "512Mi"})]
    pod_sets = [{"name": "main", "count": 1, "template": {"spec": {"containers": containers}}}]
    message = (
        "resources validation failed: spec.podSets[0].template.spec.containers[0]: Invalid value:"
        ' ["cpu","memory"]: requests must not exceed its limits'
    )
    expected = ("Misconfigured", message, RequeueReason.GENERIC)
    assert pending_decision(SchedulerBench(queue("cq", 4)), workload(pod_sets=pod_sets)) == expected


def test_all_containers_with_requests_above_limits_are_reported() -> None:
    above = limited_container({"cpu": "2"}, {"cpu": "1"})
    spec = {"initContainers": [above], "containers": [limited_container({"cpu": "1"}, {"cpu": "1"}), above]}
    pod_sets = [{"name": "main", "count": 1, "template": {"spec": spec}}]
    message = pending_decision(SchedulerBench(queue("cq", 4)), workload(pod_sets=pod_sets))[1]
    place = 'spec.podSets[0].template.spec.{0}: Invalid value: ["cpu"]: requests must not exceed its limits'
    faults = ", ".join(place.format(p) for p in ("initContainers[0]", "containers[1]"))
    assert message == f"resources validation failed: [{faults}]"


def test_first_obstacle_is_reported() -> None:
    bench = SchedulerBench(queue("cq", 4, namespaceSelector=None))
    bench.snapshot.queues["cq"].active = False
    bench.namespaces.clear()
    assert pending_decision(bench, workload())[0] == "Suspended"


def test_last_assignment_is_kept_for_inadmissible_head() -> None:
    bench = SchedulerBench(queue("cq", 4))
    last = bench.wait(workload(cpu=9)).last_assignment
    bench.snapshot.queues["cq"].active = False
    assert bench.wait(head_of(workload(cpu=9), last)).last_assignment is last


# Reasons to wait and requeue reasons.


@pytest.mark.parametrize(
    ("cpu", "held", "rules", "reason", "requeue"),
    [
        pytest.param(9, 0, {}, "ExceedsMaxQuota", RequeueReason.NO_FIT, id="too large"),
        pytest.param(4, 2, {}, "WaitingForQuota", RequeueReason.PREEMPTION_NO_CANDIDATES, id="no candidates"),
    ],
)
def test_pending_decision_contains_requeue_reason(
    cpu: int, held: int, rules: dict[str, Any], reason: str, requeue: RequeueReason
) -> None:
    bench = SchedulerBench(queue("cq", 4, **rules))
    bench.hold("x", held)
    decision = bench.wait(workload(cpu=cpu))
    assert (decision.why.reason, decision.requeue_reason) == (reason, requeue)


def test_borrowing_without_preemption_is_no_fit() -> None:
    bench = SchedulerBench(queue("cq", 2, cohort="all"), queue("other", 4, cohort="all"))
    bench.hold("x", 4, "other")
    decision = bench.wait(workload(cpu=3))
    assert (decision.why.reason, decision.requeue_reason) == ("WaitingForQuota", RequeueReason.NO_FIT)


def test_preemptor_is_requeued_as_pending_preemption() -> None:
    bench = SchedulerBench(queue("cq", 4, preemption=preemption("LowerPriority")))
    bench.hold("x", 4, priority=-1)
    decision = bench.preemption(workload())
    assert (decision.requeue_reason, decision.last_assignment) == (RequeueReason.PENDING_PREEMPTION, None)


def test_workload_without_pod_sets_is_no_fit() -> None:
    obj = make.workload("wl", queue="cq")
    bare = {**obj, "spec": {**obj["spec"], "podSets": []}}
    assert SchedulerBench(queue("cq", 4)).wait(bare).requeue_reason is RequeueReason.NO_FIT


def test_cycle_without_heads_returns_no_decisions() -> None:
    assert SchedulerBench(queue("cq", 4)).cycle() == []


def test_cycle_restores_snapshot() -> None:
    bench = rivals()
    before = {name: list(bench.node(name).usage) for name in ("a", "b", "all")}
    assert len(bench.cycle(head("a", 3), head("b", 3))) == 2
    assert {name: list(bench.node(name).usage) for name in before} == before
    assert list(bench.snapshot.queues["v"].workloads) == ["team/x"]


# Preemptions of one cycle.


def rivals(**spec: Any) -> SchedulerBench:
    """Queues a and b of 3 cpu each may reclaim; Workload x of v holds all six cpu."""
    rules = preemption("LowerPriority", "Any")
    return with_held_quota(
        SchedulerBench(
            queue("a", 3, cohort="all", preemption=rules, **spec),
            queue("b", 3, cohort="all", preemption=rules, **spec),
            queue("v", 0, cohort="all"),
        )
    )


def with_held_quota(bench: SchedulerBench) -> SchedulerBench:
    bench.hold("x", 6, "v")
    return bench


def test_head_waits_for_overlapping_preemption_if_it_fits_after_it() -> None:
    bench = rivals()
    first, second = bench.cycle(head("a", 3), head("b", 3))
    assert line(first) == "a preempts x (InCohortReclamation)"
    assert isinstance(second, StayPending)
    assert (second.why.reason, second.why.message) == ("WaitingForPreemptedWorkloads", WILL_FIT)
    assert (second.requeue_reason, second.last_assignment) == (RequeueReason.PENDING_PREEMPTION, None)


def test_head_preempts_other_victims_if_overlapping_victims_are_not_enough() -> None:
    bench = rivals()
    bench.hold("x", 3, "v")
    bench.hold("y", 3, "v", since=-1)
    assert bench.decide(head("a", 3), head("b", 3)) == [
        "a preempts x (InCohortReclamation)",
        "b preempts y (InCohortReclamation)",
    ]


def test_head_without_other_victims_waits() -> None:
    bench = SchedulerBench(
        cohort("all", 4),
        queue("a", 0, cohort="all", preemption=preemption("Never", "LowerPriority", {"policy": "LowerPriority"})),
        queue("b", 0, cohort="all", preemption=preemption("Never", "LowerPriority", {"policy": "LowerPriority"})),
        queue("v", 0, cohort="all"),
    )
    bench.hold("x", 4, "v", priority=-1)
    assert bench.decide(head("a", 4), head("b", 4)) == [
        "a preempts x (InCohortReclaimWhileBorrowing)",
        "b waits (WaitingForQuota): " + SHORT.format(4),
    ]


def test_second_assignment_uses_flavors_of_nomination() -> None:
    rules = preemption("Never", "LowerPriority", {"policy": "LowerPriority"})
    bench = SchedulerBench(
        queue("a", groups=[group(one={"cpu": 3}, two={"cpu": 3})], cohort="all", preemption=rules),
        queue("b", groups=[group(one={"cpu": 2}, two={"cpu": 2})], cohort="all", preemption=rules),
        queue("v", groups=[group(one={"cpu": 0}, two={"cpu": 0})], cohort="all"),
    )
    bench.hold("x", 5, "v", flavor="one", priority=-1)
    bench.hold("y", 5, "v", flavor="two", priority=-1)
    first, second = bench.cycle(head("a", 3), head("b", 3))
    assert line(first) == "a preempts x (InCohortReclamation)"
    assert line(second) == (
        "b waits (WaitingForQuota): couldn't assign flavors to pod set main: insufficient unused quota for cpu in"
        " flavor one, 1 more needed, skipping flavor two as it is not found in the nomination mapping for resource cpu"
    )


def test_quota_of_victims_is_reserved_for_preemptor() -> None:
    bench = SchedulerBench(
        queue("a", 4, cohort="all", preemption=preemption("LowerPriority")), queue("b", 0, cohort="all")
    )
    bench.hold("x", 3, "a", priority=-1)
    assert bench.decide(head("a", 3, priority=1), head("b", 1)) == [
        "a preempts x (InClusterQueue)",
        "b: main 1 cpu=spot",
    ]
    assert bench.decide(head("a", 4, priority=1), head("b", 1)) == [
        "a preempts x (InClusterQueue)",
        "b waits (WaitingForQuota): " + NO_LONGER,
    ]


def test_victims_free_no_quota_in_other_tree() -> None:
    bench = SchedulerBench(
        queue("a", 4, preemption=preemption("LowerPriority")), queue("b", 4, preemption=preemption("LowerPriority"))
    )
    bench.hold("x", 4, "a", priority=-1)
    bench.hold("y", 4, "b", priority=-1)
    assert bench.decide(head("a", 2), head("b", 2)) == [
        "a preempts x (InClusterQueue)",
        "b preempts y (InClusterQueue)",
    ]


# Quota reserved for heads that cannot reclaim it.


def lender(own: Any = 4, reclaim: str = "Never", **spec: Any) -> SchedulerBench:
    """Queue a uses 2 cpu of its quota; b has no quota."""
    bench = SchedulerBench(
        queue("a", own, cohort="all", preemption=preemption("Never", reclaim), **spec),
        queue("b", 0, cohort="all"),
        queue("c", 2, cohort="all"),
    )
    bench.hold("x", 2, "a", priority=9)
    return bench


@pytest.mark.parametrize(
    ("reclaim", "outcome"),
    [
        pytest.param("Never", NO_LONGER, id="queue without reclamation keeps its quota"),
        pytest.param("LowerPriority", NO_LONGER, id="queue with conditional reclamation keeps its quota"),
        pytest.param("Any", "", id="queue with unconditional reclamation lends its quota"),
    ],
)
def test_waiting_head_reserves_quota_that_it_cannot_reclaim(reclaim: str, outcome: str) -> None:
    bench = lender(reclaim=reclaim)
    bench.hold("y", 2, "c")
    waits, borrows = bench.cycle(head("a", 4), head("b", 2))
    assert line(waits) == "a waits (WaitingForQuota): " + SHORT.format(2)
    assert isinstance(borrows, StayPending if outcome else Admit)
    if outcome:
        assert line(borrows) == "b waits (WaitingForQuota): " + outcome


def test_head_within_nominal_quota_reserves_all_requests() -> None:
    bench = lender()
    bench.hold("y", 3, "c", priority=9)
    assert bench.decide(head("a", 2), head("b", 1)) == [
        "a waits (WaitingForQuota): " + SHORT.format(1),
        "b waits (WaitingForQuota): " + NO_LONGER,
    ]


def test_borrowing_head_reserves_all_requests() -> None:
    bench = borrower(borrowing=None)
    assert [d.split(" (")[0] for d in bench.decide(head("a", 3, priority=5), head("b", 1))] == ["a waits", "b waits"]


def test_borrowing_head_reserves_at_most_borrowing_limit() -> None:
    bench = borrower(borrowing=3)
    assert [d.split(" (")[0] for d in bench.decide(head("a", 3, priority=5), head("b", 1))] == ["a waits", "b waits"]
    bench = borrower(borrowing=2, held=2)
    assert bench.decide(head("a", 2, priority=5), head("b", 1))[1] == "b: main 1 cpu=spot"


def borrower(borrowing: int | None, held: int = 0) -> SchedulerBench:
    """Queue a may preempt while borrowing but finds no candidate; 2 cpu of 6 are free."""
    rules = preemption("Never", "LowerPriority", {"policy": "LowerPriority"})
    bench = SchedulerBench(
        cohort("all", 6),
        queue("a", quota(0, borrowing=borrowing), cohort="all", preemption=rules),
        queue("b", 0, cohort="all"),
        queue("v", 0, cohort="all"),
    )
    bench.hold("mine", held, "a", priority=9)
    bench.hold("x", 4 - held, "v", priority=9)
    return bench


def test_decision_contains_its_head() -> None:
    bench = SchedulerBench(queue("cq", 4, preemption=preemption("LowerPriority")))
    given = head_of(workload())
    decision = bench.cycle(given)[0]
    assert isinstance(decision, Admit)
    assert decision.head is given
    bench.hold("x", 4, priority=-1)
    assert isinstance(bench.cycle(Head(given.workload, "cq"))[0], Preempt)


@pytest.mark.parametrize(("fair_sharing", "reclaim"), [(False, "Any"), (False, "LowerPriority"), (True, "Never")])
def test_borrower_preempts_no_workload_without_borrow_within_cohort(reclaim: str, *, fair_sharing: bool) -> None:
    rules = preemption("LowerPriority", reclaim)
    bench = SchedulerBench(
        queue("cq", 2, cohort="all", preemption=rules), queue("other", 4, cohort="all"), fair_sharing=fair_sharing
    )
    bench.hold("x", 5, "other", priority=-1)
    assert bench.wait(workload(cpu=3)).requeue_reason is RequeueReason.NO_FIT


def test_fair_sharing_lets_borrower_search_candidates() -> None:
    rules = preemption("Never", "LowerPriority")
    bench = SchedulerBench(
        queue("cq", 2, cohort="all", preemption=rules), queue("other", 4, cohort="all"), fair_sharing=True
    )
    bench.hold("x", 5, "other")
    assert bench.wait(workload(cpu=3)).requeue_reason is RequeueReason.PREEMPTION_NO_CANDIDATES


def test_waiting_head_reserves_no_more_than_its_requests() -> None:
    groups = [group(spot={"cpu": 6}), group(v100={"gpu": 1})]
    nothing = [group(spot={"cpu": 0}), group(v100={"gpu": 0})]
    bench = SchedulerBench(queue("a", groups=groups, cohort="all"), queue("b", groups=nothing, cohort="all"))
    bench.hold("x", 0, "b", usage={("v100", "gpu"): 1})
    asks = workload("a", queue="a", pod_sets=[make.pod_set(requests={"cpu": 2, "gpu": 1})])
    assert [reported.split(" (")[0] for reported in bench.decide(asks, head("b", 4))] == [
        "a waits",
        "b: main 1 cpu=spot",
    ]
    assert [reported.split(" (")[0] for reported in bench.decide(asks, head("b", 5))] == ["a waits", "b waits"]
