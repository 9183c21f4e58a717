"""Measures the cost of a scrape of /metrics with many queues and Workloads, and the delay of other requests.

    python benchmarks/scrapes.py [--workloads N] [--queues N] [--scrapes N]

Most Workloads are pending. Prints for each selection of metric groups: the size and duration of a scrape, its CPU time
in the platform, and the maximum latency of a small request meanwhile. The last line has this latency without scrapes.
"""

import argparse
import asyncio
import time
from typing import Any, Final

import uvloop
from http_creates import API, workload
from http_load import KUEUE
from wire import JSON, BenchmarkPlatform, WireRequest, run_platform

#: The selections of metric groups; the last one is all of them.
SELECTIONS: Final = (
    "?collect[]=kueue",
    "?collect[]=program&collect[]=batchyard&collect[]=gpus",
    "?collect[]=objects",
    "",
)
_WARM_UP_SCRAPES: Final = 2
_PROBES_MAX: Final = 1_000_000


def queues(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return a flavor and queues, ten per Cohort; each queue admits one Workload at a time."""
    quotas = [{"name": "cpu", "nominalQuota": "1"}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": quotas}]}]
    objs: list[tuple[str, dict[str, Any]]] = [
        ("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "default"}})
    ]
    for number in range(count):
        spec = {"namespaceSelector": {}, "cohortName": f"c-{number // 10}", "resourceGroups": groups}
        metadata = {"name": f"q-{number}"}
        objs.append(("clusterqueues", {"kind": "ClusterQueue", "metadata": metadata, "spec": spec}))
        local = {"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": f"q-{number}"}}
        objs.append(("namespaces/default/localqueues", local))
    return objs


async def create_all(platform: BenchmarkPlatform, objs: list[tuple[str, dict[str, Any]]]) -> None:
    """Create objects, given with their paths; requests are concurrent up to the number of connections."""
    completed, remaining = asyncio.Event(), len(objs)

    def handle_response(code: int, body: bytes, _seconds: float) -> None:
        nonlocal remaining
        assert code == 201, body
        remaining -= 1
        if not remaining:
            completed.set()

    for path, obj in objs:
        request = WireRequest("POST", f"{KUEUE}/{path}", {"apiVersion": API, **obj}, JSON, handle_response)
        platform.client.send(request)
    await completed.wait()


async def scrape(platform: BenchmarkPlatform, selection: str) -> int:
    """Scrape /metrics once; return the size in bytes."""
    size = 0
    async for line in platform.client.stream_lines(f"/metrics{selection}"):
        size += len(line) + 1
    return size


class LatencyProbe:
    """Sends small requests one after another, and records the maximum latency in seconds."""

    def __init__(self, platform: BenchmarkPlatform, count: int) -> None:
        self._platform = platform
        self.remaining = count
        self.latency_max = 0.0
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while self.remaining:
            self.remaining -= 1
            start = time.perf_counter()
            await self._platform.client.request("GET", "/readyz")
            self.latency_max = max(self.latency_max, time.perf_counter() - start)


async def measure(platform: BenchmarkPlatform, selection: str, scrapes: int) -> str:
    """Return the mean cost of a scrape after some warm-up scrapes, as text."""
    for _ in range(_WARM_UP_SCRAPES):
        size = await scrape(platform, selection)
    cpu_before, start = platform.cpu_seconds(), time.perf_counter()
    for _ in range(scrapes):
        size = await scrape(platform, selection)
    seconds, cpu = (time.perf_counter() - start) / scrapes, (platform.cpu_seconds() - cpu_before) / scrapes
    probe = LatencyProbe(platform, _PROBES_MAX)
    for _ in range(scrapes):
        await scrape(platform, selection)
    probe.remaining = 0
    await probe.task
    cost = f"{size / 1e6:.1f} MB, {seconds * 1000:.0f} ms, {cpu * 1000:.0f} ms of CPU"
    return f"{cost}; max latency of other requests {probe.latency_max * 1000:.0f} ms"


async def main() -> None:
    """Create the queues and Workloads, and print the cost of scrapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--scrapes", type=int, default=10)
    arguments = parser.parse_args()
    async with run_platform() as platform:
        await create_all(platform, queues(arguments.queues))
        workloads = [workload(number) for number in range(arguments.workloads)]
        for number, obj in enumerate(workloads):
            obj["spec"]["queueName"] = f"q-{number % arguments.queues}"
        await create_all(platform, [("namespaces/default/workloads", obj) for obj in workloads])
        print(f"{arguments.workloads} Workloads in {arguments.queues} queues, {platform.resident_memory()} MB")
        start, cpu_before = time.perf_counter(), platform.cpu_seconds()
        print(f"first scrape {await scrape(platform, '') / 1e6:.1f} MB, {time.perf_counter() - start:.2f} s, ", end="")
        print(f"{platform.cpu_seconds() - cpu_before:.2f} s of CPU, {platform.resident_memory()} MB")
        for selection in SELECTIONS:
            print(f"{selection or 'all'}: {await measure(platform, selection, arguments.scrapes)}")
        idle = LatencyProbe(platform, 1000)
        await idle.task
        print(f"without scrapes: max latency of requests {idle.latency_max * 1000:.0f} ms")


if __name__ == "__main__":
    uvloop.run(main())
