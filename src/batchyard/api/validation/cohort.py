"""Rules of Cohorts. Source: Kueue's Cohort webhook and the rules in its CRD."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import metadata, quotas


def cohort_faults(cohort: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Cohort."""
    spec = cohort.get("spec") or {}
    yield from metadata.metadata_faults(cohort)
    yield from quotas.fair_sharing_faults(spec.get("fairSharing"))
    parent = spec.get("parentName") or ""
    yield from quotas.group_faults(spec.get("resourceGroups") or (), kind="Cohort", parent=parent)
