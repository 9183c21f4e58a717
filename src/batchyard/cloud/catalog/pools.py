"""NodePool properties: machine type, zones, autoscaling, and TPU slices.

A TPU slice of several machines (its topology has more chips than one machine) is atomic: it has all of its machines or
none. Source: GKE's autoscaler, IsMultiHostTpuPodslice and ZeroOrMaxNodeScaling.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, accelerator_from


def machine_of(pool: Obj, catalog: Catalog) -> MachineType:
    """Return the machine type of a pool, with the accelerators that the pool attaches and their price."""
    spec = pool["spec"]
    machine, wanted = catalog.machine(spec["machineType"]), spec.get("accelerator")
    if not wanted or not catalog.can_attach(machine, wanted["type"]):
        return machine
    accelerator = accelerator_from(wanted)
    prices = machine.prices.plus(catalog.attachable[accelerator.type].prices, accelerator.count)
    return replace(machine, accelerator=accelerator, prices=prices)


def has_its_accelerator(pool: Obj, catalog: Catalog) -> bool:
    """Whether the pool's machines have the accelerators that it names, attached or built in."""
    wanted, has = pool["spec"].get("accelerator"), machine_of(pool, catalog).accelerator
    return not wanted or (has is not None and (has.type, has.count) == (wanted["type"], wanted["count"]))


def zones_of(pool: Obj, cluster: Obj) -> Sequence[str]:
    """Return the zones of a pool: its own, else those of the cluster. A multi-host slice uses the first."""
    zones: Sequence[str] = pool["spec"].get("zones") or cluster["spec"]["zones"]
    return zones


def is_autoscaled(pool: Obj) -> bool:
    """Whether an autoscaler sets the size of a pool; otherwise it has nodeCount machines in each zone."""
    return pool["spec"].get("autoscaling") is not None


def hosts_of_slice(pool: Obj, catalog: Catalog) -> int:
    """Return how many machines are created and deleted together: those of a multi-host TPU slice; otherwise 1."""
    accelerator, topology = catalog.machine(pool["spec"]["machineType"]).accelerator, pool["spec"].get("tpuTopology")
    if accelerator is None or accelerator.resource != well_known.TPU or not topology:
        return 1
    return max(1, chips_in(topology) // accelerator.count)


def chips_in(topology: str) -> int:
    """Return the number of chips in a topology such as 2x4 or 2x2x2."""
    return prod(int(side) for side in topology.split("x"))
