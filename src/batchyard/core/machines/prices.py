"""What an hour of a machine costs, in millionths of a dollar: exact, so that a ledger adds up to the cent."""

from batchyard.api.meta import Obj
from batchyard.core.machines.catalog import MachineType, MicroDollars, catalog_of
from batchyard.core.machines.pools import machine_of


def hourly_price(machine: MachineType, provisioning: str, *, reserved: bool = False) -> MicroDollars:
    """An hour of a machine by its way of provisioning; one that a reservation provides is paid as reserved."""
    prices = machine.prices
    if reserved:
        return prices.reserved
    if provisioning == "spot":
        return prices.spot
    return prices.flex_start if provisioning in {"flex-start", "queued"} else prices.on_demand


def pool_price(pool: Obj, cluster: Obj) -> MicroDollars:
    """An hour of one machine of a pool, with the accelerators it is given and the prices of its Cluster."""
    spec = pool["spec"]
    machine = machine_of(pool, catalog_of(cluster))
    return hourly_price(machine, spec.get("provisioning", "standard"), reserved=bool(spec.get("reservation")))
