"""Measures what one admission webhook on this machine adds to creates: with `batchyard up`, and with kube-apiserver.

    PYTHONPATH=tests python benchmarks/webhook_creates.py [--creates N] [--clients N] [--runs N] [--servers NAMES]

NAMES is `up`, `kubernetes` or `up,kubernetes` (the default). Each client creates one ConfigMap after another, in turns
without and with a validating webhook. The webhook allows every request. It runs in a process of its own, over TLS, with
connections that stay open. The environment variable KUBEBUILDER_ASSETS is the folder of etcd and kube-apiserver. Prints
medians of all runs: creates per second, latency, and CPU time per create of the server and of etcd.
"""

import argparse
import asyncio
import base64
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop
from aiohttp import web
from peer_clusters import QUIET, PeerCluster, connect, programs_of_children
from wire import JSON, WireRequest, run_platform

from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import CertificateAuthority
from e2e_kubernetes.kubernetes import Kubernetes, KubernetesSettings
from e2e_platform.operator_process import free_port

_MAPS: Final = "/api/v1/namespaces/default/configmaps"
_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_NAME: Final = "benchmark"
_RULE: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
#: The time in seconds after which all parts of a server use a changed webhook configuration.
_SETTLE_SECONDS: Final = 2.0


class CreateFigures(NamedTuple):
    """The figures of one run: creates per second, latencies in ms, and CPU time per create in us by program."""

    rate: float
    median_latency: float
    p99_latency: float
    cpu: dict[str, float]


class ConfigMapCreates:
    """Creates ConfigMaps by concurrent clients."""

    def __init__(self, cluster: PeerCluster, prefix: str, creates: int) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._creates = creates
        self._sent_count = 0
        self._latencies: list[float] = []
        self._completed = asyncio.Event()

    async def run(self, clients: int) -> CreateFigures:
        """Create all ConfigMaps."""
        cpu_before, start = self._cluster.cpu_seconds(), time.perf_counter()
        for _ in range(clients):
            self._create()
        await self._completed.wait()
        seconds, ordered = time.perf_counter() - start, sorted(self._latencies)
        cpu_after = self._cluster.cpu_seconds()
        return CreateFigures(
            self._creates / seconds,
            ordered[len(ordered) // 2] * 1000,
            ordered[len(ordered) * 99 // 100] * 1000,
            {name: (cpu_after[name] - cpu_before[name]) / self._creates * 1e6 for name in cpu_after},
        )

    def _create(self) -> None:
        number, self._sent_count = self._sent_count, self._sent_count + 1
        if number < self._creates:
            metadata = {"name": f"{self._prefix}-{number}"}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": str(number)}}
            self._cluster.client.send(WireRequest("POST", _MAPS, body, JSON, self._handle_response))

    def _handle_response(self, code: int, body: bytes, seconds: float) -> None:
        assert code == 201, body
        self._latencies.append(seconds)
        if len(self._latencies) == self._creates:
            self._completed.set()
        asyncio.get_running_loop().call_soon(self._create)


async def _serve(folder: Path, port: int) -> None:
    """Serve a webhook that allows every request; a GET returns the number of requests so far."""
    reviewed_count = 0

    async def count(_: web.Request) -> web.Response:
        return web.Response(text=str(reviewed_count))

    async def allow(request: web.Request) -> web.Response:
        nonlocal reviewed_count
        reviewed_count += 1
        review = msgspec.json.decode(await request.read())
        response = {"uid": review["request"]["uid"], "allowed": True}
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return web.Response(body=msgspec.json.encode(answer), content_type=JSON)

    application = web.Application()
    application.router.add_post("/", allow)
    application.router.add_get("/", count)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(folder / "hook.crt"), str(folder / "hook.key"))
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    await asyncio.Event().wait()


@asynccontextmanager
async def _webhook(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Run the webhook in another process; yield its configuration."""
    authority = CertificateAuthority(folder, wall_clock())
    certificate = authority.issue_server_certificate(("127.0.0.1",))
    (folder / "hook.crt").write_bytes(certificate.certificate)
    (folder / "hook.key").write_bytes(certificate.key)
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(folder), str(port)])
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await _pause(0.1)
                continue
            writer.close()
            break
        bundle = base64.b64encode(authority.certificate_file.read_bytes()).decode()
        webhook = {
            "name": "benchmark.batchyard.dev",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle},
            "rules": [_RULE],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        metadata = {"name": _NAME}
        yield {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": metadata,
            "webhooks": [webhook],
        }
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def _up(_: Path) -> AsyncIterator[PeerCluster]:
    async with run_platform("--log-level", "error") as platform:
        yield PeerCluster(platform.client, {"platform": platform.process.pid})


@asynccontextmanager
async def _kubernetes(folder: Path) -> AsyncIterator[PeerCluster]:
    with Kubernetes(folder, KubernetesSettings(arguments=QUIET)) as server:
        context = ssl.create_default_context(cafile=str(server.authority.certificate_file))
        yield PeerCluster(await connect(server.url, context, folder), programs_of_children({}))


_SERVERS: Final = {"up": _up, "kubernetes": _kubernetes}


def _count_reviews(client_config: Mapping[str, str]) -> int:
    context = ssl.create_default_context(cadata=base64.b64decode(client_config["caBundle"]).decode())
    with urllib.request.urlopen(client_config["url"], context=context) as response:
        return int(response.read())


async def _pause(seconds: float) -> None:
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, done.set_result, None)
    await done


async def _measure(name: str, arguments: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        hook_folder, folder = (Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))) for _ in range(2))
        configuration = await stack.enter_async_context(_webhook(hook_folder))
        cluster = await stack.enter_async_context(_SERVERS[name](folder))
        await ConfigMapCreates(cluster, "warm-up", arguments.creates // 5).run(arguments.clients)
        figures: dict[bool, list[CreateFigures]] = {False: [], True: []}
        for run in range(arguments.runs):
            for has_webhook, runs in figures.items():
                if has_webhook:
                    await cluster.create(_CONFIGURATIONS, configuration)
                    await _pause(_SETTLE_SECONDS)
                creates = ConfigMapCreates(cluster, f"m-{run}-{has_webhook}".lower(), arguments.creates)
                runs.append(await creates.run(arguments.clients))
            reviewed_count = _count_reviews(configuration["webhooks"][0]["clientConfig"])
            assert reviewed_count == (run + 1) * arguments.creates, f"the webhook reviewed {reviewed_count} creates"
            code, body = await cluster.client.request("DELETE", f"{_CONFIGURATIONS}/{_NAME}")
            assert code == 200, body
            await _pause(_SETTLE_SECONDS)
    for has_webhook, runs in figures.items():
        print(f"{name}, {'one webhook' if has_webhook else 'no webhook'}: {_format(runs)}", flush=True)


def _format(runs: Sequence[CreateFigures]) -> str:
    rate, median, p99 = (
        statistics.median(getattr(run, field) for run in runs) for field in ("rate", "median_latency", "p99_latency")
    )
    cpu = [f"{name} {statistics.median(run.cpu[name] for run in runs):.0f} us" for name in runs[0].cpu]
    return f"{rate:.0f} creates/s, p50 {median:.1f} ms, p99 {p99:.1f} ms; CPU per create: {', '.join(cpu)}"


async def main() -> None:
    """Measure the servers one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--servers", type=lambda text: text.split(","), default=[*_SERVERS])
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        await _serve(Path(arguments.serve[0]), int(arguments.serve[1]))
    for name in arguments.servers:
        await _measure(name, arguments)


if __name__ == "__main__":
    uvloop.run(main())
