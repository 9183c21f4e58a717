"""The Nodes of a cloud node pool: the template of a ready Node as in GKE, and the Node that a kubelet registers.

The simulated cloud registers Nodes from the template, and the autoscaler simulates new Nodes with it. Sources: GKE's
autoscaler, pkg/cloudprovider/gke/{templates.go,labels/system_labels.go} and pkg/autoprovisioning/injection.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj, find_condition, with_status
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant, parse_duration
from batchyard.base.primitives import fnv1a_64, uid_for
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, NodeSystem, catalog_of
from batchyard.cloud.catalog.pool_properties import machine_of

# Node capacity and allocatable resources, computed as in GKE, to the byte.
#
# The operating system's reservation is interpolated between measured values (`NodeSystem` in the catalog); the
# kubelet's reservation is computed by brackets. Sources: GKE's autoscaler, pkg/cloudprovider/gke/reserved.go and
# nodetemplate/system_reserved_config.go; kubernetes/autoscaler, cloudprovider/gce/templates.go.


MIB: Final = 1 << 20
GIB: Final = 1 << 30
DEFAULT_PODS_PER_NODE: Final = 110
LOCAL_SSD_BYTES: Final = 375 * GIB

_EVICTION_THRESHOLD_BYTES: Final = 100 * MIB
_MANY_PODS_THRESHOLD: Final = 110
_CPU_MILLI_FOR_MANY_PODS: Final = 400
_SMALL_MACHINE_MEMORY_MIB: Final = 1000
_SMALL_MACHINE_RESERVED_MIB: Final = 255
#: (lower bound, reserved amount per 10,000).
_RESERVED_CPU_BRACKETS: Final = ((0, 600), (1000, 100), (2000, 50), (4000, 25))
_RESERVED_MEMORY_BRACKETS: Final = ((0, 2500), (4000, 2000), (8000, 1000), (16000, 600), (128_000, 200))

Resources = dict[str, int]


def capacity(machine: MachineType, node_system: NodeSystem, pods: int = DEFAULT_PODS_PER_NODE) -> Resources:
    """Return a node's status.capacity for a machine type: CPU in millicores, all other resources in base units."""
    memory = machine.memory_bytes
    resource_amounts = {
        "cpu": machine.cpu_milli,
        "ephemeral-storage": _disk_bytes(machine, node_system),
        "memory": max(0, memory - interpolate_reserved_amount(node_system.reserved_memory, memory)),
        "pods": pods,
    }
    if machine.accelerator is not None:
        resource_amounts[machine.accelerator.resource] = machine.accelerator.count
    return resource_amounts


