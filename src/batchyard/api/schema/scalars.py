"""Validators of scalars: strings, numbers, quantities, times.

A visitor takes a value and returns it if it is valid, else Flaws. Only quantities and times are normalized to
Kubernetes's form, always as strings. If only the type matters, the type itself (`str`, `bool`) is the visitor, so that
the parent compares without a call.
"""

import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from batchyard.api import quantity
from batchyard.api.schema.violations import Flaw, Flaws, choice, flaw, nearest, shown, wrong_type
from batchyard.api.times import in_utc, micro_in_utc
from batchyard.base.instant import parse_duration
from batchyard.base.memoize import memoized_if_short

Visitor: TypeAlias = Callable[[Any], Any]
PlainVisitor: TypeAlias = "Visitor | type"

#: Descriptions of types, for messages.
WORDS: Final = {
    "string": "a string",
    "bool": "true or false",
    "int": "an integer",
    "int32": "an integer",
    "int64": "an integer",
    "quantity": "a quantity such as 500m, 2 or 10Gi",
    "int-or-string": "an integer or a string",
    "time": "a time such as 2026-01-01T00:00:00Z",
    "micro-time": "a time such as 2026-01-01T00:00:00.000000Z",
    "duration": "a duration such as 90s or 1h30m",
    "bytes": "a base64 text",
    "any": "any value",
}
_RANGES: Final = {"int": 63, "int32": 31, "int64": 63}
_CACHE_SIZE: Final = 4096
_REWRITTEN: Final = frozenset({"quantity", "time", "micro-time"})
#: Descriptions of name patterns.
_PATTERN_WORDS: Final = {
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "lower case letters, digits and '-', a letter or digit first and last",
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": (
        "lower case letters, digits, '-' and '.', a letter or digit first and last"
    ),
}


def scalar_visitor(expression: str, facts: Mapping[str, Any]) -> PlainVisitor:
    """Return the visitor of a scalar type."""
    if expression == "string":
        return _string(facts) if facts.keys() - {"default"} else str
    if expression in _RANGES:
        return _integer(expression, facts)
    if expression == "bool":
        return bool
    if expression in _PARSERS:
        return _parsed(expression, *_PARSERS[expression])
    return _anything


def plain_flaws(wanted: type, value: Any) -> Flaws:
    """Return the flaws of a value that is not of a plain type."""
    if wanted is bool:
        spelt = {"true": "true", "yes": "true", "false": "false", "no": "false"}.get(str(value).lower())
        return wrong_type(value, WORDS["bool"], f"write {spelt} without quotes" if spelt else "")
    text = shown(value)
    is_scalar = isinstance(value, bool | int | float) and " " not in text
    return wrong_type(value, WORDS["string"], f'put it in quotes: "{text}"' if is_scalar else "")


def _anything(value: Any) -> Any:
    return value


def _integer(expression: str, facts: Mapping[str, Any]) -> Visitor:
    bits = _RANGES[expression]
    lowest, highest = facts.get("min", -(1 << bits)), facts.get("max", (1 << bits) - 1)

    def visit(value: Any) -> Any:
        if type(value) is not int:
            return _not_an_integer(value)
        if lowest <= value <= highest:
            return value
        if value < lowest:
            return flaw(f"Invalid value: {shown(value)}: must be at least {lowest}", f"use {lowest} or more")
        return flaw(f"Invalid value: {shown(value)}: must be at most {highest}", f"use {highest} or less")

    return visit


def _not_an_integer(value: Any) -> Flaws:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
        return wrong_type(value, "an integer", f"write {int(value)} without quotes")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return wrong_type(value, "an integer", f"write {int(value)}")
    return wrong_type(value, "an integer")


def _string(facts: Mapping[str, Any]) -> Visitor:
    def check(value: str) -> Any:
        return Flaws(_string_flaws(value, facts)) or value

    checked = memoized_if_short(_CACHE_SIZE)(check)

    def visit(value: Any) -> Any:
        if type(value) is not str:
            return plain_flaws(str, value)
        found = checked(value)
        return value if type(found) is str else found

    return visit


def _string_flaws(value: str, facts: Mapping[str, Any]) -> Iterator[Flaw]:
    allowed = facts.get("enum")
    if allowed is not None:
        if value not in allowed:
            yield _unsupported(value, allowed)
        return
    if len(value) < facts.get("minLength", 0):
        least = facts["minLength"]
        wanted = f"must have at least {least} characters" if least > 1 else "must not be empty"
        yield Flaw((), f"Invalid value: {shown(value)}: {wanted}", "fill it in")
    elif len(value) > facts.get("maxLength", len(value)):
        remedy = f"shorten it by {len(value) - facts['maxLength']}"
        yield Flaw((), f"Too long: may not be more than {facts['maxLength']} characters", remedy)
    elif "pattern" in facts and not _compiled(facts["pattern"]).search(value):
        words = _PATTERN_WORDS.get(facts["pattern"])
        remedy = f"use {words}" if words else "write it so that it matches"
        yield Flaw((), f"Invalid value: {shown(value)}: must match {facts['pattern']}", remedy)


def _unsupported(value: str, allowed: list[str]) -> Flaw:
    close = nearest(value, allowed)
    remedy = f"did you mean {close}?" if close else f"use {choice(allowed)}"
    shown_names = ", ".join(map(shown, allowed))
    return Flaw((), f"Unsupported value: {shown(value)}: supported values: {shown_names}", remedy)


@lru_cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of a CRD in Go syntax: `$` is the end of the text, and flags may come after `^`."""
    if pattern.startswith("^(?i)"):
        pattern = "(?i)^" + pattern.removeprefix("^(?i)")
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), re.ASCII)


def _parsed(expression: str, types: tuple[type, ...], parse: Callable[[Any], object]) -> Visitor:
    """Return the visitor of a grammar; the parser's ValueError has the problem and, after `; `, the remedy."""

    def visit(value: Any) -> Any:
        if type(value) not in types:
            return wrong_type(value, WORDS[expression])
        try:
            found = parse(value)
        except ValueError as wrong:
            problem, separator, remedy = str(wrong).rpartition("; ")
            problem, remedy = (problem, remedy) if separator else (remedy, "")
            return flaw(f"Invalid value: {problem}", remedy or f"write {WORDS[expression]}")
        return found if expression in _REWRITTEN and found != value else value

    return visit


def _parse_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.replace("\n", ""), strict_mode=True)
    except ValueError as wrong:
        raise ValueError(f"it is not base64 ({wrong}); encode it, or use stringData for plain text") from None


_PARSERS: Final[Mapping[str, tuple[tuple[type, ...], Callable[[Any], object]]]] = {
    "quantity": ((str, int, float), quantity.canonical),
    "int-or-string": ((str, int), str),
    "time": ((str,), in_utc),
    "micro-time": ((str,), micro_in_utc),
    "duration": ((str,), parse_duration),
    "bytes": ((str,), _parse_base64),
}
