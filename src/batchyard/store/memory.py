"""The object store in memory: the current objects, one revision counter for all kinds, and the log of changes.

The store is independent of kinds and creates no times, uids or names. It stores objects as written, except
`metadata.resourceVersion`, which is the revision of the object's last change. A writer can name the revision that it
has read; if another write came first, the store rejects the write. Stored objects are immutable, for the store and its
readers. With `detect_mutation`, the store keeps a copy of each, and `check_unchanged` fails if an object was changed in
place. A store can continue from recovered contents (journal.py).
"""

import copy
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.errors import ApiError, Conflict, NotFound
from batchyard.api.meta import Key, Obj
from batchyard.base.primitives import InvariantError, invariant
from batchyard.interfaces.client import EventType, WatchEvent

# The append-only log of revisions: each change once, in order, with a bounded window of history.
#
# Every change to the store is one entry with the next revision. Listeners are called with each entry as it is
# appended. A listener must not append, so no listener is called re-entrantly. The durable log is such a listener.
# Watches read the window at their own pace instead. An entry that has left the window is gone, and a watch that still
# needs it must list again.


ChangeListener: TypeAlias = Callable[[WatchEvent], None]

HISTORY_WINDOW_MAX: Final = 1024  # number of entries; enough for a watcher that is a few batches late


class ExpiredRevision(ApiError):  # noqa: N818 - named as the reasons of Kubernetes
    """The requested revision is older than the history of changes (410 Gone); the client must list again."""

    reason = "Expired"


class RecoveredStore(NamedTuple):
    """The contents from which a store continues: current objects, and the last changes in order, up to `revision`."""

    revision: int
    objects: Mapping[Key, Obj]
    changes: Sequence[WatchEvent]


class RevisionLog:
    """The log of the store's changes, in order of revision; at most the last `window` changes can be read again."""

    __slots__ = ("_entries", "_is_notifying", "_listeners", "revision")

    def __init__(self, window: int = HISTORY_WINDOW_MAX, contents: RecoveredStore | None = None) -> None:
        invariant(window >= 1, "the history window must hold at least one entry")
        self._entries: deque[WatchEvent] = deque(contents.changes if contents else (), maxlen=window)
        self._listeners: list[ChangeListener] = []
        self._is_notifying = False
        self.revision = contents.revision if contents else 0

    def listen(self, listener: ChangeListener) -> None:
        """Register a function that is called with every later change in the log, in order."""
        self._listeners.append(listener)

    def append(self, change: WatchEvent) -> None:
        """Add a change with the next revision to the log, and call the listeners with it."""
        assert not self._is_notifying, "a listener of the store must not write to it"
        self._is_notifying = True
        self.revision = change.revision
        self._entries.append(change)
        for listener in self._listeners:
            listener(change)
        self._is_notifying = False

    def events_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all changes after a revision; raises ExpiredRevision if the log no longer has all of them."""
        change_count = self.revision - revision
        invariant(change_count >= 0, "a requested revision must not be newer than the store")
        if change_count > len(self._entries):
            oldest = self.revision - len(self._entries)
            raise ExpiredRevision(f"too old resource version: {revision} ({oldest}); list again and watch from there")
        return list(islice(self._entries, len(self._entries) - change_count, None))

    def drop_changes(self, revision: int) -> None:
        """Drop the changes up to a revision from the log, even if the log still has room for them."""
        while self._entries and self._entries[0].revision <= revision:
            self._entries.popleft()

    def validate(self) -> None:
        """Raise InvariantError unless the revisions in the log have no gap; to be called between two appends."""
        revisions = [change.revision for change in self._entries]
        last_revision = self.revision
        invariant(
            revisions == list(range(last_revision - len(revisions) + 1, last_revision + 1)),
            "the history window must have no gap",
        )


# The objects of one kind by key, and their sorted list, updated lazily.
#
# Writes only record the keys that they touch. The next list operation then replaces, inserts and removes those by
# bisection. So a long list after every write costs one copy instead of one sort. A kind that is never listed costs
# nothing.


class KindListing:
    """The stored objects of one kind by key, with a sorted list of them that is updated only when it is read."""

    __slots__ = ("_changed_keys", "_keys", "_sorted_objects", "is_listed", "objects")

    def __init__(self) -> None:
        self.objects: dict[Key, Obj] = {}  # change it only together with mark_changed()
        self.is_listed = False
        self._sorted_objects: list[Obj] | None = None  # returned to callers, so never changed in place
        self._keys: list[Key] = []
        self._changed_keys: dict[Key, None] = {}

    def mark_changed(self, key: Key) -> None:
        """Record that the object with a key was added, replaced or removed; to be called only if `is_listed`."""
        assert self._sorted_objects is not None, "mark_changed() must be called only if is_listed is true"
        self._changed_keys[key] = None
        if len(self._changed_keys) > 16 + len(self._sorted_objects) // 4:
            self._sorted_objects, self._keys, self.is_listed = None, [], False  # sorting again is cheaper from here on
            self._changed_keys.clear()

    def list_sorted(self, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of one namespace, or of all if None, sorted by namespace and name."""
        objects_in_order = self._refresh_list()
        if namespace is None or not objects_in_order:
            return objects_in_order
        keys = self._keys
        kind = keys[0].kind
        start_index = bisect_left(keys, Key(kind, namespace, ""))
        return objects_in_order[start_index : bisect_left(keys, Key(kind, namespace + "\0", ""), lo=start_index)]

    def validate(self) -> None:
        """Raise InvariantError unless the sorted list has exactly the stored objects, in order."""
        keys = sorted(self.objects)
        objects = [self.objects[key] for key in keys]
        invariant(list(self.list_sorted()) == objects, "the sorted list of a kind must hold all its objects")
        invariant(self._keys == keys, "the keys of a kind's sorted list must be sorted")

    def _refresh_list(self) -> list[Obj]:
        if self._sorted_objects is None:
            self._keys = sorted(self.objects)
            self._sorted_objects, self.is_listed = [self.objects[key] for key in self._keys], True
        elif self._changed_keys:
            self._sorted_objects = self._sorted_objects.copy()
            for key in self._changed_keys:
                self._update_key(key, self._sorted_objects)
            self._changed_keys.clear()
        return self._sorted_objects

    def _update_key(self, key: Key, sorted_objects: list[Obj]) -> None:
        keys, obj = self._keys, self.objects.get(key)
        key_index = bisect_left(keys, key)
        is_present = key_index < len(keys) and keys[key_index] == key
        if is_present and obj is not None:
            sorted_objects[key_index] = obj
        elif is_present:
            del keys[key_index], sorted_objects[key_index]
        elif obj is not None:
            keys.insert(key_index, key)
            sorted_objects.insert(key_index, obj)


