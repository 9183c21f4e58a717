"""Loads `batchyard operator` with Jobs instead of bare Workloads, on the API server of Kubernetes.

    PYTHONPATH=tests python benchmarks/operator_jobs.py [--divide N] [--webhooks] [--output json]
    PYTHONPATH=tests python benchmarks/operator_jobs.py --steady MINUTES --rate R [--webhooks] [--output json]

KUBEBUILDER_ASSETS is the folder of etcd and kube-apiserver. Without --steady, the load is `baseline` of loads.py as
Jobs; `--divide 3`, the default, gives 5,000 Jobs. A queue creates its Jobs at the intervals of the load. The script
acts as the Job controller: it sets Complete when the run time has passed since the admission. With --steady, it creates
R Jobs a second in a queue that has room for all of them; each runs for a second, and is deleted afterwards.

`--webhooks` installs the operator as its manifests do: with its account, its webhooks, and a standby. Otherwise one
operator without webhooks runs. Prints the wall time, the seconds from the time when a Job should be created until the
watch delivers Admitted (mean by class, p50 and p99), the evictions, the CPU seconds, and the writes per Job.
"""

import argparse
import asyncio
import json
import ssl
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from http_load import KUEUE
from loads import LOADS, WorkloadSet, queue_objects
from operator_load import requests_of
from peer_clusters import (
    MERGE_PATCH,
    QUIET,
    PeerCluster,
    connect,
    kubernetes,
    pause,
    programs_of_children,
    run_until_signal,
)
from peer_shapes import ObjectWatch, PeerObject, jobs_of
from wire import JSON, WireRequest

from e2e_kubernetes.installed_operators import install_operators
from e2e_kubernetes.kubernetes import KubernetesSettings

_LIMITS: Final = ("--kube-api-qps", "300", "--kube-api-burst", "500")
_STEADY: Final = WorkloadSet("steady", 0, 0, 1000, 50, 1)
_IDLE_MAX: Final = 120.0  # seconds
_PRIORITIES: Final = "kueue.x-k8s.io/v1beta2"


class JobArrival(NamedTuple):
    """A Job of the load: when it is created, in seconds from the start, its queue and its class."""

    at: float
    queue: str
    name: str
    kind: WorkloadSet


