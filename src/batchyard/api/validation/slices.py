"""Rules of pools whose nodes are one TPU slice: they share its chips, lie in one zone, and come and go together.

Source: GKE's multi-host TPU node pools, which are resized between 0 and all their nodes; pkg/cloudprovider/gke
(IsMultiHostTpuPodslice, ZeroOrMaxNodeScaling). A slice of one node is a pool like others.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults

Spec = Mapping[str, Any]

_TOPOLOGY: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)
#: Google names machines with TPUs by how many chips they have: ct5lp-hightpu-4t.
_CHIPS: Final = re.compile(r".*-([1-9]\d?)t", re.ASCII)
_NODES_SHOWN_MAX: Final = 256


def slice_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """A slice has a topology that its nodes fill, and as many nodes as that takes."""
    topology = pool.get("tpuTopology")
    if topology is None:
        return
    at, chips, each = f"{path}.tpuTopology", _chips_in(topology), _chips_of_machine(pool["machineType"])
    if chips is None:
        yield from topology_faults(topology, at)
    elif each is not None and chips % each:
        message = f"must have a multiple of the {each} chips of a {pool['machineType']}, not {chips}"
        yield faults.invalid(at, topology, message, "use a larger topology, or a smaller machine type")
    elif each != chips:
        yield from one_zone_faults(pool, path, "a TPU slice of several nodes")
        yield from _sharing_faults(pool, chips, path) if each is None else _whole_faults(pool, chips // each, path)


def topology_faults(topology: str, path: str, count: int | None = None) -> Iterator[FieldError]:
    """A topology tells how many chips lie in each dimension: so many in all, if that is known."""
    chips = _chips_in(topology)
    if chips is None:
        message = "must be the numbers of chips in two or three dimensions"
        yield faults.invalid(path, topology, message, "write it as 2x4 or 2x2x4")
    elif count not in (None, chips):
        message = f"must have the {count} chips of the machine, not {chips}"
        yield faults.invalid(path, topology, message, "write how its own chips lie, or change their count")


def one_zone_faults(pool: Spec, path: str, what: str) -> Iterator[FieldError]:
    """What lies close together lies in one zone."""
    zones = pool.get("zones") or []
    if len(zones) > 1:
        message = f"must have at most 1 item: {what} lies in one zone"
        yield faults.invalid(f"{path}.zones", zones, message, f"name one zone, such as zones: [{zones[0]}]")


def _chips_in(topology: str) -> int | None:
    """The chips of a topology such as 2x4 or 2x2x4; None where it is none."""
    return math.prod(map(int, topology.split("x"))) if _TOPOLOGY.fullmatch(topology) else None


def _chips_of_machine(machine_type: str) -> int | None:
    """The chips of a machine as its name tells; None where it does not."""
    found = _CHIPS.fullmatch(machine_type)
    return int(found[1]) if found else None


def _sharing_faults(pool: Spec, chips: int, path: str) -> Iterator[FieldError]:
    """Nodes of unknown size share the chips evenly; and a pool that grows does so by the whole slice."""
    counts = _counts(pool)
    for field, count in counts.items():
        if count and chips % count:
            message = f"must divide the {chips} chips of topology {pool['tpuTopology']}, so that each node has as many"
            even = [str(n) for n in range(1, min(chips, _NODES_SHOWN_MAX) + 1) if chips % n == 0]
            yield faults.invalid(f"{path}.{field}", count, message, f"use one of {', '.join(even)}")
            return
    yield from _whole_faults(pool, max(counts.values(), default=0), path)


def _whole_faults(pool: Spec, hosts: int, path: str) -> Iterator[FieldError]:
    """A slice is there whole or not at all."""
    for field, count in _counts(pool).items():
        if count not in (0, hosts):
            message = f"must be 0 or {hosts}: a slice {pool['tpuTopology']} is there with all its nodes or not at all"
            yield faults.invalid(f"{path}.{field}", count, message, f"set it to {hosts}, or to 0")


def _counts(pool: Spec) -> dict[str, int]:
    """All that a pool says of how many nodes it has, by field."""
    autoscaling = pool.get("autoscaling") or {}
    bounds = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "max", "totalMin", "totalMax")}
    return {field: n for field, n in {"nodeCount": pool.get("nodeCount"), **bounds}.items() if n is not None}
