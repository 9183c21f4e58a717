"""The data sources of the view models: objects, scheduler state, history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.accounting.accounts import Statement
from batchyard.api import scheme
from batchyard.api.meta import Obj, find_condition, format_amount, is_unlimited
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.dashboard.history import PlatformHistory
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import QueueActiveStatus
from batchyard.scheduling.snapshot import Snapshot

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


# --- workload list cache ---
#
# Cached Workload list entries, recomputed only for changed objects; ten thousand take a few milliseconds.


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


Model: TypeAlias = dict[str, Any]
"""A JSON document: what a view shows, with formatted values."""

Query: TypeAlias = Mapping[str, str]
"""The query parameters of a view."""


class QueueSource(Protocol):
    """The state of the scheduler: pending and admitted Workloads by queue."""

    @property
    def snapshot(self) -> Snapshot:
        """The queues, Cohorts and their quota."""

    def first_pending(self, cluster_queue: str, count: int) -> Sequence[WorkloadView]:
        """Return the first pending Workloads of a ClusterQueue in scheduling order."""

    def count_pending(self, cluster_queue: str) -> int:
        """Return the number of pending Workloads in a ClusterQueue."""

    def place_of(self, cluster_queue: str, workload: str) -> int | None:
        """Return the number of Workloads ahead of a pending one; None if it is not pending there."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue; None if the LocalQueue does not exist."""

    def readiness(self, name: str) -> QueueActiveStatus:
        """Return whether a ClusterQueue can admit, and why not."""


@dataclass(frozen=True, slots=True)
class ViewInputs:
    """All inputs of one view model."""

    reader: Reader
    standing: QueueSource
    history: PlatformHistory
    workload_list: WorkloadListCache
    #: The current time of the platform.
    now: Instant
    #: The machine costs of a finished run; None if CostRecords hold them.
    costs: Statement | None = None
    #: Whether lists are complete, regardless of their length.
    whole: bool = False


# --- access ---
#
# Access control of the dashboard: a model contains only objects that its user may list through the API.


class ViewerAccess(Protocol):
    """The list permissions of a user."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Report whether the user may list a kind in a namespace, or in all namespaces for ''."""


class FullAccess:
    """Permission for everything, for the readers of a report."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return True."""
        return True


class NamespaceAccess:
    """The permissions of one user while one model is computed, each checked once."""

    def __init__(self, sight: ViewerAccess) -> None:
        self._sight = sight
        self._known: dict[tuple[str, str], bool] = {}

    def all_of(self, kind: str) -> bool:
        """Report whether the user may list a kind in all namespaces."""
        return self._asked(kind, "")

    def sees(self, kind: str, namespace: str) -> bool:
        """Report whether the user may list a kind in a namespace."""
        return self._asked(kind, "") or self._asked(kind, namespace)

    def namespaces(self, kind: str, reader: Reader) -> list[str] | None:
        """Return the namespaces in which the user may list a kind; None for all namespaces."""
        if self.all_of(kind):
            return None
        names = [str(obj["metadata"]["name"]) for obj in reader.list(scheme.NAMESPACE)]
        return [name for name in names if self._asked(kind, name)]

    def _asked(self, kind: str, namespace: str) -> bool:
        known = self._known.get((kind, namespace))
        if known is None:
            known = self._known[kind, namespace] = self._sight.may_list(kind, namespace)
        return known


# --- pagination ---
#
# Pagination of long lists, with a bounded page size.


LIMIT: Final = 100
LIMIT_MAX: Final = 500
#: Beyond the length of any list.
ALL: Final = 1_000_000


class PageWindow(NamedTuple):
    """A page: offset and maximum number of lines."""

    offset: int
    limit: int


def window_of(source: ViewInputs, query: Query) -> PageWindow:
    """Return the requested page; invalid numbers mean the defaults."""
    if source.whole:
        return PageWindow(0, ALL)
    limit = _whole(query.get("limit", "")) or LIMIT
    return PageWindow(_whole(query.get("offset", "")), min(limit, LIMIT_MAX))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
