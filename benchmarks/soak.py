"""Measures the resident memory of a platform after 1,000 finished Jobs, and after many more.

    python benchmarks/soak.py [--jobs N] [--minutes M] [--stored] [--speed FACTOR] [--output FILE]

Creates Jobs of one pod at a constant rate; the quota suffices for all, and each Job runs for one second.
`ttlSecondsAfterFinished` deletes finished Jobs; `--stored` keeps them. Measures the memory at rest 20 s after the last
Job has finished, first after 1,000 Jobs and again after all. Also samples the memory at every 1,000th Job under load.
Prints JSON; memory is in MB.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from http_creates import make_queue
from http_load import KUEUE
from wire import BenchmarkPlatform, run_platform

FIRST: Final = 1000
#: Seconds from the end of the last Job to the measurement of the memory at rest.
REST: Final = 20
_JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
_QUEUE: Final = f"{KUEUE}/clusterqueues/q"
_FINISHED: Final = b'kueue_finished_workloads_total{cluster_queue="q"'
_CONNECTIONS: Final = 4


def job(number: int, ttl: int | None) -> dict[str, Any]:
    """Return a Job of one pod that runs for one second; `ttl` is its ttlSecondsAfterFinished."""
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "10m"}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    annotations = {"batchyard.dev/runtime": "1s"}
    spec: dict[str, Any] = {"template": {"metadata": {"annotations": annotations}, "spec": pod}}
    if ttl is not None:
        spec["ttlSecondsAfterFinished"] = ttl
    metadata = {"name": f"soak-{number}", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


class SoakRun:
    """Creates Jobs at a rate per second, and samples the memory of the platform."""

    def __init__(self, platform: BenchmarkPlatform, rate: float, ttl: int | None) -> None:
        self._platform = platform
        self._rate = rate
        self._ttl = ttl
        self._created_count = 0
        self._started_at = time.perf_counter()
        self.samples: list[dict[str, Any]] = []

    async def create(self, until: int) -> None:
        """Create Jobs until their total number is `until`; take a sample at every 1,000th Job."""
        start, first = time.perf_counter(), self._created_count
        while self._created_count < until:
            code, body = await self._platform.client.request("POST", _JOBS, job(self._created_count, self._ttl))
            assert code == 201, body
            self._created_count += 1
            if self._created_count % FIRST == 0:
                self._sample(at_rest=False)
            delay = start + (self._created_count - first) / self._rate - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)

    async def rest(self) -> dict[str, Any]:
        """Wait until all Jobs have finished, and then for REST seconds; return a sample."""
        while not await self._is_settled():
            await asyncio.sleep(1)
        await asyncio.sleep(REST)
        sample = self._sample(at_rest=True)
        sample |= {"finished": await self._finished(), "stored": await self._stored()}
        return sample

    async def _is_settled(self) -> bool:
        finished = await self._finished()
        stored = await self._stored()
        return finished >= self._created_count and (self._ttl is None or stored["jobs"] == 0)

    async def _finished(self) -> int:
        """Return the number of finished Workloads."""
        lines = [line async for line in self._platform.client.stream_lines("/metrics")]
        return round(sum(float(line.rpartition(b" ")[2]) for line in lines if line.startswith(_FINISHED)))

    async def _stored(self) -> dict[str, int]:
        """Return the numbers of stored Jobs, pods, Events and Workloads."""
        paths = {"jobs": "/apis/batch/v1/jobs", "pods": "/api/v1/pods", "events": "/api/v1/events"}
        paths["workloads"] = f"{KUEUE}/workloads"
        return {name: await self._count(path) for name, path in paths.items()}

    async def _count(self, path: str) -> int:
        _, body = await self._platform.client.request("GET", f"{path}?limit=1")
        page = msgspec.json.decode(body)
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def _sample(self, *, at_rest: bool) -> dict[str, Any]:
        seconds = round(time.perf_counter() - self._started_at, 1)
        sample = {
            "jobs": self._created_count,
            "seconds": seconds,
            "resident": self._platform.resident_memory(),
            "atRest": at_rest,
        }
        self.samples.append(sample | {"cpu": round(self._platform.cpu_seconds(), 1)})
        return self.samples[-1]


async def main() -> None:
    """Create all Jobs, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--stored", action="store_true", help="keep finished Jobs")
    parser.add_argument("--ttl", type=int, default=5, help="ttlSecondsAfterFinished of the Jobs")
    parser.add_argument("--speed", default="1x")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    ttl = None if arguments.stored else arguments.ttl
    options = ("--insecure-loopback", "--speed", arguments.speed)
    async with run_platform(*options, connections=_CONNECTIONS) as platform:
        await make_queue(platform)
        soak = SoakRun(platform, arguments.jobs / (arguments.minutes * 60), ttl)
        await soak.create(min(FIRST, arguments.jobs))
        first = await soak.rest()
        await soak.create(arguments.jobs)
        last = await soak.rest()
    growth = last["resident"] - first["resident"]
    figures = {"first": first, "last": last, "grownBy": growth, "samples": soak.samples}
    text = msgspec.json.format(msgspec.json.encode(figures), indent=2).decode()
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text, "utf-8")


if __name__ == "__main__":
    uvloop.run(main())
