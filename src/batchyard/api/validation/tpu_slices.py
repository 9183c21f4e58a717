"""Validation of node pools whose nodes form one TPU slice.

The nodes divide the chips of the slice among them, are in one zone, and are created and deleted together. A slice of
one node is a normal pool. Source: GKE's multi-host TPU node pools, which are resized between 0 and all their nodes;
pkg/cloudprovider/gke (IsMultiHostTpuPodslice, ZeroOrMaxNodeScaling).
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import rules
from batchyard.base.counts import count_with_noun

SpecFields = Mapping[str, Any]

_TPU_TOPOLOGY_PATTERN: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)
#: The names of Google's TPU machine types end with the number of chips: ct5lp-hightpu-4t.
_MACHINE_CHIPS_PATTERN: Final = re.compile(r".*-([1-9]\d?)t", re.ASCII)
_NODES_SHOWN_MAX: Final = 256


def tpu_slice_errors(pool: SpecFields, path: str) -> Iterator[FieldError]:
    """Report a node pool's tpuTopology that is malformed, or does not match the number of nodes and their TPU chips."""
    topology = pool.get("tpuTopology")
    if topology is None:
        return
    topology_path = f"{path}.tpuTopology"
    slice_chips, machine_chips = _chip_count_of_topology(topology), _machine_chip_count(pool["machineType"])
    if slice_chips is None:
        yield from tpu_topology_errors(topology, topology_path)
    elif machine_chips is not None and slice_chips % machine_chips:
        chips_text = count_with_noun(machine_chips, "chip")
        message = f"must have a multiple of {chips_text}, as a {pool['machineType']} has, not {slice_chips}"
        remedy = f"use a topology with a multiple of {chips_text}, or another machine type"
        yield rules.invalid(topology_path, topology, message, remedy)
    elif machine_chips != slice_chips:
        yield from single_zone_errors(pool, path, "a TPU slice of several nodes")
        yield from (
            _chips_per_node_errors(pool, slice_chips, path)
            if machine_chips is None
            else _whole_slice_errors(pool, slice_chips // machine_chips, path)
        )


def tpu_topology_errors(topology: str, path: str, count: int | None = None) -> Iterator[FieldError]:
    """Report a TPU topology that is malformed, or does not have `count` chips if `count` is given."""
    chip_count = _chip_count_of_topology(topology)
    if chip_count is None:
        message = "must be the number of chips in each of two or three dimensions"
        yield rules.invalid(path, topology, message, "write it as 2x4 or 2x2x4")
    elif count not in (None, chip_count):
        chips_text = count_with_noun(count, "chip")
        message = f"must have {chips_text}, as the machine has, not {chip_count}"
        yield rules.invalid(path, topology, message, f"use a topology with {chips_text}, or change accelerator.count")


def single_zone_errors(pool: SpecFields, path: str, reason: str) -> Iterator[FieldError]:
    """Report a node pool with several zones; `reason`, such as a placement group, is why only one is allowed."""
    zones = pool.get("zones") or []
    if len(zones) > 1:
        message = f"must have at most 1 item: {reason} must be in one zone"
        yield rules.invalid(f"{path}.zones", zones, message, f"set a single zone, such as zones: [{zones[0]}]")


def _chip_count_of_topology(topology: str) -> int | None:
    return math.prod(map(int, topology.split("x"))) if _TPU_TOPOLOGY_PATTERN.fullmatch(topology) else None


def _machine_chip_count(machine_type: str) -> int | None:
    """Return the number of TPU chips that a machine type's name states, such as 4 in ct5lp-hightpu-4t, or None."""
    chips_match = _MACHINE_CHIPS_PATTERN.fullmatch(machine_type)
    return int(chips_match[1]) if chips_match else None


def _chips_per_node_errors(pool: SpecFields, slice_chips: int, path: str) -> Iterator[FieldError]:
    node_counts = _node_counts_by_field(pool)
    for field, count in node_counts.items():
        if count and slice_chips % count:
            message = f"must be a divisor of {slice_chips}, the chips of topology {pool['tpuTopology']}"
            divisor_texts = [str(n) for n in range(1, min(slice_chips, _NODES_SHOWN_MAX) + 1) if slice_chips % n == 0]
            yield rules.invalid(f"{path}.{field}", count, message, f"use one of {', '.join(divisor_texts)}")
            return
    yield from _whole_slice_errors(pool, max(node_counts.values(), default=0), path)


def _whole_slice_errors(pool: SpecFields, node_count: int, path: str) -> Iterator[FieldError]:
    for field, count in _node_counts_by_field(pool).items():
        if count not in (0, node_count):
            message = f"must be 0 or {node_count}: a TPU slice {pool['tpuTopology']} has all of its nodes or none"
            yield rules.invalid(
                f"{path}.{field}", count, message, f"use {node_count} (the number of nodes in the slice), or 0"
            )


def _node_counts_by_field(pool: SpecFields) -> dict[str, int]:
    autoscaling = pool.get("autoscaling") or {}
    bounds = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "max", "totalMin", "totalMax")}
    return {field: n for field, n in {"nodeCount": pool.get("nodeCount"), **bounds}.items() if n is not None}
