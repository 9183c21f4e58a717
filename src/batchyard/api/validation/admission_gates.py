"""Rules of the annotation that holds a Job or Workload back from reserving quota.

Source: Kueue's pkg/util/webhook.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, names

PATH: Final = f"metadata.annotations[{well_known.ADMISSION_GATED_BY}]"
_REMEDY: Final = "list names such as example.com/gate, each once, with commas between them"


def gate_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Gates are domain-prefixed names, each there once."""
    value = _value(obj)
    seen: dict[str, None] = {}
    for gate in _gates(value):
        if not gate:
            yield faults.invalid(PATH, value, "cannot contain empty gate names", _REMEDY)
        elif gate in seen:
            yield faults.invalid(PATH, value, f"duplicate gate name: {gate}", _REMEDY)
        else:
            seen[gate] = None
            for message in names.domain_path(gate):
                yield faults.invalid(PATH, gate, message, _REMEDY)
            if len(gate) > names.LABEL_LENGTH_MAX:
                yield faults.too_long(PATH, names.LABEL_LENGTH_MAX, "shorten the name of the gate")


def gate_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Gates are only taken away, for what was let in once is in."""
    before, after = _gates(_value(old)), _gates(_value(new))
    if after and not before:
        remedy = "set the annotation when creating the object"
        yield faults.forbidden(PATH, "cannot add admission gate after creation", remedy)
    elif any(gate not in before for gate in after):
        yield faults.forbidden(PATH, "can only remove gates, not add new ones", f"leave only gates of {before}")


def _value(obj: Mapping[str, Any]) -> str:
    """The annotation, '' if there is none."""
    annotations = obj["metadata"].get("annotations")
    return annotations.get(well_known.ADMISSION_GATED_BY) or "" if annotations else ""


def _gates(value: str) -> list[str]:
    """The gates of the annotation's value."""
    return [gate.strip() for gate in value.split(",")] if value.strip() else []
