"""Measures the dashboard with many Workloads in Chromium: the first paint, the delay of updates, and the CPU cost.

    python benchmarks/page.py [--workloads N] [--rounds N] [--seconds S] [--shots DIR]

The platform has nodes of 8 GPUs, and Jobs of one GPU in 20 ClusterQueues of 4 Cohorts. A tenth of the Jobs is admitted,
the others are pending. Prints:

- the CPU time of the platform for each model (the JSON data of a view);
- for each view, the time to the first paint and to the rendering of its model;
- the time from sending a create until the browser shows the Workload;
- the CPU time of the platform with 20 creates and deletes per second, by the number of open overview pages.

--shots writes a screenshot of each view.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from playwright.async_api import Browser, Page, async_playwright
from wire import BenchmarkPlatform, run_platform

from batchyard.base.instant import SECOND
from batchyard.server.clocks.wall import sleep_for

API: Final = "kueue.x-k8s.io/v1beta2"
KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS: Final = f"{KUEUE}/namespaces/default/workloads"
MODELS: Final = "/apis/ui.batchyard.dev/v1alpha1"
GPU: Final = "nvidia.com/gpu"
QUEUES, COHORTS, GPUS_OF_NODE = 20, 4, 8
VIEWS: Final = ("", "cohorts", "queue/queue-00", "workloads", "timeline", "nodes")
MODEL_PATHS: Final = (
    "overview",
    "cohorts",
    "queue?name=queue-00",
    "workloads",
    "workloads?text=train-99",
    "timeline",
    "nodes",
)
_CLIENTS: Final = 16


def cluster(nodes: int) -> str:
    """Return the manifest of a cluster with this number of nodes."""
    pool = f"{{name: gpus, machineType: a3-highgpu-8g, nodeCount: {nodes}}}"
    metadata = "apiVersion: cloud.batchyard.dev/v1alpha1\nkind: Cluster\nmetadata: {name: many}\n"
    return f"{metadata}spec: {{zones: [z], nodePools: [{pool}]}}\n"


def job(number: int) -> dict[str, Any]:
    """Return a Job of one GPU; Jobs are assigned to the queues in turn."""
    resources = {"requests": {"cpu": "4", "memory": "64Gi"}, "limits": {GPU: "1"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "resources": resources}]}
    labels = {"kueue.x-k8s.io/queue-name": f"jobs-{number % QUEUES:02}"}
    metadata = {"name": f"train-{number}", "labels": labels, "annotations": {"batchyard.dev/runtime": "240h"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def workload(number: int) -> dict[str, Any]:
    """Return a Workload without a Job, which stays pending."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    sets = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    spec = {"queueName": f"jobs-{number % QUEUES:02}", "podSets": sets}
    return {"apiVersion": API, "kind": "Workload", "metadata": {"name": f"w-{number}"}, "spec": spec}


