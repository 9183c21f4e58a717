"""Cells that many tables have: what an object says at a path, how old it is, what is in its containers and labels.

A CRD's cell without a value is empty; Kubernetes's own kinds say `<none>` where nothing is chosen and `<unknown>` where
nothing is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import SECOND, Instant, format_age

Cell: TypeAlias = Callable[[Obj, Instant], str]

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
PENDING: Final = "<pending>"
#: Nearly all are dicts, and to ask whether something is one takes a tenth of asking whether it is a Mapping.
_MAPPINGS: Final = (dict, Mapping)


class Column(NamedTuple):
    """A column: its name as the API has it (headers are its capitals), and when it is printed."""

    name: str
    priority: int = 0
    type: str = "string"
    format: str = ""
    description: str = ""
    #: Whether its cells are numbers though its type is another, as with Kubernetes's own counts.
    counts: bool = False


def name(obj: Obj, _now: Instant) -> str:
    """The object's name."""
    return str(obj["metadata"]["name"])


def age(obj: Obj, now: Instant) -> str:
    """How long ago the object was made."""
    created = obj["metadata"].get("creationTimestamp")
    return format_age(now - parse_time(created)) if created else UNKNOWN


def created(obj: Obj, _now: Instant) -> str:
    """When the object was made, to the second."""
    made = obj["metadata"].get("creationTimestamp")
    return format_time(parse_time(made) // SECOND * SECOND) if made else UNKNOWN


@dataclass(frozen=True, slots=True)
class At:
    """The cell of the value at a path, or of the default where there is none."""

    path: tuple[str, ...]
    default: Any = None

    def __call__(self, obj: Obj, _now: Instant) -> str:
        """The text of it."""
        found = _at(obj, self.path)
        return text(self.default if found is None else found)


def at(*path: str, default: Any = None) -> Cell:
    """The cell of the value at a path, or of the default where there is none."""
    return At(path, default)


def chosen(*path: str) -> Cell:
    """The cell of the value at a path; `<none>` where it is empty or not there."""
    return lambda obj, _now: text(value(obj, *path) or NONE)


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """The cell of a condition's status: True, False, Unknown, or empty where there is no such condition."""

    type: str

    def __call__(self, obj: Obj, _now: Instant) -> str:
        """The text of it."""
        found = find_condition(obj, self.type)
        return "" if found is None else text(found.get("status"))


def json_path(cell: Cell) -> str:
    """Where a cell's text is written in the object, as columns of CRDs say it; '' where it is worked out."""
    if cell is age:
        return ".metadata.creationTimestamp"
    if isinstance(cell, ConditionStatus):
        return f".status.conditions[?(@.type=='{cell.type}')].status"
    return "." + ".".join(cell.path) if isinstance(cell, At) else ""


def count(*fields: str) -> Cell:
    """The cell of how many entries some fields have together."""
    return lambda obj, _now: str(sum(len(obj.get(field) or ()) for field in fields))


def count_at(*path: str) -> Cell:
    """The cell of how many entries the list or mapping at a path has."""
    return lambda obj, _now: str(len(value(obj, *path) or ()))


def containers(field: str, *path: str) -> Cell:
    """The cell of one field of all containers of the pod template at a path."""

    def cell(obj: Obj, _now: Instant) -> str:
        return ",".join(str(container.get(field, "")) for container in value(obj, *path, "containers") or ())

    return cell


def labels(*path: str) -> Cell:
    """The cell of the labels at a path."""
    return lambda obj, _now: format_labels(value(obj, *path) or {})


def format_labels(found: Mapping[str, str]) -> str:
    """Labels as kubectl prints them: `a=1,b=2`, by key."""
    return ",".join(f"{key}={each}" for key, each in sorted(found.items())) or NONE


def selector(*path: str) -> Cell:
    """The cell of a label selector in the words of kubectl's `--selector`, by key; at a path, or the spec's own."""

    def cell(obj: Obj, _now: Instant) -> str:
        return format_selector(value(obj, *(path or ("spec", "selector"))) or {}) or NONE

    return cell


def format_selector(found: Mapping[str, Any]) -> str:
    """A label selector in the words of kubectl's `--selector`, by key."""
    parts = [(key, f"{key}={each}") for key, each in (found.get("matchLabels") or {}).items()]
    parts += [(wanted["key"], _expression(wanted)) for wanted in found.get("matchExpressions") or ()]
    return ",".join(part for _, part in sorted(parts))


def value(obj: Obj, *path: str) -> Any:
    """The value at a path, None where there is none."""
    return _at(obj, path)


def text(found: object) -> str:
    """A JSON value in a cell."""
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
