"""Each kind of wrong decision of upstream is detected, and reported with its cause."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.metrics.forks import ShadowMetrics
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.shadow.controller import LifecycleCheck
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType
from batchyard.shadow.state import ShadowSettings
from batchyard.sim.scenario import Scenario
from differential import injected_divergences
from differential.recorded_scenarios import packed_cases
from differential.shadow_runs import ShadowResults, run_shadow
from differential.upstream_writes import Record, read_case
from yard import workload


def case(name: str) -> tuple[Scenario, list[Record]]:
    return read_case(name, *packed_cases()[name])


def injected_finding(scenario: Scenario, changed: tuple[list[Record], Record]) -> tuple[Divergence, ShadowResults]:
    """Return the finding of an injected divergence, which is the first, and all results."""
    result = run_shadow(scenario, changed[0])
    first = result.findings[0]
    assert first.workload == changed[1]["workload"]
    assert result.counts.divergences[first.divergence_type.value] > 0
    return first, result


def test_admission_out_of_order_is_reported_with_workload_ahead() -> None:
    scenario, log = case("single-5")
    first, result = injected_finding(scenario, injected_divergences.swap_workloads(scenario, log))
    assert (first.divergence_type, len(result.findings)) == (DivergenceType.ADMITTED, 1)
    assert (
        "the model admits other Workloads first: 5 Workloads are ahead of it in cq-1, "
        "the first is team/wl-010 (priority 100, " in first.message
    )
    assert first.model_action["reason"] == "NotItsTurn"


def test_different_reason_is_reported_with_expected_reason() -> None:
    scenario, log = case("preempt-1")
    first, result = injected_finding(scenario, injected_divergences.change_preemption_reason(log))
    assert (first.divergence_type, len(result.findings)) == (DivergenceType.VICTIMS, 1)
    assert first.message.endswith("(InCohortReclamation); we preempt it as InClusterQueue")


def test_different_pod_count_is_reported_with_expected_count() -> None:
    scenario, log = case("partial-37")
    first, _ = injected_finding(scenario, injected_divergences.reduce_pod_count(log, "team/wl-001", 8))
    assert first.divergence_type is DivergenceType.FLAVORS
    assert "with 7 of workers on f0; we admit it with 8 of workers on f0" in first.message


def test_different_victim_of_another_queue_is_reported_with_criteria() -> None:
    scenario, log = case("fair-49")
    first, _ = injected_finding(scenario, injected_divergences.change_fair_sharing_victim(log))
    assert first.divergence_type is DivergenceType.VICTIMS
    assert "we preempt team/wl-008 (cq-2, priority 0, quota since " in first.message
    assert "not team/wl-002 (cq-1, priority 5, quota since " in first.message


def test_needless_preemption_is_reported_with_state_of_preemptor() -> None:
    scenario, log = case("cohort-1")
    first, _ = injected_finding(scenario, injected_divergences.add_preemption(log))
    assert first.divergence_type is DivergenceType.PREEMPTED
    assert first.message.endswith("team/wl-002 already holds quota in cq-2")


def test_admission_in_wrong_queue_is_reported_with_expected_queue() -> None:
    scenario, log = case("cohort-1")
    first, _ = injected_finding(scenario, injected_divergences.change_cluster_queue(log))
    assert first.divergence_type is DivergenceType.FLAVORS
    assert "admitted in cq-0 with 1 of main on f0; it waits in cq-2, and we admit it" in first.message


def test_missing_preemption_is_reported_with_waiting_time() -> None:
    scenario, log = case("preempt-1")
    changed, first = injected_divergences.remove_preemption(log)
    result = next(each for each in run_shadow(scenario, changed).findings)
    assert (result.divergence_type, result.workload) == (DivergenceType.NOT_PREEMPTED, first["by"])
    assert f"for {ShadowSettings().patience // SECOND} s; we preempt {first['workload']} for it" in result.message


def test_unconfigured_fair_sharing_is_reported_with_hint() -> None:
    scenario, log = case("fair-1")
    result = run_shadow(scenario, log, knows_fair_sharing=False).findings
    assert any("start the shadow with --fair-sharing" in look for each in result for look in each.hints)


def test_divergence_is_reported_with_commands_to_investigate() -> None:
    scenario, log = case("cohort-1")
    result = run_shadow(scenario, injected_divergences.change_flavor(scenario, log)[0]).findings[0]
    queue, one, kueue = result.hints
    assert queue.startswith("kubectl get clusterqueue cq-2 -o yaml  # order of flavors, flavorFungibility")
    assert one == "kubectl get workload -n team wl-001 -o yaml"
    assert result.since is not None
    assert f"--since-time={format_time((result.since - 10 * SECOND) // SECOND * SECOND)} | grep wl-001" in kueue
    assert [line.strip().partition(":")[0] for line in result.text().splitlines()[1:]] == ["since", *["look"] * 3]
    assert result.document()["look"] == list(result.hints)


#: Checks of single Workloads, independent of order: their queues, and the changes of one Workload.


def obj(kind: str, name: str, spec: Obj, namespace: str = "") -> Obj:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def added_event(kind: str, what: Obj) -> WatchEvent:
    metadata = what["metadata"]
    return WatchEvent(EventType.ADDED, Key(kind, metadata["namespace"], metadata["name"]), what, None, 1)


WORKLOAD = workload("w", 1, queue="jobs")
AT = Key(scheme.WORKLOAD, WORKLOAD["metadata"]["namespace"], "w")


def findings_after(states: Sequence[Obj], stop: str = "None") -> tuple[list[Divergence], ComparisonCounts]:
    """Return the findings for a Workload with these states, in a queue with this stop policy, after 100 s."""
    result: list[Divergence] = []
    steps = LifecycleCheck(ShadowSettings(), lambda _: True)
    queues = [
        added_event(scheme.CLUSTER_QUEUE, obj("ClusterQueue", "cq", {"stopPolicy": stop})),
        added_event(scheme.LOCAL_QUEUE, obj("LocalQueue", "jobs", {"clusterQueue": "cq"}, AT.namespace)),
    ]
    steps.reset([*queues, added_event(scheme.WORKLOAD, states[0])], 0)
    for second, (old, new) in enumerate(pairwise(states), 1):
        result += steps.observe([WatchEvent(EventType.MODIFIED, AT, new, old, second)], second * SECOND)
    result += steps.observe((), 100 * SECOND)
    return result, steps.counts


def holding(now: Instant = 0) -> Obj:
    admission = {"clusterQueue": "cq", "podSetAssignments": []}
    return lifecycle.reserve_quota(WORKLOAD, admission, now, admitted=True)


def with_message(before: Obj, kind: str, message: str) -> Obj:
    """Return the Workload with another message in a condition."""
    conditions = [
        {**each, "message": message} if each["type"] == kind else each for each in before["status"]["conditions"]
    ]
    return {**before, "status": {**before["status"], "conditions": conditions}}


def test_message_with_wrong_preemption_reason_is_detected() -> None:
    evicted = evictions.evict(
        holding(),
        reason="Preempted",
        message="to accommodate another due to reclamation within the cohort; x",
        now=0,
        preemption="InClusterQueue",
    )
    (result,), _ = findings_after([holding(), evicted])
    assert result.divergence_type is DivergenceType.MESSAGE
    assert (
        "preempted due to reclamation within the cohort; for InClusterQueue, that is prioritization" in result.message
    )


def test_message_with_wrong_queue_is_detected() -> None:
    assert findings_after([WORKLOAD, holding()])[0] == []
    with_other_queue = with_message(holding(), lifecycle.QUOTA_RESERVED, "Quota reserved in ClusterQueue other")
    (result,), counts = findings_after([WORKLOAD, with_other_queue])
    assert result.message == "Kueue wrote: Quota reserved in ClusterQueue other; its admission is in cq"
    assert counts.divergences == {"Message": 1}


def requeued_workload() -> tuple[Obj, Obj]:
    """Return a Workload evicted from a stopped queue, and the same Workload after its requeue."""
    evicted = evictions.evict(holding(), reason=lifecycle.EVICTED_BY_CLUSTER_QUEUE_STOPPED, message="stopped", now=0)
    waits = evictions.release_after_eviction(evicted, 0)
    return waits, evictions.set_requeued(waits, lifecycle.CLUSTER_QUEUE_RESTARTED, "it goes on", 0)


def test_requeue_in_stopped_queue_is_detected() -> None:
    waits, again = requeued_workload()
    (result,), _ = findings_after([waits, again], "HoldAndDrain")
    assert result.divergence_type is DivergenceType.REQUEUED
    assert result.message == (
        "queued again for ClusterQueueRestarted; we take no action: it is active, LocalQueue jobs: None,"
        " ClusterQueue cq: HoldAndDrain"
    )


def test_requeue_after_queue_restart_is_not_reported() -> None:
    assert find_condition(requeued_workload()[0], evictions.REQUEUED) is not None
    assert findings_after(requeued_workload())[0] == []


@pytest.mark.parametrize(("cause", "is_visible"), [("", True), ("AdmissionCheck", False)])
def test_missing_requeue_of_reactivated_workload_is_reported(cause: str, is_visible: bool) -> None:
    evicted = evictions.evict(holding(), reason=lifecycle.DEACTIVATED, cause=cause, message="", now=0)
    waits = evictions.release_after_eviction(evicted, 0)
    inactive = {**waits, "spec": {**waits["spec"], "active": False}}
    result, _ = findings_after([inactive, waits])
    assert [each.divergence_type for each in result] == ([DivergenceType.NOT_DONE] if is_visible else [])


@pytest.mark.parametrize(("count", "is_visible"), [(2, False), (0, False), (5, True)])
def test_skipped_requeue_count_is_detected(count: int, is_visible: bool) -> None:
    before = {**WORKLOAD, "status": {"requeueState": {"count": 1}}}
    result, _ = findings_after([before, {**WORKLOAD, "status": {"requeueState": {"count": count}}}])
    messages = [each.message for each in result if each.divergence_type is DivergenceType.REQUEUED]
    assert ["requeueState.count goes from 1 to 5" in message for message in messages] == [True] * is_visible


def test_each_divergence_type_is_counted_by_name() -> None:
    parted = {each.value: number for number, each in enumerate(DivergenceType, 1) if each is not DivergenceType.LATE}
    text = "".join(ShadowMetrics(lambda: ComparisonCounts(divergences=parted), lambda: 0, lambda: 0).texts())
    assert all(f'batchyard_shadow_divergences_total{{type="{name}"}} {count}' in text for name, count in parted.items())
