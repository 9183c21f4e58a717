"""Every invariant detects its violation: the tests change the world as no controller would."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, with_metadata, with_path, with_status
from batchyard.api.well_known import SUBMIT_AT, WORKLOAD
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Create, EventType, UpdateStatus, WatchEvent
from batchyard.sim.invariants.checker import INVARIANTS, InvariantChecker, attach_invariants
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World

Obj = Mapping[str, Any]
Tamper = Callable[[World], None]

LOWER, HIGHER = "system-cluster-critical", "system-node-critical"
PRIORITIES = {"old": 0, "mate": 0, "new": 100}


def quota(name: str, nominal: int, **limits: int) -> list[dict[str, Any]]:
    """A resource group of cpu in one flavor."""
    resources = [{"name": "cpu", "nominalQuota": nominal, **limits}]
    return [{"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": resources}]}]


def platform() -> list[dict[str, Any]]:
    """Two queues of one Cohort, three CPUs each: one reclaims by priority, the other never preempts."""
    reclaims = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "LowerPriority"}
    objects = [
        make.flavor("spot"),
        make.cluster_queue("ours", active=None, cohortName="all", resourceGroups=quota("spot", 3), preemption=reclaims),
        make.cluster_queue("theirs", active=None, cohortName="all", resourceGroups=quota("spot", 3)),
        make.local_queue("lq", cluster_queue="ours"),
        make.local_queue("lq-theirs", cluster_queue="theirs"),
    ]
    return [user_object(obj) for obj in objects]


def user_object(obj: dict[str, Any]) -> dict[str, Any]:
    """The object as a user writes it, without creationTimestamp."""
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "creationTimestamp"}}


def workload(name: str, queue: str = "lq", count: int = 1, **spec: Any) -> dict[str, Any]:
    """A Workload of pods with one CPU each."""
    pod_sets = [make.pod_set(count=count)]
    return user_object(make.workload(name, queue=queue, pod_sets=pod_sets, priority=PRIORITIES.get(name, 0), **spec))


def inspected_world(*objects: dict[str, Any]) -> tuple[World, InvariantChecker]:
    """A world to which these objects came one after the other, and its inspection."""
    steps = [with_metadata(obj, annotations={SUBMIT_AT: f"{number}ms"}) for number, obj in enumerate(objects)]
    world = World(scenario_of([*platform(), *steps]))
    inspection = attach_invariants(world)
    world.run_until(5 * SECOND)
    assert inspection.violations == []
    return world, inspection


def get(world: World, name: str, kind: str = scheme.WORKLOAD) -> Obj:
    """An object that must exist."""
    result = world.client.get(Key(kind, "team", name))
    assert result is not None
    return result


def violated_invariants(inspection: InvariantChecker, world: World) -> list[str]:
    """The violated invariants without duplicates, in order."""
    world.run_until(None)
    return list(dict.fromkeys(violation.invariant for violation in inspection.finish()))


def change(world: World, name: str, status: Mapping[str, Any]) -> None:
    """Writes a Workload's status without its controllers."""
    obj = get(world, name)
    world.submit(UpdateStatus(with_status(obj, {**(obj.get("status") or {}), **status})))


def admit(world: World, name: str, queue: str = "ours", **pod_sets: int) -> None:
    """Admits a Workload regardless of quota."""
    admission = make.admission(queue, **pod_sets)
    change(world, name, {"admission": admission, "conditions": [make.condition("QuotaReserved")]})


def preempt(world: World, victim: str, by: str, reason: str = "InClusterQueue") -> None:
    """Preempts a Workload for another."""
    uid = get(world, by)["metadata"]["uid"]
    message = f"Preempted to accommodate a workload (UID: {uid}, JobUID: UNKNOWN) due to whim"
    marks = [make.condition("Evicted", reason="Preempted"), make.condition("Preempted", reason=reason, message=message)]
    kept = get(world, victim)["status"]["conditions"]
    change(world, victim, {"conditions": [*kept, *marks]})


def test_unmodified_world_violates_no_invariant() -> None:
    world, inspection = inspected_world(workload("old"), workload("new"))
    assert violated_invariants(inspection, world) == []


