"""Namespace controller: activates new Namespaces, and deletes the content of deleted ones first.

A finalizer keeps a Namespace until it is empty. Its conditions report the remaining content and finalizers. System
Namespaces are recreated if missing. Sources: pkg/controller/namespace, pkg/controlplane/controller/systemnamespaces.
The former deletes pods first where that affects security, and both poll. Here everything is deleted at once, and each
created or deleted object triggers a reconcile.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins.namespaces import FINALIZER, SYSTEM_NAMESPACES, held, new_namespace
from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_of
from batchyard.api.meta import Key, Obj, finalizers_of, key_of, with_status, without_finalizer
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

_MODIFIED: Final = EventType.MODIFIED  # enum member access is slow
_NAMESPACED: Final = tuple(info for info in scheme.KINDS if info.namespaced)
#: Conditions in order, each with reason and message while there is no problem.
_WELL: Final[Mapping[str, tuple[str, str]]] = {
    "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
    "NamespaceDeletionGroupVersionParsingFailure": (
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
}


class Namespaces:
    """Maintains the finalizer, phase and conditions of Namespaces."""

    name = "namespaces"
    rank = 0

    def __init__(self, *, with_custom_kinds: bool = False) -> None:
        named = (scheme.NAMESPACE, *[info.constant for info in _NAMESPACED])
        self.kinds: Sequence[str] | None = None if with_custom_kinds else named
        #: Namespaces that are being deleted.
        self._leaving: dict[str, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the Namespace if it changed, or if an object in a terminating one was created or deleted."""
        key = event.key
        if key.kind != scheme.NAMESPACE:
            is_news = event.type is not _MODIFIED and key.namespace in self._leaving
            return (Key(scheme.NAMESPACE, "", key.namespace),) if is_news else ()
        if event.type is not EventType.DELETED and _is_deleted(event.obj):
            self._leaving[key.name] = None
        else:
            self._leaving.pop(key.name, None)
        is_there = event.old is None and key.name == SYSTEM_NAMESPACES[0]
        return [Key(scheme.NAMESPACE, "", name) for name in SYSTEM_NAMESPACES] if is_there else (key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Activate a new Namespace, or empty a deleted one and remove its finalizer."""
        namespace = reader.get(key)
        if namespace is None:
            return ReconcileResult([Create(new_namespace(key.name))] if key.name in SYSTEM_NAMESPACES else [])
        if not _is_deleted(namespace):
            return _taken_up(namespace)
        content = {f"{info.plural}.{info.group}": reader.list(info.constant, key.name) for info in _kinds(reader)}
        deleted = {name: [obj for obj in found if _is_deleted(obj)] for name, found in content.items()}
        status = _status_of_leaving(namespace, deleted, now)
        if status != namespace.get("status"):
            writes: list[Write] = [UpdateStatus(with_status(namespace, status))]
        elif not any(content.values()) and (released := without_finalizer(namespace, FINALIZER)) is not namespace:
            writes = [Update(released)]
        else:
            writes = []
        writes += [Delete(key_of(obj)) for found in content.values() for obj in found if not _is_deleted(obj)]
        return ReconcileResult(writes)


def _kinds(reader: Reader) -> Sequence[ServedKind]:
    """Return the namespaced kinds."""
    defined = [kind_of(definition) for definition in reader.list(DEFINITION) if is_served(definition)]
    return [*_NAMESPACED, *[info for info in defined if info.namespaced]]


def _is_deleted(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _taken_up(namespace: Obj) -> ReconcileResult:
    """Add label and finalizer to a Namespace that is not being deleted, then set it to Active."""
    kept = held(namespace)
    if kept is not namespace:
        return ReconcileResult([Update(kept)])
    status = namespace.get("status") or {}
    if status.get("phase") == "Active":
        return ReconcileResult()
    return ReconcileResult([UpdateStatus(with_status(namespace, {**status, "phase": "Active"}))])


def _status_of_leaving(namespace: Obj, left: Mapping[str, Sequence[Obj]], now: Instant) -> dict[str, Any]:
    """Return the status of a terminating Namespace with these remaining objects, by resource."""
    old = namespace.get("status") or {}
    known = {condition["type"]: condition for condition in old.get("conditions") or ()}
    problems = {**dict.fromkeys(_WELL), **_troubles(left)}
    conditions = [_condition(kind, trouble, known.pop(kind, None), now) for kind, trouble in problems.items()]
    return {**old, "phase": "Terminating", "conditions": [*known.values(), *conditions]}


def _troubles(left: Mapping[str, Sequence[Obj]]) -> Mapping[str, tuple[str, str]]:
    """Return what keeps a Namespace: reason and message by condition type."""
    counts = sorted(f"{name} has {len(objects)} resource instances" for name, objects in left.items() if objects)
    finalizers = Counter(name for found in left.values() for obj in found for name in finalizers_of(obj))
    holders = ", ".join(sorted(f"{name} in {count} resource instances" for name, count in finalizers.items()))
    troubles: dict[str, tuple[str, str]] = {}
    if counts:
        message = f"Some resources are remaining: {', '.join(counts)}"
        troubles["NamespaceContentRemaining"] = ("SomeResourcesRemain", message)
    if holders:
        message = f"Some content in the namespace has finalizers remaining: {holders}"
        troubles["NamespaceFinalizersRemaining"] = ("SomeFinalizersRemain", message)
    return troubles


def _condition(
    kind: str, trouble: tuple[str, str] | None, old: Mapping[str, Any] | None, now: Instant
) -> Mapping[str, Any]:
    status = "False" if trouble is None else "True"
    reason, message = trouble or _WELL[kind]
    since = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    return {"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}
