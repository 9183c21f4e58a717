"""`why` with many who wait: what one answer takes.

    python benchmarks/why.py [--workloads N] [--asks N]

Three platforms with so many Workloads, of which nearly all wait in queues whose quota is used up: one queue; 30 queues
in 5 Cohorts; 1,000 queues in 10 Cohorts; sizes, priorities and policies as in upstream Kueue's performance test. Asks
about Workloads all over the lines and prints the CPU time of an answer: the median, the longest, and how many changes
were proposed. Nothing is scheduled meanwhile: nobody pays for `why` but who asks.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.base.memory import no_garbage_collection
from batchyard.explain.explainer import Explainer
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, StayPending
from batchyard.scheduling.scheduler_cache import SchedulerCache

API = "kueue.x-k8s.io/v1beta2"
NOW = 1_000_000 * SECOND
SHAPES = {"one queue": (1, 1), "30 queues in 5 Cohorts": (30, 5), "1,000 queues in 10 Cohorts": (1000, 10)}
#: Of every ten Workloads: their priorities and cpus.
SIZES = [(50, 1)] * 7 + [(100, 5)] * 2 + [(200, 20)]


class Objects:
    """The objects, for who reads them."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {}

    def put(self, obj: Obj) -> WatchEvent:
        """Keep an object; the event that tells of it."""
        key = key_of(obj)
        self._objects.setdefault(key.kind, {})[key] = obj
        return WatchEvent(EventType.ADDED, key, obj, None, 1)

    def get(self, key: Key) -> Obj | None:
        return self._objects.get(key.kind, {}).get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return list(self._objects.get(kind, {}).values())

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return ()


def made(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """An object of Kueue's."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "uid": name, **metadata}, "spec": spec}


def queue_of(name: str, cohort: str) -> dict[str, Any]:
    """A ClusterQueue as the performance test has it."""
    quota = {"name": "cpu", "nominalQuota": "20", "borrowingLimit": "100"}
    spec = {
        "cohortName": cohort,
        "namespaceSelector": {},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [quota]}]}],
    }
    return made("ClusterQueue", name, spec)


def workload(number: int, queue: str) -> dict[str, Any]:
    """A Workload that came at its second."""
    priority, cpu = SIZES[number % len(SIZES)]
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    spec = {"queueName": queue, "priority": priority, "podSets": [pod_set]}
    hours, rest = divmod(number, 3600)
    born = f"2026-01-{1 + hours // 24:02}T{hours % 24:02}:{rest // 60:02}:{rest % 60:02}Z"
    return made("Workload", f"w-{number}", spec, namespace="team", creationTimestamp=born)


def platform(count: int, queues: int, cohorts: int) -> tuple[SchedulerCache, Objects]:
    """So many Workloads in so many queues, decided upon until nothing more happens."""
    index, objects = SchedulerCache(), Objects()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {}}}
    reported = [namespace, made("ResourceFlavor", "default", {})]
    for number in range(queues):
        reported.append(queue_of(f"q-{number}", f"c-{number % cohorts}"))
        reported.append(made("LocalQueue", f"q-{number}", {"clusterQueue": f"q-{number}"}, namespace="team"))
    reported += [workload(number, f"q-{number % queues}") for number in range(count)]
    for obj in reported:
        index.observe(objects.put(obj), NOW)
    settle(index)
    return index, objects


def settle(index: SchedulerCache) -> None:
    """Let the scheduler's cycles run; whom it would preempt stays, and who would preempt is admitted no more."""
    for number in range(1, 10_000):
        heads = index.heads(NOW)
        decisions = Cycle(index.snapshot, SchedulingPolicy(), index.namespaces, number).run(heads)
        moved = False
        for decision in decisions:
            if isinstance(decision, Admit):
                index.workload_cache.dequeue(decision.head.workload.key)
                index.workload_cache.assume(decision, NOW, admitted=True)
                moved = True
            else:
                parked = index.queue_manager.requeue(decision.head, decision.last_assignment, decision.requeue_reason)
                moved |= parked and isinstance(decision, StayPending)
        if not moved:
            return


@no_garbage_collection()
def measured(shape: str, count: int, asks: int) -> str:
    """What answers take on one of the platforms."""
    index, objects = platform(count, *SHAPES[shape])
    explainer = Explainer(index, SchedulingPolicy(), objects)
    waiting = [view for queue in index.queue_manager.pending.values() for view in queue.views()]
    times, changes = [], []
    gc.collect()
    for view in waiting[:: max(1, len(waiting) // asks)][:asks]:
        begun = time.process_time()
        document = explainer.why(Key("Workload.kueue.x-k8s.io", view.namespace, view.name), NOW)
        times.append((time.process_time() - begun) * 1000)
        changes.append(len((document or {}).get("changes", ())))
    median, longest = statistics.median(times), max(times)
    reported = f"{statistics.mean(changes):.1f} changes each"
    figures = f"{len(times)} answers, median {median:.1f} ms, longest {longest:.1f} ms"
    return f"{shape}: {len(waiting):,} wait; {figures}; {reported}"


def main() -> None:
    """Measure all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--asks", type=int, default=60)
    options = parser.parse_args()
    for shape in SHAPES:
        print(measured(shape, options.workloads, options.asks))


if __name__ == "__main__":
    main()
