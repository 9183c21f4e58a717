"""The in-process client: reads and writes a store directly, and delivers events and results later, on the event loop.

A write takes effect in the store at once, so later reads see it. Its watch event and its result are queued. The first
of them schedules a delivery of everything queued by then. The delivery sends the events to all subscribers in revision
order, then the results in the order of the writes. So events of one instant arrive in batches, and a writer gets its
result after all subscribers have seen the change. Changes to the store by others are delivered in the same way.

Dependents of a deleted object are garbage-collected (batchyard.client.local) after its event was delivered.
The defaults and the admission of the API server are hooks: `prepare` completes a new object of a kind, `checks`
validate updates, and `guards` validate deletions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.api import scheme
from batchyard.api.errors import ApiError, Conflict, FieldError, InvalidObject, NotFound
from batchyard.api.meta import Key, Obj, group_kind, key_of, with_metadata
from batchyard.api.times import format_time
from batchyard.api.views.node import grace_period
from batchyard.api.well_known import FOREGROUND_FINALIZER
from batchyard.base import uid_for
from batchyard.base.instant import SECOND, Instant
from batchyard.client.garbage_collector import GarbageCollector, Scopes
from batchyard.interfaces.client import (
    Create,
    Delete,
    Listener,
    Propagation,
    Reader,
    UpdateStatus,
    WatchEvent,
    Write,
    WriteResult,
)
from batchyard.interfaces.controller import Kernel

"""Whether a kind, by `apiVersion` and `kind`, is namespaced; None if it is not served."""


# --- object updates ---
#
# The result of a write: pure functions from the stored object and the sent one to the next one.
#
# They follow the API server's rules for every kind. The server owns uid, creationTimestamp, generation, resourceVersion
# and the two deletion fields. In a write these are preconditions (uid, resourceVersion) or ignored. Only UpdateStatus
# writes the status. `generation` counts changes of the desired state, which is everything except metadata and status. A
# function that changes nothing returns the stored object itself.


_SERVERS_OWN: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
#: Kinds without a generation.
_UNCOUNTED: Final = frozenset(
    {
        *(scheme.NAMESPACE, scheme.NODE, scheme.CONFIG_MAP, scheme.SECRET, scheme.SERVICE, scheme.SERVICE_ACCOUNT),
        *(scheme.EVENT, scheme.LEASE, scheme.ENDPOINTS, scheme.LIMIT_RANGE, scheme.RESOURCE_QUOTA),
        *(scheme.ROLE, scheme.ROLE_BINDING, scheme.CLUSTER_ROLE, scheme.CLUSTER_ROLE_BINDING, scheme.RUNTIME_CLASS),
        *(scheme.PERSISTENT_VOLUME, scheme.PERSISTENT_VOLUME_CLAIM),
    }
)
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # from apimachinery's rand: no vowels, so no words
_SUFFIX_LENGTH: Final = 5
_GENERATED_LENGTH_MAX: Final = 63


def created(obj: Obj, uid: str, now: Instant) -> Obj:
    """Return a new object; a given uid and creation time are kept."""
    given = obj["metadata"]
    metadata = {
        **given,
        "uid": given.get("uid") or uid,
        "creationTimestamp": given.get("creationTimestamp") or format_time(now),
        "generation": 1,
    }
    if group_kind(obj) in _UNCOUNTED:
        del metadata["generation"]
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    return {**obj, "metadata": metadata}


def generated_name(prefix: str, uid: str) -> str:
    """Return the name for a `generateName`: the prefix and five characters derived from the uid."""
    number = int(uid.replace("-", "")[:12], 16)
    letters = []
    for _ in range(_SUFFIX_LENGTH):
        number, letter = divmod(number, len(_SUFFIX_ALPHABET))
        letters.append(_SUFFIX_ALPHABET[letter])
    return prefix[: _GENERATED_LENGTH_MAX - _SUFFIX_LENGTH] + "".join(letters)


def check_named(obj: Obj) -> None:
    """Raise InvalidObject unless the object has a name or a generateName."""
    metadata = obj["metadata"]
    if not metadata.get("name") and not metadata.get("generateName"):
        raise InvalidObject([FieldError("metadata.name", "Required value: name or generateName is required")])


def check_preconditions(key: Key, stored: Obj, sent: Obj) -> None:
    """Raise Conflict if the sent object names another uid or resourceVersion than the stored one."""
    found, wanted = stored["metadata"], sent["metadata"]
    if found is wanted:
        return
    version = wanted.get("resourceVersion")
    if version and version != found["resourceVersion"]:
        raise Conflict(
            f'{key.kind} "{key}": the object has been modified (read at {version}, now {found["resourceVersion"]}); '
            "apply your changes to the latest version and try again"
        )
    uid = wanted.get("uid")
    if uid and uid != found["uid"]:
        raise Conflict(f'{key.kind} "{key}": the object has been deleted and recreated (uid {uid}, now {found["uid"]})')


def updated(stored: Obj, sent: Obj, managed_fields: Sequence[Obj] | None = None, *, is_whole: bool = False) -> Obj:
    """Return the object after an Update: as sent, except a status subresource and server-owned fields."""
    metadata = _managed(_updated_metadata(stored["metadata"], sent["metadata"]), managed_fields)
    if _desired(stored) != _desired(sent) or (is_whole and stored.get("status") != sent.get("status")):
        metadata = {**metadata, **_counted(stored["metadata"])}
    elif metadata is stored["metadata"]:
        return stored
    new = {**sent, "metadata": metadata}
    if is_whole:
        return new
    if "status" in stored:
        new["status"] = stored["status"]
    else:
        new.pop("status", None)
    return new


def status_updated(stored: Obj, sent: Obj, managed_fields: Sequence[Obj] | None = None) -> Obj:
    """Return the object after an UpdateStatus: the status as sent, the rest as stored."""
    status, metadata = sent.get("status"), _managed(stored["metadata"], managed_fields)
    if metadata is not stored["metadata"]:
        stored = {**stored, "metadata": metadata}
    elif status == stored.get("status"):
        return stored
    if status is None:
        return {field: value for field, value in stored.items() if field != "status"}
    return {**stored, "status": status}


def deletion_grace(stored: Obj, wanted: int | None) -> int:
    """Return the deletion grace period in seconds: 0 except for a running pod that is bound to a node.

    Source: Kubernetes's pkg/registry/core/pod/strategy.go (CheckGracefulDelete).
    """
    if group_kind(stored) != "Pod":
        return 0
    spec, status = stored["spec"], stored.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    return grace_period(spec) if wanted is None else wanted


def marked_deleted(stored: Obj, now: Instant, grace: int = 0, *, finalizers: Sequence[str] = ()) -> Obj:
    """Return the object after a Delete that does not remove it yet: marked, with these additional finalizers.

    An object that is already marked changes only if its grace period gets shorter.
    """
    metadata = stored["metadata"]
    added = [name for name in finalizers if name not in metadata.get("finalizers", ())]
    is_marked = "deletionTimestamp" in metadata
    if is_marked and grace >= metadata["deletionGracePeriodSeconds"] and not added:
        return stored
    if is_marked:
        grace = min(grace, metadata["deletionGracePeriodSeconds"])
    mark: dict[str, Any] = {
        "deletionTimestamp": format_time(now + grace * SECOND),
        "deletionGracePeriodSeconds": grace,
        **({} if is_marked else _counted(metadata)),
    }
    if added:
        mark["finalizers"] = [*metadata.get("finalizers", ()), *added]
    return {**stored, "metadata": {**metadata, **mark}}


def _counted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation after a change of the desired state, for kinds that have one."""
    return {"generation": metadata["generation"] + 1} if "generation" in metadata else {}


