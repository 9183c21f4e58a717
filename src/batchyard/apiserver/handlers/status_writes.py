"""The metadata that a write to the status subresource changes, by kind.

For most of its kinds, Kubernetes stores the labels, annotations, finalizers and owner references of such a write. For
its newer kinds, and for custom kinds, it keeps all metadata as stored.

Sources: Kubernetes's pkg/registry (PrepareForUpdate of the status strategies); apiextensions-apiserver,
pkg/registry/customresource/status_strategy.go.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj
from batchyard.apiserver.resources import Resource

#: The metadata fields that clients may change.
_CLIENT_FIELDS: Final = ("labels", "annotations", "finalizers", "ownerReferences")
#: The native kinds of which a write to the status changes no metadata.
_FIXED_KINDS: Final = frozenset(
    {*(scheme.FLOW_SCHEMA, scheme.PRIORITY_LEVEL, scheme.VALIDATING_POLICY), "APIService.apiregistration.k8s.io"}
)
#: The fields that a write to the status keeps, of the other native kinds.
_FIXED_FIELDS: Final[Mapping[str, str]] = {scheme.DEPLOYMENT: "labels", scheme.POD: "ownerReferences"}


def metadata_after_status_write(
    resource: Resource, sent_metadata: Mapping[str, Any], stored_object: Obj
) -> Mapping[str, Any]:
    """Return the metadata to store for a write to the status; those of `stored_object` if nothing changes."""
    stored_metadata = stored_object["metadata"]
    metadata = dict(stored_metadata)
    for field in _CLIENT_FIELDS:
        if is_changed_by_status_write(resource, field):
            metadata.pop(field, None)
            if value := sent_metadata.get(field):
                metadata[field] = value
    # Decoding gives a Job without labels those of its pods. Kubernetes decodes the stored Job too.
    has_new_labels = "labels" in metadata and "labels" not in stored_metadata
    if has_new_labels and metadata["labels"] == with_defaults(stored_object)["metadata"].get("labels"):
        del metadata["labels"]
    return stored_metadata if metadata == stored_metadata else metadata


def applied_status_metadata(resource: Resource, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a configuration that is applied to the status, without the fields that it cannot set."""
    return {
        field: value
        for field, value in metadata.items()
        if field not in _CLIENT_FIELDS or is_changed_by_status_write(resource, field)
    }


def is_changed_by_status_write(resource: Resource, field: str) -> bool:
    """Return whether a write to the status of a kind stores this metadata field."""
    kind = resource.served_kind.constant
    return resource.is_native and kind not in _FIXED_KINDS and _FIXED_FIELDS.get(kind) != field
