"""Short pods as processes of this machine, so many a minute: how soon they run, and whether each ran once.

    python benchmarks/local_pods.py [--pods N] [--per-minute N]

Each pod writes its name into a file of its own and ends after a moment; then it is deleted. Prints how long it took
from the sending of its create until a watch told that it ran, the CPU time of the platform for each, which pods were
lost or ran twice, and what is left of processes, network namespaces, mounts and cgroups once all are gone.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop
from wire import JSON, Ask, Running, platform

PODS: Final = "/api/v1/namespaces/default/pods"
#: The spawner and the switch stay as long as the platform does.
_STAYING: Final = 2
_GONE_WITHIN: Final = 20


class Left(NamedTuple):
    """What may be left behind: processes of the node, network namespaces, mounts, cgroups."""

    processes: int
    networks: int
    mounts: int
    cgroups: int


class Load:
    """Pods that come one after the other."""

    def __init__(self, running: Running, names: list[str], every: float, folder: Path) -> None:
        self._running = running
        self._left = dict.fromkeys(names)
        self._names = names
        self._every = every
        self._folder = folder
        self._sent: dict[str, float] = {}
        self._done = asyncio.Event()
        self.waits: dict[str, float] = {}
        self.failed: list[str] = []

    async def run(self) -> None:
        """Create all, see all run and end, delete all."""
        loop = asyncio.get_running_loop()
        watch = asyncio.ensure_future(self._watch())
        start = loop.time()
        for number, name in enumerate(self._names):
            loop.call_at(start + number * self._every, self._create, name)
        await asyncio.wait_for(self._done.wait(), self._every * len(self._names) + _GONE_WITHIN)
        watch.cancel()

    def _create(self, name: str) -> None:
        self._sent[name] = time.perf_counter()
        self._running.wire.ask(Ask("POST", PODS, _pod(name, self._folder), JSON, self._created))

    def _created(self, code: int, body: bytes, _seconds: float) -> None:
        assert code == 201, body

    async def _watch(self) -> None:
        async for line in self._running.wire.watched(f"{PODS}?watch=true"):
            event = json.loads(line)
            name, status = event["object"]["metadata"]["name"], event["object"].get("status") or {}
            if event["type"] == "DELETED":
                self._left.pop(name, None)
                if not self._left:
                    self._done.set()
            else:
                self._see(name, status)

    def _see(self, name: str, status: Mapping[str, Any]) -> None:
        phase = status.get("phase")
        if phase in {"Running", "Succeeded", "Failed"} and name not in self.waits:
            self.waits[name] = time.perf_counter() - self._sent[name]
        if phase == "Failed":
            self.failed.append(name)
        if phase in {"Succeeded", "Failed"}:
            self._running.wire.ask(Ask("DELETE", f"{PODS}/{name}", None, JSON, lambda *_: None))


async def _moment() -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)


def _pod(name: str, folder: Path) -> dict[str, Any]:
    script = f"echo {name} >> /seen/{name}; sleep 0.2"
    container = {
        "name": "main",
        "image": "machine",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "seen", "mountPath": "/seen"}],
    }
    volume = {"name": "seen", "hostPath": {"path": str(folder)}}
    return {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]},
    }


def left(data: Path) -> Left:
    """What there is on this machine of the kinds that pods might leave."""
    processes, networks = 0, set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                networks.add((entry / "ns/net").readlink())
                processes += f"{data / 'node'}\0".encode() in (entry / "cmdline").read_bytes()
    mounts = len(Path("/proc/mounts").read_text("utf-8").splitlines())
    cgroups = sum(1 for folder, _, _ in os.walk("/sys/fs/cgroup") if "batchyard" in folder)
    return Left(processes, len(networks), mounts, cgroups)


async def left_in_the_end(data: Path, before: Left) -> Left:
    """The same, once what goes has gone."""
    for _ in range(_GONE_WITHIN * 10):
        after = left(data)
        if after.processes <= _STAYING and after[1:] == before[1:]:
            break
        await _moment()
    return after


async def main() -> None:
    """Run the load, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2500)
    parser.add_argument("--per-minute", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as seen:
        names = [f"p-{number}" for number in range(arguments.pods)]
        options = ("--cluster", "local", "--image", "machine=/", "--host-path", seen)
        async with platform(*options, connections=8) as running:
            data = running.kubeconfig.parent
            while b'"Ready","status":"True"' not in (await running.wire.asked("GET", "/api/v1/nodes"))[1]:
                await _moment()
            before, cpu = left(data), running.cpu()
            load = Load(running, names, 60 / arguments.per_minute, Path(seen))
            await load.run()
            used = running.cpu() - cpu
            after = await left_in_the_end(data, before)
        _print(load, {each.name: each.read_text("ascii") for each in Path(seen).iterdir()}, used, (before, after))


def _print(load: Load, written: Mapping[str, str], used: float, between: tuple[Left, Left]) -> None:
    waits = sorted(load.waits.values())
    reported = ", ".join(f"p{share} {waits[len(waits) * share // 100] * 1000:.0f} ms" for share in (50, 90, 99))
    cost = f"{used / len(waits) * 1000:.1f} ms of CPU in the platform each"
    print(f"{len(waits)} pods; from create to running: {reported}; {cost}")
    lost = [name for name in load.waits if name not in written]
    twice = [name for name, text in written.items() if text.count("\n") != 1]
    print(f"lost: {lost or 'none'}; ran twice: {twice or 'none'}; failed: {load.failed or 'none'}")
    print("before: {}\nafter:  {}".format(*between))


if __name__ == "__main__":
    uvloop.run(main())
