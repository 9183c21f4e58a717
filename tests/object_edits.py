"""Edited copies of objects for tables of valid and invalid cases, and faults as lines of text."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError

Obj = dict[str, Any]
Edits = Mapping[str, Any]


class RemovedField:
    """The value by which an edit removes a field."""

    def __repr__(self) -> str:
        """Return a constant text, because test ids contain it."""
        return "GONE"


GONE: Final = RemovedField()


def with_edits(obj: Mapping[str, Any], edits: Edits) -> Obj:
    """Return a copy of the object with values set or removed at paths such as `spec.podSets[0].count`.

    A part of a path with dots or slashes is quoted: `metadata.labels."a.io/b"`.
    """
    new = copy.deepcopy(dict(obj))
    for path, value in edits.items():
        *way, last = _steps(path)
        holder: Any = new
        for step in way:
            holder = holder[step] if isinstance(step, int) else holder.setdefault(step, {})
        if isinstance(value, RemovedField):
            del holder[last]
        else:
            holder[last] = value
    return new


def _steps(path: str) -> list[str | int]:
    """The keys and indexes of a path."""
    parts = re.findall(r'"([^"]*)"|\[(\d+)\]|([^.\[\]"]+)', path)
    return [int(index) if index else quoted or plain for quoted, index, plain in parts]


def fault_lines(faults: Sequence[FieldError]) -> list[str]:
    """Return `path: problem` of each fault; each fault must have a remedy."""
    assert all(fault.remedy for fault in faults)
    return [f"{fault.path}: {fault.problem}" for fault in faults]


def begins(faults: Sequence[FieldError], *starts: str) -> bool:
    """Whether each fault line begins with the start at its position, and the counts are equal."""
    lines = fault_lines(faults)
    return len(lines) == len(starts) and all(map(str.startswith, lines, starts))
