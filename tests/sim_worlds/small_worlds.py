"""Small worlds with nodes, one for each way of machine creation and loss, and their outcomes after crashes."""

from collections.abc import Container
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import find_condition, is_true
from batchyard.api.well_known import NODE_POOL
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.faults import WriteFaults
from batchyard.sim.invariants.checker import attach_invariants
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

STEPS_MAX: Final = 50_000
"""An upper bound of the work of each of these worlds."""

_CLUSTER: Final = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: z
  zones: [z-a, z-b]
  nodePools:
"""
_QUEUE: Final = """
---
{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: all}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [RESOURCE]
      flavors: [{name: all, resources: [{name: RESOURCE, nominalQuota: 64}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: all, namespace: default}
spec: {clusterQueue: all}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: low}, value: 1}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 2}
"""
_JOB: Final = """
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: all}
  annotations: {batchyard.dev/submit-at: 1s, batchyard.dev/runtime: 5m}
spec:
  parallelism: 2
  completions: 3
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {cloud.google.com/gke-nodepool: POOL}
      tolerations: [{key: nvidia.com/gpu, operator: Exists}]
      containers: [{name: main, image: i, resources: {limits: {RESOURCE: COUNT}}}]
"""
_JOB_SET: Final = """
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: NAME
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: all}
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
    batchyard.dev/submit-at: 1s
    batchyard.dev/runtime: 10m
spec:
  failurePolicy: {maxRestarts: 10, restartStrategy: BlockingRecreate}
  replicatedJobs:
    - name: slice
      replicas: 1
      template:
        spec:
          backoffLimit: 0
          completions: 2
          parallelism: 2
          template:
            spec:
              restartPolicy: Never
              priorityClassName: NAME
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice
                cloud.google.com/gke-tpu-topology: 2x4
              containers: [{name: main, image: i, resources: {limits: {google.com/tpu: 4}}}]
"""
_ON_REQUEST: Final = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: dws}
spec:
  controllerName: kueue.x-k8s.io/provisioning-request
  parameters: {apiGroup: kueue.x-k8s.io, kind: ProvisioningRequestConfig, name: dws}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ProvisioningRequestConfig
metadata: {name: dws}
spec: {provisioningClassName: queued-provisioning.gke.io, managedResources: [nvidia.com/gpu]}
"""
_IN_TURN: Final = """
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: high
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: all}
  annotations: {batchyard.dev/submit-at: 1s, batchyard.dev/runtime: 2m}
spec:
  failurePolicy: {maxRestarts: 3}
  replicatedJobs:
    - &job
      name: first
      replicas: 2
      template:
        spec:
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              containers: [{name: main, image: i, resources: {requests: {cpu: 2}}}]
    - <<: *job
      name: second
      dependsOn: [{name: first, status: Complete}]
"""
_FAULT: Final = """
---
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: fault}
spec: {faults: [{at: 3m, FAULT}]}
"""
_LOSS: Final = _FAULT.replace("FAULT", "fail: {jobSet: default/high}")
_ELASTIC: Final = "name: elastic, machineType: n2-standard-4, autoscaling: {totalMin: 0, totalMax: 4}"
_MAKING: Final = """  autoscaling:
    autoProvisioning: {limits: [{resource: cpu, max: 100}, {resource: memory, max: 999}, {resource: nvidia-l4, max: 4}]}
"""
_SLICE: Final = "machineType: ct5lp-hightpu-4t, tpuTopology: 2x4, zones: [z-a]"


def _pools(*pools: str) -> str:
    return _CLUSTER + "".join(f"    - {{{pool}}}\n" for pool in pools)


def _job(pool: str, resource: str, count: int) -> str:
    return _JOB.replace("POOL", pool).replace("RESOURCE", resource).replace("COUNT", str(count))


def _queue(resource: str, checks: str = "") -> str:
    return _QUEUE.replace("RESOURCE", resource).replace("  namespaceSelector", f"{checks}  namespaceSelector")


