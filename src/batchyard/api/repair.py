"""What somebody may have meant who wrote an object that is not sound: the same without the fields in which it is not.

So that the rest of a broken document can be looked at, and its author sees how it could read.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.api.scheme import KINDS

_STEP: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
#: Mending one fault may bring out the next; no document takes more rounds.
_ROUNDS_MAX: Final = 6


def repaired(value: Any) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
    """The object as its author could write it, and the same as batchyard holds it; None where nobody could guess."""
    for _ in range(_ROUNDS_MAX):
        if not isinstance(value, Mapping):
            return None
        decoded = decode(value)
        if decoded.obj is not None:
            return value, decoded.obj
        mended = value
        for fault in decoded.faults:
            mended = _mended(mended, fault)
        if mended == value:
            return None
        value = mended
    return None


def _mended(obj: Mapping[str, Any], fault: FieldError) -> Mapping[str, Any]:
    steps = [key or name for key, name in _STEP.findall(fault.path)]
    if not steps or steps == ["kind"]:
        return obj
    if steps == ["apiVersion"]:
        served = [info.api_version for info in KINDS if info.kind == obj.get("kind")]
        return {**obj, "apiVersion": served[0]} if served else obj
    if fault.problem.startswith("Required value") and steps[-1] == "coveredResources":
        changed: Mapping[str, Any] = _changed(obj, steps[:-1], _covering)
        return changed
    kept: Mapping[str, Any] = _changed(obj, steps[:-1], lambda holder: _without(holder, steps[-1]))
    return kept


def _changed(value: Any, steps: Sequence[str], change: Any) -> Any:
    """The value with what lies at the end of the steps changed; as it was if there is nothing."""
    if not steps:
        return change(value)
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping) and step in value:
        return {**value, step: _changed(value[step], rest, change)}
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        index = int(step)
        return [*value[:index], _changed(value[index], rest, change), *value[index + 1 :]]
    return value


def _without(holder: Any, step: str) -> Any:
    if isinstance(holder, Mapping):
        return {key: value for key, value in holder.items() if str(key) != step}
    if isinstance(holder, list) and step.isdecimal():
        return [item for index, item in enumerate(holder) if index != int(step)]
    return holder


def _covering(group: Any) -> Any:
    """A resource group that covers what its flavors have quota for."""
    if not isinstance(group, Mapping) or not isinstance(group.get("flavors"), list):
        return group
    lists = [flavor.get("resources") for flavor in group["flavors"] if isinstance(flavor, Mapping)]
    named = [row.get("name") for rows in lists if isinstance(rows, list) for row in rows if isinstance(row, Mapping)]
    names = list(dict.fromkeys(name for name in named if isinstance(name, str)))
    return {**group, "coveredResources": names} if names else group