def is_released(obj: Obj) -> bool:
    """Report whether a deleted object has no finalizers and no grace period left, so that it is removed."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def _updated_metadata(stored: Mapping[str, Any], sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata as sent, with server-owned fields as stored; the stored mapping itself if they are equal."""
    if sent is stored:
        return stored
    metadata = dict(sent)
    for field in _SERVERS_OWN:
        if field in stored:
            metadata[field] = stored[field]
        else:
            metadata.pop(field, None)
    return stored if metadata == stored else metadata


def _managed(metadata: Mapping[str, Any], managed_fields: Sequence[Obj] | None) -> Mapping[str, Any]:
    """Return the metadata with these managedFields; the mapping itself if they are unchanged."""
    if managed_fields is None or managed_fields == metadata.get("managedFields", []):
        return metadata
    return {**metadata, "managedFields": managed_fields}


def _desired(obj: Obj) -> dict[str, Any]:
    """Return everything of an object except its metadata and status: the desired state."""
    return {field: value for field, value in obj.items() if field not in {"metadata", "status"}}


# --- dry run ---
#
# Writes that are validated like any other but not stored; the result is returned.


class Readable(Protocol):
    """Read access to stored objects."""

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""


class DryRun:
    """Records that accept writes and store none."""

    def __init__(self, records: Readable) -> None:
        self._records = records

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        return self._records.get(key)

    def put(self, key: Key, obj: Obj, expect: int | None = None) -> Obj:
        """Return the object as if stored; Conflict if it must not exist yet and does."""
        if expect == 0 and self._records.get(key) is not None:
            raise Conflict(f'{key.kind} "{key}" already exists')
        return obj

    def delete(self, key: Key, expect: int | None = None) -> Obj:
        """Return the object as if deleted; NotFound if it does not exist."""
        found = self._records.get(key)
        if found is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return found


