"""Machine catalog: machine types, families and accelerators of the cloud, with the changes that a Cluster makes.

The data is in `catalog.yaml` beside this module. Amounts are integers: cpu in millicores, memory in bytes, prices in
micro-dollars per hour.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

import yaml

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj

MicroDollars = int

ON_DEMAND: Final = "onDemand"
SPOT: Final = "spot"
RESERVED: Final = "reserved"
FLEX_START: Final = "flexStart"

_GIB: Final = 1 << 30
_DERIVED_MODELS: Final = (RESERVED, FLEX_START)
_EMPTY_MAPPING: Final[Mapping[str, Any]] = {}
#: Cache by Cluster name: the last spec and its catalog. Specs rarely change.
_catalog_cache: "dict[str, tuple[Mapping[str, Any], Catalog]]" = {}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerators of one machine: type, count and resource name, such as 2 `nvidia-l4` as `nvidia.com/gpu`."""

    type: str
    count: int
    resource: str


@dataclass(frozen=True, slots=True)
class MachineType:
    """A cloud machine type such as `n2-standard-4`: CPU, memory, accelerators and hourly prices."""

    name: str
    family: str
    cpu_milli: int
    #: The sustained CPU of a shared-core machine type; otherwise equal to cpu_milli.
    sustained_cpu_milli: int
    memory_bytes: int
    accelerator: Accelerator | None
    #: The chip topology of one machine that is a whole slice; None except for TPUs.
    topology: str | None
    #: The number of built-in local SSDs, which hold ephemeral storage.
    local_ssds: int
    #: Hourly prices by billing model.
    prices: "Prices"
    #: Whether auto-provisioning may choose this type for pods that do not name it.
    is_auto_provisionable: bool = True


class Prices(NamedTuple):
    """Hourly prices in micro-dollars by billing model: on demand, spot, reserved and flex-start."""

    on_demand: MicroDollars
    spot: MicroDollars
    reserved: MicroDollars
    flex_start: MicroDollars

    def plus(self, other_prices: "Prices", factor: int) -> "Prices":
        """Return the sum of these prices and `factor` times the other prices."""
        return Prices(
            *(own_price + factor * other_price for own_price, other_price in zip(self, other_prices, strict=True))
        )


class MachineFamily(NamedTuple):
    """The properties of a machine family such as `n2`: compact placement limit and durations of machine steps."""

    #: Size of a compact placement group; 0: not supported.
    placement_max: int
    times: Mapping[str, Any]
    #: The machines of a sub-block, and the sub-blocks of a block; 0: nodes have no labels for them.
    sub_block_machines: int = 0
    block_sub_blocks: int = 0
    #: Whether each sub-block is an NVLink domain.
    has_nvlink_domains: bool = False


class AttachableAccelerator(NamedTuple):
    """An accelerator type that machines can attach: the machine families that can do so, and its prices."""

    families: tuple[str, ...]
    prices: Prices


class NodeSystem(NamedTuple):
    """The software of all nodes (versions, OS image), their boot disk, and the memory and disk that are reserved."""

    version: str
    os_image: str
    kernel_version: str
    container_runtime: str
    boot_disk: str
    boot_disk_gib: int
    #: Measured pairs of total and reserved bytes.
    reserved_memory: tuple[tuple[int, int], ...]
    reserved_disk: tuple[tuple[int, int], ...]
    #: The file system overhead in bytes, by number of local SSDs.
    local_ssd_overhead: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Catalog:
    """All machine types, families and attachable accelerators, the durations of machine steps, and node software."""

    machines: Mapping[str, MachineType]
    families: Mapping[str, MachineFamily]
    attachable: Mapping[str, AttachableAccelerator]
    times: Mapping[str, Any]
    node_system: NodeSystem

    def machine(self, name: str) -> MachineType:
        """Return a machine type by name; for an unknown name, one without resources and price."""
        return self.machines.get(name) or MachineType(name, "", 0, 0, 0, None, None, 0, Prices(0, 0, 0, 0))

    def family(self, machine: MachineType) -> MachineFamily:
        """Return the family of a machine type; for an unknown family, one with default properties."""
        return self.families.get(machine.family, MachineFamily(0, _EMPTY_MAPPING))

    def can_attach(self, machine: MachineType, accelerator: str) -> bool:
        """Return whether machines of a type can attach an accelerator of this type."""
        attachable_accelerator = self.attachable.get(accelerator)
        return (
            attachable_accelerator is not None
            and machine.family in attachable_accelerator.families
            and machine.accelerator is None
        )


