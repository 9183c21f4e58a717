"""Measures durable creates of Workloads by concurrent clients, and the delay of their watch events.

    python benchmarks/http_creates.py [--creates N] [--connections N] [--insecure-loopback] [--scrape-every SECONDS]
                                      [--archive FOLDER]

Each client creates one Workload after another, in a queue that admits few of them. A response means that the Workload
is on disk. Prints creates per second, the platform's CPU time per create, the latency of creates, and the watch delay:
the time from the response of a create to its watch event, or 0 if the event came first.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import uvloop
from http_load import KUEUE, WorkloadWatchEvent
from wire import JSON, BenchmarkPlatform, WireRequest, run_platform

API: Final = "kueue.x-k8s.io/v1beta2"
_decode = msgspec.json.Decoder(WorkloadWatchEvent).decode
_QUOTA: Final = {"name": "cpu", "nominalQuota": "4"}
_GROUP: Final = {"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [_QUOTA]}]}
_QUEUES: Final = (
    ("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "default"}}),
    (
        "clusterqueues",
        {
            "kind": "ClusterQueue",
            "metadata": {"name": "q"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [_GROUP]},
        },
    ),
    (
        "namespaces/default/localqueues",
        {"kind": "LocalQueue", "metadata": {"name": "q"}, "spec": {"clusterQueue": "q"}},
    ),
)


def workload(number: int) -> dict[str, Any]:
    """Return a Workload that requests one CPU."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    spec = {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": {"spec": pod}}]}
    return {"apiVersion": API, "kind": "Workload", "metadata": {"name": f"w-{number}"}, "spec": spec}


async def make_queue(platform: BenchmarkPlatform) -> None:
    """Create the queue of the Workloads."""
    for path, obj in _QUEUES:
        code, body = await platform.client.request("POST", f"{KUEUE}/{path}", {"apiVersion": API, **obj})
        assert code == 201, body


class CreateLoad:
    """A number of creates by concurrent clients, with the times of responses and watch events."""

    def __init__(self, platform: BenchmarkPlatform, creates: int) -> None:
        self._platform = platform
        self._creates = creates
        self._sent_count = 0
        self._answered: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._completed = asyncio.Event()
        self.latencies: list[float] = []

    async def run(self, clients: int) -> float:
        """Create all Workloads; return the time until the last response, in seconds."""
        watch = asyncio.ensure_future(self._watch())
        start = time.perf_counter()
        for _ in range(clients):
            self._create()
        await self._completed.wait()
        took = max(self._answered.values()) - start
        watch.cancel()
        return took

    def watch_delays(self) -> Sequence[float]:
        """Return the time from each response to the watch event, in ascending order; 0 if the event came first."""
        return sorted(max(0.0, self._reported[name] - answered) for name, answered in self._answered.items())

    def _create(self) -> None:
        number, self._sent_count = self._sent_count, self._sent_count + 1
        if number < self._creates:
            path = f"{KUEUE}/namespaces/default/workloads"
            name = f"w-{number}"
            callback = lambda code, body, seconds: self._handle_response(name, code, body, seconds)  # noqa: E731
            self._platform.client.send(WireRequest("POST", path, workload(number), JSON, callback))

    def _handle_response(self, name: str, code: int, body: bytes, seconds: float) -> None:
        assert code == 201, body
        self._answered[name] = time.perf_counter()
        self.latencies.append(seconds)
        self._check_completion()
        asyncio.get_running_loop().call_soon(self._create)

    async def _watch(self) -> None:
        async for line in self._platform.client.stream_lines(f"{KUEUE}/workloads?watch=true"):
            self._reported.setdefault(_decode(line).object.metadata.name, time.perf_counter())
            self._check_completion()

    def _check_completion(self) -> None:
        if len(self._answered) == len(self._reported) == self._creates:
            self._completed.set()


def format_percentiles(seconds: Sequence[float]) -> str:
    """Return the median and the 99th percentile in milliseconds, as text."""
    ordered = sorted(seconds)
    return ", ".join(f"p{share} {ordered[len(ordered) * share // 100] * 1000:.1f} ms" for share in (50, 99))


class MetricsScraper:
    """Scrapes /metrics at an interval in seconds until its task is canceled."""

    def __init__(self, platform: BenchmarkPlatform, interval: float) -> None:
        self._platform = platform
        self._interval = interval
        self.scrapes = 0
        self.task = asyncio.ensure_future(self._scrape())

    async def _scrape(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), self._interval)
            async for _ in self._platform.client.stream_lines("/metrics"):
                pass
            self.scrapes += 1


async def main() -> None:
    """Run the creates, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--insecure-loopback", action="store_true")
    parser.add_argument(
        "--scrape-every",
        type=float,
        help="interval of scrapes of /metrics during the run, in seconds; default: no scrapes",
    )
    parser.add_argument("--archive", help="the folder or URL of an archive; default: no archive")
    arguments = parser.parse_args()
    options = ["--insecure-loopback"] if arguments.insecure_loopback else []
    options += ["--archive", arguments.archive] if arguments.archive else []
    async with run_platform(*options, connections=arguments.connections) as platform:
        await make_queue(platform)
        cpu_before = platform.cpu_seconds()
        load = CreateLoad(platform, arguments.creates)
        scraper = MetricsScraper(platform, arguments.scrape_every) if arguments.scrape_every else None
        seconds = await load.run(arguments.connections)
        cpu_per_create = (platform.cpu_seconds() - cpu_before) / arguments.creates * 1e6
        delays = f"latency {format_percentiles(load.latencies)}; watch delay {format_percentiles(load.watch_delays())}"
        if scraper is not None:
            scraper.task.cancel()
            delays += f"; {scraper.scrapes} scrapes"
        print(f"{arguments.creates / seconds:.0f} creates/s, {cpu_per_create:.0f} us of CPU per create; {delays}")


if __name__ == "__main__":
    uvloop.run(main())
