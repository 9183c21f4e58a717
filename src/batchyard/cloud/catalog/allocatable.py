"""Node capacity and allocatable resources, computed as in GKE, to the byte.

The operating system's share is interpolated between measured values (Systems in the catalog); the kubelet's share
follows brackets. Sources: GKE's autoscaler, pkg/cloudprovider/gke/reserved.go and
nodetemplate/system_reserved_config.go; kubernetes/autoscaler, cloudprovider/gce/templates.go.
"""

from collections.abc import Sequence
from typing import Final

from batchyard.cloud.catalog.machine_types import MachineType, NodeSystem

MIB: Final = 1 << 20
GIB: Final = 1 << 30
PODS: Final = 110
LOCAL_SSD_BYTES: Final = 375 * GIB

_EVICTION_MEMORY: Final = 100 * MIB
_PODS_MANY: Final = 110
_CPU_FOR_MANY_PODS: Final = 400
_MEMORY_SMALL_MIB: Final = 1000
_MEMORY_KEPT_OF_SMALL: Final = 255
#: (lower bound, reserved amount per 10,000).
_CPU_BRACKETS: Final = ((0, 600), (1000, 100), (2000, 50), (4000, 25))
_MEMORY_BRACKETS: Final = ((0, 2500), (4000, 2000), (8000, 1000), (16000, 600), (128_000, 200))

Resources = dict[str, int]


def capacity(machine: MachineType, systems: NodeSystem, pods: int = PODS) -> Resources:
    """Return the capacity of a node: cpu in millicores, everything else in units."""
    memory = machine.memory_bytes
    has = {
        "cpu": machine.cpu_milli,
        "ephemeral-storage": _disk(machine, systems),
        "memory": max(0, memory - interpolated(systems.reserved_memory, memory)),
        "pods": pods,
    }
    if machine.accelerator is not None:
        has[machine.accelerator.resource] = machine.accelerator.count
    return has


def allocatable(machine: MachineType, systems: NodeSystem, pods: int = PODS) -> Resources:
    """Return the allocatable resources of a node."""
    has = capacity(machine, systems, pods)
    disk = has["ephemeral-storage"]
    kept = {
        "cpu": kept_cpu_milli(machine, pods),
        "ephemeral-storage": _kept_disk(machine, systems) + disk // 10,
        "memory": kept_memory_mib(machine.memory_bytes // MIB) * MIB + _EVICTION_MEMORY,
    }
    return {resource: max(0, amount - kept.get(resource, 0)) for resource, amount in has.items()}


def kept_cpu_milli(machine: MachineType, pods: int = PODS) -> int:
    """Return the cpu that the kubelet reserves; for a shared core also the part that is not sustained."""
    burst = machine.cpu_milli - machine.sustained_cpu_milli
    many = _CPU_FOR_MANY_PODS if pods > _PODS_MANY else 0
    return _by_brackets(machine.sustained_cpu_milli, _CPU_BRACKETS) + burst + many


def kept_memory_mib(memory_mib: int) -> int:
    """Return the memory that the kubelet reserves. The brackets count 1000 MiB as a GB, as in GKE."""
    if memory_mib <= _MEMORY_SMALL_MIB:
        return _MEMORY_KEPT_OF_SMALL if memory_mib > 0 else 0
    return _by_brackets(memory_mib, _MEMORY_BRACKETS)


def interpolated(rows: Sequence[tuple[int, int]], there: int) -> int:
    """Return the reserved part of an amount, interpolated between rows, and extrapolated beyond the last two."""
    upper = next((at for at, row in enumerate(rows) if row[0] >= there), len(rows) - 1)
    (low, kept_low), (high, kept_high) = rows[max(0, upper - 1)], rows[max(1, upper)]
    return kept_low + (there - low) * (kept_high - kept_low) // (high - low)


def _disk(machine: MachineType, systems: NodeSystem) -> int:
    """Return the bytes of ephemeral storage: on local SSDs if the machine has some, else on the boot disk."""
    if machine.local_ssds:
        return machine.local_ssds * LOCAL_SSD_BYTES - systems.local_ssd_overhead.get(machine.local_ssds, 0)
    disk = systems.boot_disk_gib * GIB
    return disk - interpolated(systems.reserved_disk, disk)


def _kept_disk(machine: MachineType, systems: NodeSystem) -> int:
    if machine.local_ssds:
        return {1: 50, 2: 75}.get(machine.local_ssds, 100) * GIB
    disk_gib = systems.boot_disk_gib
    return min(disk_gib // 2, 6 + disk_gib * 35 // 100, 100) * GIB


def _by_brackets(amount: int, brackets: Sequence[tuple[int, int]]) -> int:
    """Return the sum over the brackets: the part of the amount in each, times its rate."""
    ends = [start for start, _ in brackets[1:]]
    kept = 0
    for (start, rate), end in zip(brackets, [*ends, max(amount, ends[-1])], strict=True):
        kept += max(0, min(amount, end) - start) * rate
    return kept // 10_000
