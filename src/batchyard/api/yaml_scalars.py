"""Single values of YAML, as Kubernetes reads them: YAML 1.1 by way of JSON.

Source of the rules: sigs.k8s.io/yaml. Beside PyYAML's own: no sexagesimal numbers, no times, `1e3` is a number, and a
number that is whole is an integer.
"""

import base64
import binascii
import math
import re
from typing import Any, Final

from batchyard.base.remembering import remembered

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE: Final = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_INTEGER: Final = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PREFIX: Final = "tag:yaml.org,2002:"
_DIGITS_MAX: Final = 100
_WHOLE_BELOW: Final = 1e21


class BadScalarError(ValueError):
    """The value is not what its tag says, or nothing that JSON can hold. Says what is wrong, and what is right."""


def scalar_value(text: str, tag: str | None, is_plain: bool) -> Any:
    """The value of a scalar: its text, its tag if it has one, and whether it stands without quotes."""
    if tag is None:
        return _plain_value(text) if is_plain else text
    name = tag.removeprefix(_PREFIX)
    if name in {"str", "!"}:
        return text
    if name == "binary":
        return _binary(text)
    value = _plain_value(text)
    if name == "float" and type(value) is int:
        return value
    wanted = {"null": type(None), "bool": bool, "int": int, "float": float}.get(name)
    if wanted is None:
        raise BadScalarError(f"the tag {tag} means nothing here; leave the tag out")
    if type(value) is not wanted:
        raise BadScalarError(f"{text!r} is no {name}; leave out the tag, or change the value")
    return value


@remembered(maxsize=65536)
def _plain_value(text: str) -> Any:
    """What a text without quotes stands for."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _number(text)
    if _NOT_FINITE.fullmatch(text):
        raise BadScalarError(f'{text} is no number that JSON can hold; write a number, or "{text}" in quotes')
    return text


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    if len(digits) > _DIGITS_MAX:
        raise BadScalarError(f"a number of {len(digits)} digits is too large; put it in quotes if it is a text")
    sign, digits = (-1, digits[1:]) if digits[0] == "-" else (1, digits.removeprefix("+"))
    is_octal = digits[0] == "0" and digits[1:].isdigit()
    return sign * (int(digits, 8) if is_octal else int(digits, 0))


def _number(text: str) -> float | int:
    value = float(text)
    if math.isinf(value):
        raise BadScalarError(f"{text} is too large for a number; put it in quotes if it is a text")
    return int(value) if value.is_integer() and abs(value) < _WHOLE_BELOW else value


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise BadScalarError("a !!binary value is not base64 of a text; leave the tag out") from None
