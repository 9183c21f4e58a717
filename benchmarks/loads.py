"""Writes the loads of Kueue's scheduler performance test as scenarios.

    python benchmarks/loads.py {baseline,large-scale,tas} OUT.yaml [--stagger MS] [--cohorts N] [--by-usage]

`baseline` has 15,000 Workloads in 30 ClusterQueues, `large-scale` 50,000 in 1,000. `tas` has the Workloads of
`baseline`, with 2 to 8 pods each, on 640 nodes in 10 racks: a third requires one rack, a third prefers one, and a third
has slices of 1 to 4 pods of which each requires one rack. Each set of a ClusterQueue creates
Workloads at its interval, independent of other sets; the first one arrives after one interval. --stagger delays all
arrivals of queue i (counted over all Cohorts) by i times MS milliseconds, to model users who do not coordinate.
--cohorts changes the number of Cohorts. --by-usage enables admission fair sharing in each ClusterQueue. Source of the
figures: test/performance/scheduler of Kueue.
"""

import argparse
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

API: Final = "kueue.x-k8s.io/v1beta2"
NOMINAL_QUOTA, BORROWING_LIMIT = 20, 100


class WorkloadSet(NamedTuple):
    """Workloads of one class in one queue; times in milliseconds."""

    name: str
    workloads: int
    interval: int
    run_time: int
    priority: int
    #: What all pods request together, and the number of pods.
    cpu: int
    pods: int = 1
    #: The request for topology domains; None without topologies.
    topology: Mapping[str, object] | None = None


class LoadShape(NamedTuple):
    """The number of Cohorts, the queues per Cohort, and the Workload sets of each queue."""

    cohorts: int
    queues: int
    sets: Sequence[WorkloadSet]


BLOCK, RACK, HOST = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", "kubernetes.io/hostname"
RACKS, RACK_NODES = 10, 64
NODE_GROUP: Final = {"tas-node-group": "tas"}


