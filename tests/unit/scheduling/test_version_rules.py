"""Rules of decisions that differ between Kueue 0.19 and 0.20, and rules behind feature gates."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import UNLIMITED, Obj, find_condition, with_metadata, with_path
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import Update
from batchyard.metrics.queues import to_metric_unit
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import ClaimedVictims, Cycle, SchedulingPolicy, classical_order
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, KueueVersion, decision_rules
from batchyard.scheduling.fair_sharing.fair_order import fair_order
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.queue_manager import PendingQueue
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import status
from stage import Stage, condition_state
from yard import SchedulerBench, cohort, group, head, head_of, preemption, queue, workload

RULES_0_20 = decision_rules(KueueVersion.V0_20, {})
BOTH = pytest.mark.parametrize("rules", [DEFAULT_RULES, RULES_0_20], ids=["0.19", "0.20"])


def bench(*objects: Obj, rules: DecisionRules = DEFAULT_RULES, **policy: Any) -> SchedulerBench:
    result = SchedulerBench(*objects)
    result.policy = SchedulingPolicy(rules=rules, **policy)
    return result


def open_stage(*objects: Obj, rules: DecisionRules = DEFAULT_RULES, fair_sharing: bool = False) -> Stage:
    """The scheduler, the lifecycle of Workloads and the queues' status; a LocalQueue for every ClusterQueue."""
    index, policy = SchedulerCache(rules=rules), SchedulingPolicy(fair_sharing=fair_sharing, rules=rules)
    queue_status = QueueStatusController(index, fair_sharing=fair_sharing)
    stage = Stage(Scheduler(index, policy), WorkloadLifecycle(None, rules), queue_status)
    stage.put(make.namespace(), make.flavor("spot"), *objects)
    names = [obj["metadata"]["name"] for obj in objects if obj["kind"] == "ClusterQueue"]
    stage.put(*[make.local_queue(name, cluster_queue=name) for name in names])
    return stage


def states(stage: Stage) -> dict[str, str]:
    return {obj["metadata"]["name"]: status(obj).value for obj in stage.workloads()}


# Versions and gates.


def test_gates_that_0_20_enables_apply_unless_they_are_turned_off() -> None:
    gate = "SchedulingEquivalenceHashingIgnorePodSetName"
    assert (DEFAULT_RULES.ignores_pod_set_names, RULES_0_20.ignores_pod_set_names) == (False, True)
    assert not decision_rules(KueueVersion.V0_20, {gate: False}).ignores_pod_set_names
    assert decision_rules(KueueVersion.V0_19, {gate: True}).ignores_pod_set_names


# A failed preemption in a queue with BestEffortFIFO.


@pytest.mark.parametrize(("rules", "first"), [(DEFAULT_RULES, "low"), (RULES_0_20, "high")], ids=["0.19", "0.20"])
def test_head_with_failed_preemption_stays_first_only_in_0_19(rules: DecisionRules, first: str) -> None:
    pending = PendingQueue("cq", rules)
    pending.put(workload_view(workload("low")), make.NOW)
    low = pending.head()
    assert low is not None
    pending.requeue(low, None, RequeueReason.PENDING_PREEMPTION, make.NOW)
    pending.put(workload_view(workload("high", priority=9)), make.NOW)
    pending.requeue(low, None, RequeueReason.FAILED_AFTER_NOMINATION, make.NOW)
    result = pending.head()
    assert result is not None
    assert result.workload.name == first


# The sizes of preemption targets.


@pytest.mark.parametrize(("rules", "victims"), [(DEFAULT_RULES, []), (RULES_0_20, ["a", "b"])], ids=["0.19", "0.20"])
def test_preemption_targets_free_quota_of_pods_since_0_20(rules: DecisionRules, victims: list[str]) -> None:
    groups = [group(spot={"cpu": 4, "pods": 2})]
    tested = bench(queue("cq", groups=groups, preemption=preemption("LowerPriority")), rules=rules)
    for name, since in (("a", 2), ("b", 1)):
        tested.hold(name, 0, usage={("spot", "cpu"): 2000, ("spot", "pods"): 1}, since=since)
    pods = [make.pod_set(count=2, requests={"cpu": "1"})]
    assert sorted(tested.victims(workload("high", priority=1, pod_sets=pods))) == victims


