"""The inputs of the dashboard's JSON documents: objects, scheduler state, history, user permissions, and the page."""

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
from batchyard.scheduling.active_status import QueueActiveStatus
from batchyard.scheduling.snapshot import Snapshot

# Formatting of resource amounts.


_BYTE_RESOURCES: Final = ("memory", "ephemeral-storage")
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_resource_amount(resource: str, amount: int) -> str:
    """Format an amount of a resource for display: `12.5` (cores of CPU), `96 GiB`, `8` (GPUs); `∞` if unlimited.

    `amount` is in thousandths of a core for CPU, in bytes for memory, else in whole units.
    """
    if is_unlimited(amount):
        return "∞"
    if resource == "cpu":
        return f"{amount / 1000:,.2f}".rstrip("0").rstrip(".")
    if resource in _BYTE_RESOURCES or resource.startswith("hugepages-"):
        return _format_bytes(amount)
    return f"{amount:,}" if abs(amount) < 1_000_000_000 else format_amount(resource, amount)


def usage_fraction(amount: int, total: int) -> float:
    """Return amount/total, limited to 0 to 1 and rounded to thousandths, the resolution of usage bars.

    Return 0 if `total` is not positive.
    """
    return round(min(1.0, max(0.0, amount / total)), 3) if total > 0 else 0.0


def _format_bytes(amount: int) -> str:
    amount_in_unit, unit_index = float(amount), 0
    while abs(amount_in_unit) >= 1024 and unit_index < len(_BYTE_UNITS) - 1:
        amount_in_unit, unit_index = amount_in_unit / 1024, unit_index + 1
    decimal_places = 0 if amount_in_unit == int(amount_in_unit) or abs(amount_in_unit) >= 100 else 1
    return f"{amount_in_unit:,.{decimal_places}f} {_BYTE_UNITS[unit_index]}"


# The state of a Workload, and its owner.


#: The Workload states in order of the lifecycle; a failed Workload is also finished.
PENDING: Final = "Pending"
STATES: Final = (PENDING, "QuotaReserved", "Admitted", "Running", "Evicted", "Finished", "Failed", "Inactive")
_FAILURE_REASONS: Final = ("Failed", "JobFailed", "AdmissionChecksRejected")


def workload_state(view: WorkloadView, obj: Obj) -> str:
    """Return the state that the dashboard shows for a Workload, such as Pending, Running or Evicted; one of STATES."""
    if view.finished:
        finished_reason = (find_condition(obj, "Finished") or {}).get("reason")
        return "Failed" if finished_reason in _FAILURE_REASONS else "Finished"
    if view.evicted and view.quota_reserved:
        return "Evicted"
    if view.admitted:
        return "Running" if view.pods_ready else "Admitted"
    if view.quota_reserved:
        return "QuotaReserved"
    return PENDING if view.active else "Inactive"


def first_owner(obj: Obj) -> dict[str, str] | None:
    """Return the kind and name of a Workload's first owner; None without an owner."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return {"kind": owners[0]["kind"], "name": owners[0]["name"]} if owners else None


# Cached entries of the Workload list, recomputed only for changed objects: ten thousand take a few milliseconds.


_SORT_KEY_OF_ENTRY: Final = attrgetter("order")


class WorkloadListEntry:
    """One Workload in the dashboard's list of Workloads, with its cached state, sort key and search text."""

    __slots__ = ("namespace", "obj", "order", "search_text", "state", "view")

    def __init__(self, obj: Obj) -> None:
        self.obj = obj
        self.view: WorkloadView = workload_view(obj)
        self.namespace = self.view.namespace
        self.state = workload_state(self.view, obj)
        #: The sort key: creation time, then key; the latest Workload has the largest.
        self.order = self.view.created, self.view.key
        owner = first_owner(obj)
        #: The search text: the Workload's key and its owner's name.
        self.search_text = f"{self.view.key} {owner['name'] if owner else ''}".lower()

    def update(self, obj: Obj) -> None:
        """Update the list entry to a new revision of its Workload; name and creation time do not change."""
        self.obj, self.view = obj, workload_view(obj)
        self.state = workload_state(self.view, obj)


class WorkloadListCache:
    """Caches the entries of the dashboard's list of all Workloads."""

    def __init__(self) -> None:
        self._entries_by_uid: dict[str, WorkloadListEntry] = {}
        self._sorted_entries: list[WorkloadListEntry] = []
        #: The Workload objects at the last refresh.
        self._last_objects: Sequence[Obj] = ()

    def entries(self, reader: Reader, namespaces: Sequence[str] | None) -> Sequence[WorkloadListEntry]:
        """Return the list entries of the Workloads in some namespaces (None: in all), newest first."""
        self._refresh_entries(reader.list(scheme.WORKLOAD))
        if namespaces is None:
            return self._sorted_entries
        selected_namespaces = frozenset(namespaces)
        return [entry for entry in self._sorted_entries if entry.namespace in selected_namespaces]

    def _refresh_entries(self, workload_objects: Sequence[Obj]) -> None:
        """Update the list entries of changed Workloads; unchanged Workloads are recognized by object identity."""
        if workload_objects is self._last_objects:
            return
        old_objects, self._last_objects = self._last_objects, workload_objects
        unchanged_ids = frozenset(map(id, old_objects))  # ids are unique while `old_objects` keeps the objects alive
        entries_by_uid, new_entries = self._entries_by_uid, list[WorkloadListEntry]()
        for obj in workload_objects:
            if id(obj) in unchanged_ids:
                continue
            uid = obj["metadata"]["uid"]
            entry = entries_by_uid.get(uid)
            if entry is None:
                entries_by_uid[uid] = entry = WorkloadListEntry(obj)
                new_entries.append(entry)
            else:
                entry.update(obj)
        latest_first = self._sorted_entries
        if len(entries_by_uid) > len(workload_objects):
            current_ids = frozenset(map(id, workload_objects))
            entries_by_uid = {uid: entry for uid, entry in entries_by_uid.items() if id(entry.obj) in current_ids}
            self._entries_by_uid = entries_by_uid
            latest_first = [entry for entry in latest_first if entry.view.uid in entries_by_uid]
        if new_entries or latest_first is not self._sorted_entries:
            self._sorted_entries = sorted([*latest_first, *new_entries], key=_SORT_KEY_OF_ENTRY, reverse=True)


