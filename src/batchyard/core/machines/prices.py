"""What an hour of a machine costs, in millionths of a dollar: exact, so that a ledger adds up to the cent."""

from collections.abc import Callable
from typing import Final, NamedTuple

from batchyard.api import quantity, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, label
from batchyard.core.machines.catalog import MachineType, MicroDollars, builtin_catalog, catalog_of
from batchyard.core.machines.pools import machine_of

#: The pool of Nodes that name none.
NO_POOL: Final = "nodes"
_DEVICES: Final = (well_known.GPU, well_known.TPU)


class Rate(NamedTuple):
    """What an hour of a machine costs, and by which name pods ask for its accelerators; '' if it has none."""

    pool: str
    provisioning: str
    price: MicroDollars
    device: str


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


def instance_rate(instance: Obj, get: Callable[[Key], Obj | None], cluster: Obj | None) -> Rate:
    """What an Instance costs, as its pool and the Cluster have it; nothing without both."""
    spec = instance["spec"]
    pool, provisioning = spec["pool"], spec.get("provisioning", "standard")
    found = get(Key(scheme.NODE_POOL, "", pool))
    if found is None or cluster is None:
        return Rate(pool, provisioning, 0, "")
    accelerator = machine_of(found, catalog_of(cluster)).accelerator
    return Rate(pool, provisioning, pool_price(found, cluster), "" if accelerator is None else accelerator.resource)


def node_rate(node: Obj, cluster: Obj | None) -> Rate:
    """What a Node costs that is of none of our pools: as its annotation says, or its machine type, or `spec.local`.

    A Node of which none of these is said costs nothing.
    """
    provisioning = "spot" if label(node, well_known.SPOT) == "true" else "standard"
    catalog = builtin_catalog() if cluster is None else catalog_of(cluster)
    machine = catalog.machine(label(node, well_known.INSTANCE_TYPE) or "")
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    device = next((name for name in _DEVICES if name in allocatable), "")
    said, local = annotation(node, well_known.PRICE), {} if cluster is None else cluster["spec"].get("local") or {}
    price = _dollars(said if said is not None else local.get("price") if not machine.family else None)
    pool = label(node, well_known.NODE_POOL) or NO_POOL
    return Rate(pool, provisioning, hourly_price(machine, provisioning) if price is None else price, device)


def _dollars(told: str | None) -> MicroDollars | None:
    """An amount that somebody wrote; None where that is none."""
    try:
        return None if told is None else max(0, quantity.parse(told) // 1000)
    except ValueError:
        return None
