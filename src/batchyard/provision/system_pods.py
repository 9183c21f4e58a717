"""Machines, prices and cloud quotas that a platform needs, and a check that the system pods fit on its nodes.

System pods are those of the engine and of the monitoring stack. If the untainted node pools are too small, the engine's
pods stay Pending and no Job is admitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchyard.api import meta, well_known
from batchyard.api.errors import FieldError
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, MicroDollars, catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pool_properties import hourly_price, machine_of, pool_price, zones_of
from batchyard.provision.engine import settings_of
from batchyard.provision.manifests.stack import monitoring_stack_requests
from batchyard.provision.model import Part, PlatformEngine, PlatformFlavor, PlatformModel
from batchyard.provision.terraform.pools import HYPERDISK, needs_hyperdisk

# The minimum and maximum number of machines of a platform, and their hourly prices.
#
# Autoscaled pools use their bounds. Auto-provisioned machines are estimated from the quotas of flavors that name an
# accelerator but no pool, within the limits of auto-provisioning, on the cheapest machine type with this accelerator.


#: Name prefix of auto-provisioned machines.
AUTO_PROVISIONED: Final = "auto-provisioned"
_RESOURCE_BY_LABEL: Final = {well_known.ACCELERATOR: well_known.GPU, well_known.TPU_ACCELERATOR: well_known.TPU}


@dataclass(frozen=True, slots=True)
class MachineSupply:
    """The minimum and maximum machine count of a node pool or of auto-provisioning, and the price of one machine."""

    name: str
    machine: MachineType
    #: standard, spot, flex-start or queued.
    provisioning: str
    is_reserved: bool
    minimum: int
    maximum: int
    #: The hourly price of one machine, in millionths of a dollar.
    price: MicroDollars

    @property
    def idle_price(self) -> MicroDollars:
        """The hourly price of the minimum number of machines, in millionths of a dollar."""
        return self.minimum * self.price

    @property
    def full_price(self) -> MicroDollars:
        """The hourly price of the maximum number of machines, in millionths of a dollar."""
        return self.maximum * self.price


def machine_supplies(platform: PlatformModel) -> Sequence[MachineSupply]:
    """Return the MachineSupply of each node pool, then of the machines that node auto-provisioning can create.

    The result is empty if the platform uses an existing cluster, whose machines are unknown.
    """
    cluster = platform.cluster
    if cluster is None:
        return []
    catalog = catalog_of(cluster)
    pools = [_pool_supply(row, cluster, catalog) for row in platform.node_pools]
    return [*pools, *_auto_provisioned_supplies(platform, catalog)]


def _pool_supply(row: Part, cluster: Part, catalog: Catalog) -> MachineSupply:
    pool = {"metadata": {"name": row["name"]}, "spec": row}
    minimum, maximum = pool_bounds(pool, cluster)
    return MachineSupply(
        name=row["name"],
        machine=machine_of(pool, catalog),
        provisioning=row.get("provisioning", "standard"),
        is_reserved=bool(row.get("reservation")),
        minimum=minimum,
        maximum=maximum,
        price=pool_price(pool, cluster),
    )


def pool_bounds(pool: Part, cluster: Part) -> tuple[int, int]:
    """Return the minimum and maximum number of machines of a node pool over all zones."""
    spec, zones = pool["spec"], len(zones_of(pool, cluster))
    autoscaling = spec.get("autoscaling")
    if autoscaling is None:
        count = zones * spec.get("nodeCount", 0)
        return count, count
    if "totalMax" in autoscaling:
        return autoscaling.get("totalMin", 0), autoscaling["totalMax"]
    return zones * autoscaling.get("min", 0), zones * autoscaling.get("max", 0)


def _auto_provisioned_supplies(platform: PlatformModel, catalog: Catalog) -> Iterator[MachineSupply]:
    limits = _accelerator_limits(platform)
    quota_by_type: dict[tuple[str, str], int] = {}
    for flavor in platform.flavors:
        accelerator = _accelerator_of(flavor)
        if flavor.pools or accelerator is None or accelerator not in limits:
            continue
        provisioning = flavor.node_labels.get(well_known.PROVISIONING, "standard")
        quota_by_type[accelerator, provisioning] = quota_by_type.get(
            (accelerator, provisioning), 0
        ) + _accelerator_quota(flavor, platform)
    for (accelerator, provisioning), count in quota_by_type.items():
        machine = _smallest_machine(accelerator, provisioning, catalog)
        if machine is not None and machine.accelerator is not None and count:
            maximum = -(-min(count, limits[accelerator]) // machine.accelerator.count)
            price = hourly_price(machine, provisioning)
            yield MachineSupply(f"{AUTO_PROVISIONED}-{accelerator}", machine, provisioning, False, 0, maximum, price)


def _accelerator_limits(platform: PlatformModel) -> Mapping[str, int]:
    assert platform.cluster is not None
    autoscaling = platform.cluster["spec"].get("autoscaling") or {}
    limit_rows = (autoscaling.get("autoProvisioning") or {}).get("limits") or ()
    return {row["resource"]: row["max"] for row in limit_rows}


def _accelerator_of(flavor: PlatformFlavor) -> str | None:
    return next((flavor.node_labels[key] for key in _RESOURCE_BY_LABEL if key in flavor.node_labels), None)


def _accelerator_quota(flavor: PlatformFlavor, platform: PlatformModel) -> int:
    resource = next(_RESOURCE_BY_LABEL[key] for key in _RESOURCE_BY_LABEL if key in flavor.node_labels)
    quota_rows = [row for queue in platform.queues for row in queue.flavors] + [
        row for cohort in platform.cohorts for row in cohort.flavors
    ]
    quotas = [row.resources[resource] for row in quota_rows if row.name == flavor.name and resource in row.resources]
    return sum(meta.amount(resource, quota["nominalQuota"]) for quota in quotas)


def _smallest_machine(accelerator: str, provisioning: str, catalog: Catalog) -> MachineType | None:
    """Return the machine type with the fewest chips of an accelerator type, of several the cheapest; None if none."""
    candidates = [
        machine
        for machine in catalog.machines.values()
        if machine.accelerator is not None and machine.accelerator.type == accelerator
    ]
    return min(
        candidates,
        key=lambda m: (m.accelerator.count if m.accelerator else 0, hourly_price(m, provisioning), m.name),
        default=None,
    )


#: The field path of errors about system pods.
NODE_POOLS: Final = "spec.cluster.nodePools"
_MIB: Final = 1 << 20
#: Requests of the managers of Kueue and JobSet, as in their releases.
_KUEUE_REQUESTS: Final[Mapping[str, str]] = {"cpu": "500m", "memory": "512Mi"}
_JOB_SET_REQUESTS: Final[Mapping[str, str]] = {"cpu": "500m", "memory": "128Mi"}
#: Estimated requests of GKE's DaemonSets per node (logs, metrics, DNS cache, CSI drivers, proxy).
_DAEMON_SET_REQUESTS: Final[Mapping[str, str]] = {"cpu": "250m", "memory": "300Mi"}
#: Estimated requests of GKE's Deployments: two of kube-dns, and metrics-server with the other agents.
_GKE_POD_REQUESTS: Final[Sequence[Mapping[str, str]]] = (
    {"cpu": "260m", "memory": "110Mi"},
    {"cpu": "260m", "memory": "110Mi"},
    {"cpu": "100m", "memory": "200Mi"},
)
_REPELLING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_AUTO_PROVISIONED_RESOURCES: Final = frozenset({"cpu", "memory"})
_NODES_REMEDY: Final = (
    "use larger machines (such as machineType: e2-standard-4) or more nodes in a pool without taints, "
    "or enable node auto-provisioning (cluster.autoscaling.autoProvisioning)"
)


class SystemPod(NamedTuple):
    """The pods of one system Deployment: their number, and the requests of one pod as quantities by resource."""

    name: str
    replicas: int
    requests: Mapping[str, str]


@dataclass(slots=True)
class _FreeNode:
    """The free resources of a node: CPU in millicores, memory in bytes."""

    cpu: int
    memory: int

    def try_place(self, pod: "_PodRequests") -> bool:
        if pod.cpu > self.cpu or pod.memory > self.memory:
            return False
        self.cpu -= pod.cpu
        self.memory -= pod.memory
        return True


class _PodRequests(NamedTuple):
    cpu: int
    memory: int


def system_pods(platform: PlatformModel) -> Sequence[SystemPod]:
    """Return the pods of the engine (batchyard or Kueue), then the pods of the monitoring stack."""
    stack_pods = [SystemPod(name, 1, requests) for name, requests in monitoring_stack_requests(platform).items()]
    if platform.engine is PlatformEngine.KUEUE:
        kueue_pod = SystemPod("kueue-controller-manager", 1, _KUEUE_REQUESTS)
        job_set_pod = SystemPod("jobset-controller-manager", 1, _JOB_SET_REQUESTS)
        return [kueue_pod, job_set_pod, *stack_pods]
    settings = settings_of(platform)
    return [SystemPod(settings.name, settings.replicas, settings.requests), *stack_pods]


def system_pod_errors(platform: PlatformModel) -> Iterator[FieldError]:
    """Yield an error if the system pods and GKE's own pods do not fit on the untainted nodes together.

    There is no error if the cluster is not on GKE, or if node auto-provisioning can add nodes.
    """
    cluster = platform.cluster
    if cluster is None or platform.google is None or _provisions_nodes(cluster):
        return
    system_pod_list = system_pods(platform)
    all_requests = [_parse_requests(requests) for requests in _GKE_POD_REQUESTS]
    all_requests += [_parse_requests(pod.requests) for pod in system_pod_list for _ in range(pod.replicas)]
    nodes = _free_nodes(platform, cluster, len(all_requests))
    placed_count = sum(_place_on_any_node(pod_requests, nodes) for pod_requests in sorted(all_requests, reverse=True))
    if placed_count < len(all_requests):
        pools = _describe_pools(platform, cluster)
        problem = f"{_describe_pods(system_pod_list)} do not fit on the nodes without taints ({pools})"
        yield FieldError(NODE_POOLS, f"{problem} beside GKE's own pods", _NODES_REMEDY)


def _provisions_nodes(cluster: Part) -> bool:
    limits = ((cluster["spec"].get("autoscaling") or {}).get("autoProvisioning") or {}).get("limits") or ()
    return {row["resource"] for row in limits} >= _AUTO_PROVISIONED_RESOURCES


def _free_nodes(platform: PlatformModel, cluster: Part, nodes_per_pool_max: int) -> list[_FreeNode]:
    overhead = _parse_requests(_DAEMON_SET_REQUESTS)
    nodes = []
    for pool, node in _untainted_pools(platform, cluster):
        allocatable = _parse_requests(node["status"]["allocatable"])
        count = min(pool_bounds(pool, cluster)[1], nodes_per_pool_max)
        nodes += [_FreeNode(allocatable.cpu - overhead.cpu, allocatable.memory - overhead.memory) for _ in range(count)]
    return nodes


def _untainted_pools(platform: PlatformModel, cluster: Part) -> Iterator[tuple[Part, Part]]:
    for row in platform.node_pools:
        pool = {"metadata": {"name": row["name"]}, "spec": row}
        node = node_template(pool, zones_of(pool, cluster)[0], cluster)
        if not any(taint["effect"] in _REPELLING_EFFECTS for taint in node["spec"]["taints"]):
            yield pool, node


def _place_on_any_node(requests: _PodRequests, nodes: Sequence[_FreeNode]) -> bool:
    return any(node.try_place(requests) for node in nodes)


def _parse_requests(resources: Mapping[str, str]) -> _PodRequests:
    return _PodRequests(meta.amount("cpu", resources["cpu"]), meta.amount("memory", resources["memory"]))


def _describe_pods(pods: Sequence[SystemPod]) -> str:
    pod_texts = [f"{pod.replicas} x {pod.name} ({pod.requests['cpu']} CPU, {pod.requests['memory']})" for pod in pods]
    return " and ".join(pod_texts)


def _describe_pools(platform: PlatformModel, cluster: Part) -> str:
    overhead = _parse_requests(_DAEMON_SET_REQUESTS)
    descriptions = []
    for pool, node in _untainted_pools(platform, cluster):
        free_resources = _parse_requests(node["status"]["allocatable"])
        count, machine = pool_bounds(pool, cluster)[1], pool["spec"]["machineType"]
        free_mib = (free_resources.memory - overhead.memory) // _MIB
        free_text = f"{free_resources.cpu - overhead.cpu}m CPU and {free_mib}Mi free on each"
        descriptions.append(f"{pool['metadata']['name']}: {count} x {machine}, {free_text}")
    return "; ".join(descriptions) or "the platform has none"


# Compute Engine quotas that a platform needs at its maximum number of machines, by metric.
#
# Spot machines and machines of the Dynamic Workload Scheduler (flex-start, queued) use preemptible quotas, and reserved
# machines use the other quotas. Accelerator families without a CPU quota here are limited by their accelerator
# quota. CPUs of other families that are not listed count against a per-family quota. Sources: the metrics of the API's
# Region resource, and the documents of Compute Engine on allocation quotas, of Cloud TPU on its quotas, and of GKE on
# flex-start.


GLOBAL_REGION: Final = "global"
_GPU_METRICS: Final[Mapping[str, str]] = {
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
}
#: Metrics of chips and preemptible chips by accelerator. Later families share a metric with a family dimension.
_TPU_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "tpu-v5-lite-podslice": ("TPU_LITE_PODSLICE_V5", "PREEMPTIBLE_TPU_LITE_PODSLICE_V5"),
    "tpu-v5p-slice": ("TPUS_PER_TPU_FAMILY (CT5P)", "PREEMPTIBLE_TPU_V5P"),
    "tpu-v6e-slice": ("TPUS_PER_TPU_FAMILY (CT6E)", "PREEMPTIBLE_TPU_V6E"),
}
_CPU_METRICS: Final[Mapping[str, str]] = {
    "e2": "CPUS",
    "n1": "CPUS",
    "n2": "N2_CPUS",
    "g2": "G2_CPUS",
    "a2": "A2_CPUS",
    "c2": "C2_CPUS",
    "c2d": "C2D_CPUS",
    "c3": "C3_CPUS",
    "m1": "M1_CPUS",
    "m2": "M2_CPUS",
    "m3": "M3_CPUS",
    "n2d": "N2D_CPUS",
    "t2a": "T2A_CPUS",
    "t2d": "T2D_CPUS",
}
_PREEMPTIBLE_PROVISIONING: Final = frozenset({"spot", "flex-start", "queued"})
#: Metrics of disk capacity by disk type.
_DISK_METRICS: Final[Mapping[str, str]] = {
    "pd-standard": "DISKS_TOTAL_GB",
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
    HYPERDISK: "HDB_TOTAL_GB",
}


class ComputeQuota(NamedTuple):
    """The amount of a Compute Engine quota that the platform needs, and the node pools that need it."""

    region: str
    metric: str
    needed_amount: int
    pool_names: Sequence[str]


def required_quotas(platform: PlatformModel) -> Sequence[ComputeQuota]:
    """Return the Compute Engine quotas that the platform needs, sorted by region and metric, global ones last.

    The result is empty if the platform is not on GKE.
    """
    if platform.google is None:
        return []
    amounts_by_quota: dict[tuple[str, str], dict[str, int]] = {}
    for supply in machine_supplies(platform):
        if supply.maximum:
            for region, metric, amount_per_machine in _quota_needs(supply, platform):
                amounts_by_quota.setdefault((region, metric), {})[supply.name] = amount_per_machine * supply.maximum
    compute_quotas = [
        ComputeQuota(region, metric, sum(amounts_by_pool.values()), list(amounts_by_pool))
        for (region, metric), amounts_by_pool in amounts_by_quota.items()
    ]
    return sorted(compute_quotas, key=lambda row: (row.region == GLOBAL_REGION, row.region, row.metric))


def _quota_needs(supply: MachineSupply, platform: PlatformModel) -> Iterator[tuple[str, str, int]]:
    machine, is_preemptible, region = supply.machine, supply.provisioning in _PREEMPTIBLE_PROVISIONING, platform.region
    accelerator = machine.accelerator
    if accelerator is not None and accelerator.resource == well_known.GPU:
        metric = _GPU_METRICS.get(accelerator.type, "")
        if metric:
            yield region, f"PREEMPTIBLE_{metric}" if is_preemptible else metric, accelerator.count
        yield GLOBAL_REGION, "GPUS_ALL_REGIONS", accelerator.count
    if accelerator is not None and accelerator.type in _TPU_METRICS:
        yield region, _TPU_METRICS[accelerator.type][is_preemptible], accelerator.count
    if machine.family in _CPU_METRICS or accelerator is None:
        metric = _CPU_METRICS.get(machine.family, f"CPUS_PER_VM_FAMILY ({machine.family.upper()})")
        yield region, "PREEMPTIBLE_CPUS" if is_preemptible else metric, machine.cpu_milli // 1000
    google = platform.google
    assert google is not None
    disk_type = HYPERDISK if needs_hyperdisk(machine) else google.disk_type
    yield region, _DISK_METRICS[disk_type], google.disk_size_gb
    yield region, "INSTANCES", 1
