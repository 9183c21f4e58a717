"""Loads `batchyard operator` or Kueue's manager with plain pods in a queue, on the API server of Kubernetes.

    PYTHONPATH=tests python benchmarks/operator_pods.py [--pods N] [--rate R] [--no-queue] [--output json]
    PYTHONPATH=tests python benchmarks/operator_pods.py --kueue SOURCES --manager PROGRAM [the options above]

KUBEBUILDER_ASSETS is the folder of etcd and kube-apiserver. The manager is installed with its webhooks: batchyard as by
its manifests, with its account and a standby; Kueue from the CRDs and webhooks of its sources, with the limits of its
manifests and of batchyard's, 300 requests a second and a burst of 500. R pods a second are created, by default as many
as 64 connections allow, in a queue that has room for all of them. The script acts as the kubelets: a pod succeeds a
second after its scheduling gate is removed. With `--no-queue`, the pods have no queue name.

Prints the wall time until the last gate is removed and until the last finalizer is removed, p50 and p99 of the seconds
from the time when a pod should be created until its gate is removed, the CPU seconds, and the writes per pod.
"""

import argparse
import asyncio
import base64
import os
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from loads import WorkloadSet
from operator_jobs import JobArrival, create_queues, installed, measure_costs, print_figures
from peer_clusters import MERGE_PATCH, QUIET, PeerCluster, connect, pause, programs_of_children, run_until_signal
from wire import JSON, WireRequest

from e2e_kubernetes.kubernetes import Kubernetes, KubernetesSettings, wait_for
from e2e_platform.operator_process import free_port

_PODS: Final = "/api/v1/namespaces/q0/pods"
_CLASS: Final = WorkloadSet("pod", 0, 0, 1000, 50, 1)
_RUN_TIME: Final = 1.0  # seconds
_IDLE_MAX: Final = 120.0  # seconds
_CRDS: Final = "config/components/crd/bases"
_WEBHOOKS: Final = "config/components/webhook/manifests.yaml"
_NAMESPACE: Final = "kueue-system"
_POD_WEBHOOKS: Final = ("mpod.kb.io", "vpod.kb.io")
#: The groups of batchyard's and Kueue's own kinds, and the kinds that the API server of Kubernetes has itself.
_SERVED_GROUPS: Final = frozenset({"", "apps", "batch", "kueue.x-k8s.io"})


class PodMetadata(msgspec.Struct):
    """The metadata that the load reads."""

    name: str = ""
    finalizers: list[str] = []


class PodSpecGates(msgspec.Struct):
    """The scheduling gates of a pod."""

    gates: list[Any] = msgspec.field(default_factory=list, name="schedulingGates")


class PodStatusPhase(msgspec.Struct):
    """The phase of a pod."""

    phase: str = ""


class WatchedPod(msgspec.Struct):
    """A pod in a watch event."""

    metadata: PodMetadata
    spec: PodSpecGates = msgspec.field(default_factory=PodSpecGates)
    status: PodStatusPhase = msgspec.field(default_factory=PodStatusPhase)


class PodWatchEvent(msgspec.Struct):
    """A watch event of pods."""

    type: str
    object: WatchedPod


_decode: Final = msgspec.json.Decoder(PodWatchEvent).decode


class PodLoad:
    """Creates pods at their times, lets them succeed, and measures how long their gates remain."""

    def __init__(self, cluster: PeerCluster, count: int, rate: float, *, has_queue: bool) -> None:
        self._cluster = cluster
        self._count = count
        self._rate = rate
        self._has_queue = has_queue
        self._due: dict[str, float] = {}
        #: Seconds from the due time of the create until the gate is removed, by pod.
        self.waits: dict[str, float] = {}
        self._ended: set[str] = set()
        self._changed_at = time.monotonic()
        #: Seconds from the start until the last gate was removed.
        self.ungated_seconds = 0.0

    async def run(self) -> float:
        """Return the seconds until no pod has a finalizer. AssertionError if the load stalls."""
        watch = asyncio.ensure_future(self._follow())
        loop, started_at = asyncio.get_running_loop(), time.monotonic()
        for number in range(self._count):
            delay = number / self._rate if self._rate else 0.0
            loop.call_at(loop.time() + delay, self._create, f"pod-{number}", started_at + delay)
        while len(self._ended) < self._count:
            await pause(0.2)
            assert not watch.done(), watch.exception() or "the watch has ended"
            assert time.monotonic() - self._changed_at < _IDLE_MAX, f"{len(self._ended)} pods have ended"
        watch.cancel()
        self.ungated_seconds -= started_at
        return self._changed_at - started_at

    async def _follow(self) -> None:
        while True:
            with suppress(ConnectionRefusedError):
                async for line in self._cluster.client.stream_lines(f"{_PODS}?watch=true"):
                    self._observe(_decode(line).object)
            await pause(0.2)

    def _create(self, name: str, due: float) -> None:
        self._due[name] = due
        self._send("POST", _PODS, manifest(name, has_queue=self._has_queue), JSON)

    def _send(self, method: str, path: str, body: Any, content_type: str) -> None:
        self._cluster.client.send(WireRequest(method, path, body, content_type, _check_response))

    def _observe(self, pod: WatchedPod) -> None:
        name, now = pod.metadata.name, time.monotonic()
        self._changed_at = now
        if name not in self.waits and not pod.spec.gates:
            self.waits[name] = now - self._due[name]
            self.ungated_seconds = now
            asyncio.get_running_loop().call_later(_RUN_TIME, self._succeed, name)
        elif pod.status.phase == "Succeeded" and not pod.metadata.finalizers:
            self._ended.add(name)

    def _succeed(self, name: str) -> None:
        self._send("PATCH", f"{_PODS}/{name}/status", {"status": {"phase": "Succeeded"}}, MERGE_PATCH)