def allocatable(machine: MachineType, node_system: NodeSystem, pods: int = DEFAULT_PODS_PER_NODE) -> Resources:
    """Return a node's status.allocatable for a machine type: CPU in millicores, all other resources in base units."""
    total = capacity(machine, node_system, pods)
    disk_bytes = total["ephemeral-storage"]
    reserved_amounts = {
        "cpu": reserved_cpu_milli(machine, pods),
        "ephemeral-storage": _reserved_disk_bytes(machine, node_system) + disk_bytes // 10,
        "memory": reserved_memory_mib(machine.memory_bytes // MIB) * MIB + _EVICTION_THRESHOLD_BYTES,
    }
    return {resource: max(0, amount - reserved_amounts.get(resource, 0)) for resource, amount in total.items()}


def reserved_cpu_milli(machine: MachineType, pods: int = DEFAULT_PODS_PER_NODE) -> int:
    """Return the millicores of a node that GKE reserves.

    On a machine type with a shared core, this includes the CPU above the sustained level.
    """
    burst_milli = machine.cpu_milli - machine.sustained_cpu_milli
    many_pods_milli = _CPU_MILLI_FOR_MANY_PODS if pods > _MANY_PODS_THRESHOLD else 0
    return _reserved_by_brackets(machine.sustained_cpu_milli, _RESERVED_CPU_BRACKETS) + burst_milli + many_pods_milli


def reserved_memory_mib(memory_mib: int) -> int:
    """Return the MiB of a node's memory that GKE reserves; GKE's brackets count 1000 MiB as one GB."""
    if memory_mib <= _SMALL_MACHINE_MEMORY_MIB:
        return _SMALL_MACHINE_RESERVED_MIB if memory_mib > 0 else 0
    return _reserved_by_brackets(memory_mib, _RESERVED_MEMORY_BRACKETS)


def interpolate_reserved_amount(total_reserved_pairs: Sequence[tuple[int, int]], total: int) -> int:
    """Return the reserved part of a total, interpolated linearly between measured pairs of total and reserved.

    Outside the measured range, the first or the last two pairs are extrapolated.
    """
    upper_index = next(
        (index for index, row in enumerate(total_reserved_pairs) if row[0] >= total), len(total_reserved_pairs) - 1
    )
    (low, reserved_low), (high, reserved_high) = (
        total_reserved_pairs[max(0, upper_index - 1)],
        total_reserved_pairs[max(1, upper_index)],
    )
    return reserved_low + (total - low) * (reserved_high - reserved_low) // (high - low)


def _disk_bytes(machine: MachineType, node_system: NodeSystem) -> int:
    if machine.local_ssds:
        return machine.local_ssds * LOCAL_SSD_BYTES - node_system.local_ssd_overhead.get(machine.local_ssds, 0)
    disk_bytes = node_system.boot_disk_gib * GIB
    return disk_bytes - interpolate_reserved_amount(node_system.reserved_disk, disk_bytes)


def _reserved_disk_bytes(machine: MachineType, node_system: NodeSystem) -> int:
    if machine.local_ssds:
        return {1: 50, 2: 75}.get(machine.local_ssds, 100) * GIB
    disk_gib = node_system.boot_disk_gib
    return min(disk_gib // 2, 6 + disk_gib * 35 // 100, 100) * GIB


def _reserved_by_brackets(amount: int, brackets: Sequence[tuple[int, int]]) -> int:
    """Return the part of an amount that GKE reserves.

    `brackets` are pairs of a start and a rate in ten-thousandths, which applies from this start to the next.
    """
    bracket_ends = [start for start, _ in brackets[1:]]
    reserved_amount = 0
    for (start, rate), end in zip(brackets, [*bracket_ends, max(amount, bracket_ends[-1])], strict=True):
        reserved_amount += max(0, min(amount, end) - start) * rate
    return reserved_amount // 10_000


_CPU_LEVEL_LABEL: Final = "cloud.google.com/gke-cpu-scaling-level"
_MEMORY_LEVEL_LABEL: Final = "cloud.google.com/gke-memory-gb-scaling-level"
_OLD_ARCHITECTURE_LABEL: Final = "beta.kubernetes.io/arch"
_OLD_OPERATING_SYSTEM_LABEL: Final = "beta.kubernetes.io/os"
_OLD_INSTANCE_TYPE_LABEL: Final = "beta.kubernetes.io/instance-type"
_OLD_ZONE_LABEL: Final = "failure-domain.beta.kubernetes.io/zone"
_OLD_REGION_LABEL: Final = "failure-domain.beta.kubernetes.io/region"

#: The reason and message of the condition Ready while the kubelet starts.
_STARTING: Final = ("KubeletNotReady", "container runtime network not ready")
#: GKE labels nodes with their memory in units of 1000 MiB.
_MEMORY_LEVEL_BYTES: Final = 1000 * MIB
#: Node conditions other than Ready: type, reason and message.
_PRESSURE_CONDITIONS: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def node_template(pool: Obj, zone: str, cluster: Obj) -> dict[str, Any]:
    """Return the template of the ready Nodes of a node pool in a zone."""
    catalog = catalog_of(cluster)
    machine = machine_of(pool, catalog)
    pods, node_system = pool["spec"].get("maxPodsPerNode", DEFAULT_PODS_PER_NODE), catalog.node_system
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"template-node-for-{pool['metadata']['name']}-{zone}",
            "labels": _node_labels(pool, zone, machine, catalog),
        },
        "spec": {"taints": _node_taints(pool, machine)},
        "status": {
            "capacity": _format_quantities(capacity(machine, node_system, pods)),
            "allocatable": _format_quantities(allocatable(machine, node_system, pods)),
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "architecture": "amd64",
                "containerRuntimeVersion": node_system.container_runtime,
                "kernelVersion": node_system.kernel_version,
                "kubeProxyVersion": node_system.version,
                "kubeletVersion": node_system.version,
                "operatingSystem": "linux",
                "osImage": node_system.os_image,
            },
        },
    }


# The physical location of machines. A compact placement group and a reservation fill the hosts of their blocks in
# order, and a new machine takes the first free host. Source: the labels of GKE's nodes for topology-aware scheduling;
# NVIDIA's GPU feature discovery for NVLink domains.


def exposes_location(pool: Obj, cluster: Obj) -> bool:
    """Return whether the Nodes of a pool have labels for their block, sub-block and host."""
    catalog = catalog_of(cluster)
    family = catalog.family(machine_of(pool, catalog))
    return family.sub_block_machines > 0 and ("placementGroup" in pool["spec"] or "reservation" in pool["spec"])


