"""A shadow follows each cohort tree separately, also when trees merge and split."""

import json
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.shadow.findings import DivergenceType
from batchyard.shadow.follower import CohortTrees, group_by_tree, tree_nodes_of
from batchyard.sim.scenario import Scenario
from differential.merged_scenarios import merge_scenarios, with_unique_names
from differential.recorded_scenarios import packed_cases, run
from differential.shadow_runs import ShadowResults, run_shadow
from differential.unreliable_transport import ConnectionFaults
from differential.upstream_writes import Record, read_case

KUEUE = "kueue.x-k8s.io/v1beta2"
CPU = {"coveredResources": ["cpu"]}


def at(obj: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return an object that is applied after some seconds."""
    annotations = {**obj["metadata"].get("annotations", {}), "batchyard.dev/submit-at": f"{seconds}s"}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def cohort(name: str, parent: str = "") -> dict[str, Any]:
    spec = {"parentName": parent} if parent else {}
    return {"apiVersion": KUEUE, "kind": "Cohort", "metadata": {"name": name}, "spec": spec}


def queue(name: str, of: str, cpu: int = 4) -> list[dict[str, Any]]:
    """Return a ClusterQueue of a cohort, and a LocalQueue of the same name."""
    group = {**CPU, "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]}
    preemption = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "cohortName": of, "resourceGroups": [group], "preemption": preemption}
    local = {"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterQueue": name}}
    return [
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": KUEUE, "kind": "LocalQueue", **local},
    ]


def workload(name: str, of: str, cpu: int, lasts: int, submitted: float) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    pods = {"name": "main", "count": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    metadata = {"name": name, "namespace": "team", "annotations": {"batchyard.dev/runtime": f"{lasts}s"}}
    spec = {"queueName": of, "podSets": [pods]}
    return at({"apiVersion": KUEUE, "kind": "Workload", "metadata": metadata, "spec": spec}, submitted)


FLAVOR = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {}}
LOAD = [workload(f"{of}-{n}", of, 3, 40, n * 10 + 1) for of in ("one", "two") for n in range(16)]
BASE = [FLAVOR, cohort("a"), cohort("b"), *queue("one", "a"), *queue("two", "b"), *LOAD]
#: Cohort `b` moves below `a` after 30 s, and back after 60 s.
REROOTED = [*BASE, at(cohort("b", "a"), 30), at(cohort("b"), 60)]
#: A ClusterQueue moves to the other cohort, and back.
MOVED = [*BASE, at(queue("two", "a")[0], 30), at(queue("two", "b")[0], 60)]


def own_decisions(objects: list[dict[str, Any]]) -> tuple[Scenario, list[Record]]:
    """Return the decisions of our scheduler, which match upstream's (`test_oracle.py`)."""
    text = "\n---\n".join(json.dumps(obj) for obj in objects)
    return read_case("played", text, "\n".join(json.dumps(record) for record in run("played", text)))


def count_decisions(log: list[Record]) -> int:
    return sum(record["event"] in {"QuotaReserved", "Preempted", "Evicted"} for record in log)


@pytest.mark.parametrize("objects", [REROOTED, MOVED], ids=["rerooted", "moved"])
@pytest.mark.parametrize("late", [{}, {"cohorts": 1_300_000, "clusterqueues": 1_300_000}, {"workloads": 3 * SECOND}])
def test_decisions_are_predicted_when_trees_merge_and_split(
    objects: list[dict[str, Any]], late: dict[str, int]
) -> None:
    scenario, log = own_decisions(objects)
    reported = run_shadow(scenario, log, ConnectionFaults(late=late))
    assert (reported.findings, reported.trees, reported.counts.unseen_count) == ([], 2, 0)
    assert sum(reported.counts.agreements.values()) == count_decisions(log)


def test_merged_trees_have_one_follower() -> None:
    scenario, log = own_decisions([*BASE, at(cohort("b", "a"), 30)])
    assert run_shadow(scenario, log).trees == 1


@pytest.mark.parametrize("second", [20, 50, 100])
def test_missing_admission_is_detected_around_merge_of_trees(second: int) -> None:
    scenario, log = own_decisions(REROOTED)
    left = next(each for each in log if each["event"] == "QuotaReserved" and each["time"] > second)
    reported = run_shadow(scenario, [each for each in log if each.get("workload") != left["workload"]])
    assert (reported.findings[0].divergence_type, reported.findings[0].workload) == (
        DivergenceType.NOT_ADMITTED,
        left["workload"],
    )


def run_busy_scenarios(*names: str) -> ShadowResults:
    """Run some scenarios on one server, accelerated by a factor of 20, with delayed watches."""
    cases = [
        with_unique_names(f"s{number}", *read_case(name, *packed_cases()[name])) for number, name in enumerate(names)
    ]
    trouble = ConnectionFaults(6, {}, 3 * SECOND, SECOND // 2, hurry=20)
    return run_shadow(*merge_scenarios(cases), trouble)


def test_concurrent_busy_trees_are_ordered_independently() -> None:
    reported = run_busy_scenarios("hierarchy-41", "hierarchy-61", "hierarchy-5")
    assert (reported.findings, reported.trees) == ([], 3)


def added_event(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> WatchEvent:
    metadata = {"name": name, "namespace": namespace}
    return WatchEvent(EventType.ADDED, Key(kind, namespace, name), {"metadata": metadata, "spec": spec}, None, 1)


def test_related_objects_are_grouped_into_one_tree_in_any_order() -> None:
    of_one = [
        added_event(scheme.WORKLOAD, "w", {"queueName": "l"}, "team"),
        added_event(scheme.COHORT, "child", {"parentName": "root"}),
        added_event(scheme.LOCAL_QUEUE, "l", {"clusterQueue": "q"}, "team"),
        added_event(scheme.CLUSTER_QUEUE, "q", {"cohortName": "child"}),
    ]
    other = added_event(scheme.CLUSTER_QUEUE, "root", {})  # of the Cohort's name alone
    result = group_by_tree([of_one[0], other, *of_one[1:]], CohortTrees())
    assert sorted(result.values(), key=len) == [[other], of_one]


def test_cluster_wide_object_belongs_to_no_tree() -> None:
    flavor = added_event(scheme.RESOURCE_FLAVOR, "f", {})
    assert (tree_nodes_of(flavor.key, flavor.obj), group_by_tree([flavor], CohortTrees())) == ((), {})
