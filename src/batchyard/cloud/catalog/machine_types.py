"""The catalogue: machine types, their families and accelerators, as the cloud has them and as a Cluster changes them.

The figures are in `catalog.yaml` beside this module. Amounts are whole numbers: cpu in thousandths, memory in bytes,
prices in millionths of a dollar per hour.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

import yaml

from batchyard.api import quantity, well_known
from batchyard.api.meta import Obj

MicroDollars = int

ON_DEMAND: Final = "onDemand"
SPOT: Final = "spot"
RESERVED: Final = "reserved"
FLEX_START: Final = "flexStart"

_GIB: Final = 1 << 30
_FRACTIONS: Final = (RESERVED, FLEX_START)
_NOTHING: Final[Mapping[str, Any]] = {}
#: By name of the Cluster, the last spec seen and its catalogue: asked many times, changed hardly ever.
_catalogs: "dict[str, tuple[Mapping[str, Any], Catalog]]" = {}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerators of one machine: `nvidia-l4`, two, which pods ask for as `nvidia.com/gpu`."""

    type: str
    count: int
    resource: str


@dataclass(frozen=True, slots=True)
class MachineType:
    """One type of machine."""

    name: str
    family: str
    cpu_milli: int
    #: What a shared core gives in the long run; elsewhere the same as cpu_milli.
    sustained_cpu_milli: int
    memory_bytes: int
    accelerator: Accelerator | None
    #: How the chips of one machine lie when it is a whole slice; None for all but TPUs.
    topology: str | None
    #: Local SSDs that come with it and hold the files of its pods.
    local_ssds: int
    #: By way of paying: per hour.
    prices: "Prices"
    #: Whether auto-provisioning makes pools of it that are not asked for by its name.
    is_made_unasked: bool = True


