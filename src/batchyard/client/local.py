"""The client in process: reads and writes a store directly, and delivers what happened later, through the kernel.

A write takes effect in the store at once, so whoever reads next sees it. Its watch event and its result wait: the
first of them asks the kernel for one piece of work, which delivers all that has gathered by then, first the events to
every subscriber, in order of revision, then the results, in order of the writes. So events of one instant come in
batches, and a writer hears of its write only after everybody heard of the change. Changes made to the store by others
are delivered in the same way.

What an object that goes leaves behind is collected (batchyard.client.garbage_collector) after its event was
delivered. A new
object is made ready as its kind demands (`prepare`), one that is to be changed (`checks`) or deleted (`guards`) is
looked at: there the defaults and the admission of the API server have their place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError, Conflict, NotFound
from batchyard.api.meta import Key, Obj, group_kind, key_of, with_metadata
from batchyard.api.well_known import FOREGROUND_FINALIZER
from batchyard.base.ids import uid_for
from batchyard.base.instant import Instant
from batchyard.client import object_updates
from batchyard.client.garbage_collector import Collector, Scopes
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

# --- dry run ---
#
# Writes that are not kept: all that a write must pass is asked of it, and what would come of it is answered.


class Readable(Protocol):
    """What is there."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""


class DryRun:
    """Records that take any write and keep none."""

    def __init__(self, records: Readable) -> None:
        self._records = records

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        return self._records.get(key)

    def put(self, key: Key, obj: Obj, expect: int | None = None) -> Obj:
        """The object, had it been stored; Conflict if it must not exist yet and does."""
        if expect == 0 and self._records.get(key) is not None:
            raise Conflict(f'{key.kind} "{key}" is there already')
        return obj

    def delete(self, key: Key, expect: int | None = None) -> Obj:
        """The object, had it been removed."""
        found = self._records.get(key)
        if found is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return found


Prepare: TypeAlias = Callable[[Obj, Reader], Obj]
"""Makes a new object of a kind ready to be stored, its uid and name given; raises an ApiError where it is refused."""
Guard: TypeAlias = Callable[[Obj], None]
"""Looks at an object of a kind that is to be deleted; raises an ApiError where that is refused."""
Claim: TypeAlias = Callable[[Write, Callable[[Key], Obj | None]], Write]
"""Makes a write that was submitted one of somebody who cares for fields, given what is stored."""
Check: TypeAlias = Callable[[Obj, Obj, Reader], None]
"""Looks at an object of a kind as it is to be and as it was; raises an ApiError where that change is refused."""


class Admission(NamedTuple):
    """What the API asks and makes of objects before it stores them, by kind."""

    prepare: Mapping[str, Prepare] = {}
    guards: Mapping[str, Guard] = {}
    checks: Mapping[str, Check] = {}


#: For which a client makes ready what is of no kind that is named.
ANY_OTHER: Final = ""
_FOREGROUND: Final = Propagation.FOREGROUND
_ORPHAN: Final = Propagation.ORPHAN
_NAMES_TRIED_MAX: Final = 8  # as the API server for generateName


