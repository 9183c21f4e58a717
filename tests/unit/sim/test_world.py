"""The simulated world: apply, reject, settle."""

from pathlib import Path

import pytest

import make
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete
from batchyard.sim.faults import FaultyClient, WriteFaults
from batchyard.sim.scenario import Scenario, ScenarioStep, make_scenario
from batchyard.sim.world import EPOCH, StoppedByPreemptionLoop, World
from batchyard.store.memory import Store

LIVELOCK = Path(__file__).with_name("livelock.yaml")
TEAM = Key(scheme.NAMESPACE, "", "team")


def namespace(**labels: str) -> make.Obj:
    """A Namespace as a user writes it."""
    obj = make.namespace(**labels)
    return {**obj, "metadata": {"name": "team", "labels": obj["metadata"]["labels"]}}


def world(*steps: ScenarioStep) -> World:
    """A world with these steps."""
    return World(Scenario(steps))


QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
spec: {nodeLabels: {pool: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: spot, resources: [{name: cpu, nominalQuota: 1}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: team, labels: {tier: gold}}
spec: {clusterQueue: cq}
"""

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, namespace: team, labels: {kueue.x-k8s.io/queue-name: lq}}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}
"""

JOB_SET = """
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, namespace: team}
spec:
  replicatedJobs:
  - name: r
    template:
      spec:
        template:
          spec: {restartPolicy: Never, priorityClassName: high, containers: [{name: c, image: i}]}
"""


def manifests(text: str) -> list[make.Obj]:
    """The objects of a text, complete, in their storage version."""
    read = read_manifests([("f", text)])
    assert read.faults == []
    return [manifest.obj for manifest in read.objects]


def two_jobs() -> World:
    """A world with a Job that runs and, one second later, a Job that waits."""
    jobs = [*manifests(JOB.replace("NAME", "runs")), *manifests(JOB.replace("NAME", "waits"))]
    queues = ScenarioStep(0, [namespace(), *manifests(QUEUES)], ())
    return world(queues, *[ScenarioStep(at * SECOND, [jobs[at]], ()) for at in (0, 1)])


def queueing() -> World:
    """Both Jobs in that world, settled."""
    busy = two_jobs()
    busy.run_until(3 * SECOND)
    busy.flush_batched_writes()
    assert [job["spec"]["suspend"] for job in busy.objects(scheme.JOB)] == [False, True]
    return busy


def test_run_until_advances_clock_of_empty_world() -> None:
    empty = world()
    empty.run_until(7 * SECOND)
    assert empty.now() == 7 * SECOND


def test_later_manifest_updates_object_and_keeps_uid() -> None:
    two = world(ScenarioStep(0, [namespace()], ()), ScenarioStep(SECOND, [namespace(tier="gold")], ()))
    two.run_until(0)
    before = two.client.get(TEAM)
    two.run_until(None)
    after = two.client.get(TEAM)
    assert before is not None
    assert after is not None
    assert after["metadata"]["labels"]["tier"] == "gold"
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_generate_name_creates_new_object_on_every_apply() -> None:
    nameless = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "team-"}}
    two = world(ScenarioStep(0, [nameless], ()), ScenarioStep(SECOND, [nameless], ()))
    two.run_until(None)
    names = [obj["metadata"]["name"] for obj in two.objects(scheme.NAMESPACE)][-2:]
    assert [name[:5] for name in names] == ["team-", "team-"]
    assert names[0] != names[1]


def test_reapplied_manifests_change_nothing() -> None:
    busy = queueing()
    revision = busy.store.revision
    for text in (QUEUES, JOB.replace("NAME", "runs"), JOB.replace("NAME", "waits")):
        for obj in manifests(text):
            busy.apply(obj)
    assert (busy.store.revision, busy.rejected_writes) == (revision, [])


@pytest.mark.parametrize("name", ["runs", "waits"])
def test_changed_label_keeps_fields_written_by_platform(name: str) -> None:
    busy = queueing()
    key = Key(scheme.JOB, "team", name)
    before = busy.client.get(key)
    (job,) = manifests(JOB.replace("NAME", name).replace("labels: {", "labels: {tier: gold, "))
    busy.apply(job)
    after = busy.client.get(key)
    assert before is not None
    assert after is not None
    assert busy.rejected_writes == []
    assert after["metadata"]["labels"]["tier"] == "gold"
    assert {**after, "metadata": None} == {**before, "metadata": None}


def test_changed_quota_is_applied() -> None:
    busy = queueing()
    for obj in manifests(QUEUES.replace("nominalQuota: 1", "nominalQuota: 2")):
        busy.apply(obj)
    busy.run_until(5 * SECOND)
    assert [job["spec"]["suspend"] for job in busy.objects(scheme.JOB)] == [False, False]


