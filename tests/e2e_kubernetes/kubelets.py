"""Nodes with simulated kubelets: they run pods in real time over HTTP, as `batchyard up` does."""

import asyncio
import contextlib
import json
import threading
from typing import Final

import uvloop

from batchyard.api import scheme
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import RateLimit
from batchyard.controller_runtime.runner import Runner
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import LoopTimers
from batchyard.server.kubeconfig.access import KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.operator.aiohttp_transport import HttpTransport
from e2e_kubernetes.kubernetes import Kubernetes

_SEEN: Final = (scheme.POD, scheme.NODE, scheme.JOB, scheme.JOB_SET)
_READY: Final = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is simulated"}


class KubeletThread:
    """The kubelets of all nodes; they run within the context."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._runner: Runner | None = None

    def __enter__(self) -> "KubeletThread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def add_node(self, name: str, **labels: str) -> None:
        """Add a ready node with eight CPUs."""
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        self._kubernetes.kubectl("create", "-f", "-", sent=json.dumps(node))
        size = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"status": {"capacity": size, "allocatable": size, "conditions": [_READY]}}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
        self._kubernetes.kubectl("patch", "node", name, *patch)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        source = KubeconfigSource(str(self._kubernetes.kubeconfig), "")
        wire = HttpTransport(await read_access(source), lambda: read_access(source))
        timers = LoopTimers(self._loop)
        kernel = LiveKernel(self._loop, timers.now())
        wiring = ClientDependencies(
            kernel, timers, wire.kernel_transport(kernel.post), RateLimit(300, 500), lambda: True
        )
        client = RestClient(wiring, _SEEN)
        client.on_new_data = lambda _: self._begin(kernel, client)
        client.start()
        await self._end.wait()
        kernel.stop()
        timers.stop()
        await wire.close()
        with contextlib.suppress(TimeoutError):  # connections with TLS take a moment to close
            await asyncio.wait_for(asyncio.Event().wait(), 0.25)

    def _begin(self, kernel: LiveKernel, client: RestClient) -> None:
        """Run pods after the initial lists."""
        if self._runner is None and client.is_synced:
            self._runner = Runner(kernel, client, [SimulatedKubelets()], lambda *_: None)
            self._runner.observe(client.added_events())
