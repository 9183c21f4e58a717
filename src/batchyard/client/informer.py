"""Informer of one kind: lists it, then watches it from the revision of the list.

The informer sends nothing itself. `following` returns the next request; other methods process the responses. Every
change is reported once, with the previous object. A watch that breaks off resumes at the last reported revision. If the
server no longer has that revision, or not yet because it was restored from a backup, the informer lists again and
reports the differences as changes. If the server does not serve one version of the kind, the informer tries the others.
If it serves none, the informer retries after a while.
Sources: client-go, tools/cache/reflector.go; k8s.io/apimachinery, pkg/api/errors.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind
from batchyard.api.views.node import forget_node_view
from batchyard.api.views.pods import forget_pod_view
from batchyard.api.views.workload import forget_workload_view
from batchyard.base import draw
from batchyard.base.instant import SECOND, Duration
from batchyard.client.transport import (
    HttpAnswer,
    HttpRequest,
    decoded,
    failure_reason,
    is_ahead,
    is_object,
    jittered_backoff,
    key_in,
    list_in,
    path_of,
    path_of_kind,
    received,
    revision_of,
)
from batchyard.interfaces.client import Delete, EventType, Listener, ObjectClient, WatchEvent, Write, WriteResult
from batchyard.interfaces.containers import RUN, ContainerRuntime

# --- index ---
#
# Dependents by the uid of their owner, updated with each change.


_DELETED = EventType.DELETED


# --- cache ---
#
# The cache of watched objects: by kind, in order, and by owner.


class OwnerIndex:
    """The keys of the dependents of each owner that has any."""

    __slots__ = ("_dependents", "_sorted")

    def __init__(self) -> None:
        self._dependents: dict[str, dict[Key, None]] = {}
        self._sorted: dict[str, list[Key]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._dependents

    def observe(self, event: WatchEvent) -> None:
        """Update the index with a change."""
        kind, _, obj, old, _ = event
        before = old["metadata"].get("ownerReferences") if old is not None else None
        after = obj["metadata"].get("ownerReferences") if kind is not _DELETED else None
        if before is not after:
            self._replace(event.key, before or (), after or ())

    def owners(self) -> Sequence[str]:
        """Return the uids of all owners, whether they exist or not."""
        return list(self._dependents)

    def dependents(self, uid: str, namespace: str = "") -> Sequence[Key]:
        """Return the keys of all objects in a namespace, or in all, with an owner reference to that uid, sorted."""
        keys = self._sorted.get(uid)
        if keys is None:
            if uid not in self._dependents:
                return ()
            keys = self._sorted[uid] = sorted(self._dependents[uid])
        return [key for key in keys if key.namespace == namespace] if namespace else keys

    def _replace(self, key: Key, before: Sequence[Obj], after: Sequence[Obj]) -> None:
        """Replace the owners of an object."""
        for owner in before:
            self._remove(owner["uid"], key)
        for owner in after:
            self._add(owner["uid"], key)

    def _add(self, uid: str, key: Key) -> None:
        self._dependents.setdefault(uid, {})[key] = None
        self._sorted.pop(uid, None)

    def _remove(self, uid: str, key: Key) -> None:
        keys = self._dependents.get(uid)
        if keys is None or key not in keys:
            return  # an object may name one owner twice
        del keys[key]
        self._sorted.pop(uid, None)
        if not keys:
            del self._dependents[uid]


class Cache:
    """The objects of each kind by key, their sorted keys, and an index by owner."""

    __slots__ = ("_keys", "_objects", "_owners")

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {}
        self._keys: dict[str, list[Key]] = {}
        self._owners = OwnerIndex()

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        objects = self._objects.get(key.kind)
        return None if objects is None else objects.get(key)

    def of_kind(self, kind: str) -> dict[Key, Obj]:
        """Return the objects of a kind by key; only `note` may change the result."""
        return self._objects.setdefault(kind, {})

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""
        objects, keys = self._objects.get(kind, {}), self._keys.get(kind, [])
        if namespace is not None:
            first = bisect_left(keys, Key(kind, namespace, ""))
            keys = keys[first : bisect_left(keys, Key(kind, namespace + "\0", ""), lo=first)]
        return [objects[key] for key in keys]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner by its uid, in a namespace or cluster-scoped (''), sorted by key."""
        return [self._objects[key.kind][key] for key in self._owners.dependents(uid, namespace)]

    def note(self, event: WatchEvent) -> None:
        """Apply a change."""
        key = event.key
        objects, keys = self.of_kind(key.kind), self._keys.setdefault(key.kind, [])
        if event.type is _DELETED:
            del objects[key]
            del keys[bisect_left(keys, key)]
        else:
            if key not in objects:
                insort(keys, key)
            objects[key] = event.obj
        self._owners.observe(event)


