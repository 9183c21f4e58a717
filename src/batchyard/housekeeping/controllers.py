"""Housekeeping: Namespaces, ServiceAccounts, ClusterRoles, expiry of finished objects, CustomResourceDefinitions.

A CustomResourceDefinition without name conflicts is established, and its kind is served from then on. When it is
deleted, its objects are deleted first. Sources: k8s.io/apiextensions-apiserver,
pkg/controller/{status,establish,finalizer}.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from batchyard.admission_plugins.built_in import FINALIZER, SYSTEM_NAMESPACES, held, new_namespace
from batchyard.admission_plugins.service_accounts import (
    CERTIFICATE_KEY,
    DEFAULT,
    ROOT_CERTIFICATE,
    default_service_account,
)
from batchyard.api import scheme
from batchyard.api.custom_kinds import (
    BUILT_IN,
    DEFINITION,
    ESTABLISHED,
    NAMES_ACCEPTED,
    TERMINATING,
    accepted_names,
    built_in_kind,
    is_leaving,
    is_served,
    kind_of,
    taken_resources,
)
from batchyard.api.custom_kinds import FINALIZER as CRD_FINALIZER
from batchyard.api.meta import (
    Key,
    Obj,
    annotation,
    event_last_time,
    finalizers_of,
    find_condition,
    is_true,
    key_of,
    selector,
    with_condition,
    with_finalizer,
    with_metadata,
    with_status,
    without_finalizer,
)
from batchyard.api.scheme import KINDS, ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.interfaces.client import (
    Create,
    Delete,
    EventType,
    Propagation,
    Reader,
    Update,
    UpdateStatus,
    WatchEvent,
    Write,
)
from batchyard.interfaces.controller import ReconcileResult

# --- namespaces ---
#
# Namespace controller: activates new Namespaces, and deletes the content of deleted ones first.
#
# A finalizer keeps a Namespace until it is empty. Its conditions report the remaining content and finalizers. System
# Namespaces are recreated if missing. Sources: pkg/controller/namespace, pkg/controlplane/controller/systemnamespaces.
# The former deletes pods first where that affects security, and both poll. Here everything is deleted at once, and each
# created or deleted object triggers a reconcile.


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


# --- service accounts ---
#
# Every Namespace has a ServiceAccount `default`. Source: Kubernetes's pkg/controller/serviceaccount.


class ServiceAccounts:
    """Creates the default ServiceAccount of each Namespace."""

    name = "serviceaccounts"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.SERVICE_ACCOUNT)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a new or changed Namespace, or the one that lost its ServiceAccount."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is EventType.DELETED else (event.key,)
        is_lost = event.type is EventType.DELETED and event.key.name == DEFAULT
        return (Key(scheme.NAMESPACE, "", event.key.namespace),) if is_lost else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create the ServiceAccount if it is missing."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return ReconcileResult()
        if reader.get(Key(scheme.SERVICE_ACCOUNT, key.name, DEFAULT)) is not None:
            return ReconcileResult()
        return ReconcileResult([Create(default_service_account(key.name))])


# --- cluster roles ---
#
# Aggregated ClusterRoles: they have the rules of all ClusterRoles that their aggregationRule selects.
#
# Source: Kubernetes's pkg/controller/clusterroleaggregation.


class ClusterRoleAggregation:
    """Updates the rules of aggregated ClusterRoles."""

    name = "clusterrole-aggregation"
    rank = 0
    kinds = (scheme.CLUSTER_ROLE,)

    def __init__(self) -> None:
        #: The aggregated ClusterRoles.
        self._aggregates: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return all aggregated ClusterRoles; any may include the changed one."""
        if event.type is not EventType.DELETED and event.obj.get("aggregationRule"):
            self._aggregates[event.key] = None
        else:
            self._aggregates.pop(event.key, None)
        return list(self._aggregates)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set the rules to those of the selected ClusterRoles, without duplicates."""
        role = reader.get(key)
        if role is None or not role.get("aggregationRule"):
            return ReconcileResult()
        rules: list[Any] = []
        for other in reader.list(scheme.CLUSTER_ROLE):
            if key_of(other) != key and _is_part(other, role):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
        return (
            ReconcileResult()
            if rules == (role.get("rules") or [])
            else ReconcileResult([Update({**role, "rules": rules})])
        )


# --- accounts and roles ---
#
# Default ServiceAccounts, aggregated ClusterRoles, and the root CA ConfigMap of each Namespace.
#
# The ConfigMap contains the certificate that signs the API server's, for containers in the Namespace.
# Source: Kubernetes's pkg/controller/certificates/rootcacertpublisher.


def _is_part(other: Obj, role: Obj) -> bool:
    labels = other["metadata"].get("labels") or {}
    selectors = map(selector, role["aggregationRule"]["clusterRoleSelectors"])
    return any(each is not None and each.matches(labels) for each in selectors)


_ANNOTATION: Final = "kubernetes.io/description"
_DESCRIPTION: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_DELETED: Final = EventType.DELETED


class RootCertificates:
    """Publishes the root certificate in a ConfigMap of each Namespace."""

    name = "root-ca-cert-publisher"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.CONFIG_MAP)

    def __init__(self, certificate: str) -> None:
        self._data = {CERTIFICATE_KEY: certificate}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a new or changed Namespace, or that of a changed ConfigMap."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is _DELETED else (event.key,)
        return (Key(scheme.NAMESPACE, "", event.key.namespace),) if event.key.name == ROOT_CERTIFICATE else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create or correct the ConfigMap."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return ReconcileResult()
        known = reader.get(Key(scheme.CONFIG_MAP, key.name, ROOT_CERTIFICATE))
        if known is None:
            metadata = {"name": ROOT_CERTIFICATE, "namespace": key.name, "annotations": {_ANNOTATION: _DESCRIPTION}}
            new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self._data}
            return ReconcileResult([Create(new)])
        if known.get("data") == self._data and annotation(known, _ANNOTATION):
            return ReconcileResult()
        annotations = {**(known["metadata"].get("annotations") or {}), _ANNOTATION: _DESCRIPTION}
        return ReconcileResult([Update(with_metadata({**known, "data": self._data}, annotations=annotations))])


# --- ttl after finished ---
#
# Deletes Jobs and JobSets some time after they have ended, as set by `ttlSecondsAfterFinished`.
#
# Their pods and Jobs are deleted before them. Sources: pkg/controller/ttlafterfinished of Kubernetes and
# pkg/controllers/ttl_after_finished.go of JobSet.


_JOB_SET_MANAGERS: Final = (None, "jobset.sigs.k8s.io/jobset-controller")
# --- expiry ---
#
# Expiry: deletes Events an hour after they last occurred, like `--event-ttl` of kube-apiserver, and surplus Events.
#
# Each Job leaves about nine Events of 2 to 3 KB of memory each. The limit on their number bounds the cost of ended
# Jobs. All Events share one wake-up, that of the first to expire.


_ENDS: Final = {scheme.JOB: ("Complete", "Failed"), scheme.JOB_SET: ("Completed", "Failed")}


class TtlAfterFinished:
    """Deletes ended Jobs and JobSets after their TTL."""

    name = "ttl-after-finished"
    rank = 0

    def __init__(self, kinds: Sequence[str] = (scheme.JOB, scheme.JOB_SET)) -> None:
        self.kinds = kinds

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return an ended object with a TTL."""
        return (event.key,) if _expires_at(event.key, event.obj) is not None else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete the object if its TTL has expired."""
        obj = reader.get(key)
        expires_at = None if obj is None else _expires_at(key, obj)
        if obj is None or expires_at is None:
            return ReconcileResult()
        if expires_at > now:
            return ReconcileResult(requeue_at=expires_at)
        return ReconcileResult([Delete(key, propagation=Propagation.FOREGROUND, uid=obj["metadata"]["uid"])])


def _expires_at(key: Key, obj: Obj) -> Instant | None:
    """Return when it expires; None if it has not ended, is being deleted, or has no TTL."""
    seconds: int | None = obj["spec"].get("ttlSecondsAfterFinished")
    if seconds is None or "deletionTimestamp" in obj["metadata"] or _is_left_to_others(key, obj):
        return None
    ended = [find_condition(obj, kind) for kind in _ENDS[key.kind]]
    at = [parse_time(c["lastTransitionTime"]) for c in ended if c is not None and c["status"] == "True"]
    return at[0] + seconds * SECOND if at else None


def _is_left_to_others(key: Key, obj: Obj) -> bool:
    """Report whether another controller deletes it: that of a JobSet's `managedBy`; Jobs are always deleted here."""
    return key.kind == scheme.JOB_SET and obj["spec"].get("managedBy") not in _JOB_SET_MANAGERS