def test_removed_field_is_removed() -> None:
    busy = queueing()
    for obj in manifests(QUEUES.replace(", labels: {tier: gold}", "")):
        busy.apply(obj)
    (queue,) = busy.objects(scheme.LOCAL_QUEUE)
    assert "labels" not in queue["metadata"]


def test_rejected_manifest_is_not_recorded_as_applied() -> None:
    busy = queueing()
    (longer,) = manifests(JOB.replace("NAME", "runs").replace("spec:\n", "spec:\n  completions: 5\n", 1))
    for _ in range(2):
        busy.apply(longer)
    assert len(busy.rejected_writes) == 2


def test_deleted_object_is_gone() -> None:
    brief = world(ScenarioStep(0, [namespace()], ()), ScenarioStep(SECOND, (), [TEAM]))
    brief.run_until(None)
    assert brief.client.get(TEAM) is None


def test_deletion_of_missing_object_is_rejected_and_run_continues() -> None:
    odd = world(ScenarioStep(0, (), [TEAM]), ScenarioStep(SECOND, [namespace()], ()))
    odd.run_until(None)
    (refused,) = odd.rejected_writes
    assert (refused[0], refused[1].reason) == (Delete(TEAM), "NotFound")
    assert odd.client.get(TEAM) is not None


def test_preemption_loop_stops_world_in_consistent_state() -> None:
    looping = World(make_scenario(read_manifests([("f", LIVELOCK.read_text("utf-8"))])), stop_on_loop=True)
    with pytest.raises(StoppedByPreemptionLoop, match="endlessly: team/elastic preempts team/rigid"):
        looping.run_until(None)
    looping.flush_batched_writes()
    looping.platform.runner.validate()
    looping.store.validate()
    assert [queue["status"]["pendingWorkloads"] for queue in looping.objects(scheme.CLUSTER_QUEUE)] == [1, 1]


def test_job_without_queue_label_waits_in_default_queue() -> None:
    queues = manifests(QUEUES.replace("name: lq", "name: default").replace("nominalQuota: 1", "nominalQuota: 0"))
    jobs = manifests(JOB.replace("NAME", "free").replace(", labels: {kueue.x-k8s.io/queue-name: lq}", ""))
    waiting = world(ScenarioStep(0, [namespace(), *queues, *jobs], ()))
    waiting.run_until(SECOND)
    assert [workload["spec"]["queueName"] for workload in waiting.objects(scheme.WORKLOAD)] == ["default"]
    assert [job["spec"]["suspend"] for job in waiting.objects(scheme.JOB)] == [True]


def test_status_in_manifest_is_ignored() -> None:
    over = {"conditions": [{"type": "Complete", "status": "True"}]}
    job, job_set = [*manifests(JOB.replace("NAME", "again")), *manifests(JOB_SET)[1:]]
    known = world()
    known.apply(namespace())
    known.apply({**job, "status": over})
    known.apply({**job_set, "status": over})
    assert [known.objects(kind)[0].get("status") for kind in (scheme.JOB, scheme.JOB_SET)] == [None, None]


def test_flush_batched_writes_is_idempotent() -> None:
    busy = two_jobs()
    busy.run_until(SECOND + SECOND // 2)
    revisions = [busy.store.revision]
    for _ in range(2):
        busy.flush_batched_writes()
        revisions.append(busy.store.revision)
    assert revisions[0] < revisions[1] == revisions[2]


def test_restarted_platform_deletes_orphans_of_deleted_owner() -> None:
    steps = ScenarioStep(0, [namespace(), *manifests(JOB_SET)], ())
    mortal = World(Scenario([steps]), write_faults=WriteFaults())
    mortal.run_until(SECOND)
    assert len(mortal.objects(scheme.JOB)) == 1
    mortal.submit(Delete(Key(scheme.JOB_SET, "team", "set")))
    mortal.crash()
    mortal.run_until(2 * SECOND)
    assert not mortal.objects(scheme.JOB)


def test_rejected_write_is_not_counted_as_write() -> None:
    trouble, counts, kernel = WriteFaults(), list[int](), VirtualEventLoop(EPOCH)
    trouble.on_write = counts.append
    client = FaultyClient(LocalClient(Store(), kernel), trouble)
    for write in (Delete(TEAM), Create(make.namespace("team")), Create(make.namespace("team"))):
        client.submit([write], lambda _: None)
    assert counts == [1]


def test_pods_of_jobset_have_priority_label_without_nodes() -> None:
    started = world(ScenarioStep(0, [make.jobset(queue=None, suspend=False)], ()))
    started.run_until(0)
    reported = [pod["metadata"]["labels"]["jobset.sigs.k8s.io/priority"] for pod in started.objects(scheme.POD)]
    assert set(reported) == {"0"}
