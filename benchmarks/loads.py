"""The loads of upstream Kueue's scheduler performance test, as scenarios.

    python benchmarks/loads.py {baseline,large-scale} OUT.yaml [--stagger MS] [--cohorts N]

`baseline` has 15,000 Workloads in 30 ClusterQueues, `large-scale` 50,000 in 1,000. Every ClusterQueue begins at once,
and its sets create Workloads side by side, the first after one interval. --stagger delays all of queue i (counted over
all Cohorts) by i times so many milliseconds, as users do who know nothing of each other. --cohorts makes it smaller or
larger. Figures of test/performance/scheduler of Kueue.
"""

import argparse
import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

API: Final = "kueue.x-k8s.io/v1beta2"
NOMINAL_QUOTA, BORROWING_LIMIT = 20, 100


class Set(NamedTuple):
    """Workloads of one class in one queue; times in milliseconds."""

    name: str
    workloads: int
    create_every: int
    runs: int
    priority: int
    cpu: int


class Load(NamedTuple):
    """So many Cohorts of so many queues, with these sets in each queue."""

    cohorts: int
    queues: int
    sets: Sequence[Set]


LOADS: Final = {
    "baseline": Load(
        5,
        6,
        (
            Set("small", 350, 100, 200, 50, 1),
            Set("medium", 100, 500, 500, 100, 5),
            Set("large", 50, 1200, 1000, 200, 20),
        ),
    ),
    "large-scale": Load(
        10,
        100,
        (Set("small", 35, 60, 150, 50, 1), Set("medium", 11, 300, 350, 100, 5), Set("large", 4, 700, 700, 200, 20)),
    ),
}


def seconds(milliseconds: int) -> str:
    """As durations are written."""
    return f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def queue_objects(name: str, cohort: str) -> Iterator[dict[str, Any]]:
    """A ClusterQueue and its LocalQueue, in a namespace of their own."""
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


def workload(queue: str, one: Set, number: int, arrival: int) -> dict[str, Any]:
    """One Workload of a set."""
    name = f"{one.name}-{number}"
    digest = hashlib.md5(f"{queue}/{name}".encode(), usedforsecurity=False).digest()
    metadata = {
        "name": name,
        "namespace": queue,
        "uid": str(uuid.UUID(bytes=digest, version=4)),
        "annotations": {"batchyard.dev/submit-at": seconds(arrival), "batchyard.dev/runtime": seconds(one.runs)},
    }
    container = {"name": "c", "resources": {"requests": {"cpu": str(one.cpu)}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    pod_set = {"name": "main", "count": 1, "template": template}
    spec = {"queueName": queue, "priority": one.priority, "podSets": [pod_set]}
    return {"apiVersion": API, "kind": "Workload", "metadata": metadata, "spec": spec}


def scenario(name: str, load: Load, stagger: int) -> Iterator[dict[str, Any]]:
    """The documents, Workloads in order of creation."""
    metadata = {"name": name}
    yield {
        "apiVersion": "sim.batchyard.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": metadata,
        "spec": {"horizon": "7200s"},
    }
    yield {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
    arrivals: list[tuple[int, int, dict[str, Any]]] = []
    for number in range(load.cohorts * load.queues):
        cohort, place = divmod(number, load.queues)
        queue = f"cq-{place}-cohort-{cohort}"
        yield from queue_objects(queue, f"cohort-{cohort}")
        for one in load.sets:
            for index in range(one.workloads):
                arrival = one.create_every * (index + 1) + number * stagger
                arrivals.append((arrival, len(arrivals), workload(queue, one, index, arrival)))
    yield from (obj for _, _, obj in sorted(arrivals, key=lambda arrival: arrival[:2]))


def main() -> None:
    """Write a load, one JSON object a document, and say how long the machines alone would take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stagger", type=int, default=0)
    parser.add_argument("--cohorts", type=int)
    chosen = parser.parse_args()
    load = LOADS[chosen.load]
    if chosen.cohorts is not None:
        load = load._replace(cohorts=chosen.cohorts)
    documents = list(scenario(chosen.load, load, chosen.stagger))
    with chosen.out.open("w") as out:
        for document in documents:
            out.write("---\n" + json.dumps(document, separators=(",", ":")) + "\n")
    ideal = sum(one.workloads * one.runs * one.cpu for one in load.sets) / 1000 / NOMINAL_QUOTA
    count = sum(document["kind"] == "Workload" for document in documents)
    print(
        f"{count} Workloads in {load.cohorts * load.queues} ClusterQueues; with all quota in use they take {ideal:g} s"
    )


if __name__ == "__main__":
    main()
