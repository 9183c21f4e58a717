"""Measures the store events per CPU second of a simulated cluster with all controllers.

    python benchmarks/cluster_events.py [--jobs 2000] [--repeat 3] [--profile]

Two queues receive one Job of one to eight pods every two seconds; each Job runs for some minutes. The cluster has a
fixed node pool of 100 nodes and an autoscaled one of up to 100 nodes. The CPU time excludes imports and the parsing of
manifests. Prints a table row; --profile also prints the share of each part of the source in the CPU time.
"""

import argparse
import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batchyard
from batchyard.api.manifests import read_manifests
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

SOURCE = Path(batchyard.__file__).parent
PARTS_SHOWN = 24
PLATFORM = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: bench}
spec:
  region: r
  zones: [r-a, r-b]
  nodePools:
  - {name: fixed, machineType: n2-standard-8, nodeCount: 100}
  - {name: elastic, machineType: n2-standard-8, provisioning: spot, autoscaling: {totalMin: 0, totalMax: 100}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: fixed}
spec: {nodeLabels: {cloud.google.com/gke-nodepool: fixed}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: elastic}
spec: {nodeLabels: {cloud.google.com/gke-nodepool: elastic}}
"""
QUEUE = """---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: %(name)s}
spec:
  namespaceSelector: {}
  cohortName: all
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Any}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: fixed
      resources: [{name: cpu, nominalQuota: 760}, {name: memory, nominalQuota: 2800Gi}]
    - name: elastic
      resources: [{name: cpu, nominalQuota: 380}, {name: memory, nominalQuota: 1400Gi}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: %(name)s, namespace: default}
spec: {clusterQueue: %(name)s}
"""
JOB = """---
apiVersion: batch/v1
kind: Job
metadata:
  name: j-%(number)d
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: %(queue)s}
  annotations: {batchyard.dev/submit-at: %(at)ds, batchyard.dev/runtime: %(runtime)ds}
spec:
  parallelism: %(pods)d
  completions: %(pods)d
  completionMode: Indexed
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: "%(cpu)d", memory: %(cpu)dGi}}}]
"""


def manifests(jobs: int) -> Iterator[str]:
    """Yield the manifests of the cluster, its queues and the Jobs."""
    yield PLATFORM
    for name in ("one", "two"):
        yield QUEUE % {"name": name}
    for number in range(jobs):
        queue = ("one", "two")[number // 7 % 2]
        shape = {"pods": 1 + number % 8, "cpu": 1 + number % 5, "runtime": 240 + 60 * (number % 11)}
        yield JOB % {"number": number, "queue": queue, "at": 2 * number, **shape}


def make_world(jobs: int) -> World:
    """Return the simulated cluster at its start."""
    return World(make_scenario(read_manifests([("bench.yaml", "".join(manifests(jobs)))])))


def measure(jobs: int) -> tuple[int, float]:
    """Run the simulation; return the number of store events and the CPU seconds."""
    world = make_world(jobs)
    start = time.process_time()
    world.run_until(None)
    return world.store.revision, time.process_time() - start


def profile(jobs: int) -> str:
    """Return the share of each part of the source in the CPU time, as text; each call counts for its own part."""
    world, profiler = make_world(jobs), cProfile.Profile()
    profiler.runcall(world.run_until, None)
    rows: Any = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    seconds: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, callers) in rows.items():
        if file.startswith(str(SOURCE)):
            seconds[part_of(file)] += own
            continue
        for (caller, _, _), row in callers.items():  # time in built-in functions counts for their callers
            seconds[part_of(caller)] += row[2]
    total = sum(seconds.values())
    return "\n".join(f"{100 * own / total:5.1f}%  {part}" for part, own in seconds.most_common(PARTS_SHOWN))


def part_of(file: str) -> str:
    """Return the package and subpackage of a source file, or its module."""
    if not file.startswith(str(SOURCE)):
        return "Python standard library"
    return "/".join(Path(file).relative_to(SOURCE).parts[:2]).removesuffix(".py")


def main() -> None:
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    runs = [measure(options.jobs) for _ in range(options.repeat)]
    if runs:
        events, fastest = min(runs, key=lambda run: run[1])
        print(f"| {options.jobs} Jobs | {events} store events | {fastest:.1f} CPU-s | {events / fastest:.0f}/s |")
    if options.profile:
        print(profile(options.jobs))


if __name__ == "__main__":
    main()