def test_admission_over_cohort_quota_is_detected() -> None:
    world, inspection = inspected_world(workload("old", count=6), workload("late", count=2))
    admit(world, "late", main=2)
    assert "quota_never_oversubscribed" in violated_invariants(inspection, world)


def test_reduced_quota_does_not_violate_quota_invariant() -> None:
    world, inspection = inspected_world(workload("old", count=6))
    smaller = make.cluster_queue("theirs", active=None, cohortName="all", resourceGroups=quota("spot", 0))
    world.apply(user_object(smaller))
    assert violated_invariants(inspection, world) == []


def test_usage_without_workload_is_detected() -> None:
    world, inspection = inspected_world(workload("old"))
    world.platform.index.snapshot.queues["ours"].node.usage[0] += 1
    world.apply(workload("late"))
    assert "usage_is_sum_of_admitted" in violated_invariants(inspection, world)


@pytest.mark.parametrize(
    ("queue", "pod_sets"),
    [
        pytest.param("ours", {"other": 5}, id="another pod set"),
        pytest.param("ours", {"main": 4}, id="fewer pods than allowed"),
        pytest.param("ours", {"main": 6}, id="more pods than asked for"),
        pytest.param("theirs", {"main": 5}, id="another queue"),
    ],
)
def test_assignment_that_does_not_match_workload_is_detected(queue: str, pod_sets: dict[str, int]) -> None:
    world, inspection = inspected_world(workload("large", count=5), workload("late", count=5))
    admit(world, "late", queue, **pod_sets)
    assert "admitted_has_assignment" in violated_invariants(inspection, world)


@pytest.mark.parametrize(
    "resources",
    [
        {"transformations": [{"input": "example.com/gpu", "strategy": "Replace", "outputs": {"cpu": "2"}}]},
        {"excludeResourcePrefixes": ["example.com/"]},
        {"quotaCheckStrategy": "IgnoreUndeclared"},
    ],
)
def test_invariants_hold_with_charged_resources(resources: dict[str, Any]) -> None:
    header = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    configuration = {**header, "metadata": {"name": "kueue"}, "resources": resources}
    pod_set = make.pod_set(requests={"cpu": "1", "example.com/gpu": "1"})
    world, inspection = inspected_world(configuration, workload("old", podSets=[pod_set]))
    assert world.objects(scheme.WORKLOAD)[0]["status"]["admission"]
    assert violated_invariants(inspection, world) == []


@pytest.mark.parametrize(
    ("victim", "by", "reason"),
    [
        pytest.param("old", "late", "InClusterQueue", id="equal priority"),
        pytest.param("old", "new", "InCohortReclamation", id="a reason for other queues"),
        pytest.param("mate", "new", "InCohortReclamation", id="a queue that does not borrow"),
        pytest.param("mate", "new", "InCohortReclaimWhileBorrowing", id="a policy that is off"),
        pytest.param("mate", "new", "InCohortFairSharing", id="sharing that is not fair"),
        pytest.param("old", "old", "InClusterQueue", id="a preemptor that is not pending"),
    ],
)
def test_preemption_not_allowed_by_policy_is_detected(victim: str, by: str, reason: str) -> None:
    world, inspection = inspected_world(
        workload("old", count=3), workload("mate", "lq-theirs", 3), workload("late", count=9), workload("new", count=9)
    )
    preempt(world, victim, by, reason)
    assert "preemption_respects_priority" in violated_invariants(inspection, world)


