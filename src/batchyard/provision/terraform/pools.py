"""Node pools and reservations of a Cluster as Terraform variables.

GKE's requirements beyond the Cluster's fields: https://cloud.google.com/kubernetes-engine/docs/how-to (gpus, tpus,
provisioningrequest, consuming-reservations).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from batchyard.api import well_known
from batchyard.api.times import format_time, is_time, window_of
from batchyard.base.instant import SECOND, parse_duration
from batchyard.cloud.catalog.machine_types import Accelerator, Catalog, MachineType, catalog_of
from batchyard.cloud.catalog.nodes import PODS
from batchyard.cloud.catalog.prices import hosts_of_slice, machine_of
from batchyard.provision.model import Part

# --- hcl ---
#
# HCL output in the format of `terraform fmt`: two spaces of indent, aligned equals signs.


Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value]"

_INDENT = "  "
#: Maximum line width; longer values are split over several lines.
_WIDTH = 110
#: Escapes in quoted strings; `${` and `%{` begin expressions.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def assignments(values: Mapping[str, Value], depth: int = 0) -> str:
    """Return lines of NAME = VALUE; adjacent one-line values are aligned, as `terraform fmt` does."""
    lines = [(_name(name), _value(value, depth)) for name, value in values.items()]
    return "".join(
        f"{_INDENT * depth}{name.ljust(width)} = {text}\n" for width, rows in _aligned(lines) for name, text in rows
    )


def _aligned(lines: Sequence[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Group adjacent one-line values with their common width; a multi-line value is a group of its own."""
    for is_long, run in groupby(lines, key=lambda line: "\n" in line[1]):
        rows = list(run)
        if is_long:
            yield from ((len(name), [(name, text)]) for name, text in rows)
        else:
            yield max(len(name) for name, _ in rows), rows


def _value(value: Value, depth: int) -> str:
    """Return a value, over several lines if one is too short."""
    short = _on_one_line(value)
    if not isinstance(value, (Mapping, Sequence)) or isinstance(value, str) or not value:
        return short
    if isinstance(value, Mapping):
        nests = any(isinstance(each, Mapping) and each for each in value.values())
        if not nests and len(value) < 4 and len(short) + len(_INDENT) * depth < _WIDTH:
            return short
        return f"{{\n{assignments(value, depth + 1)}{_INDENT * depth}}}"
    if all(not isinstance(each, Mapping) for each in value) and len(short) + len(_INDENT) * depth < _WIDTH:
        return short
    inner = _INDENT * (depth + 1)
    rows = "".join(f"{inner}{_value(each, depth + 1)},\n" for each in value)
    return f"[\n{rows}{_INDENT * depth}]"


