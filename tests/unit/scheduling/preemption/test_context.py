"""The admitted Workloads that a preemption spares, and why; protection by minimal run times."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.validation import validate
from batchyard.api.views.preemption import preemption_config_view
from batchyard.api.views.workload import workload_view
from batchyard.api.well_known import (
    CHECKPOINT_EVERY,
    PREEMPT_MIN_RUNTIME,
    PREEMPTION_CONFIG_NAME,
    PRICE,
    RECLAIM_MIN_RUNTIME,
    RESTART_TIME,
    VICTIMS,
)
from batchyard.base.instant import SECOND
from batchyard.scheduling.preemption.alternatives import (
    BORROWING_RULE,
    FAIRNESS_RULE,
    INACTIVE_RULE,
    MIN_RUNTIME_RULE,
    NEEDLESS_REASON,
    ProtectionReason,
    find_spared_workloads,
)
from batchyard.scheduling.preemption.context import PreemptionContext, restart_cost, rule_candidates
from yard import SchedulerBench, cohort, preemption, queue, workload

ANY = preemption("LowerPriority", "Any")


def spared_reasons(bench: SchedulerBench, head: Obj) -> dict[str, ProtectionReason]:
    """By name, the reason for which each Workload that a head could have preempted is spared."""
    alternatives = find_spared_workloads(bench.preemption(head), bench.snapshot, bench.policy.fair_strategies)
    return {each.holder.workload.key.removeprefix("team/"): each.reason for each in alternatives.spared_workloads}


def test_workload_of_inactive_queue_is_spared() -> None:
    bench = SchedulerBench(
        queue("a", 4, cohort="all", preemption=ANY), *[queue(name, 0, cohort="all") for name in "bc"]
    )
    bench.hold("b1", 2, "b")
    bench.hold("c1", 2, "c", priority=-9)
    bench.snapshot.queues["c"].active = False
    pending = workload(cpu=2, queue="a")
    assert bench.victims(pending) == ["b1"]
    text = "c is inactive; Kueue does not preempt in inactive queues"
    assert spared_reasons(bench, pending) == {"c1": ProtectionReason(INACTIVE_RULE, text)}


def test_workload_above_priority_threshold_of_borrower_is_spared() -> None:
    borrow = {"policy": "LowerPriority", "maxPriorityThreshold": 1}
    rules = preemption("Never", "Any", borrow)
    queues = [queue("a", 1, cohort="all", preemption=rules), *[queue(name, 1, cohort="all") for name in "bc"]]
    bench = SchedulerBench(cohort("all", 1), *queues)
    bench.hold("b1", 2, "b", priority=1)
    bench.hold("c1", 2, "c", priority=2)
    pending = workload(cpu=2, queue="a", priority=5)
    assert bench.victims(pending) == ["b1"]
    text = "its priority 2 is above maxPriorityThreshold 1"
    assert spared_reasons(bench, pending) == {"c1": ProtectionReason(BORROWING_RULE, text)}


def bench_with_borrowers() -> SchedulerBench:
    """Three queues with fair sharing; `b` borrows little and `c` borrows more."""
    queues = [queue("a", 3, cohort="all", preemption=ANY), *[queue(name, 3, cohort="all") for name in "bc"]]
    bench = SchedulerBench(*queues, fair_sharing=True)
    bench.hold("b1", 4, "b")
    bench.hold("c1", 5, "c")
    return bench


def test_workload_is_spared_if_other_victims_free_enough_quota() -> None:
    bench, pending = bench_with_borrowers(), workload(cpu=1, queue="a")
    assert bench.victims(pending) == ["c1"]
    assert spared_reasons(bench, pending) == {"b1": NEEDLESS_REASON}


def test_workload_is_spared_if_its_preemption_makes_shares_no_fairer() -> None:
    bench, pending = bench_with_borrowers(), workload(cpu=4, queue="a")
    assert bench.victims(pending) == ["c1"]
    text = "the preemption would not make the shares fairer"
    assert spared_reasons(bench, pending) == {"b1": ProtectionReason(FAIRNESS_RULE, text)}


# Protection by a minimal run time.


def with_annotations(obj: Obj, **annotations: str) -> Obj:
    """A ClusterQueue or Cohort with annotations; `preempt` and `reclaim` are the minimal run times."""
    names = {"preempt": PREEMPT_MIN_RUNTIME, "reclaim": RECLAIM_MIN_RUNTIME, "victims": VICTIMS, "price": PRICE}
    names["config"] = PREEMPTION_CONFIG_NAME
    return with_metadata(obj, annotations={names[short]: text for short, text in annotations.items()})


def protected_bench(seconds_after_admission: int, *, fair_sharing: bool = False, **annotations: str) -> SchedulerBench:
    """Queue `a` may reclaim from `b`, in which b1 was admitted; a1 has a lower priority in `a`."""
    queues = [
        with_annotations(queue("a", 2, cohort="all", preemption=ANY), **annotations),
        with_annotations(queue("b", 0, cohort="all"), **annotations),
    ]
    bench = SchedulerBench(*queues, fair_sharing=fair_sharing)
    bench.hold("b1", 1, "b", since=0)
    bench.hold("a1", 1, "a", since=0, priority=-1)
    bench.snapshot.preemption.now = make.at(seconds_after_admission)
    return bench


@pytest.mark.parametrize("fair_sharing", [False, True])
@pytest.mark.parametrize(
    ("annotations", "seconds", "victims"),
    [
        ({}, 0, {"b1", "a1"}),
        ({"reclaim": "60s"}, 59, {"a1"}),
        ({"reclaim": "60s"}, 60, {"b1", "a1"}),
        ({"preempt": "60s"}, 59, {"b1"}),
        ({"preempt": "60s", "reclaim": "60s"}, 59, set()),
    ],
)
def test_minimal_run_time_protects_workloads(
    annotations: dict[str, str], seconds: int, victims: set[str], fair_sharing: bool
) -> None:
    possible_victims = set()
    for needed in (1, 2):
        bench = protected_bench(seconds, fair_sharing=fair_sharing, **annotations)
        possible_victims |= set(bench.victims(workload(cpu=needed, queue="a")))
    assert possible_victims == victims


def test_cohort_gives_minimal_run_time_to_queues_without_one() -> None:
    tree = [with_annotations(cohort("all"), reclaim="60s"), queue("a", 2, cohort="all", preemption=ANY)]
    bench = SchedulerBench(
        *tree, queue("b", 0, cohort="all"), with_annotations(queue("c", 0, cohort="all"), reclaim="0")
    )
    bench.hold("b1", 1, "b", since=1)
    bench.hold("c1", 1, "c", since=0)
    bench.snapshot.preemption.now = make.at(2)
    assert bench.victims(workload(cpu=1, queue="a")) == ["c1"]


@pytest.mark.parametrize("fields", [{"evicted": True}, {"admitted": False}])
def test_workload_that_does_not_run_is_not_protected(fields: dict[str, Any]) -> None:
    bench = SchedulerBench(with_annotations(queue("cq", 1, preemption=preemption("LowerPriority")), preempt="1h"))
    bench.hold("x", 1, priority=-1, **fields)
    bench.snapshot.preemption.now = make.at(1)
    assert bench.victims(workload(cpu=1)) == ["x"]


def test_protection_counts_from_the_admission_after_the_checks() -> None:
    bench = SchedulerBench(with_annotations(queue("cq", 1, preemption=preemption("LowerPriority")), preempt="1m"))
    admitted = make.condition("Admitted", lastTransitionTime=make.stamp(100))
    bench.hold("x", 1, priority=-1, since=0, obj=workload("x", conditions=[admitted]))
    bench.snapshot.preemption.now = make.at(159)
    assert bench.victims(workload(cpu=1)) == []
    assert bench.snapshot.preemption.protection_ends == {"cq": make.at(160)}


def test_queue_that_cannot_reclaim_at_once_reserves_its_quota() -> None:
    queues = [queue("a", 3, cohort="all", preemption=ANY), queue("c", 0, cohort="all")]
    bench = SchedulerBench(*queues, with_annotations(queue("b", 0, cohort="all"), reclaim="1h"))
    bench.hold("b1", 2, "b")
    heads = workload("first", 2, queue="a"), workload("second", 1, queue="c")
    bench.snapshot.preemption.now = make.at(1)
    assert [each.split(" ")[1] for each in bench.decide(*heads)] == ["waits", "waits"]
    bench.put(with_annotations(queue("b", 0, cohort="all"), reclaim="0"))
    assert [each.split(" ")[1] for each in bench.decide(*heads)] == ["preempts", "main"]


def test_protection_is_explained_with_its_end() -> None:
    bench = protected_bench(30, reclaim="1m")
    bench.hold("b2", 0, "b")
    assert bench.victims(workload(cpu=1, queue="a")) == ["a1"]
    text = f"protected until {make.stamp(60)} (batchyard.dev/reclaim-min-runtime: 60s)"
    assert spared_reasons(bench, workload(cpu=1, queue="a")) == {"b1": ProtectionReason(MIN_RUNTIME_RULE, text)}


@pytest.mark.parametrize("obj", [queue("cq", 1), cohort("all")])
def test_malformed_minimal_run_time_is_rejected(obj: Obj) -> None:
    assert validate(with_annotations(obj, preempt="1m30s", reclaim="0")) == []
    (error,) = validate(with_annotations(obj, reclaim="soon"))
    assert str(error).startswith(f"metadata.annotations[{RECLAIM_MIN_RUNTIME}]: 'soon' is not a duration")


def test_unknown_order_of_victims_is_rejected() -> None:
    assert validate(with_annotations(queue("cq", 1), victims="cheapest")) == []
    (error,) = validate(with_annotations(queue("cq", 1), victims="smallest"))
    assert "supported values" in str(error)


# The order of victims by the cost of their restart.


def checkpointed(interval: str, restart_time: str = "0") -> Obj:
    """A Workload that saves its work at an interval."""
    return with_metadata(workload("x"), annotations={CHECKPOINT_EVERY: interval, RESTART_TIME: restart_time})


def cheap_first_bench(fair_sharing: bool = False, groups: list[Obj] | None = None) -> SchedulerBench:
    """Queue `b` borrows all quota of `a`, which prefers cheap victims; 1 hour has passed."""
    owner = queue("a", 4, cohort="all", preemption=ANY, groups=groups)
    borrower = queue("b", 0, cohort="all", groups=groups)
    bench = SchedulerBench(with_annotations(owner, victims="cheapest"), borrower, fair_sharing=fair_sharing)
    bench.snapshot.preemption.now = make.at(3600)
    return bench


@pytest.mark.parametrize("fair_sharing", [False, True])
def test_victim_with_least_lost_work_comes_first(fair_sharing: bool) -> None:
    bench = cheap_first_bench(fair_sharing)
    bench.hold("unsaved", 1, "b", since=3000)
    bench.hold("saved", 1, "b", since=50, obj=checkpointed("10m"))
    bench.hold("slow", 1, "b", since=10, obj=checkpointed("10m", restart_time="1h"))
    bench.hold("urgent", 1, "b", since=3599, priority=1)
    order = ["saved", "unsaved", "slow", "urgent"]
    for needed in range(1, 5):
        assert bench.victims(workload(cpu=needed, queue="a")) == order[:needed]


def test_lost_work_counts_by_share_of_quota() -> None:
    bench = cheap_first_bench()
    bench.hold("large", 3, "b", since=1800)
    bench.hold("small", 1, "b", since=0)
    assert bench.victims(workload(cpu=1, queue="a")) == ["small"]


def test_price_of_flavor_weights_lost_work() -> None:
    groups: list[Obj] = [{"coveredResources": ["cpu"], "flavors": [flavor_quota("spot"), flavor_quota("gpu")]}]
    bench = cheap_first_bench(groups=groups)
    bench.put(with_annotations(make.flavor("gpu"), price="2.5"))
    pod = workload(cpu=1, queue="b")
    for name, amounts in {"spot": {("spot", "cpu"): 1000}, "gpu": {("gpu", "cpu"): 1000}}.items():
        bench.hold(name, 0, "b", since=0 if name == "spot" else 1800, usage=amounts, obj=pod)
    holders = [bench.snapshot.holder(f"team/{name}") for name in ("spot", "gpu")]
    costs = [restart_cost(holder, bench.snapshot) for holder in holders if holder is not None]
    assert costs == [3600 * SECOND / 8, 1800 * SECOND * 2.5 / 8]


def test_deleted_flavor_of_a_victim_counts_with_the_default_price() -> None:
    bench = cheap_first_bench()
    bench.hold("victim", 2, "b", since=0, obj=workload(cpu=2, queue="b"))
    holder = bench.snapshot.holder("team/victim")
    assert holder is not None
    bench.snapshot.remove_flavor("spot")
    assert restart_cost(holder, bench.snapshot) > 0


def flavor_quota(name: str) -> Obj:
    """A flavor with 4 cpu."""
    return {"name": name, "resources": [{"name": "cpu", "nominalQuota": 4}]}


def test_latest_reservation_comes_first_without_the_annotation() -> None:
    bench = cheap_first_bench()
    bench.put(queue("a", 4, cohort="all", preemption=ANY))
    bench.hold("unsaved", 2, "b", since=3000)
    bench.hold("saved", 2, "b", since=0, obj=checkpointed("10m"))
    assert bench.victims(workload(cpu=1, queue="a")) == ["unsaved"]


# The rules of PreemptionConfigs. The cases follow pkg/scheduler/preemption/preemption_configurable_test.go of Kueue.


def preemption_config(*rules: Obj) -> Obj:
    """A PreemptionConfig with these rules."""
    metadata = {"name": "rules"}
    spec = {"rules": list(rules)}
    return {"apiVersion": "kueue.x-k8s.io/v1alpha1", "kind": "PreemptionConfig", "metadata": metadata, "spec": spec}


def rule(*selectors: Obj, trigger: str = "Always", **fields: Any) -> Obj:
    """A rule that applies if `trigger` is met."""
    return {"name": "r", "activationPolicy": {"trigger": trigger}, "candidateSelectors": list(selectors), **fields}


def rules_bench(*rules: Obj, fair_sharing: bool = False, policy: Obj | None = None) -> SchedulerBench:
    """Queues `a` and `b` of the Cohort `left`, `c` of the Cohort `right`, `d` alone; `a` names the PreemptionConfig."""
    tree = [cohort("all"), cohort("left", parent="all"), cohort("right", parent="all")]
    owner = with_annotations(queue("a", 2, cohort="left", preemption=policy or preemption()), config="rules")
    others = [queue("b", 2, cohort="left"), queue("c", 2, cohort="right"), queue("d", 2)]
    bench = SchedulerBench(*tree, owner, *others, fair_sharing=fair_sharing)
    bench.snapshot.preemption.configs["rules"] = preemption_config_view(preemption_config(*rules))
    return bench


def labeled(name: str, **labels: str) -> Obj:
    """A Workload with labels."""
    return with_metadata(workload(name), labels=labels)


@pytest.mark.parametrize("fair_sharing", [False, True])
@pytest.mark.parametrize(
    ("scope", "victims"),
    [
        ("WithinLocalQueue", ["a2", "a1"]),
        ("WithinClusterQueue", ["a2", "a1"]),
        ("WithinParentCohort", ["b1", "b2"]),
        ("WithinCohortTree", ["c1"]),
        ("AnyClusterQueue", ["c1"]),
    ],
)
def test_scope_limits_the_queues_of_victims(scope: str, victims: list[str], fair_sharing: bool) -> None:
    bench = rules_bench(rule({"scope": scope}), fair_sharing=fair_sharing)
    for since, name in enumerate(["a1", "a2", "b1", "b2", "c1"]):
        priority = -1 if name in {"b1", "c1"} else 0
        held = bench.hold(name, 2 if name == "c1" else 1, name[0], since=since, priority=priority)
        held.local_queue = f"team/{name[0]}"
    targets = bench.preemption(workload(cpu=2, queue="a")).targets
    assert [target.workload.key.removeprefix("team/") for target in targets] == victims
    assert {(target.reason, target.rules) for target in targets} == {("ConfigurablePreemption", "rules rule r/0")}


LABELS = {"small": {"size": "1"}, "large": {"size": "8"}, "odd": {"size": "many"}, "none": {}}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, {"small", "large", "odd", "none"}),
        ({"labelSelector": {"matchLabels": {"size": "8"}}}, {"large"}),
        ({"numericLabels": [{"key": "size"}]}, {"small", "large"}),
        ({"numericLabels": [{"key": "size", "fallbackValue": 3, "minValue": 2}]}, {"large", "odd", "none"}),
        ({"numericLabels": [{"key": "size", "maxValue": 1}]}, {"small"}),
        ({"numericLabels": [{"key": "size", "comparison": "LessThan"}]}, {"small"}),
        ({"numericLabels": [{"key": "size", "comparison": "GreaterThanOrEqual"}]}, {"large"}),
        ({"priority": {"mode": "Base", "comparison": "LessThan"}}, {"small"}),
        ({"priority": {"mode": "Boosted", "comparison": "LessThan"}}, set()),
        ({"priority": {"matchNames": ["batch"]}}, {"none"}),
        ({"priority": {"notMatchNames": ["batch"]}}, {"small", "large", "odd"}),
        ({"clusterQueueSelector": {"matchLabels": {"tier": "low"}}}, {"small", "large", "odd", "none"}),
        ({"clusterQueueSelector": {"matchLabels": {"tier": "high"}}}, set()),
    ],
)
def test_candidate_selector_compares_labels_and_priorities(selector: Obj, selected: set[str]) -> None:
    bench = rules_bench(rule({"scope": "AnyClusterQueue", **selector}))
    bench.snapshot.preemption.queue_labels["a"] = {"tier": "low"}
    for name, labels in LABELS.items():
        obj = labeled(name, **labels)
        if name == "none":
            obj = {**obj, "spec": {**obj["spec"], "priorityClassRef": {"name": "batch"}}}
        held = bench.hold(name, 0, "a", usage={("spot", "cpu"): 500}, obj=obj, priority=4 if name == "small" else 3)
        held.boost = 4 if name == "small" else 0
    head_view = workload_view(with_metadata(workload("head", queue="a", priority=3), labels={"size": "5"}))
    context = PreemptionContext(head_view, bench.snapshot.queues["a"], bench.snapshot, (), (0,))
    config = bench.snapshot.preemption.configs["rules"]
    assert {each.uid.removeprefix("uid-") for each, _ in rule_candidates(context, config, "Always")} == selected


@pytest.mark.parametrize(
    ("fields", "applies"),
    [
        ({"preemptorSelector": {"matchLabels": {"hero": "yes"}}}, True),
        ({"preemptorSelector": {"matchLabels": {"hero": "no"}}}, False),
        ({"preemptorPriorityClassSelector": {"matchNames": ["top"]}}, False),
        ({"preemptorPriorityClassSelector": {"notMatchNames": ["top"]}}, True),
    ],
)
def test_rule_concerns_only_selected_preemptors(fields: Obj, applies: bool) -> None:
    bench = rules_bench(rule({"scope": "WithinClusterQueue"}, **fields))
    bench.hold("a1", 6, "a", priority=9)
    pending = with_metadata(workload(cpu=1, queue="a"), labels={"hero": "yes"})
    assert bench.victims(pending) == (["a1"] if applies else [])


@pytest.mark.parametrize("fair_sharing", [False, True])
def test_rules_for_missing_quota_apply_after_policies_and_other_rules(fair_sharing: bool) -> None:
    fallback = rule({"scope": "WithinCohortTree"}, trigger="InsufficientQuota", name="fallback")
    own = rule({"scope": "WithinClusterQueue"})
    bench = rules_bench(fallback, own, fair_sharing=fair_sharing, policy=preemption("LowerPriority"))
    bench.hold("a1", 1, "a", priority=-1)
    bench.hold("b1", 4, "b", priority=9)
    last = bench.hold("a2", 1, "a", priority=5)
    assert bench.decide(workload(cpu=1, queue="a")) == ["wl preempts a1 (InClusterQueue)"]
    expected = "wl preempts a1 (InClusterQueue), a2 (ConfigurablePreemption)"
    assert bench.decide(workload(cpu=2, queue="a")) == [expected]
    bench.snapshot.remove_holder(last.key)
    bench.hold("c1", 1, "c", priority=8)
    assert bench.victims(workload(cpu=2, queue="a")) == ["a1", "c1"]


def test_rule_without_selectors_selects_nobody() -> None:
    bench = rules_bench(rule())
    bench.hold("a1", 6, "a")
    assert bench.victims(workload(cpu=1, queue="a")) == []


def test_minimal_run_time_protects_from_rules_too() -> None:
    bench = rules_bench(rule({"scope": "WithinParentCohort"}))
    bench.put(with_annotations(queue("b", 2, cohort="left"), reclaim="1m"))
    bench.hold("b1", 6, "b", since=0)
    for seconds, victims in ((59, []), (60, ["b1"])):
        bench.snapshot.preemption.now = make.at(seconds)
        assert bench.victims(workload(cpu=1, queue="a")) == victims


@pytest.mark.parametrize(
    ("selector", "path", "message"),
    [
        ({"numericLabels": [{"key": "k", "minValue": 2, "maxValue": 1}]}, "numericLabels[0]", "minValue must be less"),
        ({"priority": {"mode": "Base"}}, "priority", "mode and comparison must be specified together"),
        ({"labelSelector": {"matchLabels": {"?": "1"}}}, "labelSelector.matchLabels", ""),
    ],
)
def test_invalid_rule_is_rejected(selector: Obj, path: str, message: str) -> None:
    assert validate(preemption_config(rule({"scope": "AnyClusterQueue"}))) == []
    (error,) = validate(preemption_config(rule({"scope": "AnyClusterQueue", **selector})))
    assert str(error).startswith(f"spec.rules[0].candidateSelectors[0].{path}")
    assert message in str(error)