def catalog_of(cluster: Obj) -> Catalog:
    """Return the cloud's catalog with the Cluster's own machine types and prices."""
    spec = cluster.get("spec") or _EMPTY_MAPPING
    added_machines, price_rows = spec.get("catalog") or _EMPTY_MAPPING, spec.get("prices") or _EMPTY_MAPPING
    if not added_machines and not price_rows:
        return builtin_catalog()
    name = cluster["metadata"]["name"]
    cache_entry = _catalog_cache.get(name)
    if cache_entry is None or cache_entry[0] is not spec:
        cache_entry = _catalog_cache[name] = (spec, _customized_catalog(added_machines, price_rows))
    return cache_entry[1]


def _customized_catalog(added_machines: Mapping[str, Any], price_rows: Mapping[str, Any]) -> Catalog:
    catalog = builtin_catalog()
    price_fractions = _load_builtin_catalog()["fractions"]
    machines, attachable = dict(catalog.machines), dict(catalog.attachable)
    for name, row in added_machines.items():
        known_machine = machines.get(name)
        machine = _machine_type(name, row, price_fractions)
        machines[name] = (
            machine
            if known_machine is None
            else replace(machine, prices=_update_prices(known_machine.prices, row, price_fractions))
        )
    for name, row in price_rows.items():
        if name in machines:
            machines[name] = replace(machines[name], prices=_update_prices(machines[name].prices, row, price_fractions))
        if name in attachable:
            families, known_prices = attachable[name]
            attachable[name] = AttachableAccelerator(families, _update_prices(known_prices, row, price_fractions))
    return replace(catalog, machines=machines, attachable=attachable)


@cache
def builtin_catalog() -> Catalog:
    """Return the cloud's catalog as `catalog.yaml` defines it."""
    rows = _load_builtin_catalog()
    price_fractions = rows["fractions"]
    named_machines = {name: _machine_type(name, row, price_fractions) for name, row in rows["machines"].items()}
    return Catalog(
        machines={**{each.name: each for each in _shaped_machines(rows["shaped"], price_fractions)}, **named_machines},
        families={
            name: MachineFamily(
                row.get("placementMax", 0),
                row.get("times", _EMPTY_MAPPING),
                row.get("subBlockMachines", 0),
                row.get("blockSubBlocks", 0),
                row.get("nvlinkDomains", False),
            )
            for name, row in rows["families"].items()
        },
        attachable={
            name: AttachableAccelerator(tuple(row["families"]), _parse_prices(row, price_fractions))
            for name, row in rows["attachable"].items()
        },
        times=rows["times"],
        node_system=_node_system(rows["node"]),
    )


@cache
def _load_builtin_catalog() -> Mapping[str, Any]:
    catalog_yaml = pkgutil.get_data("batchyard.cloud.catalog", "catalog.yaml")
    assert catalog_yaml is not None, "catalog.yaml is missing from the installed package"
    rows_by_section: Mapping[str, Any] = yaml.load(catalog_yaml, Loader=yaml.CSafeLoader)
    return rows_by_section