def queues(admitted: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the flavor and queues with their paths; the total quota admits this number of Jobs."""
    yield "resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "h100"}}
    amounts = {
        "cpu": str(admitted * 4 // QUEUES),
        "memory": f"{admitted * 64 // QUEUES}Gi",
        GPU: str(admitted // QUEUES),
    }
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": "h100", "resources": quotas}]}
    for number in range(QUEUES):
        spec = {"cohortName": f"cohort-{number % COHORTS}", "namespaceSelector": {}, "resourceGroups": [group]}
        yield "clusterqueues", {"kind": "ClusterQueue", "metadata": {"name": f"queue-{number:02}"}, "spec": spec}
        local = {"kind": "LocalQueue", "metadata": {"name": f"jobs-{number:02}"}}
        yield "namespaces/default/localqueues", {**local, "spec": {"clusterQueue": f"queue-{number:02}"}}


async def create_load(platform: BenchmarkPlatform, count: int) -> None:
    """Create queues and Jobs, and wait until a tenth of the Jobs is admitted and has pods."""
    for path, obj in queues(count // 10):
        await create(platform, f"{KUEUE}/{path}", {"apiVersion": API, **obj})
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await create(platform, JOBS, job(number))

    await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    while True:
        model = (await get_model(platform, "overview"))["model"]
        gpus = next(row for row in model["cluster"]["resources"] if row["resource"] == GPU)
        if (
            model["runningCount"] == count // 10
            and model["waitingCount"] == count - count // 10
            and gpus["share"] > 0.99
        ):
            return
        await sleep_for(SECOND)


async def create(platform: BenchmarkPlatform, path: str, obj: dict[str, Any]) -> None:
    """Create an object."""
    code, body = await platform.client.request("POST", path, obj)
    assert code == 201, body


async def get_model(platform: BenchmarkPlatform, path: str) -> Any:
    """Return the model of a view."""
    code, body = await platform.client.request("GET", f"{MODELS}/{path}")
    assert code == 200, body
    return msgspec.json.decode(body)


async def measure_models(platform: BenchmarkPlatform) -> None:
    """Print the CPU time of the platform per model, as a mean of 50 requests."""
    times = 50
    for view in MODEL_PATHS:
        await get_model(platform, view)
        cpu_before = platform.cpu_seconds()
        for _ in range(times):
            await get_model(platform, view)
        print(f"model {view:24} {(platform.cpu_seconds() - cpu_before) / times * 1000:6.1f} ms of CPU")


async def measure_paints(browser: Browser, url: str, rounds: int, shots: Path | None) -> None:
    """Print the time to the first paint and to the rendered model of each view; the maximum of the rounds."""
    for view in VIEWS:
        first, rendered = list[float](), list[float]()
        for _ in range(rounds):
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(f"{url}#/{view}")
            await page.wait_for_function("() => performance.getEntriesByName('batchyard-drawn').length")
            script = "() => [performance.getEntriesByName('first-contentful-paint')[0]?.startTime, "
            script += "performance.getEntriesByName('batchyard-drawn')[0].startTime]"
            await page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            for times, value in zip((first, rendered), await page.evaluate(script), strict=True):
                times.append(value)
            if shots is not None:
                await page.screenshot(path=shots / f"{view.partition('/')[0] or 'overview'}.png")
            await page.close()
        print(f"view {view or 'overview':16} first paint {max(first):4.0f} ms, model rendered {max(rendered):4.0f} ms")


async def measure_updates(browser: Browser, platform: BenchmarkPlatform, url: str, rounds: int) -> None:
    """Print the time from sending a create until the page shows the Workload."""
    page = await browser.new_page()
    await page.goto(f"{url}#/workloads")
    await page.wait_for_selector("main tbody tr")
    delays = []
    for number in range(10_000_000, 10_000_000 + rounds):
        start = time.perf_counter()
        await create(platform, WORKLOADS, workload(number))
        await wait_for_text(page, f"w-{number}")
        delays.append((time.perf_counter() - start) * 1000)
    await page.close()
    print(f"a new Workload is shown after {statistics.median(delays):.0f} ms (median), {max(delays):.0f} ms (max)")


async def wait_for_text(page: Page, text: str) -> None:
    """Wait until the page shows a text."""
    await page.wait_for_function("text => document.querySelector('main').innerText.includes(text)", arg=text)


async def measure_cpu(browser: Browser, platform: BenchmarkPlatform, url: str, seconds: float) -> None:
    """Print the CPU use of the platform under a constant load, by the number of open pages."""
    number = 20_000_000
    for page_count in (0, 1, 5, 0, 1, 5):
        pages = [await browser.new_page() for _ in range(page_count)]
        for page in pages:
            await page.goto(f"{url}#/")
            await page.wait_for_selector("main table")
        cpu_before, start = platform.cpu_seconds(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            await create(platform, WORKLOADS, workload(number))
            await platform.client.request("DELETE", f"{WORKLOADS}/w-{number}")
            number += 1
            await sleep_for(SECOND // 20)
        share = (platform.cpu_seconds() - cpu_before) / (time.perf_counter() - start)
        for page in pages:
            await page.close()
        print(f"{page_count} open pages: {share * 100:5.1f} % of a core")


async def main() -> None:
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--shots", type=Path)
    arguments = parser.parse_args()
    nodes = arguments.workloads // 10 // GPUS_OF_NODE
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as manifest:
        manifest.write(cluster(nodes))
        manifest.flush()
        options = ("--insecure-loopback", "--cluster", manifest.name)
        async with run_platform(*options) as platform, async_playwright() as driver:
            await create_load(platform, arguments.workloads)
            print(f"{arguments.workloads} Workloads, {nodes} nodes, {platform.resident_memory()} MB")
            await measure_models(platform)
            browser = await driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            url = f"http://{platform.client.host}/ui/"
            await measure_paints(browser, url, arguments.rounds, arguments.shots)
            # The platform has closed the idle connections of the first client.
            reconnected = platform._replace(client=await platform.client.open_another(1))
            await measure_updates(browser, reconnected, url, arguments.rounds)
            await measure_cpu(browser, reconnected, url, arguments.seconds)
            await browser.close()


if __name__ == "__main__":
    uvloop.run(main())
