"""Clusters with simulated nodes for `peers.py` and `operator_load.py`: `batchyard up`, or Kubernetes with an operator.

PYTHONPATH must contain `tests`, because the API server is started as by the tests.
"""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import uvloop
import yaml
from wire import WireClient, WireRequest, read_cpu_seconds, run_platform

from e2e_kubernetes.kubernetes import Kubernetes, KubernetesSettings
from e2e_platform.operator_process import free_port

_T = TypeVar("_T")
KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
KUEUE_API: Final = "kueue.x-k8s.io/v1beta2"
GPU: Final = "nvidia.com/gpu"
MERGE_PATCH: Final = "application/merge-patch+json"
#: The labels of the levels of a topology, and the number of domains in each domain above. Source: KAI's scale tests.
LEVELS: Final = (("peers/zone", 4), ("peers/block", 8), ("peers/rack", 8))
#: A label of all nodes, for a flavor with a topology.
POOL: Final = {"peers/pool": "nodes"}
_NODE_SIZE: Final = {"cpu": "32", "memory": "256Gi", "pods": "110", GPU: "8"}
_AT_ONCE: Final = {"min": "0s", "typical": "0s", "max": "0s"}
_STEPS: Final = ("provisioning", "boot", "registration", "network", "drivers", "podStart")
_READY: Final = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the kubelet is simulated"}
_READY_WITHIN: Final = 180.0  # seconds
#: Plugins of the API server that need controllers of kube-controller-manager, which does not run.
_DISABLED: Final = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"
#: Arguments of the API server without an audit log, and without these plugins.
QUIET: Final = ("--audit-log-path=", "--audit-policy-file=", _DISABLED)
_KUBELETS: Final = Path(__file__).with_name("kubelets.py")
_CONNECTIONS: Final = 64
_UNLIMITED: Final = ("--kube-api-qps", "10000", "--kube-api-burst", "10000")


class PeerCluster(NamedTuple):
    """A running cluster: a client of its API server, and the process ids of its programs by name."""

    client: WireClient
    programs: Mapping[str, int]

    def cpu_seconds(self) -> Mapping[str, float]:
        """Return the CPU seconds of each program so far."""
        return {name: read_cpu_seconds(Path(f"/proc/{pid}/stat")) for name, pid in self.programs.items()}

    def waited_seconds(self) -> float:
        """Return how long threads of the programs have waited for a CPU in total, because other threads used it."""
        waited = 0
        for pid in self.programs.values():
            for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with suppress(OSError):
                    waited += int(file.read_text("ascii").split()[1])
        return waited / 1e9

    async def create(self, path: str, obj: Mapping[str, Any]) -> Any:
        """Create an object; return it as stored. AssertionError if the API server rejects it."""
        code, body = await self.client.request("POST", path, obj)
        assert code == 201, body
        return msgspec.json.decode(body)

    async def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """Apply a merge patch. AssertionError if the API server rejects it."""
        response: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.client.send(
            WireRequest("PATCH", path, patch, MERGE_PATCH, lambda code, body, _: response.set_result((code, body)))
        )
        code, body = await response
        assert code == 200, body

    async def count_of(self, path: str) -> int:
        """Return the number of objects of a list."""
        code, body = await self.client.request("GET", f"{path}?limit=1")
        assert code == 200, body
        page = msgspec.json.decode(body)
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    async def wait_for_count(self, path: str, count: int, within: float = _READY_WITHIN) -> None:
        """Wait until a list has at least a number of objects; AssertionError after `within` seconds."""
        deadline = time.monotonic() + within
        while (found := await self.count_of(path)) < count:
            assert time.monotonic() < deadline, f"{path} has {found} of {count} objects"
            await pause(0.2)

    async def wait_until_active(self, queue: str) -> None:
        """Wait until a ClusterQueue is active, and so the operator has read all kinds."""
        deadline = time.monotonic() + _READY_WITHIN
        while b'"reason":"Ready"' not in (await self.client.request("GET", f"{KUEUE}/clusterqueues/{queue}"))[1]:
            assert time.monotonic() < deadline, f"ClusterQueue {queue} is not active"
            await pause(0.1)


