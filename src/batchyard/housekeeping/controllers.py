"""Small controllers of kube-controller-manager and kube-apiserver that maintain and clean up objects.

- the lifecycle of Namespaces, with their default ServiceAccount and root CA ConfigMap
- the rules of aggregated ClusterRoles
- the deletion of finished Jobs and JobSets after their TTL, and of expired Events
- the status and deletion of CustomResourceDefinitions
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from batchyard.admission_plugins import service_accounts
from batchyard.admission_plugins.built_in import FINALIZER, SYSTEM_NAMESPACES, new_namespace, with_namespace_finalizer
from batchyard.api import custom_kinds, meta, scheme
from batchyard.api.custom_kinds import FINALIZER as CRD_FINALIZER
from batchyard.api.scheme import KINDS, ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.interfaces import client
from batchyard.interfaces.controller import ReconcileResult

# The Namespace controller activates new Namespaces, and deletes the content of a deleted Namespace first.
#
# A finalizer keeps a Namespace until it is empty. Its conditions report the remaining content and finalizers. System
# Namespaces are recreated if missing. Upstream polls, and deletes pods first where that affects security. Here all
# content is deleted together, and each created or deleted object triggers a reconcile. Sources:
# pkg/controller/namespace, pkg/controlplane/controller/systemnamespaces.


_MODIFIED: Final = client.EventType.MODIFIED  # enum member access is slow
_NAMESPACED_KINDS: Final = tuple(info for info in scheme.KINDS if info.namespaced)
#: The conditions in order, with reason and message while there is no problem.
_NO_PROBLEM_REASON_BY_CONDITION: Final[Mapping[str, tuple[str, str]]] = {
    "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
    "NamespaceDeletionGroupVersionParsingFailure": ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
}


class Namespaces:
    """Controller that sets the phase and conditions of Namespaces, and deletes the content of deleted Namespaces."""

    name = "namespaces"
    rank = 0

    def __init__(self, *, with_custom_kinds: bool = False) -> None:
        watched_kinds = (scheme.NAMESPACE, *[info.constant for info in _NAMESPACED_KINDS])
        self.kinds: Sequence[str] | None = None if with_custom_kinds else watched_kinds
        #: The names of Namespaces that are being deleted.
        self._terminating: dict[str, None] = {}

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed Namespace, or of the terminating Namespace of a created or deleted object.

        When the Namespace `default` is created, return the keys of all system Namespaces.
        """
        key = event.key
        if key.kind != scheme.NAMESPACE:
            is_content_change = event.type is not _MODIFIED and key.namespace in self._terminating
            return (meta.Key(scheme.NAMESPACE, "", key.namespace),) if is_content_change else ()
        if event.type is not client.EventType.DELETED and _is_deleted(event.obj):
            self._terminating[key.name] = None
        else:
            self._terminating.pop(key.name, None)
        is_first_event = event.old is None and key.name == SYSTEM_NAMESPACES[0]
        return [meta.Key(scheme.NAMESPACE, "", name) for name in SYSTEM_NAMESPACES] if is_first_event else (key,)

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Activate a new Namespace; delete the content of a deleted Namespace, then remove its finalizer.

        A missing system Namespace is created.
        """
        namespace = reader.get(key)
        if namespace is None:
            return ReconcileResult([client.Create(new_namespace(key.name))] if key.name in SYSTEM_NAMESPACES else [])
        if not _is_deleted(namespace):
            return _activate_namespace(namespace)
        content = {f"{info.plural}.{info.group}": reader.list(info.constant, key.name) for info in _list_kinds(reader)}
        deleted_objects = {name: [obj for obj in objects if _is_deleted(obj)] for name, objects in content.items()}
        status = _terminating_status(namespace, deleted_objects, now)
        if status != namespace.get("status"):
            writes: list[client.Write] = [client.UpdateStatus(meta.with_status(namespace, status))]
        elif (
            not any(content.values())
            and (unlocked_namespace := meta.without_finalizer(namespace, FINALIZER)) is not namespace
        ):
            writes = [client.Update(unlocked_namespace)]
        else:
            writes = []
        writes += [client.Delete(meta.key_of(o)) for objects in content.values() for o in objects if not _is_deleted(o)]
        return ReconcileResult(writes)


def _list_kinds(reader: client.Reader) -> Sequence[ServedKind]:
    custom_infos = [
        custom_kinds.kind_from_definition(definition)
        for definition in reader.list(custom_kinds.DEFINITION)
        if custom_kinds.is_served(definition)
    ]
    return [*_NAMESPACED_KINDS, *[info for info in custom_infos if info.namespaced]]


def _is_deleted(obj: meta.Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _activate_namespace(namespace: meta.Obj) -> ReconcileResult:
    active_namespace = with_namespace_finalizer(namespace)
    if active_namespace is not namespace:
        return ReconcileResult([client.Update(active_namespace)])
    status = namespace.get("status") or {}
    if status.get("phase") == "Active":
        return ReconcileResult()
    return ReconcileResult([client.UpdateStatus(meta.with_status(namespace, {**status, "phase": "Active"}))])


def _terminating_status(namespace: meta.Obj, objects: Mapping[str, Sequence[meta.Obj]], now: Instant) -> dict[str, Any]:
    old = namespace.get("status") or {}
    old_conditions = {condition["type"]: condition for condition in old.get("conditions") or ()}
    problems = {**dict.fromkeys(_NO_PROBLEM_REASON_BY_CONDITION), **_remaining_content_conditions(objects)}
    conditions = [_condition(kind, problem, old_conditions.pop(kind, None), now) for kind, problem in problems.items()]
    return {**old, "phase": "Terminating", "conditions": [*old_conditions.values(), *conditions]}


def _remaining_content_conditions(
    objects_by_resource: Mapping[str, Sequence[meta.Obj]],
) -> Mapping[str, tuple[str, str]]:
    """Return the conditions of a terminating Namespace about its remaining objects and their finalizers.

    They are pairs (reason, message) by condition type. `objects_by_resource` holds the remaining objects.
    """
    counts = sorted(
        f"{name} has {len(objects)} resource instances" for name, objects in objects_by_resource.items() if objects
    )
    finalizers = Counter(
        name for objects in objects_by_resource.values() for obj in objects for name in meta.finalizers_of(obj)
    )
    finalizer_text = ", ".join(sorted(f"{name} in {count} resource instances" for name, count in finalizers.items()))
    problem_texts: dict[str, tuple[str, str]] = {}
    if counts:
        message = f"Some resources are remaining: {', '.join(counts)}"
        problem_texts["NamespaceContentRemaining"] = ("SomeResourcesRemain", message)
    if finalizer_text:
        message = f"Some content in the namespace has finalizers remaining: {finalizer_text}"
        problem_texts["NamespaceFinalizersRemaining"] = ("SomeFinalizersRemain", message)
    return problem_texts


def _condition(
    condition_type: str, problem: tuple[str, str] | None, old: Mapping[str, Any] | None, now: Instant
) -> Mapping[str, Any]:
    status = "False" if problem is None else "True"
    reason, message = problem or _NO_PROBLEM_REASON_BY_CONDITION[condition_type]
    transition_time = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    return {
        "type": condition_type,
        "status": status,
        "lastTransitionTime": transition_time,
        "reason": reason,
        "message": message,
    }


# Each Namespace has a ServiceAccount `default`. Source: Kubernetes's pkg/controller/serviceaccount.


class ServiceAccounts:
    """Controller that creates the ServiceAccount `default` in each Namespace."""

    name = "serviceaccounts"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.SERVICE_ACCOUNT)

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed Namespace, or of the Namespace whose ServiceAccount `default` was deleted."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is client.EventType.DELETED else (event.key,)
        is_default_deleted = event.type is client.EventType.DELETED and event.key.name == service_accounts.DEFAULT
        return (meta.Key(scheme.NAMESPACE, "", event.key.namespace),) if is_default_deleted else ()

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Create the missing ServiceAccount `default` of a Namespace that is not being deleted."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return ReconcileResult()
        if reader.get(meta.Key(scheme.SERVICE_ACCOUNT, key.name, service_accounts.DEFAULT)) is not None:
            return ReconcileResult()
        return ReconcileResult([client.Create(service_accounts.default_service_account(key.name))])


# Aggregated ClusterRoles have the rules of all ClusterRoles that their aggregationRule selects.
#
# Source: Kubernetes's pkg/controller/clusterroleaggregation.


class ClusterRoleAggregation:
    """Controller that sets the rules of ClusterRoles with an aggregationRule."""

    name = "clusterrole-aggregation"
    rank = 0
    kinds = (scheme.CLUSTER_ROLE,)

    def __init__(self) -> None:
        #: The keys of the aggregated ClusterRoles.
        self._aggregates: dict[meta.Key, None] = {}

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the keys of all ClusterRoles with an aggregationRule, since any may select the changed ClusterRole."""
        if event.type is not client.EventType.DELETED and event.obj.get("aggregationRule"):
            self._aggregates[event.key] = None
        else:
            self._aggregates.pop(event.key, None)
        return list(self._aggregates)

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Set the rules of an aggregated ClusterRole to those of all ClusterRoles that it selects."""
        role = reader.get(key)
        if role is None or not role.get("aggregationRule"):
            return ReconcileResult()
        aggregated_rules: list[Any] = []
        for other_object in reader.list(scheme.CLUSTER_ROLE):
            if meta.key_of(other_object) != key and _is_role_aggregated(other_object, role):
                aggregated_rules += [rule for rule in other_object.get("rules") or () if rule not in aggregated_rules]
        if aggregated_rules == (role.get("rules") or []):
            return ReconcileResult()
        return ReconcileResult([client.Update({**role, "rules": aggregated_rules})])


def _is_role_aggregated(candidate_role: meta.Obj, aggregated_role: meta.Obj) -> bool:
    labels = candidate_role["metadata"].get("labels") or {}
    selectors = map(meta.parse_selector, aggregated_role["aggregationRule"]["clusterRoleSelectors"])
    return any(each is not None and each.matches(labels) for each in selectors)


# Each Namespace has a ConfigMap with the CA certificate that signed the API server's certificate.
# Source: Kubernetes's pkg/controller/certificates/rootcacertpublisher.

_DESCRIPTION_ANNOTATION: Final = "kubernetes.io/description"
_DESCRIPTION: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_DELETED: Final = client.EventType.DELETED


class RootCertificates:
    """Controller that creates the ConfigMap with the API server's CA certificate in each Namespace."""

    name = "root-ca-cert-publisher"
    rank = 0
    kinds = (scheme.NAMESPACE, scheme.CONFIG_MAP)

    def __init__(self, certificate: str) -> None:
        self._data = {service_accounts.CERTIFICATE_KEY: certificate}

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a new or changed Namespace, or of the Namespace whose CA certificate ConfigMap changed."""
        if event.key.kind == scheme.NAMESPACE:
            return () if event.type is _DELETED else (event.key,)
        if event.key.name != service_accounts.ROOT_CERTIFICATE:
            return ()
        return (meta.Key(scheme.NAMESPACE, "", event.key.namespace),)

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Create or restore the CA certificate ConfigMap of a Namespace that is not being deleted."""
        namespace = reader.get(key)
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return ReconcileResult()
        name = service_accounts.ROOT_CERTIFICATE
        config_map = reader.get(meta.Key(scheme.CONFIG_MAP, key.name, name))
        if config_map is None:
            metadata = {"name": name, "namespace": key.name, "annotations": {_DESCRIPTION_ANNOTATION: _DESCRIPTION}}
            new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self._data}
            return ReconcileResult([client.Create(new)])
        if config_map.get("data") == self._data and meta.annotation(config_map, _DESCRIPTION_ANNOTATION):
            return ReconcileResult()
        annotations = {**(config_map["metadata"].get("annotations") or {}), _DESCRIPTION_ANNOTATION: _DESCRIPTION}
        new_config_map = meta.with_metadata({**config_map, "data": self._data}, annotations=annotations)
        return ReconcileResult([client.Update(new_config_map)])