class Writable(Protocol):
    """What a write is done to."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""

    def put(self, key: Key, obj: Obj, expect: int | None = None) -> Obj:
        """Store an object."""

    def delete(self, key: Key, expect: int | None = None) -> Obj:
        """Remove an object."""


class Records(Writable, Protocol):
    """What the client needs of a store."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""

    def listen(self, listener: Callable[[WatchEvent], None]) -> None:
        """Tell of every later change at once."""


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
        admission: Admission | None = None,
        claimed: Claim | None = None,
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._seed = seed
        self._listeners: list[Listener] = []
        self._events: list[WatchEvent] = []
        self._results: list[tuple[Callable[[WriteResult], None], WriteResult]] = []
        self._delivering_soon = False
        self._admission = admission or Admission()
        self._claimed = claimed
        self._collector = Collector(store.get, lambda write: self._apply(write, store))
        self._minted: dict[Key, int] = {}  # how many uids each key was given at the instant below
        self._minted_at: Instant = kernel.now()
        store.listen(self._observe)

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._store.revision

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        return self._store.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""
        return self._store.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """What an owner in a namespace, or in none (''), has by its uid, sorted by kind, namespace and name."""
        get = self._store.get
        return [obj for key in self._collector.owned_by(uid, namespace) if (obj := get(key)) is not None]

    def judge_owners(self, scopes: Scopes) -> None:
        """Collect also what names an owner that is not there, of a kind that is served."""
        self._collector.scopes = scopes

    def recall(self, events: Sequence[WatchEvent]) -> None:
        """Take note of all that is in the store from before, told as additions."""
        self._collector.recall(events)
        if not self._delivering_soon:
            self._deliver_soon()

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every later change, in order, in batches, through the kernel, never from within."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Tell a listener no more."""
        self._listeners.remove(listener)

    def settled(self) -> bool:
        """Whether all changes and all results of writes have been delivered."""
        return not (self._events or self._results)

    def submit(self, writes: Iterable[Write], done: Callable[[WriteResult], None]) -> None:
        """Take writes, to be done in order until one is refused; `done` is told of the last that was tried, later."""
        claimed = self._claimed
        for write in writes:
            result = self.attempt(write if claimed is None else claimed(write, self.get))
            if result.error is not None:
                break
        self.answer(done, result)

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        """Do one write now; in a dry run all but keep it."""
        try:
            return WriteResult(self._apply(write, DryRun(self._store) if dry_run else self._store))
        except ApiError as error:
            # With the frames that it came through it would hold whoever keeps the result, and he it: a cycle.
            return WriteResult(None, error.with_traceback(None), write)

    def answer(self, done: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Tell a writer what became of its writes, with the next delivery."""
        self._results.append((done, result))
        if not self._delivering_soon:
            self._deliver_soon()

    def _apply(self, write: Write, records: Writable) -> Obj:
        """Do a write and return the object as stored; for Delete, its last state."""
        if isinstance(write, Create):
            return self._create(write.obj, records)
        if isinstance(write, Delete):
            return self._delete(write, records)
        key = key_of(write.obj)
        stored = self._found(key)
        object_updates.check_preconditions(key, stored, write.obj)
        if isinstance(write, UpdateStatus):
            new = object_updates.status_updated(stored, write.obj, write.managed_fields)
        else:
            new = object_updates.updated(stored, write.obj, write.managed_fields, is_whole=write.is_whole)
            if object_updates.is_released(new):
                return records.delete(key)
            check = self._admission.checks.get(key.kind)
            if check is not None and new is not stored:
                check(new, stored, self)
        return stored if new is stored else records.put(key, new)

    def _create(self, obj: Obj, records: Writable) -> Obj:
        """Store a new object, under a name made for it if it asks for one."""
        if obj["metadata"].get("name"):
            key = key_of(obj)
            uid = obj["metadata"].get("uid") or self._mint(key)
            return self._put_new(key, obj, uid, records)
        object_updates.check_named(obj)
        prefix = obj["metadata"]["generateName"]
        for _ in range(_NAMES_TRIED_MAX):
            uid = self._mint(key_of(with_metadata(obj, name=prefix)))
            named = with_metadata(obj, name=object_updates.generated_name(prefix, uid))
            if self._store.get(key_of(named)) is None:
                return self._put_new(key_of(named), named, uid, records)
        raise Conflict(f'{group_kind(obj)} "{prefix}": no free name was found in {_NAMES_TRIED_MAX} attempts')

    def _put_new(self, key: Key, obj: Obj, uid: str, records: Writable) -> Obj:
        """Store a new object, made ready as its kind demands."""
        new = object_updates.created(obj, uid, self._kernel.now())
        prepare = self._admission.prepare.get(key.kind) or self._admission.prepare.get(ANY_OTHER)
        return records.put(key, new if prepare is None else prepare(new, self), 0)

    def _delete(self, write: Delete, records: Writable) -> Obj:
        """Remove an object; or mark it as deleted, if it has finalizers, time to stop, or dependents to go first."""
        key = write.key
        stored = self._found(key)
        guard = self._admission.guards.get(key.kind)
        if guard is not None:
            guard(stored)
        if write.uid is not None:
            object_updates.check_preconditions(key, stored, {"metadata": {"uid": write.uid}})
        if write.propagation is _ORPHAN and records is self._store:
            self._collector.orphan(stored["metadata"]["uid"], key.namespace)
        uid = stored["metadata"]["uid"]
        in_foreground = write.propagation is _FOREGROUND and self._collector.owned_by(uid, key.namespace)
        grace = object_updates.deletion_grace(stored, write.grace)
        if not in_foreground and not grace and not stored["metadata"].get("finalizers"):
            return records.delete(key)
        finalizers = (FOREGROUND_FINALIZER,) if in_foreground else ()
        marked = object_updates.marked_deleted(stored, self._kernel.now(), grace, finalizers=finalizers)
        return stored if marked is stored else records.put(key, marked)

    def _found(self, key: Key) -> Obj:
        """The stored object; NotFound if there is none."""
        stored = self._store.get(key)
        if stored is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return stored

    def _mint(self, key: Key) -> str:
        """A uid fixed by the seed, the key, the instant, and how often the key was made within it.

        It does not depend on what else happens, so that a world with one more object differs in that object only.
        """
        now = self._kernel.now()
        if now != self._minted_at:
            self._minted.clear()
            self._minted_at = now
        count = self._minted.get(key, 0)
        self._minted[key] = count + 1
        return uid_for(self._seed, *key, str(now), str(count))

    def _observe(self, event: WatchEvent) -> None:
        """Take note of a change as it happens."""
        self._events.append(event)
        self._collector.observe(event)
        if not self._delivering_soon:
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        """Ask the kernel for the delivery."""
        self._delivering_soon = True
        self._kernel.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver all that has gathered: the events, then the results."""
        events, self._events = self._events, []
        results, self._results = self._results, []
        self._delivering_soon = False
        if events:
            for listener in self._listeners:
                listener(events)
        self._collector.collect()
        for done, result in results:
            done(result)