Prepare: TypeAlias = Callable[[Obj, Reader], Obj]
"""Completes a new object of a kind for storage, with uid and name set; raises an ApiError to reject it."""
Guard: TypeAlias = Callable[[Obj], None]
"""Validates the deletion of an object of a kind; raises an ApiError to reject it."""
Claim: TypeAlias = Callable[[Write, Callable[[Key], Obj | None]], Write]
"""Assigns a submitted write to a field manager, given the stored object."""
Check: TypeAlias = Callable[[Obj, Obj, Reader], None]
"""Validates an update of an object of a kind, new and old; raises an ApiError to reject it."""


class AdmissionHooks(NamedTuple):
    """The admission hooks that the API runs before it stores or deletes objects, by kind."""

    prepare: Mapping[str, Prepare] = {}
    guards: Mapping[str, Guard] = {}
    checks: Mapping[str, Check] = {}


#: The key of the `prepare` hook for kinds without one of their own.
ANY_OTHER: Final = ""
_FOREGROUND: Final = Propagation.FOREGROUND
_ORPHAN: Final = Propagation.ORPHAN
_NAMES_TRIED_MAX: Final = 8  # as the API server does for generateName


class Writable(Protocol):
    """The storage that a write is applied to."""

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""

    def put(self, key: Key, obj: Obj, expect: int | None = None) -> Obj:
        """Store an object."""

    def delete(self, key: Key, expect: int | None = None) -> Obj:
        """Remove an object."""


