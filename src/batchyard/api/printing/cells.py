"""Cells that many tables share: values at a path, ages, containers, labels.

A CRD's cell without a value is empty. Kubernetes's own kinds print `<none>` for empty choices and `<unknown>` for
unknown values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.meta import Obj, find_condition
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import SECOND, Instant, format_age

Cell: TypeAlias = Callable[[Obj, Instant], str]

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
PENDING: Final = "<pending>"
#: Nearly all are dicts, and isinstance with dict takes a tenth of the time of isinstance with Mapping.
_MAPPINGS: Final = (dict, Mapping)


class Column(NamedTuple):
    """A column: its name as in the API (headers are upper case), and its print priority."""

    name: str
    priority: int = 0
    type: str = "string"
    format: str = ""
    description: str = ""
    #: Whether its cells are numbers despite another type, as for Kubernetes's own counts.
    counts: bool = False


def name(obj: Obj, _now: Instant) -> str:
    """Return the object's name."""
    return str(obj["metadata"]["name"])


def age(obj: Obj, now: Instant) -> str:
    """Return the age of the object."""
    created = obj["metadata"].get("creationTimestamp")
    return format_age(now - parse_time(created)) if created else UNKNOWN


def created(obj: Obj, _now: Instant) -> str:
    """Return the creation time of the object, to the second."""
    made = obj["metadata"].get("creationTimestamp")
    return format_time(parse_time(made) // SECOND * SECOND) if made else UNKNOWN


@dataclass(frozen=True, slots=True)
class PathCell:
    """The cell of the value at a path, or of a default."""

    path: tuple[str, ...]
    default: Any = None

    def __call__(self, obj: Obj, _now: Instant) -> str:
        """Return the text."""
        found = _at(obj, self.path)
        return text(self.default if found is None else found)


def at(*path: str, default: Any = None) -> Cell:
    """Return the cell of the value at a path, or of a default."""
    return PathCell(path, default)


def chosen(*path: str) -> Cell:
    """Return the cell of the value at a path; `<none>` if it is empty or missing."""
    return lambda obj, _now: text(value(obj, *path) or NONE)


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """The cell of a condition's status: True, False, Unknown, or empty if the condition is missing."""

    type: str

    def __call__(self, obj: Obj, _now: Instant) -> str:
        """Return the text."""
        found = find_condition(obj, self.type)
        return "" if found is None else text(found.get("status"))


def json_path(cell: Cell) -> str:
    """Return the JSON path of a cell as in the columns of a CRD; '' for a computed cell."""
    if cell is age:
        return ".metadata.creationTimestamp"
    if isinstance(cell, ConditionStatus):
        return f".status.conditions[?(@.type=='{cell.type}')].status"
    return "." + ".".join(cell.path) if isinstance(cell, PathCell) else ""


def count(*fields: str) -> Cell:
    """Return the cell of the total number of entries of some fields."""
    return lambda obj, _now: str(sum(len(obj.get(field) or ()) for field in fields))


def count_at(*path: str) -> Cell:
    """Return the cell of the number of entries in the list or mapping at a path."""
    return lambda obj, _now: str(len(value(obj, *path) or ()))


def containers(field: str, *path: str) -> Cell:
    """Return the cell of one field of all containers of the pod template at a path."""

    def cell(obj: Obj, _now: Instant) -> str:
        return ",".join(str(container.get(field, "")) for container in value(obj, *path, "containers") or ())

    return cell


def labels(*path: str) -> Cell:
    """Return the cell of the labels at a path."""
    return lambda obj, _now: format_labels(value(obj, *path) or {})


def format_labels(found: Mapping[str, str]) -> str:
    """Format labels like kubectl: `a=1,b=2`, by key."""
    return ",".join(f"{key}={each}" for key, each in sorted(found.items())) or NONE


def selector(*path: str) -> Cell:
    """Return the cell of a label selector in the syntax of kubectl's `--selector`, at a path or `spec.selector`."""

    def cell(obj: Obj, _now: Instant) -> str:
        return format_selector(value(obj, *(path or ("spec", "selector"))) or {}) or NONE

    return cell


def format_selector(found: Mapping[str, Any]) -> str:
    """Format a label selector in the syntax of kubectl's `--selector`, by key."""
    parts = [(key, f"{key}={each}") for key, each in (found.get("matchLabels") or {}).items()]
    parts += [(wanted["key"], _expression(wanted)) for wanted in found.get("matchExpressions") or ()]
    return ",".join(part for _, part in sorted(parts))


def value(obj: Obj, *path: str) -> Any:
    """Return the value at a path, or None."""
    return _at(obj, path)


def text(found: object) -> str:
    """Return the text of a JSON value."""
    if found is None or isinstance(found, str):
        return found or ""
    return str(found).lower() if isinstance(found, bool) else str(found)


def _at(found: Any, path: Sequence[str]) -> Any:
    for part in path:
        if not isinstance(found, _MAPPINGS):
            return None
        found = found.get(part)
    return found


def _expression(wanted: Mapping[str, Any]) -> str:
    values = ",".join(sorted(wanted.get("values") or ()))
    match wanted["operator"]:
        case "In":
            return f"{wanted['key']} in ({values})"
        case "NotIn":
            return f"{wanted['key']} notin ({values})"
        case "DoesNotExist":
            return f"!{wanted['key']}"
    return str(wanted["key"])
