"""Cached Workload list entries, recomputed only for changed objects; ten thousand take a few milliseconds."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, find_condition, format_amount, is_unlimited
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.interfaces.client import Reader

# --- formatting ---
#
# Formatting of resource amounts, and of Workload states.


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


_ORDER: Final = attrgetter("order")


class WorkloadListEntry:
    """The list entry of one Workload."""

    __slots__ = ("namespace", "obj", "order", "state", "text", "view")

    def __init__(self, obj: Obj) -> None:
        self.obj = obj
        self.view: WorkloadView = workload_view(obj)
        self.namespace = self.view.namespace
        self.state = state_of(self.view, obj)
        #: Sort key; the latest is the largest.
        self.order = self.view.created, self.view.key
        owner = owner_of(obj)
        #: The search text: the Workload's key and its owner's name.
        self.text = f"{self.view.key} {owner['name'] if owner else ''}".lower()

    def read(self, obj: Obj) -> None:
        """Update the entry to a new revision; name and creation time do not change."""
        self.obj, self.view = obj, workload_view(obj)
        self.state = state_of(self.view, obj)


class WorkloadListCache:
    """The list entries of all Workloads."""

    def __init__(self) -> None:
        self._known: dict[str, WorkloadListEntry] = {}
        self._latest_first: list[WorkloadListEntry] = []
        #: The objects at the last refresh.
        self._seen: Sequence[Obj] = ()

    def entries(self, reader: Reader, namespaces: Sequence[str] | None) -> Sequence[WorkloadListEntry]:
        """Return the Workloads of some namespaces, or of all for None, the latest first."""
        self._refresh(reader.list(scheme.WORKLOAD))
        if namespaces is None:
            return self._latest_first
        wanted = frozenset(namespaces)
        return [entry for entry in self._latest_first if entry.namespace in wanted]

    def _refresh(self, objs: Sequence[Obj]) -> None:
        """Update the entries of changed objects, found by object identity; most objects are unchanged."""
        if objs is self._seen:
            return
        before, self._seen = self._seen, objs
        held = frozenset(map(id, before))  # ids are unique while `before` keeps the objects alive
        known, fresh = self._known, list[WorkloadListEntry]()
        for obj in objs:
            if id(obj) in held:
                continue
            uid = obj["metadata"]["uid"]
            entry = known.get(uid)
            if entry is None:
                known[uid] = entry = WorkloadListEntry(obj)
                fresh.append(entry)
            else:
                entry.read(obj)
        latest_first = self._latest_first
        if len(known) > len(objs):
            there = frozenset(map(id, objs))
            self._known = known = {uid: entry for uid, entry in known.items() if id(entry.obj) in there}
            latest_first = [entry for entry in latest_first if entry.view.uid in known]
        if fresh or latest_first is not self._latest_first:
            self._latest_first = sorted([*latest_first, *fresh], key=_ORDER, reverse=True)
