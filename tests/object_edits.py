"""Objects changed in one place or a few, for tables of what is right and what is wrong; and faults as one line each."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError

Obj = dict[str, Any]
Edits = Mapping[str, Any]


class RemovedField:
    """The value of a field that an edit takes away."""

    def __repr__(self) -> str:
        """The same in every process: test ids are made of it."""
        return "GONE"


GONE: Final = RemovedField()


def edited(obj: Mapping[str, Any], edits: Edits) -> Obj:
    """A copy of the object with values set, or taken away, at paths such as `spec.podSets[0].count`.

    A part of a path with dots or slashes in it stands in quotes: `metadata.labels."a.io/b"`.
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


def reported(faults: Sequence[FieldError]) -> list[str]:
    """`path: problem` of each fault; every fault says what would be right."""
    assert all(fault.remedy for fault in faults)
    return [f"{fault.path}: {fault.problem}" for fault in faults]


def begins(faults: Sequence[FieldError], *starts: str) -> bool:
    """Whether there are as many faults as starts, each line starting so."""
    lines = reported(faults)
    return len(lines) == len(starts) and all(map(str.startswith, lines, starts))