# Finished Jobs and JobSets are deleted `ttlSecondsAfterFinished` after their end, in the foreground: dependents first.
#
# Sources: pkg/controller/ttlafterfinished of Kubernetes and
# pkg/controllers/ttl_after_finished.go of JobSet.


_JOB_SET_MANAGERS: Final = (None, "jobset.sigs.k8s.io/jobset-controller")
_FINISHED_CONDITION_TYPES: Final = {scheme.JOB: ("Complete", "Failed"), scheme.JOB_SET: ("Completed", "Failed")}


class TtlAfterFinished:
    """Controller that deletes finished Jobs and JobSets after `ttlSecondsAfterFinished`."""

    name = "ttl-after-finished"
    rank = 0

    def __init__(self, kinds: Sequence[str] = (scheme.JOB, scheme.JOB_SET)) -> None:
        self.kinds = kinds

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of the changed Job or JobSet if it is to be deleted after its TTL."""
        return (event.key,) if _ttl_expiry_time(event.key, event.obj) is not None else ()

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Delete a finished Job or JobSet if its TTL has expired; otherwise requeue it for the time of expiry."""
        obj = reader.get(key)
        expires_at = None if obj is None else _ttl_expiry_time(key, obj)
        if obj is None or expires_at is None:
            return ReconcileResult()
        if expires_at > now:
            return ReconcileResult(requeue_at=expires_at)
        uid = obj["metadata"]["uid"]
        return ReconcileResult([client.Delete(key, propagation=client.Propagation.FOREGROUND, uid=uid)])