class JobLoad:
    """Creates the Jobs of a load at their times, completes them, and measures their admissions."""

    def __init__(self, cluster: PeerCluster, arrivals: Sequence[JobArrival], *, must_delete: bool) -> None:
        self._cluster = cluster
        self._arrivals = {arrival.name: arrival for arrival in arrivals}
        self._must_delete = must_delete
        self._due: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.finished: set[str] = set()
        #: Seconds from the due time of the create to Admitted, by Job.
        self.waits: dict[str, float] = {}
        self.evictions = 0
        self._evicted: set[str] = set()
        self._changed_at = time.monotonic()

    async def run(self) -> float:
        """Run the load; return the seconds until all Workloads are finished. AssertionError if it stalls."""
        watch = asyncio.ensure_future(ObjectWatch.follow(self._cluster, f"{KUEUE}/workloads", self._observe))
        loop, started_at = asyncio.get_running_loop(), time.monotonic()
        for arrival in self._arrivals.values():
            loop.call_at(loop.time() + arrival.at, self._create, arrival, started_at + arrival.at)
        while len(self.finished) < len(self._arrivals):
            await pause(0.2)
            assert not watch.done(), watch.exception() or "the watch has ended"
            assert time.monotonic() - self._changed_at < _IDLE_MAX, f"{len(self.finished)} Jobs have finished"
        seconds = self._changed_at - started_at
        watch.cancel()
        return seconds

    def _create(self, arrival: JobArrival, due: float) -> None:
        self._due[arrival.name] = due
        self._send("POST", jobs_of(arrival.queue), manifest(arrival), JSON)

    def _send(self, method: str, path: str, body: Any, content_type: str) -> None:
        self._cluster.client.send(WireRequest(method, path, body, content_type, _check_response))

    def _observe(self, change: str, workload: PeerObject) -> None:
        name = workload.metadata.name.removeprefix("job-").rpartition("-")[0]
        arrival, true = self._arrivals.get(name), workload.true_conditions()
        if arrival is None or change == "DELETED" or name in self.finished:
            return
        self._changed_at = time.monotonic()
        if "Finished" in true:
            self.finished.add(name)
            if self._must_delete:
                self._delete(arrival, workload.metadata.name)
        elif "Evicted" in true:
            if name not in self._evicted:
                self._evicted.add(name)
                self.evictions += 1
            if name in self._timers:
                self._timers.pop(name).cancel()
        elif "Admitted" in true and name not in self._timers:
            self._evicted.discard(name)
            self.waits.setdefault(name, self._changed_at - self._due[name])
            delay = arrival.kind.run_time / 1000
            self._timers[name] = asyncio.get_running_loop().call_later(delay, self._complete, arrival)

    def _complete(self, arrival: JobArrival) -> None:
        """Set the status that the Job controller sets for a completed Job."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [
            {"type": name, "status": "True", "reason": "CompletionsReached", "lastTransitionTime": now}
            for name in ("SuccessCriteriaMet", "Complete")
        ]
        status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
        self._send("PATCH", f"{jobs_of(arrival.queue)}/{arrival.name}/status", {"status": status}, MERGE_PATCH)

    def _delete(self, arrival: JobArrival, workload: str) -> None:
        self._send("DELETE", f"{jobs_of(arrival.queue)}/{arrival.name}?propagationPolicy=Background", None, JSON)
        self._send("DELETE", f"{KUEUE}/namespaces/{arrival.queue}/workloads/{workload}", None, JSON)

    def admission_seconds(self) -> Mapping[str, float]:
        """Return the p50 and p99 of all Jobs, and the mean of each class, of the seconds until Admitted."""
        ordered = sorted(self.waits.values())
        by_class = defaultdict(list)
        for name, wait in self.waits.items():
            by_class[f"mean {self._arrivals[name].kind.name}"].append(wait)
        result = {f"p{share}": ordered[len(ordered) * share // 100] for share in (50, 99)}
        return {name: round(value, 3) for name, value in result.items()} | {
            name: round(statistics.mean(waits), 3) for name, waits in sorted(by_class.items())
        }


def _check_response(code: int, body: bytes, _seconds: float) -> None:
    # 409 and 422: the Job was suspended by an eviction while its end was written; it runs again. 404: it is deleted.
    assert code in (200, 201, 202, 404, 409, 422), body


def manifest(arrival: JobArrival) -> Mapping[str, Any]:
    """Return a Job of one pod with the priority class and the CPUs of its class."""
    labels = {"kueue.x-k8s.io/queue-name": arrival.queue, "kueue.x-k8s.io/priority-class": arrival.kind.name}
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": str(arrival.kind.cpu)}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": arrival.name, "namespace": arrival.queue, "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


def baseline(divisor: int) -> Iterator[JobArrival]:
    """Yield the Jobs of the load `baseline` with a divided number of Jobs in each class of each queue."""
    shape = LOADS["baseline"]
    for position in range(shape.cohorts * shape.queues):
        queue = f"q{position}"
        for kind in shape.sets:
            for number in range(max(1, kind.workloads // divisor)):
                name = f"{queue}-{kind.name}-{number}"
                yield JobArrival((number + 1) * kind.interval / 1000, queue, name, kind)


def steady(minutes: float, rate: float) -> Iterator[JobArrival]:
    """Yield Jobs of one second at a constant rate per second."""
    for number in range(round(minutes * 60 * rate)):
        yield JobArrival(number / rate, "q0", f"steady-{number}", _STEADY)


async def create_queues(cluster: PeerCluster, arrivals: Sequence[JobArrival], *, has_room: bool) -> None:
    """Create the flavor, the priority classes and the queues; with `has_room`, the quota suffices for all Jobs."""
    for kind in {arrival.kind for arrival in arrivals}:
        priority = {"apiVersion": _PRIORITIES, "kind": "WorkloadPriorityClass", "value": kind.priority}
        await cluster.create(f"{KUEUE}/workloadpriorityclasses", {**priority, "metadata": {"name": kind.name}})
    flavor = {"apiVersion": _PRIORITIES, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
    await cluster.create(f"{KUEUE}/resourceflavors", flavor)
    for queue in sorted({arrival.queue for arrival in arrivals}):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": queue}}
        await cluster.create("/api/v1/namespaces", namespace)
        cohort = f"cohort-{int(queue.removeprefix('q')) // LOADS['baseline'].queues}"
        for obj in queue_objects(queue, cohort):
            if has_room and obj["kind"] == "ClusterQueue":
                obj["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = str(len(arrivals))
            folder = "clusterqueues" if obj["kind"] == "ClusterQueue" else f"namespaces/{queue}/localqueues"
            await cluster.create(f"{KUEUE}/{folder}", obj)
        await cluster.wait_until_active(queue)


@asynccontextmanager
async def installed() -> AsyncIterator[PeerCluster]:
    """Run the operator as installed by its manifests: with webhooks, its account, and a standby."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as name,
        install_operators(Path(name), KubernetesSettings(arguments=QUIET)) as operators,
    ):
        context = ssl.create_default_context(cafile=str(operators.kubernetes.authority.certificate_file))
        # The first operator leads; the other one serves the webhooks.
        names = ("leader", "standby with webhooks")
        processes = {name: each.process for name, each in zip(names, operators.operators.values(), strict=True)}
        client = await connect(operators.kubernetes.url, context, Path(name))
        yield PeerCluster(client, programs_of_children(processes))


