"""Rules of PriorityClasses. Source: Kubernetes's pkg/apis/scheduling/validation."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata

USER_PRIORITY_MAX: Final = 1_000_000_000
#: The classes every cluster has, with their values.
SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_POLICIES: Final = ("PreemptLowerPriority", "Never")


def priority_class_faults(priority_class: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a PriorityClass."""
    yield from metadata.metadata_faults(priority_class)
    name, value = priority_class["metadata"].get("name") or "", priority_class.get("value", 0)
    if name.startswith("system-"):
        yield from _system_class_faults(priority_class, name)
    elif value > USER_PRIORITY_MAX:
        message = f"maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}"
        yield faults.forbidden("value", message, f"give at most {USER_PRIORITY_MAX}")
    policy = priority_class.get("preemptionPolicy")
    if policy is not None and policy not in _POLICIES:
        yield faults.unsupported("preemptionPolicy", policy, _POLICIES)


def _system_class_faults(priority_class: Mapping[str, Any], name: str) -> Iterator[FieldError]:
    """Names that start with system- are those every cluster has, with their values, and no default."""
    value, prefix = (
        SYSTEM_CLASSES.get(name),
        "priority class names with 'system-' prefix are reserved for system use only",
    )
    if value is None:
        reason = f"{name} is not a known system priority class"
    elif priority_class.get("value", 0) != value:
        reason = f"value of {name} PriorityClass must be {value}"
    elif priority_class.get("globalDefault"):
        reason = f"globalDefault of {name} PriorityClass must be false"
    else:
        return
    remedy = "use a name without the prefix system-"
    yield faults.forbidden("metadata.name", f"{prefix}. error: {reason}", remedy)


def priority_class_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed PriorityClass: value and preemption policy stay."""
    yield from priority_class_faults(new)
    if new.get("value", 0) != old.get("value", 0):
        yield faults.forbidden("value", "may not be changed in an update.", "delete the class and create it anew")
    policy, before = (obj.get("preemptionPolicy") or "PreemptLowerPriority" for obj in (new, old))
    if policy != before:
        yield faults.immutable("preemptionPolicy", policy)
