"""Rules of who goes and who comes first that random worlds seldom show: small worlds in which one of them decides."""

from typing import Any

from batchyard.api.well_known import DELETE_AT, RUNTIME, SUBMIT_AT
from batchyard.sim.random_worlds.queues import scenario_of
from properties.worlds import broken_laws, event_log

KUEUE = "kueue.x-k8s.io/v1beta2"
RECLAIMS = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "LowerPriority"}

Obj = dict[str, Any]


def made(kind: str, name: str, **spec: Any) -> Obj:
    """An object of Kueue."""
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def queue(name: str, preemption: Obj, **quota: Any) -> list[Obj]:
    """A ClusterQueue of the Cohort `all` with quota for some resources, and its LocalQueue."""
    flavor = {"name": "f", "resources": [{"name": r, "nominalQuota": amount} for r, amount in quota.items()]}
    group = {"coveredResources": list(quota), "flavors": [flavor]}
    spec = {"namespaceSelector": {}, "cohortName": "all", "preemption": preemption, "resourceGroups": [group]}
    return [made("ClusterQueue", name, **spec), made("LocalQueue", name, clusterQueue=name)]


def workload(name: str, queue_name: str, at: float, priority: int = 0, **requests: Any) -> Obj:
    """A Workload of one pod that stays for ever."""
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    obj = made("Workload", name, queueName=queue_name, priority=priority, podSets=[pod_set])
    return noted(obj, **{SUBMIT_AT: f"{at}s"})


def noted(obj: Obj, **annotations: str) -> Obj:
    """The object with more annotations."""
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}}


def never_stopping(obj: Obj) -> Obj:
    """The Workload of an owner that nobody knows: once evicted, it waits for its pods to go."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "stranger", "uid": "stranger", "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def log_of(*objects: Obj, fair_sharing: bool = False) -> list[Obj]:
    """What happens; the laws hold."""
    scenario = scenario_of([made("ResourceFlavor", "f"), *objects], fair_sharing=fair_sharing)
    assert broken_laws(scenario) == ""
    return event_log(scenario)


def preempted_in(*objects: Obj) -> list[tuple[str, str]]:
    """Who was preempted, and by whom."""
    records = log_of(*objects)
    return [(record["workload"], record["by"]) for record in records if record["event"] == "Preempted"]


def admitted_fairly(*objects: Obj) -> list[str]:
    """Who holds quota at the end under fair sharing."""
    admitted: list[str] = log_of(*objects, fair_sharing=True)[-1]["admitted"]
    return admitted


def test_a_queue_that_uses_all_of_one_resource_reclaims_none_of_another() -> None:
    world = [
        *queue("ours", RECLAIMS, cpu=2, memory=2),
        *queue("theirs", {}, cpu=2, memory=2),
        workload("own", "ours", 1, cpu=2, memory=1),
        workload("borrower", "theirs", 2, cpu=2, memory=3),
        workload("new", "ours", 3, 100, cpu=1, memory=2),
    ]
    assert preempted_in(*world) == []


def test_a_queue_with_some_of_each_resource_left_reclaims_both() -> None:
    world = [
        *queue("ours", RECLAIMS, cpu=3, memory=2),
        *queue("theirs", {}, cpu=2, memory=2),
        workload("own", "ours", 1, cpu=2, memory=1),
        workload("borrower", "theirs", 2, cpu=3, memory=3),
        workload("new", "ours", 3, 100, cpu=3, memory=2),
    ]
    assert preempted_in(*world) == [("team/borrower", "team/new"), ("team/own", "team/new")]


def test_who_is_being_evicted_already_goes_before_who_has_lower_priority() -> None:
    world = [
        *queue("ours", {"withinClusterQueue": "LowerPriority"}, cpu=2),
        never_stopping(workload("going", "ours", 1, 50, cpu=1)),
        noted(workload("top", "ours", 2, 300, cpu=1), **{RUNTIME: "4s"}),
        noted(workload("first", "ours", 3, 100, cpu=1), **{DELETE_AT: "5s"}),
        workload("low", "ours", 6.5, cpu=1),
        workload("second", "ours", 7, 100, cpu=1),
    ]
    assert preempted_in(*world) == [("team/going", "team/first")]


def test_who_borrows_nothing_of_what_it_asks_for_comes_before_a_lower_share() -> None:
    world = [
        *queue("much", {}, cpu=2, memory=1),
        *queue("little", {}, cpu=1, memory=4),
        workload("large", "much", 1, memory=4),
        workload("within", "much", 2, cpu=2),
        workload("beyond", "little", 2, cpu=2),
    ]
    assert admitted_fairly(*world) == ["team/large", "team/within"]