def _ttl_expiry_time(key: meta.Key, obj: meta.Obj) -> Instant | None:
    ttl_seconds: int | None = obj["spec"].get("ttlSecondsAfterFinished")
    if ttl_seconds is None or "deletionTimestamp" in obj["metadata"] or _is_managed_elsewhere(key, obj):
        return None
    end_conditions = [meta.find_condition(obj, kind) for kind in _FINISHED_CONDITION_TYPES[key.kind]]
    end_times = [parse_time(c["lastTransitionTime"]) for c in end_conditions if c is not None and c["status"] == "True"]
    return end_times[0] + ttl_seconds * SECOND if end_times else None


def _is_managed_elsewhere(key: meta.Key, obj: meta.Obj) -> bool:
    return key.kind == scheme.JOB_SET and obj["spec"].get("managedBy") not in _JOB_SET_MANAGERS


# Events are deleted an hour after their last occurrence, like `--event-ttl` of kube-apiserver, or as surplus.
# Each Job leaves about nine Events of 2 to 3 KB each, so their maximum number bounds the memory of ended Jobs. The
# controller has one key for all Events, and wakes up when the first of them expires.

EVENT_LIFETIME: Final = HOUR
#: The number of Events that the controller keeps; a steady load exceeds it by up to two batches.
EVENTS_MAX: Final = 5_000
#: The only key of the controller.
EVENTS_KEY: Final = meta.Key("Batch", "", "event-expiry")
#: The maximum number of deletions in one batch.
BATCH_MAX: Final = 500
#: The time after which the controller checks that a deleted Event no longer exists.
_DELETION_CHECK_DELAY: Final = MINUTE
#: The time between two batches of surplus Events, which leaves time for other work.
_SURPLUS_INTERVAL: Final = SECOND


