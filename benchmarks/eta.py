"""Measures the time of a forecast with many pending Workloads, and the time for which its fork blocks the platform.

    python benchmarks/eta.py [--pending N] [--queues N] [--at POSITION ...]

Creates the objects of a platform: N pending Workloads in queues of one Cohort, and one finished Workload per ten
pending ones. Forks as `up` does: the child forecasts the Workload at a position of its queue, and the parent waits for
the answer. Does the same for the sample forecasts from which a platform learns its accuracy. Prints the CPU seconds of
the child, the wall time until its answer, and the CPU time of the fork in the parent.
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
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=50_000)
    parser.add_argument("--queues", type=int, default=10)
    parser.add_argument("--at", type=int, nargs="*", default=[10, 500, 4000])
    options = parser.parse_args()
    world = make_world(options.pending, options.queues)
    views = [workload_view(obj) for obj in world.objects(WORKLOAD)]
    queue = sorted((v for v in views if v.queue == "team/q0" and v.admissible), key=lambda v: (v.queued, v.uid))
    print(f"{len(views)} Workloads, {sum(view.admissible for view in views)} pending, {len(queue)} of them in queue q0")
    for position in options.at:
        name = queue[min(position, len(queue) - 1)].name
        measure_fork(f"position {position}", partial(forecast_workload, world, name))
    measure_fork("sample", partial(forecast_sample, world))


def make_world(pending: int, queues: int) -> World:
    """Return a simulated platform with this number of pending Workloads, ten minutes after its start."""
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
    """Return a Workload that runs for one to four minutes."""
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": 1 + number % 3}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    annotations = {"batchyard.dev/runtime": f"{60 + number * 7 % 180}s", "batchyard.dev/submit-at": f"{number % 500}s"}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": f"w-{number:06}", "namespace": "team", "annotations": annotations},
        "spec": {"queueName": f"q{number % queues}", "podSets": [pod_set]},
    }


def forecast_workload(world: World, name: str) -> str:
    """Return the forecast of a Workload, as text."""
    forecast = ForecastAnswers().forecast_of(
        world.store.list, world.kernel.now(), Key(WORKLOAD, "team", name), 0, lambda _: True, Calibration()
    )
    return (
        f"{forecast['forks']} forks, wait in seconds {forecast['waitSeconds']}, fraction started {forecast['within']}"
    )


def forecast_sample(world: World) -> str:
    """Compute the sample forecasts from which a platform learns its accuracy; return their number, as text."""
    forecasts = ForecastAnswers().sample_forecasts(world.store.list, world.kernel.now(), Calibration())
    return f"{len(forecasts)} Workloads"


def measure_fork(label: str, work: Callable[[], str]) -> None:
    """Execute work in a fork of this process, and print its cost and its answer."""
    reading, writing = os.pipe()
    start, cpu_before = perf_counter(), process_time()
    pid = os.fork()
    if not pid:
        gc.disable()
        child_start = process_time()
        answer = work()
        os.write(writing, f"{process_time() - child_start:.2f} CPU-s, {answer}".encode())
        os._exit(0)
    fork_seconds = process_time() - cpu_before
    os.close(writing)
    answer = os.read(reading, 10_000).decode()
    os.waitpid(pid, 0)
    print(
        f"{label}: fork {1000 * fork_seconds:.1f} CPU-ms, answer after {perf_counter() - start:.2f} s; child {answer}",
        flush=True,
    )


if __name__ == "__main__":
    main()
