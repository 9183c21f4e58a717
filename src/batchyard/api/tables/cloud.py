"""Cells of clusters, their pools, and what is asked of the cloud."""

from batchyard.api.meta import Obj
from batchyard.api.tables.cells import text, value
from batchyard.base.instant import Instant


def zones(obj: Obj, _now: Instant) -> str:
    """The zones of a cluster or a pool."""
    return ",".join(value(obj, "spec", "zones") or ())


def size(obj: Obj, _now: Instant) -> str:
    """How many nodes a pool may have: `4` or `0-24` in each zone, `0-24 total` in all."""
    spec = obj.get("spec") or {}
    bounds = spec.get("autoscaling")
    if bounds is None:
        return text(spec.get("nodeCount"))
    if "totalMax" in bounds:
        return f"{bounds.get('totalMin', 0)}-{bounds['totalMax']} total"
    return f"{bounds.get('min', 0)}-{text(bounds.get('max'))}"


def phase(obj: Obj, _now: Instant) -> str:
    """How far an instance has come; one that is given up is terminating."""
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return value(obj, "status", "phase") or "Pending"
