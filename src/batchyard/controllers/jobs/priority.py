"""The priority of a job's Workload: its WorkloadPriorityClass, else its pods' PriorityClass, else the global default.

Source: pkg/util/priority/priority.go of Kueue.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.admission.pods import default_class
from batchyard.api.meta import Key, Obj, key_of, label
from batchyard.ports.client import Reader


class Priority(NamedTuple):
    """A priority and the class it comes from, as Workloads refer to it."""

    value: int
    class_ref: Mapping[str, str] | None


class MissingClass(NamedTuple):
    """The class that should give the priority does not exist."""

    key: Key


def resolve_priority(job: Obj, templates: Sequence[Mapping[str, Any]], reader: Reader) -> Priority | MissingClass:
    """The priority of a job's Workload, or the class that is missing for it."""
    key = class_key(job, templates)
    if key is None:
        return _default_priority(reader)
    found = reader.get(key)
    return MissingClass(key) if found is None else _from_class(key, found)


def class_key(job: Obj, templates: Sequence[Mapping[str, Any]]) -> Key | None:
    """The class a job names, in its label or in the first pod template that names one."""
    name = label(job, well_known.PRIORITY_CLASS)
    if name:
        return Key(scheme.WORKLOAD_PRIORITY_CLASS, "", name)
    names = ((template.get("spec") or {}).get("priorityClassName") for template in templates)
    return next((Key(scheme.PRIORITY_CLASS, "", name) for name in names if name), None)


def class_name(workload: Obj) -> str:
    """The name of the class a Workload's priority comes from, or ''."""
    name: str = (workload["spec"].get("priorityClassRef") or {}).get("name", "")
    return name


def follows_label(workload: Obj, reserved: bool) -> bool:
    """Whether its priority follows the label of its job: not once a pod's class gave it, or quota came before any."""
    ref = workload["spec"].get("priorityClassRef")
    return not reserved if ref is None else ref.get("kind") == "WorkloadPriorityClass"


def _default_priority(reader: Reader) -> Priority:
    default = default_class(reader.list(scheme.PRIORITY_CLASS))
    return Priority(0, None) if default is None else _from_class(key_of(default), default)


def _from_class(key: Key, found: Obj) -> Priority:
    kind, _, group = key.kind.partition(".")
    return Priority(found["value"], {"group": group, "kind": kind, "name": key.name})
