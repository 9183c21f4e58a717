"""The binding limit of pods that have no node or lack an object, and changes after which they get a node."""

from pathlib import Path
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import MINUTE
from batchyard.explain.admitted import placement_limit
from batchyard.sim.scenario import make_scenario
from batchyard.sim.simulate import read_scenario
from batchyard.sim.world import World

EXAMPLES = Path(__file__).parents[3] / "examples"
SELECTED = "node(s) didn't match Pod's node affinity/selector"
TAINTED = "node(s) had untolerated taint {spot: true}"
FULL = "pod didn't trigger scale-up: 1 max node group size reached"


@pytest.mark.parametrize(
    ("scheduler", "autoscaler", "is_selected", "limit"),
    [
        (f"3 {SELECTED}, 2 node(s) didn't match pod anti-affinity rules", FULL, True, "topology"),
        ("2 Insufficient cpu, 1 node(s) didn't match pod topology spread constraints", "", True, "topology"),
        (f"2 Insufficient cpu, 3 {SELECTED}, 1 {TAINTED}", "", True, "nodeCapacity"),
        (f"6 {SELECTED}", FULL, False, "nodeCapacity"),
        (f"3 {SELECTED}, 1 {TAINTED}", "", True, "taint"),
        (f"3 {SELECTED}, 1 {TAINTED}", "", False, "affinity"),
        ("", "", False, "nodeCapacity"),
    ],
)
def test_limit_among_nodes_returns_filter_failed_by_nearest_nodes(
    scheduler: str, autoscaler: str, is_selected: bool, limit: str
) -> None:
    assert placement_limit(scheduler, autoscaler, is_selected=is_selected) == limit


CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: us-central1
  zones: [us-central1-a]
  nodePools: [{name: p, machineType: e2-standard-4, zones: [us-central1-a], nodeCount: 2, taints: [TAINTS]}]
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: q}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: f, resources: [{name: cpu, nominalQuota: 1000}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: q, namespace: team}
spec: {clusterQueue: q}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: r, namespace: team}
spec: {hard: {pods: QUOTA}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: asked
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: q}
  annotations: {batchyard.dev/submit-at: 10m, batchyard.dev/runtime: 10h}
spec:
  parallelism: 2
  completions: 2
  template:
    spec: {restartPolicy: Never, CONSTRAINTS, containers: [{name: c, image: i, resources: {requests: {cpu: AMOUNT}}}]}
"""
TAINT = "{key: a, value: b, effect: NoSchedule}"


def explained(taints: str = "", quota: str = "9", constraints: str = "tolerations: []", cpu: str = "1") -> Any:
    """Return the answer about the Job in a cluster of two machines."""
    return explained_text(CLUSTER, taints, quota, constraints, cpu)


def explained_text(
    template: str, taints: str = "", quota: str = "9", constraints: str = "tolerations: []", cpu: str = "1"
) -> Any:
    """Return the answer about the Job in manifests."""
    text = template.replace("TAINTS", taints).replace("QUOTA", quota)
    result = read_manifests([("c.yaml", text.replace("CONSTRAINTS", constraints).replace("AMOUNT", cpu))])
    assert [*map(str, result.faults)] == []
    world = World(make_scenario(result))
    world.run_until(30 * MINUTE)
    world.flush_batched_writes()
    return world.platform.explainer.why(Key(scheme.JOB, "team", "asked"), world.kernel.now())


@pytest.mark.parametrize(
    ("arguments", "limit", "constraints", "text"),
    [
        ({"taints": TAINT}, "taint", "tolerations: [{key: a, operator: Exists}]", "tolerate a=b:NoSchedule"),
        (
            {"taints": TAINT, "constraints": "nodeSelector: {x: y}, tolerations: [{key: a, operator: Exists}]"},
            "affinity",
            "tolerations: [{key: a, operator: Exists}]",
            "no longer select x",
        ),
        ({"constraints": "nodeSelector: {x: y}"}, "affinity", "tolerations: []", "no longer select x"),
        (
            {"constraints": "nodeSelector: {topology.kubernetes.io/zone: z}"},
            "affinity",
            "nodeSelector: {topology.kubernetes.io/zone: us-central1-a}",
            "select topology.kubernetes.io/zone=us-central1-a",
        ),
    ],
)
def test_proposed_constraints_place_pods(arguments: dict[str, str], limit: str, constraints: str, text: str) -> None:
    answer = explained(**arguments)
    assert answer["binding"]["limit"] == limit
    assert [each["text"] for each in answer["changes"]] == [
        f"let its pods use other nodes: {text}; submit the job again with this change"
    ]
    assert explained(**{**arguments, "constraints": constraints})["state"] == "Running"


def test_pods_larger_than_machines_have_no_proposal() -> None:
    answer = explained(cpu="5")
    assert (answer["binding"]["limit"], answer.get("changes")) == ("nodeCapacity", None)
    assert answer["changesEnd"].startswith("its pods need nodes that no pool has")


@pytest.mark.parametrize(
    ("minutes", "retry"),
    [
        (3, "it is not retried before 2026-01-01T00:05:40Z"),
        (60, "its backoff ended at 2026-01-01T00:05:40Z, and it is retried when the cloud may have the machines"),
    ],
)
def test_retry_after_stock_out_is_never_in_the_past(minutes: int, retry: str) -> None:
    scenario, _ = read_scenario([str(EXAMPLES / "why" / "stock-out.yaml")])
    world = World(scenario)
    world.run_until(minutes * MINUTE)
    answer = world.platform.explainer.why(Key(scheme.JOB, "empty", "render"), world.kernel.now())
    assert answer is not None
    assert answer["nodes"]["waitsFor"] == [f"pool l4-pool/us-central1-a: ZONE_RESOURCE_POOL_EXHAUSTED; {retry}"]


def test_resource_quota_that_rejects_pods_is_limit() -> None:
    answer = explained(quota="1")
    assert (answer["state"], answer["binding"]["limit"]) == ("Admitted", "podCreation")
    assert answer["binding"]["where"] == {"kind": "ResourceQuota", "name": "r"}
    assert "exceeded quota: r, requested: pods=1, used: pods=1, limited: pods=1" in answer["summary"]
    assert explained(quota="2")["state"] == "Running"


def test_machines_of_provisioning_request_that_boot_are_limit() -> None:
    files = sorted((EXAMPLES / "dws").glob("*.yaml"))
    world = World(make_scenario(read_manifests([(path.name, path.read_text("utf-8")) for path in files])))
    world.run_until(12 * MINUTE)
    answer = world.platform.explainer.why(Key(scheme.JOB, "default", "sample-job"), world.kernel.now())
    assert answer is not None
    assert answer["binding"]["limit"] == "booting"
    assert answer["binding"]["where"] == {"kind": "NodePool", "name": "dws-t4-nodepool"}
    assert answer["changesEnd"] == "the pods are placed without a change when the machines are ready"


GATED = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: hosts}
spec: {levels: [{nodeLabel: kubernetes.io/hostname}]}
---
"""