PAGE: Final = 500
#: The minimum timeout of a watch; the maximum is twice that.
WATCH_LASTS: Final = 300  # seconds
#: The timeout of a page.
_PAGE_WITHIN: Final = 60 * SECOND
#: The time after which a kind that is not served is tried again.
UNSERVED_FOR: Final = 30 * SECOND
_GONE: Final = 410
#: Asks for the metadata of objects only; servers that do not support it send the full objects.
_NAMES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ADDED, _MODIFIED, _INFORMER_DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


class NextRequest(NamedTuple):
    """The next request, and the wait before it."""

    request: HttpRequest
    is_watch: bool
    wait: Duration


class InformerScope(NamedTuple):
    """The objects of a kind to follow: a namespace ('' for all) and a selector."""

    namespace: str = ""
    #: In query form, such as `fieldSelector=metadata.name%3Da`.
    selector: str = ""


_ALL: Final = InformerScope()


class Informer:
    """The state of a list and a watch of one kind: the cache, the last revision, the backoff and the current error."""

    def __init__(self, info: ServedKind, cache: Cache, seed: int, scope: InformerScope = _ALL) -> None:
        self.info = info
        self._scope = scope
        self._cache = cache
        self._seed = seed
        self._versions = [info.storage_version, *[v for v in reversed(info.versions) if v != info.storage_version]]
        #: The number of versions that the server rejected since it last served one.
        self._refused = 0
        self._token = ""
        self._is_paged = True
        self._page: dict[Key, Obj] = {}
        self._wait: Duration = 0
        self._failures = 0
        #: How often in a row a watch expired without any event in between.
        self._expired = 0
        #: The revision up to which changes are reported; None before the first list is complete.
        self.revision: int | None = None
        self._knows_where = False
        #: Whether the current watch has sent anything.
        self._has_received = False
        #: The number of lists and of watches that were started.
        self.lists = 0
        self.watches = 0
        #: The number of completed lists.
        self.listings = 0
        #: The number of the last completed list, counted by `lists`.
        self.last_listed = 0
        #: The current error; '' if there is none.
        self.trouble = ""

    @property
    def version(self) -> str:
        """The version used in requests."""
        return self._versions[self._refused % len(self._versions)]

    @property
    def is_served(self) -> bool:
        """Whether the server serves the kind, as far as is known."""
        return self._refused < len(self._versions)

    @property
    def is_synced(self) -> bool:
        """Whether the initial list has been reported, or the kind is not served."""
        return self.revision is not None

    def following(self) -> NextRequest:
        """Return the next request."""
        path = self._path()
        wait, self._wait = self._wait, 0
        if not self._knows_where:
            self.lists += not self._token
            return NextRequest(HttpRequest("GET", f"{path}{self._page_query()}", within=_PAGE_WITHIN), False, wait)
        self.watches += 1
        self._has_received = False
        lasts = WATCH_LASTS + draw(self._seed, self.info.constant, str(self.watches)) % WATCH_LASTS
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self.revision}&timeoutSeconds={lasts}"
        return NextRequest(HttpRequest("GET", f"{path}?{query}{self._selected()}", within=lasts * SECOND), True, wait)

    def look(self, token: str) -> HttpRequest:
        """Return the request for a page of the current names and revisions; its result does not change the informer."""
        query = f"?limit={PAGE}" + (f"&continue={quote(token, safe='')}" if token else "") + self._selected()
        return HttpRequest("GET", f"{self._path()}{query}", within=_PAGE_WITHIN, accept=_NAMES)

    def listed(self, answer: HttpAnswer) -> Sequence[WatchEvent]:
        """Process a page of a list; the last page returns the differences from the cache."""
        page = list_in(answer)
        if page is None:
            return self._list_failed(answer)
        metadata = page.get("metadata") or {}
        for item in page.get("items") or ():
            obj = received(self.info, self.version, item)
            self._page[key_in(self.info, obj)] = obj
        self._token = metadata.get("continue") or ""
        if self._token:
            return ()
        found, self._page = self._page, {}
        self.listings += 1
        self.last_listed = self.lists
        self._recovered()
        self._knows_where, self.revision = True, revision_of(page)
        return self._differences(found, self.revision)

    def watched(self, lines: Sequence[bytes]) -> Sequence[WatchEvent]:
        """Process lines of a watch; an empty sequence means that the server has responded."""
        self.trouble = ""
        self._has_received = self._has_received or bool(lines)
        events: list[WatchEvent] = []
        for line in lines:
            if not self._knows_where:
                break
            change = decoded(line)
            obj = change.get("object")
            match change.get("type"):
                case "ADDED" | "MODIFIED" | "DELETED" as verb if is_object(obj):
                    self._recovered()
                    self._expired = 0
                    self._take_in(verb == "DELETED", obj, events)
                case "BOOKMARK" if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
                    self._recovered()
                    self._expired = 0
                    self._advance(revision_of(obj))
                case "ERROR":
                    self._fail(_response_of(obj))
                case _:  # a truncated line, or one that is not from the Kubernetes API
                    self._fail(HttpAnswer(0, trouble="a watch sent an incomplete line"))
        return events

    def ended(self, answer: HttpAnswer) -> None:
        """Process the end of a watch: regular, by a broken connection, or rejected by the server."""
        if answer.code != 200 or answer.trouble:
            self._fail(answer)
        elif not self._has_received:  # whatever the reason: do not retry in a tight loop
            self._failures += 1
            self._wait = jittered_backoff(self._failures, self._seed, self.info.constant)

    def relist(self) -> None:
        """List everything again."""
        self._knows_where, self._token = False, ""
        self._page.clear()

    def _path(self) -> str:
        namespace = self._scope.namespace
        return path_of(self.info, self.version, namespace) if namespace else path_of_kind(self.info, self.version)

    def _selected(self) -> str:
        return f"&{self._scope.selector}" if self._scope.selector else ""

    def _page_query(self) -> str:
        if not self._is_paged:
            return f"?{self._scope.selector}" if self._scope.selector else ""
        return f"?limit={PAGE}" + (f"&continue={quote(self._token, safe='')}" if self._token else "") + self._selected()

    def _take_in(self, is_gone: bool, sent: Any, events: list[WatchEvent]) -> None:
        """Process a change from a watch; skip it if it is already known."""
        obj = received(self.info, self.version, sent)
        key, revision = key_in(self.info, obj), revision_of(obj)
        old = self._cache.get(key)
        self._advance(revision)
        if old is not None and 0 < revision <= revision_of(old):
            return
        if is_gone and old is not None:
            self._note(WatchEvent(_INFORMER_DELETED, key, obj, old, revision), events)
        elif not is_gone:
            self._put(key, obj, revision, events)

    def _put(self, key: Key, obj: Obj, revision: int, events: list[WatchEvent]) -> None:
        """Store an object. If its uid differs from the known one, report the deletion of the known one first."""
        old = self._cache.get(key)
        if old is not None and old["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._note(WatchEvent(_INFORMER_DELETED, key, old, old, revision), events)
            old = None
        self._note(WatchEvent(_ADDED if old is None else _MODIFIED, key, obj, old, revision), events)

    def _note(self, event: WatchEvent, events: list[WatchEvent]) -> None:
        self._cache.note(event)
        events.append(event)

    def _differences(self, found: dict[Key, Obj], revision: int) -> Sequence[WatchEvent]:
        """Return the changes since the last report: deleted, added and modified objects."""
        events: list[WatchEvent] = []
        known = self._cache.of_kind(self.info.constant)
        for key in sorted(key for key in known if key not in found):
            self._note(WatchEvent(_INFORMER_DELETED, key, known[key], known[key], revision), events)
        for key, obj in found.items():
            old = known.get(key)
            if (
                old is None
                or _version(old) != _version(obj)
                or old["metadata"].get("uid") != obj["metadata"].get("uid")
            ):
                self._put(key, obj, revision_of(obj), events)
        return events

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision or 0, revision)

    def _list_failed(self, answer: HttpAnswer) -> Sequence[WatchEvent]:
        if answer.code == 404:
            return self._not_served()
        self._fail(answer)
        return ()

    def _not_served(self) -> Sequence[WatchEvent]:
        """Try the next version of the kind; if no version is served, report all known objects as deleted."""
        self._refused += 1
        if self._refused % len(self._versions):
            return ()
        self._wait = UNSERVED_FOR
        self.trouble = f"{self.info.plural}.{self.info.group}".rstrip(".") + " are not served"
        self.revision = self.revision or 0
        return self._differences({}, self.revision)

    def _fail(self, answer: HttpAnswer) -> None:
        """Schedule a retry; list again if the revision is no longer valid."""
        if answer.code == _GONE and self._token:
            self._is_paged = False  # a server that expires the continue token must send the list at once
        if answer.code in {_GONE, 404} or self._token or is_ahead(answer):
            self.relist()
        if answer.code == _GONE:  # one expiry is normal; repeated ones must not load the server
            self._wait = jittered_backoff(self._expired, self._seed, self.info.constant)
            self._expired += 1
            return
        self._failures += 1
        wait = jittered_backoff(self._failures, self._seed, self.info.constant)
        self._wait = max(wait, answer.retry_after or 0)
        self.trouble = failure_reason(answer)

    def _recovered(self) -> None:
        self._failures, self._refused, self.trouble = 0, self._refused % len(self._versions), ""


