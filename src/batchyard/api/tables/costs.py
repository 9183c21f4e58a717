"""Cells of budgets and of records of what machines cost."""

from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.tables.cells import text, value
from batchyard.base.instant import HOUR, Instant

_CENT: Final = 10_000


def amount(obj: Obj, _now: Instant) -> str:
    """What a Budget allows: `$5000` or `120 accelerator hours`."""
    spec = obj.get("spec") or {}
    dollars = spec.get("dollars")
    return f"${dollars}" if dollars is not None else f"{text(spec.get('acceleratorHours'))} accelerator hours"


def state(obj: Obj, _now: Instant) -> str:
    """How a Budget stands: the reason of its condition Exceeded."""
    conditions = value(obj, "status", "conditions") or ()
    return next((str(each["reason"]) for each in conditions if each["type"] == "Exceeded"), "")


def node_hours(obj: Obj, _now: Instant) -> str:
    """The hours of nodes in all lines of a record."""
    return f"{_sum(obj, 'nodeMicroseconds') / HOUR:.2f}"


def dollars(obj: Obj, _now: Instant) -> str:
    """What all lines of a record cost, to the cent."""
    cents = (_sum(obj, "microdollars") + _CENT // 2) // _CENT
    return f"{cents // 100}.{cents % 100:02}"


def _sum(obj: Obj, field: str) -> int:
    return sum(line.get(field, 0) for line in value(obj, "spec", "lines") or ())
