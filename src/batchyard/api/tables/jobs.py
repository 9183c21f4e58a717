"""Cells of Jobs. The duration runs from the start to the completion, and until now where there is none.

Source: Kubernetes's pkg/printers/internalversion.
"""

from typing import Final

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.tables.cells import value
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, format_age

_CONDITIONS: Final = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def status(obj: Obj, _now: Instant) -> str:
    """The first that holds of Job's conditions in the order of Kubernetes, a deletion among them."""
    if is_true(obj, "Complete"):
        return "Complete"
    if is_true(obj, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((type_ for type_ in _CONDITIONS if is_true(obj, type_)), "Running")


def completions(obj: Obj, _now: Instant) -> str:
    """How many pods succeeded, of how many wanted; without a number wanted, one success ends all."""
    succeeded = value(obj, "status", "succeeded") or 0
    wanted, parallelism = value(obj, "spec", "completions"), value(obj, "spec", "parallelism") or 0
    if wanted is not None:
        return f"{succeeded}/{wanted}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def duration(obj: Obj, now: Instant) -> str:
    """How long the Job has run, or ran."""
    start, end = value(obj, "status", "startTime"), value(obj, "status", "completionTime")
    if not start:
        return ""
    return format_age((parse_time(end) if end else now) - parse_time(start))
