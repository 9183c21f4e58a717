"""Durable creates of Workloads by many clients at once, and how soon a watch tells of them.

    python benchmarks/http_creates.py [--creates N] [--connections N] [--insecure-loopback] [--scrape-every SECONDS]

Each client creates one after the other, in a queue that admits a few; every answer says that the Workload is on disk.
Prints creates a second, the CPU time of the platform for each, how long creates took, and how much later than the
answer of its create a watch told of each Workload (it may be earlier: then nothing).
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import uvloop
from http_load import KUEUE, Event
from wire import JSON, Ask, Running, platform

API: Final = "kueue.x-k8s.io/v1beta2"
_decode = msgspec.json.Decoder(Event).decode
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
    """A small Workload."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    spec = {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": {"spec": pod}}]}
    return {"apiVersion": API, "kind": "Workload", "metadata": {"name": f"w-{number}"}, "spec": spec}


async def make_queue(running: Running) -> None:
    """The queue that they wait in."""
    for path, obj in _QUEUES:
        code, body = await running.wire.asked("POST", f"{KUEUE}/{path}", {"apiVersion": API, **obj})
        assert code == 201, body


class Creates:
    """One run."""

    def __init__(self, running: Running, creates: int) -> None:
        self._running = running
        self._creates = creates
        self._begun = 0
        self._answered: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._is_over = asyncio.Event()
        self.latencies: list[float] = []

    async def run(self, clients: int) -> float:
        """Create all; the seconds it took."""
        watch = asyncio.ensure_future(self._watch())
        began = time.perf_counter()
        for _ in range(clients):
            self._create()
        await self._is_over.wait()
        took = max(self._answered.values()) - began
        watch.cancel()
        return took

    def behind(self) -> Sequence[float]:
        """How much later than the answer the watch told of each."""
        return sorted(max(0.0, self._reported[name] - answered) for name, answered in self._answered.items())

    def _create(self) -> None:
        number, self._begun = self._begun, self._begun + 1
        if number < self._creates:
            path = f"{KUEUE}/namespaces/default/workloads"
            name = f"w-{number}"
            done = lambda code, body, seconds: self._created(name, code, body, seconds)  # noqa: E731
            self._running.wire.ask(Ask("POST", path, workload(number), JSON, done))

    def _created(self, name: str, code: int, body: bytes, seconds: float) -> None:
        assert code == 201, body
        self._answered[name] = time.perf_counter()
        self.latencies.append(seconds)
        self._look()
        asyncio.get_running_loop().call_soon(self._create)

    async def _watch(self) -> None:
        async for line in self._running.wire.watched(f"{KUEUE}/workloads?watch=true"):
            self._reported.setdefault(_decode(line).object.metadata.name, time.perf_counter())
            self._look()

    def _look(self) -> None:
        if len(self._answered) == len(self._reported) == self._creates:
            self._is_over.set()


def shares(seconds: Sequence[float]) -> str:
    """The middle, and what one of a hundred exceeds, in milliseconds."""
    ordered = sorted(seconds)
    return ", ".join(f"p{share} {ordered[len(ordered) * share // 100] * 1000:.1f} ms" for share in (50, 99))


class Scraper:
    """Takes all of /metrics every so many seconds, as long as it is let."""

    def __init__(self, running: Running, every: float) -> None:
        self._running = running
        self._every = every
        self.scrapes = 0
        self.task = asyncio.ensure_future(self._scrape())

    async def _scrape(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), self._every)
            async for _ in self._running.wire.watched("/metrics"):
                pass
            self.scrapes += 1


async def main() -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--insecure-loopback", action="store_true")
    parser.add_argument("--scrape-every", type=float, help="Take all of /metrics so often meanwhile.")
    arguments = parser.parse_args()
    options = ("--insecure-loopback",) if arguments.insecure_loopback else ()
    async with platform(*options, connections=arguments.connections) as running:
        await make_queue(running)
        cpu = running.cpu()
        creates = Creates(running, arguments.creates)
        scraper = Scraper(running, arguments.scrape_every) if arguments.scrape_every else None
        took = await creates.run(arguments.connections)
        each = (running.cpu() - cpu) / arguments.creates * 1e6
        reported = f"creates {shares(creates.latencies)}; watch behind {shares(creates.behind())}"
        if scraper is not None:
            scraper.task.cancel()
            reported += f"; {scraper.scrapes} scrapes"
        print(f"{arguments.creates / took:.0f} creates/s, {each:.0f} us of CPU each; {reported}")


if __name__ == "__main__":
    uvloop.run(main())
