"""The metadata that writes store: of a write to the status subresource, and of a server-side apply of kubectl.

For most of its kinds, Kubernetes stores the labels, annotations, finalizers and owner references of a write to the
status. For its newer kinds, and for custom kinds, it keeps all metadata as stored. A server-side apply of kubectl
updates the annotation in which `kubectl apply` records its configuration.

Sources: Kubernetes's pkg/registry (PrepareForUpdate of the status strategies); apiextensions-apiserver,
pkg/registry/customresource/status_strategy.go; apimachinery,
pkg/util/managedfields/internal/lastappliedupdater.go.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.manifests import LAST_APPLIED
from batchyard.api.meta import Obj, annotation, with_metadata
from batchyard.api.validation.rules import annotation_errors
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


_KUBECTL: Final = "kubectl"
#: The characters that Go's JSON encoder escapes.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def with_last_applied(obj: dict[str, Any], config: Mapping[str, Any], manager: str) -> dict[str, Any]:
    """Return the result of a server-side apply; if kubectl applied it, an existing annotation has the configuration.

    The annotation is removed if the annotations become too long.
    """
    if manager != _KUBECTL or not annotation(obj, LAST_APPLIED):
        return obj
    annotations = {**obj["metadata"]["annotations"], LAST_APPLIED: _encode(config)}
    if any(annotation_errors(annotations, "")):
        del annotations[LAST_APPLIED]
    return with_metadata(obj, annotations=annotations)


def _encode(config: Mapping[str, Any]) -> str:
    metadata = dict(config.get("metadata") or {})
    if metadata.get("annotations") is not None:
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != LAST_APPLIED}
    text = json.dumps({**config, "metadata": metadata}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES) + "\n"
