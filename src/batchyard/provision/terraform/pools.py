"""Node pools and reservations of a Cluster as Terraform variables, and the formatting of HCL values.

GKE's requirements beyond the Cluster's fields: https://cloud.google.com/kubernetes-engine/docs/how-to (gpus, tpus,
provisioningrequest, consuming-reservations).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from batchyard.api import well_known
from batchyard.api.times import format_time, is_time, reservation_window
from batchyard.base.instant import SECOND, parse_duration
from batchyard.cloud.catalog.machine_types import Accelerator, Catalog, MachineType, catalog_of
from batchyard.cloud.catalog.nodes import DEFAULT_PODS_PER_NODE
from batchyard.cloud.catalog.pool_properties import machine_of, slice_host_count
from batchyard.provision.model import Part

# HCL output in the format of `terraform fmt`: two spaces of indent, aligned equals signs.


Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value]"

_INDENT = "  "
#: Maximum line width; longer values are split over several lines.
_LINE_WIDTH_MAX = 110
#: Escapes in quoted strings; `${` and `%{` begin expressions.
_HCL_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def format_assignments(value_by_name: Mapping[str, Value], depth: int = 0) -> str:
    """Return lines of the form NAME = VALUE in HCL, indented by `depth` levels and aligned as `terraform fmt` does."""
    lines = [(_format_name(name), _format_value(value, depth)) for name, value in value_by_name.items()]
    return "".join(
        f"{_INDENT * depth}{name.ljust(width)} = {text}\n"
        for width, entries in _group_by_name_width(lines)
        for name, text in entries
    )


def _group_by_name_width(assignments: Sequence[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Group assignments for alignment, as `terraform fmt` does; yield each group with the width of its longest name.

    Adjacent one-line assignments form a group. An assignment of several lines is a group of its own.
    """
    for is_long, group in groupby(assignments, key=lambda assignment: "\n" in assignment[1]):
        names_and_values = list(group)
        if is_long:
            yield from ((len(name), [(name, text)]) for name, text in names_and_values)
        else:
            yield max(len(name) for name, _ in names_and_values), names_and_values


def _format_value(value: Value, depth: int) -> str:
    one_line = _format_on_one_line(value)
    if not isinstance(value, (Mapping, Sequence)) or isinstance(value, str) or not value:
        return one_line
    if isinstance(value, Mapping):
        has_nested_map = any(isinstance(each, Mapping) and each for each in value.values())
        if not has_nested_map and len(value) < 4 and len(one_line) + len(_INDENT) * depth < _LINE_WIDTH_MAX:
            return one_line
        return f"{{\n{format_assignments(value, depth + 1)}{_INDENT * depth}}}"
    if all(not isinstance(each, Mapping) for each in value) and len(one_line) + len(_INDENT) * depth < _LINE_WIDTH_MAX:
        return one_line
    item_indent = _INDENT * (depth + 1)
    item_lines = "".join(f"{item_indent}{_format_value(each, depth + 1)},\n" for each in value)
    return f"[\n{item_lines}{_INDENT * depth}]"


