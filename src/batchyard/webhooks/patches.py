"""What makes one object of another, as a JSON patch (RFC 6902)."""

from collections.abc import Iterator, Mapping
from typing import Any


def patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The operations: fields of objects one by one, lists whole."""
    return list(_operations(before, after, ""))


def _operations(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    for field in before:
        if field not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(field)}"}
    for field, value in after.items():
        place = f"{path}/{_escaped(field)}"
        old = before.get(field)
        if field not in before:
            yield {"op": "add", "path": place, "value": value}
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            yield from _operations(old, value, place)
        elif old != value:
            yield {"op": "replace", "path": place, "value": value}


def _escaped(field: str) -> str:
    return field.replace("~", "~0").replace("/", "~1")