def explained_in_slices(pod_count: int) -> Any:
    """Return the answer about a Job of pods in slices of two, on two machines of a topology."""
    annotations = "{kueue.x-k8s.io/podset-slice-required-topology: kubernetes.io/hostname, "
    annotations += "kueue.x-k8s.io/podset-slice-size: '2'}"
    text = CLUSTER.replace(
        "metadata: {name: f}", "metadata: {name: f}\nspec: {topologyName: hosts, nodeLabels: {a: b}}"
    )
    text = text.replace("nodeCount: 2,", "nodeCount: 2, labels: {a: b},")
    text = text.replace("  template:\n    spec", f"  template:\n    metadata: {{annotations: {annotations}}}\n    spec")
    text = text.replace("parallelism: 2\n  completions: 2", f"parallelism: {pod_count}\n  completions: {pod_count}")
    return explained_text(GATED + text)


def test_pods_outside_slices_keep_their_gates_and_no_node_is_proposed() -> None:
    answer = explained_in_slices(3)
    assert answer["binding"]["limit"] == "schedulingGates"
    text = "admitted, but 1 of 3 pods is in no slice, gets no topology domain, and keeps its scheduling gate"
    assert answer["summary"] == text
    assert "changes" not in answer
    assert answer["changesEnd"].startswith("submit the job again with a number of pods that the slice size divides")
    assert explained_in_slices(4)["state"] == "Running"


PROVISIONED = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: lab}
spec:
  region: us-central1
  zones: [us-central1-a]
  nodePools:
    - name: a100
      machineType: a2-highgpu-1g
      provisioning: queued
      labels: {rack: r1}
      autoscaling: {totalMin: 0, totalMax: 4}
  capacity: [{machineType: a2-highgpu-1g, zone: us-central1-a, count: 3}]
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: racks}
spec: {levels: [{nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: capacity}
spec:
  controllerName: kueue.x-k8s.io/provisioning-request
  parameters: {apiGroup: kueue.x-k8s.io, kind: ProvisioningRequestConfig, name: queued}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ProvisioningRequestConfig
metadata: {name: queued}
spec: {provisioningClassName: queued-provisioning.gke.io, managedResources: [nvidia.com/gpu]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: queued}
spec: {nodeLabels: {cloud.google.com/gke-nodepool: a100}, topologyName: racks, tolerations: [{operator: Exists}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: q}
spec:
  namespaceSelector: {}
  admissionChecksStrategy: {admissionChecks: [{name: capacity}]}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: queued, resources: [{name: nvidia.com/gpu, nominalQuota: 16}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: q, namespace: team}
spec: {clusterQueue: q}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: asked
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: q}
  annotations: {batchyard.dev/submit-at: 1m, batchyard.dev/runtime: 10h}
spec:
  parallelism: 2
  completions: 2
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}
    spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def test_failed_search_for_delayed_domains_is_explained() -> None:
    scenario, _ = read_scenario([PROVISIONED])
    world = World(scenario)
    answers = []
    for minutes in range(2, 9):
        world.run_until(minutes * MINUTE)
        world.flush_batched_writes()
        answers.append(world.platform.explainer.why(Key(scheme.JOB, "team", "asked"), world.kernel.now()))
    waiting = next(each for each in answers if each is not None and each.get("binding", {}).get("limit") == "topology")
    assert waiting["state"] == "QuotaReserved"
    reason = "couldn't assign flavors to pod set main: no topology domains at level: rack"
    assert waiting["summary"] == f"it has quota, and waits for topology domains: {reason}"
    assert waiting["binding"]["where"] == {"kind": "Topology", "name": "racks"}
    assert waiting["changesEnd"] == "the scheduler searches again at least every 30 s"
