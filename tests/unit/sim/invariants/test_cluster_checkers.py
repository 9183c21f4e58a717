"""Every cluster invariant detects its violation: the platform is stopped, and the tests change the world."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, with_status
from batchyard.base.instant import MINUTE
from batchyard.interfaces.client import Create, Update, UpdateStatus
from batchyard.sim.invariants.checker import INVARIANTS, InvariantChecker, attach_invariants
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

WORLD = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: r
  zones: [r-a]
  nodePools:
  - {name: cpu, machineType: e2-standard-4, nodeCount: 2}
  - {name: elastic, machineType: n2-standard-4, autoscaling: {totalMin: 0, totalMax: 3}}
  - {name: tpu, machineType: ct5lp-hightpu-4t, tpuTopology: 2x4, nodeCount: 2}
  capacity: [{machineType: n2-standard-4, zone: r-a, count: 1}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: held, namespace: team, labels: {kueue.x-k8s.io/queue-name: none}}
spec:
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: done, namespace: team}
spec:
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, command: [sleep, "5"]}]}}
"""


@pytest.fixture
def world() -> World:
    """A world after 30 minutes of virtual time."""
    world = World(make_scenario(read_manifests([("world.yaml", WORLD)])))
    world.run_until(30 * MINUTE)
    return world


def inspect_stopped_world(world: World) -> InvariantChecker:
    """Attaches the invariants and stops the platform."""
    world.platform.runner.stop()
    return attach_invariants(
        world, [law for law in INVARIANTS if law.name not in {"watch_has_no_gap", "assumed_equals_confirmed"}]
    )


def violated_invariants(world: World, inspection: InvariantChecker) -> list[str]:
    """The violated invariants without duplicates."""
    world.run_until(None)
    assert world.rejected_writes == []
    return list(dict.fromkeys(violation.invariant for violation in inspection.finish()))


def pod(name: str, node: str = "", requests: Mapping[str, Any] | None = None, **metadata: Any) -> Obj:
    """A pod, on a node or on none."""
    spec = {**make.pod_template(requests or {"cpu": "1"})["spec"], **({"nodeName": node} if node else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": spec,
    }


def nodes_of(world: World, pool: str) -> list[str]:
    """The nodes of a pool."""
    return [obj["metadata"]["name"] for obj in world.objects(scheme.INSTANCE) if obj["spec"]["pool"] == pool]


def machine(name: str, pool: str = "elastic", **spec: Any) -> Obj:
    """An Instance that was not requested."""
    own = {"pool": pool, "zone": "r-a", "machineType": "n2-standard-4", "provisioning": "standard", **spec}
    meta = {"name": name, "labels": {well_known.NODE_POOL: pool}}
    return {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "Instance", "metadata": meta, "spec": own}


def set_phase(world: World, name: str, phase: str) -> None:
    """Sets the phase of an Instance."""
    result = world.client.get(Key(scheme.INSTANCE, "", name))
    assert result is not None
    status = {**(result.get("status") or {}), "phase": phase, "since": "2026-01-01T00:30:00Z"}
    world.submit(UpdateStatus(with_status(result, status)))


def test_unmodified_cluster_violates_no_invariant(world: World) -> None:
    assert violated_invariants(world, inspect_stopped_world(world)) == []


def test_pod_of_suspended_job_is_detected(world: World) -> None:
    inspection, job = inspect_stopped_world(world), world.client.get(Key(scheme.JOB, "team", "held"))
    assert job is not None
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "held", "uid": job["metadata"]["uid"], "controller": True}
    world.submit(Create(pod("p", nodes_of(world, "cpu")[0], ownerReferences=[owner])))
    assert "no_pod_without_admission" in violated_invariants(world, inspection)


def test_pod_on_node_with_untolerated_taint_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    node = world.client.get(Key(scheme.NODE, "", nodes_of(world, "cpu")[0]))
    assert node is not None
    world.submit(Update({**node, "spec": {**node["spec"], "taints": [{"key": "k", "effect": "NoSchedule"}]}}))
    world.kernel.run()
    world.submit(Create(pod("p", nodes_of(world, "cpu")[0])))
    assert "pods_suit_their_nodes" in violated_invariants(world, inspection)


def test_overcommitted_node_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    world.submit(Create(pod("p", nodes_of(world, "cpu")[0], {"cpu": "5"})))
    assert violated_invariants(world, inspection) == ["nodes_are_never_overfull", "nothing_hangs"]


def test_two_jobs_in_exclusive_domain_are_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    topology = {well_known.EXCLUSIVE_TOPOLOGY: well_known.NODE_POOL}
    for key, node in zip("ab", nodes_of(world, "cpu"), strict=True):
        world.submit(Create(pod(key, node, annotations=topology, labels={well_known.JOB_KEY: key})))
    assert "exclusive_domains" in violated_invariants(world, inspection)


def test_partially_crashed_slice_that_keeps_running_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    set_phase(world, nodes_of(world, "tpu")[0], "Crashed")
    world.run_until(35 * MINUTE)
    world.submit(Create(pod("p")))
    assert "slices_are_whole" in violated_invariants(world, inspection)


def test_partially_fulfilled_resize_request_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    spec = {"pool": "elastic", "zone": "r-a", "count": 2}
    request = {"kind": "ResizeRequest", "metadata": {"name": "r"}, "spec": spec}
    world.submit(Create({"apiVersion": "cloud.batchyard.dev/v1alpha1", **request}))
    world.submit(Create(machine("m", resizeRequest="r")))
    assert "requests_are_whole" in violated_invariants(world, inspection)


def test_instances_over_cloud_capacity_are_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    for name in "mn":
        world.submit(Create(machine(name)))
        set_phase(world, name, "Provisioning")
    assert "cloud_is_never_oversold" in violated_invariants(world, inspection)


@pytest.mark.parametrize("status", [{"succeeded": 2}, {"succeeded": 1, "failed": 3}, {"succeeded": 0}])
def test_wrong_pod_counts_of_job_are_detected(world: World, status: dict[str, int]) -> None:
    inspection, job = inspect_stopped_world(world), world.client.get(Key(scheme.JOB, "team", "done"))
    assert job is not None
    world.submit(UpdateStatus(with_status(job, {**job["status"], **status})))
    assert violated_invariants(world, inspection) == ["jobs_count_right"]


def test_idle_node_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    world.submit(Create(machine("m")))
    set_phase(world, "m", "Running")
    assert "idle_nodes_are_released" in violated_invariants(world, inspection)


def test_orphaned_lease_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    lease = {"kind": "Lease", "metadata": {"name": "n", "namespace": "kube-node-lease"}, "spec": {}}
    world.submit(Create({"apiVersion": "coordination.k8s.io/v1", **lease}))
    assert violated_invariants(world, inspection) == ["nothing_is_orphaned"]


def test_pending_pod_that_fits_is_detected(world: World) -> None:
    inspection = inspect_stopped_world(world)
    world.submit(Create(pod("p")))
    assert violated_invariants(world, inspection) == ["nothing_hangs"]