def _format_on_one_line(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return hcl_string(value)
    if isinstance(value, Mapping):
        field_texts = ", ".join(f"{_format_name(name)} = {_format_on_one_line(each)}" for name, each in value.items())
        return f"{{ {field_texts} }}" if field_texts else "{}"
    return f"[{', '.join(map(_format_on_one_line, value))}]"


def hcl_string(text: str) -> str:
    """Return an HCL string literal of a text; quotes, backslashes, line breaks, tabs, `${` and `%{` are escaped."""
    escaped_text = "".join(_HCL_ESCAPES.get(letter, letter) for letter in text)
    return f'"{escaped_text.replace("${", "$${").replace("%{", "%%{")}"'


def _format_name(name: str) -> str:
    plain_name = name.replace("_", "a").replace("-", "a")
    return name if plain_name.isascii() and plain_name.isalnum() and plain_name[0].isalpha() else hcl_string(name)


#: Machine families without Persistent Disks.
_HYPERDISK_FAMILIES: Final = ("a4", "a4x", "c4", "c4a", "c4d", "ct6e", "g4", "h4d", "n4", "tpu7x", "x4")
HYPERDISK: Final = "hyperdisk-balanced"
_SCHEDULED_PROVISIONING: Final = ("queued", "flex-start")
_GKE_EFFECTS: Final = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
#: The fields of a reservation that define a time window.
_RESERVATION_WINDOW_FIELDS: Final = frozenset({"start", "end", "duration"})
#: The fields of autoscaling bounds, and their names in Terraform.
_BOUND_FIELDS: Final = (("totalMin", "total_min"), ("totalMax", "total_max"), ("min", "min"), ("max", "max"))


def node_pools(cluster: Part) -> dict[str, Value]:
    """Return the Terraform variable `node_pools`: fields by pool name; fields with default values are omitted."""
    return {pool["name"]: _pool_row(pool, cluster) for pool in cluster["spec"].get("nodePools") or ()}


def reservations(cluster: Part) -> dict[str, Value]:
    """Return the Terraform variable `reservations`: those of the Cluster without a time window, by name.

    TPU reservations are left out: they are booked with Google, and Terraform does not create them.
    """
    return {
        reservation["name"]: _reservation_row(reservation, machine)
        for reservation, machine in _non_tpu_reservations(cluster)
        if _RESERVATION_WINDOW_FIELDS.isdisjoint(reservation)
    }


def future_reservations(cluster: Part, submitted_names: Collection[str] = ()) -> dict[str, Value]:
    """Return the Terraform variable `future_reservations`: by name, those of the Cluster with a start and an end.

    The start must be a date, not an offset from the start of a simulation. A duration counts as an end. TPU
    reservations are left out. The reservations in `submitted_names` are submitted to Google; all others are drafts.
    """
    rows_by_name: dict[str, Value] = {}
    for reservation, machine in _non_tpu_reservations(cluster):
        if not is_time(reservation.get("start", "")) or {"end", "duration"}.isdisjoint(reservation):
            continue
        window = reservation_window(reservation, 0)
        assert window.end is not None, "a reservation with a start has an end or a duration"
        row = dict(_reservation_row(reservation, machine))
        row |= {"start_time": format_time(window.start), "end_time": format_time(window.end)}
        row |= {"planning_status": "SUBMITTED"} if reservation["name"] in submitted_names else {}
        rows_by_name[reservation["name"]] = row
    return rows_by_name


def _non_tpu_reservations(cluster: Part) -> Iterator[tuple[Part, MachineType]]:
    for reservation in cluster["spec"].get("reservations") or ():
        machine = catalog_of(cluster).machine(reservation["machineType"])
        if not _has_tpu_chips(machine):
            yield reservation, machine


def _reservation_row(reservation: Part, machine: MachineType) -> Mapping[str, Value]:
    row: dict[str, Value] = {field: reservation[field] for field in ("zone", "count")}
    return {"machine_type": machine.name, **row, **_accelerator_fields(machine.accelerator)}


def _pool_row(pool: Part, cluster: Part) -> Mapping[str, Value]:
    catalog = catalog_of(cluster)
    machine = machine_of({"spec": pool}, catalog)
    row: dict[str, Value] = {"machine_type": pool["machineType"]}
    zones = _pool_zones(pool, cluster, catalog)
    row |= {"zones": list(zones)} if zones else {}
    row |= _accelerator_fields(machine.accelerator)
    row |= {"node_count": pool["nodeCount"]} if pool.get("nodeCount") else {}
    row |= _autoscaling_fields(pool)
    provisioning = pool.get("provisioning", "standard")
    row |= {"provisioning": provisioning} if provisioning != "standard" else {}
    row |= {"reservation": pool["reservation"]} if pool.get("reservation") else {}
    row |= _limit_fields(pool)
    row |= _placement_fields(pool, machine, catalog)
    row |= {"disk_type": HYPERDISK} if needs_hyperdisk(machine) else {}
    row |= {"local_ssds": machine.local_ssds} if machine.local_ssds else {}
    row |= {"labels": dict(pool["labels"])} if pool.get("labels") else {}
    return row | _taint_fields(pool.get("taints") or ())


def _pool_zones(pool: Part, cluster: Part, catalog: Catalog) -> Sequence[str]:
    """Return the zones to set for a node pool in Terraform; () if it uses all zones of the cluster.

    A pool with compact placement gets only its first zone.
    """
    pool_zones: Sequence[str] = pool.get("zones") or ()
    zones: Sequence[str] = pool_zones or cluster["spec"]["zones"]
    if _has_compact_placement(pool, catalog) and len(zones) > 1:
        return zones[:1]
    return () if list(pool_zones) == list(cluster["spec"]["zones"]) else pool_zones


def _has_compact_placement(pool: Part, catalog: Catalog) -> bool:
    return "placementGroup" in pool or slice_host_count({"spec": pool}, catalog) > 1


def _accelerator_fields(accelerator: Accelerator | None) -> dict[str, Value]:
    if accelerator is None or accelerator.resource == well_known.TPU:
        return {}
    return {"accelerator": {"type": accelerator.type, "count": accelerator.count}}


def _autoscaling_fields(pool: Part) -> dict[str, Value]:
    """Return the Terraform field `autoscaling` of a node pool; empty if the pool does not autoscale.

    Without a locationPolicy, Spot, flex-start and queued machines use any zone, as in GKE.
    """
    pool_bounds = pool.get("autoscaling")
    if pool_bounds is None:
        return {}
    row: dict[str, Value] = {name: pool_bounds[field] for field, name in _BOUND_FIELDS if field in pool_bounds}
    default_policy = "ANY" if pool.get("provisioning") in {"spot", *_SCHEDULED_PROVISIONING} else "BALANCED"
    policy = pool_bounds.get("locationPolicy", default_policy)
    return {"autoscaling": {**row, "location_policy": policy} if policy != "BALANCED" else row}


def _limit_fields(pool: Part) -> dict[str, Value]:
    row: dict[str, Value] = {}
    if "maxRunDuration" in pool:
        row["max_run_duration"] = f"{parse_duration(pool['maxRunDuration']) // SECOND}s"
    if pool.get("maxPodsPerNode", DEFAULT_PODS_PER_NODE) != DEFAULT_PODS_PER_NODE:
        row["max_pods_per_node"] = pool["maxPodsPerNode"]
    return row


def _placement_fields(pool: Part, machine: MachineType, catalog: Catalog) -> dict[str, Value]:
    topology = pool.get("tpuTopology")
    if topology and (slice_host_count({"spec": pool}, catalog) > 1 or machine.topology != topology):
        return {"tpu_topology": topology}
    return {"compact": True} if "placementGroup" in pool else {}


def _has_tpu_chips(machine: MachineType) -> bool:
    return machine.accelerator is not None and machine.accelerator.resource == well_known.TPU


def needs_hyperdisk(machine: MachineType) -> bool:
    """Return whether a machine type does not support Persistent Disks, so that it boots from a Hyperdisk."""
    return machine.family in _HYPERDISK_FAMILIES or machine.name.startswith("a3-ultra")


def _taint_fields(taints: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Return the Terraform field `taints` of a node pool; empty without taints.

    Taints of GPUs, TPUs and queued machines are not needed, because GKE adds them itself.
    """
    taint_rows = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": _GKE_EFFECTS[taint["effect"]]}
        for taint in taints
    ]
    return {"taints": taint_rows} if taint_rows else {}