class Prices(NamedTuple):
    """What an hour costs, by way of paying."""

    on_demand: MicroDollars
    spot: MicroDollars
    reserved: MicroDollars
    flex_start: MicroDollars

    def plus(self, other: "Prices", times: int) -> "Prices":
        """These prices, and so many times the others."""
        return Prices(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class Family(NamedTuple):
    """What the machines of a family have in common."""

    #: How many of them one compact placement group holds; 0: they have no compact placement.
    placement_max: int
    times: Mapping[str, Any]


class Attachable(NamedTuple):
    """An accelerator that machines can be given: to which families, and the prices of one."""

    families: tuple[str, ...]
    prices: Prices


class Systems(NamedTuple):
    """What runs on every node beside pods, and what it keeps for itself."""

    version: str
    os_image: str
    kernel_version: str
    container_runtime: str
    boot_disk: str
    boot_disk_gib: int
    #: Rows of (bytes there are, bytes kept).
    reserved_memory: tuple[tuple[int, int], ...]
    reserved_disk: tuple[tuple[int, int], ...]
    #: Bytes that the file system takes, by number of local SSDs.
    local_ssd_overhead: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Catalog:
    """All there is."""

    machines: Mapping[str, MachineType]
    families: Mapping[str, Family]
    attachable: Mapping[str, Attachable]
    times: Mapping[str, Any]
    systems: Systems

    def machine(self, name: str) -> MachineType:
        """A machine type by name; one nobody knows has nothing and costs nothing."""
        return self.machines.get(name) or MachineType(name, "", 0, 0, 0, None, None, 0, Prices(0, 0, 0, 0))

    def family(self, machine: MachineType) -> Family:
        """The family of a machine type; one of a family nobody described has nothing special."""
        return self.families.get(machine.family, Family(0, _NOTHING))

    def can_attach(self, machine: MachineType, accelerator: str) -> bool:
        """Whether a machine type can be given an accelerator."""
        found = self.attachable.get(accelerator)
        return found is not None and machine.family in found.families and machine.accelerator is None


def catalog_of(cluster: Obj) -> Catalog:
    """The catalogue with what a Cluster adds and changes."""
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
            attachable[name] = Attachable(families, _changed(known_prices, row, fractions))
    return replace(catalog, machines=machines, attachable=attachable)


@cache
def builtin_catalog() -> Catalog:
    """The catalogue as it is written."""
    rows = _builtin_rows()
    fractions = rows["fractions"]
    listed = {name: _machine(name, row, fractions) for name, row in rows["machines"].items()}
    return Catalog(
        machines={**{each.name: each for each in _shaped_machines(rows["shaped"], fractions)}, **listed},
        families={
            name: Family(row.get("placementMax", 0), row.get("times", _NOTHING))
            for name, row in rows["families"].items()
        },
        attachable={
            name: Attachable(tuple(row["families"]), _prices(row, fractions))
            for name, row in rows["attachable"].items()
        },
        times=rows["times"],
        systems=_systems(rows["node"]),
    )


@cache
def _builtin_rows() -> Mapping[str, Any]:
    content = pkgutil.get_data("batchyard.cloud.catalog", "catalog.yaml")
    assert content is not None, "the catalogue is part of the package"
    rows: Mapping[str, Any] = yaml.load(content, Loader=yaml.CSafeLoader)
    return rows


def _systems(row: Mapping[str, Any]) -> Systems:
    return Systems(
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
    cpu = quantity.amount("cpu", row["cpu"])
    return MachineType(
        name=name,
        family=row.get("family") or name.partition("-")[0],
        cpu_milli=cpu,
        sustained_cpu_milli=quantity.amount("cpu", row["sustainedCpu"]) if "sustainedCpu" in row else cpu,
        memory_bytes=quantity.amount("memory", row["memory"]),
        accelerator=accelerator_from(row["accelerator"]) if row.get("accelerator") else None,
        topology=row.get("topology"),
        local_ssds=row.get("localSsds", 0),
        prices=_prices(row, fractions),
    )


def _shaped_machines(rows: Mapping[str, Any], fractions: Mapping[str, Any]) -> Iterator[MachineType]:
    """The machines of families of which a cpu, and a GiB, cost the same in all sizes."""
    for family, row in rows.items():
        of_cpu, of_gib = _micro(row["price"]["cpu"]), _micro(row["price"]["memory"])
        for shape, sizes in row["shapes"].items():
            each = quantity.amount("memory", sizes["memory"])
            for cpus in sizes["cpus"]:
                on_demand, memory = cpus * of_cpu + cpus * each * of_gib // _GIB, cpus * each
                reserved, flex_start = (
                    on_demand * quantity.parse(fractions[way]) // quantity.NANO for way in _FRACTIONS
                )
                spot = on_demand * quantity.parse(row["price"]["spot"]) // quantity.NANO
                prices = Prices(on_demand, spot, reserved, flex_start)
                name, milli = f"{family}-{shape}-{cpus}", cpus * 1000
                yield MachineType(name, family, milli, milli, memory, None, None, 0, prices, is_made_unasked=False)


def accelerator_from(row: Mapping[str, Any]) -> Accelerator:
    """The accelerators that an object names: type, count, and the resource where it is not the type's usual one."""
    usual = well_known.TPU if row["type"].startswith("tpu") else well_known.GPU
    return Accelerator(row["type"], row["count"], row.get("resource") or usual)


def _prices(row: Mapping[str, Any], fractions: Mapping[str, Any]) -> Prices:
    """The prices of a row; a machine nobody priced is free."""
    return _changed(Prices(0, 0, 0, 0), row, fractions)


def _changed(prices: Prices, row: Mapping[str, Any], fractions: Mapping[str, Any]) -> Prices:
    """The prices with those of a row; a new price on demand brings new ones for what is a part of it."""
    on_demand, spot, reserved, flex_start = prices
    if ON_DEMAND in row:
        on_demand = _micro(row[ON_DEMAND])
        reserved, flex_start = (on_demand * quantity.parse(fractions[way]) // quantity.NANO for way in _FRACTIONS)
    return Prices(
        on_demand,
        _micro(row[SPOT]) if SPOT in row else spot,
        _micro(row[RESERVED]) if RESERVED in row else reserved,
        _micro(row[FLEX_START]) if FLEX_START in row else flex_start,
    )


def _micro(dollars: str | int | float) -> MicroDollars:
    return quantity.parse(dollars) // 1000
