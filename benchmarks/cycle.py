"""Measures one scheduling cycle: 1,000 heads, 1,000 ClusterQueues in 50 Cohorts, 8 flavors of 3 resources each.

    python benchmarks/cycle.py [--cycles N] [--runs N]

In the first cycle no quota is used, and all heads fit. Admitted Workloads keep their quota, so each later cycle has
less free quota. In the last cycles the scheduler checks all 24 flavor-resources for nearly every head, and the heads
stay pending. Preemption is disabled. Prints the CPU time of `Cycle.run` in the first, the middle and the last cycle, as
median and minimum of the runs. This excludes the selection of heads and all writes.
"""

import argparse
import gc
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

QUEUES, COHORTS, FLAVORS = 1000, 50, 8
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")


def cluster_queue(number: int) -> dict[str, Any]:
    """Return a ClusterQueue with quota in every flavor."""
    quotas = [{"name": resource, "nominalQuota": 100} for resource in RESOURCES]
    flavors = [{"name": f"flavor-{f}", "resources": quotas} for f in range(FLAVORS)]
    return {
        "metadata": {"name": f"cq-{number}"},
        "spec": {
            "namespaceSelector": {},
            "cohortName": f"cohort-{number % COHORTS}",
            "resourceGroups": [{"coveredResources": list(RESOURCES), "flavors": flavors}],
        },
    }


def workload(number: int, cycle: int) -> dict[str, Any]:
    """Return a Workload whose requests depend on its number, so that some fit and others do not."""
    amount = (number * 37 + cycle * 101) % 140 + 1
    requests = {"cpu": amount, "memory": amount, "nvidia.com/gpu": amount % 90}
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    return {
        "metadata": {"name": f"w{cycle}-{number}", "namespace": "team", "uid": f"{cycle:04}-{number:06}"},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": spec}}]},
    }


def make_snapshot() -> Snapshot:
    """Return a snapshot with the queues and flavors."""
    snapshot = Snapshot()
    for number in range(FLAVORS):
        snapshot.put_flavor(flavor_view({"metadata": {"name": f"flavor-{number}"}}))
    for number in range(QUEUES):
        snapshot.put_queue(cluster_queue_view(cluster_queue(number)))
    snapshot.rebuild_if_changed()
    return snapshot


def run_cycles(count: int) -> Iterator[tuple[float, int]]:
    """Yield the CPU milliseconds and the number of admissions of each cycle; admitted Workloads keep their quota."""
    snapshot = make_snapshot()
    for number in range(count):
        heads = [Head(workload_view(workload(i, number)), f"cq-{i}") for i in range(QUEUES)]
        cycle = Cycle(snapshot, SchedulingPolicy(), {"team": {}}, number + 1)
        start = time.process_time()
        decisions = cycle.run(heads)
        milliseconds = (time.process_time() - start) * 1000
        admitted = [d for d in decisions if isinstance(d, Admit)]
        for d in admitted:
            view = d.head.workload
            snapshot.add_holder(AdmittedWorkload(view.key, view.uid, d.queue, d.assignment.usage))
        yield milliseconds, len(admitted)


def main() -> None:
    """Run all cycles, and print a table row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--runs", type=int, default=11)
    arguments = parser.parse_args()
    gc.disable()  # the collector also runs rarely in a platform
    runs = []
    for _ in range(arguments.runs):
        runs.append(list(run_cycles(arguments.cycles)))
        gc.collect()
    figures = []
    for name, index in (("first", 0), ("middle", arguments.cycles // 2), ("last", arguments.cycles - 1)):
        times, admitted = [run[index][0] for run in runs], runs[0][index][1]
        figures.append(
            f"{name} {statistics.median(times):.1f} ms, minimum {min(times):.1f} ({admitted} of {QUEUES} admitted)"
        )
    print(f"| {len(runs)} runs of {arguments.cycles} cycles | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
