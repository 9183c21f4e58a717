"""Rules of AdmissionChecks. Source: the rules in Kueue's CRD."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata


def admission_check_faults(check: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of an AdmissionCheck."""
    yield from metadata.metadata_faults(check)


def admission_check_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed AdmissionCheck: its controller stays."""
    yield from admission_check_faults(new)
    before, after = ((obj.get("spec") or {}).get("controllerName") for obj in (old, new))
    if before is not None and after is not None and before != after:
        remedy = f"keep {before}, or make a new AdmissionCheck"
        yield faults.broken_rule("spec.controllerName", "string", faults.IMMUTABLE, remedy)
