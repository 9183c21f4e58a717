"""The embedded platform: a durable store, the controllers of every world, and an API server, in one process."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import uvicorn

from batchyard.api.meta import Obj, key_of
from batchyard.api.scheme import CLUSTER
from batchyard.apiserver.server import ApiServer
from batchyard.client.local import LocalClient
from batchyard.cloud.cluster_objects import initial_objects
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controllers.runner import ignore_event
from batchyard.live.clock import wall_clock
from batchyard.live.durability import HISTORY, GroupCommit
from batchyard.live.http import Wire
from batchyard.live.kernel import LiveKernel
from batchyard.ports.client import Create, EventType, WatchEvent, Write, WriteResult
from batchyard.runtime.bare_workloads import BareWorkloads
from batchyard.runtime.kubelet import Kubelets
from batchyard.runtime.node_agent import NodeAgents
from batchyard.sim.pace import pace_of
from batchyard.store.journal import Journal
from batchyard.store.memory import Store
from batchyard.wiring import Platform, Ports, Settings, build_platform, preparations

JOURNAL: Final = "journal.db"
_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


class LiveClient(LocalClient):
    """The client in process, with the revision of its store."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._store.revision


class Embedded:
    """See the module. Made within the event loop that it is to run in."""

    def __init__(self, folder: Path, cluster: Obj | None, speed: float) -> None:
        loop = asyncio.get_running_loop()
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(folder / JOURNAL)
        self._store = Store(window=2 * HISTORY, recovered=self._journal.recover())
        self._kernel = LiveKernel(loop, wall_clock(), speed)
        self._commit = GroupCommit(self._store, self._journal, loop)
        known = self._store.list(CLUSTER)
        settings = Settings(with_nodes=bool(known) or cluster is not None)
        self._client = LiveClient(self._store, self._kernel, prepare=preparations(settings))
        self.platform = self._wired(settings, cluster or (known[0] if known else None))
        self._server = ApiServer(self._client, self._commit, self._kernel.clock)
        self._begin(cluster)

    def app(self) -> Wire:
        """The ASGI application."""
        return Wire(self._server, self._kernel, self._commit, lambda: self._store.revision)

    async def close(self) -> None:
        """Write what is left, and let the file go."""
        self._kernel.stop()
        await self._commit.close()
        self._journal.close()

    def _wired(self, settings: Settings, cluster: Obj | None) -> Platform:
        nodes = settings.with_nodes
        kubelets = Kubelets(pace_of(cluster, 0), with_nodes=nodes)
        runtime = (BareWorkloads(), kubelets, *((NodeAgents(),) if nodes else ()))
        ports = Ports(self._kernel, self._client, runtime, simulated_cloud(0) if nodes else (), ignore_event, _ignore)
        return build_platform(ports, settings)

    def _begin(self, cluster: Obj | None) -> None:
        """Show the controllers what is there, and make what is missing."""
        found = [obj for kind in self._store.kinds() for obj in self._store.list(kind)]
        events = [WatchEvent(EventType.ADDED, key_of(o), o, None, int(o["metadata"]["resourceVersion"])) for o in found]
        self.platform.runner.observe(events)
        wanted = [_namespace(name) for name in _NAMESPACES] + (
            [] if cluster is None else list(initial_objects(cluster))
        )
        missing = [Create(obj) for obj in wanted if self._client.get(key_of(obj)) is None]
        self._kernel.post(lambda: self._make(missing))

    def _make(self, writes: Iterable[Write]) -> None:
        for write in writes:
            self._client.submit([write], _must_succeed)


def _namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}}


def _ignore(_loop: object) -> None:
    pass


def _must_succeed(result: WriteResult) -> None:
    if result.error is not None:
        raise result.error


async def serve(folder: Path, port: int, cluster: Obj | None, speed: float, ready: Callable[[int], None]) -> None:
    """Run the embedded platform until it is told to end."""
    embedded = Embedded(folder, cluster, speed)
    config = uvicorn.Config(
        embedded.app(), host="127.0.0.1", port=port, log_level="error", access_log=False, lifespan="off", loop="none"
    )
    server = uvicorn.Server(config)
    try:
        await server.serve()
    finally:
        await embedded.close()