def topology_sets(
    name: str, workloads: tuple[int, int, int], pods: int, slice_size: int, template: WorkloadSet
) -> Iterator[WorkloadSet]:
    """Yield the sets of a class whose Workloads require a rack, prefer a rack, or have slices in racks."""
    requests: tuple[dict[str, object], ...] = (
        {"required": RACK},
        {"preferred": RACK},
        {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": slice_size},
    )
    kinds = ("required", "preferred", "balanced")
    for kind, request, count in zip(kinds, requests, workloads, strict=True):
        yield template._replace(name=f"{name}-{kind}-rack", workloads=count, pods=pods, topology=request)


LOADS: Final = {
    "baseline": LoadShape(
        5,
        6,
        (
            WorkloadSet("small", 350, 100, 200, 50, 1),
            WorkloadSet("medium", 100, 500, 500, 100, 5),
            WorkloadSet("large", 50, 1200, 1000, 200, 20),
        ),
    ),
    "large-scale": LoadShape(
        10,
        100,
        (
            WorkloadSet("small", 35, 60, 150, 50, 1),
            WorkloadSet("medium", 11, 300, 350, 100, 5),
            WorkloadSet("large", 4, 700, 700, 200, 20),
        ),
    ),
    "tas": LoadShape(
        5,
        6,
        (
            *topology_sets("small", (120, 120, 110), 2, 1, WorkloadSet("", 0, 100, 200, 50, 1)),
            *topology_sets("medium", (34, 33, 33), 4, 2, WorkloadSet("", 0, 500, 500, 100, 5)),
            *topology_sets("large", (17, 17, 16), 8, 4, WorkloadSet("", 0, 1200, 1000, 200, 20)),
        ),
    ),
}


def format_seconds(milliseconds: int) -> str:
    """Return a duration in seconds as text, such as `0.1s`."""
    return f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def topology_objects() -> Iterator[dict[str, Any]]:
    """Yield the Topology and the nodes of the load `tas`."""
    levels = [{"nodeLabel": label} for label in (BLOCK, RACK, HOST)]
    yield {"apiVersion": API, "kind": "Topology", "metadata": {"name": "default-topology"}, "spec": {"levels": levels}}
    allocatable = {"cpu": "96", "memory": "256Gi", "pods": "110"}
    for rack in range(RACKS):
        for number in range(RACK_NODES):
            labels = {**NODE_GROUP, BLOCK: "block-0", RACK: f"rack-{rack}", HOST: f"node-b0-r{rack}-n{number}"}
            status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
            metadata = {"name": labels[HOST], "labels": labels}
            yield {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def queue_objects(name: str, cohort: str) -> Iterator[dict[str, Any]]:
    """Yield a ClusterQueue and its LocalQueue; the LocalQueue has a separate namespace."""
    quota = {"name": "cpu", "nominalQuota": str(NOMINAL_QUOTA), "borrowingLimit": str(BORROWING_LIMIT)}
    spec = {
        "namespaceSelector": {},
        "cohortName": cohort,
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [quota]}]}],
    }
    yield {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}
    metadata = {"name": name, "namespace": name}
    yield {"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name}}


def workload(queue: str, workload_set: WorkloadSet, number: int, arrival: int) -> dict[str, Any]:
    """Return a Workload of a set; `arrival` is in milliseconds."""
    name = f"{workload_set.name}-{number}"
    digest = hashlib.md5(f"{queue}/{name}".encode(), usedforsecurity=False).digest()
    metadata = {
        "name": name,
        "namespace": queue,
        "uid": str(uuid.UUID(bytes=digest, version=4)),
        "annotations": {
            "batchyard.dev/submit-at": format_seconds(arrival),
            "batchyard.dev/runtime": format_seconds(workload_set.run_time),
        },
    }
    pods = workload_set.pods
    cpu = str(workload_set.cpu) if pods == 1 else f"{1000 * workload_set.cpu // pods}m"
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    pod_set = {"name": "main", "count": pods, "template": template}
    if workload_set.topology is not None:
        pod_set["topologyRequest"] = workload_set.topology
    spec = {"queueName": queue, "priority": workload_set.priority, "podSets": [pod_set]}
    return {"apiVersion": API, "kind": "Workload", "metadata": metadata, "spec": spec}


def scenario(name: str, load: LoadShape, stagger: int) -> Iterator[dict[str, Any]]:
    """Yield the documents of a scenario, with the Workloads in order of arrival."""
    metadata = {"name": name}
    yield {
        "apiVersion": "sim.batchyard.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": metadata,
        "spec": {"horizon": "7200s"},
    }
    flavor: dict[str, Any] = {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
    if any(workload_set.topology for workload_set in load.sets):
        yield from topology_objects()
        flavor["spec"] = {"nodeLabels": NODE_GROUP, "topologyName": "default-topology"}
    yield flavor
    arrivals: list[tuple[int, int, dict[str, Any]]] = []
    for number in range(load.cohorts * load.queues):
        cohort, position = divmod(number, load.queues)
        queue = f"cq-{position}-cohort-{cohort}"
        yield from queue_objects(queue, f"cohort-{cohort}")
        for workload_set in load.sets:
            for index in range(workload_set.workloads):
                arrival = workload_set.interval * (index + 1) + number * stagger
                arrivals.append((arrival, len(arrivals), workload(queue, workload_set, index, arrival)))
    yield from (obj for _, _, obj in sorted(arrivals, key=lambda arrival: arrival[:2]))


def enable_admission_fair_sharing(documents: Sequence[dict[str, Any]]) -> None:
    """Order the Workloads of each ClusterQueue by the usage of their LocalQueues."""
    for document in documents:
        if document["kind"] == "Scenario":
            settings = {"usageHalfLifeTime": "3600s", "usageSamplingInterval": "5s"}
            document["spec"]["admissionFairSharing"] = settings
        elif document["kind"] == "ClusterQueue":
            document["spec"]["admissionScope"] = {"admissionMode": "UsageBasedAdmissionFairSharing"}


def main() -> None:
    """Write a load, one JSON object per document; print the minimum duration at full use of the quota."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stagger", type=int, default=0)
    parser.add_argument("--cohorts", type=int)
    parser.add_argument("--by-usage", action="store_true")
    arguments = parser.parse_args()
    load = LOADS[arguments.load]
    if arguments.cohorts is not None:
        load = load._replace(cohorts=arguments.cohorts)
    documents = list(scenario(arguments.load, load, arguments.stagger))
    if arguments.by_usage:
        enable_admission_fair_sharing(documents)
    with arguments.out.open("w") as out:
        for document in documents:
            out.write("---\n" + json.dumps(document, separators=(",", ":")) + "\n")
    ideal = sum(each.workloads * each.run_time * each.cpu for each in load.sets) / 1000 / NOMINAL_QUOTA
    count = sum(document["kind"] == "Workload" for document in documents)
    queues = load.cohorts * load.queues
    print(f"{count} Workloads in {queues} ClusterQueues; minimum duration {ideal:g} s, with all quota in use")


if __name__ == "__main__":
    main()