class EventExpiry:
    """Controller that deletes Events an hour after they last occurred, and the oldest Events if there are too many."""

    name = "event-expiry"
    rank = 0
    kinds = (scheme.EVENT,)

    def __init__(self) -> None:
        #: A heap of expiry times; later occurrences of an Event are read when it expires.
        self._expiries: list[tuple[Instant, meta.Key]] = []

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return EVENTS_KEY if the new Event is the first to expire, or if BATCH_MAX Events exceed EVENTS_MAX.

        Then `reconcile` has Events to delete, or must be requeued earlier.
        """
        if event.type is not client.EventType.ADDED:
            return ()
        heappush(self._expiries, (_event_expiry_time(event.obj, now), event.key))
        is_batch_full = len(self._expiries) == EVENTS_MAX + BATCH_MAX
        return (EVENTS_KEY,) if is_batch_full or self._expiries[0][1] is event.key else ()

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Delete expired Events and, if over EVENTS_MAX exist, the next to expire; at most BATCH_MAX per call."""
        event_expiries, deletions, rechecks = self._expiries, list[client.Write](), list[tuple[Instant, meta.Key]]()
        surplus_count = len(event_expiries) - EVENTS_MAX
        while event_expiries and len(deletions) < BATCH_MAX and (event_expiries[0][0] <= now or surplus_count > 0):
            known_expiry, event_key = heappop(event_expiries)
            event = reader.get(event_key)
            if event is None:
                surplus_count -= 1
                continue
            expiry_time = _event_expiry_time(event, now)
            if expiry_time > now and (surplus_count <= 0 or expiry_time > known_expiry):
                heappush(event_expiries, (expiry_time, event_key))
                continue
            deletions.append(client.Delete(event_key))
            surplus_count -= 1
            rechecks.append((now + (_DELETION_CHECK_DELAY if expiry_time <= now else _SURPLUS_INTERVAL), event_key))
        for each in rechecks:
            heappush(event_expiries, each)
        return ReconcileResult(deletions, requeue_at=event_expiries[0][0] if event_expiries else None, independent=True)


