"""Rules of pools that are one TPU slice: their topology, and that they are there whole or not at all.

Source: GKE's multi-host TPU node pools, which are resized between 0 and all their nodes.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults

_NODES_SHOWN_MAX: Final = 256
_TOPOLOGY: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)


def chips_of(topology: str) -> int | None:
    """The chips of a slice of a topology such as 2x4 or 2x2x4; None where it is none."""
    return math.prod(map(int, topology.split("x"))) if _TOPOLOGY.fullmatch(topology) else None


def slice_faults(pool: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A slice has a topology, lies in one zone, and has as many nodes as share its chips evenly."""
    topology = pool.get("tpuTopology")
    if topology is None:
        return
    chips = chips_of(topology)
    if chips is None:
        message = "must be the numbers of chips in two or three dimensions"
        yield faults.invalid(f"{path}.tpuTopology", topology, message, "write it as 2x4 or 2x2x4")
        return
    yield from one_zone_faults(pool, path, "a TPU slice")
    autoscaling = pool.get("autoscaling") or {}
    for field, count in (
        ("nodeCount", pool.get("nodeCount")),
        ("autoscaling.max", autoscaling.get("max")),
        ("autoscaling.totalMax", autoscaling.get("totalMax")),
    ):
        if count and chips % count:
            message = f"must divide the {chips} chips of topology {topology}, so that each node has as many"
            even = [str(n) for n in range(1, min(chips, _NODES_SHOWN_MAX) + 1) if chips % n == 0]
            remedy = f"use one of {', '.join(even)}"
            yield faults.invalid(f"{path}.{field}", count, message, remedy)
    yield from _whole_faults(pool, autoscaling, path)


def one_zone_faults(pool: Mapping[str, Any], path: str, what: str) -> Iterator[FieldError]:
    """What lies close together lies in one zone."""
    zones = pool.get("zones") or []
    if len(zones) > 1:
        message = f"must have at most 1 item: {what} lies in one zone"
        yield faults.invalid(f"{path}.zones", zones, message, f"name one zone, such as zones: [{zones[0]}]")


def _whole_faults(pool: Mapping[str, Any], autoscaling: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A slice that comes and goes is there whole or not at all."""
    highest = autoscaling.get("max", autoscaling.get("totalMax"))
    bounds = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "totalMin")}
    for field, count in {"nodeCount": pool.get("nodeCount"), **bounds}.items():
        if highest and count not in (None, 0, highest):
            message = f"must be 0 or all {highest} nodes: a TPU slice is there whole or not at all"
            yield faults.invalid(f"{path}.{field}", count, message, f"set it to 0 or {highest}")