def location_label_names(pool: Obj, cluster: Obj) -> frozenset[str]:
    """Return the names of the labels that each Node of a pool has for its own location; none without such labels."""
    return frozenset(location_labels(pool, "", cluster, ())) if exposes_location(pool, cluster) else frozenset()


def location_labels(pool: Obj, zone: str, cluster: Obj, nodes: Iterable[Obj]) -> dict[str, str]:
    """Return the labels for the first free host in a zone of the pool's reservation or placement group.

    `nodes` are the Nodes of the cluster. The pool must be one that `exposes_location`.
    """
    catalog, spec = catalog_of(cluster), pool["spec"]
    family = catalog.family(machine_of(pool, catalog))
    group = f"{spec.get('reservation') or spec['placementGroup']}-{zone}"
    prefix = f"{group}-h"
    taken: set[int] = set()
    for node in nodes:
        host = meta.label(node, well_known.TOPOLOGY_HOST) or ""
        if host.startswith(prefix):
            taken.add(int(host.removeprefix(prefix)))
    position = next(each for each in range(len(taken) + 1) if each not in taken)
    sub_block = position // family.sub_block_machines
    labels = {
        well_known.TOPOLOGY_BLOCK: f"{group}-b{sub_block // family.block_sub_blocks}",
        well_known.TOPOLOGY_SUB_BLOCK: f"{group}-s{sub_block}",
        well_known.TOPOLOGY_HOST: f"{prefix}{position}",
    }
    return {**labels, well_known.NVLINK_DOMAIN: f"{group}.{sub_block}"} if family.has_nvlink_domains else labels


def registered_node(instance: Obj, pool: Obj, cluster: Obj, now: Instant, nodes: Iterable[Obj] = ()) -> dict[str, Any]:
    """Return the Node that the kubelet of an Instance registers at first: not ready, and tainted.

    `nodes` are the other Nodes; they are read if the Nodes of the pool have labels for their location.
    """
    name, zone = instance["metadata"]["name"], instance["spec"]["zone"]
    node = node_template(pool, zone, cluster)
    instance_labels = {well_known.HOSTNAME: name}
    if exposes_location(pool, cluster):
        instance_labels |= location_labels(pool, zone, cluster, nodes)
    if "resizeRequest" in instance["spec"]:
        instance_labels[well_known.NODE_PROVISIONING_REQUEST] = instance["spec"]["resizeRequest"]
    metadata = {"name": name, "labels": {**node["metadata"]["labels"], **instance_labels}}
    taints = [*node["spec"]["taints"], {"key": well_known.NOT_READY, "effect": "NoSchedule"}]
    spec = {"providerID": f"gce://{cluster['metadata']['name']}/{zone}/{name}", "taints": taints}
    status = {
        **node["status"],
        "nodeInfo": {**node["status"]["nodeInfo"], **_node_identity(name, now)},
        "conditions": [_node_condition("Ready", False, _STARTING, now)]
        + [_node_condition(kind, False, (reason, message), now) for kind, reason, message in _PRESSURE_CONDITIONS],
        "addresses": [{"type": "InternalIP", "address": _private_address(name)}, {"type": "Hostname", "address": name}],
    }
    return {**node, "metadata": metadata, "spec": spec, "status": status}


def awaits_drivers(node: Obj) -> bool:
    """Return whether a Node is not ready because its kubelet starts, for example while drivers are installed.

    A Node that shuts down has the same reason but another message.
    """
    condition = find_condition(node, "Ready")
    return condition is not None and (condition.get("reason"), condition.get("message")) == _STARTING


def with_ready_condition(node: Obj, now: Instant) -> dict[str, Any]:
    """Return a copy of a Node with the condition Ready set to True."""
    status = node["status"]
    ready_condition = _node_condition("Ready", True, ("KubeletReady", "kubelet is posting ready status"), now)
    conditions = [ready_condition if condition["type"] == "Ready" else condition for condition in status["conditions"]]
    return with_status(node, {**status, "conditions": conditions})


def _node_identity(name: str, now: Instant) -> dict[str, str]:
    machine_uuid = uid_for(0, "machine", name)
    boot_id = uid_for(0, "boot", name, str(now))
    return {"bootID": boot_id, "machineID": machine_uuid.replace("-", ""), "systemUUID": machine_uuid}


