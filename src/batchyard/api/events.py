"""Events of both sorts: those that are counted and those that are series, read alike."""

from batchyard.api.meta import Obj


def last_told(event: Obj) -> str:
    """When it was told last, as it is written; '' if it does not say. Source: printEvent of Kubernetes's printers."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return last or ""


def times_told(event: Obj) -> int:
    """How often it was told."""
    return (event.get("series") or {}).get("count") or event.get("count") or 1
