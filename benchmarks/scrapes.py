"""What a scrape of /metrics costs a platform with many queues and Workloads, and for how long it keeps others waiting.

    python benchmarks/scrapes.py [--workloads N] [--queues N] [--scrapes N]

Most Workloads wait. For each choice of groups: how large a scrape is, how long it takes, the CPU time of the platform
for it, and how long a small request takes at most meanwhile, against when nobody scrapes.
"""

import argparse
import asyncio
import time
from typing import Any, Final

import uvloop
from http_creates import API, workload
from http_load import KUEUE
from wire import JSON, Ask, Running, platform

#: What is asked for; the last is all.
CHOICES: Final = ("?collect[]=kueue", "?collect[]=program&collect[]=batchyard&collect[]=gpus", "?collect[]=objects", "")
_WARM: Final = 2
_MANY: Final = 1_000_000


def queues(count: int) -> list[tuple[str, dict[str, Any]]]:
    """A flavor, and queues, ten to a cohort, each of which admits one at a time."""
    quotas = [{"name": "cpu", "nominalQuota": "1"}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": quotas}]}]
    made: list[tuple[str, dict[str, Any]]] = [
        ("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "default"}})
    ]
    for number in range(count):
        spec = {"namespaceSelector": {}, "cohortName": f"c-{number // 10}", "resourceGroups": groups}
        metadata = {"name": f"q-{number}"}
        made.append(("clusterqueues", {"kind": "ClusterQueue", "metadata": metadata, "spec": spec}))
        local = {"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": f"q-{number}"}}
        made.append(("namespaces/default/localqueues", local))
    return made


async def create_all(running: Running, paths: list[tuple[str, dict[str, Any]]]) -> None:
    """Create objects, as many at once as there are connections."""
    over, left = asyncio.Event(), len(paths)

    def created(code: int, body: bytes, _seconds: float) -> None:
        nonlocal left
        assert code == 201, body
        left -= 1
        if not left:
            over.set()

    for path, obj in paths:
        running.wire.ask(Ask("POST", f"{KUEUE}/{path}", {"apiVersion": API, **obj}, JSON, created))
    await over.wait()


async def scraped(running: Running, choice: str) -> int:
    """One scrape; its bytes."""
    size = 0
    async for line in running.wire.watched(f"/metrics{choice}"):
        size += len(line) + 1
    return size


class Probe:
    """Small requests, one after the other: how long the slowest took."""

    def __init__(self, running: Running, count: int) -> None:
        self._running = running
        self.left = count
        self.worst = 0.0
        self.task = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        while self.left:
            self.left -= 1
            began = time.perf_counter()
            await self._running.wire.asked("GET", "/readyz")
            self.worst = max(self.worst, time.perf_counter() - began)


async def measure(running: Running, choice: str, scrapes: int) -> str:
    """What so many scrapes cost, once figures are known."""
    for _ in range(_WARM):
        size = await scraped(running, choice)
    cpu, began = running.cpu(), time.perf_counter()
    for _ in range(scrapes):
        size = await scraped(running, choice)
    took, used = (time.perf_counter() - began) / scrapes, (running.cpu() - cpu) / scrapes
    probe = Probe(running, _MANY)
    for _ in range(scrapes):
        await scraped(running, choice)
    probe.left = 0
    await probe.task
    reported = f"{size / 1e6:.1f} MB, {took * 1000:.0f} ms, {used * 1000:.0f} ms of CPU"
    return f"{reported}; others wait {probe.worst * 1000:.0f} ms at most"


async def main() -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--scrapes", type=int, default=10)
    arguments = parser.parse_args()
    async with platform() as running:
        await create_all(running, queues(arguments.queues))
        made = [workload(number) for number in range(arguments.workloads)]
        for number, obj in enumerate(made):
            obj["spec"]["queueName"] = f"q-{number % arguments.queues}"
        await create_all(running, [("namespaces/default/workloads", obj) for obj in made])
        print(f"{arguments.workloads} Workloads in {arguments.queues} queues, {running.memory()} MB")
        began, cpu = time.perf_counter(), running.cpu()
        print(f"first scrape {await scraped(running, '') / 1e6:.1f} MB, {time.perf_counter() - began:.2f} s, ", end="")
        print(f"{running.cpu() - cpu:.2f} s of CPU, {running.memory()} MB")
        for choice in CHOICES:
            print(f"{choice or 'all'}: {await measure(running, choice, arguments.scrapes)}")
        idle = Probe(running, 1000)
        await idle.task
        print(f"without scrapes others wait {idle.worst * 1000:.0f} ms at most")


if __name__ == "__main__":
    uvloop.run(main())
