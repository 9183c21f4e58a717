"""A large state: what it takes to hold 100,000 Workloads and 5,000 nodes, and to list them with kubectl.

    python benchmarks/http_large.py [--workloads N] [--nodes N] [--kubectl PATH]

The Workloads wait in one queue. Prints the memory of the platform, how long the rows that kubectl prints take in pages
of 500, and how long kubectl takes: it asks for 5 pages a second at most, so larger ones are measured too.
"""

import argparse
import asyncio
import shutil
import subprocess
import time
from typing import Any, Final

import msgspec
import uvloop
from http_creates import make_queue, shares, workload
from http_load import KUEUE
from wire import JSON, Ask, Running, platform

_ROWS: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"


class _Metadata(msgspec.Struct):
    further: str = msgspec.field(default="", name="continue")


class _Listed(msgspec.Struct):
    metadata: _Metadata


_decode = msgspec.json.Decoder(_Listed).decode


def node(number: int) -> dict[str, Any]:
    """A node as its kubelet would register it."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": f"node-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


async def create_all(running: Running, path: str, objs: list[dict[str, Any]]) -> list[float]:
    """Create them, and wait for the answers."""
    over, seconds = asyncio.Event(), list[float]()

    def done(code: int, body: bytes, took: float) -> None:
        assert code == 201, body
        seconds.append(took)
        if len(seconds) == len(objs):
            over.set()

    for obj in objs:
        running.wire.ask(Ask("POST", path, obj, JSON, done))
    await over.wait()
    return seconds


async def read_pages(running: Running) -> int:
    """Read the rows of all Workloads page by page; how many pages."""
    pages, following = 0, ""
    while following or not pages:
        path = f"{KUEUE}/workloads?limit=500{following}"
        code, body = await running.wire.asked("GET", path, accept=_ROWS)
        assert code == 200, body
        reported = _decode(body).metadata.further
        pages, following = pages + 1, f"&continue={reported}" if reported else ""
    return pages


async def main() -> None:
    """Make it, list it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--kubectl", default=shutil.which("kubectl"))
    arguments = parser.parse_args()
    async with platform() as running:
        await make_queue(running)
        await create_all(running, "/api/v1/nodes", [node(number) for number in range(arguments.nodes)])
        path, objs = f"{KUEUE}/namespaces/default/workloads", [workload(n) for n in range(arguments.workloads)]
        print(f"creates: {shares(await create_all(running, path, objs))}")
        print(f"{arguments.workloads} Workloads and {arguments.nodes} nodes: {running.memory()} MB")
        began, cpu = time.perf_counter(), running.cpu()
        pages = await read_pages(running)
        took = f"{time.perf_counter() - began:.1f} s, {running.cpu() - cpu:.1f} CPU-s in the platform"
        print(f"rows of all Workloads in {pages} pages: {took}")
        for listed in (("workloads", "-A"), ("workloads", "-A", "--chunk-size=10000"), ("nodes",)):
            command = [arguments.kubectl, "--kubeconfig", str(running.kubeconfig), "get", *listed]
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            lines = (await process.communicate())[0].count(b"\n")
            print(f"kubectl get {' '.join(listed)}: {lines} lines in {time.perf_counter() - began:.1f} s")
        print(f"afterwards: {running.memory()} MB")


if __name__ == "__main__":
    uvloop.run(main())
