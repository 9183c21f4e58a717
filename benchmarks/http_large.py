"""Measures the memory of a platform with 100,000 Workloads and 5,000 nodes, and the time to list them.

    python benchmarks/http_large.py [--workloads N] [--nodes N] [--kubectl PATH]

The Workloads wait in one queue. Prints the memory of the platform, the time to read all rows that kubectl prints in
pages of 500, and the time of `kubectl get`. kubectl requests at most 5 pages per second, so the benchmark also measures
larger pages.
"""

import argparse
import asyncio
import shutil
import subprocess
import time
from typing import Any, Final

import msgspec
import uvloop
from http_creates import format_percentiles, make_queue, workload
from http_load import KUEUE
from wire import JSON, BenchmarkPlatform, WireRequest, run_platform

_ROWS: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"


class _PageMetadata(msgspec.Struct):
    continue_token: str = msgspec.field(default="", name="continue")


class _TablePage(msgspec.Struct):
    metadata: _PageMetadata


_decode = msgspec.json.Decoder(_TablePage).decode


def node(number: int) -> dict[str, Any]:
    """Return a node as a kubelet registers it."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": f"node-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


async def create_all(platform: BenchmarkPlatform, path: str, objs: list[dict[str, Any]]) -> list[float]:
    """Create objects, and wait for all responses; return the latencies in seconds."""
    completed, latencies = asyncio.Event(), list[float]()

    def handle_response(code: int, body: bytes, seconds: float) -> None:
        assert code == 201, body
        latencies.append(seconds)
        if len(latencies) == len(objs):
            completed.set()

    for obj in objs:
        platform.client.send(WireRequest("POST", path, obj, JSON, handle_response))
    await completed.wait()
    return latencies


async def read_pages(platform: BenchmarkPlatform) -> int:
    """Read the rows of all Workloads page by page; return the number of pages."""
    pages, parameter = 0, ""
    while parameter or not pages:
        path = f"{KUEUE}/workloads?limit=500{parameter}"
        code, body = await platform.client.request("GET", path, accept=_ROWS)
        assert code == 200, body
        token = _decode(body).metadata.continue_token
        pages, parameter = pages + 1, f"&continue={token}" if token else ""
    return pages


async def main() -> None:
    """Create the objects, list them, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--kubectl", default=shutil.which("kubectl"))
    arguments = parser.parse_args()
    async with run_platform() as platform:
        await make_queue(platform)
        await create_all(platform, "/api/v1/nodes", [node(number) for number in range(arguments.nodes)])
        path, objs = f"{KUEUE}/namespaces/default/workloads", [workload(n) for n in range(arguments.workloads)]
        print(f"creates: {format_percentiles(await create_all(platform, path, objs))}")
        print(f"{arguments.workloads} Workloads and {arguments.nodes} nodes: {platform.resident_memory()} MB")
        start, cpu_before = time.perf_counter(), platform.cpu_seconds()
        pages = await read_pages(platform)
        cost = f"{time.perf_counter() - start:.1f} s, {platform.cpu_seconds() - cpu_before:.1f} CPU-s in the platform"
        print(f"rows of all Workloads in {pages} pages: {cost}")
        for options in (("workloads", "-A"), ("workloads", "-A", "--chunk-size=10000"), ("nodes",)):
            command = [arguments.kubectl, "--kubeconfig", str(platform.kubeconfig), "get", *options]
            start = time.perf_counter()
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            lines = (await process.communicate())[0].count(b"\n")
            print(f"kubectl get {' '.join(options)}: {lines} lines in {time.perf_counter() - start:.1f} s")
        print(f"after the lists: {platform.resident_memory()} MB")


if __name__ == "__main__":
    uvloop.run(main())
