"""Workload priority: from the WorkloadPriorityClass of the job, else the PriorityClass of its pods, else the default.

Source: pkg/util/priority/priority.go of Kueue.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.admission_plugins.pods import default_class
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, key_of, label, with_path
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult


class Priority(NamedTuple):
    """A priority and its class, as referenced by Workloads."""

    value: int
    class_ref: Mapping[str, str] | None


class MissingClass(NamedTuple):
    """The class that should give the priority does not exist."""

    key: Key


def resolve_priority(job: Obj, templates: Sequence[Mapping[str, Any]], reader: Reader) -> Priority | MissingClass:
    """Return the priority of a job's Workload, or the missing class."""
    key = class_key(job, templates)
    if key is None:
        return _default_priority(reader)
    found = reader.get(key)
    return MissingClass(key) if found is None else _from_class(key, found)


def class_key(job: Obj, templates: Sequence[Mapping[str, Any]]) -> Key | None:
    """Return the class named by the job's label, or by the first pod template that names one."""
    name = label(job, well_known.PRIORITY_CLASS)
    if name:
        return Key(scheme.WORKLOAD_PRIORITY_CLASS, "", name)
    names = ((template.get("spec") or {}).get("priorityClassName") for template in templates)
    return next((Key(scheme.PRIORITY_CLASS, "", name) for name in names if name), None)


def class_name(workload: Obj) -> str:
    """Return the name of the class of a Workload's priority, or ''."""
    name: str = (workload["spec"].get("priorityClassRef") or {}).get("name", "")
    return name


def follows_label(workload: Obj, reserved: bool) -> bool:
    """Report whether its priority follows its job's label; not if it came from a pod's class, or quota came first."""
    ref = workload["spec"].get("priorityClassRef")
    return not reserved if ref is None else ref.get("kind") == "WorkloadPriorityClass"


def _default_priority(reader: Reader) -> Priority:
    default = default_class(reader.list(scheme.PRIORITY_CLASS))
    return Priority(0, None) if default is None else _from_class(key_of(default), default)


def _from_class(key: Key, found: Obj) -> Priority:
    kind, _, group = key.kind.partition(".")
    return Priority(found["value"], {"group": group, "kind": kind, "name": key.name})


# --- priority classes ---
#
# Propagates the value of a WorkloadPriorityClass to its Workloads.
#
# Source: pkg/controller/core/workloadpriorityclass_controller.go of Kueue. Finished Workloads are not changed.


class PriorityClassValues:
    """Propagates a changed value of a WorkloadPriorityClass to its Workloads."""

    name = "workload-priority-class"
    rank = 0
    kinds = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.WORKLOAD)

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the class when it is created or its value changes."""
        if event.key.kind == scheme.WORKLOAD:
            self._note(event)
            return ()
        same = event.old is not None and event.old["value"] == event.obj["value"]
        return () if same or event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set the value on every Workload of the class."""
        found = reader.get(key)
        if found is None:
            return ReconcileResult()
        workloads = [obj for k in self._workloads.get(key.name, ()) if (obj := reader.get(k)) is not None]
        changed = [w for w in workloads if _class_of(w) == key.name and w["spec"].get("priority") != found["value"]]
        return ReconcileResult([Update(with_path(w, ("spec", "priority"), found["value"])) for w in changed])

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
    """Return the WorkloadPriorityClass of a Workload's priority."""
    ref = workload["spec"].get("priorityClassRef")
    return ref["name"] if ref is not None and ref.get("kind") == "WorkloadPriorityClass" else None
