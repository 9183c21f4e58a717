"""Cells of roles and their bindings. Source: Kubernetes's pkg/printers/internalversion."""

from batchyard.api.meta import Obj
from batchyard.api.tables.cells import Cell
from batchyard.base.instant import Instant


def role(obj: Obj, _now: Instant) -> str:
    """The role of a binding: `ClusterRole/view`."""
    return f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"


def subjects(kind: str) -> Cell:
    """The cell of the subjects of a kind."""

    def cell(obj: Obj, _now: Instant) -> str:
        found = [subject for subject in obj.get("subjects") or () if subject["kind"] == kind]
        return ", ".join(
            f"{each.get('namespace', '')}/{each['name']}" if kind == "ServiceAccount" else each["name"]
            for each in found
        )

    return cell