# Watches: cursors into the revision log, read at the watcher's own pace.
#
# A watch is polled, never called. So a slow watcher delays no other, and nothing is called re-entrantly. `revision` is
# the cursor: a bookmark from which another watch can continue.


class RevisionWatch:
    """A watch of the store: returns every change after a revision, each once."""

    __slots__ = ("_log", "revision")

    def __init__(self, log: RevisionLog, revision: int) -> None:
        self._log = log
        self.revision = revision

    def take_changes(self) -> Sequence[WatchEvent]:
        """Return the changes since the last call; raises ExpiredRevision if the history no longer has all of them."""
        if self.revision == self._log.revision:
            return ()
        events = self._log.events_since(self.revision)
        self.revision = self._log.revision
        return events


_ADDED, _MODIFIED, _DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


def changes_reader(store: "Store") -> Callable[[int], Sequence[WatchEvent] | None]:
    """Return a function that returns all changes of the store after a revision.

    The function returns None if the history window no longer has all of them, or if the revision is newer than the
    store.
    """

    def changes_since_revision(revision: int) -> Sequence[WatchEvent] | None:
        if revision > store.revision:  # from another store
            return None
        try:
            return store.changes_since(revision)
        except ExpiredRevision:
            return None

    return changes_since_revision


class Store:
    """The objects of all kinds by key, with optimistic concurrency (resourceVersion) and a log of recent changes."""

    __slots__ = ("_copies", "_listings", "_log")

    def __init__(
        self, *, window: int = HISTORY_WINDOW_MAX, detect_mutation: bool = False, contents: RecoveredStore | None = None
    ) -> None:
        self._listings: dict[str, KindListing] = {}
        self._log = RevisionLog(window, contents)
        self._copies: dict[Key, Obj] | None = {} if detect_mutation else None
        for key, obj in contents.objects.items() if contents else ():
            self._listings.setdefault(key.kind, KindListing()).objects[key] = obj
            if self._copies is not None:
                self._copies[key] = copy.deepcopy(obj)

    @property
    def revision(self) -> int:
        """The revision of the store's last change; 0 before the first."""
        return self._log.revision

    def get(self, key: Key) -> Obj | None:
        """Return the stored object with a key, or None. Callers must not change it."""
        kind_listing = self._listings.get(key[0])
        return kind_listing.objects.get(key) if kind_listing is not None else None

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return a snapshot of a kind's objects in a namespace (None: in all), sorted by namespace and name."""
        kind_listing = self._listings.get(kind)
        return kind_listing.list_sorted(namespace) if kind_listing is not None else ()

    def kinds(self) -> Sequence[str]:
        """Return the kinds of which at least one object is stored, sorted."""
        return sorted(kind for kind, listing in self._listings.items() if listing.objects)

    def count(self, kind: str) -> int:
        """Return the number of stored objects of a kind."""
        listing = self._listings.get(kind)
        return len(listing.objects) if listing is not None else 0

    def put(self, key: Key, obj: Obj, expected_revision: int | None = None) -> Obj:
        """Create or replace an object; return it with its new resourceVersion.

        `expected_revision` is the revision that the writer has read, 0 if it must not exist yet, None for any.
        Raises Conflict if the stored revision differs.
        """
        listing = self._listings.get(key[0])
        if listing is None:
            listing = self._listings[key[0]] = KindListing()
        old = listing.objects.get(key)
        if expected_revision is not None:
            _check_revision(key, old, expected_revision)
        new_revision = self._log.revision + 1
        stored_object = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(new_revision)}}
        if self._copies is not None:
            self._check_copy(key, old)
            self._copies[key] = copy.deepcopy(stored_object)
        listing.objects[key] = stored_object
        if listing.is_listed:
            listing.mark_changed(key)
        self._log.append(WatchEvent(_ADDED if old is None else _MODIFIED, key, stored_object, old, new_revision))
        return stored_object

    def delete(self, key: Key, expected_revision: int | None = None) -> Obj:
        """Remove an object and return its last state. Raise NotFound, or Conflict if it has another revision."""
        old_object = self.get(key)
        if old_object is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        if expected_revision is not None:
            _check_revision(key, old_object, expected_revision)
        if self._copies is not None:
            self._check_copy(key, old_object)
            del self._copies[key]
        kind_listing = self._listings[key[0]]
        del kind_listing.objects[key]
        if kind_listing.is_listed:
            kind_listing.mark_changed(key)
        self._log.append(WatchEvent(_DELETED, key, old_object, old_object, self._log.revision + 1))
        return old_object

    def listen(self, listener: ChangeListener) -> None:
        """Call a function with every later change, during the write. The function must not write to the store."""
        self._log.listen(listener)

    def watch(self, revision: int) -> RevisionWatch:
        """Return a watch of all changes after a revision; raises ExpiredRevision if the history window starts later."""
        self._log.events_since(revision)
        return RevisionWatch(self._log, revision)

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all changes of the store after a revision; raises ExpiredRevision if its history starts later."""
        return self._log.events_since(revision)

    def forget_changes(self, revision: int) -> None:
        """Drop the changes up to a revision from the store's history, even if the history has room for them."""
        self._log.drop_changes(revision)

    def check_unchanged(self) -> None:
        """Raise InvariantError if a stored object was changed in place. Requires the option `detect_mutation`."""
        invariant(self._copies is not None, "check_unchanged() requires a store with detect_mutation=True")
        for listing in self._listings.values():
            for key, obj in listing.objects.items():
                self._check_copy(key, obj)

    def validate(self) -> None:
        """Raise InvariantError if log, lists or revisions are inconsistent; to be called between two writes."""
        self._log.validate()
        for kind, listing in self._listings.items():
            listing.validate()
            invariant(all(key.kind == kind for key in listing.objects), "each object must be stored under its own kind")
            versions = [int(obj["metadata"]["resourceVersion"]) for obj in listing.objects.values()]
            invariant(len(set(versions)) == len(versions), "all objects must have different revisions")
            invariant(all(version <= self.revision for version in versions), "no object may be newer than the store")

    def _check_copy(self, key: Key, obj: Obj | None) -> None:
        assert self._copies is not None
        if obj is not None and (stored_copy := self._copies[key]) != obj:
            fields = [field for field in {**stored_copy, **obj} if stored_copy.get(field) != obj.get(field)]
            problem = f"was changed in place after it was stored, in {', '.join(fields)}"
            raise InvariantError(f'{key.kind} "{key}" {problem}; write a changed copy instead')


def _check_revision(key: Key, old_object: Obj | None, expected_revision: int) -> None:
    """Raise Conflict unless the stored object `old_object` has the expected revision (0: no object must exist)."""
    current_revision = int(old_object["metadata"]["resourceVersion"]) if old_object is not None else 0
    if current_revision == expected_revision:
        return
    if expected_revision == 0:
        raise Conflict(f'{key.kind} "{key}" already exists')
    if current_revision == 0:
        remedy = "create it again if you need it"
        raise Conflict(f'{key.kind} "{key}" was deleted after you read resourceVersion {expected_revision}; {remedy}')
    raise Conflict(
        f'{key.kind} "{key}": the object has been modified (you read resourceVersion {expected_revision}, '
        f"the current one is {current_revision}); apply your changes to the latest version and try again"
    )
