"""What Go's time.Parse says of a text that is no time, for the two layouts that Kubernetes reads times by.

Source: Go's time package (Parse, ParseError), read element by element as it does; metav1.Time and metav1.MicroTime.
"""

import re
from typing import Final

import msgspec

from batchyard.api.times import days_in

_TWO: Final = r"\d\d"
#: The elements of layouts, in order: what Go calls each, and what fits it.
_DAY: Final = (("2006", r"\d{4}"), ("-", "-"), ("01", _TWO), ("-", "-"), ("02", _TWO), ("T", "T"))
_CLOCK: Final = (("15", r"\d\d?"), (":", ":"), ("04", _TWO), (":", ":"))
_ZONE: Final = ("Z07:00", r"Z|[+-]\d\d:\d\d")
_SECONDS: Final = (("05", _TWO + r"(?:[.,]\d+)?"), _ZONE)
_FINE_SECONDS: Final = (("05", _TWO), (".000000", r"[.,]\d{6}"), _ZONE)
_SECOND_LAYOUT: Final = (*_DAY, *_CLOCK, *_SECONDS)
_MICRO_LAYOUT: Final = (*_DAY, *_CLOCK, *_FINE_SECONDS)
#: The highest of what has a lowest and a highest; days are looked at last.
_RANGES: Final = {"01": ("month", 1, 12), "15": ("hour", 0, 23), "04": ("minute", 0, 59), "05": ("second", 0, 59)}


def time_fault(text: str, *, is_micro: bool) -> str | None:
    """What is said of a text; None where it is a time of that layout."""
    layout = _MICRO_LAYOUT if is_micro else _SECOND_LAYOUT
    left, found = text, dict[str, str]()
    for name, fits in layout:
        match = re.compile(fits, re.ASCII).match(left)
        if match is None:
            told = f'"{"".join(each for each, _ in layout)}": cannot parse {_quoted(left)} as "{name}"'
            return f"parsing time {_quoted(text)} as {told}"
        found[name] = match[0]
        if name in _RANGES:
            what, lowest, highest = _RANGES[name]
            if not lowest <= int(match[0][:2]) <= highest:
                return f"parsing time {_quoted(text)}: {what} out of range"
        left = left[match.end() :]
    if left:
        return f"parsing time {_quoted(text)}: extra text: {_quoted(left)}"
    if not 1 <= int(found["02"]) <= days_in(int(found["2006"]), int(found["01"])):
        return f"parsing time {_quoted(text)}: day out of range"
    return None


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
