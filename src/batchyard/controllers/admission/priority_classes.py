"""Workloads follow the value of their WorkloadPriorityClass.

Source: pkg/controller/core/workloadpriorityclass_controller.go of Kueue. Finished Workloads are let be.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Instant
from batchyard.ports.client import EventType, Reader, Update, WatchEvent
from batchyard.ports.controller import Outcome


class PriorityClassValues:
    """Passes a changed value of a WorkloadPriorityClass on to its Workloads."""

    name = "workload-priority-class"
    rank = 0
    kinds = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.WORKLOAD)

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The class, when it came or its value changed."""
        if event.key.kind == scheme.WORKLOAD:
            self._note(event)
            return ()
        same = event.old is not None and event.old["value"] == event.obj["value"]
        return () if same or event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Give every Workload of the class its value."""
        found = reader.get(key)
        if found is None:
            return Outcome()
        workloads = [obj for k in self._workloads.get(key.name, ()) if (obj := reader.get(k)) is not None]
        changed = [w for w in workloads if _class_of(w) == key.name and w["spec"].get("priority") != found["value"]]
        return Outcome([Update(with_path(w, ("spec", "priority"), found["value"])) for w in changed])

    def _note(self, event: WatchEvent) -> None:
        old_class = _class_of(event.old) if event.old is not None else None
        new_class = _class_of(event.obj)
        gone = event.type is EventType.DELETED or (new_class is not None and workload_view(event.obj).finished)
        for name in (old_class, new_class):
            if name is not None and (gone or name != new_class):
                self._workloads.get(name, {}).pop(event.key, None)
        if new_class is not None and not gone:
            self._workloads.setdefault(new_class, {})[event.key] = None


def _class_of(workload: Obj) -> str | None:
    """The WorkloadPriorityClass a Workload's priority comes from."""
    ref = workload["spec"].get("priorityClassRef")
    return ref["name"] if ref is not None and ref.get("kind") == "WorkloadPriorityClass" else None