@pytest.mark.parametrize(
    ("classes", "by", "wrong"),
    [
        pytest.param({"old": LOWER, "mate": HIGHER}, "mate", False, id="a lower priority"),
        pytest.param({"old": HIGHER, "mate": HIGHER}, "mate", True, id="an equal priority"),
        pytest.param({"old": LOWER}, "mate", True, id="a preemptor without pods"),
        pytest.param({"old": LOWER, "late": HIGHER}, "late", True, id="a preemptor without quota"),
    ],
)
def test_hotswap_not_allowed_by_priority_is_detected(classes: dict[str, str], by: str, wrong: bool) -> None:
    world, inspection = inspected_world(
        workload("old", count=3), workload("mate", "lq-theirs"), workload("late", count=9)
    )
    for name, priority in classes.items():
        pod = {"apiVersion": "v1", "kind": "Pod", **make.pod_template(priorityClassName=priority)}
        world.submit(Create({**pod, "metadata": {"name": name, "namespace": "team", "annotations": {WORKLOAD: name}}}))
    world.run_until(6 * SECOND)
    preempt(world, "old", by, "Hotswap")
    assert ("hotswap_respects_priority" in violated_invariants(inspection, world)) is wrong


def test_unsuspended_job_without_admission_is_detected() -> None:
    template = make.pod_template(restartPolicy="Never")
    world, inspection = inspected_world(user_object(make.job("job", parallelism=9, completions=9, template=template)))
    job = get(world, "job", scheme.JOB)
    world.apply(with_path(job, ("spec", "suspend"), False))
    assert "no_job_runs_without_admission" in violated_invariants(inspection, world)


def test_finished_workload_that_becomes_unfinished_is_detected() -> None:
    world, inspection = inspected_world(workload("old"))
    change(world, "old", {"conditions": [make.condition("Finished")]})
    world.run_until(6 * SECOND)
    change(world, "old", {"conditions": []})
    assert "finished_holds_nothing" in violated_invariants(inspection, world)


def test_workload_missing_from_queue_is_detected() -> None:
    world, inspection = inspected_world(workload("old", count=6), workload("late"))
    world.platform.index.queue_manager.pending["ours"].remove("team/late")
    change(world, "old", {"conditions": [make.condition("Finished")]})
    assert violated_invariants(inspection, world) == ["assumed_equals_confirmed", "nothing_is_stuck"]


def test_assumption_that_differs_from_objects_is_detected() -> None:
    world, inspection = inspected_world(workload("old"))
    world.platform.index.snapshot.queues["ours"].workloads["team/old"].evicted = True
    world.apply(workload("late"))
    assert violated_invariants(inspection, world) == ["assumed_equals_confirmed"]


def test_object_mutated_in_place_is_detected() -> None:
    world, inspection = inspected_world(workload("old"))
    labels: Any = get(world, "old")["metadata"]
    labels["labels"] = {"a": "b"}
    assert violated_invariants(inspection, world) == ["nothing_mutated"]


def watch_violations(*events: WatchEvent) -> list[str]:
    """The violations of the watch invariant by events after those of a small world."""
    _, inspection = inspected_world()
    inspection._observe(events)
    return [violation.description for violation in inspection.violations if violation.invariant == "watch_has_no_gap"]


def test_gap_in_watch_is_detected() -> None:
    world, _ = inspected_world()
    obj = make.namespace("gap")
    event = WatchEvent(EventType.ADDED, Key(scheme.NAMESPACE, "", "gap"), obj, None, world.store.revision + 2)
    assert watch_violations(event) == [
        f"revision {world.store.revision + 2} was delivered directly after revision {world.store.revision}"
    ]


def test_modification_of_unknown_object_is_detected() -> None:
    world, _ = inspected_world()
    obj, key = make.namespace("gap"), Key(scheme.NAMESPACE, "", "gap")
    event = WatchEvent(EventType.MODIFIED, key, obj, obj, world.store.revision + 1)
    assert watch_violations(event) == [
        "the old object of gap is not the object of its previous event",
        "gap got an event MODIFIED, which does not match its previous event",
    ]


def test_violation_text_includes_history_of_objects() -> None:
    world, inspection = inspected_world(workload("old", count=6), workload("late", count=2))
    admit(world, "late", main=2)
    violated_invariants(inspection, world)
    text = str(next(v for v in inspection.violations if v.invariant == "quota_never_oversubscribed"))
    assert text.startswith("5s quota_never_oversubscribed: team/late reserved 2000 of spot/cpu in queue/ours")
    assert "0.001s Workload team/late: added" in text


def test_invariant_names_are_unique() -> None:
    assert len({law.name for law in INVARIANTS}) == len(INVARIANTS)
