"""Rules of ProvisioningRequests. Source: the rules in the cluster autoscaler's CRD."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.schema import meaning_of
from batchyard.api.validation import faults, metadata

#: What stays once it is there, each with its type as the API server shows it.
_KEPT: Final = {"parameters": "object", "podSets": "array", "provisioningClassName": "string"}


def provisioning_request_faults(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ProvisioningRequest."""
    yield from metadata.metadata_faults(request)


def provisioning_request_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ProvisioningRequest: what it asks for stays."""
    yield from provisioning_request_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    meaning = meaning_of(scheme.PROVISIONING_REQUEST)
    for field, schema_type in _KEPT.items():
        is_given = field in before and field in spec
        if is_given and not meaning.is_same_field("ProvisioningRequest.spec", field, spec, before):
            remedy = "keep the value it has, or make a new ProvisioningRequest"
            yield faults.broken_rule(f"spec.{field}", schema_type, "Value is immutable", remedy)
