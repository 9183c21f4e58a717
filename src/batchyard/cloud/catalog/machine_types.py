"""Machine catalog: machine types, families and accelerators of the cloud, with the changes of a Cluster.

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
_FRACTIONS: Final = (RESERVED, FLEX_START)
_NOTHING: Final[Mapping[str, Any]] = {}
#: Cache by Cluster name: the last spec and its catalog. Specs rarely change.
_catalogs: "dict[str, tuple[Mapping[str, Any], Catalog]]" = {}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerators of one machine, for example two `nvidia-l4`, requested as `nvidia.com/gpu`."""

    type: str
    count: int
    resource: str


@dataclass(frozen=True, slots=True)
class MachineType:
    """A machine type: resources, accelerators and prices."""

    name: str
    family: str
    cpu_milli: int
    #: The sustained cpu of a shared core; otherwise equal to cpu_milli.
    sustained_cpu_milli: int
    memory_bytes: int
    accelerator: Accelerator | None
    #: The chip topology of one machine that is a whole slice; None except for TPUs.
    topology: str | None
    #: Local SSDs that come with it and hold ephemeral storage.
    local_ssds: int
    #: Hourly prices by billing model.
    prices: "Prices"
    #: Whether auto-provisioning may use it for pods that do not name it.
    is_made_unasked: bool = True


