"""Schedules of CronJobs: whether a text is one, in the words of the library that Kubernetes parses them with.

Source: github.com/robfig/cron v3, parser.go (`ParseStandard`); Go's strconv.Atoi and time.ParseDuration.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

#: Bytes of a schedule; every schedule that is written by hand is far shorter.
LENGTH_MAX: Final = 1024
_FIELDS: Final = 5
_INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_PART: Final = re.compile(r"([0-9]*)(\.?)([0-9]*)([^0-9.]*)")
_UNITS: Final = {
    "ns": 1.0,
    "us": 1e3,
    "\u00b5s": 1e3,
    "\u03bcs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "m": 60e9,
    "h": 3600e9,
}
_DESCRIPTORS: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_EVERY: Final = "@every "
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class ScheduleError(ValueError):
    """A text that is no schedule; the message is the library's."""


class _Bounds(NamedTuple):
    """The values that a field can have."""

    least: int
    most: int
    names: Mapping[str, int] = {}


_BOUNDS: Final = (
    _Bounds(0, 59),
    _Bounds(0, 23),
    _Bounds(1, 31),
    _Bounds(1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Bounds(0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


def check_schedule(text: str) -> None:
    """Raise ScheduleError if a text is no schedule: five fields, or a descriptor such as `@daily`, `@every 90m`."""
    if not text:
        raise ScheduleError("empty spec string")
    if text.startswith("@"):
        _check_descriptor(text)
        return
    fields = text.split()
    if len(fields) != _FIELDS:
        found = " ".join(fields)
        raise ScheduleError(f"expected exactly {_FIELDS} fields, found {len(fields)}: [{found}]")
    for field, bounds in zip(fields, _BOUNDS, strict=True):
        for expression in field.split(","):
            if expression:
                _check_range(expression, bounds)


def _check_descriptor(text: str) -> None:
    if text in _DESCRIPTORS:
        return
    if not text.startswith(_EVERY):
        raise ScheduleError(f"unrecognized descriptor: {text}")
    try:
        _check_duration(text.removeprefix(_EVERY))
    except ScheduleError as error:
        raise ScheduleError(f"failed to parse duration {text}: {error}") from error


def _check_range(expression: str, bounds: _Bounds) -> None:
    """Check `*`, `N`, `N-M`, each with a step: `*/N`."""
    first, *steps = expression.split("/")
    low, *highs = first.split("-")
    start, end = bounds.least, bounds.most
    if low not in {"*", "?"}:
        start = end = _number(low, bounds.names)
        if len(highs) > 1:
            raise ScheduleError(f"too many hyphens: {expression}")
        end = _number(highs[0], bounds.names) if highs else end
    if len(steps) > 1:
        raise ScheduleError(f"too many slashes: {expression}")
    step = _number(steps[0], {}) if steps else 1
    if steps and not highs:
        end = bounds.most
    if start < bounds.least:
        raise ScheduleError(f"beginning of range ({start}) below minimum ({bounds.least}): {expression}")
    if end > bounds.most:
        raise ScheduleError(f"end of range ({end}) above maximum ({bounds.most}): {expression}")
    if start > end:
        raise ScheduleError(f"beginning of range ({start}) beyond end of range ({end}): {expression}")
    if not step:
        raise ScheduleError(f"step of range should be a positive number: {expression}")


def _number(text: str, names: Mapping[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    problem = ""
    digits = text.lstrip("+-").lstrip("0")
    if not _INTEGER.fullmatch(text):
        problem = "invalid syntax"
    elif len(digits) > _DIGITS_MAX or int(text) not in range(-_INT64_MAX - 1, _INT64_MAX + 1):
        problem = "value out of range"
    if problem:
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": {problem}')
    if int(text) < 0:
        raise ScheduleError(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)


def _check_duration(text: str) -> None:
    """Check a duration as Go writes it: `1h30m`, `1.5h`."""
    rest = text[1:] if text[:1] in {"+", "-"} else text
    if rest == "0":
        return
    invalid, total, place = ScheduleError(f'time: invalid duration "{text}"'), 0.0, 0
    if not rest:
        raise invalid
    while place < len(rest):
        part = _PART.match(rest, place)
        if part is None or not (part[1] or part[3]):
            raise invalid
        if not part[4]:
            raise ScheduleError(f'time: missing unit in duration "{text}"')
        if part[4] not in _UNITS:
            raise ScheduleError(f'time: unknown unit "{part[4]}" in duration "{text}"')
        total += float(f"{part[1] or 0}.{part[3] or 0}") * _UNITS[part[4]]
        if total > _INT64_MAX:
            raise invalid
        place = part.end()