def _event_expiry_time(event: meta.Obj, now: Instant) -> Instant:
    """Return when an Event expires: EVENT_LIFETIME after its last occurrence.

    If the last occurrence is before the Event's creation, or more than EVENT_LIFETIME in the future, the time counts
    from the creation instead.
    """
    created_at = parse_time(event["metadata"]["creationTimestamp"])
    occurred_at = parse_time(meta.event_last_time(event) or event["metadata"]["creationTimestamp"])
    return (occurred_at if created_at <= occurred_at <= now + EVENT_LIFETIME else created_at) + EVENT_LIFETIME


# A definition without name conflicts is established: its kind is served from then on. Before a definition is deleted,
# its objects are deleted. Sources: k8s.io/apiextensions-apiserver, pkg/controller/{status,establish,finalizer}.

_NAME_FIELDS: Final = ("plural", "singular", "shortNames", "kind", "listKind")
_CONFLICT_REASON_BY_FIELD: Final = {
    "plural": "PluralConflict",
    "singular": "SingularConflict",
    "shortNames": "ShortNamesConflict",
    "kind": "KindConflict",
    "listKind": "ListKindConflict",
}


class CustomResourceDefinitions:
    """Controller that sets the status of CustomResourceDefinitions, and deletes the objects of deleted definitions."""

    name = "custom-resources"
    rank = 0
    kinds = None  # a definition may wait for objects of any kind

    def __init__(self, custom_groups: Collection[str] = ()) -> None:
        """Let definitions declare the built-in kinds of the API groups `custom_groups`."""
        self._custom_groups = custom_groups
        #: By definition: its group and the kind that it defines.
        self._definitions: dict[meta.Key, tuple[str, str]] = {}
        #: By kind: the definition of the kind that is being deleted.
        self._terminating: dict[str, meta.Key] = {}

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed definition, or of the terminating definition of a deleted custom object.

        For a deleted definition, return the keys of all definitions of its group, because its names are free now.
        """
        key = event.key
        if key.kind != custom_kinds.DEFINITION:
            definition_key = self._terminating.get(key.kind)
            return () if definition_key is None or event.type is not client.EventType.DELETED else (definition_key,)
        info = custom_kinds.kind_from_definition(event.obj)
        if event.type is client.EventType.DELETED:
            self._definitions.pop(key, None)
            self._terminating.pop(info.constant, None)
            return [other_key for other_key, (group, _) in self._definitions.items() if group == info.group]
        self._definitions[key] = info.group, info.constant
        if custom_kinds.is_definition_terminating(event.obj):
            self._terminating[info.constant] = key
        return (key,)

    def reconcile(self, key: meta.Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Add the finalizer of a definition, update its status, or delete its objects if it is being deleted."""
        definition = reader.get(key)
        if definition is None:
            return ReconcileResult()
        if custom_kinds.is_definition_terminating(definition):
            return _delete_custom_objects(definition, reader, now)
        finalized_definition = meta.with_finalizer(definition, CRD_FINALIZER)
        if finalized_definition is not definition:
            return ReconcileResult([client.Update(finalized_definition)])
        status = definition_status(definition, reader, now, self._custom_groups)
        if status == definition.get("status"):
            return ReconcileResult()
        return ReconcileResult([client.UpdateStatus(meta.with_status(definition, status))])


def _delete_custom_objects(definition: meta.Obj, reader: client.Reader, now: Instant) -> ReconcileResult:
    if CRD_FINALIZER not in meta.finalizers_of(definition):
        return ReconcileResult()
    has_objects = custom_kinds.is_served(definition)
    objects = reader.list(custom_kinds.kind_from_definition(definition).constant) if has_objects else ()
    if not objects:
        return ReconcileResult([client.Update(meta.without_finalizer(definition, CRD_FINALIZER))])
    status = definition.get("status") or {}
    conditions = meta.with_condition(
        status.get("conditions") or [],
        type=custom_kinds.TERMINATING,
        status=True,
        reason="InstanceDeletionInProgress",
        message="CustomResource deletion is in progress",
        now=now,
    )
    writes: list[client.Write] = []
    if conditions is not status.get("conditions"):
        writes.append(client.UpdateStatus(meta.with_status(definition, {**status, "conditions": conditions})))
    writes += [client.Delete(meta.key_of(obj)) for obj in objects if not custom_kinds.is_definition_terminating(obj)]
    return ReconcileResult(writes)