async def measure(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the load; return the figures."""
    is_steady = options.steady > 0
    arrivals = list(steady(options.steady, options.rate) if is_steady else baseline(options.divide))
    plain = kubernetes(("operator", "--controllers", "admission", *_LIMITS), with_kubelets=False)
    async with installed() if options.webhooks else plain as cluster:
        await create_queues(cluster, arrivals, has_room=is_steady)
        load = JobLoad(cluster, arrivals, must_delete=is_steady)
        wall, seconds, writes = await measure_costs(cluster, load.run(), len(arrivals))
    result = {"jobs": len(arrivals), "wallSeconds": round(wall, 1), "admissionSeconds": load.admission_seconds()}
    result |= {"evictions": load.evictions, "cpuSeconds": seconds, "webhooks": options.webhooks}
    return result | {"writesPerJob": writes}


async def measure_costs(
    cluster: PeerCluster, load: Awaitable[float], count: int
) -> tuple[float, Mapping[str, float], Mapping[str, float]]:
    """Run a load of `count` objects; return its result, the CPU seconds by program, and the writes per object."""
    cpu, requests = cluster.cpu_seconds(), await writes_of(cluster)
    wall = await load
    seconds = {name: round(value - cpu[name], 1) for name, value in cluster.cpu_seconds().items()}
    totals = sorted((await writes_of(cluster)).items())
    writes = {name: round((total - requests.get(name, 0)) / count, 2) for name, total in totals}
    return wall, seconds, {name: each for name, each in writes.items() if each >= 0.05}


async def writes_of(cluster: PeerCluster) -> Mapping[str, float]:
    """Return the numbers of writes that the API server has received, by verb and resource."""
    code, body = await cluster.client.request("GET", "/metrics", accept="text/plain")
    assert code == 200, body
    return requests_of(body.decode())


def main() -> None:
    """Run the load, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--divide", type=int, default=3)
    parser.add_argument("--steady", type=float, default=0, metavar="MINUTES")
    parser.add_argument("--rate", type=float, default=20, help="Jobs created a second, with --steady")
    parser.add_argument("--webhooks", action="store_true")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    print_figures(run_until_signal(measure(options)), options.output)


def print_figures(figures: Mapping[str, Any], output: str) -> None:
    """Print figures as `json`, or as lines of text."""
    if output == "json":
        print(json.dumps(figures, indent=1))
    else:
        print("\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
