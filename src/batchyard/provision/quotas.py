"""Compute Engine quotas that a platform needs with its maximum number of machines, by metric.

Spot machines and those of the Dynamic Workload Scheduler (flex-start, queued) count against preemptible quotas,
reserved machines against the others. Accelerator families without a CPU quota here are limited by their accelerator
quota. CPUs of other families that are not listed count against a per-family quota. Sources: the metrics of the API's
Region resource, and the documents of Compute Engine on allocation quotas, of Cloud TPU on its quotas, and of GKE on
flex-start.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.provision.machine_supply import Supply, supplies
from batchyard.provision.model import PlatformModel
from batchyard.provision.terraform.pools import HYPERDISK, needs_hyperdisk

GLOBAL: Final = "global"
_GPUS: Final[Mapping[str, str]] = {
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
_TPUS: Final[Mapping[str, tuple[str, str]]] = {
    "tpu-v5-lite-podslice": ("TPU_LITE_PODSLICE_V5", "PREEMPTIBLE_TPU_LITE_PODSLICE_V5"),
    "tpu-v5p-slice": ("TPUS_PER_TPU_FAMILY (CT5P)", "PREEMPTIBLE_TPU_V5P"),
    "tpu-v6e-slice": ("TPUS_PER_TPU_FAMILY (CT6E)", "PREEMPTIBLE_TPU_V6E"),
}
_CPUS: Final[Mapping[str, str]] = {
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
_PREEMPTIBLE: Final = frozenset({"spot", "flex-start", "queued"})
#: Metrics of disk capacity by disk type.
_DISKS: Final[Mapping[str, str]] = {
    "pd-standard": "DISKS_TOTAL_GB",
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
    HYPERDISK: "HDB_TOTAL_GB",
}


class ComputeQuota(NamedTuple):
    """The needed amount of a quota, and its users."""

    region: str
    metric: str
    needed: int
    #: Names of pools.
    used_by: Sequence[str]


def quotas(platform: PlatformModel) -> Sequence[ComputeQuota]:
    """Return the needed quotas, sorted; empty if the cluster is not on Google Cloud."""
    if platform.google is None:
        return []
    needed: dict[tuple[str, str], dict[str, int]] = {}
    for supply in supplies(platform):
        if supply.most:
            for region, metric, each in _needs(supply, platform):
                needed.setdefault((region, metric), {})[supply.name] = each * supply.most
    rows = [ComputeQuota(region, metric, sum(by.values()), list(by)) for (region, metric), by in needed.items()]
    return sorted(rows, key=lambda row: (row.region == GLOBAL, row.region, row.metric))


def _needs(supply: Supply, platform: PlatformModel) -> Iterator[tuple[str, str, int]]:
    """Yield the region, metric and amount that one machine needs."""
    machine, preemptible, region = supply.machine, supply.provisioning in _PREEMPTIBLE, platform.region
    accelerator = machine.accelerator
    if accelerator is not None and accelerator.resource == well_known.GPU:
        metric = _GPUS.get(accelerator.type, "")
        if metric:
            yield region, f"PREEMPTIBLE_{metric}" if preemptible else metric, accelerator.count
        yield GLOBAL, "GPUS_ALL_REGIONS", accelerator.count
    if accelerator is not None and accelerator.type in _TPUS:
        yield region, _TPUS[accelerator.type][preemptible], accelerator.count
    if machine.family in _CPUS or accelerator is None:
        metric = _CPUS.get(machine.family, f"CPUS_PER_VM_FAMILY ({machine.family.upper()})")
        yield region, "PREEMPTIBLE_CPUS" if preemptible else metric, machine.cpu_milli // 1000
    google = platform.google
    assert google is not None
    disk_type = HYPERDISK if needs_hyperdisk(machine) else google.disk_type
    yield region, _DISKS[disk_type], google.disk_size_gb
    yield region, "INSTANCES", 1
