"""Measures the CPU time of a `why` request with many pending Workloads.

    python benchmarks/why.py [--workloads N] [--asks N]

Creates three platforms with N Workloads each: in one queue, in 30 queues of 5 Cohorts, and in 1,000 queues of 10
Cohorts. The quota is used up, and nearly all Workloads are pending. Sizes, priorities and policies are those of Kueue's
performance test. Requests `why` for Workloads at evenly spaced positions of the queues. Prints the median and the
maximum CPU time of an answer, and the mean number of suggested changes. No scheduling cycle runs meanwhile: `why` has
no cost between requests.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.base.primitives import no_garbage_collection
from batchyard.explain.explainer import Explainer
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, StayPending
from batchyard.scheduling.scheduler_cache import SchedulerCache

API = "kueue.x-k8s.io/v1beta2"
NOW = 1_000_000 * SECOND
SHAPES = {"one queue": (1, 1), "30 queues in 5 Cohorts": (30, 5), "1,000 queues in 10 Cohorts": (1000, 10)}
#: Priority and CPUs of ten consecutive Workloads.
SIZES = [(50, 1)] * 7 + [(100, 5)] * 2 + [(200, 20)]


class BenchmarkObjects:
    """The objects of a platform in memory, as a Reader."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {}

    def put(self, obj: Obj) -> WatchEvent:
        """Store an object; return its watch event."""
        key = key_of(obj)
        self._objects.setdefault(key.kind, {})[key] = obj
        return WatchEvent(EventType.ADDED, key, obj, None, 1)

    def get(self, key: Key) -> Obj | None:
        return self._objects.get(key.kind, {}).get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return list(self._objects.get(kind, {}).values())

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return ()


def make_object(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Return an object of a Kueue kind, with its name as uid."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "uid": name, **metadata}, "spec": spec}


def cluster_queue(name: str, cohort: str) -> dict[str, Any]:
    """Return a ClusterQueue of the performance test."""
    quota = {"name": "cpu", "nominalQuota": "20", "borrowingLimit": "100"}
    spec = {
        "cohortName": cohort,
        "namespaceSelector": {},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [quota]}]}],
    }
    return make_object("ClusterQueue", name, spec)


def workload(number: int, queue: str) -> dict[str, Any]:
    """Return a Workload whose creation time is its number, in seconds."""
    priority, cpu = SIZES[number % len(SIZES)]
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    spec = {"queueName": queue, "priority": priority, "podSets": [pod_set]}
    hours, rest = divmod(number, 3600)
    created = f"2026-01-{1 + hours // 24:02}T{hours % 24:02}:{rest // 60:02}:{rest % 60:02}Z"
    return make_object("Workload", f"w-{number}", spec, namespace="team", creationTimestamp=created)


def make_platform(count: int, queues: int, cohorts: int) -> tuple[SchedulerCache, BenchmarkObjects]:
    """Return a scheduler cache and objects with `count` Workloads, after all possible admissions."""
    cache, objects = SchedulerCache(), BenchmarkObjects()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {}}}
    manifests = [namespace, make_object("ResourceFlavor", "default", {})]
    for number in range(queues):
        manifests.append(cluster_queue(f"q-{number}", f"c-{number % cohorts}"))
        manifests.append(make_object("LocalQueue", f"q-{number}", {"clusterQueue": f"q-{number}"}, namespace="team"))
    manifests += [workload(number, f"q-{number % queues}") for number in range(count)]
    for obj in manifests:
        cache.observe(objects.put(obj), NOW)
    run_cycles(cache)
    return cache, objects


def run_cycles(cache: SchedulerCache) -> None:
    """Run scheduling cycles until they admit no more Workloads.

    Preemptions are not carried out: the victims keep their quota, and the preemptors stay pending.
    """
    for number in range(1, 10_000):
        heads = cache.heads(NOW)
        decisions = Cycle(cache.snapshot, SchedulingPolicy(), cache.namespaces, number).run(heads)
        has_progress = False
        for decision in decisions:
            if isinstance(decision, Admit):
                cache.workload_cache.dequeue(decision.head.workload.key)
                cache.workload_cache.assume(decision, NOW, admitted=True)
                has_progress = True
            else:
                is_parked = cache.queue_manager.requeue(
                    decision.head, decision.last_assignment, decision.requeue_reason
                )
                has_progress |= is_parked and isinstance(decision, StayPending)
        if not has_progress:
            return


@no_garbage_collection()
def measure_answers(shape: str, count: int, requests: int) -> str:
    """Return the cost of `why` requests on a platform of a shape, as text."""
    cache, objects = make_platform(count, *SHAPES[shape])
    explainer = Explainer(cache, SchedulingPolicy(), objects)
    pending = [view for queue in cache.queue_manager.pending.values() for view in queue.views()]
    times, changes = [], []
    gc.collect()
    for view in pending[:: max(1, len(pending) // requests)][:requests]:
        start = time.process_time()
        document = explainer.why(Key("Workload.kueue.x-k8s.io", view.namespace, view.name), NOW)
        times.append((time.process_time() - start) * 1000)
        changes.append(len((document or {}).get("changes", ())))
    figures = f"{len(times)} answers, median {statistics.median(times):.1f} ms, max {max(times):.1f} ms"
    return f"{shape}: {len(pending):,} pending; {figures}; {statistics.mean(changes):.1f} changes per answer"


def main() -> None:
    """Measure all three platforms, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--asks", type=int, default=60)
    options = parser.parse_args()
    for shape in SHAPES:
        print(measure_answers(shape, options.workloads, options.asks))


if __name__ == "__main__":
    main()
