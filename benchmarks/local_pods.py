"""Measures the start latency of short pods that run as processes of this machine, at a constant rate.

    python benchmarks/local_pods.py [--pods N] [--per-minute N]

Each pod writes its name to a file and ends after 0.2 s; then the benchmark deletes it. Prints the time from sending a
create to the watch event with phase Running, the platform's CPU time per pod, and the pods that were lost or ran twice.
Also prints the numbers of processes, network namespaces, mounts and cgroups before the run and after the last deletion.
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
from wire import JSON, BenchmarkPlatform, WireRequest, run_platform

PODS: Final = "/api/v1/namespaces/default/pods"
#: The processes without pods: the spawner and the network switch.
_BASE_PROCESSES: Final = 2
_CLEANUP_SECONDS: Final = 20


class MachineResources(NamedTuple):
    """The numbers of resources that pods can leak: processes of the node, network namespaces, mounts, cgroups."""

    processes: int
    networks: int
    mounts: int
    cgroups: int


class PodLoad:
    """Creates pods at an interval in seconds; records their latencies and failures."""

    def __init__(self, platform: BenchmarkPlatform, names: list[str], interval: float, folder: Path) -> None:
        self._platform = platform
        self._remaining = dict.fromkeys(names)
        self._names = names
        self._interval = interval
        self._folder = folder
        self._sent: dict[str, float] = {}
        self._completed = asyncio.Event()
        self.latencies: dict[str, float] = {}
        self.failed: list[str] = []

    async def run(self) -> None:
        """Create all pods, wait until each has run, and delete them."""
        loop = asyncio.get_running_loop()
        watch = asyncio.ensure_future(self._watch())
        start = loop.time()
        for number, name in enumerate(self._names):
            loop.call_at(start + number * self._interval, self._create, name)
        await asyncio.wait_for(self._completed.wait(), self._interval * len(self._names) + _CLEANUP_SECONDS)
        watch.cancel()

    def _create(self, name: str) -> None:
        self._sent[name] = time.perf_counter()
        self._platform.client.send(WireRequest("POST", PODS, _pod(name, self._folder), JSON, self._handle_create))

    def _handle_create(self, code: int, body: bytes, _seconds: float) -> None:
        assert code == 201, body

    async def _watch(self) -> None:
        async for line in self._platform.client.stream_lines(f"{PODS}?watch=true"):
            event = json.loads(line)
            name, status = event["object"]["metadata"]["name"], event["object"].get("status") or {}
            if event["type"] == "DELETED":
                self._remaining.pop(name, None)
                if not self._remaining:
                    self._completed.set()
            else:
                self._observe(name, status)

    def _observe(self, name: str, status: Mapping[str, Any]) -> None:
        phase = status.get("phase")
        if phase in {"Running", "Succeeded", "Failed"} and name not in self.latencies:
            self.latencies[name] = time.perf_counter() - self._sent[name]
        if phase == "Failed":
            self.failed.append(name)
        if phase in {"Succeeded", "Failed"}:
            self._platform.client.send(WireRequest("DELETE", f"{PODS}/{name}", None, JSON, lambda *_: None))


async def _pause() -> None:
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


def count_resources(data: Path) -> MachineResources:
    """Return the current resources of this machine; `data` is the data directory of the platform."""
    processes, networks = 0, set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                networks.add((entry / "ns/net").readlink())
                processes += f"{data / 'node'}\0".encode() in (entry / "cmdline").read_bytes()
    mounts = len(Path("/proc/mounts").read_text("utf-8").splitlines())
    cgroups = sum(1 for folder, _, _ in os.walk("/sys/fs/cgroup") if "batchyard" in folder)
    return MachineResources(processes, len(networks), mounts, cgroups)


async def wait_for_cleanup(data: Path, before: MachineResources) -> MachineResources:
    """Wait until the resources of pods are released, or a timeout; return the resources then."""
    for _ in range(_CLEANUP_SECONDS * 10):
        after = count_resources(data)
        if after.processes <= _BASE_PROCESSES and after[1:] == before[1:]:
            break
        await _pause()
    return after


async def main() -> None:
    """Run the load, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2500)
    parser.add_argument("--per-minute", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as seen:
        names = [f"p-{number}" for number in range(arguments.pods)]
        options = ("--cluster", "local", "--image", "machine=/", "--host-path", seen)
        async with run_platform(*options, connections=8) as platform:
            data = platform.kubeconfig.parent
            while b'"Ready","status":"True"' not in (await platform.client.request("GET", "/api/v1/nodes"))[1]:
                await _pause()
            before, cpu_before = count_resources(data), platform.cpu_seconds()
            load = PodLoad(platform, names, 60 / arguments.per_minute, Path(seen))
            await load.run()
            cpu = platform.cpu_seconds() - cpu_before
            after = await wait_for_cleanup(data, before)
        texts = {file.name: file.read_text("ascii") for file in Path(seen).iterdir()}
        _print_report(load, texts, cpu)
        print(f"before: {before}\nafter:  {after}")


def _print_report(load: PodLoad, texts: Mapping[str, str], cpu: float) -> None:
    """Print latencies, CPU seconds per pod, and the pods whose files in `texts` do not have exactly one line."""
    latencies = sorted(load.latencies.values())
    percentiles = (f"p{share} {latencies[len(latencies) * share // 100] * 1000:.0f} ms" for share in (50, 90, 99))
    cost = f"{cpu / len(latencies) * 1000:.1f} ms of CPU in the platform per pod"
    print(f"{len(latencies)} pods; from create to Running: {', '.join(percentiles)}; {cost}")
    lost = [name for name in load.latencies if name not in texts]
    repeated = [name for name, text in texts.items() if text.count("\n") != 1]
    print(f"lost: {lost or 'none'}; ran twice: {repeated or 'none'}; failed: {load.failed or 'none'}")


if __name__ == "__main__":
    uvloop.run(main())
