"""Runs a load of Workloads through the HTTP API of a platform in a separate process, in real time.

    python benchmarks/http_load.py LOAD.yaml [--connections N] [--insecure-loopback]

loads.py writes LOAD.yaml. The benchmark creates each Workload at its arrival time. It watches Workloads, and sets the
condition Finished when the run time has passed since the last admission. One client creates Workloads, another one sets
conditions, each with half of the connections. So a patch does not wait behind thousands of queued creates. Prints the
total time, and the CPU time and memory of the platform.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop
from wire import JSON, JSON_PATCH, BenchmarkPlatform, WireClient, WireRequest, run_platform

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
SUBMIT_AT, RUNTIME = "batchyard.dev/submit-at", "batchyard.dev/runtime"
#: Without a Cluster, a platform has no nodes, and topologies have no effect. The load creates the nodes.
CLUSTER: Final = {
    "apiVersion": "cloud.batchyard.dev/v1alpha1",
    "kind": "Cluster",
    "metadata": {"name": "nodes"},
    "spec": {"region": "us-central1", "zones": ["us-central1-a"], "nodePools": []},
}
_FINISHED: Final = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "Job finished successfully"}


class EventCondition(msgspec.Struct):
    """A condition of a Workload in a watch event."""

    type: str
    status: str


class EventStatus(msgspec.Struct):
    """The status of a Workload in a watch event, with the fields that the load needs."""

    conditions: list[EventCondition] = []


class EventMetadata(msgspec.Struct):
    """The name and namespace of a Workload in a watch event."""

    name: str = ""
    namespace: str = ""


class EventWorkload(msgspec.Struct):
    """A Workload in a watch event."""

    metadata: EventMetadata
    status: EventStatus = msgspec.field(default_factory=EventStatus)


class WorkloadWatchEvent(msgspec.Struct):
    """A watch event of a Workload."""

    object: EventWorkload


_decode = msgspec.json.Decoder(WorkloadWatchEvent).decode


class WorkloadArrival(NamedTuple):
    """A Workload with its arrival time and its run time, in seconds."""

    at: float
    run_time: float
    obj: dict[str, Any]


class HttpLoad:
    """One run of a load: `creator` creates the Workloads, `finisher` sets their condition Finished."""

    def __init__(self, creator: WireClient, finisher: WireClient, arrivals: list[WorkloadArrival]) -> None:
        self._creator = creator
        self._finisher = finisher
        self._arrivals = arrivals
        self._run_times = {(a.obj["metadata"]["namespace"], a.obj["metadata"]["name"]): a.run_time for a in arrivals}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._finished: set[tuple[str, str]] = set()
        self._completed = asyncio.Event()
        self.latencies: list[float] = []

    async def run(self) -> float:
        """Create and finish all Workloads; return the time in seconds."""
        loop = asyncio.get_running_loop()
        watch = asyncio.ensure_future(self._watch())
        wall_start = time.perf_counter()
        start = loop.time()
        for arrival in self._arrivals:
            loop.call_at(start + arrival.at, self._create, arrival.obj)
        completed = asyncio.ensure_future(self._completed.wait())
        await asyncio.wait({watch, completed}, return_when=asyncio.FIRST_COMPLETED)
        if watch.done():
            watch.result()
        watch.cancel()
        return time.perf_counter() - wall_start

    def _create(self, obj: dict[str, Any]) -> None:
        path = f"{KUEUE}/namespaces/{obj['metadata']['namespace']}/workloads"
        self._creator.send(WireRequest("POST", path, obj, JSON, self._handle_create))

    def _handle_create(self, code: int, body: bytes, seconds: float) -> None:
        assert code == 201, body
        self.latencies.append(seconds)

    async def _watch(self) -> None:
        async for line in self._finisher.stream_lines(f"{KUEUE}/workloads?watch=true"):
            self._observe(_decode(line).object)

    def _observe(self, workload: EventWorkload) -> None:
        key = (workload.metadata.namespace, workload.metadata.name)
        conditions = {condition.type: condition.status for condition in workload.status.conditions}
        if conditions.get("Finished") == "True":
            self._finished.add(key)
            if len(self._finished) == len(self._arrivals):
                self._completed.set()
        elif conditions.get("Admitted") == "True" and conditions.get("Evicted") != "True":
            if key not in self._timers:
                self._timers[key] = asyncio.get_running_loop().call_later(self._run_times[key], self._finish, key)
        elif key in self._timers:
            self._timers.pop(key).cancel()

    def _finish(self, key: tuple[str, str]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        patch = [{"op": "add", "path": "/status/conditions/-", "value": {**_FINISHED, "lastTransitionTime": now}}]
        path = f"{KUEUE}/namespaces/{key[0]}/workloads/{key[1]}/status"
        self._finisher.send(WireRequest("PATCH", path, patch, JSON_PATCH, self._handle_patch))

    def _handle_patch(self, code: int, body: bytes, seconds: float) -> None:
        assert code in (200, 422), body  # 422: the Workload is finished, by a patch in flight during its eviction
        self.latencies.append(seconds)


def read_documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a load file; each is JSON."""
    for text in path.read_text("utf-8").split("---\n"):
        if text.strip():
            yield json.loads(text)


