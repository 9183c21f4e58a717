"""Workloads as LimitRanges and RuntimeClasses make them: the view that decisions have of those that ask for quota.

Source: AdjustResources in pkg/workload/resources.go of Kueue.
"""

from collections.abc import Callable, Mapping

from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView
from batchyard.core.limit_ranges import Limits, limited, out_of_bounds, summed_up, with_overheads
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
        #: What pods of a RuntimeClass take besides their containers, by its name; and the classes that changed.
        self._overheads: dict[str, Mapping[str, str]] = {}
        self._changed_classes: dict[str, None] = {}

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

    def observe_class(self, event: WatchEvent) -> None:
        """Take note of a RuntimeClass."""
        name, overhead = event.key.name, (event.obj.get("overhead") or {}).get("podFixed") or {}
        if event.type is _DELETED:
            overhead = {}
        if overhead == self._overheads.get(name, {}):
            return
        self._overheads.pop(name, None)
        if overhead:
            self._overheads[name] = overhead
        self._made.clear()
        self._changed_classes[name] = None

    @property
    def has_changed(self) -> bool:
        """Whether some Workloads are to be looked at anew."""
        return bool(self._changed or self._changed_classes)

    def outdated(self, kind: str, reader: Reader) -> list[Obj]:
        """The Workloads that are to be looked at anew."""
        changed, self._changed = self._changed, {}
        classes, self._changed_classes = self._changed_classes, {}
        found = [obj for namespace in changed for obj in reader.list(kind, namespace)]
        others = reader.list(kind) if classes else ()
        return [*found, *(obj for obj in others if any(name in classes for name in _classes_of(obj)))]

    def view(self, obj: Obj) -> WorkloadView:
        """The view of a Workload."""
        limits = self._limits.get(obj["metadata"].get("namespace", "")) if self._limits else None
        if limits is None and not self._has_overhead(obj):
            return self._view_of(obj)
        uid = obj["metadata"].get("uid", "")
        known = self._made.get(uid)
        if known is not None and known[0] is obj:
            return known[1]
        view = self._adjusted_view(obj, limits)
        view.queued = self._view_of(obj).queued
        if len(self._made) >= _REMEMBERED_MAX:
            self._made.clear()
        self._made[uid] = (obj, view)
        return view

    def imagined(self, obj: Obj, real: WorkloadView) -> WorkloadView:
        """The view of a Workload as it might be, of which nothing is remembered; `real` is that of the one there is."""
        limits = self._limits.get(real.namespace)
        view = self._adjusted_view(obj, limits)
        view.queued = real.queued
        return view

    def _has_overhead(self, obj: Obj) -> bool:
        return bool(self._overheads) and any(name in self._overheads for name in _classes_of(obj))

    def _adjusted_view(self, obj: Obj, limits: Limits | None) -> WorkloadView:
        if self._has_overhead(obj):
            obj = with_overheads(obj, self._overheads)
        return WorkloadView(obj) if limits is None else _limited_view(obj, limits)


def _classes_of(obj: Obj) -> list[str]:
    """The RuntimeClasses that the pods of a Workload name."""
    specs = [(each.get("template") or {}).get("spec") or {} for each in obj["spec"].get("podSets") or ()]
    return [spec["runtimeClassName"] for spec in specs if spec.get("runtimeClassName")]


def _limited_view(obj: Obj, limits: Limits) -> WorkloadView:
    adjusted = limited(obj, limits)
    view = WorkloadView(adjusted)
    view.out_of_bounds = out_of_bounds(adjusted, limits)
    pods, priority, counts = view.shape
    view.shape = pods + view.out_of_bounds.encode(), priority, counts  # out of bounds or not: two cases
    return view
