"""Rules of ResourceFlavors. Source: Kueue's ResourceFlavor webhook and the rules in its CRD."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, tolerations

_TOPOLOGY_KEPT: Final = "topologyName is immutable when topologyName is set"


def resource_flavor_faults(flavor: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ResourceFlavor."""
    spec = flavor.get("spec") or {}
    yield from metadata.metadata_faults(flavor)
    labels = metadata.label_faults(spec.get("nodeLabels"), "spec.nodeLabels")
    yield from faults.denied_by("vresourceflavor.kb.io", labels)
    yield from tolerations.taint_faults(spec.get("nodeTaints") or (), "spec.nodeTaints")
    yield from tolerations.toleration_faults(spec.get("tolerations") or (), "spec.tolerations")
    if spec.get("topologyName") and not spec.get("nodeLabels"):
        message = "at least one nodeLabel is required when topology is set"
        yield faults.broken_rule("spec", "object", message, "give a label that the nodes of the topology have")


def resource_flavor_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ResourceFlavor: its topology stays."""
    yield from resource_flavor_faults(new)
    before = (old.get("spec") or {}).get("topologyName")
    if before is not None and (new.get("spec") or {}).get("topologyName") != before:
        yield faults.broken_rule("spec", "object", _TOPOLOGY_KEPT, f"keep topologyName: {before}, or make a new flavor")