KEPT_FOR: Final = HOUR
#: The controller keeps this many Events; under a steady load the number exceeds it by two batches.
KEPT_MAX: Final = 5_000
#: The only key of this controller.
FIRST: Final = Key("Batch", "", "event-expiry")
#: The maximum number of deletions in one batch.
AT_ONCE_MAX: Final = 500
#: When to check whether a deleted Event is gone.
_LOOK_AGAIN: Final = MINUTE
#: The time between batches of surplus Events, so that a burst of Events leaves time for other work.
_SURPLUS_EVERY: Final = SECOND


class EventExpiry:
    """Deletes expired and surplus Events, from a heap of their expiry times."""

    name = "event-expiry"
    rank = 0
    kinds = (scheme.EVENT,)

    def __init__(self) -> None:
        #: The known expiry times as a heap; later updates are read when they are due.
        self._ends: list[tuple[Instant, Key]] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key if a new Event expires first or fills a batch; later occurrences are read at its expiry."""
        if event.type is not EventType.ADDED:
            return ()
        heappush(self._ends, (_end_of(event.obj, now), event.key))
        is_batch = len(self._ends) == KEPT_MAX + AT_ONCE_MAX
        return (FIRST,) if is_batch or self._ends[0][1] is event.key else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete the expired Events, and of a surplus those that expire first."""
        ends, gone, kept = self._ends, list[Write](), list[tuple[Instant, Key]]()
        surplus = len(ends) - KEPT_MAX
        while ends and len(gone) < AT_ONCE_MAX and (ends[0][0] <= now or surplus > 0):
            known, first = heappop(ends)
            event = reader.get(first)
            if event is None:
                surplus -= 1
                continue
            end = _end_of(event, now)
            if end > now and (surplus <= 0 or end > known):
                heappush(ends, (end, first))
                continue
            gone.append(Delete(first))
            surplus -= 1
            kept.append((now + (_LOOK_AGAIN if end <= now else _SURPLUS_EVERY), first))
        for each in kept:
            heappush(ends, each)
        return ReconcileResult(gone, requeue_at=ends[0][0] if ends else None, independent=True)


def _end_of(event: Obj, now: Instant) -> Instant:
    """Return when an Event expires. Its own time of occurrence is limited to between creation and an hour from now."""
    made = parse_time(event["metadata"]["creationTimestamp"])
    occurred = parse_time(event_last_time(event) or event["metadata"]["creationTimestamp"])
    return (occurred if made <= occurred <= now + KEPT_FOR else made) + KEPT_FOR


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
        held = with_finalizer(definition, CRD_FINALIZER)
        if held is not definition:
            return ReconcileResult([Update(held)])
        status = status_of(definition, reader, now)
        if status == definition.get("status"):
            return ReconcileResult()
        return ReconcileResult([UpdateStatus(with_status(definition, status))])


def _emptied(definition: Obj, reader: Reader, now: Instant) -> ReconcileResult:
    """Delete the objects of a deleted definition, then remove its finalizer."""
    if CRD_FINALIZER not in finalizers_of(definition):
        return ReconcileResult()
    defines = is_true(definition, ESTABLISHED) and built_in_kind(definition) is None
    left = reader.list(kind_of(definition).constant) if defines else ()
    if not left:
        return ReconcileResult([Update(without_finalizer(definition, CRD_FINALIZER))])
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
