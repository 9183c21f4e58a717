"""What those who run Jobs and those who run JobSets both ask of a Job."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj


def has_ended(job: Obj) -> bool:
    """Whether it is complete or has failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def parallel_pods(spec: Mapping[str, Any]) -> int:
    """How many pods run at once: the parallelism, but never more than there are completions to reach."""
    parallelism: int = spec.get("parallelism", 1)
    completions: int = spec.get("completions", parallelism)
    return min(parallelism, completions)
