"""Resource quantities, exact: `10Gi`, `500m`, `1e3`, `0.1`.

All other code uses whole numbers: thousandths for cpu, units (bytes, devices) for all else, rounded up like Kubernetes.
Source of grammar and canonical form: k8s.io/apimachinery resource.Quantity; of the whole-number form and of
`UNLIMITED`: Kueue's pkg/resources.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

NANO: Final = 10**9
INT64_MAX: Final = 2**63 - 1
#: An unlimited amount, far above all real ones, so that sums and differences with real amounts stay unlimited.
UNLIMITED: Final = 1 << 100
_UNLIMITED_FROM: Final = 1 << 98

_BINARY: Final = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5, "Ei": 1024**6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_GRAMMAR: Final = re.compile(
    r"([+-]?)(\d++(?:\.\d*+)?|\.\d++)(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?\d{1,4}))", re.ASCII
)
#: The maximum length of a quantity. Kubernetes has none, but no amount needs more than 19 digits and a suffix.
LENGTH_MAX: Final = 400
_EXPONENT: Final = re.compile(r"[eE][+-]?\d+\Z", re.ASCII)
_BINARY_RESOURCES: Final = frozenset({"memory", "ephemeral-storage"})


@lru_cache(maxsize=65536, typed=True)
def parse(value: str | int | float) -> int:
    """Return a quantity in billionths, exact; finer parts are rounded up. ValueError describes the error.

    The maximum is 2**63 - 1, as in Kubernetes.
    """
    text = str(value)
    match = _GRAMMAR.fullmatch(text) if len(text) <= LENGTH_MAX else None
    if match is None or isinstance(value, bool):
        raise ValueError(f"{repr(value)[:40]} is not a quantity; write it as 500m, 2, 1.5, 10Gi or 1e3")
    sign, digits, suffix, exponent = match.groups()
    whole, _, fraction = digits.partition(".")
    numerator, denominator = int(whole + fraction or "0") * NANO, _power(len(fraction))
    if suffix in _BINARY:
        numerator *= _BINARY[suffix]
    else:
        power = int(exponent) if exponent is not None else _DECIMAL[suffix or ""]
        numerator, denominator = numerator * _power(power), denominator * _power(-power)
    nano = min(-(-numerator // denominator), INT64_MAX * NANO)
    return -nano if sign == "-" else nano


def _power(exponent: int) -> int:
    """Return ten to the power of an exponent; one if that is negative."""
    return int(10 ** max(exponent, 0))


@lru_cache(maxsize=65536)
def amount(resource: str, value: str | int | float) -> int:
    """Return a quantity as a whole number: thousandths for cpu, units for all else, rounded up."""
    unit = NANO // 1000 if resource == "cpu" else NANO
    return -(-parse(value) // unit)


@lru_cache(maxsize=65536)
def quota_amount(resource: str, value: str | int | float) -> int:
    """Return a quota as a whole number; values that Kueue treats as unlimited are UNLIMITED."""
    whole = amount(resource, value)
    return UNLIMITED if whole >= (INT64_MAX // 1000 * 1000 if resource == "cpu" else INT64_MAX) else whole


def is_unlimited(whole: int) -> bool:
    """Report whether an amount is unlimited."""
    return whole >= _UNLIMITED_FROM


@lru_cache(maxsize=65536)
def format_amount(resource: str, whole: int) -> str:
    """Format a whole number of a resource in Kubernetes's canonical form."""
    if is_unlimited(whole):
        return "<unlimited>"
    if resource == "cpu":
        return _decimal(whole, -3)
    if (resource in _BINARY_RESOURCES or resource.startswith("hugepages-")) and abs(whole) >= 1024:
        return _binary(whole)
    return _decimal(whole, 0)


class QuantityFormat(StrEnum):
    """The suffix family of a quantity."""

    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@lru_cache(maxsize=65536, typed=True)
def canonical(value: str | int | float) -> str:
    """Return a quantity in Kubernetes's canonical form, with the same suffix family."""
    return formatted(parse(value), format_of(value))


def format_of(value: str | int | float) -> QuantityFormat:
    """Return the suffix family of a quantity."""
    text = str(value)
    if any(text.endswith(suffix) for suffix in _BINARY):
        return QuantityFormat.BINARY
    return QuantityFormat.EXPONENT if _EXPONENT.search(text) else QuantityFormat.DECIMAL


def formatted(nano: int, family: QuantityFormat) -> str:
    """Format billionths in Kubernetes's canonical form, with suffixes of the family if possible."""
    if family is QuantityFormat.BINARY and nano % NANO == 0 and abs(nano) >= 1024 * NANO:
        return _binary(nano // NANO)
    return _exponential(nano, -9) if family is QuantityFormat.EXPONENT else _decimal(nano, -9)


def _exponential(mantissa: int, exponent: int) -> str:
    """Format `mantissa * 10**exponent` with the largest exponent divisible by three that keeps an integer."""
    while mantissa and mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}e{exponent}" if mantissa and exponent else str(mantissa)


def _decimal(mantissa: int, exponent: int) -> str:
    """Format `mantissa * 10**exponent` with the largest decimal suffix that keeps an integer."""
    if mantissa == 0:
        return "0"
    while mantissa % 1000 == 0 and exponent < 18:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"


def _binary(whole: int) -> str:
    """Format a whole number with the largest binary suffix that divides it, else in decimal form."""
    for suffix, factor in reversed(_BINARY.items()):
        if whole % factor == 0:
            return f"{whole // factor}{suffix}"
    return _decimal(whole, 0)
