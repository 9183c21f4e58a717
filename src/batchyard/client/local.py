"""The in-process client: reads and writes a store directly, and delivers events and results later, on the event loop.

A write takes effect in the store at once, so later reads see it. Its watch event and its result are queued, and a
delivery on the event loop is scheduled. The delivery sends all queued events to all subscribers in revision order, then
all results in the order of the writes. So events of one instant arrive in batches, and a writer gets its result after
all subscribers have seen the change. Changes that other code makes in the store are delivered in the same way.

Dependents of a deleted object are garbage-collected (batchyard.client.garbage_collector) after its event was delivered.
The defaults and the admission of the API server are hooks: `prepare` completes a new object of a kind, `checks`
validate updates, and `guards` validate deletions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.api import scheme
from batchyard.api.errors import ApiError, Conflict, FieldError, InvalidObject, NotFound
from batchyard.api.meta import Key, Obj, finalizers_of, group_kind, key_of, with_metadata
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.node import grace_period
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for
from batchyard.client.garbage_collector import GarbageCollector, NamespacedLookup, finalizers_after_deletion
from batchyard.interfaces import client
from batchyard.interfaces.controller import Kernel

# The result of a write: pure functions from the stored object and the sent one to the next one.
#
# They follow the API server's rules for every kind. The server owns uid, creationTimestamp, generation, resourceVersion
# and the two deletion fields. In a write these are preconditions (uid, resourceVersion) or ignored. Only UpdateStatus
# writes the status. `generation` counts changes of the desired state, which is everything except metadata and status. A
# function that changes nothing returns the stored object itself.


_SERVER_OWNED_FIELDS: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
#: Kinds without a generation.
_KINDS_WITHOUT_GENERATION: Final = frozenset(
    {
        *(scheme.NAMESPACE, scheme.NODE, scheme.CONFIG_MAP, scheme.SECRET, scheme.SERVICE, scheme.SERVICE_ACCOUNT),
        *(scheme.EVENT, scheme.LEASE, scheme.ENDPOINTS, scheme.LIMIT_RANGE, scheme.RESOURCE_QUOTA),
        *(scheme.ROLE, scheme.ROLE_BINDING, scheme.CLUSTER_ROLE, scheme.CLUSTER_ROLE_BINDING, scheme.RUNTIME_CLASS),
        *(scheme.PERSISTENT_VOLUME, scheme.PERSISTENT_VOLUME_CLAIM),
        *(scheme.HORIZONTAL_POD_AUTOSCALER, scheme.STORAGE_CLASS),
    }
)
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # from apimachinery's rand: no vowels, so no words
_SUFFIX_LENGTH: Final = 5
_GENERATED_NAME_LENGTH_MAX: Final = 63


def with_server_metadata(obj: Obj, uid: str, now: Instant) -> Obj:
    """Return a new object with the metadata that the server sets; an existing uid or creation time is kept.

    The fields `deletionTimestamp` and `deletionGracePeriodSeconds` are removed.
    """
    given_metadata = obj["metadata"]
    metadata = {
        **given_metadata,
        "uid": given_metadata.get("uid") or uid,
        "creationTimestamp": given_metadata.get("creationTimestamp") or format_time(now),
        "generation": 1,
    }
    if group_kind(obj) in _KINDS_WITHOUT_GENERATION:
        del metadata["generation"]
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    return {**obj, "metadata": metadata}


def generated_name(name_prefix: str, uid: str) -> str:
    """Return a name for an object with `generateName`: the prefix and five characters derived from the uid.

    The prefix is cut to 58 characters.
    """
    remaining_number = int(uid.replace("-", "")[:12], 16)
    suffix_letters = []
    for _ in range(_SUFFIX_LENGTH):
        remaining_number, letter = divmod(remaining_number, len(_SUFFIX_ALPHABET))
        suffix_letters.append(_SUFFIX_ALPHABET[letter])
    return name_prefix[: _GENERATED_NAME_LENGTH_MAX - _SUFFIX_LENGTH] + "".join(suffix_letters)


def check_name_given(obj: Obj) -> None:
    """Raise InvalidObject unless the object has a name or a generateName."""
    metadata = obj["metadata"]
    if not metadata.get("name") and not metadata.get("generateName"):
        raise InvalidObject([FieldError("metadata.name", "Required value: name or generateName is required")])


def check_preconditions(key: Key, stored_object: Obj, sent_object: Obj) -> None:
    """Raise Conflict if the sent object names another uid or resourceVersion than the stored one."""
    stored_metadata, sent_metadata = stored_object["metadata"], sent_object["metadata"]
    if stored_metadata is sent_metadata:
        return
    sent_version = sent_metadata.get("resourceVersion")
    if sent_version and sent_version != stored_metadata["resourceVersion"]:
        raise Conflict(
            f'{key.kind} "{key}": the object has been modified (read at {sent_version}, '
            f"now {stored_metadata['resourceVersion']}); apply your changes to the latest version and try again"
        )
    uid, stored_uid = sent_metadata.get("uid"), stored_metadata.get("uid")
    if uid and uid != stored_uid:
        raise Conflict(f'{key.kind} "{key}": the object has been deleted and recreated (uid {uid}, now {stored_uid})')


def apply_update(
    stored_object: Obj, sent_object: Obj, managed_fields: Sequence[Obj] | None = None, *, is_whole: bool = False
) -> Obj:
    """Return the object to store for an Update: as sent, but the status and server-owned fields stay as stored.

    With `is_whole`, the status is stored as sent. A change of the desired state, or with `is_whole` of the status,
    increments the generation, if the object has one. `managed_fields` replaces the stored managedFields, unless it is
    None. If nothing changes, `stored_object` itself is returned.
    """
    metadata = _with_managed_fields(
        _updated_metadata(stored_object["metadata"], sent_object["metadata"]), managed_fields
    )
    if _desired_state(stored_object) != _desired_state(sent_object) or (
        is_whole and stored_object.get("status") != sent_object.get("status")
    ):
        metadata = {**metadata, **_next_generation(stored_object["metadata"])}
    elif metadata is stored_object["metadata"]:
        return stored_object
    new = {**sent_object, "metadata": metadata}
    if is_whole:
        return new
    if "status" in stored_object:
        new["status"] = stored_object["status"]
    else:
        new.pop("status", None)
    return new


def apply_status_update(
    stored_object: Obj, sent_object: Obj, managed_fields: Sequence[Obj] | None = None, *, with_metadata: bool = False
) -> Obj:
    """Return the object to store for an update of the status subresource: the status as sent, the rest as stored.

    `managed_fields` replaces the stored managedFields, unless it is None. With `with_metadata`, the metadata are stored
    as sent too, except the server-owned fields. If nothing changes, `stored_object` itself is returned.
    """
    status, metadata = sent_object.get("status"), stored_object["metadata"]
    if with_metadata:
        metadata = _updated_metadata(metadata, sent_object["metadata"])
    metadata = _with_managed_fields(metadata, managed_fields)
    if metadata is not stored_object["metadata"]:
        stored_object = {**stored_object, "metadata": metadata}
    elif status == stored_object.get("status"):
        return stored_object
    if status is None:
        return {field: value for field, value in stored_object.items() if field != "status"}
    return {**stored_object, "status": status}


def deletion_grace(stored_object: Obj, requested_grace: int | None) -> int:
    """Return the deletion grace period of an object in seconds; 0 unless it is an unfinished pod on a node.

    `requested_grace` overrides the grace period in the spec of the pod, unless it is None. For a pod that already has a
    deletionTimestamp, a request can only shorten the stored grace period.

    Sources: Kubernetes's pkg/registry/core/pod/strategy.go (CheckGracefulDelete); k8s.io/apiserver,
    pkg/registry/rest/delete.go (BeforeDelete).
    """
    if group_kind(stored_object) != "Pod":
        return 0
    if "deletionTimestamp" in stored_object["metadata"]:
        stored_grace: int = stored_object["metadata"].get("deletionGracePeriodSeconds") or 0
        return stored_grace if requested_grace is None else min(requested_grace, stored_grace)
    spec, status = stored_object["spec"], stored_object.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    return grace_period(spec) if requested_grace is None else requested_grace


def mark_deleted(stored_object: Obj, now: Instant, grace_seconds: int = 0, *, finalizers: Sequence[str] = ()) -> Obj:
    """Return the object with a deletionTimestamp, this grace period and these finalizers.

    If the object already has a deletionTimestamp, its grace period can only become shorter, and counts from the first
    deletion. While a grace period is pending, a deletion that does not shorten it keeps the finalizers too. If nothing
    changes, `stored_object` itself is returned.

    Source: k8s.io/apiserver, pkg/registry/rest/delete.go (BeforeDelete).
    """
    metadata = stored_object["metadata"]
    stored_grace = metadata.get("deletionGracePeriodSeconds") or 0
    if "deletionTimestamp" not in metadata:
        changed_fields = {**_deletion_fields(now, grace_seconds), **_next_generation(metadata)}
    elif grace_seconds < stored_grace:
        first_deletion = parse_time(metadata["deletionTimestamp"]) - stored_grace * SECOND
        changed_fields = _deletion_fields(first_deletion, grace_seconds)
    elif stored_grace or [*finalizers] == [*finalizers_of(stored_object)]:
        return stored_object
    else:
        changed_fields = {}
    return with_metadata(stored_object, **changed_fields, finalizers=[*finalizers] or None)


def _deletion_fields(requested_at: Instant, grace_seconds: int) -> dict[str, Any]:
    deletion_time = format_time(requested_at + grace_seconds * SECOND)
    return {"deletionTimestamp": deletion_time, "deletionGracePeriodSeconds": grace_seconds}


def _next_generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"generation": metadata["generation"] + 1} if "generation" in metadata else {}


def is_removable(obj: Obj) -> bool:
    """Return whether an object has a deletionTimestamp, and neither finalizers nor a grace period delay its removal."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def _updated_metadata(stored_metadata: Mapping[str, Any], sent_metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sent metadata with the stored values of server-owned fields.

    Return `stored_metadata` itself if the result equals it.
    """
    if sent_metadata is stored_metadata:
        return stored_metadata
    metadata = dict(sent_metadata)
    for field in _SERVER_OWNED_FIELDS:
        if field in stored_metadata:
            metadata[field] = stored_metadata[field]
        else:
            metadata.pop(field, None)
    return stored_metadata if metadata == stored_metadata else metadata


def _with_managed_fields(metadata: Mapping[str, Any], managed_fields: Sequence[Obj] | None) -> Mapping[str, Any]:
    """Return object metadata with `managed_fields` set; the same mapping if they are None or unchanged."""
    if managed_fields is None or managed_fields == metadata.get("managedFields", []):
        return metadata
    return {**metadata, "managedFields": managed_fields}


def _desired_state(obj: Obj) -> dict[str, Any]:
    return {field: value for field, value in obj.items() if field not in {"metadata", "status"}}


# Writes that are validated and return their result, but are not stored.


class ReadableStore(Protocol):
    """Read access to an object store."""

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with this key, or None."""


