"""Properties of node pools, hourly machine prices in micro-dollars, and durations of machine steps such as booting."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, label
from batchyard.base.instant import Duration, parse_duration
from batchyard.cloud.catalog import machine_types
from batchyard.cloud.catalog.machine_types import Catalog, MachineType

# Properties of a NodePool: machine type, zones, autoscaling, and TPU slices.
#
# A TPU slice whose topology has more chips than one machine is atomic: it has all of its machines or none. Source:
# GKE's autoscaler, IsMultiHostTpuPodslice and ZeroOrMaxNodeScaling.


def machine_of(pool: Obj, catalog: Catalog) -> MachineType:
    """Return the machine type of a node pool, including the accelerators that the pool attaches, and their price."""
    spec = pool["spec"]
    machine, accelerator_row = catalog.machine(spec["machineType"]), spec.get("accelerator")
    if not accelerator_row or not catalog.can_attach(machine, accelerator_row["type"]):
        return machine
    accelerator = machine_types.parse_accelerator(accelerator_row)
    prices = machine.prices.plus(catalog.attachable[accelerator.type].prices, accelerator.count)
    return replace(machine, accelerator=accelerator, prices=prices)


def has_specified_accelerator(pool: Obj, catalog: Catalog) -> bool:
    """Return whether a node pool's machines have the accelerators in its spec: built in, or possible to attach."""
    accelerator_row, actual_accelerator = pool["spec"].get("accelerator"), machine_of(pool, catalog).accelerator
    return not accelerator_row or (
        actual_accelerator is not None
        and (actual_accelerator.type, actual_accelerator.count) == (accelerator_row["type"], accelerator_row["count"])
    )


def zones_of(pool: Obj, cluster: Obj) -> Sequence[str]:
    """Return the zones of a node pool, by default the Cluster's."""
    zones: Sequence[str] = pool["spec"].get("zones") or cluster["spec"]["zones"]
    return zones


def is_autoscaled(pool: Obj) -> bool:
    """Return whether the autoscaler sets a node pool's size."""
    return pool["spec"].get("autoscaling") is not None


