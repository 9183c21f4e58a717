"""A load of Workloads through the HTTP API of a platform in a process of its own, in real time.

    python benchmarks/http_load.py LOAD.yaml [--connections N] [--insecure-loopback]

LOAD.yaml is one that loads.py writes. Each Workload is created at its time, and marked finished when it has run for as
long as it says since its last admission, which a watch tells. Whoever creates and whoever marks are two, with half of
the connections each: a mark does not wait until thousands are created that come too fast. Prints how long all took, and
what the platform needed.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop
from wire import JSON, JSON_PATCH, Ask, Running, Wire, platform

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
SUBMIT_AT, RUNTIME = "batchyard.dev/submit-at", "batchyard.dev/runtime"
_FINISHED: Final = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "Job finished successfully"}


class Condition(msgspec.Struct):
    """One condition of a Workload."""

    type: str
    status: str


class Status(msgspec.Struct):
    """What of its status the load looks at."""

    conditions: list[Condition] = []


class Metadata(msgspec.Struct):
    """Which Workload it is."""

    name: str = ""
    namespace: str = ""


class Workload(msgspec.Struct):
    """A Workload as a watch tells it."""

    metadata: Metadata
    status: Status = msgspec.field(default_factory=Status)


class Event(msgspec.Struct):
    """An event of a watch."""

    object: Workload


_decode = msgspec.json.Decoder(Event).decode


class Planned(NamedTuple):
    """A Workload that is to be created."""

    at: float
    runs: float
    obj: dict[str, Any]


class Load:
    """One run of a load: `creating` is the wire of whoever creates, `marking` that of whoever marks."""

    def __init__(self, creating: Wire, marking: Wire, planned: list[Planned]) -> None:
        self._creating = creating
        self._marking = marking
        self._planned = planned
        self._runs = {(p.obj["metadata"]["namespace"], p.obj["metadata"]["name"]): p.runs for p in planned}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._finished: set[tuple[str, str]] = set()
        self._is_over = asyncio.Event()
        self.latencies: list[float] = []

    async def run(self) -> float:
        """Create all, finish all; the seconds it took."""
        loop = asyncio.get_running_loop()
        watch = asyncio.ensure_future(self._watch())
        began = time.perf_counter()
        start = loop.time()
        for planned in self._planned:
            loop.call_at(start + planned.at, self._create, planned.obj)
        over = asyncio.ensure_future(self._is_over.wait())
        await asyncio.wait({watch, over}, return_when=asyncio.FIRST_COMPLETED)
        if watch.done():
            watch.result()
        watch.cancel()
        return time.perf_counter() - began

    def _create(self, obj: dict[str, Any]) -> None:
        path = f"{KUEUE}/namespaces/{obj['metadata']['namespace']}/workloads"
        self._creating.ask(Ask("POST", path, obj, JSON, self._created))

    def _created(self, code: int, body: bytes, seconds: float) -> None:
        assert code == 201, body
        self.latencies.append(seconds)

    async def _watch(self) -> None:
        async for line in self._marking.watched(f"{KUEUE}/workloads?watch=true"):
            self._see(_decode(line).object)

    def _see(self, workload: Workload) -> None:
        key = (workload.metadata.namespace, workload.metadata.name)
        conditions = {condition.type: condition.status for condition in workload.status.conditions}
        if conditions.get("Finished") == "True":
            self._finished.add(key)
            if len(self._finished) == len(self._planned):
                self._is_over.set()
        elif conditions.get("Admitted") == "True" and conditions.get("Evicted") != "True":
            if key not in self._timers:
                self._timers[key] = asyncio.get_running_loop().call_later(self._runs[key], self._finish, key)
        elif key in self._timers:
            self._timers.pop(key).cancel()

    def _finish(self, key: tuple[str, str]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        patch = [{"op": "add", "path": "/status/conditions/-", "value": {**_FINISHED, "lastTransitionTime": now}}]
        path = f"{KUEUE}/namespaces/{key[0]}/workloads/{key[1]}/status"
        self._marking.ask(Ask("PATCH", path, patch, JSON_PATCH, self._patched))

    def _patched(self, code: int, body: bytes, seconds: float) -> None:
        assert code in (200, 422), body  # 422: it is finished, by a patch that was on its way when it was evicted
        self.latencies.append(seconds)


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """The documents of a load, which are JSON."""
    for text in path.read_text("utf-8").split("---\n"):
        if text.strip():
            yield json.loads(text)


def plan(path: Path) -> tuple[list[dict[str, Any]], list[Planned]]:
    """What is there before the load begins, and its Workloads in order of time."""
    before, planned = [], []
    for obj in documents(path):
        if obj["kind"] != "Workload":
            before.append(obj)
            continue
        annotations = obj["metadata"].pop("annotations")
        at, runs = (float(annotations[name].removesuffix("s")) for name in (SUBMIT_AT, RUNTIME))
        planned.append(Planned(at, runs, obj))
    return [obj for obj in before if obj["kind"] != "Scenario"], planned


async def prepare(running: Running, before: list[dict[str, Any]]) -> None:
    """Make the queues, and the namespaces they are in."""
    plurals = {"ResourceFlavor": "resourceflavors", "ClusterQueue": "clusterqueues"}
    for obj in before:
        if obj["kind"] == "LocalQueue":
            namespace = obj["metadata"]["namespace"]
            named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            assert (await running.wire.asked("POST", "/api/v1/namespaces", named))[0] == 201
            path = f"{KUEUE}/namespaces/{namespace}/localqueues"
        else:
            path = f"{KUEUE}/{plurals[obj['kind']]}"
        code, body = await running.wire.asked("POST", path, obj)
        assert code == 201, body


async def main() -> None:
    """Run one load, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=Path)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--insecure-loopback", action="store_true")
    arguments = parser.parse_args()
    before, planned = plan(arguments.load)
    options = ("--insecure-loopback",) if arguments.insecure_loopback else ()
    async with platform(*options, connections=arguments.connections // 2) as running:
        await prepare(running, before)
        marking = await running.wire.another(arguments.connections // 2)
        cpu, main, own = running.cpu(), running.main_thread_cpu(), time.process_time()
        load = Load(running.wire, marking, planned)
        wall = await load.run()
        waits = sorted(load.latencies)
        reported = ", ".join(f"p{share} {waits[len(waits) * share // 100] * 1000:.1f} ms" for share in (50, 99))
        needed = f"{running.cpu() - cpu:.1f} CPU-s ({running.main_thread_cpu() - main:.1f} of them in the main thread)"
        needed += f" and {running.memory()} MB in the platform, {time.process_time() - own:.1f} CPU-s in the client"
        print(f"{len(planned)} Workloads finished after {wall:.1f} s; {needed}; {len(waits)} requests, {reported}")


if __name__ == "__main__":
    uvloop.run(main())