# The reason of a request that is partly covered.


@pytest.mark.parametrize(
    ("rules", "reason"), [(DEFAULT_RULES, "ExceedsMaxQuota"), (RULES_0_20, "NoMatchingFlavor")], ids=["0.19", "0.20"]
)
def test_partly_covered_request_has_reason_no_matching_flavor_since_0_20(rules: DecisionRules, reason: str) -> None:
    tested = bench(queue("cq", groups=[group(small={"memory": 0}, spot={"memory": 9})]), rules=rules)
    pods = [make.pod_set(requests={"cpu": "1", "memory": "1"})]
    waiting = tested.wait(workload(pod_sets=pods))
    assert waiting.why.message.endswith("resource cpu unavailable in ClusterQueue")
    assert waiting.why.reason == reason


# Flavors.


@BOTH
def test_preemption_over_borrowing_skips_flavor_without_candidates(rules: DecisionRules) -> None:
    fungibility = {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"}
    tested = bench(
        queue(
            "a",
            groups=[group(full={"cpu": 2}, spot={"cpu": 0})],
            cohort="all",
            flavorFungibility={**fungibility, "preference": "PreemptionOverBorrowing"},
            preemption=preemption("LowerPriority"),
        ),
        queue("b", groups=[group(full={"cpu": 0}, spot={"cpu": 4})], cohort="all"),
        rules=rules,
    )
    tested.hold("high", 2, "a", flavor="full", priority=9)
    assert tested.decide(head("a1")) == ["a1: main 1 cpu=spot"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"nodeTaints": [{"key": "t", "value": "x", "effect": "NoSchedule"}]}, {}),
        (
            {"nodeTaints": [{"key": "t", "effect": "NoSchedule"}]},
            {"nodeTaints": [{"key": "t", "effect": "NoSchedule"}], "tolerations": [{"key": "t", "operator": "Exists"}]},
        ),
        ({"nodeLabels": {"zone": "a"}}, {"nodeLabels": {"zone": "b"}}),
    ],
    ids=["nodeTaints", "tolerations", "nodeLabels"],
)
def test_changed_flavor_retries_waiting_workloads(old: Obj, new: Obj) -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(make.flavor("spot", **{k: v for k, v in old.items() if k != "nodeLabels"}, labels=old.get("nodeLabels")))
    pods = make.pod_set()
    stage.put(workload(pod_sets=[with_path(pods, ("template", "spec", "nodeSelector"), {"zone": "b"})]))
    assert states(stage) == {"wl": "pending"}
    stage.put(make.flavor("spot", **{k: v for k, v in new.items() if k != "nodeLabels"}, labels=new.get("nodeLabels")))
    assert states(stage) == {"wl": "admitted"}


# Requests.


