"""Objects of the cloud for tests: a cluster of three zones, its pools, and their machines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, key_of, with_status
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.cloud.catalog.instances import new_instance, phase_of
from batchyard.cloud.cluster_objects import initial_objects
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Update, UpdateStatus, Write, WriteResult
from batchyard.interfaces.controller import EventRecord
from batchyard.store.memory import Store
from stage import Stage

Obj = dict[str, Any]

ZONE = "us-central1-a"


def cluster(name: str = "batch", **spec: Any) -> Obj:
    """Return a Cluster in three zones; the keywords are fields of its spec."""
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": make.metadata(name, None),
        "spec": {"region": "us-central1", "zones": [f"us-central1-{zone}" for zone in "abc"], **spec},
    }


def node_pool(name: str = "pool", machine: str = "g2-standard-24", **spec: Any) -> Obj:
    """Return a NodePool in one zone; the keywords are fields of its spec."""
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "NodePool",
        "metadata": make.metadata(name, None),
        "spec": {"machineType": machine, "zones": [ZONE], **spec},
    }


def autoscaled(name: str = "pool", machine: str = "g2-standard-24", **spec: Any) -> Obj:
    """Return an autoscaled NodePool."""
    return node_pool(name, machine, autoscaling={"min": 0, "max": 100}, **spec)


def instance(name: str, pool: Obj | None = None, zone: str = ZONE, **status: Any) -> Obj:
    """Return an Instance of a pool."""
    request = new_instance(pool or autoscaled(), zone, cluster())
    metadata = {**request["metadata"], **make.metadata(name, None)}
    return {**request, "metadata": metadata, **({"status": status} if status else {})}


def resize_request(name: str, pool: str = "pool", count: int = 1, zone: str = ZONE, **spec: Any) -> Obj:
    """Return a ResizeRequest."""
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "ResizeRequest",
        "metadata": make.metadata(name, None),
        "spec": {"pool": pool, "zone": zone, "count": count, **spec},
    }


class ControllerCrashError(Exception):
    """Simulates a crash of the controllers before a write."""


class CrashingClient:
    """A client that crashes the controllers after `left` writes, if it is set."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client
        self.get, self.list, self.owned_by = client.get, client.list, client.owned_by
        self.subscribe, self.is_settled = client.subscribe, client.is_settled
        self.left: int | None = None
        self.written = 0

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Perform writes until one is rejected; raise ControllerCrashError after the last permitted write."""
        for write in writes:
            if self.left == self.written:
                raise ControllerCrashError
            self.written += 1
            result = self._client.attempt(write)
            if result.error is not None:
                break
        self._client.queue_result(done, result)


class CloudStage(Stage):
    """A small world with only a Cluster, its pools, and the three controllers of the cloud."""

    def __init__(self, begin: Obj | None = None, seed: int = 1, start: Instant = make.NOW) -> None:
        self.kernel = VirtualEventLoop(start)
        self.store = Store(detect_mutation=True)
        self.client = LocalClient(self.store, self.kernel)
        self.controllers = CrashingClient(self.client)
        self.runner = Runner(self.kernel, self.controllers, simulated_cloud(seed), self._record)
        self.events: list[EventRecord] = []
        if begin is not None:
            self.put(*initial_objects(begin))

    def restarted(self) -> "CloudStage":
        """Return a world with the same objects and time, and restarted controllers."""
        fresh = CloudStage(start=self.kernel.now())
        for kind in self.store.kinds():
            for obj in self.store.list(kind):
                fresh.store.put(key_of(obj), obj)
        fresh.settle()
        return fresh

    def finish(self) -> None:
        """Run all pending work, which must end."""
        self.kernel.run(steps_max=200_000)
        assert self.kernel.pending_count() == 0

    def instances(self, pool: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the Instances of a pool, or all."""
        return [obj for obj in self.client.list(scheme.INSTANCE) if pool in {None, obj["spec"]["pool"]}]

    def phases(self, pool: str | None = None) -> list[str]:
        """Return the sorted phases of the Instances of a pool."""
        return sorted(map(phase_of, self.instances(pool)))

    def nodes(self) -> list[str]:
        """Return the names of all Nodes."""
        return [obj["metadata"]["name"] for obj in self.client.list(scheme.NODE)]

    def ready_nodes(self) -> int:
        """Return the number of ready Nodes."""
        return sum(obj["status"]["conditions"][0]["status"] == "True" for obj in self.client.list(scheme.NODE))

    def error(self, name: str) -> tuple[str, str]:
        """Return code and message of a failed Instance."""
        error = self.get(scheme.INSTANCE, name, "")["status"]["error"]
        return error["code"], error["message"]

    def say(self, obj: Mapping[str, Any], **status: Any) -> None:
        """Write fields of a status."""
        result = self.client.get(key_of(obj))
        assert result is not None
        self._submit(UpdateStatus(with_status(result, {**result.get("status", {}), **status})))
        self.settle()

    def crash(self, obj: Mapping[str, Any]) -> None:
        """Crash a machine now."""
        self.say(obj, phase="Crashed", since=self.stamp())

    def stamp(self, later: float = 0) -> str:
        """Return the text of an instant `later` seconds from now."""
        return make.stamp((self.kernel.now() - make.NOW) / 1_000_000 + later)

    def change_cluster(self, **spec: Any) -> None:
        """Change fields of the Cluster's spec."""
        result = self.client.list(scheme.CLUSTER)[0]
        self._submit(Update({**result, "spec": {**result["spec"], **spec}}))
        self.settle()

    def wait(self, seconds: float) -> None:
        """Advance time. The clock may stop earlier, at the last event."""
        self.kernel.call_at(self.kernel.now() + int(seconds * 1_000_000), lambda: None)
        self.kernel.run(self.kernel.now() + int(seconds * 1_000_000))

    def give_up(self, *objects: Mapping[str, Any]) -> None:
        """Delete objects."""
        for obj in objects:
            self.delete(key_of(obj).kind, obj["metadata"]["name"], "")

    def has(self, kind: str, name: str) -> bool:
        """Return whether an object exists."""
        return self.client.get(Key(kind, "", name)) is not None
