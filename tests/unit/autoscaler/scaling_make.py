"""A simulated cluster that scales: the cloud, placement, the autoscaler, and node health."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.admission_plugins.built_in import admit_pod
from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition, key_of, with_status
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.provisioning_requests import ProvisioningRequests
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.cloud.cluster_objects import initial_objects
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Delete, UpdateStatus
from batchyard.interfaces.controller import Controller, EventRecord
from batchyard.nodes.health import NodeHealth
from batchyard.placement.controller import PlacementController
from batchyard.store.memory import Store
from stage import Stage
from unit.cloud.catalog.cloud_make import CrashingClient

Obj = dict[str, Any]

ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")
SPREAD = {"min": "1s", "typical": "1s", "max": "1s"}
STEPS = ("provisioning", "boot", "registration", "network", "drivers", "shutdown")


def cluster(pools: Sequence[Obj] = (), **spec: Any) -> Obj:
    """A Cluster in three zones; each step of a machine takes a second. Keywords are fields of its spec."""
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": make.metadata("batch", None),
        "spec": {
            "region": "us-central1",
            "zones": list(ZONES),
            "nodePools": list(pools),
            "times": dict.fromkeys(STEPS, SPREAD),
            **spec,
        },
    }


def pool(name: str = "pool", machine: str = "e2-standard-4", most: int = 10, **spec: Any) -> Obj:
    """A NodePool entry of a Cluster: initially empty, in one zone."""
    bounds = {"min": 0, "max": most, "locationPolicy": spec.pop("policy", "BALANCED")}
    return {"name": name, "machineType": machine, "zones": [ZONES[0]], "autoscaling": bounds, "nodeCount": 0, **spec}


def pod(name: str, cpu: str = "1", gpu: int = 0, gang: str = "", **spec: Any) -> Obj:
    """A Pod of a Job, of 1 cpu and 1Gi."""
    requests = {"cpu": cpu, "memory": spec.pop("memory", "1Gi"), **({"nvidia.com/gpu": str(gpu)} if gpu else {})}
    requests |= spec.pop("requests", {})
    annotations = {**spec.pop("annotations", {}), **({"kueue.x-k8s.io/workload": gang} if gang else {})}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-job", "controller": True}
    labels = {**spec.pop("labels", {}), **({"batch.kubernetes.io/controller-uid": gang} if gang else {})}
    owners = spec.pop("owners", [owner])
    own = make.metadata(
        name, spec.pop("namespace", "team"), labels=labels, annotations=annotations, ownerReferences=owners
    )
    del own["creationTimestamp"]
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": {"containers": [container], **spec}}
    return admit_pod(obj, lambda _: None, None)


class AutoscalerStage(Stage):
    """A stage with the controllers of a cluster that scales."""

    def __init__(self, begin: Obj | None = None, *more: Controller, start: Instant = make.NOW) -> None:
        self.kernel = VirtualEventLoop(start)
        self.store = Store(detect_mutation=True)
        self.client = LocalClient(self.store, self.kernel)
        self.controllers = CrashingClient(self.client)
        index = ScalingIndex()
        controllers: list[Controller] = [
            *simulated_cloud(1),
            NodeHealth(),
            PlacementController(),
            Autoscaler(index),
            ProvisioningRequests(index),
            *more,
        ]
        self.runner = Runner(self.kernel, self.controllers, controllers, self._record)
        self.events: list[EventRecord] = []
        if begin is not None:
            self.put(*initial_objects(begin))

    def run(self, seconds: float) -> None:
        """Run until this many seconds after the start; the clock reaches that instant even without events."""
        self.kernel.call_at(make.at(seconds), lambda: None)
        super().run(seconds)

    def restarted(self) -> "AutoscalerStage":
        """The same objects at the same instant, with new controllers."""
        fresh = AutoscalerStage(start=self.kernel.now())
        for kind in self.store.kinds():
            for obj in self.store.list(kind):
                fresh.store.put(key_of(obj), obj)
        fresh.settle()
        return fresh

    def nodes(self, pool: str = "") -> list[str]:
        """The names of the nodes of a pool, or of all."""
        return [name for name, of in self._pools(scheme.NODE).items() if pool in {"", of}]

    def machines(self, pool: str = "") -> list[str]:
        """The names of the Instances of a pool, or of all."""
        return [name for name, of in self._pools(scheme.INSTANCE).items() if pool in {"", of}]

    def zones(self) -> dict[str, int]:
        """The number of Instances in each zone."""
        zones = [obj["spec"]["zone"] for obj in self.client.list(scheme.INSTANCE)]
        return {zone: zones.count(zone) for zone in ZONES if zone in zones}

    def pools(self) -> list[str]:
        """The names of the NodePools."""
        return [obj["metadata"]["name"] for obj in self.client.list(scheme.NODE_POOL)]

    def place(self, name: str) -> str:
        """The node of a pod; '' if it has none."""
        return str(self.get(scheme.POD, name)["spec"].get("nodeName") or "")

    def end(self, *names: str) -> None:
        """Set pods to Succeeded."""
        for name in names:
            obj = self.get(scheme.POD, name)
            self._submit(UpdateStatus(with_status(obj, {**obj["status"], "phase": "Succeeded"})))
        self.settle()

    def remove(self, name: str) -> None:
        """Delete a pod without grace period."""
        self._submit(Delete(Key(scheme.POD, "team", name), grace_period_seconds=0))
        self.settle()

    def reported(self, reason: str) -> list[tuple[str, str]]:
        """The messages of events with a reason, with the names of their objects."""
        return [(event.regarding.name, event.message) for event in self.events if event.reason == reason]

    def finish(self) -> float:
        """Run until no event is pending; return the elapsed seconds."""
        self.kernel.run(steps_max=500_000)
        assert self.kernel.pending_count() == 0
        return (self.kernel.now() - make.NOW) / 1_000_000

    def _pools(self, kind: str) -> Mapping[str, str]:
        label = "cloud.google.com/gke-nodepool"
        return {obj["metadata"]["name"]: obj["metadata"]["labels"][label] for obj in self.client.list(kind)}


def says(obj: Mapping[str, Any], kind: str) -> str:
    """The status and reason of a condition; '' if it is missing."""
    result = find_condition(obj, kind)
    return "" if result is None else f"{result['status']}/{result['reason']}"


def pod_template(name: str = "t", **fields: Any) -> Obj:
    """A PodTemplate of such pods."""
    own = pod("x", **fields)
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": make.metadata(name),
        "template": {"metadata": {"labels": {}}, "spec": own["spec"]},
    }


def provisioning_request(
    name: str = "pr", kind: str = "queued-provisioning.gke.io", count: int = 1, created: float = 0, **parameters: str
) -> Obj:
    """A ProvisioningRequest for this number of pods of template t."""
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": make.metadata(name, creationTimestamp=make.stamp(created)),
        "spec": {
            "provisioningClassName": kind,
            "parameters": parameters,
            "podSets": [{"count": count, "podTemplateRef": {"name": "t"}}],
        },
    }
