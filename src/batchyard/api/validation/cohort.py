"""Rules of Cohorts. Source: Kueue's Cohort webhook and the rules in its CRD."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, quotas

_WEBHOOK: Final = "vcohort.kb.io"


def cohort_faults(cohort: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Cohort."""
    spec = cohort.get("spec") or {}
    yield from metadata.metadata_faults(cohort)
    yield from faults.denied_by(_WEBHOOK, quotas.fair_sharing_faults(spec.get("fairSharing")))
    parent = spec.get("parentName") or ""
    groups = quotas.group_faults(spec.get("resourceGroups") or (), kind="Cohort", parent=parent)
    yield from faults.denied_by(_WEBHOOK, groups)
