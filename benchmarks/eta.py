"""How long a forecast takes where many wait, and how long the platform stands still for it.

    python benchmarks/eta.py [--pending N] [--queues N] [--at PLACE ...]

Makes a platform's objects with so many pending Workloads in queues of one Cohort each, and one finished Workload for
every ten. Then, as `up` does: forks, forecasts the Workload at a place of its queue in the child, and waits for the
answer; and what a platform asks itself to learn from. Told are the CPU seconds of the child, the wall time until it
answered, and the CPU time that the fork took.
"""

import argparse
import gc
import os
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

from batchyard.api.meta import Key
from batchyard.api.scheme import WORKLOAD
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND
from batchyard.sim.forecast import ForecastAnswers
from batchyard.sim.forecasting.calibration import Calibration
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World

API = "kueue.x-k8s.io/v1beta2"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pending", type=int, default=50_000)
    parser.add_argument("--queues", type=int, default=10)
    parser.add_argument("--at", type=int, nargs="*", default=[10, 500, 4000])
    options = parser.parse_args()
    world = filled(options.pending, options.queues)
    views = [workload_view(obj) for obj in world.objects(WORKLOAD)]
    line = sorted((v for v in views if v.queue == "team/q0" and v.admissible), key=lambda v: (v.queued, v.uid))
    print(f"{len(views)} Workloads, {sum(view.admissible for view in views)} pending, {len(line)} in the asked queue")
    for place in options.at:
        measured(f"place {place}", partial(of_place, world, line[min(place, len(line) - 1)].name))
    measured("sample", partial(of_sample, world))


def filled(pending: int, queues: int) -> World:
    """A world in which so many wait, a while after they came."""
    objects: list[dict[str, Any]] = [{"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "f"}}]
    for number in range(queues):
        quota = {"name": "f", "resources": [{"name": "cpu", "nominalQuota": 50}]}
        groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
        spec = {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": groups}
        objects.append({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": f"q{number}"}, "spec": spec})
        metadata = {"name": f"q{number}", "namespace": "team"}
        local = {"clusterQueue": f"q{number}"}
        objects.append({"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": local})
    objects += [workload(number, queues) for number in range(pending + pending // 10)]
    world = World(scenario_of(objects))
    world.run_until(600 * SECOND)
    return world


def workload(number: int, queues: int) -> dict[str, Any]:
    """One that runs for one to four minutes."""
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": 1 + number % 3}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    annotations = {"batchyard.dev/runtime": f"{60 + number * 7 % 180}s", "batchyard.dev/submit-at": f"{number % 500}s"}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": f"w-{number:06}", "namespace": "team", "annotations": annotations},
        "spec": {"queueName": f"q{number % queues}", "podSets": [pod_set]},
    }


def of_place(world: World, name: str) -> str:
    """The forecast of one Workload."""
    reported = ForecastAnswers().forecast_of(
        world.store.list, world.kernel.now(), Key(WORKLOAD, "team", name), 0, lambda _: True, Calibration()
    )
    return f"{reported['forks']} forks, waits {reported['waitSeconds']}, within {reported['within']}"


def of_sample(world: World) -> str:
    """The forecasts that a platform learns from."""
    found = ForecastAnswers().samples_of(world.store.list, world.kernel.now(), Calibration())
    return f"{len(found)} Workloads"


def measured(what: str, work: Callable[[], str]) -> None:
    """One answer by a fork of this process."""
    reading, writing = os.pipe()
    began, before = perf_counter(), process_time()
    pid = os.fork()
    if not pid:
        gc.disable()
        used = process_time()
        reported = work()
        os.write(writing, f"{process_time() - used:.2f} CPU-s, {reported}".encode())
        os._exit(0)
    held_up = process_time() - before
    os.close(writing)
    answer = os.read(reading, 10_000).decode()
    os.waitpid(pid, 0)
    print(
        f"{what}: fork {1000 * held_up:.1f} CPU-ms, answer after {perf_counter() - began:.2f} s; child {answer}",
        flush=True,
    )


if __name__ == "__main__":
    main()
