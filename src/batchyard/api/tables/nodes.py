"""Cells of Nodes. Source: Kubernetes's pkg/printers/internalversion."""

from batchyard.api import well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.tables.cells import NONE, Cell, value
from batchyard.base.instant import Instant


def status(obj: Obj, _now: Instant) -> str:
    """Whether a node is ready, as far as is known, and whether pods may come to it."""
    ready = find_condition(obj, "Ready")
    known = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    return f"{known},SchedulingDisabled" if value(obj, "spec", "unschedulable") else known


def roles(obj: Obj, _now: Instant) -> str:
    """The roles that labels give a node."""
    labels = obj["metadata"].get("labels") or {}
    prefix = well_known.NODE_ROLE_PREFIX
    found = [key.removeprefix(prefix) for key in labels if key.startswith(prefix)]
    found.append(labels.get(well_known.OLD_NODE_ROLE) or "")
    return ",".join(sorted(dict.fromkeys(filter(None, found)))) or NONE


def address(type_: str) -> Cell:
    """The cell of a node's first address of a type."""

    def cell(obj: Obj, _now: Instant) -> str:
        addresses = value(obj, "status", "addresses") or ()
        return next((str(each["address"]) for each in addresses if each["type"] == type_), NONE)

    return cell
