"""One scheduling cycle: 1,000 heads, 1,000 ClusterQueues in 50 Cohorts, 8 flavors of 3 resources each.

    python benchmarks/cycle.py [--cycles N] [--runs N]

The first cycle meets idle queues, and all heads fit; what is admitted stays, so that later ones meet ever fuller
flavors, and in the last ones nearly every head looks at all 24 flavor-resources and waits. Nobody may preempt. Prints
the CPU time of the first cycle, of the one in the middle and of the last, each as the median and the fastest of the
runs: the decisions alone, as `Cycle.run` takes them, without looking for heads or writing anything.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

from batchyard.api.views.workload import cluster_queue_view, flavor_view, workload_view
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Head
from batchyard.scheduling.snapshot import Snapshot

QUEUES, COHORTS, FLAVORS = 1000, 50, 8
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")


def cluster_queue(number: int) -> dict[str, Any]:
    """A ClusterQueue with every flavor."""
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
    """A Workload whose size depends on its number, so that some find room and some do not."""
    amount = (number * 37 + cycle * 101) % 140 + 1
    requests = {"cpu": amount, "memory": amount, "nvidia.com/gpu": amount % 90}
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    return {
        "metadata": {"name": f"w{cycle}-{number}", "namespace": "team", "uid": f"{cycle:04}-{number:06}"},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": spec}}]},
    }


def world() -> Snapshot:
    """The queues and flavors."""
    snapshot = Snapshot()
    for number in range(FLAVORS):
        snapshot.put_flavor(flavor_view({"metadata": {"name": f"flavor-{number}"}}))
    for number in range(QUEUES):
        snapshot.put_queue(cluster_queue_view(cluster_queue(number)))
    snapshot.settle()
    return snapshot


def cycles(count: int) -> Iterator[tuple[float, int]]:
    """CPU milliseconds and admissions of each cycle; what is admitted stays."""
    snapshot = world()
    for number in range(count):
        heads = [Head(workload_view(workload(i, number)), f"cq-{i}") for i in range(QUEUES)]
        cycle = Cycle(snapshot, SchedulingPolicy(), {"team": {}}, number + 1)
        start = time.process_time()
        decisions = cycle.run(heads)
        spent = (time.process_time() - start) * 1000
        admitted = [d for d in decisions if isinstance(d, Admit)]
        for d in admitted:
            view = d.head.workload
            snapshot.hold(AdmittedWorkload(view.key, view.uid, d.queue, d.assignment.usage))
        yield spent, len(admitted)


def main() -> None:
    """Run and print a row of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--runs", type=int, default=11)
    arguments = parser.parse_args()
    gc.disable()  # the kernel lets the collector run rarely too
    runs = []
    for _ in range(arguments.runs):
        runs.append(list(cycles(arguments.cycles)))
        gc.collect()
    figures = []
    for name, index in (("first", 0), ("middle", arguments.cycles // 2), ("last", arguments.cycles - 1)):
        times, admitted = [run[index][0] for run in runs], runs[0][index][1]
        figures.append(
            f"{name} {statistics.median(times):.1f} ms, fastest {min(times):.1f} ({admitted} of {QUEUES} admitted)"
        )
    print(f"| {len(runs)} runs of {arguments.cycles} cycles | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