def _check_response(code: int, body: bytes, _seconds: float) -> None:
    assert code in (200, 201), body


def manifest(name: str, *, has_queue: bool) -> Mapping[str, Any]:
    """Return a pod that requests a CPU, with the name of the queue if it has one."""
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    labels = {"kueue.x-k8s.io/queue-name": "q0"} if has_queue else {}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


@asynccontextmanager
async def kueue(sources: Path, program: Path) -> AsyncIterator[PeerCluster]:
    """Run the API server of Kubernetes, and Kueue's manager with its webhooks."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as name,
        Kubernetes(Path(name), KubernetesSettings(arguments=QUIET)) as server,
    ):
        port, probes = free_port(), free_port()
        server.kubectl("create", "namespace", _NAMESPACE)
        server.kubectl("apply", "--server-side", "-f", str(sources / _CRDS))
        server.kubectl("wait", "--for=condition=Established", "crd", "--all")
        served = ("api-resources", "--api-group=kueue.x-k8s.io", "-o", "name")
        wait_for(lambda: "workloads." in server.kubectl(*served), lambda: server.kubectl(*served))
        authority = server.authority.certificate_file.read_bytes()
        webhooks = [
            with_url(obj, port, authority) for obj in yaml.safe_load_all((sources / _WEBHOOKS).read_text()) if obj
        ]
        server.kubectl("apply", "--server-side", "-f", "-", sent=yaml.safe_dump_all(webhooks))
        process = start_kueue(Path(name), server, program, {"webhook": port, "probes": probes})
        try:
            wait_for(lambda: is_ready(probes), lambda: (Path(name) / "kueue.log").read_text()[-3000:])
            context = ssl.create_default_context(cafile=str(server.authority.certificate_file))
            client = await connect(server.url, context, Path(name))
            yield PeerCluster(client, programs_of_children({"kueue": process}))
        finally:
            process.terminate()
            process.wait()


def start_kueue(folder: Path, server: Kubernetes, program: Path, ports: Mapping[str, int]) -> subprocess.Popen[bytes]:
    """Start Kueue's manager with the limits of its manifests, and a certificate of the API server's authority."""
    certificates = folder / "certificates"
    certificates.mkdir()
    signed = server.authority.issue_server_certificate(("127.0.0.1", "localhost"))
    (certificates / "tls.crt").write_bytes(signed.certificate)
    (certificates / "tls.key").write_bytes(signed.key)
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": _NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports['probes']}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": ports["webhook"], "host": "127.0.0.1", "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
    }
    file = folder / "kueue.yaml"
    file.write_text(yaml.safe_dump(configuration))
    environment = os.environ | {"KUBECONFIG": str(server.kubeconfig)}
    # Kueue reads the certificate of its metrics from this path only.
    sandbox = ["bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/etc"]
    sandbox += ["--bind", str(certificates), "/etc/kueue/metrics/certs"]
    command = [*sandbox, str(program), f"--config={file}", "--feature-gates=VisibilityOnDemand=false"]
    with (folder / "kueue.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def with_url(obj: Any, port: int, authority: bytes) -> Any:
    """Return a webhook configuration whose webhooks have URLs of this machine; webhooks of other projects' kinds go."""
    webhooks = [
        each for each in obj["webhooks"] if all(set(rule["apiGroups"]) <= _SERVED_GROUPS for rule in each["rules"])
    ]
    for each in webhooks:
        path = each["clientConfig"]["service"]["path"]
        url = f"https://127.0.0.1:{port}{path}"
        each["clientConfig"] = {"url": url, "caBundle": base64.b64encode(authority).decode()}
        if each["name"] in _POD_WEBHOOKS:
            names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", _NAMESPACE]}
            each["namespaceSelector"] = {"matchExpressions": [names]}
    return {**obj, "webhooks": webhooks}


def is_ready(port: int) -> bool:
    """Return whether a manager answers that it is ready."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        return b" 200 " in connection.recv(64)
    return False


async def measure(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the load; return the figures."""
    manager: AbstractAsyncContextManager[PeerCluster] = (
        kueue(options.kueue.absolute(), options.manager.absolute()) if options.kueue else installed()
    )
    async with manager as cluster:
        await create_queues(cluster, [JobArrival(0, "q0", "quota", _CLASS)] * options.pods, has_room=True)
        load = PodLoad(cluster, options.pods, options.rate, has_queue=not options.no_queue)
        wall, seconds, writes = await measure_costs(cluster, load.run(), options.pods)
    return {
        "pods": options.pods,
        "secondsUntilUngated": round(load.ungated_seconds, 1),
        "wallSeconds": round(wall, 1),
        "gateSeconds": shares_of(sorted(load.waits.values())),
        "cpuSeconds": seconds,
        "writesPerPod": writes,
    }


def shares_of(ordered: Sequence[float]) -> Mapping[str, float]:
    """Return the p50 and the p99 of ordered seconds."""
    return {f"p{share}": round(ordered[len(ordered) * share // 100], 3) for share in (50, 99)}


def main() -> None:
    """Run the load, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0, help="pods created a second; 0: as many as possible")
    parser.add_argument("--no-queue", action="store_true")
    parser.add_argument("--kueue", type=Path, metavar="SOURCES")
    parser.add_argument("--manager", type=Path, metavar="PROGRAM")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    if (options.kueue is None) != (options.manager is None):
        parser.error("--kueue and --manager belong together")
    print_figures(run_until_signal(measure(options)), options.output)


if __name__ == "__main__":
    main()
