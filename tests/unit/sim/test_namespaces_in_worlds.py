"""Worlds whose Namespaces are deleted while they contain work."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Delete
from batchyard.sim.faults import WriteFaults
from batchyard.sim.scenario import Scenario, ScenarioStep, make_scenario
from batchyard.sim.world import World

TEAM = Key(scheme.NAMESPACE, "", "team")
TEMPLATE = "{spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}}"
WORK = f"""
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: cq}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{{name: spot, resources: [{{name: cpu, nominalQuota: 9}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: lq, namespace: team}}
spec: {{clusterQueue: cq}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: job, namespace: team, labels: {{kueue.x-k8s.io/queue-name: lq}}}}
spec: {{template: {TEMPLATE}}}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: set, namespace: team, labels: {{kueue.x-k8s.io/queue-name: lq}}}}
spec: {{replicatedJobs: [{{name: part, replicas: 2, template: {{spec: {{template: {TEMPLATE}}}}}}}]}}
"""

CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: r
  zones: [r-a]
  nodePools: [{name: p, machineType: e2-standard-4, nodeCount: 1}]
"""


def config_map(name: str, **metadata: Any) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team", **metadata}}


def test_creation_in_terminating_namespace_is_rejected() -> None:
    held = config_map("held", finalizers=["test/keep"])
    late = ScenarioStep(2 * SECOND, (config_map("late"), make.job("late")), ())
    world = World(Scenario((ScenarioStep(0, (make.namespace(), held), ()), ScenarioStep(SECOND, (), (TEAM,)), late)))
    world.run_until(None)
    why = "is forbidden: unable to create new content in namespace team because it is being terminated"
    reported = [(type(error).__name__, str(error)) for _, error in world.rejected_writes]
    assert reported == [
        ("NamespaceTerminating", f'configmaps "late" {why}'),
        ("NamespaceTerminating", f'jobs.batch "late" {why}'),
    ]


def test_namespace_without_manifest_exists_from_start() -> None:
    world = World(Scenario((ScenarioStep(5 * SECOND, (config_map("a"),), ()),)))
    world.run_until(SECOND)
    assert world.client.get(TEAM) is not None
    world.run_until(None)
    assert not world.rejected_writes


def test_creation_in_missing_namespace_is_rejected() -> None:
    given = ScenarioStep(2 * SECOND, (make.namespace(),), ())
    world = World(
        Scenario(
            (ScenarioStep(0, (config_map("early"),), ()), given, ScenarioStep(3 * SECOND, (config_map("a"),), (TEAM,)))
        )
    )
    world.run_until(4 * SECOND)
    world.apply(config_map("late"))
    world.run_until(5 * SECOND)
    reported = [(type(error).__name__, str(error)) for _, error in world.rejected_writes]
    assert reported == [("NotFound", 'namespaces "team" not found')] * 2


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
def test_system_namespaces_cannot_be_deleted(name: str) -> None:
    world = World(Scenario(()))
    world.run_until(SECOND)
    world.submit(Delete(Key(scheme.NAMESPACE, "", name)))
    world.run_until(None)
    ((_, error),) = world.rejected_writes
    assert (error.reason, str(error)) == (
        "Forbidden",
        f'namespaces "{name}" is forbidden: this namespace may not be deleted',
    )
    assert "deletionTimestamp" not in world.objects(scheme.NAMESPACE)[0]["metadata"]


@pytest.mark.parametrize("crashes", [False, True])
def test_lease_namespace_is_recreated(crashes: bool) -> None:
    world = World(make_scenario(read_manifests([("f", CLUSTER)])), write_faults=WriteFaults())
    world.run_until(SECOND)
    before = [obj["metadata"]["uid"] for obj in world.objects(scheme.LEASE)]
    world.submit(Delete(Key(scheme.NAMESPACE, "", "kube-node-lease")))
    if crashes:
        world.crash()
    world.run_until(300 * SECOND)
    after = [obj["metadata"]["uid"] for obj in world.objects(scheme.LEASE)]
    assert (len(before), len(after), set(before) & set(after)) == (1, 1, set())
    assert not world.platform.runner.failing_keys()


@pytest.mark.parametrize("kind", [scheme.JOB, scheme.JOB_SET])
def test_job_held_in_terminating_namespace_gets_no_pods_and_no_retry_loop(kind: str) -> None:
    world = World(make_scenario(read_manifests([("f", WORK)])))
    world.run_until(SECOND)
    held = next(obj for obj in world.objects(kind) if obj["metadata"]["name"] in ("job", "set"))
    world.apply({**held, "metadata": {**held["metadata"], "finalizers": ["test/keep"]}})
    world.run_until(2 * SECOND)
    world.submit(Delete(TEAM))
    steps = world.kernel.steps
    world.run_until(60 * SECOND)
    assert [obj["metadata"]["name"] for obj in world.objects(kind)] == [held["metadata"]["name"]]
    assert not world.objects(scheme.POD)
    assert not world.platform.runner.failing_keys()
    assert world.kernel.steps - steps < 200
