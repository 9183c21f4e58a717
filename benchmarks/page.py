"""The page at many Workloads, in a real Chromium: how soon it is there, how soon a change is seen, what it costs.

    python benchmarks/page.py [--workloads N] [--rounds N] [--seconds S] [--shots DIR]

A platform with nodes of 8 GPUs each: Jobs of one GPU in 20 ClusterQueues of 4 Cohorts, a tenth of them admitted, the
rest in line. Prints what the platform takes for each model, the first paint of each view and when its model was drawn,
how long after a create was sent the browser shows it, and the CPU time of the platform while 20 Workloads a second come
and go, by how many look at the overview. --shots writes a picture of each view.
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
from wire import Running, Wire, platform

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
ASKED: Final = (
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
    """The manifest of a cluster."""
    pool = f"{{name: gpus, machineType: a3-highgpu-8g, nodeCount: {nodes}}}"
    metadata = "apiVersion: cloud.batchyard.dev/v1alpha1\nkind: Cluster\nmetadata: {name: many}\n"
    return f"{metadata}spec: {{zones: [z], nodePools: [{pool}]}}\n"


def job(number: int) -> dict[str, Any]:
    """One of a queue in turn, of one GPU."""
    resources = {"requests": {"cpu": "4", "memory": "64Gi"}, "limits": {GPU: "1"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "resources": resources}]}
    labels = {"kueue.x-k8s.io/queue-name": f"jobs-{number % QUEUES:02}"}
    metadata = {"name": f"train-{number}", "labels": labels, "annotations": {"batchyard.dev/runtime": "240h"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def workload(number: int) -> dict[str, Any]:
    """A bare Workload that waits."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    sets = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    spec = {"queueName": f"jobs-{number % QUEUES:02}", "podSets": sets}
    return {"apiVersion": API, "kind": "Workload", "metadata": {"name": f"w-{number}"}, "spec": spec}


def queues(admitted: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The queues, in which so many fit."""
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


async def load(running: Running, count: int) -> None:
    """Make queues and Jobs, and wait until a tenth is admitted and has pods."""
    for path, obj in queues(count // 10):
        await made(running, f"{KUEUE}/{path}", {"apiVersion": API, **obj})
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await made(running, JOBS, job(number))

    await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    while True:
        reported = (await asked(running, "overview"))["model"]
        gpus = next(line for line in reported["cluster"]["resources"] if line["resource"] == GPU)
        if (
            reported["runningCount"] == count // 10
            and reported["waitingCount"] == count - count // 10
            and gpus["share"] > 0.99
        ):
            return
        await sleep_for(SECOND)


async def made(running: Running, path: str, obj: dict[str, Any]) -> None:
    """Make an object."""
    code, body = await running.wire.asked("POST", path, obj)
    assert code == 201, body


async def asked(running: Running, view: str) -> Any:
    """A model."""
    code, body = await running.wire.asked("GET", f"{MODELS}/{view}")
    assert code == 200, body
    return msgspec.json.decode(body)


async def models(running: Running) -> None:
    """What each model takes of the platform, many times over."""
    times = 50
    for view in ASKED:
        await asked(running, view)
        began = running.cpu()
        for _ in range(times):
            await asked(running, view)
        print(f"model {view:24} {(running.cpu() - began) / times * 1000:6.1f} ms of CPU")


async def paints(browser: Browser, url: str, rounds: int, shots: Path | None) -> None:
    """The first paint, and the first model drawn, of each view."""
    for view in VIEWS:
        first, drawn = list[float](), list[float]()
        for _ in range(rounds):
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(f"{url}#/{view}")
            await page.wait_for_function("() => performance.getEntriesByName('batchyard-drawn').length")
            reported = "() => [performance.getEntriesByName('first-contentful-paint')[0]?.startTime, "
            reported += "performance.getEntriesByName('batchyard-drawn')[0].startTime]"
            await page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            for times, value in zip((first, drawn), await page.evaluate(reported), strict=True):
                times.append(value)
            if shots is not None:
                await page.screenshot(path=shots / f"{view.partition('/')[0] or 'overview'}.png")
            await page.close()
        print(f"view {view or 'overview':16} first paint {max(first):4.0f} ms, its model drawn {max(drawn):4.0f} ms")


async def updates(browser: Browser, running: Running, url: str, rounds: int) -> None:
    """How long after a create was sent its Workload is to be seen."""
    page = await browser.new_page()
    await page.goto(f"{url}#/workloads")
    await page.wait_for_selector("main tbody tr")
    seen = []
    for number in range(10_000_000, 10_000_000 + rounds):
        began = time.perf_counter()
        await made(running, WORKLOADS, workload(number))
        await shown(page, f"w-{number}")
        seen.append((time.perf_counter() - began) * 1000)
    await page.close()
    print(f"a new Workload is seen after {statistics.median(seen):.0f} ms, at most {max(seen):.0f} ms")


async def shown(page: Page, text: str) -> None:
    """Wait until a text is to be seen."""
    await page.wait_for_function("text => document.querySelector('main').innerText.includes(text)", arg=text)


async def cpu(browser: Browser, running: Running, url: str, seconds: float) -> None:
    """CPU time of the platform with a steady load, and so many who look on."""
    number = 20_000_000
    for open_streams in (0, 1, 5, 0, 1, 5):
        pages = [await browser.new_page() for _ in range(open_streams)]
        for page in pages:
            await page.goto(f"{url}#/")
            await page.wait_for_selector("main table")
        began, start = running.cpu(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            await made(running, WORKLOADS, workload(number))
            await running.wire.asked("DELETE", f"{WORKLOADS}/w-{number}")
            number += 1
            await sleep_for(SECOND // 20)
        share = (running.cpu() - began) / (time.perf_counter() - start)
        for page in pages:
            await page.close()
        print(f"{open_streams} look on: {share * 100:5.1f} % of a core")


async def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--shots", type=Path)
    wanted = parser.parse_args()
    nodes = wanted.workloads // 10 // GPUS_OF_NODE
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as manifest:
        manifest.write(cluster(nodes))
        manifest.flush()
        async with platform("--insecure-loopback", "--cluster", manifest.name) as started, async_playwright() as driver:
            running = started
            await load(running, wanted.workloads)
            print(f"{wanted.workloads} Workloads, {nodes} nodes, {running.memory()} MB")
            await models(running)
            browser = await driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            url = f"http://{running.wire.host}/ui/"
            await paints(browser, url, wanted.rounds, wanted.shots)
            host, _, port = running.wire.host.rpartition(":")
            running = running._replace(wire=Wire((host, int(port)), None))  # the other's connections were idle too long
            await running.wire.open(1)
            await updates(browser, running, url, wanted.rounds)
            await cpu(browser, running, url, wanted.seconds)
            await browser.close()


if __name__ == "__main__":
    uvloop.run(main())
