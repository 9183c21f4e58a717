"""What annotations and labels say, read as Go reads it: numbers, truth values, layers of slices.

Rules and controllers read them here, so that what is accepted is also what is done.
"""

import re
from typing import Final

import msgspec

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation
from batchyard.base.instant import Duration, parse_duration

_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
#: No more digits than an int64 has, for Python refuses to read very long numbers.
_WHOLE: Final = re.compile(r"([+-]?)0*(\d{1,19})", re.ASCII)
LAYERS_MAX: Final = 3


class Layer(msgspec.Struct, frozen=True):
    """One entry of the annotation on layers of slices."""

    topology: str = ""
    size: int = 0


def whole_number(text: str, *, bits: int = 64) -> int | None:
    """A whole number in decimal digits, maybe with a sign; None for any other text or what so many bits do not hold."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    value = int(found[1] + found[2])
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def boolean(text: str) -> bool | None:
    """A truth value, or None."""
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def duration(obj: Obj, name: str) -> Duration | None:
    """The duration that an annotation says; None if there is none, or it says no duration.

    Who reads manifests tells the user of such; to those who act on the object it says nothing.
    """
    text = annotation(obj, name)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        return None


def layers(text: str) -> list[Layer] | None:
    """The layers of slices that an annotation lists, from the widest; None where it is no such list."""
    try:
        return msgspec.json.decode(text, type=list[Layer])
    except (msgspec.DecodeError, RecursionError):
        return None


def is_elastic(obj: Obj) -> bool:
    """Whether a Job or Workload asks to grow and shrink in slices of Workloads."""
    return annotation(obj, well_known.ELASTIC_JOB) == "true"