def run_until_signal(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine; SIGTERM cancels it, as SIGINT does, so that it stops its programs."""

    async def cancellable() -> _T:
        task = asyncio.ensure_future(main)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    return uvloop.run(cancellable())


async def pause(seconds: float) -> None:
    """Let other tasks run for a number of seconds."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


def domains_of(number: int) -> Mapping[str, str]:
    """Return the topology labels of a node; two successive nodes share a rack."""
    labels, domain = dict(POOL), number // 2
    for name, count in reversed(LEVELS):
        labels[name] = f"{name.partition('/')[2]}-{domain}"
        domain //= count
    return labels


def cluster_manifest(nodes: int, *, has_topology: bool) -> Mapping[str, Any]:
    """Return a simulated Cluster whose machines are ready at once, with 8 GPUs, 32 CPUs and 256 GiB each.

    Placement packs pods, as KAI does by default. With `has_topology`, each rack of two nodes is a node pool.
    """
    machine = {"cpu": 32, "memory": "256Gi", "onDemand": 1}
    machine |= {"accelerator": {"type": "simulated", "count": 8, "resource": GPU}}
    pools: list[Mapping[str, Any]] = [{"name": "nodes", "machineType": "peer-node", "nodeCount": nodes}]
    if has_topology:
        pools = [
            {"name": f"r{at}", "machineType": "peer-node", "nodeCount": 2, "labels": domains_of(2 * at)}
            for at in range(nodes // 2)
        ]
    spec: dict[str, Any] = {"region": "r", "zones": ["r-a"], "autoscaling": {"profile": "optimize-utilization"}}
    spec |= {"catalog": {"peer-node": machine}, "times": dict.fromkeys(_STEPS, _AT_ONCE), "nodePools": pools}
    return {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "p"}, "spec": spec}


@asynccontextmanager
async def embedded(nodes: int, *, has_topology: bool = False) -> AsyncIterator[PeerCluster]:
    """Run `batchyard up` with simulated nodes in real time, with TLS and durable writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(yaml.safe_dump(cluster_manifest(nodes, has_topology=has_topology)))
        options = ("--cluster", str(file), "--runtime", "24h", "--log-level", "error")
        async with run_platform(*options, connections=_CONNECTIONS) as platform:
            cluster = PeerCluster(platform.client, {"platform": platform.process.pid})
            await cluster.wait_for_count("/api/v1/nodes", nodes - nodes % 2 if has_topology else nodes)
            yield cluster


@asynccontextmanager
async def api_server(nodes: int, *, has_topology: bool = False) -> AsyncIterator[PeerCluster]:
    """Run etcd, the API server of Kubernetes, the operator, and a process with all simulated kubelets.

    KUBEBUILDER_ASSETS is the folder of etcd and kube-apiserver. The operator also runs the groups `jobs` and
    `placement`, because kube-controller-manager and kube-scheduler are not part of that folder.
    """
    groups = "admission,jobs,placement"
    async with kubernetes(("operator", "--controllers", groups, *_UNLIMITED), with_kubelets=True) as cluster:
        for number in range(nodes):
            labels = {"kubernetes.io/hostname": f"n{number}", **(domains_of(number) if has_topology else {})}
            metadata = {"name": f"n{number}", "labels": labels}
            await cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            status = {"capacity": _NODE_SIZE, "allocatable": _NODE_SIZE, "conditions": [_READY]}
            await cluster.patch(f"/api/v1/nodes/n{number}/status", {"status": status})
        yield cluster


@asynccontextmanager
async def kubernetes(operator: Sequence[str], *, with_kubelets: bool) -> AsyncIterator[PeerCluster]:
    """Run etcd, the API server of Kubernetes, and `batchyard OPERATOR`, which installs its CRDs."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as name,
        Kubernetes(Path(name), KubernetesSettings(arguments=QUIET)) as server,
        tempfile.TemporaryFile() as log,
    ):
        processes = {}
        common = ("--kubeconfig", str(server.kubeconfig))
        port = free_port()
        command = (*("-m", "batchyard"), *operator, *common, "--no-leader-elect", "--install-crds")
        processes["operator"] = _start(log, *command, "--port", str(port))
        try:
            await _wait_until_ready(f"http://127.0.0.1:{port}/readyz", processes["operator"], log)
            if with_kubelets:
                processes["kubelets"] = _start(log, str(_KUBELETS), str(server.kubeconfig))
            context = ssl.create_default_context(cafile=str(server.authority.certificate_file))
            client = await connect(server.url, context, Path(name))
            await _wait_for_kinds(client)
            yield PeerCluster(client, programs_of_children(processes))
        finally:
            for process in processes.values():
                process.terminate()
                process.wait()


async def _wait_for_kinds(client: WireClient) -> None:
    """Wait until the API server serves the CRDs of the queues, which the operator installs."""
    deadline = time.monotonic() + _READY_WITHIN
    for plural in ("clusterqueues", "localqueues", "resourceflavors", "topologies", "workloadpriorityclasses"):
        while (await client.request("GET", f"{KUEUE}/{plural}"))[0] != 200:
            assert time.monotonic() < deadline, f"{plural} are not served"
            await pause(0.2)


async def connect(url: str, context: ssl.SSLContext, folder: Path) -> WireClient:
    """Return a client of an API server, with the owner's certificate in a folder of `Kubernetes`."""
    context.load_cert_chain(str(folder / "admin.crt"), str(folder / "admin.key"))
    host, _, number = url.rpartition("/")[2].rpartition(":")
    client = WireClient((host, int(number)), context)
    await client.open(_CONNECTIONS)
    return client


def _start(log: Any, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)


async def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Any) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        await pause(0.2)
    log.seek(0)
    raise SystemExit(f"{url} does not answer: {log.read()[-3000:].decode()}")


def programs_of_children(processes: Mapping[str, subprocess.Popen[Any]]) -> Mapping[str, int]:
    """Return the process ids of `processes`, and those of the child processes etcd and kube-apiserver."""
    result = {name: process.pid for name, process in processes.items()}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, tail = stat.read_text("ascii", "replace").rpartition(")")
            pid, _, program = head.partition(" (")
            if int(tail.split()[1]) == os.getpid() and program in ("etcd", "kube-apiserver"):
                result[program] = int(pid)
    return result
