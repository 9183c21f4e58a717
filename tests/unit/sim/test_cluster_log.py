"""The event log of a cluster: nodes, pods, failed machines, provisioning requests."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchyard import simulate

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"

FAILURE = """
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: s}
spec: {horizon: 5m}
---
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: us-central1
  zones: [us-central1-a]
  capacity: [{machineType: g2-standard-24, zone: us-central1-a, count: 0}]
  nodePools:
  - {name: gpus, machineType: g2-standard-24, autoscaling: {min: 0, max: 4}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: default}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


@cache
def event_counts(*folders: str, until: str) -> dict[str, int]:
    """The number of occurrences of each event."""
    counts: dict[str, int] = {}
    for event in simulate(*(EXAMPLES / "refarch" / folder for folder in folders), until=until).events:
        name = getattr(event, "record", {}).get("event", type(event).__name__)
        counts[name] = counts.get(name, 0) + 1
    return counts


def test_event_log_records_nodes_and_pod_bindings() -> None:
    counts = event_counts("cluster.yaml", "platform", "low_priority", until="1h")
    assert (counts["NodeReady"], counts["NodeRemoved"]) == (34, 24)
    assert (counts["PodBound"], counts["PodSucceeded"]) == (32, 32)


def test_event_log_records_provisioning_requests_and_placement_group_pools() -> None:
    counts = event_counts("", until="2h")
    assert (counts["ProvisioningRequestAccepted"], counts["ProvisioningRequestProvisioned"]) == (2, 2)
    assert (counts["NodePoolCreated"], counts["NodePoolRemoved"]) == (6 + 16, 16)


def test_event_log_records_failed_instance_with_error_code() -> None:
    records: list[dict[str, Any]] = [dict(getattr(event, "record", {})) for event in simulate(FAILURE).events]
    failed = [record for record in records if record.get("event") == "InstanceFailed"]
    assert failed
    assert (failed[0]["pool"], failed[0]["zone"]) == ("gpus", "us-central1-a")
    assert failed[0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"


def pod(name: str, at: str, priority: int) -> dict[str, Any]:
    """A pod that takes most of a small node."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {"batchyard.dev/submit-at": at}},
        "spec": {"restartPolicy": "Never", "priorityClassName": f"p{priority}", "containers": [container]},
    }


def test_event_log_records_unschedulable_and_preempted_pods() -> None:
    cluster = FAILURE.partition("---\napiVersion: batch")[0].replace("autoscaling: {min: 0, max: 4}", "nodeCount: 1")
    cluster = cluster.replace("g2-standard-24", "e2-standard-4").replace("count: 0", "count: 1")
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    classes = [{**kind, "metadata": {"name": f"p{value}"}, "value": value} for value in (1, 2)]
    result = simulate(cluster, *classes, pod("low", "0s", 1), pod("high", "10s", 2))
    records = [getattr(event, "record", {}) for event in result.events]
    reported = [(r["event"], r["pod"], r.get("message")) for r in records if "pod" in r]
    assert reported[:3] == [
        ("PodBound", "default/low", None),
        ("PodUnschedulable", "default/high", "0/1 nodes are available: 1 Insufficient cpu."),
        ("PodPreempted", "default/low", None),
    ]
    assert [obj["metadata"]["name"] for obj in result.objects["Pod"]] == ["high"]
