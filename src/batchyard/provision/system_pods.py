"""System pods: checks that the engine and the monitoring stack fit on the nodes of a cluster on GKE.

If the untainted pools are too small, the engine's pods stay Pending and no Job is admitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.errors import FieldError
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pools import zones_of
from batchyard.provision.engine import settings_of
from batchyard.provision.machine_supply import pool_bounds
from batchyard.provision.manifests.stack import stack_requests
from batchyard.provision.model import Part, PlatformEngine, PlatformModel

#: The field of the errors.
NODE_POOLS: Final = "spec.cluster.nodePools"
_MIB: Final = 1 << 20
#: Requests of the managers of Kueue and JobSet, as in their releases.
_KUEUE: Final[Mapping[str, str]] = {"cpu": "500m", "memory": "512Mi"}
_JOB_SET: Final[Mapping[str, str]] = {"cpu": "500m", "memory": "128Mi"}
#: Estimated requests of GKE's DaemonSets per node (logs, metrics, DNS cache, CSI drivers, proxy).
_DAEMON_SETS: Final[Mapping[str, str]] = {"cpu": "250m", "memory": "300Mi"}
#: Estimated requests of GKE's Deployments: two of kube-dns, and metrics-server with the other agents.
_GKE_PODS: Final[Sequence[Mapping[str, str]]] = (
    {"cpu": "260m", "memory": "110Mi"},
    {"cpu": "260m", "memory": "110Mi"},
    {"cpu": "100m", "memory": "200Mi"},
)
_REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
_AUTO_PROVISIONED: Final = frozenset({"cpu", "memory"})
_REMEDY: Final = (
    "give a pool without taints larger machines (machineType: e2-standard-4 has room for the engine) or more nodes, "
    "or allow node auto-provisioning (cluster.autoscaling.autoProvisioning)"
)


class SystemPod(NamedTuple):
    """The pods of a Deployment: replicas, and requests as quantities by resource."""

    name: str
    replicas: int
    requests: Mapping[str, str]


@dataclass(slots=True)
class _FreeNode:
    """Free resources of a node: CPU in millicores, memory in bytes."""

    cpu: int
    memory: int

    def take(self, pod: "_Need") -> bool:
        """Place the pod here if it fits."""
        if pod.cpu > self.cpu or pod.memory > self.memory:
            return False
        self.cpu -= pod.cpu
        self.memory -= pod.memory
        return True


class _Need(NamedTuple):
    cpu: int
    memory: int


def system_pods(platform: PlatformModel) -> Sequence[SystemPod]:
    """Return the pods of the engine, then those of the monitoring stack."""
    stack = [SystemPod(name, 1, requests) for name, requests in stack_requests(platform).items()]
    if platform.engine is PlatformEngine.KUEUE:
        kueue, job_set = (
            SystemPod("kueue-controller-manager", 1, _KUEUE),
            SystemPod("jobset-controller-manager", 1, _JOB_SET),
        )
        return [kueue, job_set, *stack]
    settings = settings_of(platform)
    return [SystemPod(settings.name, settings.replicas, settings.requests), *stack]


def system_pod_faults(platform: PlatformModel) -> Iterator[FieldError]:
    """Yield an error if these pods and GKE's own do not fit on the untainted nodes."""
    cluster = platform.cluster
    if cluster is None or platform.google is None or _provisions_nodes(cluster):
        return
    wanted = system_pods(platform)
    needs = [_need(requests) for requests in _GKE_PODS]
    needs += [_need(pod.requests) for pod in wanted for _ in range(pod.replicas)]
    free = _free_nodes(platform, cluster, len(needs))
    placed = sum(_place(need, free) for need in sorted(needs, reverse=True))
    if placed < len(needs):
        problem = f"{_described(wanted)} do not fit on the nodes without taints ({_described_pools(platform, cluster)})"
        yield FieldError(NODE_POOLS, f"{problem} beside GKE's own pods", _REMEDY)


def _provisions_nodes(cluster: Part) -> bool:
    """Whether GKE provisions nodes for unschedulable pods."""
    limits = ((cluster["spec"].get("autoscaling") or {}).get("autoProvisioning") or {}).get("limits") or ()
    return {row["resource"] for row in limits} >= _AUTO_PROVISIONED


def _free_nodes(platform: PlatformModel, cluster: Part, most: int) -> list[_FreeNode]:
    """Return the untainted nodes without the requests of GKE's DaemonSets; of a pool at most as many as pods."""
    daemons = _need(_DAEMON_SETS)
    found = []
    for pool, node in _untainted(platform, cluster):
        has = _need(node["status"]["allocatable"])
        count = min(pool_bounds(pool, cluster)[1], most)
        found += [_FreeNode(has.cpu - daemons.cpu, has.memory - daemons.memory) for _ in range(count)]
    return found


def _untainted(platform: PlatformModel, cluster: Part) -> Iterator[tuple[Part, Part]]:
    """Yield the pools that accept pods without tolerations, each with a node."""
    for row in platform.node_pools:
        pool = {"metadata": {"name": row["name"]}, "spec": row}
        node = node_template(pool, zones_of(pool, cluster)[0], cluster)
        if not any(taint["effect"] in _REPELLING for taint in node["spec"]["taints"]):
            yield pool, node


def _place(need: _Need, free: Sequence[_FreeNode]) -> bool:
    return any(node.take(need) for node in free)


def _need(resources: Mapping[str, str]) -> _Need:
    return _Need(quantity.amount("cpu", resources["cpu"]), quantity.amount("memory", resources["memory"]))


def _described(wanted: Sequence[SystemPod]) -> str:
    return " and ".join(
        f"{pod.replicas} x {pod.name} ({pod.requests['cpu']} CPU, {pod.requests['memory']})" for pod in wanted
    )


def _described_pools(platform: PlatformModel, cluster: Part) -> str:
    daemons = _need(_DAEMON_SETS)
    texts = []
    for pool, node in _untainted(platform, cluster):
        free = _need(node["status"]["allocatable"])
        count, machine = pool_bounds(pool, cluster)[1], pool["spec"]["machineType"]
        each = f"{free.cpu - daemons.cpu}m CPU and {(free.memory - daemons.memory) // _MIB}Mi free on each"
        texts.append(f"{pool['metadata']['name']}: {count} x {machine}, {each}")
    return "; ".join(texts) or "there are none"