def _response_of(status: Any) -> HttpAnswer:
    """Return the response that an ERROR event of a watch stands for."""
    known = status if isinstance(status, dict) else {}
    code = known.get("code")
    return HttpAnswer(code if isinstance(code, int) else 500, trouble=str(known.get("message") or ""))


def _version(obj: Obj) -> str | None:
    version: str | None = obj["metadata"].get("resourceVersion")
    return version


# --- composite ---
#
# A client that combines the objects of a store with the container runs of this machine.


class ResultDeliveringClient(ObjectClient, Protocol):
    """A client that can also deliver results of writes done elsewhere."""

    def answer(self, done: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Deliver a result to its writer from the event loop."""


class CompositeClient:
    """Sends writes of runs to the machine and all others to the client; in one submission, runs come first."""

    def __init__(self, objects: ResultDeliveringClient, machine: ContainerRuntime) -> None:
        self._objects = objects
        self._machine = machine

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        return self._machine.run(key) if key.kind == RUN else self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name; for runs those of a pod, by its uid."""
        return self._machine.runs(namespace) if kind == RUN else self._objects.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return all objects with an owner reference to that uid."""
        return self._objects.owned_by(uid, namespace)

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Apply writes: those of runs at once, the others in order until one is rejected."""
        others = [write for write in writes if not _is_to_run(write)]
        results = [WriteResult(self._machine.do(write)) for write in writes if _is_to_run(write)]
        if others:
            self._objects.submit(others, done)
        else:
            self._objects.answer(done, results[-1])

    def subscribe(self, listener: Listener) -> None:
        """Call the listener with every later change of objects and runs."""
        self._objects.subscribe(listener)
        self._machine.subscribe(listener)

    def settled(self) -> bool:
        """Whether all changes of objects and all results of writes have been delivered."""
        return self._objects.settled()


def _is_to_run(write: Write) -> bool:
    if isinstance(write, Delete):
        return write.key.kind == RUN
    return bool(write.obj["kind"] == "Run" and write.obj["apiVersion"].startswith(RUN.partition(".")[2]))


# --- view expiry ---
#
# Drops the cached views of deleted objects, to bound memory in a long-running process.
#
# Later subscribers of the same batch, and watches that wait for the disk, read a deleted object once more. So its view
# stays until enough other objects were deleted.


#: The number of deleted objects whose views stay.
KEPT_MAX: Final = 256
_FORGET: Final[Mapping[str, Callable[[str], None]]] = {
    scheme.NODE: forget_node_view,
    scheme.POD: forget_pod_view,
    scheme.WORKLOAD: forget_workload_view,
}


class ViewExpiry:
    """The recently deleted objects whose views are still cached."""

    def __init__(self) -> None:
        self._deleted: deque[tuple[str, str]] = deque()

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Record deletions, and drop the views of the oldest."""
        for event in events:
            if event.type is EventType.DELETED and event.key.kind in _FORGET:
                self._deleted.append((event.key.kind, event.obj["metadata"].get("uid", "")))
        while len(self._deleted) > KEPT_MAX:
            kind, uid = self._deleted.popleft()
            _FORGET[kind](uid)