def limit_range(**limits: Any) -> Obj:
    spec = {"limits": [{"type": "Container", **limits}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": make.metadata("limits"), "spec": spec}


def limited_workload(name: str = "wl", **resources: Any) -> Obj:
    pods = make.pod_set()
    containers = [{"name": "c", "image": "i", "resources": resources}]
    return workload(name, pod_sets=[with_path(pods, ("template", "spec", "containers"), containers)])


def used_cpu(stage: Stage, name: str = "wl") -> str:
    (assignment,) = stage.workload(name)["status"]["admission"]["podSetAssignments"]
    result: str = assignment["resourceUsage"]["cpu"]
    return result


@pytest.mark.parametrize(("rules", "cpu"), [(DEFAULT_RULES, "1"), (RULES_0_20, "3")], ids=["0.19", "0.20"])
def test_own_limit_precedes_default_request_of_limit_range_since_0_20(rules: DecisionRules, cpu: str) -> None:
    stage = open_stage(queue("cq", 4), limit_range(defaultRequest={"cpu": "1"}), rules=rules)
    stage.put(limited_workload(limits={"cpu": "3"}))
    assert used_cpu(stage) == cpu


@pytest.mark.parametrize("change", ["changed", "deleted"])
def test_workload_outside_limit_range_is_requeued_when_limit_range_is(change: str) -> None:
    stage = open_stage(queue("cq", 4), limit_range(max={"cpu": "1"}))
    stage.put(limited_workload(requests={"cpu": "2"}))
    assert states(stage) == {"wl": "pending"}
    if change == "changed":
        stage.put(limit_range(max={"cpu": "2"}))
    else:
        stage.delete("LimitRange", "limits")
    assert states(stage) == {"wl": "admitted"}


def test_requests_after_backoff_are_effective_and_not_written_to_spec() -> None:
    stage = open_stage(queue("cq", 4), limit_range(defaultRequest={"cpu": "3"}))
    requeued = {"requeueState": {"count": 1, "requeueAt": make.stamp(10)}}
    stage.put(with_metadata({**limited_workload(), "status": requeued}))
    stage.run(20)
    assert used_cpu(stage) == "3"
    assert stage.workload()["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] == {}


def test_pod_level_request_below_containers_counts_containers_and_overhead() -> None:
    pods = make.pod_set(requests={"cpu": "3"})
    spec = {**pods["template"]["spec"], "resources": {"requests": {"cpu": "1"}}, "overhead": {"cpu": "500m"}}
    view = workload_view(workload(pod_sets=[with_path(pods, ("template", "spec"), spec)]))
    assert dict(view.pod_sets[0].template.requests)["cpu"] == 3500


def test_negative_request_counts_as_zero() -> None:
    view = workload_view(workload(cpu="-3"))
    assert dict(view.pod_sets[0].template.requests) == {"cpu": 0}


def test_amounts_beyond_int64_are_exact() -> None:
    tested = bench(queue("cq", 4))
    largest = 2**63 - 1
    for name in ("a", "b", "c"):
        tested.hold(name, 0, usage={("spot", "memory"): largest})
    assert tested.used("cq", resource="memory") == 3 * largest
    for name in ("team/a", "team/b"):
        tested.snapshot.remove_holder(name)
    assert tested.used("cq", resource="memory") == largest


def test_metrics_report_amounts_from_int64_on_as_infinite() -> None:
    assert [to_metric_unit("memory", amount) for amount in (2**63 - 1, UNLIMITED, 5)] == [math.inf, math.inf, 5]
    assert to_metric_unit("cpu", 1500) == 1.5


@BOTH
def test_partial_admission_may_leave_a_pod_set_without_pods(rules: DecisionRules) -> None:
    tested = bench(queue("cq", 2), rules=rules)
    pods = [make.pod_set("a", requests={"cpu": "2"}), make.pod_set("b", count=2, minCount=0, requests={"cpu": "1"})]
    assert tested.decide(workload(pod_sets=pods)) == ["wl: a 1 cpu=spot; b 0 cpu=spot"]


# Equivalent Workloads.


@pytest.mark.parametrize("rules", [DEFAULT_RULES, RULES_0_20], ids=["0.19", "0.20"])
def test_names_of_pod_sets_make_workloads_different_only_in_0_19(rules: DecisionRules) -> None:
    stage = open_stage(queue("cq", 1), rules=rules)
    stage.put(workload("a", 2), workload("b", pod_sets=[make.pod_set("other", requests={"cpu": "2"})], created=1))
    stage.run(2)
    is_tried = find_condition(stage.workload("b"), "QuotaReserved") is not None
    assert is_tried is not rules.ignores_pod_set_names


# Cohorts with a cycle.


def cyclic_stage(rules: DecisionRules) -> Stage:
    stage = open_stage(queue("cq", 4, cohort="b", active=None), rules=rules)
    stage.put(cohort("a", parent="b"), cohort("b", parent="a"))
    return stage


def test_cluster_queue_reports_cohort_cycle_since_0_20() -> None:
    message = 'Can\'t admit new workloads: Cohort "b" has a cycle in hierarchy.'
    stage = cyclic_stage(RULES_0_20)
    active = condition_state(stage.get(scheme.CLUSTER_QUEUE, "cq", ""), "Active")
    assert active == ("False", "CohortCycleDetected", message)
    assert condition_state(cyclic_stage(DEFAULT_RULES).get(scheme.CLUSTER_QUEUE, "cq", ""), "Active")[0] == "True"


def test_cluster_queue_is_active_again_when_cohort_cycle_is_resolved() -> None:
    stage = cyclic_stage(RULES_0_20)
    stage.put(workload())
    assert states(stage) == {"wl": "pending"}
    stage.put(cohort("a"))
    assert condition_state(stage.get(scheme.CLUSTER_QUEUE, "cq", ""), "Active")[0] == "True"
    assert states(stage) == {"wl": "admitted"}


# The status of queues.


def test_terminating_cluster_queue_reports_its_state_and_keeps_its_counts() -> None:
    stage = open_stage(with_metadata(queue("cq", 4, active=None), finalizers=["kueue.x-k8s.io/resource-in-use"]))
    stage.put(workload("a"), workload("b", 9))
    stage.run(2)
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    stage.run(4)
    cluster_queue = stage.get(scheme.CLUSTER_QUEUE, "cq", "")
    message = "Can't admit new workloads; clusterQueue is terminating"
    assert condition_state(cluster_queue, "Active") == ("False", "Terminating", message)
    counts = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")
    assert [cluster_queue["status"][name] for name in counts] == [1, 1, 1]
    stage.delete(scheme.WORKLOAD, "a")
    stage.run(6)
    assert stage.get(scheme.CLUSTER_QUEUE, "cq", "")["status"]["admittedWorkloads"] == 0


def test_unchanged_status_is_not_written() -> None:
    stage = open_stage(queue("cq", 4, active=None))
    stage.put(workload("a", 9))
    stage.run(2)
    revision = stage.get(scheme.CLUSTER_QUEUE, "cq", "")["metadata"]["resourceVersion"]
    stage.put(make.flavor("other"), make.namespace("other"))
    stage.put(with_metadata(stage.workload("a"), labels={"changed": "only-a-label"}))
    stage.run(9)
    assert stage.get(scheme.CLUSTER_QUEUE, "cq", "")["metadata"]["resourceVersion"] == revision


# PrioritizePreemptorWorkloads.


class Entry:
    """An entry of a cycle with its usage; a height above 0 borrows."""

    def __init__(self, tested: SchedulerBench, name: str, height: int, **fields: Any) -> None:
        self.workload, self.queue = workload_view(head(name, **fields)), tested.snapshot.queues[name[0]]
        self.borrowing_height = height
        self.usage = ((tested.snapshot.flavor_resource_id("spot", "cpu"), 1000),)


@pytest.mark.parametrize("with_fair_sharing", [False, True])
def test_waiting_preemptor_precedes_workload_within_nominal_quota(*, with_fair_sharing: bool) -> None:
    tested = SchedulerBench(queue("a", 0, cohort="all"), queue("b", 4, cohort="all"))
    entries = [Entry(tested, "a1", 1), Entry(tested, "b1", 0, priority=9)]

    def order(preemptors: frozenset[str]) -> list[str]:
        with tested.snapshot.what_if():
            ordered = (
                fair_order(entries, tested.snapshot, preemptors)
                if with_fair_sharing
                else classical_order(entries, preemptors)
            )
            return [entry.workload.name for entry in ordered]

    assert order(frozenset()) == ["b1", "a1"]
    assert order(frozenset({"team/a1"})) == ["a1", "b1"]


@pytest.mark.parametrize(("gate", "winner"), [(False, "c1"), (True, "a1")])
def test_waiting_preemptor_keeps_quota_that_its_victims_release_one_by_one(*, gate: bool, winner: str) -> None:
    rules = decision_rules(KueueVersion.V0_19, {"PrioritizePreemptorWorkloads": gate})
    rule = preemption("LowerPriority", "LowerPriority", {"policy": "LowerPriority"})
    own = queue("a", 0, cohort="all", preemption=rule)
    stage = open_stage(queue("z", 4, cohort="all"), own, queue("c", 0, cohort="all"), rules=rules)
    stage.put(workload("low1", 2, queue="a", priority=-1), workload("low2", 2, queue="a", priority=-1, created=1))
    stage.put(workload("a1", 4, queue="a", created=2), workload("c1", 2, queue="c", priority=9, created=3))
    stage.delete(scheme.WORKLOAD, "low1")
    stage.delete(scheme.WORKLOAD, "low2")
    assert [name for name, state in states(stage).items() if state == "admitted"] == [winner]


@pytest.mark.parametrize(("gate", "reserved"), [(False, 0), (True, 4000)])
def test_prioritized_preemptor_without_targets_reserves_quota_that_it_could_reclaim(
    *, gate: bool, reserved: int
) -> None:
    tested = bench(queue("a", 4, cohort="all", preemption=preemption("Never", "Any")), queue("b", 0, cohort="all"))
    tested.hold("own", 4, "a")
    cycle = Cycle(tested.snapshot, tested.policy, tested.namespaces, 1)
    cycle.preemptors = frozenset({"team/a1"} if gate else ())
    entry = cycle.nominate_head(head_of(head("a1", 4)))
    tested.snapshot.remove_holder("team/own")
    with tested.snapshot.what_if():
        cycle.decide_entry(entry, ClaimedVictims(tested.snapshot))
        assert tested.used("a") == reserved


# FairSharingReevaluatePreemptionCandidates.


@pytest.mark.parametrize(("gate", "victims"), [(False, []), (True, ["a1", "a2", "b1"])])
def test_refused_candidates_are_evaluated_again_after_the_own_share_fell(*, gate: bool, victims: list[str]) -> None:
    strategies = (FairSharingStrategy.FINAL_SHARE,)
    rules = decision_rules(KueueVersion.V0_20, {"FairSharingReevaluatePreemptionCandidates": gate})
    tested = bench(
        queue("a", 3, cohort="all", preemption=preemption("LowerPriority", "Any")),
        queue("b", 0, cohort="all", weight="100m"),
        rules=rules,
        fair_sharing=True,
        preemption_strategies=strategies,
    )
    for name, owner, priority in (("a1", "a", -1), ("a2", "a", -1), ("b1", "b", 0)):
        tested.hold(name, 1, owner, priority=priority)
    assert sorted(tested.victims(head("a9", 3, priority=5))) == victims


# FairSharingRefill.


def refilled(gate: bool, **cpu: int) -> dict[str, str]:
    rules = decision_rules(KueueVersion.V0_20, {"FairSharingRefill": gate})
    stage = open_stage(rules=rules, fair_sharing=True)
    heads = [workload(name, amount, queue=name[0], created=n) for n, (name, amount) in enumerate(cpu.items())]
    stage.put(make.local_queue("a", cluster_queue="a"), make.local_queue("b", cluster_queue="b"), *heads)
    stage.put(queue("b", 0, cohort="all", stopPolicy="Hold"), queue("a", 2, cohort="all", stopPolicy="Hold"))
    release = [queue("b", 0, cohort="all"), queue("a", 2, cohort="all")]
    for obj in release:  # both queues become active at the same instant, before a cycle
        stage.client.submit([_update(stage, obj)], lambda _: None)
    stage.settle()
    return states(stage)


def _update(stage: Stage, obj: Mapping[str, Any]) -> Update:
    current = stage.get(scheme.CLUSTER_QUEUE, obj["metadata"]["name"], "")
    return Update({**current, "spec": obj["spec"]})


def test_next_workload_of_an_admitting_queue_joins_the_cycle() -> None:
    assert refilled(False, b1=1, a1=1, a2=1) == {"a1": "admitted", "a2": "pending", "b1": "admitted"}
    assert refilled(True, b1=1, a1=1, a2=1) == {"a1": "admitted", "a2": "admitted", "b1": "pending"}


def test_refill_needs_fair_sharing() -> None:
    rules = decision_rules(KueueVersion.V0_20, {"FairSharingRefill": True})
    stage = open_stage(queue("cq", 2), rules=rules)
    stage.put(workload("a"), workload("b", created=1))
    assert states(stage) == {"a": "admitted", "b": "admitted"}
    assert replace(rules, refills_heads=False).has_cycle_gates is False
