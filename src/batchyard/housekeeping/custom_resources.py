"""CustomResourceDefinition controller: name conflicts, establishment, and deletion of their objects.

A definition without name conflicts is established, and its kind is served from then on. When it is deleted, its objects
are deleted first. Sources: k8s.io/apiextensions-apiserver, pkg/controller/{status,establish,finalizer}.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api.conditions import is_true, with_condition
from batchyard.api.custom_kinds import (
    BUILT_IN,
    DEFINITION,
    ESTABLISHED,
    FINALIZER,
    NAMES_ACCEPTED,
    TERMINATING,
    accepted_names,
    built_in_kind,
    is_leaving,
    kind_of,
    taken_resources,
)
from batchyard.api.meta import Key, Obj, finalizers_of, key_of, with_finalizer, with_status, without_finalizer
from batchyard.api.scheme import KINDS
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

_FIELDS: Final = ("plural", "singular", "shortNames", "kind", "listKind")
_CONFLICTS: Final = {
    "plural": "PluralConflict",
    "singular": "SingularConflict",
    "shortNames": "ShortNamesConflict",
    "kind": "KindConflict",
    "listKind": "ListKindConflict",
}


class CustomResourceDefinitions:
    """Updates the status of definitions, and empties those that are being deleted."""

    name = "custom-resources"
    rank = 0
    kinds = None  # a definition may wait for objects of any kind

    def __init__(self) -> None:
        #: The existing definitions, each with its group and the kind that it defines.
        self._known: dict[Key, tuple[str, str]] = {}
        #: The definitions that are being deleted, by the kind of their objects.
        self._leaving: dict[str, Key] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a changed definition, those that may wait for freed names, or that of a deleted object."""
        key = event.key
        if key.kind != DEFINITION:
            leaving = self._leaving.get(key.kind)
            return () if leaving is None or event.type is not EventType.DELETED else (leaving,)
        info = kind_of(event.obj)
        if event.type is EventType.DELETED:
            self._known.pop(key, None)
            self._leaving.pop(info.constant, None)
            return [other for other, (group, _) in self._known.items() if group == info.group]
        self._known[key] = info.group, info.constant
        if is_leaving(event.obj):
            self._leaving[info.constant] = key
        return (key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Add the finalizer to a new definition and update its status, or delete the objects of a deleted one."""
        definition = reader.get(key)
        if definition is None:
            return ReconcileResult()
        if is_leaving(definition):
            return _emptied(definition, reader, now)
        held = with_finalizer(definition, FINALIZER)
        if held is not definition:
            return ReconcileResult([Update(held)])
        status = status_of(definition, reader, now)
        if status == definition.get("status"):
            return ReconcileResult()
        return ReconcileResult([UpdateStatus(with_status(definition, status))])


def _emptied(definition: Obj, reader: Reader, now: Instant) -> ReconcileResult:
    """Delete the objects of a deleted definition, then remove its finalizer."""
    if FINALIZER not in finalizers_of(definition):
        return ReconcileResult()
    defines = is_true(definition, ESTABLISHED) and built_in_kind(definition) is None
    left = reader.list(kind_of(definition).constant) if defines else ()
    if not left:
        return ReconcileResult([Update(without_finalizer(definition, FINALIZER))])
    status = definition.get("status") or {}
    conditions = with_condition(
        status.get("conditions") or [],
        type=TERMINATING,
        status=True,
        reason="InstanceDeletionInProgress",
        message="CustomResource deletion is in progress",
        now=now,
    )
    writes: list[Write] = []
    if conditions is not status.get("conditions"):
        writes.append(UpdateStatus(with_status(definition, {**status, "conditions": conditions})))
    writes += [Delete(key_of(obj)) for obj in left if not is_leaving(obj)]
    return ReconcileResult(writes)


def status_of(definition: Obj, reader: Reader, now: Instant) -> dict[str, Any]:
    """Return the status of a definition that is not being deleted."""
    old = definition.get("status") or {}
    wanted, mine = definition["spec"]["names"], accepted_names(definition)
    conflicts = _conflicts(wanted, mine, _taken(definition, reader))
    accepted = {field: mine.get(field) if field in conflicts else wanted.get(field) for field in _FIELDS}
    accepted["categories"] = wanted.get("categories")
    stored = old.get("storedVersions") or []
    storage = kind_of(definition).storage_version
    return {
        **old,
        "conditions": _conditions(definition, conflicts, now),
        "acceptedNames": {field: value for field, value in accepted.items() if value},
        "storedVersions": stored if storage in stored else [*stored, storage],
    }


def _conditions(definition: Obj, conflicts: Mapping[str, str], now: Instant) -> Sequence[Mapping[str, Any]]:
    field, message = [("", "no conflicts found"), *conflicts.items()][-1]
    reason = _CONFLICTS.get(field, "NoConflicts")
    known: Any = (definition.get("status") or {}).get("conditions") or []
    conditions = with_condition(
        known, type=NAMES_ACCEPTED, status=not conflicts, reason=reason, message=message, now=now
    )
    if not is_true(definition, ESTABLISHED):
        reason, message = (
            ("NotAccepted", "not all names are accepted")
            if conflicts
            else ("InitialNamesAccepted", "the initial names have been accepted")
        )
        conditions = with_condition(
            conditions, type=ESTABLISHED, status=not conflicts, reason=reason, message=message, now=now
        )
    if built_in_kind(definition) is not None:
        message = "batchyard has this kind itself, and goes on serving it by its own schema"
        conditions = with_condition(
            conditions, type=BUILT_IN, status=True, reason="ServedByPlatform", message=message, now=now
        )
    return conditions


def _conflicts(wanted: Mapping[str, Any], mine: Mapping[str, Any], taken: "_NamesInUse") -> dict[str, str]:
    """Return the fields whose names are in use, each with the message."""
    found: dict[str, str] = {}
    for field in _FIELDS:
        names, known = (taken.kinds, field) if field in ("kind", "listKind") else (taken.resources, field)
        was = mine.get(known) or ()
        for name in wanted.get(field) or () if field == "shortNames" else [wanted.get(field)]:
            if name in names and (name not in was if field == "shortNames" else name != was):
                found[field] = f'"{name}" is already in use'
    return found


class _NamesInUse:
    """The names of other kinds of a group."""

    __slots__ = ("kinds", "resources")

    def __init__(self, resources: Sequence[str], kinds: Sequence[str]) -> None:
        self.resources = frozenset(resources)
        self.kinds = frozenset(kinds)


def _taken(definition: Obj, reader: Reader) -> _NamesInUse:
    spec, itself = definition["spec"], built_in_kind(definition)
    resources: list[str] = []
    kinds: list[str] = []
    for info in KINDS:
        if info.group == spec["group"] and info is not itself:
            resources += [info.plural, info.singular, *info.short_names]
            kinds += [info.kind, f"{info.kind}List"]
    for other in reader.list(DEFINITION):
        if other["spec"]["group"] == spec["group"] and key_of(other) != key_of(definition):
            names = accepted_names(other)
            resources += taken_resources(names)
            kinds += [names[field] for field in ("kind", "listKind") if names.get(field)]
    return _NamesInUse(resources, kinds)
