"""Rules of Namespaces. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, names


def namespace_faults(namespace: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Namespace: its name is a label, for it becomes part of host names."""
    yield from metadata.metadata_faults(namespace)
    for i, finalizer in enumerate((namespace.get("spec") or {}).get("finalizers") or ()):
        for message in names.qualified_name(finalizer):
            yield faults.invalid(f"spec.finalizers[{i}]", finalizer, message, "use kubernetes, or prefix/name")
