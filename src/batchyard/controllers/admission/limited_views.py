"""Workloads as the LimitRanges of their Namespaces make them: what decisions see of those that ask for quota."""

from collections.abc import Callable

from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView
from batchyard.core.limit_ranges import Limits, limited, out_of_bounds, summed_up
from batchyard.ports.client import EventType, Reader, WatchEvent

_DELETED = EventType.DELETED
_REMEMBERED_MAX = 16384


class LimitedViews:
    """See the module."""

    def __init__(self, view_of: Callable[[Obj], WorkloadView]) -> None:
        self._view_of = view_of
        self._ranges: dict[str, dict[Key, Obj]] = {}
        self._limits: dict[str, Limits] = {}
        #: What was made of which Workload, by uid.
        self._made: dict[str, tuple[Obj, WorkloadView]] = {}
        #: Namespaces whose Workloads are to be looked at anew.
        self._changed: dict[str, None] = {}

    def observe(self, event: WatchEvent) -> None:
        """Take note of a LimitRange."""
        namespace = event.key.namespace
        ranges = self._ranges.setdefault(namespace, {})
        ranges.pop(event.key, None)
        if event.type is not _DELETED:
            ranges[event.key] = event.obj
        if ranges:
            self._limits[namespace] = summed_up([ranges[key] for key in sorted(ranges)])
        else:
            del self._ranges[namespace]
            self._limits.pop(namespace, None)
        self._made.clear()
        self._changed[namespace] = None

    @property
    def has_changed(self) -> bool:
        """Whether some Workloads are to be looked at anew."""
        return bool(self._changed)

    def outdated(self, kind: str, reader: Reader) -> list[Obj]:
        """The Workloads that are to be looked at anew."""
        changed, self._changed = self._changed, {}
        return [obj for namespace in changed for obj in reader.list(kind, namespace)]

    def view(self, obj: Obj) -> WorkloadView:
        """The view of a Workload."""
        limits = self._limits.get(obj["metadata"].get("namespace", "")) if self._limits else None
        if limits is None:
            return self._view_of(obj)
        uid = obj["metadata"].get("uid", "")
        known = self._made.get(uid)
        if known is not None and known[0] is obj:
            return known[1]
        view = _limited_view(obj, limits)
        view.queued = self._view_of(obj).queued
        if len(self._made) >= _REMEMBERED_MAX:
            self._made.clear()
        self._made[uid] = (obj, view)
        return view

    def imagined(self, obj: Obj, real: WorkloadView) -> WorkloadView:
        """The view of a Workload as it might be, of which nothing is remembered; `real` is that of the one there is."""
        limits = self._limits.get(real.namespace)
        view = WorkloadView(obj) if limits is None else _limited_view(obj, limits)
        view.queued = real.queued
        return view


def _limited_view(obj: Obj, limits: Limits) -> WorkloadView:
    adjusted = limited(obj, limits)
    view = WorkloadView(adjusted)
    view.out_of_bounds = out_of_bounds(adjusted, limits)
    pods, priority, counts = view.shape
    view.shape = pods + view.out_of_bounds.encode(), priority, counts  # out of bounds or not: two cases
    return view