class DryRun:
    """A substitute for the store in dry runs: accepts writes, returns the resulting objects, and stores nothing."""

    def __init__(self, base_store: ReadableStore) -> None:
        self._records = base_store

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with this key, or None."""
        return self._records.get(key)

    def put(self, key: Key, obj: Obj, expected_revision: int | None = None) -> Obj:
        """Return the object as if it were stored. Raises Conflict if a new object (0) exists."""
        if expected_revision == 0 and self._records.get(key) is not None:
            raise Conflict(f'{key.kind} "{key}" already exists')
        return obj

    def delete(self, key: Key, expected_revision: int | None = None) -> Obj:
        """Return the object as if deleted; `expected_revision` is ignored. Raises NotFound if there is no object."""
        stored_object = self._records.get(key)
        if stored_object is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return stored_object


PrepareHook: TypeAlias = Callable[[Obj, client.Reader], Obj]
"""Completes a new object of a kind for storage, with uid and name set; raises an ApiError to reject it."""
DeletionGuard: TypeAlias = Callable[[Obj], None]
"""Validates the deletion of an object of a kind; raises an ApiError to reject it."""
ManagerAssigner: TypeAlias = Callable[[client.Write, Callable[[Key], Obj | None]], client.Write]
"""Returns a submitted write, with the field manager recorded; the second argument looks up stored objects."""
WriteInterceptor: TypeAlias = Callable[[Iterable[client.Write], Callable[[client.WriteResult], None]], None]
"""Executes submitted writes, possibly later, and passes the result of the last one to the callback."""
UpdateCompleter: TypeAlias = Callable[[Obj, Obj, client.Reader], Obj]
"""Completes an update, given the new and the old object; raises an ApiError to reject it."""
UpdateCheck: TypeAlias = Callable[[Obj, Obj, client.Reader], None]
"""Validates an update, given the new and the old object; raises an ApiError to reject it."""


class AdmissionHooks(NamedTuple):
    """The functions by kind that a LocalClient calls: for a new object, before a deletion, and for a changed object.

    A changed object is first completed, then checked.
    """

    prepare: Mapping[str, PrepareHook] = {}
    guards: Mapping[str, DeletionGuard] = {}
    checks: Mapping[str, UpdateCheck] = {}
    completers: Mapping[str, UpdateCompleter] = {}


#: The key of the hook for all kinds without their own hook, in `prepare` and in `checks`.
DEFAULT_HOOK: Final = ""
_FOREGROUND: Final = client.Propagation.FOREGROUND
_ORPHAN: Final = client.Propagation.ORPHAN
_NAMES_TRIED_MAX: Final = 8  # as the API server does for generateName


class WritableStore(Protocol):
    """The store to which LocalClient applies a write: the object store, or its substitute in a dry run."""

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with this key, or None."""

    def put(self, key: Key, obj: Obj, expected_revision: int | None = None) -> Obj:
        """Store an object and return it. `expected_revision` is the required current revision; 0 requires a new object.

        Raises Conflict if another revision is stored.
        """

    def delete(self, key: Key, expected_revision: int | None = None) -> Obj:
        """Remove an object and return its last state. `expected_revision` is the required current revision.

        Raises NotFound, or Conflict if another revision is stored.
        """


