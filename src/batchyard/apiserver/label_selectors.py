"""Label selectors as a query has them, in one line. Source: k8s.io/apimachinery, pkg/labels/selector.go."""

import re
from collections.abc import Iterator
from typing import Final

from batchyard.api.selectors import Requirement
from batchyard.api.validation import names
from batchyard.apiserver.request import Refused, bad_request

#: A sign, or a word: whatever has no sign and no space in it.
_TOKEN: Final = re.compile(r"==|!=|[=!<>(),]|[^\s=!<>(),]++")
_SIGNS: Final = frozenset({"", "==", "!=", *"=!<>(),"})
_OF_ONE: Final = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_OF_MANY: Final = {"in": "In", "notin": "NotIn"}
_ENDS: Final = ("", ",")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_OPERATORS: Final = "in, notin, =, ==, !=, gt, lt"


def requirements_of(text: str) -> tuple[Requirement, ...]:
    """All that a label selector demands; Refused if it cannot be read."""
    words = iter([*_TOKEN.findall(text), ""])
    found: list[Requirement] = []
    word = next(words)
    while word:
        requirement, end = _requirement(word, words)
        if end not in _ENDS:
            raise bad_request(f"found '{end}', expected: ',' or 'end of string'")
        found.append(requirement)
        if not end:
            break
        word = next(words)
        if word in _SIGNS and word != "!":
            raise bad_request(f"found '{word}', expected: identifier after ','")
    return tuple(found)


def _requirement(word: str, words: Iterator[str]) -> tuple[Requirement, str]:
    """A requirement that begins with a word, and the word after it."""
    is_denied = word == "!"
    key = next(words) if is_denied else word
    if key in _SIGNS:
        raise _unread(f"found '{key}', expected: identifier")
    for problem in names.qualified_name(key):
        raise _unread(f'Invalid value: "{key}": {problem}')
    operator = next(words)
    if is_denied or operator in _ENDS:
        return Requirement(key, "DoesNotExist" if is_denied else "Exists", ()), operator
    if operator in _OF_MANY:
        values = tuple(_values(words))
        end = next(words)
    elif operator in _OF_ONE:
        value = next(words)
        end = value if value in _ENDS else next(words)
        values = ("" if value in _ENDS else value,)
    else:
        raise _unread(f"found '{operator}', expected: {_OPERATORS}")
    _check_values(key, operator, values)
    return Requirement(key, _OF_MANY.get(operator) or _OF_ONE[operator], values), end


def _values(words: Iterator[str]) -> Iterator[str]:
    """The values in brackets; where none is between two signs, it is the empty one."""
    if (word := next(words)) != "(":
        raise _unread(f"found '{word}' expected: '('")
    before, word = ",", next(words)
    while word != ")":
        if word in _SIGNS and word != ",":
            raise _unread(f"found '{word}', expected: ',', ')' or identifier")
        if (word == ",") == (before == ","):
            if word != ",":
                raise _unread(f"found '{word}', expected: ',' or ')'")
            yield ""
        if word != ",":
            yield word
        before, word = word, next(words)
    if before == ",":
        yield ""


def _check_values(key: str, operator: str, values: tuple[str, ...]) -> None:
    for number, value in enumerate(values):
        if value in _SIGNS and value:
            raise _unread(f"found '{value}', expected: identifier")
        if operator in "<>" and not _INTEGER.fullmatch(value):
            problem = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _unread(f'values[{number}]: Invalid value: "{value}": {problem}')
        for problem in names.label_value(value):
            raise _unread(f'values[{number}][{key}]: Invalid value: "{value}": {problem}')


def _unread(problem: str) -> Refused:
    return bad_request(f"unable to parse requirement: {problem}")
