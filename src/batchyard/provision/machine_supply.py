"""Minimum and maximum number of machines of a platform, and their hourly price.

Pools that scale have their lower and upper bounds. Auto-provisioned machines are estimated from the quotas of flavors
that name an accelerator but no pool, within the limits of auto-provisioning, on the cheapest machines with one of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.api import quantity, well_known
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, MicroDollars, catalog_of
from batchyard.cloud.catalog.pools import machine_of, zones_of
from batchyard.cloud.catalog.prices import hourly_price, pool_price
from batchyard.provision.model import Part, PlatformFlavor, PlatformModel

#: Name prefix of auto-provisioned machines.
AUTO_PROVISIONED: Final = "auto-provisioned"
_RESOURCES: Final[Mapping[str, str]] = {
    well_known.ACCELERATOR: well_known.GPU,
    well_known.TPU_ACCELERATOR: well_known.TPU,
}


@dataclass(frozen=True, slots=True)
class Supply:
    """Machines of one type and provisioning model."""

    name: str
    machine: MachineType
    #: standard, spot, flex-start or queued.
    provisioning: str
    reserved: bool
    least: int
    most: int
    #: Hourly price of one machine.
    price: MicroDollars

    @property
    def idle(self) -> MicroDollars:
        """Hourly price with the minimum number of machines."""
        return self.least * self.price

    @property
    def full(self) -> MicroDollars:
        """Hourly price with the maximum number of machines."""
        return self.most * self.price


def supplies(platform: PlatformModel) -> Sequence[Supply]:
    """Return the pools in order, then the auto-provisioned machines; empty without a cluster."""
    cluster = platform.cluster
    if cluster is None:
        return []
    catalog = catalog_of(cluster)
    pools = [_of_pool(row, cluster, catalog) for row in platform.node_pools]
    return [*pools, *_auto_provisioned(platform, catalog)]


def _of_pool(row: Part, cluster: Part, catalog: Catalog) -> Supply:
    pool = {"metadata": {"name": row["name"]}, "spec": row}
    least, most = pool_bounds(pool, cluster)
    return Supply(
        name=row["name"],
        machine=machine_of(pool, catalog),
        provisioning=row.get("provisioning", "standard"),
        reserved=bool(row.get("reservation")),
        least=least,
        most=most,
        price=pool_price(pool, cluster),
    )


def pool_bounds(pool: Part, cluster: Part) -> tuple[int, int]:
    """Return the minimum and maximum number of machines."""
    spec, zones = pool["spec"], len(zones_of(pool, cluster))
    bounds = spec.get("autoscaling")
    if bounds is None:
        count = zones * spec.get("nodeCount", 0)
        return count, count
    if "totalMax" in bounds:
        return bounds.get("totalMin", 0), bounds["totalMax"]
    return zones * bounds.get("min", 0), zones * bounds.get("max", 0)


# --- auto-provisioned ---


def _auto_provisioned(platform: PlatformModel, catalog: Catalog) -> Iterator[Supply]:
    """Yield for each accelerator and provisioning model as many machines as its flavors have quota for."""
    limits = _limits(platform)
    wanted: dict[tuple[str, str], int] = {}
    for flavor in platform.flavors:
        accelerator = _accelerator(flavor)
        if flavor.pools or accelerator is None or accelerator not in limits:
            continue
        terms = flavor.node_labels.get(well_known.PROVISIONING, "standard")
        wanted[accelerator, terms] = wanted.get((accelerator, terms), 0) + _quota(flavor, platform)
    for (accelerator, terms), count in wanted.items():
        machine = _cheapest(accelerator, terms, catalog)
        if machine is not None and machine.accelerator is not None and count:
            most = -(-min(count, limits[accelerator]) // machine.accelerator.count)
            price = hourly_price(machine, terms)
            yield Supply(f"{AUTO_PROVISIONED}-{accelerator}", machine, terms, False, 0, most, price)


def _limits(platform: PlatformModel) -> Mapping[str, int]:
    assert platform.cluster is not None
    scaling = platform.cluster["spec"].get("autoscaling") or {}
    rows = (scaling.get("autoProvisioning") or {}).get("limits") or ()
    return {row["resource"]: row["max"] for row in rows}


def _accelerator(flavor: PlatformFlavor) -> str | None:
    return next((flavor.node_labels[key] for key in _RESOURCES if key in flavor.node_labels), None)


def _quota(flavor: PlatformFlavor, platform: PlatformModel) -> int:
    """Return the nominal quota of a flavor's accelerators over all queues and cohorts."""
    resource = next(_RESOURCES[key] for key in _RESOURCES if key in flavor.node_labels)
    rows = [row for queue in platform.queues for row in queue.flavors] + [
        row for cohort in platform.cohorts for row in cohort.flavors
    ]
    quotas = [row.resources[resource] for row in rows if row.name == flavor.name and resource in row.resources]
    return sum(quantity.amount(resource, quota["nominalQuota"]) for quota in quotas)


def _cheapest(accelerator: str, provisioning: str, catalog: Catalog) -> MachineType | None:
    """Return the cheapest machine type with the smallest count of an accelerator; None if no type has it."""
    having = [
        machine
        for machine in catalog.machines.values()
        if machine.accelerator is not None and machine.accelerator.type == accelerator
    ]
    return min(
        having,
        key=lambda m: (m.accelerator.count if m.accelerator else 0, hourly_price(m, provisioning), m.name),
        default=None,
    )