class Prices(NamedTuple):
    """Hourly prices by billing model."""

    on_demand: MicroDollars
    spot: MicroDollars
    reserved: MicroDollars
    flex_start: MicroDollars

    def plus(self, other: "Prices", times: int) -> "Prices":
        """Return these prices plus `times` times the others."""
        return Prices(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class MachineFamily(NamedTuple):
    """Common properties of a machine family."""

    #: Size of a compact placement group; 0: not supported.
    placement_max: int
    times: Mapping[str, Any]


class AttachableAccelerator(NamedTuple):
    """An accelerator that can be attached: the families, and the prices of one."""

    families: tuple[str, ...]
    prices: Prices


class NodeSystem(NamedTuple):
    """Node software, and the resources that it reserves."""

    version: str
    os_image: str
    kernel_version: str
    container_runtime: str
    boot_disk: str
    boot_disk_gib: int
    #: Rows of (total bytes, reserved bytes).
    reserved_memory: tuple[tuple[int, int], ...]
    reserved_disk: tuple[tuple[int, int], ...]
    #: Bytes of file system overhead, by number of local SSDs.
    local_ssd_overhead: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Machine types, families, accelerators, step durations and node software."""

    machines: Mapping[str, MachineType]
    families: Mapping[str, MachineFamily]
    attachable: Mapping[str, AttachableAccelerator]
    times: Mapping[str, Any]
    systems: NodeSystem

    def machine(self, name: str) -> MachineType:
        """Return a machine type by name; an unknown one has no resources and no price."""
        return self.machines.get(name) or MachineType(name, "", 0, 0, 0, None, None, 0, Prices(0, 0, 0, 0))

    def family(self, machine: MachineType) -> MachineFamily:
        """Return the family of a machine type; an unknown one has default properties."""
        return self.families.get(machine.family, MachineFamily(0, _NOTHING))

    def can_attach(self, machine: MachineType, accelerator: str) -> bool:
        """Whether an accelerator can be attached to a machine type."""
        found = self.attachable.get(accelerator)
        return found is not None and machine.family in found.families and machine.accelerator is None


def catalog_of(cluster: Obj) -> Catalog:
    """Return the catalog with the additions and changes of a Cluster."""
    spec = cluster.get("spec") or _NOTHING
    added, prices = spec.get("catalog") or _NOTHING, spec.get("prices") or _NOTHING
    if not added and not prices:
        return builtin_catalog()
    name = cluster["metadata"]["name"]
    known = _catalogs.get(name)
    if known is None or known[0] is not spec:
        known = _catalogs[name] = (spec, _changed_catalog(added, prices))
    return known[1]


def _changed_catalog(added: Mapping[str, Any], prices: Mapping[str, Any]) -> Catalog:
    catalog = builtin_catalog()
    fractions = _builtin_rows()["fractions"]
    machines, attachable = dict(catalog.machines), dict(catalog.attachable)
    for name, row in added.items():
        known = machines.get(name)
        machine = _machine(name, row, fractions)
        machines[name] = machine if known is None else replace(machine, prices=_changed(known.prices, row, fractions))
    for name, row in prices.items():
        if name in machines:
            machines[name] = replace(machines[name], prices=_changed(machines[name].prices, row, fractions))
        if name in attachable:
            families, known_prices = attachable[name]
            attachable[name] = AttachableAccelerator(families, _changed(known_prices, row, fractions))
    return replace(catalog, machines=machines, attachable=attachable)


@cache
def builtin_catalog() -> Catalog:
    """Return the catalog of `catalog.yaml`."""
    rows = _builtin_rows()
    fractions = rows["fractions"]
    listed = {name: _machine(name, row, fractions) for name, row in rows["machines"].items()}
    return Catalog(
        machines={**{each.name: each for each in _shaped_machines(rows["shaped"], fractions)}, **listed},
        families={
            name: MachineFamily(row.get("placementMax", 0), row.get("times", _NOTHING))
            for name, row in rows["families"].items()
        },
        attachable={
            name: AttachableAccelerator(tuple(row["families"]), _prices(row, fractions))
            for name, row in rows["attachable"].items()
        },
        times=rows["times"],
        systems=_systems(rows["node"]),
    )


@cache
def _builtin_rows() -> Mapping[str, Any]:
    content = pkgutil.get_data("batchyard.cloud.catalog", "catalog.yaml")
    assert content is not None, "the catalog is part of the package"
    rows: Mapping[str, Any] = yaml.load(content, Loader=yaml.CSafeLoader)
    return rows


def _systems(row: Mapping[str, Any]) -> NodeSystem:
    return NodeSystem(
        version=row["version"],
        os_image=row["osImage"],
        kernel_version=row["kernelVersion"],
        container_runtime=row["containerRuntime"],
        boot_disk=row["bootDisk"],
        boot_disk_gib=row["bootDiskGiB"],
        reserved_memory=tuple((there, kept) for there, kept in row["reservedMemory"]),
        reserved_disk=tuple((there, kept) for there, kept in row["reservedDisk"]),
        local_ssd_overhead={disks: kib * 1024 for disks, kib in row["localSsdOverheadKiB"].items()},
    )


def _machine(name: str, row: Mapping[str, Any], fractions: Mapping[str, Any]) -> MachineType:
    cpu = meta.amount("cpu", row["cpu"])
    return MachineType(
        name=name,
        family=row.get("family") or name.partition("-")[0],
        cpu_milli=cpu,
        sustained_cpu_milli=meta.amount("cpu", row["sustainedCpu"]) if "sustainedCpu" in row else cpu,
        memory_bytes=meta.amount("memory", row["memory"]),
        accelerator=accelerator_from(row["accelerator"]) if row.get("accelerator") else None,
        topology=row.get("topology"),
        local_ssds=row.get("localSsds", 0),
        prices=_prices(row, fractions),
    )


def _shaped_machines(rows: Mapping[str, Any], fractions: Mapping[str, Any]) -> Iterator[MachineType]:
    """Yield the machine types of families with a constant price per cpu and GiB."""
    for family, row in rows.items():
        of_cpu, of_gib = _micro(row["price"]["cpu"]), _micro(row["price"]["memory"])
        for shape, sizes in row["shapes"].items():
            each = meta.amount("memory", sizes["memory"])
            for cpus in sizes["cpus"]:
                on_demand, memory = cpus * of_cpu + cpus * each * of_gib // _GIB, cpus * each
                reserved, flex_start = (on_demand * meta.parse(fractions[way]) // meta.NANO for way in _FRACTIONS)
                spot = on_demand * meta.parse(row["price"]["spot"]) // meta.NANO
                prices = Prices(on_demand, spot, reserved, flex_start)
                name, milli = f"{family}-{shape}-{cpus}", cpus * 1000
                yield MachineType(name, family, milli, milli, memory, None, None, 0, prices, is_made_unasked=False)


def accelerator_from(row: Mapping[str, Any]) -> Accelerator:
    """Return the accelerators of an object's row: type, count, and the resource if it is not the default."""
    usual = well_known.TPU if row["type"].startswith("tpu") else well_known.GPU
    return Accelerator(row["type"], row["count"], row.get("resource") or usual)


def _prices(row: Mapping[str, Any], fractions: Mapping[str, Any]) -> Prices:
    """Return the prices of a row; missing ones are zero."""
    return _changed(Prices(0, 0, 0, 0), row, fractions)


def _changed(prices: Prices, row: Mapping[str, Any], fractions: Mapping[str, Any]) -> Prices:
    """Return the prices updated by a row; a new on-demand price also changes the prices derived from it."""
    on_demand, spot, reserved, flex_start = prices
    if ON_DEMAND in row:
        on_demand = _micro(row[ON_DEMAND])
        reserved, flex_start = (on_demand * meta.parse(fractions[way]) // meta.NANO for way in _FRACTIONS)
    return Prices(
        on_demand,
        _micro(row[SPOT]) if SPOT in row else spot,
        _micro(row[RESERVED]) if RESERVED in row else reserved,
        _micro(row[FLEX_START]) if FLEX_START in row else flex_start,
    )


def _micro(dollars: str | int | float) -> MicroDollars:
    return meta.parse(dollars) // 1000
