"""Why Workloads are not preempted for another one, and the preemption settings that would let it in."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

FLAVOR = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
"""
QUEUE = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: NAME}
spec:
  cohortName: all
  namespaceSelector: {}
  preemption: PREEMPTION
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: f, resources: [{name: cpu, nominalQuota: QUOTA}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: NAME, namespace: team}
spec: {clusterQueue: NAME}
"""
JOB = """
---
apiVersion: batch/v1
kind: Job
metadata:
  name: NAME
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: QUEUE, kueue.x-k8s.io/priority-class: PRIORITY}
  annotations: {batchyard.dev/submit-at: AT, batchyard.dev/runtime: 10h}
spec:
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: CPU}}}]}}
"""
PRIORITY = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: NAME}
value: VALUE
"""
CLASSES = "".join(PRIORITY.replace("NAME", f"p{each}").replace("VALUE", str(each)) for each in (1, 5, 9))


def queue(name: str, quota: int, preemption: str = "{}") -> str:
    return QUEUE.replace("NAME", name).replace("QUOTA", str(quota)).replace("PREEMPTION", preemption)


def job(name: str, queue_name: str, cpus: int, priority: int, at: str = "0s") -> str:
    text = JOB.replace("NAME", name).replace("QUEUE", queue_name).replace("CPU", str(cpus)).replace("AT", at)
    return text.replace("PRIORITY", f"p{priority}")


def explain(text: str) -> dict[str, Any]:
    """Return the answer about the Job `asked`, 20 seconds after the start."""
    manifests = read_manifests([("objects.yaml", FLAVOR + CLASSES + text)])
    assert [*map(str, manifests.faults)] == []
    world = World(make_scenario(manifests))
    world.run_until(20 * SECOND)
    document = world.platform.explainer.why(Key(scheme.JOB, "team", "asked"), world.kernel.now())
    assert document is not None
    return document


def borrowing_job(preemption: str) -> str:
    """A Job of priority 9 that would have to borrow what Jobs of priorities 1 and 5 borrow."""
    holders = job("first", "mine", 2, 9) + job("low", "theirs", 2, 1) + job("middle", "theirs", 2, 5)
    queues = queue("mine", 2, preemption) + queue("theirs", 1) + queue("idle", 3)
    return queues + holders + job("asked", "mine", 3, 9, "10s")


RECLAIM = "reclaimWithinCohort: Any"
POLICY = "ClusterQueue mine: set preemption.borrowWithinCohort.policy from Never to LowerPriority"


def preemption_changes(document: dict[str, Any]) -> list[str]:
    return [change["text"] for change in document["changes"] if change["kind"] == "preemption"]


def test_borrow_within_cohort_is_proposed_if_it_admits() -> None:
    document = explain(borrowing_job(f"{{{RECLAIM}}}"))
    assert {holder["stays"] for holder in document["holders"]} >= {"mine would borrow, and borrowWithinCohort is Never"}
    assert preemption_changes(document) == [POLICY]
    (patch,) = next(change["apply"] for change in document["changes"] if change["text"] == POLICY)
    assert patch["patch"] == {"spec": {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}}}
    changed = explain(borrowing_job(f"{{{RECLAIM}, borrowWithinCohort: {{policy: LowerPriority}}}}"))
    assert changed["state"] == "Running"


@pytest.mark.parametrize("preemption", ["{}", "{reclaimWithinCohort: Never}"])
def test_borrow_within_cohort_requires_reclaim(preemption: str) -> None:
    assert POLICY not in preemption_changes(explain(borrowing_job(preemption)))


def test_lowest_sufficient_priority_threshold_is_proposed() -> None:
    preemption = f"{{{RECLAIM}, borrowWithinCohort: {{policy: LowerPriority, maxPriorityThreshold: VALUE}}}}"
    document = explain(borrowing_job(preemption.replace("VALUE", "0")))
    text = "ClusterQueue mine: raise preemption.borrowWithinCohort.maxPriorityThreshold from 0 to 5"
    assert preemption_changes(document) == [text]
    assert explain(borrowing_job(preemption.replace("VALUE", "1")))["state"] == "Pending"
    assert explain(borrowing_job(preemption.replace("VALUE", "5")))["state"] == "Running"


def test_victims_that_are_too_few_together_have_a_reason() -> None:
    preemption = f"{{{RECLAIM}, borrowWithinCohort: {{policy: LowerPriority}}}}"
    queues = queue("mine", 4, preemption) + queue("theirs", 4)
    holders = job("a", "theirs", 4, 1) + job("b", "theirs", 4, 1)
    document = explain(queues + holders + job("asked", "mine", 6, 9, "10s"))
    assert document["state"] == "Pending"
    assert [holder["stays"] for holder in document["holders"]] == [
        "it could be preempted, but all possible victims together do not free enough quota"
    ] * 2


def test_victims_are_judged_at_the_time_of_the_explanation() -> None:
    queues = queue("mine", 1, "{withinClusterQueue: LowerPriority}").replace(
        "metadata: {name: mine}", "metadata: {name: mine, annotations: {batchyard.dev/preempt-min-runtime: 15s}}"
    )
    document = explain(queues + job("held", "mine", 1, 1) + job("asked", "mine", 1, 1, "2s"))
    assert any(change["text"].startswith("raise its priority from 1 to 2") for change in document["changes"])
