"""The field ownership of a Workload's status, handed over from earlier releases to the manager that Kueue applies by.

Earlier releases replaced the whole status as manager `batchyard`. A server-side apply as `kueue-admission` removes only
what that manager applied before, so what the other one set would stay. Source: client-go, util/csaupgrade.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj

#: The manager, operation and subresource of statuses that earlier releases wrote.
_FORMER: Final = ("batchyard", "Update", "status")
_PRESENT: Final = ("kueue-admission", "Apply", "status")


def has_former_owner(workload: Obj) -> bool:
    """Whether an entry of an earlier release owns fields of the status."""
    return any(_identity(entry) == _FORMER for entry in workload["metadata"].get("managedFields") or ())


def handed_over(workload: Obj) -> Sequence[Obj]:
    """The `managedFields` in which `kueue-admission` applied what an earlier release wrote."""
    entries = workload["metadata"].get("managedFields") or ()
    ours = [entry for entry in entries if _identity(entry) in {_FORMER, _PRESENT}]
    owned: dict[str, Any] = {}
    for entry in ours:
        owned = _union(owned, entry.get("fieldsV1") or {})
    manager, operation, part = _PRESENT
    applied = {**ours[-1], "manager": manager, "operation": operation, "subresource": part, "fieldsV1": owned}
    return [*(entry for entry in entries if _identity(entry) not in {_FORMER, _PRESENT}), applied]


def _identity(entry: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return entry.get("manager"), entry.get("operation"), entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that either set has."""
    return {**one, **{name: _union(one.get(name) or {}, inner) for name, inner in other.items()}}
