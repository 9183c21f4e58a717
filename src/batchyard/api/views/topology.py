"""Parsed views of the topology requests of pod sets, and of the topology assignments in admissions.

Sources: Kueue's pkg/workload (IsExplicitlyRequestingTAS) and pkg/util/tas.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from batchyard.api.kueue_conversion import compress_domains, expand_slices
from batchyard.api.validation.topology import SliceLayer
from batchyard.api.well_known import HOSTNAME

#: The maximum number of domains of an assignment: the schema allows as many values in each slice.
_DOMAINS_MAX: Final = 100_000


class TopologyRequest(NamedTuple):
    """Where the pods of a pod set must be placed: the level of one domain for all pods, and the levels of slices."""

    #: The level at which one domain must contain all pods; '' if there is none.
    required: str
    #: The level at which one domain should contain all pods; '' if there is none.
    preferred: str
    #: Whether any placement is acceptable; None if the field is not set.
    unconstrained: bool | None
    #: The levels at which one domain must contain a whole slice, the outermost first, with the sizes of the slices.
    slices: tuple[SliceLayer, ...]
    #: Whether the pod set requests topology-aware scheduling; a pod set group or an index label alone does not.
    is_explicit: bool

    @property
    def is_slices_only(self) -> bool:
        """Whether only the slices are constrained, not all pods together."""
        return not self.required and not self.preferred and bool(self.slices)


class TopologyDomain(NamedTuple):
    """A topology domain in an assignment: its label values, one per level of the assignment, and a number of pods."""

    values: tuple[str, ...]
    pods: int


class TopologyAssignment(NamedTuple):
    """The topology domains assigned to the pods of a pod set.

    If the lowest level is the host name, the levels of an assignment are only this level.
    """

    levels: tuple[str, ...]
    domains: tuple[TopologyDomain, ...]

    @property
    def is_by_host(self) -> bool:
        """Whether the domains are single hosts."""
        return self.levels[-1:] == (HOSTNAME,)


def parse_topology_request(obj: Mapping[str, Any]) -> TopologyRequest:
    """Parse the `topologyRequest` of a pod set."""
    layers = obj.get("podsetSliceRequiredTopologyConstraints") or ()
    slices = tuple(SliceLayer(layer.get("topology") or "", layer.get("size") or 0) for layer in layers)
    slice_level, slice_size = obj.get("podSetSliceRequiredTopology"), obj.get("podSetSliceSize")
    if not slices and slice_level is not None:
        slices = (SliceLayer(slice_level, slice_size or 0),)
    unconstrained = obj.get("unconstrained")
    required, preferred = obj.get("required"), obj.get("preferred")
    requests = (unconstrained, required, preferred, slice_level, slice_size)
    is_explicit = bool(slices) or any(each is not None for each in requests)
    return TopologyRequest(required or "", preferred or "", unconstrained, slices, is_explicit)


def parse_topology_assignment(obj: Mapping[str, Any]) -> TopologyAssignment:
    """Parse the `topologyAssignment` of a pod set in an admission; one with inconsistent slices has no domains."""
    slices = obj.get("slices") or ()
    domains: list[dict[str, Any]] = []
    if sum(part["domainCount"] for part in slices) <= _DOMAINS_MAX:
        with suppress(KeyError, IndexError):
            domains = expand_slices(slices)
    return TopologyAssignment(
        tuple(obj.get("levels") or ()), tuple(TopologyDomain(tuple(each["values"]), each["count"]) for each in domains)
    )


def format_topology_assignment(assignment: TopologyAssignment) -> dict[str, Any]:
    """Return the `topologyAssignment` of a pod set in an admission, in the storage version."""
    domains = [{"values": list(domain.values), "count": domain.pods} for domain in assignment.domains]
    return {"levels": list(assignment.levels), "slices": compress_domains(assignment.levels, domains)}
