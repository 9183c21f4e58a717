"""Machine prices per hour in micro-dollars (integers, so that ledgers add up exactly), and durations of a cluster."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, label
from batchyard.base.instant import Duration, parse_duration
from batchyard.cloud.catalog.machine_types import (
    Catalog,
    MachineType,
    MicroDollars,
    accelerator_from,
    builtin_catalog,
    catalog_of,
)

# --- pools ---
#
# NodePool properties: machine type, zones, autoscaling, and TPU slices.
#
# A TPU slice of several machines (its topology has more chips than one machine) is atomic: it has all of its machines
# or none. Source: GKE's autoscaler, IsMultiHostTpuPodslice and ZeroOrMaxNodeScaling.


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


#: Pool name of Nodes without one.
NO_POOL: Final = "nodes"
_DEVICES: Final = (well_known.GPU, well_known.TPU)


class Rate(NamedTuple):
    """Hourly price of a machine, and the resource name of its accelerators; '' if it has none."""

    pool: str
    provisioning: str
    price: MicroDollars
    device: str


def hourly_price(machine: MachineType, provisioning: str, *, reserved: bool = False) -> MicroDollars:
    """Return the hourly price by provisioning model; reserved machines have the reserved price."""
    prices = machine.prices
    if reserved:
        return prices.reserved
    if provisioning == "spot":
        return prices.spot
    return prices.flex_start if provisioning in {"flex-start", "queued"} else prices.on_demand


def pool_price(pool: Obj, cluster: Obj) -> MicroDollars:
    """Return the hourly price of one machine of a pool, with its accelerators and the Cluster's prices."""
    spec = pool["spec"]
    machine = machine_of(pool, catalog_of(cluster))
    return hourly_price(machine, spec.get("provisioning", "standard"), reserved=bool(spec.get("reservation")))


def instance_rate(instance: Obj, get: Callable[[Key], Obj | None], cluster: Obj | None) -> Rate:
    """Return the rate of an Instance from its pool and Cluster; zero if either is missing."""
    spec = instance["spec"]
    pool, provisioning = spec["pool"], spec.get("provisioning", "standard")
    found = get(Key(scheme.NODE_POOL, "", pool))
    if found is None or cluster is None:
        return Rate(pool, provisioning, 0, "")
    accelerator = machine_of(found, catalog_of(cluster)).accelerator
    return Rate(pool, provisioning, pool_price(found, cluster), "" if accelerator is None else accelerator.resource)


def node_rate(node: Obj, cluster: Obj | None) -> Rate:
    """Return the rate of a Node outside our pools, from its annotation, its machine type or `spec.local`.

    Without any of these the rate is zero.
    """
    provisioning = "spot" if label(node, well_known.SPOT) == "true" else "standard"
    catalog = builtin_catalog() if cluster is None else catalog_of(cluster)
    machine = catalog.machine(label(node, well_known.INSTANCE_TYPE) or "")
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    device = next((name for name in _DEVICES if name in allocatable), "")
    annotated, local = annotation(node, well_known.PRICE), {} if cluster is None else cluster["spec"].get("local") or {}
    price = _dollars(annotated if annotated is not None else local.get("price") if not machine.family else None)
    pool = label(node, well_known.NODE_POOL) or NO_POOL
    return Rate(pool, provisioning, hourly_price(machine, provisioning) if price is None else price, device)


def _dollars(text: str | None) -> MicroDollars | None:
    """Parse an amount in dollars; None if it is invalid or missing."""
    try:
        return None if text is None else max(0, meta.parse(text) // 1000)
    except ValueError:
        return None


# --- times ---
#
# Durations of machine steps (minimum, typical, maximum), from the Cluster, else from the catalog.


#: The step that does not depend on the machine.
POD_START: Final = "podStart"


class StepDuration(NamedTuple):
    """Minimum, typical and maximum duration of a step."""

    shortest: Duration
    typical: Duration
    longest: Duration


def step_duration(step: str, machine: MachineType, cluster: Obj, catalog: Catalog) -> StepDuration:
    """Return the duration of a step (`boot`, `drivers`, ...; see catalog.yaml) for a machine type."""
    row = _figures(step, machine, cluster, catalog)
    return StepDuration(parse_duration(row["min"]), parse_duration(row["typical"]), parse_duration(row["max"]))


def in_typical_times(cluster: Obj) -> Obj:
    """Return the Cluster with the typical duration for every step of every machine, so that no duration is random."""
    catalog = catalog_of(cluster)
    spec = cluster.get("spec") or {}
    cluster_times: Mapping[str, Any] = spec.get("times") or {}
    steps = [step for step, row in catalog.times.items() if isinstance(row, Mapping)]

    def typical(machine: MachineType, steps: Iterable[str]) -> Mapping[str, Any]:
        texts = {step: _figures(step, machine, cluster, catalog)["typical"] for step in steps}
        return {step: {"min": text, "typical": text, "max": text} for step, text in texts.items()}

    its_own = [step for step in steps if step != POD_START]
    by_machine = dict(cluster_times.get("byMachine") or {})
    for name, machine in catalog.machines.items():
        by_machine[name] = {**by_machine.get(name, {}), **typical(machine, its_own)}
    times = {**cluster_times, **typical(catalog.machine(""), steps), "byMachine": by_machine}
    return {**cluster, "spec": {**spec, "times": times}}


def preparation(machine: MachineType, cluster: Obj, catalog: Catalog) -> Duration:
    """Return the longest time from the request of a machine until its node is ready."""
    last = "network" if machine.accelerator is None else "drivers"
    steps = ("provisioning", "boot", "registration", last)
    return sum(step_duration(step, machine, cluster, catalog).longest for step in steps)


def repair_time(machine: MachineType, cluster: Obj, catalog: Catalog) -> Duration:
    """Return the time from a crash to the replacement of the machine."""
    text: str = _figures("repair", machine, cluster, catalog)
    return parse_duration(text)


def _figures(step: str, machine: MachineType, cluster: Obj, catalog: Catalog) -> Any:
    """Return the value for a step from the most specific place: type, family, Cluster, catalog."""
    cluster_times: Mapping[str, Any] = (cluster.get("spec") or {}).get("times") or {}
    by_machine = cluster_times.get("byMachine") or {}
    places = (
        by_machine.get(machine.name) or {},
        by_machine.get(machine.family) or {},
        cluster_times,
        catalog.family(machine).times,
        catalog.times,
    )
    return next(place[step] for place in places if step in place)
