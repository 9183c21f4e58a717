"""Formatting of resource amounts, and of Workload states."""

from typing import Final

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.quantity import format_amount, is_unlimited
from batchyard.api.views.workload import WorkloadView

_BYTES: Final = ("memory", "ephemeral-storage")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def in_words(resource: str, whole: int) -> str:
    """Format an amount: `12.5` cores, `96 GiB`, `8` GPUs; rounded amounts have three digits."""
    if is_unlimited(whole):
        return "∞"
    if resource == "cpu":
        return f"{whole / 1000:,.2f}".rstrip("0").rstrip(".")
    if resource in _BYTES or resource.startswith("hugepages-"):
        return _bytes(whole)
    return f"{whole:,}" if abs(whole) < 1_000_000_000 else format_amount(resource, whole)


def share(part: int, whole: int) -> float:
    """Return part/whole from 0 to 1, rounded to thousandths, the resolution of bars."""
    return round(min(1.0, max(0.0, part / whole)), 3) if whole > 0 else 0.0


def _bytes(whole: int) -> str:
    amount, unit = float(whole), 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = 0 if amount == int(amount) or abs(amount) >= 100 else 1
    return f"{amount:,.{digits}f} {_UNITS[unit]}"


# --- states ---
#
# The state of a Workload, and its owner.


#: The states in order of the lifecycle; a failed Workload is finished too.
PENDING: Final = "Pending"
STATES: Final = (PENDING, "QuotaReserved", "Admitted", "Running", "Evicted", "Finished", "Failed", "Inactive")
_FAILED: Final = ("Failed", "JobFailed", "AdmissionChecksRejected")


def state_of(view: WorkloadView, obj: Obj) -> str:
    """Return the state of a Workload."""
    if view.finished:
        reason = (find_condition(obj, "Finished") or {}).get("reason")
        return "Failed" if reason in _FAILED else "Finished"
    if view.evicted and view.quota_reserved:
        return "Evicted"
    if view.admitted:
        return "Running" if view.pods_ready else "Admitted"
    if view.quota_reserved:
        return "QuotaReserved"
    return PENDING if view.active else "Inactive"


def owner_of(obj: Obj) -> dict[str, str] | None:
    """Return the owner of a Workload."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return {"kind": owners[0]["kind"], "name": owners[0]["name"]} if owners else None
