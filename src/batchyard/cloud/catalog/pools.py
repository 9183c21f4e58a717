"""What a NodePool says: its machines, its zones, how many it has by itself, and whether it is one slice of TPUs.

A slice of TPUs that needs several machines (its topology has more chips than one of them) is atomic: there are none of
its machines or all of them. Source: GKE's autoscaler, IsMultiHostTpuPodslice and ZeroOrMaxNodeScaling.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, accelerator_from


def machine_of(pool: Obj, catalog: Catalog) -> MachineType:
    """The machine type of a pool with the accelerators the pool adds, and what they cost."""
    spec = pool["spec"]
    machine, wanted = catalog.machine(spec["machineType"]), spec.get("accelerator")
    if not wanted or not catalog.can_attach(machine, wanted["type"]):
        return machine
    accelerator = accelerator_from(wanted)
    prices = machine.prices.plus(catalog.attachable[accelerator.type].prices, accelerator.count)
    return replace(machine, accelerator=accelerator, prices=prices)


def has_its_accelerator(pool: Obj, catalog: Catalog) -> bool:
    """Whether the machines of a pool can have the accelerators it names; those a machine has anyway may be named."""
    wanted, has = pool["spec"].get("accelerator"), machine_of(pool, catalog).accelerator
    return not wanted or (has is not None and (has.type, has.count) == (wanted["type"], wanted["count"]))


def zones_of(pool: Obj, cluster: Obj) -> Sequence[str]:
    """The zones of a pool: its own, else those of the cluster. A slice of several machines is in the first."""
    zones: Sequence[str] = pool["spec"].get("zones") or cluster["spec"]["zones"]
    return zones


def is_autoscaled(pool: Obj) -> bool:
    """Whether an autoscaler says how many machines a pool has; otherwise it always has its nodeCount in each zone."""
    return pool["spec"].get("autoscaling") is not None


def hosts_of_slice(pool: Obj, catalog: Catalog) -> int:
    """How many machines come and go as one: those of a slice of TPUs with several machines; otherwise 1."""
    accelerator, topology = catalog.machine(pool["spec"]["machineType"]).accelerator, pool["spec"].get("tpuTopology")
    if accelerator is None or accelerator.resource != well_known.TPU or not topology:
        return 1
    return max(1, chips_in(topology) // accelerator.count)


def chips_in(topology: str) -> int:
    """How many chips a topology such as 2x4 or 2x2x2 has."""
    return prod(int(side) for side in topology.split("x"))
