"""Rules of preemption and order that random worlds rarely reach: small worlds in which one rule decides."""

from typing import Any

import pytest

from batchyard.api.well_known import (
    DELETE_AT,
    PREEMPT_MIN_RUNTIME,
    PREEMPTION_CONFIG_NAME,
    RECLAIM_MIN_RUNTIME,
    RUNTIME,
    SUBMIT_AT,
)
from batchyard.sim.random_worlds import scenario_of
from properties.worlds import event_log, invariant_violations, violations_with_faults

KUEUE = "kueue.x-k8s.io/v1beta2"
RECLAIMS = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "LowerPriority"}

Obj = dict[str, Any]


def kueue_object(kind: str, name: str, **spec: Any) -> Obj:
    """Return an object of Kueue."""
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def queue(name: str, preemption: Obj, **quota: Any) -> list[Obj]:
    """Return a ClusterQueue of the Cohort `all` with quota for some resources, and its LocalQueue."""
    flavor = {"name": "f", "resources": [{"name": r, "nominalQuota": amount} for r, amount in quota.items()]}
    group = {"coveredResources": list(quota), "flavors": [flavor]}
    spec = {"namespaceSelector": {}, "cohortName": "all", "preemption": preemption, "resourceGroups": [group]}
    return [kueue_object("ClusterQueue", name, **spec), kueue_object("LocalQueue", name, clusterQueue=name)]


def workload(name: str, queue_name: str, at: float, priority: int = 0, **requests: Any) -> Obj:
    """Return a Workload of one pod that never ends."""
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    obj = kueue_object("Workload", name, queueName=queue_name, priority=priority, podSets=[pod_set])
    return with_annotations(obj, **{SUBMIT_AT: f"{at}s"})


def with_annotations(obj: Obj, **annotations: str) -> Obj:
    """Return the object with more annotations."""
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}}