WORLDS: Final = {
    "a Job on a pool with an autoscaler": (_pools(_ELASTIC) + _queue("cpu") + _job("elastic", "cpu", 3)),
    "a Job whose Spot machine is reclaimed": (
        _pools(f"{_ELASTIC}, provisioning: spot")
        + _queue("cpu")
        + _job("elastic", "cpu", 3)
        + _FAULT.replace("FAULT", "reclaimSpot: {pool: elastic, count: 1}")
    ),
    "a Job on an auto-provisioned pool": (
        _pools("name: fixed, machineType: e2-standard-4, nodeCount: 1")
        + _MAKING
        + _queue("nvidia.com/gpu")
        + _job("", "nvidia.com/gpu", 1).replace("gke-nodepool: ", "gke-accelerator: nvidia-l4")
    ),
    "a JobSet of sequential Jobs that loses a machine": (_pools(_ELASTIC) + _queue("cpu") + _IN_TURN + _LOSS),
    "a JobSet on an autoscaled slice": (
        _pools(f"name: slice, {_SLICE}, autoscaling: {{totalMin: 0, totalMax: 2}}")
        + _queue("google.com/tpu")
        + _JOB_SET.replace("NAME", "high")
    ),
    "a Job that waits for a ProvisioningRequest": (
        _pools(
            "name: queued, machineType: n1-standard-4, accelerator: {type: nvidia-tesla-t4, count: 1}, zones: [z-a], "
            "provisioning: queued, autoscaling: {totalMin: 0, totalMax: 2}"
        )
        + _ON_REQUEST
        + _queue("nvidia.com/gpu", "  admissionChecksStrategy: {admissionChecks: [{name: dws}]}\n")
        + _job("queued", "nvidia.com/gpu", 1)
    ),
    "a JobSet that loses a machine and takes another's slice": (
        _pools(f"name: slice-0, {_SLICE}, nodeCount: 2", f"name: slice-1, {_SLICE}, nodeCount: 2")
        + _queue("google.com/tpu")
        + _JOB_SET.replace("NAME", "low")
        + _JOB_SET.replace("NAME", "high")
        + _LOSS
    ),
}


class WorldOutcome(NamedTuple):
    """The outcome of a world: violated invariants, unfinished objects, the pools of nodes, and preempted Workloads."""

    broken: list[str]
    unfinished: list[str]
    pools: list[str]
    preempted: list[str]


def play(name: str, crash_after: Container[int] = ()) -> tuple[WorldOutcome, int]:
    """Run a world whose platform crashes after these writes; return its outcome and the number of writes."""
    written, trouble = [0], WriteFaults()
    world = World(make_scenario(read_manifests([(name, WORLDS[name])])), write_faults=trouble)

    def note(count: int) -> None:
        written[0] = count
        if count in crash_after:
            world.crash()

    trouble.on_write = note
    inspection = attach_invariants(world)
    for _ in range(2):
        world.kernel.run(steps_max=STEPS_MAX)
        world.flush_batched_writes()
    broken = [str(violation) for violation in inspection.finish()]
    if world.kernel.pending_count():
        broken.append(f"it still spins at {world.now()}")
    pools = sorted(node["metadata"]["labels"][NODE_POOL] for node in world.objects(scheme.NODE))
    workloads = world.objects(scheme.WORKLOAD)
    preempted = [obj["metadata"]["name"] for obj in workloads if find_condition(obj, "Preempted") is not None]
    return WorldOutcome(broken, _unfinished(world), pools, preempted), written[0]


def _unfinished(world: World) -> list[str]:
    """Return the objects that did not complete."""
    ends = ((scheme.JOB, "Complete"), (scheme.JOB_SET, "Completed"))
    jobs = [obj["metadata"]["name"] for kind, end in ends for obj in world.objects(kind) if not is_true(obj, end)]
    return [*jobs, *(obj["metadata"]["name"] for obj in world.objects(scheme.WORKLOAD) if not is_finished(obj))]