def _on_one_line(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        rows = ", ".join(f"{_name(name)} = {_on_one_line(each)}" for name, each in value.items())
        return f"{{ {rows} }}" if rows else "{}"
    return f"[{', '.join(map(_on_one_line, value))}]"


def quoted(text: str) -> str:
    """Return an HCL string literal without expressions."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in text)
    return f'"{escaped.replace("${", "$${").replace("%{", "%%{")}"'


def _name(name: str) -> str:
    """Return a name: identifiers bare, others (with dots or slashes) quoted."""
    letters = name.replace("_", "a").replace("-", "a")
    return name if letters.isascii() and letters.isalnum() and letters[0].isalpha() else quoted(name)


#: Machine families without Persistent Disks.
_HYPERDISK_FAMILIES: Final = ("a4", "a4x", "c4", "c4a", "c4d", "ct6e", "g4", "h4d", "n4", "tpu7x", "x4")
HYPERDISK: Final = "hyperdisk-balanced"
_SCHEDULED: Final = ("queued", "flex-start")
_EFFECTS: Final = {
    "NoSchedule": "NO_SCHEDULE",
    "PreferNoSchedule": "PREFER_NO_SCHEDULE",
    "NoExecute": "NO_EXECUTE",
}
#: Fields of a reservation for a time window.
_WINDOW: Final = frozenset({"start", "end", "duration"})
#: Fields and their names in Terraform.
_BOUNDS: Final = (("totalMin", "total_min"), ("totalMax", "total_max"), ("min", "min"), ("max", "max"))


def node_pools(cluster: Part) -> dict[str, Value]:
    """Return the variable `node_pools`: only what differs from its defaults."""
    return {pool["name"]: _pool(pool, cluster) for pool in cluster["spec"].get("nodePools") or ()}


def reservations(cluster: Part) -> dict[str, Value]:
    """Return the variable `reservations`: those without a time window.

    TPU reservations are booked with Google. Pools can use them, but Terraform does not create them.
    """
    return {
        reservation["name"]: _reservation(reservation, machine)
        for reservation, machine in _reservations_without_chips(cluster)
        if _WINDOW.isdisjoint(reservation)
    }


def future_reservations(cluster: Part, submitted: Collection[str] = ()) -> dict[str, Value]:
    """Return the variable `future_reservations`: those with a start and an end.

    A window relative to the start of a run has no date and is only for the simulator. Reservations in `submitted` are
    submitted to Google; all others are drafts.
    """
    rows: dict[str, Value] = {}
    for reservation, machine in _reservations_without_chips(cluster):
        if not is_time(reservation.get("start", "")) or {"end", "duration"}.isdisjoint(reservation):
            continue
        window = window_of(reservation, 0)
        assert window.end is not None, "it has an end or a duration"
        row = dict(_reservation(reservation, machine))
        row |= {"start_time": format_time(window.start), "end_time": format_time(window.end)}
        row |= {"planning_status": "SUBMITTED"} if reservation["name"] in submitted else {}
        rows[reservation["name"]] = row
    return rows


def _reservations_without_chips(cluster: Part) -> Iterator[tuple[Part, MachineType]]:
    """Yield the reservations with their machine types, except those of TPUs."""
    for reservation in cluster["spec"].get("reservations") or ():
        machine = catalog_of(cluster).machine(reservation["machineType"])
        if not _has_chips(machine):
            yield reservation, machine


def _reservation(reservation: Part, machine: MachineType) -> Mapping[str, Value]:
    row: dict[str, Value] = {field: reservation[field] for field in ("zone", "count")}
    return {"machine_type": machine.name, **row, **_accelerator(machine.accelerator)}


def _pool(pool: Part, cluster: Part) -> Mapping[str, Value]:
    catalog = catalog_of(cluster)
    machine = machine_of({"spec": pool}, catalog)
    row: dict[str, Value] = {"machine_type": pool["machineType"]}
    zones = _zones(pool, cluster, catalog)
    row |= {"zones": list(zones)} if zones else {}
    row |= _accelerator(machine.accelerator)
    row |= {"node_count": pool["nodeCount"]} if pool.get("nodeCount") else {}
    row |= _autoscaling(pool)
    provisioning = pool.get("provisioning", "standard")
    row |= {"provisioning": provisioning} if provisioning != "standard" else {}
    row |= {"reservation": pool["reservation"]} if pool.get("reservation") else {}
    row |= _limits(pool)
    row |= _placement(pool, machine, catalog)
    row |= {"disk_type": HYPERDISK} if needs_hyperdisk(machine) else {}
    row |= {"local_ssds": machine.local_ssds} if machine.local_ssds else {}
    row |= {"labels": dict(pool["labels"])} if pool.get("labels") else {}
    return row | _taints(pool.get("taints") or ())


def _zones(pool: Part, cluster: Part, catalog: Catalog) -> Sequence[str]:
    """Return the zones that must be set: none if equal to the cluster's; only the first for compact machines."""
    own: Sequence[str] = pool.get("zones") or ()
    zones: Sequence[str] = own or cluster["spec"]["zones"]
    if _lies_together(pool, catalog) and len(zones) > 1:
        return zones[:1]
    return () if list(own) == list(cluster["spec"]["zones"]) else own


def _lies_together(pool: Part, catalog: Catalog) -> bool:
    return "placementGroup" in pool or hosts_of_slice({"spec": pool}, catalog) > 1


def _accelerator(accelerator: Accelerator | None) -> dict[str, Value]:
    """Return the accelerators. GPUs must be named whether attached or built in; TPU chips must not."""
    if accelerator is None or accelerator.resource == well_known.TPU:
        return {}
    return {"accelerator": {"type": accelerator.type, "count": accelerator.count}}


def _autoscaling(pool: Part) -> dict[str, Value]:
    """Return the bounds. Spot, flex-start and queued machines default to any zone, as GKE does for Spot."""
    bounds = pool.get("autoscaling")
    if bounds is None:
        return {}
    row: dict[str, Value] = {name: bounds[field] for field, name in _BOUNDS if field in bounds}
    usual = "ANY" if pool.get("provisioning") in {"spot", *_SCHEDULED} else "BALANCED"
    policy = bounds.get("locationPolicy", usual)
    return {"autoscaling": {**row, "location_policy": policy} if policy != "BALANCED" else row}


def _limits(pool: Part) -> dict[str, Value]:
    row: dict[str, Value] = {}
    if "maxRunDuration" in pool:
        row["max_run_duration"] = f"{parse_duration(pool['maxRunDuration']) // SECOND}s"
    if pool.get("maxPodsPerNode", PODS) != PODS:
        row["max_pods_per_node"] = pool["maxPodsPerNode"]
    return row


def _placement(pool: Part, machine: MachineType, catalog: Catalog) -> dict[str, Value]:
    """Return the placement. A topology is set for multi-host slices, or if it differs from the machine's own."""
    topology = pool.get("tpuTopology")
    if topology and (hosts_of_slice({"spec": pool}, catalog) > 1 or machine.topology != topology):
        return {"tpu_topology": topology}
    return {"compact": True} if "placementGroup" in pool else {}


def _has_chips(machine: MachineType) -> bool:
    return machine.accelerator is not None and machine.accelerator.resource == well_known.TPU


def needs_hyperdisk(machine: MachineType) -> bool:
    """Whether a machine has no Persistent Disks and boots from a Hyperdisk."""
    return machine.family in _HYPERDISK_FAMILIES or machine.name.startswith("a3-ultra")


def _taints(taints: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Return the pool's own taints: GKE adds those of GPUs, TPUs and queued machines."""
    rows = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": _EFFECTS[taint["effect"]]} for taint in taints
    ]
    return {"taints": rows} if rows else {}