def definition_status(
    definition: meta.Obj, reader: client.Reader, now: Instant, custom_groups: Collection[str] = ()
) -> dict[str, Any]:
    """Return the new status of a CustomResourceDefinition that is not being deleted.

    The platform does not serve the built-in kinds of the API groups `custom_groups`.
    """
    served_kind = custom_kinds.built_in_kind(definition, custom_groups)
    old = definition.get("status") or {}
    spec_names, old_names = definition["spec"]["names"], custom_kinds.accepted_names(definition)
    conflicts = _name_conflicts(
        spec_names, old_names, _find_names_in_use(definition, served_kind, reader, custom_groups)
    )
    new_names = {field: old_names.get(field) if field in conflicts else spec_names.get(field) for field in _NAME_FIELDS}
    new_names["categories"] = spec_names.get("categories")
    versions = old.get("storedVersions") or []
    storage_version = custom_kinds.kind_from_definition(definition).storage_version
    return {
        **old,
        "conditions": _make_conditions(definition, conflicts, now, is_built_in=served_kind is not None),
        "acceptedNames": {field: value for field, value in new_names.items() if value},
        "storedVersions": versions if storage_version in versions else [*versions, storage_version],
    }


def _make_conditions(
    definition: meta.Obj, conflicts: Mapping[str, str], now: Instant, *, is_built_in: bool
) -> Sequence[Mapping[str, Any]]:
    field, message = [("", "no conflicts found"), *conflicts.items()][-1]
    reason = _CONFLICT_REASON_BY_FIELD.get(field, "NoConflicts")
    old_conditions: Any = (definition.get("status") or {}).get("conditions") or []
    conditions = meta.with_condition(
        old_conditions, type=custom_kinds.NAMES_ACCEPTED, status=not conflicts, reason=reason, message=message, now=now
    )
    if not meta.is_true(definition, custom_kinds.ESTABLISHED):
        is_established = False
        if conflicts:
            reason, message = "NotAccepted", "not all names are accepted"
        elif not custom_kinds.has_valid_ca_bundle(definition):
            reason, message = "InvalidCABundle", "The conversion webhook CABundle is invalid"
        else:
            is_established = True
            reason, message = "InitialNamesAccepted", "the initial names have been accepted"
        conditions = meta.with_condition(
            conditions, type=custom_kinds.ESTABLISHED, status=is_established, reason=reason, message=message, now=now
        )
    if is_built_in:
        message = "batchyard serves this kind itself, and keeps its own schema for it"
        conditions = meta.with_condition(
            conditions, type=custom_kinds.BUILT_IN, status=True, reason="ServedByPlatform", message=message, now=now
        )
    return conditions


def _name_conflicts(
    spec_names: Mapping[str, Any], old_names: Mapping[str, Any], names_in_use: "_NamesInUse"
) -> dict[str, str]:
    name_conflicts: dict[str, str] = {}
    for field in _NAME_FIELDS:
        names = names_in_use.kinds if field in ("kind", "listKind") else names_in_use.resources
        current_value = old_names.get(field) or ()
        for name in spec_names.get(field) or () if field == "shortNames" else [spec_names.get(field)]:
            if name in names and (name not in current_value if field == "shortNames" else name != current_value):
                name_conflicts[field] = f'"{name}" is already in use'
    return name_conflicts


class _NamesInUse:
    __slots__ = ("kinds", "resources")

    def __init__(self, resources: Sequence[str], kinds: Sequence[str]) -> None:
        self.resources = frozenset(resources)
        self.kinds = frozenset(kinds)


def _find_names_in_use(
    definition: meta.Obj, built_in_kind: ServedKind | None, reader: client.Reader, custom_groups: Collection[str]
) -> _NamesInUse:
    spec = definition["spec"]
    resources: list[str] = []
    kinds: list[str] = []
    for info in KINDS:
        if info.group == spec["group"] and info is not built_in_kind and info.group not in custom_groups:
            resources += [info.plural, info.singular, *info.short_names]
            kinds += [info.kind, f"{info.kind}List"]
    for other_object in reader.list(custom_kinds.DEFINITION):
        if other_object["spec"]["group"] == spec["group"] and meta.key_of(other_object) != meta.key_of(definition):
            names = custom_kinds.accepted_names(other_object)
            resources += custom_kinds.resource_names(names)
            kinds += [names[field] for field in ("kind", "listKind") if names.get(field)]
    return _NamesInUse(resources, kinds)
