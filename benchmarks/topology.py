"""Measures scheduling cycles of 1,000 heads with topology-aware scheduling, and changes of nodes.

    python benchmarks/topology.py [--nodes 5000 40000] [--shapes 1 80] [--cycles N] [--runs N]

The nodes have 8 GPUs each, and form a topology of four levels: zones, blocks, racks of 16 nodes, and hosts. 1,000
ClusterQueues in 50 Cohorts have one head each. The heads have 8 to 128 pods, which differ in as many requests as
`--shapes` says. They require a rack, prefer a block, or have no constraint, in turn. Each cycle admits what fits, and
admitted Workloads keep their domains.

Prints the CPU time of `Cycle.run` in the first, the middle and the last cycle, as median and minimum of the runs, and
the peak memory of the process. Then it prints the CPU time of one change of a node: the node loses its Ready condition
or gets it back, and the scheduler places one more Workload.
"""

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Iterator
from typing import Any

from batchyard.api.views.node import flavor_view
from batchyard.api.views.workload import cluster_queue_view, workload_view
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Head
from batchyard.scheduling.snapshot import Snapshot

QUEUES, COHORTS = 1000, 50
LEVELS = ("topology/zone", "topology/block", "topology/rack", "kubernetes.io/hostname")
RACK_NODES, BLOCK_RACKS, ZONE_BLOCKS = 16, 20, 10
GPU = "nvidia.com/gpu"


def node(number: int, *, is_ready: bool = True) -> dict[str, Any]:
    """Return a node with 8 GPUs in a rack of a block of a zone."""
    rack = number // RACK_NODES
    block = rack // BLOCK_RACKS
    name = f"node-{number:05}"
    values = (f"zone-{block // ZONE_BLOCKS}", f"block-{block:03}", f"rack-{rack:04}", name)
    return {
        "metadata": {"name": name, "labels": dict(zip(LEVELS, values, strict=True))},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "96", "memory": "768Gi", GPU: "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
        },
    }


def cluster_queue(number: int) -> dict[str, Any]:
    """Return a ClusterQueue with more quota than nodes exist, so that the topology alone decides."""
    quotas = [{"name": name, "nominalQuota": 10**12} for name in ("cpu", "memory", GPU)]
    return {
        "metadata": {"name": f"cq-{number}"},
        "spec": {
            "namespaceSelector": {},
            "cohortName": f"cohort-{number % COHORTS}",
            "resourceGroups": [
                {"coveredResources": ["cpu", "memory", GPU], "flavors": [{"name": "gpus", "resources": quotas}]}
            ],
        },
    }


def workload(number: int, cycle: int, shapes: int) -> dict[str, Any]:
    """Return a Workload whose topology request, number of pods and requests depend on its number."""
    shape = number % shapes
    requests = {"cpu": f"{2000 + 50 * shape}m", "memory": f"{8 + shape % 7}Gi", GPU: 1 + shape % 4}
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    request: dict[str, Any] = {"unconstrained": True}
    if number % 3 == 0:
        request = {"required": LEVELS[2]}
    elif number % 3 == 1:
        request = {"preferred": LEVELS[1]}
    count = 8 * (1 + (number * 37 + cycle * 101) % 16) // (1 + shape % 4)
    return {
        "metadata": {"name": f"w{cycle}-{number}", "namespace": "team", "uid": f"{cycle:04}-{number:06}"},
        "spec": {"podSets": [{"name": "main", "count": count, "template": {"spec": spec}, "topologyRequest": request}]},
    }


def make_snapshot(nodes: int) -> Snapshot:
    """Return a snapshot with the nodes, queues and the flavor."""
    snapshot = Snapshot()
    snapshot.topology.enable({})
    snapshot.topology.put_topology("racks", LEVELS)
    snapshot.put_flavor(flavor_view({"metadata": {"name": "gpus"}, "spec": {"topologyName": "racks"}}))
    for number in range(nodes):
        snapshot.topology.observe_node(node(number), None, is_deleted=False)
    for number in range(QUEUES):
        snapshot.put_queue(cluster_queue_view(cluster_queue(number)))
    snapshot.rebuild_if_changed()
    snapshot.topology.build()
    return snapshot


def run_cycles(snapshot: Snapshot, count: int, shapes: int) -> Iterator[tuple[float, int]]:
    """Yield the CPU milliseconds and the number of admissions of each cycle; admitted Workloads keep their domains."""
    for number in range(count):
        heads = [Head(workload_view(workload(i, number, shapes)), f"cq-{i}") for i in range(QUEUES)]
        cycle = Cycle(snapshot, SchedulingPolicy(), {"team": {}}, number + 1)
        start = time.process_time()
        decisions = cycle.run(heads)
        milliseconds = (time.process_time() - start) * 1000
        admitted = [d for d in decisions if isinstance(d, Admit)]
        for d in admitted:
            view = d.head.workload
            holder = AdmittedWorkload(view.key, view.uid, d.queue, d.assignment.usage)
            holder.topology_usage = d.assignment.topology_usage
            snapshot.add_holder(holder)
        yield milliseconds, len(admitted)


def measure_node_changes(snapshot: Snapshot, nodes: int, changes: int) -> float:
    """Return the CPU milliseconds of one change of a node's readiness with one placement after it."""
    objects = [(node(n), node(n, is_ready=False)) for n in range(0, nodes, max(1, nodes // changes))]
    heads = [[Head(workload_view(workload(i, 1000 + i, 1)), f"cq-{i % QUEUES}")] for i in range(len(objects))]
    start = time.process_time()
    for number, (ready, not_ready) in enumerate(objects):
        for new, old in ((not_ready, ready), (ready, not_ready)):
            snapshot.topology.observe_node(new, old, is_deleted=False)
            Cycle(snapshot, SchedulingPolicy(), {"team": {}}, 1000 + number).run(heads[number])
    return (time.process_time() - start) * 1000 / (2 * len(objects))


def main() -> None:
    """Run all cycles for each size, and print table rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5000, 40000])
    parser.add_argument("--shapes", type=int, nargs="+", default=[1, 80])
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--changes", type=int, default=50)
    arguments = parser.parse_args()
    gc.disable()  # the collector also runs rarely in a platform
    for nodes in arguments.nodes:
        for shapes in arguments.shapes:
            runs, changes = [], []
            for _ in range(arguments.runs):
                snapshot = make_snapshot(nodes)
                runs.append(list(run_cycles(snapshot, arguments.cycles, shapes)))
                changes.append(measure_node_changes(snapshot, nodes, arguments.changes))
                del snapshot
                gc.collect()
            figures = []
            for name, index in (("first", 0), ("middle", arguments.cycles // 2), ("last", arguments.cycles - 1)):
                times, admitted = [run[index][0] for run in runs], runs[0][index][1]
                figures.append(
                    f"{name} {statistics.median(times):.0f} ms, minimum {min(times):.0f} ({admitted} admitted)"
                )
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            changed = f"{statistics.median(changes):.2f} ms"
            print(f"| {nodes} | {shapes} | {' | '.join(figures)} | {changed} | {peak} MiB |", flush=True)


if __name__ == "__main__":
    main()