class Records(Writable, Protocol):
    """The interface of a store that the client needs."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""

    def listen(self, listener: Callable[[WatchEvent], None]) -> None:
        """Call the listener with every later change at once."""


class LocalClient:
    """Reader and Writer over a store in this process."""

    __slots__ = (
        "_admission",
        "_claimed",
        "_collector",
        "_delivering_soon",
        "_events",
        "_kernel",
        "_listeners",
        "_minted",
        "_minted_at",
        "_results",
        "_seed",
        "_store",
    )

    def __init__(
        self,
        store: Records,
        kernel: Kernel,
        seed: int = 0,
        admission: AdmissionHooks | None = None,
        claimed: Claim | None = None,
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._seed = seed
        self._listeners: list[Listener] = []
        self._events: list[WatchEvent] = []
        self._results: list[tuple[Callable[[WriteResult], None], WriteResult]] = []
        self._delivering_soon = False
        self._admission = admission or AdmissionHooks()
        self._claimed = claimed
        self._collector = GarbageCollector(store.get, lambda write: self._apply(write, store))
        self._minted: dict[Key, int] = {}  # how many uids each key was given at `_minted_at`
        self._minted_at: Instant = kernel.now()
        store.listen(self._observe)

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._store.revision

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        return self._store.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""
        return self._store.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner by its uid, in a namespace or cluster-scoped (''), sorted by key."""
        get = self._store.get
        return [obj for key in self._collector.owned_by(uid, namespace) if (obj := get(key)) is not None]

    def judge_owners(self, scopes: Scopes) -> None:
        """Also collect objects whose owner does not exist although its kind is served."""
        self._collector.scopes = scopes

    def recall(self, events: Sequence[WatchEvent]) -> None:
        """Load all objects that are already in the store, given as additions."""
        self._collector.recall(events)
        if not self._delivering_soon:
            self._deliver_soon()

    def subscribe(self, listener: Listener) -> None:
        """Call the listener with later changes, in order, in batches, from the event loop and never re-entrantly."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Stop calling the listener."""
        self._listeners.remove(listener)

    def settled(self) -> bool:
        """Whether all changes and all results of writes have been delivered."""
        return not (self._events or self._results)

    def submit(self, writes: Iterable[Write], done: Callable[[WriteResult], None]) -> None:
        """Apply writes in order until one is rejected; `done` later gets the result of the last one tried."""
        claimed = self._claimed
        for write in writes:
            result = self.attempt(write if claimed is None else claimed(write, self.get))
            if result.error is not None:
                break
        self.answer(done, result)

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        """Apply one write now; a dry run does everything but store it."""
        try:
            return WriteResult(self._apply(write, DryRun(self._store) if dry_run else self._store))
        except ApiError as error:
            # The traceback's frames would hold the holder of the result, which holds the error: a reference cycle.
            return WriteResult(None, error.with_traceback(None), write)

    def answer(self, done: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Deliver the result of writes to their writer with the next delivery."""
        self._results.append((done, result))
        if not self._delivering_soon:
            self._deliver_soon()

    def _apply(self, write: Write, records: Writable) -> Obj:
        """Apply a write and return the object as stored; for Delete, its last state."""
        if isinstance(write, Create):
            return self._create(write.obj, records)
        if isinstance(write, Delete):
            return self._delete(write, records)
        key = key_of(write.obj)
        stored = self._found(key)
        check_preconditions(key, stored, write.obj)
        if isinstance(write, UpdateStatus):
            new = status_updated(stored, write.obj, write.managed_fields)
        else:
            new = updated(stored, write.obj, write.managed_fields, is_whole=write.is_whole)
            if is_released(new):
                return records.delete(key)
            check = self._admission.checks.get(key.kind)
            if check is not None and new is not stored:
                check(new, stored, self)
        return stored if new is stored else records.put(key, new)

    def _create(self, obj: Obj, records: Writable) -> Obj:
        """Store a new object, with a generated name if it asks for one."""
        if obj["metadata"].get("name"):
            key = key_of(obj)
            uid = obj["metadata"].get("uid") or self._mint(key)
            return self._put_new(key, obj, uid, records)
        check_named(obj)
        prefix = obj["metadata"]["generateName"]
        for _ in range(_NAMES_TRIED_MAX):
            uid = self._mint(key_of(with_metadata(obj, name=prefix)))
            named = with_metadata(obj, name=generated_name(prefix, uid))
            if self._store.get(key_of(named)) is None:
                return self._put_new(key_of(named), named, uid, records)
        raise Conflict(f'{group_kind(obj)} "{prefix}": no free name was found in {_NAMES_TRIED_MAX} attempts')

    def _put_new(self, key: Key, obj: Obj, uid: str, records: Writable) -> Obj:
        """Store a new object after the `prepare` hook of its kind."""
        new = created(obj, uid, self._kernel.now())
        prepare = self._admission.prepare.get(key.kind) or self._admission.prepare.get(ANY_OTHER)
        return records.put(key, new if prepare is None else prepare(new, self), 0)

    def _delete(self, write: Delete, records: Writable) -> Obj:
        """Remove an object, or mark it as deleted if it has finalizers, a grace period, or dependents to wait for."""
        key = write.key
        stored = self._found(key)
        guard = self._admission.guards.get(key.kind)
        if guard is not None:
            guard(stored)
        if write.uid is not None:
            check_preconditions(key, stored, {"metadata": {"uid": write.uid}})
        if write.propagation is _ORPHAN and records is self._store:
            self._collector.orphan(stored["metadata"]["uid"], key.namespace)
        uid = stored["metadata"]["uid"]
        in_foreground = write.propagation is _FOREGROUND and self._collector.owned_by(uid, key.namespace)
        grace = deletion_grace(stored, write.grace)
        if not in_foreground and not grace and not stored["metadata"].get("finalizers"):
            return records.delete(key)
        finalizers = (FOREGROUND_FINALIZER,) if in_foreground else ()
        marked = marked_deleted(stored, self._kernel.now(), grace, finalizers=finalizers)
        return stored if marked is stored else records.put(key, marked)

    def _found(self, key: Key) -> Obj:
        """Return the stored object; NotFound if it does not exist."""
        stored = self._store.get(key)
        if stored is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return stored

    def _mint(self, key: Key) -> str:
        """Return a uid derived from the seed, the key, the instant, and how often the key was created in it.

        It does not depend on other objects, so a simulation with one more object differs in that object only.
        """
        now = self._kernel.now()
        if now != self._minted_at:
            self._minted.clear()
            self._minted_at = now
        count = self._minted.get(key, 0)
        self._minted[key] = count + 1
        return uid_for(self._seed, *key, str(now), str(count))

    def _observe(self, event: WatchEvent) -> None:
        """Queue a change as it happens."""
        self._events.append(event)
        self._collector.observe(event)
        if not self._delivering_soon:
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        """Schedule the delivery on the event loop."""
        self._delivering_soon = True
        self._kernel.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver everything queued: the events, then the results."""
        events, self._events = self._events, []
        results, self._results = self._results, []
        self._delivering_soon = False
        if events:
            for listener in self._listeners:
                listener(events)
        self._collector.collect()
        for done, result in results:
            done(result)
