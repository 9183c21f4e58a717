"""Programs of the classic Berkeley Packet Filter that decide about system calls (struct seccomp_data).

A program checks the ABI, finds the number of the call by binary search, and compares arguments where a decision depends
on them. Linux takes 4096 instructions at most.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST, _IF_BITS = 0x15, 0x25, 0x35, 0x45
#: Offsets in struct seccomp_data; an argument is 8 bytes, its low half first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_WORD: Final = 0xFFFFFFFF
_INSTRUCTIONS_MAX: Final = 4096


class Comparison(NamedTuple):
    """A test of one argument of a call: `==`, `!=`, `<`, `<=`, `>`, `>=`, or `masked`: argument & value == second."""

    argument: int
    operator: str
    value: int
    second: int = 0


class Span(NamedTuple):
    """The calls from a number up to that of the next span; the first decision whose tests all pass counts."""

    first: int
    decisions: Sequence[tuple[Sequence[Comparison], int]]


class _Step(NamedTuple):
    """An instruction; `yes` and `no` are how many of the following ones are skipped."""

    code: int
    value: int
    yes: int = 0
    no: int = 0


def program(spans: Sequence[Span], architecture: int, foreign_bit: int, foreign: int) -> bytes:
    """Return the program of spans in ascending order. `foreign` is the answer to calls of another ABI.

    ValueError if it would be too long.
    """
    steps = [_Step(_LOAD, _ARCHITECTURE), _Step(_IF_EQUAL, architecture, 1), _Step(_RETURN, foreign)]
    steps.append(_Step(_LOAD, _NUMBER))
    if foreign_bit:
        steps += [_Step(_IF_BITS, foreign_bit, 0, 1), _Step(_RETURN, foreign)]
    steps += _search(spans)
    if len(steps) > _INSTRUCTIONS_MAX:
        raise ValueError(f"a seccomp profile of {len(steps)} instructions is too long: {_INSTRUCTIONS_MAX} at most")
    return b"".join(struct.pack("=HBBI", step.code, step.yes, step.no, step.value) for step in steps)


def _search(spans: Sequence[Span]) -> list[_Step]:
    """Find the span of the loaded number, and decide. Every path ends with a return."""
    if len(spans) == 1:
        return _decide(spans[0])
    middle = len(spans) // 2
    below, above = _search(spans[:middle]), _search(spans[middle:])
    return [_Step(_IF_AT_LEAST, spans[middle].first, 0, 1), _Step(_JUMP, len(below)), *below, *above]


def _decide(span: Span) -> list[_Step]:
    steps: list[_Step] = []
    for conditions, action in span.decisions:
        tests = [step for condition in conditions for step in _test(condition)]
        steps += [*_with_failures(tests), _Step(_RETURN, action)]
    return steps


#: The targets of a test's jumps before they are resolved: the next decision, and the next test.
_FAIL, _PASS = 300, 301


def _test(test: Comparison) -> list[_Step]:
    """Compare an argument of 64 bits: its high half, then its low half."""
    low, high = test.value & _WORD, test.value >> 32 & _WORD
    place = _ARGUMENTS + 8 * test.argument
    load_high, load_low = _Step(_LOAD, place + 4), _Step(_LOAD, place)
    match test.operator:
        case "==":
            return [load_high, _Step(_IF_EQUAL, high, 0, _FAIL), load_low, _Step(_IF_EQUAL, low, _PASS, _FAIL)]
        case "!=":
            return [load_high, _Step(_IF_EQUAL, high, 0, _PASS), load_low, _Step(_IF_EQUAL, low, _FAIL, _PASS)]
        case ">" | ">=":
            last = _IF_GREATER if test.operator == ">" else _IF_AT_LEAST
            first = [load_high, _Step(_IF_GREATER, high, _PASS), _Step(_IF_EQUAL, high, 0, _FAIL)]
            return [*first, load_low, _Step(last, low, _PASS, _FAIL)]
        case "<" | "<=":
            last = _IF_AT_LEAST if test.operator == "<" else _IF_GREATER
            first = [load_high, _Step(_IF_GREATER, high, _FAIL), _Step(_IF_EQUAL, high, 0, _PASS)]
            return [*first, load_low, _Step(last, low, _FAIL, _PASS)]
    second = test.second
    upper = [load_high, _Step(_AND, high), _Step(_IF_EQUAL, second >> 32 & _WORD, 0, _FAIL)]
    return [*upper, load_low, _Step(_AND, low), _Step(_IF_EQUAL, second & _WORD, _PASS, _FAIL)]


def _with_failures(tests: list[_Step]) -> list[_Step]:
    """Resolve the jumps of tests: `_PASS` leads behind the test, `_FAIL` behind the return that follows all tests."""
    resolved = []
    for position, step in enumerate(tests):
        behind = len(tests) - position
        after = next((place for place in range(position + 1, len(tests)) if _begins(tests, place)), len(tests))
        lengths = {_FAIL: behind, _PASS: after - position - 1}
        resolved.append(step._replace(yes=lengths.get(step.yes, step.yes), no=lengths.get(step.no, step.no)))
    return resolved


def _begins(tests: list[_Step], place: int) -> bool:
    """Whether a test begins here: with the load of an argument's high half."""
    return tests[place].code == _LOAD and (tests[place].value - _ARGUMENTS) % 8 == 4
