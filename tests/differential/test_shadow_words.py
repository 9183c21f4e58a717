"""Whatever upstream could do wrong is found, and told in words by which one finds out why."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.metrics.forks import ShadowMetrics
from batchyard.scheduling.workload import lifecycle
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType
from batchyard.shadow.state import ShadowSettings
from batchyard.shadow.steps import LifecycleCheck
from batchyard.sim.scenario import Scenario
from differential import planted
from differential.recorded import packed_cases
from differential.shadowed import Shadowed, shadowed
from differential.upstream import Record, read_case
from yard import workload


def case(name: str) -> tuple[Scenario, list[Record]]:
    return read_case(name, *packed_cases()[name])


def reported(scenario: Scenario, changed: tuple[list[Record], Record]) -> tuple[Divergence, Shadowed]:
    """What is told of a planted parting, and all; it is the first, and is counted."""
    found = shadowed(scenario, changed[0])
    first = found.findings[0]
    assert first.workload == changed[1]["workload"]
    assert found.counts.parted[first.parting.value] > 0
    return first, found


def test_one_who_is_admitted_out_of_turn_is_told_with_who_is_before_him_and_why() -> None:
    scenario, log = case("single-5")
    first, found = reported(scenario, planted.out_of_turn(scenario, log))
    assert (first.parting, len(found.findings)) == (DivergenceType.ADMITTED, 1)
    assert "it is not its turn: 5 before it in cq-1, team/wl-010 first (priority 100, queued 2026-" in first.message
    assert first.predicted["reason"] == "NotItsTurn"


def test_another_reason_is_told_with_ours() -> None:
    scenario, log = case("preempt-1")
    first, found = reported(scenario, planted.another_reason(log))
    assert (first.parting, len(found.findings)) == (DivergenceType.VICTIMS, 1)
    assert first.message.endswith("(InCohortReclamation); we preempt it as InClusterQueue")


def test_another_number_of_pods_is_told_with_ours() -> None:
    scenario, log = case("partial-37")
    first, _ = reported(scenario, planted.fewer_pods(log, "team/wl-001", 8))
    assert first.parting is DivergenceType.FLAVORS
    assert "with 7 of workers on f0; we admit it with 8 of workers on f0" in first.message


def test_a_victim_of_another_queue_is_told_with_what_decides_between_both() -> None:
    scenario, log = case("fair-49")
    first, _ = reported(scenario, planted.victim_of_another_queue(log))
    assert first.parting is DivergenceType.VICTIMS
    assert "we preempt team/wl-008 (cq-2, priority 0, quota since " in first.message
    assert "not team/wl-002 (cq-1, priority 5, quota since " in first.message


def test_one_who_is_preempted_for_nobody_is_told_with_what_the_preemptor_does() -> None:
    scenario, log = case("cohort-1")
    first, _ = reported(scenario, planted.preempted_for_nobody(log))
    assert first.parting is DivergenceType.PREEMPTED
    assert first.message.endswith("already, and waits for nothing")


def test_an_admission_in_a_queue_in_which_it_does_not_wait_is_told_with_the_one_in_which_it_does() -> None:
    scenario, log = case("cohort-1")
    first, _ = reported(scenario, planted.in_another_queue(log))
    assert first.parting is DivergenceType.FLAVORS
    assert "admitted in cq-0 with 1 of main on f0; it waits in cq-2, and we admit it" in first.message


def test_a_preemption_that_does_not_come_is_told_with_how_long_it_is_missed() -> None:
    scenario, log = case("preempt-1")
    changed, first = planted.not_preempted(log)
    found = next(each for each in shadowed(scenario, changed).findings)
    assert (found.parting, found.workload) == (DivergenceType.NOT_PREEMPTED, first["by"])
    assert f"for {ShadowSettings().patience // SECOND} s; we preempt {first['workload']} for it" in found.message


def test_that_kueue_shares_fairly_and_the_shadow_was_not_told_so_is_told() -> None:
    scenario, log = case("fair-1")
    found = shadowed(scenario, log, is_told_of_fair_sharing=False).findings
    assert any("begin the shadow with --fair-sharing" in look for each in found for look in each.look)


def test_each_is_told_with_where_to_look() -> None:
    scenario, log = case("cohort-1")
    found = shadowed(scenario, planted.another_flavor(scenario, log)[0]).findings[0]
    queue, one, kueue = found.look
    assert queue.startswith("kubectl get clusterqueue cq-2 -o yaml  # order of flavors, flavorFungibility")
    assert one == "kubectl get workload -n team wl-001 -o yaml"
    assert found.since is not None
    assert f"--since-time={format_time((found.since - 10 * SECOND) // SECOND * SECOND)} | grep wl-001" in kueue
    assert [line.strip().partition(":")[0] for line in found.text().splitlines()[1:]] == ["since", *["look"] * 3]
    assert found.document()["look"] == list(found.look)


#: What follows from single Workloads, without any order: their queues, and how one of them changes.


def obj(kind: str, name: str, spec: Obj, namespace: str = "") -> Obj:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def added(kind: str, what: Obj) -> WatchEvent:
    metadata = what["metadata"]
    return WatchEvent(EventType.ADDED, Key(kind, metadata["namespace"], metadata["name"]), what, None, 1)


WORKLOAD = workload("w", 1, queue="jobs")
AT = Key(scheme.WORKLOAD, WORKLOAD["metadata"]["namespace"], "w")


def after(states: Sequence[Obj], stop: str = "None") -> tuple[list[Divergence], ComparisonCounts]:
    """What is told of a Workload that changes so, in a queue that is stopped or not, until it was waited for."""
    found: list[Divergence] = []
    steps = LifecycleCheck(ShadowSettings(), lambda _: True)
    queues = [
        added(scheme.CLUSTER_QUEUE, obj("ClusterQueue", "cq", {"stopPolicy": stop})),
        added(scheme.LOCAL_QUEUE, obj("LocalQueue", "jobs", {"clusterQueue": "cq"}, AT.namespace)),
    ]
    steps.recall([*queues, added(scheme.WORKLOAD, states[0])], 0)
    for second, (old, new) in enumerate(pairwise(states), 1):
        found += steps.observe([WatchEvent(EventType.MODIFIED, AT, new, old, second)], second * SECOND)
    found += steps.observe((), 100 * SECOND)
    return found, steps.counts


def holding(now: Instant = 0) -> Obj:
    admission = {"clusterQueue": "cq", "podSetAssignments": []}
    return lifecycle.reserve_quota(WORKLOAD, admission, now, admitted=True)


def stated(before: Obj, kind: str, message: str) -> Obj:
    """The same Workload, of which a condition says something else."""
    conditions = [
        {**each, "message": message} if each["type"] == kind else each for each in before["status"]["conditions"]
    ]
    return {**before, "status": {**before["status"], "conditions": conditions}}


def test_a_message_that_tells_of_another_reason_is_found() -> None:
    evicted = lifecycle.evict(
        holding(),
        reason="Preempted",
        message="to accommodate another due to reclamation within the cohort; x",
        now=0,
        preempted="InClusterQueue",
    )
    (found,), _ = after([holding(), evicted])
    assert found.parting is DivergenceType.MESSAGE
    assert "preempted due to reclamation within the cohort; for InClusterQueue, that is prioritization" in found.message


def test_a_message_that_tells_of_another_queue_is_found() -> None:
    assert after([WORKLOAD, holding()])[0] == []
    told_so = stated(holding(), lifecycle.QUOTA_RESERVED, "Quota reserved in ClusterQueue other")
    (found,), counts = after([WORKLOAD, told_so])
    assert found.message == "it says: Quota reserved in ClusterQueue other; its admission is in cq"
    assert counts.parted == {"Message": 1}


def stopped() -> tuple[Obj, Obj]:
    """Evicted for a queue that is stopped, and queued again."""
    evicted = lifecycle.evict(holding(), reason=lifecycle.EVICTED_BY_CLUSTER_QUEUE_STOPPED, message="stopped", now=0)
    waits = lifecycle.release_after_eviction(evicted, 0)
    return waits, lifecycle.set_requeued(waits, lifecycle.CLUSTER_QUEUE_RESTARTED, "it goes on", 0)


def test_one_who_is_queued_again_while_his_queue_is_stopped_is_found() -> None:
    waits, again = stopped()
    (found,), _ = after([waits, again], "HoldAndDrain")
    assert found.parting is DivergenceType.REQUEUED
    assert found.message == (
        "queued again for ClusterQueueRestarted; we leave it: it is active, LocalQueue jobs: None,"
        " ClusterQueue cq: HoldAndDrain"
    )


def test_one_who_is_queued_again_when_his_queue_goes_on_is_not_told_of() -> None:
    assert find_condition(stopped()[0], lifecycle.REQUEUED) is not None
    assert after(stopped())[0] == []


@pytest.mark.parametrize(("cause", "is_visible"), [("", True), ("AdmissionCheck", False)])
def test_one_who_is_active_again_and_not_queued_is_told_of_where_kueue_would_queue_him(
    cause: str, is_visible: bool
) -> None:
    evicted = lifecycle.evict(holding(), reason=lifecycle.DEACTIVATED, cause=cause, message="", now=0)
    waits = lifecycle.release_after_eviction(evicted, 0)
    inactive = {**waits, "spec": {**waits["spec"], "active": False}}
    found, _ = after([inactive, waits])
    assert [each.parting for each in found] == ([DivergenceType.NOT_DONE] if is_visible else [])


@pytest.mark.parametrize(("count", "is_visible"), [(2, False), (0, False), (5, True)])
def test_a_count_of_requeues_that_jumps_is_found(count: int, is_visible: bool) -> None:
    before = {**WORKLOAD, "status": {"requeueState": {"count": 1}}}
    found, _ = after([before, {**WORKLOAD, "status": {"requeueState": {"count": count}}}])
    told_of = [each.message for each in found if each.parting is DivergenceType.REQUEUED]
    assert ["requeueState.count goes from 1 to 5" in message for message in told_of] == [True] * is_visible


def test_each_sort_is_counted_by_its_name() -> None:
    parted = {each.value: number for number, each in enumerate(DivergenceType, 1) if each is not DivergenceType.LATE}
    text = "".join(ShadowMetrics(lambda: ComparisonCounts(parted=parted), lambda: 0, lambda: 0).texts())
    assert all(f'batchyard_shadow_divergences_total{{type="{name}"}} {count}' in text for name, count in parted.items())