def _node_labels(pool: Obj, zone: str, machine: MachineType, catalog: Catalog) -> dict[str, str]:
    region = zone.rpartition("-")[0]
    name = pool["metadata"]["name"]
    system_labels = {
        _OLD_ARCHITECTURE_LABEL: "amd64",
        _OLD_INSTANCE_TYPE_LABEL: machine.name,
        _OLD_OPERATING_SYSTEM_LABEL: "linux",
        well_known.BOOT_DISK: catalog.node_system.boot_disk,
        well_known.CONTAINER_RUNTIME: "containerd",
        _CPU_LEVEL_LABEL: str(machine.cpu_milli // 1000),
        well_known.MAX_PODS: str(pool["spec"].get("maxPodsPerNode", DEFAULT_PODS_PER_NODE)),
        _MEMORY_LEVEL_LABEL: str(machine.memory_bytes // _MEMORY_LEVEL_BYTES),
        well_known.NODE_POOL: name,
        well_known.OS_DISTRIBUTION: "cos",
        well_known.MACHINE_FAMILY: machine.family,
        _OLD_REGION_LABEL: region,
        _OLD_ZONE_LABEL: zone,
        well_known.ARCHITECTURE: "amd64",
        well_known.OPERATING_SYSTEM: "linux",
        well_known.INSTANCE_TYPE: machine.name,
        well_known.GKE_ZONE: zone,
        well_known.REGION: region,
        well_known.ZONE: zone,
    }
    pool_labels = pool["spec"].get("labels") or {}
    labels = {**pool_labels, **system_labels, **_provisioning_labels(pool["spec"])}
    return {**labels, **_accelerator_labels(pool, machine)}


def _provisioning_labels(spec: Obj) -> dict[str, str]:
    provisioning, labels = spec.get("provisioning", "standard"), {}
    labels[well_known.PROVISIONING] = "standard" if provisioning == "queued" else provisioning
    if provisioning == "spot":
        labels[well_known.SPOT] = "true"
    if provisioning == "flex-start":
        labels[well_known.FLEX_START] = "true"
    if provisioning == "queued":
        labels[well_known.QUEUED] = "true"
    if "placementGroup" in spec:
        labels[well_known.PLACEMENT_GROUP] = spec["placementGroup"]
    if "reservation" in spec:
        labels |= {well_known.RESERVATION_NAME: spec["reservation"], well_known.RESERVATION_AFFINITY: "specific"}
    if "maxRunDuration" in spec:
        labels[well_known.MAX_RUN_DURATION] = str(parse_duration(spec["maxRunDuration"]) // SECOND)
    return labels


def _accelerator_labels(pool: Obj, machine: MachineType) -> dict[str, str]:
    """Return the Node labels for a pool's accelerators; as in GKE, their count is a label only for TPUs."""
    accelerator = machine.accelerator
    if accelerator is None:
        return {}
    if accelerator.resource != well_known.TPU:
        return {well_known.ACCELERATOR: accelerator.type, well_known.GPU_DRIVER_VERSION: "default"}
    topology = pool["spec"].get("tpuTopology") or machine.topology
    labels = {well_known.TPU_ACCELERATOR: accelerator.type, well_known.ACCELERATOR_COUNT: str(accelerator.count)}
    return {**labels, well_known.TPU_TOPOLOGY: topology} if topology else labels


def _node_taints(pool: Obj, machine: MachineType) -> Sequence[Mapping[str, str]]:
    taints: list[Mapping[str, str]] = list(pool["spec"].get("taints") or ())
    system_taints = []
    if machine.accelerator is not None:
        system_taints.append({"key": machine.accelerator.resource, "value": "present", "effect": "NoSchedule"})
    if pool["spec"].get("provisioning") == "queued":
        system_taints.append({"key": well_known.QUEUED, "value": "true", "effect": "NoSchedule"})
    pool_taint_keys = [(taint["key"], taint["effect"]) for taint in taints]
    return taints + [taint for taint in system_taints if (taint["key"], taint["effect"]) not in pool_taint_keys]


def _format_quantities(amounts: Resources) -> dict[str, str]:
    return {resource: meta.format_amount(resource, amount) for resource, amount in amounts.items()}


def _node_condition(kind: str, is_true: bool, reason_and_message: tuple[str, str], now: Instant) -> dict[str, str]:
    time_text, (reason, message) = format_time(now), reason_and_message
    return {
        "type": kind,
        "status": "True" if is_true else "False",
        "lastHeartbeatTime": time_text,
        "lastTransitionTime": time_text,
        "reason": reason,
        "message": message,
    }


def _private_address(name: str) -> str:
    name_hash = fnv1a_64(name)
    return f"10.{128 + (name_hash >> 16) % 64}.{(name_hash >> 8) % 256}.{name_hash % 254 + 1}"
