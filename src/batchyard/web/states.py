"""In which state a Workload is, and what it stands for."""

from typing import Final

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView

#: The states, in the order of a life; a Workload that failed has finished too.
PENDING: Final = "Pending"
STATES: Final = (PENDING, "QuotaReserved", "Admitted", "Running", "Evicted", "Finished", "Failed", "Inactive")
_FAILED: Final = ("Failed", "JobFailed", "AdmissionChecksRejected")


def state_of(view: WorkloadView, obj: Obj) -> str:
    """In which state it is, in one word."""
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
    """The object that a Workload stands for."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return {"kind": owners[0]["kind"], "name": owners[0]["name"]} if owners else None
