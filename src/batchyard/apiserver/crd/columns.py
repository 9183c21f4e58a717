"""Table columns of custom kinds: the name, and the columns of the definition, or else the age.

Source: k8s.io/apiextensions-apiserver, pkg/registry/customresource/tableconvertor.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.printing.cells import Column, text
from batchyard.api.times import parse_time
from batchyard.apiserver.crd.json_path import Step, path_of, values_at
from batchyard.base.instant import Instant, format_age

_NAME: Final = Column("Name", format="name")
_AGE: Final[Mapping[str, Any]] = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_encode = msgspec.json.encode


class Columns:
    """The table columns of one version of a definition."""

    def __init__(self, defined: Sequence[Mapping[str, Any]]) -> None:
        self._defined = defined or [_AGE]
        self._paths: Sequence[Sequence[Step]] = [path_of(each["jsonPath"]) for each in self._defined]

    def columns(self) -> list[Column]:
        """Return the columns."""
        return [_NAME, *map(_column, self._defined)]

    def cells(self, obj: Obj, now: Instant) -> list[str]:
        """Return the cells of an object."""
        found = [_cell(obj, each["type"], path, now) for each, path in zip(self._defined, self._paths, strict=True)]
        return [obj["metadata"]["name"], *found]


def _column(defined: Mapping[str, Any]) -> Column:
    return Column(
        defined["name"],
        defined.get("priority", 0),
        defined["type"],
        defined.get("format", ""),
        defined.get("description", ""),
    )


def _cell(obj: Obj, type_: str, path: Sequence[Step], now: Instant) -> str:
    """Return the first value at a path, if it has the column's type."""
    values = values_at(obj, path)
    if not values or values[0] is None:
        return ""
    value = values[0]
    match type_:
        case "string":
            return _encode(value).decode() if isinstance(value, Mapping | list) else text(value)
        case "date":
            return _age(value, now)
        case "boolean":
            return text(value) if isinstance(value, bool) else ""
        case "integer":
            return str(int(value)) if _is_number(value) else ""
    return text(value) if _is_number(value) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _age(value: Any, now: Instant) -> str:
    try:
        return format_age(now - parse_time(value))
    except (TypeError, ValueError):
        return "<invalid>"
