"""Saved work is not repeated after its pods stop for any reason. Times are seconds."""

import pytest

from batchyard.accounting.accounts import DONE, LOST
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, annotation
from batchyard.api.times import parse_time
from batchyard.api.views.pods import resumed_work
from batchyard.base.instant import HOUR, duration_seconds
from batchyard.sim.faults import WriteFaults
from batchyard.sim.recovery import RunAccounting
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import EPOCH, World

QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - {coveredResources: [cpu], flavors: [{name: any, resources: [{name: cpu, nominalQuota: 4}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: team}
spec: {clusterQueue: cq}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
"""
TEMPLATE = "{restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}"
URGENT = """
apiVersion: batch/v1
kind: Job
metadata:
  {name: urgent, namespace: team, labels: {kueue.x-k8s.io/queue-name: lq},
   annotations: {batchyard.dev/submit-at: 25s, batchyard.dev/runtime: 20s}}
spec:
  template:
    spec:
      restartPolicy: Never
      priorityClassName: high
      containers: [{name: c, image: i, resources: {requests: {cpu: 4}}}]
"""
#: The spec of the Job `work`, alone or in a JobSet.
JOB_SPEC = f"{{MODE, parallelism: 2, completions: 2, template: {{spec: {TEMPLATE}}}}}"
JOB = f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: work, namespace: team, labels: {{kueue.x-k8s.io/queue-name: lq}}, annotations: {{NOTES}}}}
spec: {JOB_SPEC}
"""
JOB_SET = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: work, namespace: team, labels: {{kueue.x-k8s.io/queue-name: lq}}, annotations: {{NOTES}}}}
spec:
  failurePolicy: {{maxRestarts: 3}}
  replicatedJobs: [{{name: r, template: {{spec: {JOB_SPEC}}}}}]
"""
CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  zones: [z]
  times:
    podStart: {min: 1s, typical: 1s, max: 1s}
    boot: {min: 10s, typical: 10s, max: 10s}
    repair: 60s
  nodePools: [{name: p, machineType: n1-standard-4, nodeCount: 2}]
---
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: s}
spec: {faults: [FAULT]}
"""
SAVES = "batchyard.dev/runtime: 60s, batchyard.dev/checkpoint-every: 10s"


def world(*texts: str, trouble: WriteFaults | None = None, **words: str) -> World:
    """Return a world of these manifests, with substituted words."""
    text = "---".join(texts)
    words = {"MODE": "completionMode: Indexed", "NOTES": SAVES, **words}
    for word, stated in words.items():
        text = text.replace(word, stated)
    result = read_manifests([("w.yaml", text)])
    assert [*map(str, result.faults)] == []
    return World(make_scenario(result), write_faults=trouble)


def completion_times(played: World, kind: str = scheme.JOB) -> dict[str, float]:
    """Run the world; return the completion time of each Job."""
    played.run_until(HOUR)
    assert played.rejected_writes == []
    return {obj["metadata"]["name"]: _completed(obj) for obj in played.objects(kind)}


def _completed(obj: Obj) -> float:
    (done,) = [c for c in obj["status"]["conditions"] if c["type"] in {"Complete", "Completed"}]
    return duration_seconds(parse_time(done["lastTransitionTime"]) - EPOCH)


@pytest.mark.parametrize("mode", ["completionMode: Indexed", "completionMode: NonIndexed"])
@pytest.mark.parametrize(
    ("notes", "end"), [(SAVES, 85), (SAVES.replace("10s", "7s"), 84), ("batchyard.dev/runtime: 60s", 105)]
)
def test_preempted_job_resumes_from_last_checkpoint(mode: str, notes: str, end: float) -> None:
    played = world(QUEUE, JOB, URGENT, MODE=mode, NOTES=notes)
    assert completion_times(played) == {"work": end, "urgent": 45}


def test_saved_work_of_job_set_survives_deletion_of_its_jobs() -> None:
    assert completion_times(world(QUEUE, JOB_SET, URGENT), scheme.JOB_SET) == {"work": 85}


def test_saved_work_is_annotated_until_job_completes() -> None:
    played = world(QUEUE, JOB, URGENT)
    notes = {}
    for at in (20, 30, 60, 90):
        played.run_until(at * 1_000_000)
        (job,) = [job for job in played.objects(scheme.JOB) if job["metadata"]["name"] == "work"]
        notes[at] = annotation(job, "batchyard.dev/work-done")
        resumed = [
            resumed_work(pod) for pod in played.objects(scheme.POD) if pod["metadata"]["name"].startswith("work")
        ]
        assert resumed == {20: [0, 0], 30: [], 60: [20_000_000] * 2, 90: [20_000_000] * 2}[at]
    assert notes == {20: None, 30: '{"0":"20s","1":"20s"}', 60: '{"0":"20s","1":"20s"}', 90: None}


@pytest.mark.parametrize("manifest", [JOB, JOB.replace("MODE, ", ""), JOB_SET])
def test_saved_work_survives_platform_crash_after_each_write(manifest: str) -> None:
    counted = WriteFaults()
    writes: list[int] = []
    counted.on_write = writes.append
    expected = completion_times(world(QUEUE, manifest, URGENT, trouble=counted))
    assert len(writes) > 30
    for crash_after in writes:
        trouble = WriteFaults()
        played = world(QUEUE, manifest, URGENT, trouble=trouble)
        trouble.on_write = lambda count, after=crash_after, it=played: it.crash() if count == after else None
        assert (crash_after, completion_times(played)) == (crash_after, expected)


@pytest.mark.parametrize("manifest", [JOB, JOB_SET])
def test_machine_crash_loses_only_unsaved_work(manifest: str) -> None:
    """Its pods run for 34 s before the loss, and for the other 30 s after it; their start takes 1 s."""
    played = world(QUEUE, manifest, CLUSTER, FAULT="{at: 35s, fail: {pool: p, count: 2}}")
    books = RunAccounting(played.client, played.kernel)
    completion_times(played)
    assert [duration_seconds(resumed_work(pod)) for pod in played.objects(scheme.POD)] == [30, 30]
    hours = {line.use: line.machine_hours for line in books.cost_statement(played.kernel.now()).by_team}
    assert hours[DONE] / hours[LOST] == pytest.approx((30 + 31) / 5)