def slice_host_count(pool: Obj, catalog: Catalog) -> int:
    """Return how many machines of a pool are created and deleted together: above 1 for a multi-host TPU slice."""
    accelerator, topology = catalog.machine(pool["spec"]["machineType"]).accelerator, pool["spec"].get("tpuTopology")
    if accelerator is None or accelerator.resource != well_known.TPU or not topology:
        return 1
    return max(1, chip_count_of(topology) // accelerator.count)


def chip_count_of(topology: str) -> int:
    """Return the number of TPU chips in a topology such as 2x4 or 2x2x2."""
    return prod(int(side) for side in topology.split("x"))


#: The pool name of Nodes that belong to no pool.
NO_POOL_NAME: Final = "nodes"
_ACCELERATOR_RESOURCES: Final = (well_known.GPU, well_known.TPU)


class Rate(NamedTuple):
    """A machine's pool, provisioning model, hourly price (micro-dollars) and accelerator resource ('' for none)."""

    pool: str
    provisioning: str
    price: machine_types.MicroDollars
    device: str


def hourly_price(machine: MachineType, provisioning: str, *, reserved: bool = False) -> machine_types.MicroDollars:
    """Return the hourly price of a machine type: reserved, or by provisioning model such as spot or flex-start."""
    prices = machine.prices
    if reserved:
        return prices.reserved
    if provisioning == "spot":
        return prices.spot
    return prices.flex_start if provisioning in {"flex-start", "queued"} else prices.on_demand


def pool_price(pool: Obj, cluster: Obj) -> machine_types.MicroDollars:
    """Return the hourly price of one machine of a node pool, with its accelerators, at the Cluster's prices."""
    spec = pool["spec"]
    machine = machine_of(pool, machine_types.catalog_of(cluster))
    return hourly_price(machine, spec.get("provisioning", "standard"), reserved=bool(spec.get("reservation")))


def instance_rate(instance: Obj, get: Callable[[Key], Obj | None], cluster: Obj | None) -> Rate:
    """Return the hourly rate of an Instance from its node pool and Cluster; the price is 0 if either is missing."""
    spec = instance["spec"]
    pool, provisioning = spec["pool"], spec.get("provisioning", "standard")
    node_pool = get(Key(scheme.NODE_POOL, "", pool))
    if node_pool is None or cluster is None:
        return Rate(pool, provisioning, 0, "")
    accelerator = machine_of(node_pool, machine_types.catalog_of(cluster)).accelerator
    return Rate(pool, provisioning, pool_price(node_pool, cluster), "" if accelerator is None else accelerator.resource)


def node_rate(node: Obj, cluster: Obj | None) -> Rate:
    """Return the hourly rate of a Node without an Instance.

    The price is that of the Node's price annotation, or else of its machine type. If the machine type is unknown, it is
    the price in the Cluster's `spec.local`, or 0.
    """
    provisioning = "spot" if label(node, well_known.SPOT) == "true" else "standard"
    catalog = machine_types.builtin_catalog() if cluster is None else machine_types.catalog_of(cluster)
    machine = catalog.machine(label(node, well_known.INSTANCE_TYPE) or "")
    allocatable_amounts = (node.get("status") or {}).get("allocatable") or {}
    device = next((name for name in _ACCELERATOR_RESOURCES if name in allocatable_amounts), "")
    annotated_price, local_spec = (
        annotation(node, well_known.PRICE),
        {} if cluster is None else cluster["spec"].get("local") or {},
    )
    price = _parse_dollars(
        annotated_price if annotated_price is not None else local_spec.get("price") if not machine.family else None
    )
    pool_name = label(node, well_known.NODE_POOL) or NO_POOL_NAME
    return Rate(pool_name, provisioning, hourly_price(machine, provisioning) if price is None else price, device)


def _parse_dollars(text: str | None) -> machine_types.MicroDollars | None:
    try:
        return None if text is None else max(0, meta.parse_quantity(text) // 1000)
    except ValueError:
        return None


# Durations of machine steps (minimum, typical, maximum), from the Cluster, or by default from the catalog.


#: The step that does not depend on the machine.
POD_START: Final = "podStart"


class StepDuration(NamedTuple):
    """The minimum, typical and maximum duration of a machine step such as booting."""

    minimum: Duration
    typical: Duration
    maximum: Duration


def step_duration(step: str, machine: MachineType, cluster: Obj, catalog: Catalog) -> StepDuration:
    """Return the duration of a machine step such as `boot` or `drivers` for a machine type."""
    row = _configured_duration(step, machine, cluster, catalog)
    return StepDuration(parse_duration(row["min"]), parse_duration(row["typical"]), parse_duration(row["max"]))


def with_typical_times(cluster: Obj) -> Obj:
    """Return a copy of the Cluster in which every machine step takes its typical duration, so that none is random."""
    catalog = machine_types.catalog_of(cluster)
    spec = cluster.get("spec") or {}
    cluster_durations: Mapping[str, Any] = spec.get("times") or {}
    step_names = [step for step, row in catalog.times.items() if isinstance(row, Mapping)]

    def typical_rows(machine: MachineType, step_names: Iterable[str]) -> Mapping[str, Any]:
        durations = {step: _configured_duration(step, machine, cluster, catalog)["typical"] for step in step_names}
        return {step: {"min": text, "typical": text, "max": text} for step, text in durations.items()}

    machine_steps = [step for step in step_names if step != POD_START]
    rows_by_machine = dict(cluster_durations.get("byMachine") or {})
    for name, machine in catalog.machines.items():
        rows_by_machine[name] = {**rows_by_machine.get(name, {}), **typical_rows(machine, machine_steps)}
    typical_times = {**cluster_durations, **typical_rows(catalog.machine(""), step_names), "byMachine": rows_by_machine}
    return {**cluster, "spec": {**spec, "times": typical_times}}


def preparation_time(machine: MachineType, cluster: Obj, catalog: Catalog) -> Duration:
    """Return the maximum time from the request of a machine until its Node is ready."""
    last_step = "network" if machine.accelerator is None else "drivers"
    preparation_steps = ("provisioning", "boot", "registration", last_step)
    return sum(step_duration(step, machine, cluster, catalog).maximum for step in preparation_steps)


def repair_time(machine: MachineType, cluster: Obj, catalog: Catalog) -> Duration:
    """Return how long after its crash a machine is replaced."""
    text: str = _configured_duration("repair", machine, cluster, catalog)
    return parse_duration(text)


def _configured_duration(step: str, machine: MachineType, cluster: Obj, catalog: Catalog) -> Any:
    """Return the configured duration of a machine step, from the first of: machine type, family, Cluster, catalog.

    It is a row of minimum, typical and maximum, except for the step `repair`, whose duration is a single text.
    """
    cluster_times: Mapping[str, Any] = (cluster.get("spec") or {}).get("times") or {}
    times_by_machine = cluster_times.get("byMachine") or {}
    machine_times = (times_by_machine.get(machine.name) or {}, times_by_machine.get(machine.family) or {})
    time_sources = (*machine_times, cluster_times, catalog.family(machine).times, catalog.times)
    return next(source[step] for source in time_sources if step in source)
