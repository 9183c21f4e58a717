"""Values of annotations and labels, parsed as Go parses them: integers, booleans, durations, slice layers.

Validation and controllers share these functions, so that accepted values are interpreted in the same way.
"""

import re
from typing import Final

import msgspec

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation
from batchyard.base.instant import Duration, parse_duration

_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
#: At most the digits of an int64, because Python rejects very long numbers.
_WHOLE: Final = re.compile(r"([+-]?)0*(\d{1,19})", re.ASCII)
LAYERS_MAX: Final = 3


class Layer(msgspec.Struct, frozen=True):
    """One entry of the annotation for slice layers."""

    topology: str = ""
    size: int = 0


def whole_number(text: str, *, bits: int = 64) -> int | None:
    """Parse a decimal integer with an optional sign; None for other texts or if it does not fit in `bits` bits."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    value = int(found[1] + found[2])
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def boolean(text: str) -> bool | None:
    """Parse a boolean; None for other texts."""
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def duration(obj: Obj, name: str) -> Duration | None:
    """Return the duration in an annotation; None if it is missing or malformed.

    The reader of manifests reports malformed durations to the user; controllers ignore them.
    """
    text = annotation(obj, name)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        return None


def layers(text: str) -> list[Layer] | None:
    """Parse the slice layers in an annotation, widest first; None if the text is not such a list."""
    try:
        return msgspec.json.decode(text, type=list[Layer])
    except (msgspec.DecodeError, RecursionError):
        return None


def is_elastic(obj: Obj) -> bool:
    """Report whether a Job or Workload is elastic, that is scaled with Workload slices."""
    return annotation(obj, well_known.ELASTIC_JOB) == "true"
