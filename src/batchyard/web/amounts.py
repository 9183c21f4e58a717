"""Amounts of resources in words for people, and as lengths of bars."""

from typing import Final

from batchyard.api.quantity import format_amount, is_unlimited

_BYTES: Final = ("memory", "ephemeral-storage")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def in_words(resource: str, whole: int) -> str:
    """An amount as people say it: `12.5` cores, `96 GiB`, `8` GPUs; numbers of three digits where they are rounded."""
    if is_unlimited(whole):
        return "∞"
    if resource == "cpu":
        return f"{whole / 1000:,.2f}".rstrip("0").rstrip(".")
    if resource in _BYTES or resource.startswith("hugepages-"):
        return _bytes(whole)
    return f"{whole:,}" if abs(whole) < 1_000_000_000 else format_amount(resource, whole)


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1, in thousandths: finer no bar is drawn."""
    return round(min(1.0, max(0.0, part / whole)), 3) if whole > 0 else 0.0


def _bytes(whole: int) -> str:
    amount, unit = float(whole), 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = 0 if amount == int(amount) or abs(amount) >= 100 else 1
    return f"{amount:,.{digits}f} {_UNITS[unit]}"
