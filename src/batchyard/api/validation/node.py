"""Rules of Nodes. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import amounts, faults, metadata, tolerations

#: What a node gets once and keeps, with the word of the message.
_KEPT: Final = (("podCIDRs", "podCIDR"), ("providerID", "providerID"))


def node_faults(node: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Node."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    yield from metadata.metadata_faults(node)
    yield from tolerations.taint_faults(spec.get("taints") or (), "spec.taints")
    for field in ("capacity", "allocatable"):
        for name, value in (status.get(field) or {}).items():
            yield from amounts.amount_faults(value, f"status.{field}[{name}]")


def node_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Node: its machine and its addresses for pods stay."""
    yield from node_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for field, word in _KEPT:
        if before.get(field) and spec.get(field) != before[field]:
            message = f'node updates may not change {word} except from "" to valid'
            yield faults.forbidden(f"spec.{field}", message, f"keep {faults.printed(before[field])}")
