"""Runs the simulated kubelets of all nodes of a cluster, which run pods in real time as `batchyard up` does.

python benchmarks/kubelets.py KUBECONFIG
"""

import asyncio
import sys
from typing import Any

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


async def run_kubelets(kubeconfig: str) -> None:
    """Run the simulated kubelets until a termination signal arrives."""
    loop = asyncio.get_running_loop()
    source = KubeconfigSource(kubeconfig, "")
    wire = HttpTransport(await read_access(source), lambda: read_access(source))
    timers = LoopTimers(loop)
    kernel = LiveKernel(loop, timers.now())
    limit = RateLimit(10_000, 10_000)
    dependencies = ClientDependencies(kernel, timers, wire.kernel_transport(kernel.post), limit, lambda: True)
    client = RestClient(dependencies, (scheme.POD, scheme.NODE, scheme.JOB, scheme.JOB_SET))
    runners: list[Runner] = []

    def begin(_: Any) -> None:
        if not runners and client.is_synced:
            runners.append(Runner(kernel, client, [SimulatedKubelets()], lambda *_: None))
            runners[0].observe(client.added_events())

    client.on_new_data = begin
    client.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(run_kubelets(sys.argv[1]))
