"""The resident memory of a platform after a thousand finished Jobs, and after many more.

    python benchmarks/soak.py [--jobs N] [--minutes M] [--stored] [--speed FACTOR] [--output FILE]

Jobs of one pod are created at an even rate in a queue with room for all; each runs for a second. With
`ttlSecondsAfterFinished` each is deleted after its end; `--stored` leaves it where it is. The memory at rest is taken
some seconds after the queue is empty: once after the first thousand Jobs, and once after all. In between a sample is
taken every thousand Jobs without a rest. Prints JSON, all memory in MB.
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
from wire import Running, platform

FIRST: Final = 1000
#: Seconds from the end of the last Job to the measurement.
REST: Final = 20
_JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
_QUEUE: Final = f"{KUEUE}/clusterqueues/q"
_FINISHED: Final = b'kueue_finished_workloads_total{cluster_queue="q"'
_CONNECTIONS: Final = 4


def job(number: int, ttl: int | None) -> dict[str, Any]:
    """A Job of one pod that runs for a second."""
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "10m"}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    annotations = {"batchyard.dev/runtime": "1s"}
    spec: dict[str, Any] = {"template": {"metadata": {"annotations": annotations}, "spec": pod}}
    if ttl is not None:
        spec["ttlSecondsAfterFinished"] = ttl
    metadata = {"name": f"soak-{number}", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


class Soak:
    """One run and its figures."""

    def __init__(self, running: Running, rate: float, ttl: int | None) -> None:
        self._running = running
        self._rate = rate
        self._ttl = ttl
        self._begun = 0
        self._began = time.perf_counter()
        self.samples: list[dict[str, Any]] = []

    async def create(self, until: int) -> None:
        """Create Jobs at the rate up to this number, with a sample at every thousand."""
        start, first = time.perf_counter(), self._begun
        while self._begun < until:
            code, body = await self._running.wire.asked("POST", _JOBS, job(self._begun, self._ttl))
            assert code == 201, body
            self._begun += 1
            if self._begun % FIRST == 0:
                self._sample(at_rest=False)
            ahead = start + (self._begun - first) / self._rate - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)

    async def rest(self) -> dict[str, Any]:
        """Wait for the end of all Jobs and a while longer; the sample taken then."""
        while not await self._is_settled():
            await asyncio.sleep(1)
        await asyncio.sleep(REST)
        sample = self._sample(at_rest=True)
        sample |= {"finished": await self._finished(), "stored": await self._stored()}
        return sample

    async def _is_settled(self) -> bool:
        finished = await self._finished()
        stored = await self._stored()
        return finished >= self._begun and (self._ttl is None or stored["jobs"] == 0)

    async def _finished(self) -> int:
        """How many Workloads have finished."""
        lines = [line async for line in self._running.wire.watched("/metrics")]
        return round(sum(float(line.rpartition(b" ")[2]) for line in lines if line.startswith(_FINISHED)))

    async def _stored(self) -> dict[str, int]:
        """How many objects of the kinds that a Job brings are stored."""
        paths = {"jobs": "/apis/batch/v1/jobs", "pods": "/api/v1/pods", "events": "/api/v1/events"}
        paths["workloads"] = f"{KUEUE}/workloads"
        return {name: await self._count(path) for name, path in paths.items()}

    async def _count(self, path: str) -> int:
        _, body = await self._running.wire.asked("GET", f"{path}?limit=1")
        found = msgspec.json.decode(body)
        return len(found["items"]) + int(found["metadata"].get("remainingItemCount", 0))

    def _sample(self, *, at_rest: bool) -> dict[str, Any]:
        seconds = round(time.perf_counter() - self._began, 1)
        sample = {"jobs": self._begun, "seconds": seconds, "resident": self._running.memory(), "atRest": at_rest}
        self.samples.append(sample | {"cpu": round(self._running.cpu(), 1)})
        return self.samples[-1]


async def main() -> None:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--stored", action="store_true", help="Leave the Jobs where they are.")
    parser.add_argument("--ttl", type=int, default=5, help="Seconds of the platform until a finished Job is deleted.")
    parser.add_argument("--speed", default="1x")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    ttl = None if arguments.stored else arguments.ttl
    async with platform("--insecure-loopback", "--speed", arguments.speed, connections=_CONNECTIONS) as running:
        await make_queue(running)
        soak = Soak(running, arguments.jobs / (arguments.minutes * 60), ttl)
        await soak.create(min(FIRST, arguments.jobs))
        first = await soak.rest()
        await soak.create(arguments.jobs)
        last = await soak.rest()
    grown = last["resident"] - first["resident"]
    figures = {"first": first, "last": last, "grownBy": grown, "samples": soak.samples}
    text = msgspec.json.format(msgspec.json.encode(figures), indent=2).decode()
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text, "utf-8")


if __name__ == "__main__":
    uvloop.run(main())
