"""What those who run Jobs and those who run JobSets both ask of a Job."""

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj


def has_ended(job: Obj) -> bool:
    """Whether it is complete or has failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")