def _node_system(row: Mapping[str, Any]) -> NodeSystem:
    return NodeSystem(
        version=row["version"],
        os_image=row["osImage"],
        kernel_version=row["kernelVersion"],
        container_runtime=row["containerRuntime"],
        boot_disk=row["bootDisk"],
        boot_disk_gib=row["bootDiskGiB"],
        reserved_memory=tuple((total, reserved_amount) for total, reserved_amount in row["reservedMemory"]),
        reserved_disk=tuple((total, reserved_amount) for total, reserved_amount in row["reservedDisk"]),
        local_ssd_overhead={disks: kib * 1024 for disks, kib in row["localSsdOverheadKiB"].items()},
    )


def _machine_type(name: str, row: Mapping[str, Any], price_fractions: Mapping[str, Any]) -> MachineType:
    cpu = meta.amount("cpu", row["cpu"])
    return MachineType(
        name=name,
        family=row.get("family") or name.partition("-")[0],
        cpu_milli=cpu,
        sustained_cpu_milli=meta.amount("cpu", row["sustainedCpu"]) if "sustainedCpu" in row else cpu,
        memory_bytes=meta.amount("memory", row["memory"]),
        accelerator=parse_accelerator(row["accelerator"]) if row.get("accelerator") else None,
        topology=row.get("topology"),
        local_ssds=row.get("localSsds", 0),
        prices=_parse_prices(row, price_fractions),
    )


def _shaped_machines(family_rows: Mapping[str, Any], price_fractions: Mapping[str, Any]) -> Iterator[MachineType]:
    """Yield the machine types of families that are priced per CPU and GiB, such as `n2-standard-4` for 4 CPUs."""
    for family, row in family_rows.items():
        cpu_price, gib_price = _to_micro_dollars(row["price"]["cpu"]), _to_micro_dollars(row["price"]["memory"])
        for shape, sizes in row["shapes"].items():
            memory_per_cpu = meta.amount("memory", sizes["memory"])
            for cpus in sizes["cpus"]:
                on_demand, memory = cpus * cpu_price + cpus * memory_per_cpu * gib_price // _GIB, cpus * memory_per_cpu
                reserved_price, flex_start_price = (
                    on_demand * meta.parse_quantity(price_fractions[billing_model]) // meta.NANO
                    for billing_model in _DERIVED_MODELS
                )
                spot_price = on_demand * meta.parse_quantity(row["price"]["spot"]) // meta.NANO
                prices = Prices(on_demand, spot_price, reserved_price, flex_start_price)
                name, cpu = f"{family}-{shape}-{cpus}", cpus * 1000
                yield MachineType(name, family, cpu, cpu, memory, None, None, 0, prices, is_auto_provisionable=False)


def parse_accelerator(row: Mapping[str, Any]) -> Accelerator:
    """Parse the `accelerator` mapping of a machine type or node pool: type, count, and optionally extended resource."""
    default_resource = well_known.TPU if row["type"].startswith("tpu") else well_known.GPU
    return Accelerator(row["type"], row["count"], row.get("resource") or default_resource)


def _parse_prices(row: Mapping[str, Any], price_fractions: Mapping[str, Any]) -> Prices:
    return _update_prices(Prices(0, 0, 0, 0), row, price_fractions)


def _update_prices(old_prices: Prices, row: Mapping[str, Any], fractions: Mapping[str, Any]) -> Prices:
    """Return prices updated from a catalog row. A new on-demand price also sets the reserved and flex-start prices."""
    on_demand, spot_price, reserved_price, flex_start_price = old_prices
    if ON_DEMAND in row:
        on_demand = _to_micro_dollars(row[ON_DEMAND])
        reserved_price, flex_start_price = (
            on_demand * meta.parse_quantity(fractions[billing_model]) // meta.NANO for billing_model in _DERIVED_MODELS
        )
    return Prices(
        on_demand,
        _to_micro_dollars(row[SPOT]) if SPOT in row else spot_price,
        _to_micro_dollars(row[RESERVED]) if RESERVED in row else reserved_price,
        _to_micro_dollars(row[FLEX_START]) if FLEX_START in row else flex_start_price,
    )


def _to_micro_dollars(dollars: str | int | float) -> MicroDollars:
    return meta.parse_quantity(dollars) // 1000
