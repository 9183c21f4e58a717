"""Rules of Namespaces. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import metadata


def namespace_faults(namespace: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Namespace: its name is a label, for it becomes part of host names."""
    yield from metadata.metadata_faults(namespace)
    yield from metadata.finalizer_faults((namespace.get("spec") or {}).get("finalizers") or (), "spec.finalizers")