def with_unknown_owner(obj: Obj) -> Obj:
    """Return the Workload of an unknown owner: after eviction it waits for the end of its pods."""
    owner = {"apiVersion": "example.com/v1", "kind": "Robot", "name": "stranger", "uid": "stranger", "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def log_of(*objects: Obj, fair_sharing: bool = False) -> list[Obj]:
    """Return the log of a world, and check its invariants."""
    scenario = scenario_of([kueue_object("ResourceFlavor", "f"), *objects], fair_sharing=fair_sharing)
    assert invariant_violations(scenario) == ""
    return event_log(scenario)


def preemptions_of(*objects: Obj) -> list[tuple[str, str]]:
    """Return the preempted Workloads with their preemptors."""
    records = log_of(*objects)
    return [(record["workload"], record["by"]) for record in records if record["event"] == "Preempted"]


def fair_admissions(*objects: Obj) -> list[str]:
    """Return the Workloads with quota at the end under fair sharing."""
    admitted: list[str] = log_of(*objects, fair_sharing=True)[-1]["admitted"]
    return admitted


def test_queue_with_fully_used_resource_reclaims_no_other_resource() -> None:
    world = [
        *queue("ours", RECLAIMS, cpu=2, memory=2),
        *queue("theirs", {}, cpu=2, memory=2),
        workload("own", "ours", 1, cpu=2, memory=1),
        workload("borrower", "theirs", 2, cpu=2, memory=3),
        workload("new", "ours", 3, 100, cpu=1, memory=2),
    ]
    assert preemptions_of(*world) == []


def test_queue_with_quota_of_each_resource_reclaims_both() -> None:
    world = [
        *queue("ours", RECLAIMS, cpu=3, memory=2),
        *queue("theirs", {}, cpu=2, memory=2),
        workload("own", "ours", 1, cpu=2, memory=1),
        workload("borrower", "theirs", 2, cpu=3, memory=3),
        workload("new", "ours", 3, 100, cpu=3, memory=2),
    ]
    assert preemptions_of(*world) == [("team/borrower", "team/new"), ("team/own", "team/new")]


def test_workload_under_eviction_is_preempted_before_lower_priority() -> None:
    world = [
        *queue("ours", {"withinClusterQueue": "LowerPriority"}, cpu=2),
        with_unknown_owner(workload("going", "ours", 1, 50, cpu=1)),
        with_annotations(workload("top", "ours", 2, 300, cpu=1), **{RUNTIME: "4s"}),
        with_annotations(workload("first", "ours", 3, 100, cpu=1), **{DELETE_AT: "5s"}),
        workload("low", "ours", 6.5, cpu=1),
        workload("second", "ours", 7, 100, cpu=1),
    ]
    assert preemptions_of(*world) == [("team/going", "team/first")]


def test_workload_without_borrowing_is_admitted_before_lower_share() -> None:
    world = [
        *queue("much", {}, cpu=2, memory=1),
        *queue("little", {}, cpu=1, memory=4),
        workload("large", "much", 1, memory=4),
        workload("within", "much", 2, cpu=2),
        workload("beyond", "little", 2, cpu=2),
    ]
    assert fair_admissions(*world) == ["team/large", "team/within"]


# Protection by minimal run times. `log_of` also checks that no Workload is preempted before its protection ends.


def protected_queue(name: str, preemption: Obj, cpu: int, min_runtime: str) -> list[Obj]:
    """Return a ClusterQueue whose Workloads run for some time before others may preempt them, and its LocalQueue."""
    cluster_queue, local_queue = queue(name, preemption, cpu=cpu)
    annotations = {PREEMPT_MIN_RUNTIME: min_runtime, RECLAIM_MIN_RUNTIME: min_runtime}
    return [with_annotations(cluster_queue, **annotations), local_queue]


def preemption_times(*objects: Obj, crash_every: int = 0) -> list[tuple[str, int]]:
    """Return the preempted Workloads, each with the time of its preemption."""
    scenario = scenario_of([kueue_object("ResourceFlavor", "f"), *objects])
    assert crash_every == 0 or violations_with_faults(scenario, conflicts=0.2, crash_every=crash_every) == ""
    return [(each["workload"], each["time"]) for each in log_of(*objects) if each["event"] == "Preempted"]


@pytest.mark.parametrize("strategy", ["StrictFIFO", "BestEffortFIFO"])
@pytest.mark.parametrize("crash_every", [0, 2])
def test_preemptor_waits_for_the_end_of_the_protection(strategy: str, crash_every: int) -> None:
    owner, local_queue = queue("ours", {"reclaimWithinCohort": "Any"}, cpu=2)
    owner["spec"]["queueingStrategy"] = strategy
    world = [
        *(owner, local_queue, *protected_queue("theirs", {}, 0, "10m")),
        workload("borrower", "theirs", 1, cpu=1),
        workload("other", "theirs", 61, cpu=1),
        workload("new", "ours", 120, 1, cpu=2),
    ]
    assert preemption_times(*world, crash_every=crash_every) == [("team/other", 661), ("team/borrower", 661)]


def test_workloads_of_equal_queues_run_for_the_minimal_time_each() -> None:
    rules = {"withinClusterQueue": "LowerOrNewerEqualPriority"}
    world = [
        *protected_queue("ours", rules, 1, "5m"),
        workload("low", "ours", 1, 0, cpu=1),
        workload("middle", "ours", 2, 1, cpu=1),
        workload("high", "ours", 302, 2, cpu=1),
    ]
    assert preemption_times(*world) == [("team/low", 301), ("team/middle", 601)]


# Rules of PreemptionConfigs.


HERO_RULE: Obj = {
    "name": "hero",
    "activationPolicy": {"trigger": "Always"},
    "candidateSelectors": [{"scope": "WithinCohortTree", "priority": {"mode": "Base", "comparison": "LessThan"}}],
}


def hero_world(rule: Obj) -> list[Obj]:
    """Return a world in which `hero` needs borrowed quota, and no policy of its ClusterQueue allows preemption."""
    config = {**kueue_object("PreemptionConfig", "hero", rules=[rule]), "apiVersion": "kueue.x-k8s.io/v1alpha1"}
    config["metadata"] = {"name": "hero"}
    cluster_queue, local_queue = queue("heroes", {}, cpu=1)
    return [
        *(config, with_annotations(cluster_queue, **{PREEMPTION_CONFIG_NAME: "hero"}), local_queue),
        *queue("theirs", {}, cpu=2),
        workload("victim", "theirs", 1, 9, cpu=3),
        workload("hero", "heroes", 2, 100, cpu=1),
    ]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_rules_apply_only_with_the_feature_gate(is_enabled: bool) -> None:
    objects = [kueue_object("ResourceFlavor", "f"), *hero_world(HERO_RULE)]
    scenario = scenario_of(objects, settings={"featureGates": {"ConfigurablePreemptions": is_enabled}})
    assert invariant_violations(scenario) == ""
    preemptions = [each for each in event_log(scenario) if each["event"] == "Preempted"]
    victims = [(each["workload"], each["reason"]) for each in preemptions]
    assert victims == ([("team/victim", "ConfigurablePreemption")] if is_enabled else [])