ViewJson: TypeAlias = dict[str, Any]
"""The JSON document that a view shows, with formatted values."""

Query: TypeAlias = Mapping[str, str]
"""The query parameters of a view."""


class QueueSource(Protocol):
    """Read access to the scheduler's state for dashboard pages: pending and admitted Workloads by queue."""

    @property
    def snapshot(self) -> Snapshot:
        """The scheduler's snapshot: ClusterQueues and Cohorts with their quota and usage."""

    def first_pending(self, cluster_queue: str, count: int) -> Sequence[WorkloadView]:
        """Return the first `count` pending Workloads of a ClusterQueue in scheduling order."""

    def count_pending(self, cluster_queue: str) -> int:
        """Return the number of pending Workloads in a ClusterQueue."""

    def count_ahead_of(self, cluster_queue: str, workload: str) -> int | None:
        """Return the number of Workloads ahead of a pending Workload; None if it is not pending in the ClusterQueue."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the name of a LocalQueue's ClusterQueue; None if the LocalQueue does not exist."""

    def active_status(self, name: str) -> QueueActiveStatus:
        """Return whether a ClusterQueue can admit Workloads, and the reason if it cannot."""


#: The documents that the browser requests beside the document of a Workload's page: the explanation of its state, the
#: forecast of its start, and its Events if the page's document does not contain them.
WHY, ETA, EVENTS = "why", "eta", "events"


@dataclass(frozen=True, slots=True)
class ViewInputs:
    """Everything from which the JSON document of a dashboard page is computed."""

    reader: Reader
    queue_source: QueueSource
    history: PlatformHistory
    workload_list: WorkloadListCache
    #: The current time of the platform.
    now: Instant
    #: The machine costs of a finished simulation; None if CostRecords contain the costs.
    costs: Statement | None = None
    #: Whether lists are complete instead of paginated.
    is_complete: bool = False
    #: The documents that the server answers for a Workload, out of WHY, ETA and EVENTS.
    extra_documents: Sequence[str] = (WHY, ETA)


# Access control of the dashboard: a JSON document contains only objects that its user may list through the API.


class ViewerAccess(Protocol):
    """The permissions of a user to list objects."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return whether the user may list a kind in a namespace, or in all namespaces for ''."""


class FullAccess:
    """The permission to list everything, for readers of a static report."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return True for every kind and namespace."""
        return True


class NamespaceAccess:
    """The list permissions of one user while one dashboard document is computed; each permission is checked once."""

    def __init__(self, viewer: ViewerAccess) -> None:
        self._viewer = viewer
        self._permissions: dict[tuple[str, str], bool] = {}

    def may_list_all(self, kind: str) -> bool:
        """Return whether the user may list a kind in all namespaces."""
        return self._is_allowed(kind, "")

    def may_list(self, kind: str, namespace: str) -> bool:
        """Return whether the user may list a kind in a namespace."""
        return self._is_allowed(kind, "") or self._is_allowed(kind, namespace)

    def namespaces(self, kind: str, reader: Reader) -> list[str] | None:
        """Return the namespaces in which the user may list a kind; None for all namespaces."""
        if self.may_list_all(kind):
            return None
        names = [str(obj["metadata"]["name"]) for obj in reader.list(scheme.NAMESPACE)]
        return [name for name in names if self._is_allowed(kind, name)]

    def _is_allowed(self, kind: str, namespace: str) -> bool:
        is_allowed = self._permissions.get((kind, namespace))
        if is_allowed is None:
            is_allowed = self._permissions[kind, namespace] = self._viewer.may_list(kind, namespace)
        return is_allowed


# Pagination of long lists, with a bounded page size.


PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
#: The page size for complete lists.
UNPAGINATED: Final = 1_000_000


class PageWindow(NamedTuple):
    """The requested part of a list: its offset and its maximum number of rows."""

    offset: int
    limit: int


def requested_page(inputs: ViewInputs, query: Query) -> PageWindow:
    """Return the offset and limit that a query requests for a list; invalid numbers select the defaults.

    The limit is at most PAGE_SIZE_MAX. If `inputs.is_complete`, the query is ignored and all rows are selected.
    """
    if inputs.is_complete:
        return PageWindow(0, UNPAGINATED)
    row_limit = _parse_row_count(query.get("limit", "")) or PAGE_SIZE
    return PageWindow(_parse_row_count(query.get("offset", "")), min(row_limit, PAGE_SIZE_MAX))


def _parse_row_count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