def read_load(path: Path) -> tuple[list[dict[str, Any]], list[WorkloadArrival]]:
    """Return the queues and flavors of a load, and its Workloads in order of arrival."""
    setup, arrivals = [], []
    for obj in read_documents(path):
        if obj["kind"] != "Workload":
            setup.append(obj)
            continue
        annotations = obj["metadata"].pop("annotations")
        at, run_time = (float(annotations[name].removesuffix("s")) for name in (SUBMIT_AT, RUNTIME))
        arrivals.append(WorkloadArrival(at, run_time, obj))
    return [obj for obj in setup if obj["kind"] != "Scenario"], arrivals


async def create_queues(platform: BenchmarkPlatform, setup: list[dict[str, Any]]) -> None:
    """Create the flavors, queues, topologies and nodes, and the namespaces of the LocalQueues."""
    plurals = {"ResourceFlavor": "resourceflavors", "ClusterQueue": "clusterqueues", "Topology": "topologies"}
    for obj in setup:
        if obj["kind"] == "LocalQueue":
            namespace = obj["metadata"]["namespace"]
            manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            assert (await platform.client.request("POST", "/api/v1/namespaces", manifest))[0] == 201
            path = f"{KUEUE}/namespaces/{namespace}/localqueues"
        elif obj["kind"] == "Node":
            path = "/api/v1/nodes"
        else:
            path = f"{KUEUE}/{plurals[obj['kind']]}"
        code, body = await platform.client.request("POST", path, obj)
        assert code == 201, body


async def main() -> None:
    """Run the load, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=Path)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--insecure-loopback", action="store_true")
    arguments = parser.parse_args()
    setup, arrivals = read_load(arguments.load)
    options = ["--insecure-loopback"] if arguments.insecure_loopback else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as cluster:
        if any(obj["kind"] == "Topology" for obj in setup):
            cluster.write(json.dumps(CLUSTER))
            cluster.flush()
            options += ["--cluster", cluster.name]
        await run_load(options, setup, arrivals, arguments.connections)


async def run_load(
    options: Sequence[str], setup: list[dict[str, Any]], arrivals: list[WorkloadArrival], connections: int
) -> None:
    """Run the load on a platform with these options, and print the figures."""
    async with run_platform(*options, connections=connections // 2) as platform:
        await create_queues(platform, setup)
        finisher = await platform.client.open_another(connections // 2)
        cpu, main, own = platform.cpu_seconds(), platform.main_thread_cpu_seconds(), time.process_time()
        load = HttpLoad(platform.client, finisher, arrivals)
        wall = await load.run()
        cpu, main = platform.cpu_seconds() - cpu, platform.main_thread_cpu_seconds() - main
        latencies = sorted(load.latencies)
        percentiles = (f"p{share} {latencies[len(latencies) * share // 100] * 1000:.1f} ms" for share in (50, 99))
        requests = f"{len(latencies)} requests, latency {', '.join(percentiles)}"
        cost = f"platform: {cpu:.1f} CPU-s, {main:.1f} of them in the main thread, {platform.resident_memory()} MB"
        cost += f"; client: {time.process_time() - own:.1f} CPU-s"
        print(f"{len(arrivals)} Workloads finished after {wall:.1f} s; {cost}; {requests}")


if __name__ == "__main__":
    uvloop.run(main())