class ObjectStore(WritableStore, Protocol):
    """The object store that a LocalClient needs: reads and writes objects, and reports changes."""

    @property
    def revision(self) -> int:
        """The revision of the last change in the store."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind in a namespace (None: in all), sorted by namespace and name."""

    def listen(self, listener: Callable[[client.WatchEvent], None]) -> None:
        """Call `listener` with every later change, synchronously within the write that makes the change."""


class LocalClient:
    """A client that reads and writes a store in this process, with admission hooks and garbage collection."""

    __slots__ = (
        "_admission",
        "_assign_manager",
        "_collector",
        "_events",
        "_intercept",
        "_is_delivery_scheduled",
        "_kernel",
        "_listeners",
        "_results",
        "_seed",
        "_store",
        "_uid_counts",
        "_uid_counts_at",
    )

    def __init__(
        self,
        store: ObjectStore,
        kernel: Kernel,
        seed: int = 0,
        admission: AdmissionHooks | None = None,
        assign_manager: ManagerAssigner | None = None,
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._seed = seed
        self._listeners: list[client.Listener] = []
        self._events: list[client.WatchEvent] = []
        self._results: list[tuple[Callable[[client.WriteResult], None], client.WriteResult]] = []
        self._is_delivery_scheduled = False
        self._admission = admission or AdmissionHooks()
        self._assign_manager = assign_manager
        self._intercept: WriteInterceptor | None = None
        self._collector = GarbageCollector(store.get, lambda write: self._apply(write, store))
        self._uid_counts: dict[Key, int] = {}  # how many uids were created for each key at `_uid_counts_at`
        self._uid_counts_at: Instant = kernel.now()
        store.listen(self._observe)

    @property
    def revision(self) -> int:
        """The revision of the last change in the store."""
        return self._store.revision

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with this key, or None."""
        return self._store.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind in a namespace (None: in all), sorted by namespace and name."""
        return self._store.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of the owner with this uid and namespace ('' if cluster-scoped), sorted by key."""
        get = self._store.get
        return [obj for key in self._collector.owned_by(uid, namespace) if (obj := get(key)) is not None]

    def set_scope_lookup(self, scope_lookup: NamespacedLookup) -> None:
        """Enable garbage collection of objects whose owner does not exist.

        `scope_lookup` returns whether a kind is namespaced, or None if it is not served.
        """
        self._collector.scopes = scope_lookup

    def observe_existing(self, events: Sequence[client.WatchEvent]) -> None:
        """Pass all objects that are in the store at the start, as ADDED events, to the garbage collector."""
        self._collector.observe_existing(events)
        if not self._is_delivery_scheduled:
            self._schedule_delivery()

    def subscribe(self, listener: client.Listener) -> None:
        """Call `listener` with batches of later changes, in revision order, from the event loop."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: client.Listener) -> None:
        """Stop calling `listener` with changes."""
        self._listeners.remove(listener)

    def is_settled(self) -> bool:
        """Return whether all changes were delivered to the subscribers, and all results of writes to their writers."""
        return not (self._events or self._results)

    def submit(self, writes: Iterable[client.Write], on_result: Callable[[client.WriteResult], None]) -> None:
        """Apply writes in order until one is rejected; `on_result` later gets the result of the last write tried."""
        if self._intercept is not None:
            self._intercept(writes, on_result)
            return
        self.submit_directly(writes, on_result)

    def submit_directly(self, writes: Iterable[client.Write], on_result: Callable[[client.WriteResult], None]) -> None:
        """Apply writes like `submit`, without the interceptor."""
        for write in writes:
            result = self.attempt_submitted(write)
            if result.error is not None:
                break
        self.queue_result(on_result, result)

    def set_write_interceptor(self, intercept: WriteInterceptor | None) -> None:
        """Set what executes submitted writes instead of this client; None restores their immediate execution."""
        self._intercept = intercept

    def attempt_submitted(self, write: client.Write) -> client.WriteResult:
        """Apply one submitted write now, with the field manager recorded, and return its result."""
        assign_manager = self._assign_manager
        return self.attempt(write if assign_manager is None else assign_manager(write, self.get))

    def attempt(self, write: client.Write, *, dry_run: bool = False) -> client.WriteResult:
        """Apply one write now and return its result; a dry run validates the write without storing it."""
        try:
            return client.WriteResult(self._apply(write, DryRun(self._store) if dry_run else self._store))
        except ApiError as error:
            # The traceback is dropped: its frames refer to the result, and the result to the error, a reference cycle.
            return client.WriteResult(None, error.with_traceback(None), write)

    def queue_result(self, on_result: Callable[[client.WriteResult], None], result: client.WriteResult) -> None:
        """Queue the result of a write; the next delivery calls `on_result` with it."""
        self._results.append((on_result, result))
        if not self._is_delivery_scheduled:
            self._schedule_delivery()

    def _apply(self, write: client.Write, target_store: WritableStore) -> Obj:
        if isinstance(write, client.Create):
            return self._create(write.obj, target_store)
        if isinstance(write, client.Delete):
            return self._delete(write, target_store)
        key = key_of(write.obj)
        stored_object = self._stored_object(key)
        check_preconditions(key, stored_object, write.obj)
        if isinstance(write, client.UpdateStatus):
            new = apply_status_update(stored_object, write.obj, write.managed_fields, with_metadata=write.with_metadata)
            if write.with_metadata and is_removable(new):
                return target_store.delete(key)
        else:
            new = apply_update(stored_object, write.obj, write.managed_fields, is_whole=write.is_whole)
            complete = self._admission.completers.get(key.kind)
            if complete is not None and new is not stored_object:
                new = complete(new, stored_object, self)
            if is_removable(new):
                return target_store.delete(key)
            update_check = self._admission.checks.get(key.kind) or self._admission.checks.get(DEFAULT_HOOK)
            if update_check is not None and new is not stored_object:
                update_check(new, stored_object, self)
        return stored_object if new is stored_object else target_store.put(key, new)

    def _create(self, obj: Obj, target_store: WritableStore) -> Obj:
        if obj["metadata"].get("name"):
            key = key_of(obj)
            uid = obj["metadata"].get("uid") or self._generate_uid(key)
            return self._put_new_object(key, obj, uid, target_store)
        check_name_given(obj)
        name_prefix = obj["metadata"]["generateName"]
        for _ in range(_NAMES_TRIED_MAX):
            uid = self._generate_uid(key_of(with_metadata(obj, name=name_prefix)))
            named_object = with_metadata(obj, name=generated_name(name_prefix, uid))
            if self._store.get(key_of(named_object)) is None:
                return self._put_new_object(key_of(named_object), named_object, uid, target_store)
        problem = f'{group_kind(obj)} "{name_prefix}": no free name was found in {_NAMES_TRIED_MAX} attempts'
        raise Conflict(f"{problem}; try again, or set another generateName")

    def _put_new_object(self, key: Key, obj: Obj, uid: str, target_store: WritableStore) -> Obj:
        new = with_server_metadata(obj, uid, self._kernel.now())
        prepare_hook = self._admission.prepare.get(key.kind) or self._admission.prepare.get(DEFAULT_HOOK)
        return target_store.put(key, new if prepare_hook is None else prepare_hook(new, self), 0)

    def _delete(self, write: client.Delete, target_store: WritableStore) -> Obj:
        key = write.key
        stored_object = self._stored_object(key)
        deletion_guard = self._admission.guards.get(key.kind)
        if deletion_guard is not None:
            deletion_guard(stored_object)
        if write.uid is not None:
            check_preconditions(key, stored_object, {"metadata": {"uid": write.uid}})
        uid, stored_grace = (stored_object["metadata"].get(field) for field in ("uid", "deletionGracePeriodSeconds"))
        grace_seconds = deletion_grace(stored_object, write.grace_period_seconds)
        if stored_grace and grace_seconds >= stored_grace:
            return stored_object
        if write.propagation is _ORPHAN and target_store is self._store:
            self._collector.orphan(uid, key.namespace)
        in_foreground = write.propagation is _FOREGROUND and bool(self._collector.owned_by(uid, key.namespace))
        finalizers = finalizers_after_deletion(stored_object, write.propagation, in_foreground=in_foreground)
        if not grace_seconds and not finalizers:
            return target_store.delete(key)
        marked_object = mark_deleted(stored_object, self._kernel.now(), grace_seconds, finalizers=finalizers)
        return stored_object if marked_object is stored_object else target_store.put(key, marked_object)

    def _stored_object(self, key: Key) -> Obj:
        stored_object = self._store.get(key)
        if stored_object is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return stored_object

    def _generate_uid(self, key: Key) -> str:
        """Return a uid for a new object, derived from the seed, the key, the time, and a counter for repetitions.

        The uid does not depend on other objects, so a simulation with one more object differs in that object only.
        """
        now = self._kernel.now()
        if now != self._uid_counts_at:
            self._uid_counts.clear()
            self._uid_counts_at = now
        uid_count = self._uid_counts.get(key, 0)
        self._uid_counts[key] = uid_count + 1
        return uid_for(self._seed, *key, str(now), str(uid_count))

    def _observe(self, event: client.WatchEvent) -> None:
        self._events.append(event)
        self._collector.observe(event)
        if not self._is_delivery_scheduled:
            self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        self._is_delivery_scheduled = True
        self._kernel.call_soon(self._deliver_results)

    def _deliver_results(self) -> None:
        events, self._events = self._events, []
        write_results, self._results = self._results, []
        self._is_delivery_scheduled = False
        if events:
            for listener in self._listeners:
                listener(events)
        self._collector.collect()
        for done, result in write_results:
            done(result)


def create_or_replace(
    local_client: LocalClient, objects: Iterable[Obj], on_result: Callable[[client.WriteResult], None]
) -> None:
    """Create objects, or update those that differ, without the interceptor; `on_result` later gets each result.

    An update keeps the metadata of the stored object, and the fields that the given object does not have.
    """
    for obj in objects:
        stored_object = local_client.get(key_of(obj))
        if stored_object is None:
            local_client.submit_directly([client.Create(obj)], on_result)
            continue
        updated = {**stored_object, **obj, "metadata": stored_object["metadata"]}
        if updated != stored_object:
            local_client.submit_directly([client.Update(updated)], on_result)
