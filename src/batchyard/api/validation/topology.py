"""Rules of Topologies. Source: the rules in Kueue's CRD."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata

_PATH: Final = "spec.levels"


def topology_faults(topology: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Topology."""
    yield from metadata.metadata_faults(topology)
    levels = _levels(topology)
    if len(dict.fromkeys(levels)) < len(levels):
        yield faults.broken_rule(
            _PATH, "array", "must be unique", "name each node label once, from widest to narrowest"
        )
    if well_known.HOSTNAME in levels[:-1]:
        message = f"the {well_known.HOSTNAME} label can only be used at the lowest level of topology"
        yield faults.broken_rule(_PATH, "array", message, f"put {well_known.HOSTNAME} last")
    for i, label in enumerate(levels):
        yield from metadata.label_key_faults(label, f"{_PATH}[{i}].nodeLabel")


def topology_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Topology: levels change only above hostnames."""
    yield from topology_faults(new)
    before, after = _levels(old), _levels(new)
    if before != after and not (well_known.HOSTNAME in before[-1:] and well_known.HOSTNAME in after[-1:]):
        message = (
            f"levels are mutable only when {well_known.HOSTNAME} is the lowest level both before and after the change"
        )
        yield faults.broken_rule(_PATH, "array", message, "keep the levels, or make a new Topology")


def _levels(topology: Mapping[str, Any]) -> Sequence[str]:
    """The node labels of a Topology, from the widest level to the narrowest."""
    return [level["nodeLabel"] for level in (topology.get("spec") or {}).get("levels") or ()]
